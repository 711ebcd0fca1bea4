"""The manifest: which runs count, what they cover, and how far each write group is split.

sqlite (WAL, synchronous=FULL) holds it; one thread of its own makes every call, one transaction per change.
Whatever is asked while serving comes from a mirror in memory, which changes only after the transaction did.
A change that was begun is carried through even when its caller is cancelled, so the two never part.

`dropped` remembers the names of runs that retention deleted: a commit of another group that was decided
before the drop may still name one, and is right to go on without it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from mainstem.rpc.split import RunFile
from mainstem.storage.errors import FormatError, StorageError

Result = TypeVar("Result")

SCHEMA_VERSION = 1

DROPPED_REMEMBERED_MS = 7 * 86_400_000
"""A commit decided before a drop is written within seconds, or at the next start; a week is a long stop."""

_SCHEMA = """
CREATE TABLE store (identity BLOB NOT NULL, commits INTEGER NOT NULL);
CREATE TABLE files (
    name TEXT PRIMARY KEY, retention_class TEXT NOT NULL, bytes INTEGER NOT NULL, batch_bytes INTEGER NOT NULL,
    batch_count INTEGER NOT NULL, record_count INTEGER NOT NULL, queue_count INTEGER NOT NULL,
    min_timestamp INTEGER NOT NULL, max_timestamp INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE ranges (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, write_group INTEGER NOT NULL, after INTEGER NOT NULL,
    upto INTEGER NOT NULL, name TEXT NOT NULL REFERENCES files (name) ON DELETE CASCADE
);
CREATE INDEX ranges_by_name ON ranges (name);
CREATE TABLE positions (
    write_group INTEGER PRIMARY KEY, position INTEGER NOT NULL, applied_index INTEGER NOT NULL
);
CREATE TABLE dropped (name TEXT PRIMARY KEY, dropped_ms INTEGER NOT NULL) WITHOUT ROWID;
"""

_COLUMNS = RunFile.__struct_fields__
assert _COLUMNS == ("name", "retention_class", "bytes", "batch_bytes", "batch_count", "record_count",
                    "queue_count", "min_timestamp", "max_timestamp")


class FileRange(NamedTuple):
    """A run holds blocks (after, upto] of a group; sequences rise in the order of commits."""

    sequence: int
    group: int
    after: int
    upto: int
    name: str


class GroupPosition(NamedTuple):
    position: int
    """The last block that is split."""
    applied_index: int
    """The group's last block then, in this node's own journal. Less than `position`: a snapshot brought the runs."""


class _Contents(NamedTuple):
    identity: uuid.UUID | None
    commits: int
    files: list[RunFile]
    ranges: list[FileRange]
    positions: dict[int, GroupPosition]
    dropped: set[str]


class Manifest:
    """The mirror, and the changes to it. Make it with `open`."""

    def __init__(self, database: _Database, contents: _Contents, executor: ThreadPoolExecutor) -> None:
        self._database = database
        self._executor = executor
        self.identity = contents.identity
        """None: nothing was ever kept in this manifest."""
        self.commits = contents.commits
        """Changes to the set of files since the store was made."""
        self.files: dict[str, RunFile] = {file.name: file for file in contents.files}
        """Runs that count, in the order of their first commit."""
        self.dropped = contents.dropped
        self._positions = contents.positions
        by_group: dict[int, list[FileRange]] = {}
        for entry in contents.ranges:
            by_group.setdefault(entry.group, []).append(entry)
        self._ranges = {group: tuple(ranges) for group, ranges in by_group.items()}
        self._groups_of: dict[str, set[int]] = {}
        for entry in contents.ranges:
            self._groups_of.setdefault(entry.name, set()).add(entry.group)

    @classmethod
    async def open(cls, path: str) -> Manifest:
        """Open or make the database. Raises `StorageError` when it cannot be used."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        try:
            database = _Database(path)
            contents = await _carried_through(executor, database.open)
        except BaseException:
            executor.shutdown()
            raise
        return cls(database, contents, executor)

    def position(self, group: int) -> GroupPosition:
        return self._positions.get(group, GroupPosition(0, 0))

    def ranges(self, group: int) -> tuple[FileRange, ...]:
        """What the group's runs cover, oldest first. A snapshot: later changes make a new tuple."""
        return self._ranges.get(group, ())

    def groups_of(self, name: str) -> bytes:
        """The groups a run counts for: a byte for each up to the largest, 1 or 0."""
        groups = self._groups_of.get(name, ())
        return bytes(group in groups for group in range(max(groups, default=-1) + 1))

    def in_order(self) -> list[tuple[str, list[int]]]:
        """(run, groups it counts for), such that the runs of every group come oldest first. A run comes more
        than once if it was committed for one group early and for another one late."""
        found: list[tuple[str, list[int]]] = []
        newest_of_name: dict[str, int] = {}
        newest_of_group: dict[int, int] = {}
        entries = (entry for ranges in self._ranges.values() for entry in ranges)
        for entry in sorted(entries, key=lambda entry: entry.sequence):
            place = newest_of_name.get(entry.name, -1)
            if place >= 0 and place >= newest_of_group.get(entry.group, -1):
                found[place][1].append(entry.group)
            else:
                place = len(found)
                found.append((entry.name, [entry.group]))
                newest_of_name[entry.name] = place
            newest_of_group[entry.group] = place
        return found

    async def adopt(self, identity: uuid.UUID, commits: int) -> None:
        """Give an empty manifest the identity of its store."""
        await _carried_through(self._executor, lambda: self._database.adopt(identity, commits))
        self.identity, self.commits = identity, commits

    async def commit(
        self, group: int, after: int, upto: int, files: Sequence[RunFile], applied_index: int
    ) -> None:
        """Move a group's position to `upto`, with these runs. The caller has checked that it may."""
        assert self.position(group).position == after < upto

        def done(ranges: list[FileRange]) -> None:
            self.commits += 1
            self.files.update((file.name, file) for file in files)
            if ranges:
                self._ranges[group] = (*self.ranges(group), *ranges)
            for entry in ranges:
                self._groups_of.setdefault(entry.name, set()).add(group)
            self._positions[group] = GroupPosition(upto, applied_index)

        await _carried_through(
            self._executor, lambda: self._database.commit(group, after, upto, files, applied_index), done)

    async def drop(self, names: Collection[str], now_ms: int) -> None:
        """Forget runs, in one transaction, before their files are deleted."""

        def done(forgotten: list[str]) -> None:
            self.commits += 1
            for name in names:
                del self.files[name]
                self._groups_of.pop(name, None)
            self.dropped.difference_update(forgotten)
            self.dropped.update(names)
            for group, ranges in self._ranges.items():
                self._ranges[group] = tuple(entry for entry in ranges if entry.name not in names)

        await _carried_through(self._executor, lambda: self._database.drop(names, now_ms), done)

    async def supersede(
        self, group: int, position: int, applied_index: int, entries: Sequence[tuple[int, int, RunFile]]
    ) -> list[str]:
        """Let a group's runs be these, as (after, upto, run), and no others. Returns the runs that hold nothing any
        more: they are forgotten, but not as dropped ones."""

        def done(ranges: list[FileRange]) -> None:
            self.commits += 1
            for entry in self.ranges(group):
                groups = self._groups_of.get(entry.name, set())
                groups.discard(group)
            self.files.update((file.name, file) for _after, _upto, file in entries)
            self._ranges[group] = tuple(ranges)
            for entry in ranges:
                self._groups_of.setdefault(entry.name, set()).add(group)
            for name in [name for name, groups in self._groups_of.items() if not groups]:
                del self._groups_of[name]
                self.files.pop(name, None)
                gone.append(name)
            self._positions[group] = GroupPosition(position, applied_index)

        gone: list[str] = []
        await _carried_through(
            self._executor, lambda: self._database.supersede(group, position, applied_index, entries), done)
        return gone

    async def close(self) -> None:
        await _carried_through(self._executor, self._database.close)
        self._executor.shutdown()


async def _carried_through(
    executor: ThreadPoolExecutor, call: Callable[[], Result], done: Callable[[Result], None] | None = None
) -> Result:
    """Run a call in the manifest's thread and then `done` with its result, cancelled or not."""
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        result = future.result()
    except sqlite3.Error as error:
        raise StorageError(f"manifest: {error}") from error
    if done is not None:
        done(result)
    if cancelled is not None:
        raise cancelled
    return result


class _Database:
    """The sqlite side. Only the manifest's thread calls it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    @property
    def _database(self) -> sqlite3.Connection:
        assert self._connection is not None, "the manifest is closed"
        return self._connection

    def open(self) -> _Contents:
        if os.path.dirname(self._path):
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self._connection = database = sqlite3.connect(self._path, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                database.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
            elif version != SCHEMA_VERSION:
                raise FormatError(
                    f"{self._path}: manifest schema {version}, this version reads {SCHEMA_VERSION}"
                )
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise FormatError(f"{self._path}: the manifest is damaged ({verdict}); restore it from a copy")
            return self._contents(database)
        except sqlite3.DatabaseError as error:
            raise FormatError(f"{self._path}: the manifest cannot be read ({error}); restore it") from error

    def _contents(self, database: sqlite3.Connection) -> _Contents:
        store = database.execute("SELECT identity, commits FROM store").fetchone()
        files = database.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM files "
            "ORDER BY (SELECT min(sequence) FROM ranges WHERE ranges.name = files.name)"
        )
        ranges = database.execute("SELECT sequence, write_group, after, upto, name FROM ranges ORDER BY sequence")
        positions = database.execute("SELECT write_group, position, applied_index FROM positions")
        return _Contents(
            identity=uuid.UUID(bytes=store[0]) if store else None,
            commits=store[1] if store else 0,
            files=[RunFile(**dict(zip(_COLUMNS, row, strict=True))) for row in files],
            ranges=[FileRange(*row) for row in ranges],
            positions={group: GroupPosition(*rest) for group, *rest in positions},
            dropped={name for (name,) in database.execute("SELECT name FROM dropped")},
        )

    def adopt(self, identity: uuid.UUID, commits: int) -> None:
        self._transaction([("INSERT INTO store VALUES (?, ?)", (identity.bytes, commits))])

    def commit(
        self, group: int, after: int, upto: int, files: Sequence[RunFile], applied_index: int
    ) -> list[FileRange]:
        self._transaction(_additions(group, [(after, upto, file) for file in files], upto, applied_index))
        return self._newest_ranges(len(files))

    def supersede(
        self, group: int, position: int, applied_index: int, entries: Sequence[tuple[int, int, RunFile]]
    ) -> list[FileRange]:
        self._transaction([
            ("DELETE FROM ranges WHERE write_group = ?", (group,)),
            *_additions(group, entries, position, applied_index),
            ("DELETE FROM files WHERE NOT EXISTS (SELECT 1 FROM ranges WHERE ranges.name = files.name)", ()),
        ])
        return self._newest_ranges(len(entries))

    def _newest_ranges(self, count: int) -> list[FileRange]:
        added = self._database.execute(
            "SELECT sequence, write_group, after, upto, name FROM ranges ORDER BY sequence DESC LIMIT ?", (count,)
        ).fetchall()
        return [FileRange(*row) for row in reversed(added)]

    def drop(self, names: Iterable[str], now_ms: int) -> list[str]:
        """Returns the names that were dropped long enough ago to be forgotten."""
        before = (now_ms - DROPPED_REMEMBERED_MS,)
        forgotten = self._database.execute("SELECT name FROM dropped WHERE dropped_ms < ?", before).fetchall()
        statements: list[tuple[str, tuple[object, ...]]] = [
            ("DELETE FROM dropped WHERE dropped_ms < ?", before),
            ("UPDATE store SET commits = commits + 1", ()),
        ]
        for name in names:
            statements.append(("DELETE FROM files WHERE name = ?", (name,)))
            statements.append(("INSERT OR REPLACE INTO dropped VALUES (?, ?)", (name, now_ms)))
        self._transaction(statements)
        return [name for (name,) in forgotten]

    def close(self) -> None:
        self._database.close()
        self._connection = None

    def _transaction(self, statements: Iterable[tuple[str, tuple[object, ...]]]) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in statements:
                database.execute(statement, values)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


def _additions(
    group: int, entries: Sequence[tuple[int, int, RunFile]], position: int, applied_index: int
) -> list[tuple[str, tuple[object, ...]]]:
    """What adds runs, as (after, upto, run), to a group and sets its position."""
    marks = ", ".join("?" * len(_COLUMNS))
    statements: list[tuple[str, tuple[object, ...]]] = [
        (f"INSERT INTO files VALUES ({marks}) ON CONFLICT (name) DO NOTHING", msgspec.structs.astuple(file))
        for _after, _upto, file in entries
    ]
    statements += [
        ("INSERT INTO ranges (write_group, after, upto, name) VALUES (?, ?, ?, ?)", (group, after, upto, file.name))
        for after, upto, file in entries
    ]
    statements += [
        ("INSERT INTO positions VALUES (?, ?, ?) ON CONFLICT (write_group) DO UPDATE "
         "SET position = excluded.position, applied_index = excluded.applied_index",
         (group, position, applied_index)),
        ("UPDATE store SET commits = commits + 1", ()),
    ]
    return statements
