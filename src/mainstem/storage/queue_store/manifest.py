"""The manifest keeps which runs count, which blocks they cover, and how far each write group is split.

sqlite (WAL, synchronous=FULL) holds it; one thread of its own makes every call, one transaction per change. All
questions during serving are answered from a mirror in memory, which changes only after the transaction did. A change
that was begun is carried through even when its caller is cancelled, so mirror and database never differ; the caller
still gets its cancellation, whatever the outcome of the change.

`dropped` remembers the names of runs that retention deleted because they had no live batch of any write group: a commit
of another write group that was decided before the drop may still name one, and goes on without it. A snapshot may not:
it knows which batches of its write group are live, so a run that it names is no longer counted as dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import google_crc32c
import msgspec

from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.queue_store.prefix import Prefix
from mainstem.storage.queue_store.store_file import StoreFile

log = logging.getLogger(__name__)

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

_SUM_OF_RANGES = """
SELECT count(*) || '/' || coalesce(sum(
    (sequence * 7919 + write_group * 104729 + after * 1299709 + upto * 15485863) % 2147483647), 0) FROM ranges
"""

_COLUMNS = (
    "name",
    "retention_class",
    "bytes",
    "batch_bytes",
    "batch_count",
    "record_count",
    "queue_count",
    "min_timestamp",
    "max_timestamp",
)
assert StoreFile.__struct_fields__[: len(_COLUMNS)] == _COLUMNS

_SUMMED = {
    "store": ("identity", "commits"),
    "files": _COLUMNS,
    "ranges": ("sequence", "write_group", "after", "upto", "name"),
    "positions": ("write_group", "position", "applied_index"),
    "dropped": ("name", "dropped_ms"),
    "seen": ("name", "seen_ms"),
}
"""All that the manifest says: tables and their columns."""

_SUM_ROW = 2
"""Where `seal` has the sum of all rows. A version that does not know it deletes it with its first change."""
_SUM_MODULUS = 1 << 62

_REMEDY = "restore write_dir and store_dir as a whole, or have another node take the place of this one"

_ADDED = "CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL) WITHOUT ROWID"
"""A table made where it is missing; versions that do not know it leave it alone."""


class FileRange(NamedTuple):
    """A run holds blocks (after, upto] of a group; sequences rise in the order of commits."""

    sequence: int
    group: int
    after: int
    upto: int
    name: str


_NO_RANGES: Prefix[FileRange] = Prefix()


class GroupPosition(NamedTuple):
    position: int
    """The last block that is split."""
    applied_index: int
    """The write group's last block at that time in this node's own journal. Less than `position`: a snapshot brought
    the runs."""


class GroupCommit(NamedTuple):
    """Blocks (after, upto] of a group are in these runs."""

    group: int
    after: int
    upto: int
    files: tuple[StoreFile, ...]
    applied_index: int


Entries = Sequence[tuple[int, int, StoreFile]]
"""(after, upto, run) of one group, oldest first."""

Statement = tuple[str, tuple[object, ...]]


class _Contents(NamedTuple):
    identity: uuid.UUID | None
    commits: int
    files: list[StoreFile]
    ranges: list[FileRange]
    positions: dict[int, GroupPosition]
    dropped: set[str]
    seen: dict[str, int]


class Manifest:
    """The mirror, and the changes to it. Make it with `open`."""

    def __init__(self, database: _Database, contents: _Contents, executor: ThreadPoolExecutor) -> None:
        self._database = database
        self._executor = executor
        self.identity = contents.identity
        """The store's identity; None: the manifest is new."""
        self.commits = contents.commits
        """Changes to the set of files since the store was made."""
        self.files: dict[str, StoreFile] = {file.name: file for file in contents.files}
        """Runs that count, in the order of their first commit."""
        self.dropped = contents.dropped
        self.seen = contents.seen
        """When retention first saw a run, by the agreed time (ms): all its batches were appended before."""
        self._positions = contents.positions
        by_group: dict[int, list[FileRange]] = {}
        for entry in contents.ranges:
            by_group.setdefault(entry.group, []).append(entry)
        self._ranges = {group: Prefix(ranges) for group, ranges in by_group.items()}
        self._groups_of: dict[str, set[int]] = {}
        for entry in contents.ranges:
            self._groups_of.setdefault(entry.name, set()).add(entry.group)

    @classmethod
    async def open(cls, path: str) -> Manifest:
        """Open or make the database. Raises `StorageError` when it cannot be used."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        database = _Database(path)
        try:
            contents = await _carried_through(executor, database.open)
        except BaseException:  # it may be open: a cancelled caller's call is carried through
            await _carried_through(executor, database.close)
            executor.shutdown()
            raise
        return cls(database, contents, executor)

    def position(self, group: int) -> GroupPosition:
        return self._positions.get(group, GroupPosition(0, 0))

    def ranges(self, group: int) -> Prefix[FileRange]:
        """The blocks that the write group's runs cover, oldest first. It stays as it is: later changes make another
        one."""
        return self._ranges.get(group, _NO_RANGES)

    def groups_of(self, name: str) -> bytes:
        """The groups a run counts for: a byte for each up to the largest, 1 or 0."""
        groups = self.counts_for(name)
        return bytes(group in groups for group in range(max(groups, default=-1) + 1))

    def counts_for(self, name: str) -> frozenset[int]:
        """The groups a run counts for."""
        return frozenset(self._groups_of.get(name, ()))

    def blocks_of(self, name: str, group: int) -> tuple[int, int]:
        """The blocks (after, upto] of a group that the run was made of; it counts for the group."""
        mine = [entry for entry in self.ranges(group) if entry.name == name]
        return mine[0].after, mine[-1].upto

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

    async def commit(self, commits: Sequence[GroupCommit]) -> None:
        """Move the positions of groups, with these runs, all in one transaction. The caller has checked that each may
        move; of one group several may follow each other."""
        positions: dict[int, int] = {}
        for commit in commits:
            assert positions.get(commit.group, self.position(commit.group).position) == commit.after < commit.upto
            positions[commit.group] = commit.upto

        def done(ranges: list[FileRange]) -> None:
            self.commits += 1
            added: dict[int, list[FileRange]] = {}
            for entry in ranges:
                added.setdefault(entry.group, []).append(entry)
                self._groups_of.setdefault(entry.name, set()).add(entry.group)
            for group, entries in added.items():
                self._ranges[group] = self.ranges(group).extended(entries)
            for commit in commits:
                self.files.update((file.name, file) for file in commit.files)
                self._positions[commit.group] = GroupPosition(commit.upto, commit.applied_index)

        await _carried_through(self._executor, lambda: self._database.commit(commits), done)

    async def drop(self, names: Collection[str], now_ms: int, remembered: Collection[str] | None = None) -> None:
        """Forget runs, in one transaction, before their files are deleted. `remembered` are the runs to keep under
        `dropped`; None: all."""
        kept = names if remembered is None else remembered

        def done(forgotten: list[str]) -> None:
            self.commits += 1
            affected: set[int] = set()
            for name in names:
                del self.files[name]
                affected |= self._groups_of.pop(name, set())
            self.dropped.difference_update(forgotten)
            self.dropped.update(kept)
            for group in affected:
                self._ranges[group] = Prefix(entry for entry in self.ranges(group) if entry.name not in names)

        await _carried_through(self._executor, lambda: self._database.drop(names, kept, now_ms), done)

    async def see(self, now_ms: int, there: Collection[str] | None = None) -> None:
        """Note that runs not seen before exist at `now_ms`, and forget the times of runs that are gone. `there`: the
        runs that existed at that time; None: all."""
        new = [name for name in self.files if name not in self.seen and (there is None or name in there)]
        gone = [name for name in self.seen if name not in self.files]
        if not new and not gone:
            return

        def done(_result: None) -> None:
            for name in gone:
                self.seen.pop(name, None)
            for name in new:
                self.seen.setdefault(name, now_ms)

        await _carried_through(self._executor, lambda: self._database.see(new, gone, now_ms), done)

    async def supersede(self, group: int, position: int, applied_index: int, entries: Entries) -> list[str]:
        """Replace a write group's runs by these; none of them counts as dropped any more. Returns the runs that no
        write group needs any more: they are forgotten, but not kept under `dropped`."""
        return await self._rewrite({group: entries}, (group, GroupPosition(position, applied_index)))

    async def replace(self, name: str, by: Mapping[int, Entries]) -> list[str]:
        """Put other runs in this one's place, for each write group it counts for, as (after, upto, run), in one
        transaction; the runs before and behind keep their order. Returns the runs that no write group needs any
        more."""
        assert set(by) == self._groups_of.get(name, set()), f"{name} counts for {self._groups_of.get(name)}"
        entries: dict[int, Entries] = {}
        for group, new in by.items():
            rest = [(entry.after, entry.upto, entry.name) for entry in self.ranges(group)]
            first = next(place for place, entry in enumerate(rest) if entry[2] == name)
            others = [(after, upto, self.files[other]) for after, upto, other in rest if other != name]
            entries[group] = [*others[:first], *new, *others[first:]]
        return await self._rewrite(entries, None)

    async def _rewrite(self, entries: Mapping[int, Entries], moved: tuple[int, GroupPosition] | None) -> list[str]:
        gone: list[str] = []
        named = {file.name: file for of_group in entries.values() for _after, _upto, file in of_group}

        def done(ranges: list[FileRange]) -> None:
            self.commits += 1
            before = {entry.name for group in entries for entry in self.ranges(group)}
            for name in before:
                self._groups_of.get(name, set()).difference_update(entries)
            self.files.update(named)
            self.dropped.difference_update(named)
            for group in entries:
                self._ranges[group] = Prefix(entry for entry in ranges if entry.group == group)
            for entry in ranges:
                self._groups_of.setdefault(entry.name, set()).add(entry.group)
            for name in sorted(before):
                if not self._groups_of.get(name):
                    self._groups_of.pop(name, None)
                    self.files.pop(name, None)
                    gone.append(name)
            if moved is not None:
                self._positions[moved[0]] = moved[1]

        await _carried_through(self._executor, lambda: self._database.rewrite(entries, moved), done)
        return gone

    async def close(self) -> None:
        """Close the database, if it is open, and ignore errors of sqlite."""
        try:
            await _carried_through(self._executor, self._database.close)
        finally:
            self._executor.shutdown()


async def _carried_through(
    executor: ThreadPoolExecutor, call: Callable[[], Result], done: Callable[[Result], None] | None = None
) -> Result:
    """Run a call in the manifest's thread and then `done` with its result, cancelled or not. A cancelled caller gets
    its cancellation even if the call failed: a cancelled task must end."""
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    failure = future.exception()
    if failure is None and done is not None:
        done(future.result())
    if cancelled is not None:
        if failure is not None:
            log.warning("a change of the manifest failed after its caller was cancelled: %s", failure)
        raise cancelled
    if isinstance(failure, sqlite3.Error):
        raise StorageError(f"manifest: {failure}") from failure
    return future.result()


class _RowSum:
    """The sum of all rows there are. The connection holds it, and sqlite does not tell the garbage collector: it must
    not lead back to the connection, which would stay open for ever."""

    def __init__(self) -> None:
        self.value = 0

    def counted(self, sign: int, *row: object) -> None:
        self.value = (self.value + sign * _row_sum(row)) % _SUM_MODULUS


class _Database:
    """The sqlite side. Only the manifest's thread calls it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._rows = _RowSum()
        """Triggers keep it up to date."""

    @property
    def _database(self) -> sqlite3.Connection:
        assert self._connection is not None, "the manifest is closed"
        return self._connection

    def open(self) -> _Contents:
        if os.path.dirname(self._path):
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, isolation_level=None)
        try:
            contents = self._open(database)
        except BaseException:
            database.close()
            raise
        self._connection = database
        return contents

    def _open(self, database: sqlite3.Connection) -> _Contents:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                database.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
            elif version != SCHEMA_VERSION:
                raise FormatError(f"{self._path}: manifest schema {version}, this version reads {SCHEMA_VERSION}")
            database.execute(_ADDED)
            (verdict,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise FormatError(f"{self._path}: the manifest is damaged ({verdict}); {_REMEDY}")
            contents = self._contents(database)
            if self._is_sealed(database, contents.commits) is False:
                raise FormatError(
                    f"{self._path}: the manifest is damaged (what is split where is not what was written); {_REMEDY}"
                )
            self._rows.value = _sum_of(database)
            if self._sum_to_write(database) != self._written_sum(database):
                raise FormatError(
                    f"{self._path}: the manifest is damaged (its rows are not those that were written); {_REMEDY}"
                )
            self._keep_sum(database)
            database.execute("BEGIN IMMEDIATE")
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")  # fails where the header forbids to write
            database.execute("ROLLBACK")
            return contents
        except (sqlite3.DatabaseError, ValueError) as error:  # text that is no UTF-8 is a ValueError
            raise FormatError(f"{self._path}: the manifest cannot be read ({error}); {_REMEDY}") from error

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
            files=[StoreFile(**dict(zip(_COLUMNS, row, strict=True))) for row in files],
            ranges=[FileRange(*row) for row in ranges],
            positions={group: GroupPosition(*rest) for group, *rest in positions},
            dropped={name for (name,) in database.execute("SELECT name FROM dropped")},
            seen=dict(database.execute("SELECT name, seen_ms FROM seen")),
        )

    def _is_sealed(self, database: sqlite3.Connection, commits: int) -> bool | None:
        """Whether positions and ranges are those that the last change left; None: a version without seals made it."""
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone():
            return None
        sealed = database.execute("SELECT commits, digest FROM seal").fetchone()
        if sealed is None or sealed[0] != commits:
            return None
        return bool(sealed[1] == self._digest(database))

    def _written_sum(self, database: sqlite3.Connection) -> int:
        """The sum that the last change wrote; what it is now, where none was written."""
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone():
            return self._sum_to_write(database)
        written = database.execute("SELECT digest FROM seal WHERE rowid = ?", (_SUM_ROW,)).fetchone()
        return int(written[0]) if written is not None else self._sum_to_write(database)

    def _sum_to_write(self, database: sqlite3.Connection) -> int:
        """The sum of all rows, and of how the tables were made: a flipped bit there shows when a row is written. So it
        does in the table in which sqlite counts sequences."""
        tables = (*_SUMMED, "seal", "sqlite_sequence")
        made = database.execute(
            f"SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name IN ({', '.join('?' * len(tables))})",
            tables,
        ).fetchall()
        made += database.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
        return (self._rows.value + sum(map(_row_sum, made))) % _SUM_MODULUS

    def _keep_sum(self, database: sqlite3.Connection) -> None:
        """Have every changed row counted in and out. Only this connection has the triggers: other versions, which lack
        the function, open the database as ever."""
        database.create_function("counted", -1, self._rows.counted)
        for table, columns in _SUMMED.items():
            old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
            out, into = f"SELECT counted(-1, '{table}', {old});", f"SELECT counted(1, '{table}', {new});"
            for event, done in (("DELETE", out), ("INSERT", into), ("UPDATE", out + into)):
                database.execute(f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN {done} END")

    def _digest(self, database: sqlite3.Connection) -> int:
        """The digest of positions and ranges. The ranges are many, so sqlite adds them up."""
        positions = database.execute(
            "SELECT write_group, position, applied_index FROM positions ORDER BY write_group"
        ).fetchall()
        (ranges,) = database.execute(_SUM_OF_RANGES).fetchone()
        return int(google_crc32c.value(repr((positions, ranges)).encode()))

    def _seal(self, database: sqlite3.Connection) -> None:
        """Write the digest and the sum. Sqlite does not notice a flipped bit in a number or a name; but pruning and
        retention rely on them, and no check would miss a run that counts for the wrong write group. The digest is for
        versions that do not know the sum."""
        database.execute("CREATE TABLE IF NOT EXISTS seal (commits INTEGER NOT NULL, digest INTEGER NOT NULL)")
        database.execute("DELETE FROM seal")
        database.execute("INSERT INTO seal SELECT commits, ? FROM store", (self._digest(database),))
        database.execute(
            "INSERT INTO seal (rowid, commits, digest) SELECT ?, commits, ? FROM store",
            (_SUM_ROW, self._sum_to_write(database)),
        )

    def see(self, new: Sequence[str], gone: Sequence[str], now_ms: int) -> None:
        statements: list[Statement] = [("DELETE FROM seen WHERE name = ?", (name,)) for name in gone]
        statements += [("INSERT OR IGNORE INTO seen VALUES (?, ?)", (name, now_ms)) for name in new]
        self._transaction(statements)

    def adopt(self, identity: uuid.UUID, commits: int) -> None:
        self._transaction([("INSERT INTO store VALUES (?, ?)", (identity.bytes, commits))])

    def commit(self, commits: Sequence[GroupCommit]) -> list[FileRange]:
        statements: list[Statement] = []
        for commit in commits:
            statements += _additions(commit.group, [(commit.after, commit.upto, file) for file in commit.files])
            statements.append(_position(commit.group, GroupPosition(commit.upto, commit.applied_index)))
        self._transaction([*statements, _CHANGED])
        return self._newest_ranges(sum(len(commit.files) for commit in commits))

    def rewrite(self, entries: Mapping[int, Entries], moved: tuple[int, GroupPosition] | None) -> list[FileRange]:
        statements: list[Statement] = []
        for group, of_group in entries.items():
            statements.append(("DELETE FROM ranges WHERE write_group = ?", (group,)))
            statements += _additions(group, of_group)
            statements += [
                ("DELETE FROM dropped WHERE name = ?", (name,))
                for name in {file.name: None for _after, _upto, file in of_group}
            ]
        if moved is not None:
            statements.append(_position(*moved))
        statements.append(
            ("DELETE FROM files WHERE NOT EXISTS (SELECT 1 FROM ranges WHERE ranges.name = files.name)", ())
        )
        self._transaction([*statements, _CHANGED])
        return self._newest_ranges(sum(map(len, entries.values())))

    def _newest_ranges(self, count: int) -> list[FileRange]:
        added = self._database.execute(
            "SELECT sequence, write_group, after, upto, name FROM ranges ORDER BY sequence DESC LIMIT ?", (count,)
        ).fetchall()
        return [FileRange(*row) for row in reversed(added)]

    def drop(self, names: Iterable[str], remembered: Iterable[str], now_ms: int) -> list[str]:
        """Returns the names that were dropped long enough ago to be forgotten."""
        before = (now_ms - DROPPED_REMEMBERED_MS,)
        forgotten = self._database.execute("SELECT name FROM dropped WHERE dropped_ms < ?", before).fetchall()
        statements: list[Statement] = [("DELETE FROM dropped WHERE dropped_ms < ?", before), _CHANGED]
        statements += [("DELETE FROM files WHERE name = ?", (name,)) for name in names]
        statements += [(_DROPPED, (name, now_ms)) for name in remembered]
        self._transaction(statements)
        return [name for (name,) in forgotten]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _transaction(self, statements: Iterable[Statement]) -> None:
        database, before = self._database, self._rows.value
        database.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in statements:
                database.execute(statement, values)
            self._seal(database)
            database.execute("COMMIT")
        except BaseException:
            self._rows.value = before
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


_CHANGED: Statement = ("UPDATE store SET commits = commits + 1", ())

_DROPPED = "INSERT INTO dropped VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET dropped_ms = excluded.dropped_ms"
"""No REPLACE: sqlite fires no trigger for what that deletes."""


def _sum_of(database: sqlite3.Connection) -> int:
    """The sum of all rows there are, whatever their order."""
    return sum(
        _row_sum((table, *row))
        for table, columns in _SUMMED.items()
        for row in database.execute(f"SELECT {', '.join(columns)} FROM {table}")
    ) % _SUM_MODULUS  # fmt: skip


def _row_sum(row: tuple[object, ...]) -> int:
    """A table's name and the values of a row, as one number."""
    return int(google_crc32c.value(repr(row).encode()))


def _additions(group: int, entries: Entries) -> list[Statement]:
    """The statements that add runs to a write group."""
    marks = ", ".join("?" * len(_COLUMNS))
    statements: list[Statement] = [
        (
            f"INSERT INTO files VALUES ({marks}) ON CONFLICT (name) DO NOTHING",
            msgspec.structs.astuple(file)[: len(_COLUMNS)],
        )
        for _after, _upto, file in entries
    ]
    statements += [
        ("INSERT INTO ranges (write_group, after, upto, name) VALUES (?, ?, ?, ?)", (group, after, upto, file.name))
        for after, upto, file in entries
    ]
    return statements


def _position(group: int, position: GroupPosition) -> Statement:
    return (
        "INSERT INTO positions VALUES (?, ?, ?) ON CONFLICT (write_group) DO UPDATE "
        "SET position = excluded.position, applied_index = excluded.applied_index",
        (group, *position),
    )
