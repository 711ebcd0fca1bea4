"""The rows of the remote tier's manifest that a node's own manifest does not have: what `RemoteState` says, except for
how many blocks were considered and which files count."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.database.manifest_database import Schemas, Statement
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.remote.decided.remote_state import Noted, Notes, RemotePosition, RemoteState

SCHEMAS: Schemas = {
    "remote_positions": """
        CREATE TABLE remote_positions (
            write_group INTEGER PRIMARY KEY, number INTEGER NOT NULL, epoch INTEGER NOT NULL
        )
    """,
    "remote_names": """
        CREATE TABLE remote_names (
            name TEXT NOT NULL, write_group INTEGER NOT NULL, standing INTEGER NOT NULL, epoch INTEGER NOT NULL,
            since_ms INTEGER NOT NULL, PRIMARY KEY (write_group, name)
        ) WITHOUT ROWID
    """,
}

INTENDED, LEAVING = 1, 2
"""The values of `standing`."""

_POSITION = (
    "INSERT INTO remote_positions VALUES (?, ?, ?) ON CONFLICT (write_group) DO UPDATE "
    "SET number = excluded.number, epoch = excluded.epoch"
)
_NAME = (
    "INSERT INTO remote_names VALUES (?, ?, ?, ?, ?) ON CONFLICT (write_group, name) DO UPDATE "
    "SET standing = excluded.standing, epoch = excluded.epoch, since_ms = excluded.since_ms"
)
"""No REPLACE: sqlite fires no trigger for what that deletes."""
_FORGOTTEN = "DELETE FROM remote_names WHERE write_group = ? AND name = ?"
_ALL_FORGOTTEN = "DELETE FROM remote_names WHERE write_group = ?"

_GIVEN_UP_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS remote_given_up (write_group INTEGER NOT NULL, name TEXT NOT NULL, "
    "content BLOB NOT NULL, PRIMARY KEY (write_group, name)) WITHOUT ROWID"
)
"""Made with the first file that is given up; versions that do not know the table leave it alone."""
_GIVEN_UP = "INSERT INTO remote_given_up VALUES (?, ?, ?) ON CONFLICT (write_group, name) DO NOTHING"
_NOT_GIVEN_UP = "DELETE FROM remote_given_up WHERE write_group = ?"


async def read_states(manifest: Manifest) -> dict[int, RemoteState]:
    """The state of every write group that the manifest says anything of. Raises `StorageError`."""
    states: dict[int, RemoteState] = {}
    for group, number, epoch in await manifest.rows("SELECT write_group, number, epoch FROM remote_positions"):
        states[group] = RemoteState(RemotePosition(number, epoch, manifest.position(group).position))
    for group, name, standing, epoch, since_ms in await manifest.rows(
        "SELECT write_group, name, standing, epoch, since_ms FROM remote_names"
    ):
        names = states[group].intended if standing == INTENDED else states[group].leaving
        names[name] = Noted(epoch, since_ms)
    if await manifest.rows("SELECT 1 FROM sqlite_master WHERE name = 'remote_given_up'"):
        for group, name, content in await manifest.rows("SELECT write_group, name, content FROM remote_given_up"):
            try:
                one = msgspec.msgpack.decode(content, type=GivenUpFile)
            except msgspec.MsgspecError as error:
                raise FormatError(f"the remote tier's manifest: what was given up of {name}: {error}") from error
            states.setdefault(group, RemoteState()).given_up.append(one)
    return states


def changed(group: int, position: RemotePosition, notes: Notes) -> Iterator[Statement]:
    """The statements of a change (`RemoteState.apply`)."""
    yield _POSITION, (group, position.number, position.epoch)
    for name in notes.forgotten:
        yield _FORGOTTEN, (group, name)
    for names, standing in ((notes.intended, INTENDED), (notes.leaving, LEAVING)):
        for name, noted in names.items():
            yield _NAME, (name, group, standing, noted.epoch, noted.since_ms)
    if notes.given_up:
        yield _GIVEN_UP_SCHEMA, ()
    for one in notes.given_up:
        yield _GIVEN_UP, (group, one.name, msgspec.msgpack.encode(one))


def replaced(group: int, position: RemotePosition, notes: Notes) -> Iterator[Statement]:
    """The statements that put another state in the place of what there was."""
    yield _ALL_FORGOTTEN, (group,)
    yield _GIVEN_UP_SCHEMA, ()
    yield _NOT_GIVEN_UP, (group,)
    yield from changed(group, position, notes)
