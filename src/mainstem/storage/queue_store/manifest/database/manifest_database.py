"""The manifest's database: sqlite, called by the manifest's thread only.

Every change is one transaction, and seals what the manifest says: sqlite does not notice a flipped bit in a number or a
name. The seal costs what the change costs, as both of its sums are kept up to date by triggers.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import google_crc32c
import msgspec
import numpy

from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.database import page_format
from mainstem.storage.queue_store.manifest.database.manifest_seal import SUMMED, Seal
from mainstem.storage.queue_store.manifest.database.page_format import PageState, StoredPage
from mainstem.storage.queue_store.manifest.in_memory.file_table import NOT_SEEN
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.store_files.store_file import StoreFile

SCHEMA_VERSION = 3
"""The table that is read. A manifest is of version 1 until it gets its first merged file, and of version 3 from its
first page on."""
MERGED_SCHEMA_VERSION = 2
FIRST_SCHEMA_VERSION = 1

DROPPED_REMEMBERED_MS = 7 * 86_400_000
"""A split decided before a drop is written within seconds, or at the next start; a week is a long stop."""

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

_KEYS_SCHEMA = """
CREATE TABLE keys (
    name TEXT PRIMARY KEY REFERENCES files (name) ON DELETE CASCADE, level INTEGER NOT NULL,
    write_group INTEGER NOT NULL, first_queue INTEGER NOT NULL, last_queue INTEGER NOT NULL,
    first_offset INTEGER NOT NULL, clean_ms INTEGER NOT NULL, horizon_ms INTEGER NOT NULL
) WITHOUT ROWID
"""
"""Made with the first merged file, or page: the manifest becomes one of version 2."""

_PAGES_SCHEMA = """
CREATE TABLE pages (number INTEGER PRIMARY KEY, crc INTEGER NOT NULL, content BLOB NOT NULL)
"""
_STATES_SCHEMA = """
CREATE TABLE page_states (
    number INTEGER PRIMARY KEY REFERENCES pages (number) ON DELETE CASCADE, alive BLOB NOT NULL, seen BLOB NOT NULL
)
"""
"""Made with the first page, when the manifest becomes one of version 3."""

_COLUMNS = SUMMED["files"]
_KEYS = ("level", "group", "first_queue", "last_queue", "first_offset", "clean_ms", "horizon_ms")
assert StoreFile.__struct_fields__ == _COLUMNS + _KEYS

_TABLES_SINCE = {"keys": MERGED_SCHEMA_VERSION, "pages": SCHEMA_VERSION, "page_states": SCHEMA_VERSION}
"""The versions from which on there are tables that were not in the first."""

REMOTE_TABLES = frozenset({"remote_positions", "remote_names"})
"""Tables of which no version of a node's own manifest has any."""

_REMEDY = (
    "have it made anew from its copy on disk 2 (mainstem store repair --manifest), restore write_dir and store_dir as "
    "a whole, or have another node take the place of this one"
)

_REMEDY_WITHOUT_COPY = (
    "restore write_dir as a whole, or move this file and what sqlite has beside it away: what it said is fetched from "
    "other nodes that have replicas of the write groups"
)

_ADDED = "CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL) WITHOUT ROWID"
"""A table made where it is missing; versions that do not know it leave it alone."""


class WriteGroupPosition(NamedTuple):
    position: int
    """The last block that is split."""
    applied_index: int
    """The write group's last block at that time in this node's own journal. Less than `position`: a snapshot brought
    the files."""


class WriteGroupSplit(NamedTuple):
    """Blocks (after, upto] of a write group are in these files."""

    group: int
    after: int
    upto: int
    files: tuple[StoreFile, ...]
    applied_index: int


Entries = Sequence[tuple[int, int, StoreFile]]
"""(after, upto, file) of one group, oldest first."""

PageStates = Mapping[int, PageState]
"""New states of pages, by number."""

Statement = tuple[str, tuple[object, ...]]

Schemas = Mapping[str, str]
"""By table of `SUMMED`, the statement that makes it."""


class Contents(NamedTuple):
    identity: uuid.UUID | None
    changes: int
    """To the set of files since the store was made; the column is called `commits`."""
    files: list[StoreFile]
    ranges: list[FileRange]
    positions: dict[int, WriteGroupPosition]
    dropped: set[str]
    seen: dict[str, int]
    pages: Sequence[StoredPage] = ()
    """Files that the lists above do not have."""

    def expanded(self) -> Contents:
        """The same, all files in the lists."""
        files, ranges, seen = list(self.files), list(self.ranges), dict(self.seen)
        for page in self.pages:
            there = {place: page.rows.file(place) for place in numpy.flatnonzero(page.state.alive).tolist()}
            files += there.values()
            for group, upto, after, sequence, place in zip(*(one.tolist() for one in page.ranges), strict=True):
                if place in there:
                    ranges.append(FileRange(sequence, group, after, upto, there[place].name))
            times = page.state.seen.tolist()
            seen.update((file.name, times[place]) for place, file in there.items() if times[place] != NOT_SEEN)
        ranges.sort(key=lambda entry: (entry.group, entry.upto, entry.after, entry.sequence))
        first: dict[str, int] = {}
        for entry in ranges:
            first[entry.name] = min(entry.sequence, first.get(entry.name, entry.sequence))
        files.sort(key=lambda file: first.get(file.name, -1))
        return self._replace(files=files, ranges=ranges, seen=seen, pages=())


class Database:
    """The sqlite side. Only the manifest's thread calls it."""

    def __init__(self, path: str, seal: Seal | None = None, besides: Schemas | None = None) -> None:
        """`besides`: further tables that it has from the start. Such a database is made with its first change, not when
        it is opened."""
        self._path = path
        self._besides = besides or {}
        self._remedy = _REMEDY_WITHOUT_COPY if besides else _REMEDY
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        """If sqlite has left a log, open until the first change: the last connection that closes writes the log into
        the database, unless it may only read. So a start that refuses leaves both as they were."""
        self._seal = seal or Seal()
        self.version = FIRST_SCHEMA_VERSION

    @property
    def _database(self) -> sqlite3.Connection:
        assert self._connection is not None, "the manifest is closed"
        return self._connection

    def open(self) -> Contents:
        if self._besides and is_new(self._path) and is_new(f"{self._path}-wal"):
            return Contents(None, 0, [], [], {}, set(), {})
        return self._connect()

    def _connect(self) -> Contents:
        if os.path.dirname(self._path):
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            if not is_new(f"{self._path}-wal"):
                self._reader = _reader(self._path)
            return self._open(self._connection)
        except BaseException:
            self.close()
            raise

    def _open(self, database: sqlite3.Connection) -> Contents:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                version = FIRST_SCHEMA_VERSION
                also = "".join(f"{schema};" for schema in self._besides.values())
                database.executescript(f"BEGIN;{_SCHEMA}{also}PRAGMA user_version = {version};COMMIT;")
            elif not FIRST_SCHEMA_VERSION <= version <= SCHEMA_VERSION:
                raise FormatError(f"{self._path}: manifest schema {version}, this version reads up to {SCHEMA_VERSION}")
            self.version = version
            database.execute(_ADDED)
            contents = self._checked(database)
            for table in self._tables:
                self._seal.keep(database, table)
            database.execute("BEGIN IMMEDIATE")
            database.execute(f"PRAGMA user_version = {version}")  # fails where the header forbids to write
            database.execute("ROLLBACK")
            return contents
        except (sqlite3.DatabaseError, ValueError) as error:  # text that is no UTF-8 is a ValueError
            raise FormatError(f"{self._path}: the manifest cannot be read ({error}); {self._remedy}") from error

    def read(self) -> Contents:
        """Read what the manifest says, all files in lists, checked as when it is opened. Nothing is written to it, and
        it may be another process's: sqlite gives one state of it. Raises as `open`."""
        if not os.path.exists(self._path):
            raise FormatError(f"{self._path}: there is no manifest; {self._remedy}")
        log = Path(f"{self._path}-wal")
        # Without a log beside it nobody has the database open, and reading it makes no file.
        while not log.exists():
            contents = self._read("immutable=1")
            if not log.exists():
                return contents
        return self._read("mode=ro")

    def _read(self, how: str) -> Contents:
        place = f"file:{quote(os.path.abspath(self._path))}?{how}"
        try:
            with contextlib.closing(sqlite3.connect(place, uri=True, isolation_level=None)) as database:
                database.execute("BEGIN")
                (self.version,) = database.execute("PRAGMA user_version").fetchone()
                if not FIRST_SCHEMA_VERSION <= self.version <= SCHEMA_VERSION:
                    raise FormatError(
                        f"{self._path}: manifest schema {self.version}, this version reads up to {SCHEMA_VERSION}"
                    )
                if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'seen'").fetchone() is None:
                    database.execute(_ADDED.replace("TABLE", "TEMP TABLE", 1))
                return self._checked(database).expanded()
        except (sqlite3.DatabaseError, ValueError) as error:  # text that is no UTF-8 is a ValueError
            raise FormatError(f"{self._path}: the manifest cannot be read ({error}); {self._remedy}") from error

    def _checked(self, database: sqlite3.Connection) -> Contents:
        """All that the database says, and the sums of it. Raises `FormatError` where it is not what was written."""
        (verdict,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise FormatError(f"{self._path}: the manifest is damaged ({verdict}); {self._remedy}")
        if self._tables_there(database) != set(self._tables):
            raise FormatError(
                f"{self._path}: the manifest is damaged (its tables are not those of version {self.version}); "
                f"{self._remedy}"
            )
        contents = self._contents(database)
        if fault := self._seal.fault(database, contents.changes, self._tables):
            raise FormatError(f"{self._path}: the manifest is damaged ({fault}); {self._remedy}")
        return contents

    @property
    def _tables(self) -> list[str]:
        return [
            table
            for table in SUMMED
            if table in self._besides
            or (table not in REMOTE_TABLES and self.version >= _TABLES_SINCE.get(table, FIRST_SCHEMA_VERSION))
        ]

    def _tables_there(self, database: sqlite3.Connection) -> set[str]:
        named = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        named |= {name for (name,) in database.execute("SELECT name FROM sqlite_temp_master")}
        return {table for table in SUMMED if table in named}

    def _contents(self, database: sqlite3.Connection) -> Contents:
        store = database.execute("SELECT identity, commits FROM store").fetchone()
        files = database.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM files "
            "ORDER BY (SELECT min(sequence) FROM ranges WHERE ranges.name = files.name)"
        )
        keys: dict[str, dict[str, Any]] = {}
        if self.version > FIRST_SCHEMA_VERSION:
            rows = database.execute(f"SELECT {', '.join(SUMMED['keys'])} FROM keys")
            keys = {name: dict(zip(_KEYS, values, strict=True)) for name, *values in rows}
        ranges = database.execute(
            "SELECT sequence, write_group, after, upto, name FROM ranges ORDER BY write_group, upto, after, sequence"
        )
        positions = database.execute("SELECT write_group, position, applied_index FROM positions")
        return Contents(
            identity=uuid.UUID(bytes=store[0]) if store else None,
            changes=store[1] if store else 0,
            files=[_file(row, keys.get(row[0])) for row in files],
            ranges=[FileRange(*row) for row in ranges],
            positions={group: WriteGroupPosition(*rest) for group, *rest in positions},
            dropped={name for (name,) in database.execute("SELECT name FROM dropped")},
            seen=dict(database.execute("SELECT name, seen_ms FROM seen")),
            pages=list(self._pages(database)) if self.version >= SCHEMA_VERSION else (),
        )

    def _pages(self, database: sqlite3.Connection) -> Iterator[StoredPage]:
        for number, crc, content, alive, seen in database.execute(
            "SELECT number, crc, content, alive, seen FROM pages JOIN page_states USING (number) ORDER BY number"
        ):
            where = f"page {number}"
            try:
                rows, ranges = page_format.unpack(content, crc, where)
                state = PageState.unpack(alive, seen, len(rows), where)
            except FormatError as error:
                raise FormatError(f"{self._path}: the manifest is damaged ({error}); {self._remedy}") from error
            yield StoredPage(number, rows, ranges, state)

    def see(self, new: Sequence[str], gone: Sequence[str], now_ms: int, states: PageStates) -> None:
        """Note when files were first seen, those in pages by the new states of these; and forget others."""
        statements: list[Statement] = [("DELETE FROM seen WHERE name = ?", (name,)) for name in gone]
        statements += [(_SEEN, (name, now_ms)) for name in new]
        self._transaction([*statements, *_of_states(states)])

    def adopt(self, identity: uuid.UUID, changes: int) -> None:
        self._transaction([("INSERT INTO store VALUES (?, ?)", (identity.bytes, changes))])

    def record_splits(self, splits: Sequence[WriteGroupSplit]) -> list[FileRange]:
        statements: list[Statement] = []
        for split in splits:
            statements += _additions(split.group, [(split.after, split.upto, file) for file in split.files])
            statements.append(_position(split.group, WriteGroupPosition(split.upto, split.applied_index)))
        self._transaction([*statements, _CHANGED])
        return self._newest_ranges(sum(len(split.files) for split in splits))

    def exchange(
        self,
        changes: Mapping[int, tuple[Sequence[FileRange], Entries]],
        moved: tuple[int, WriteGroupPosition] | None,
        seen: Mapping[str, int],
        states: PageStates,
        besides: Sequence[Statement] = (),
    ) -> list[FileRange]:
        """Take ranges of write groups away, and add others in their place. Files that no range names any more go:
        those in pages by the new states of these. `besides` change tables that the caller knows."""
        statements: list[Statement] = []
        for group, (gone, new) in changes.items():
            statements += [("DELETE FROM ranges WHERE sequence = ?", (entry.sequence,)) for entry in gone]
            statements += _additions(group, new)
            names = {file.name: None for _after, _upto, file in new}
            statements += [("DELETE FROM dropped WHERE name = ?", (name,)) for name in names]
        if moved is not None:
            statements.append(_position(*moved))
        unnamed = {entry.name: None for gone, _new in changes.values() for entry in gone}
        statements += [
            ("DELETE FROM files WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM ranges WHERE ranges.name = ?1)", (name,))
            for name in unnamed
        ]
        statements += [
            ("DELETE FROM seen WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM files WHERE files.name = ?1)", (name,))
            for name in unnamed
        ]
        statements += [(_SEEN, entry) for entry in seen.items()]
        merged = any(file.is_merged for _gone, new in changes.values() for _after, _upto, file in new)
        version = MERGED_SCHEMA_VERSION if merged else FIRST_SCHEMA_VERSION
        self._transaction([*statements, *_of_states(states), *besides, _CHANGED], version=version)
        return self._newest_ranges(sum(len(new) for _gone, new in changes.values()))

    def _newest_ranges(self, count: int) -> list[FileRange]:
        added = self._database.execute(
            "SELECT sequence, write_group, after, upto, name FROM ranges ORDER BY sequence DESC LIMIT ?", (count,)
        ).fetchall()
        return [FileRange(*row) for row in reversed(added)]

    def drop(self, names: Iterable[str], remembered: Iterable[str], now_ms: int, states: PageStates) -> list[str]:
        """Forget files, those in pages by the new states of these. Returns the names that were dropped long enough ago
        to be forgotten."""
        before = (now_ms - DROPPED_REMEMBERED_MS,)
        forgotten = self._database.execute("SELECT name FROM dropped WHERE dropped_ms < ?", before).fetchall()
        statements: list[Statement] = [("DELETE FROM dropped WHERE dropped_ms < ?", before), _CHANGED]
        statements += [
            (f"DELETE FROM {table} WHERE name = ?", (name,)) for name in names for table in ("files", "seen")
        ]
        statements += [(_DROPPED, (name, now_ms)) for name in remembered]
        self._transaction([*statements, *_of_states(states)])
        return [name for (name,) in forgotten]

    def fill(self, contents: Contents, version: int, now_ms: int) -> None:
        """Have an empty database say this, in one change that is not counted; `now_ms` is when what was dropped is said
        to have been dropped."""
        assert contents.identity is not None
        statements: Iterable[Statement] = chain(
            [("INSERT INTO store VALUES (?, ?)", (contents.identity.bytes, contents.changes))],
            chain.from_iterable(map(_description, contents.files)),
            (("INSERT INTO ranges VALUES (?, ?, ?, ?, ?)", tuple(entry)) for entry in contents.ranges),
            (_position(group, position) for group, position in contents.positions.items()),
            ((_DROPPED, (name, now_ms)) for name in contents.dropped),
            (("INSERT INTO seen VALUES (?, ?)", entry) for entry in contents.seen.items()),
        )
        self._transaction(statements, version=min(version, MERGED_SCHEMA_VERSION))  # all files are in rows

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query of tables that the caller knows; none of a database that is not made yet."""
        return [] if self._connection is None else self._connection.execute(query).fetchall()

    def close(self) -> None:
        for connection in (self._connection, self._reader):
            if connection is not None:
                connection.close()
        self._connection = self._reader = None

    def fold(self, number: int, content: bytes, state: PageState, names: Sequence[str]) -> None:
        """Put files into a page: what rows say of those that count goes. Others than these are in the page as files
        that do not count."""
        statements: list[Statement] = [
            ("INSERT INTO pages VALUES (?, ?, ?)", (number, google_crc32c.value(content), content)),
            ("INSERT INTO page_states VALUES (?, ?, ?)", (number, *state.pack())),
            *((f"DELETE FROM {table} WHERE name = ?", (name,)) for name in names for table in ("files", "seen")),
        ]
        self._transaction(statements, version=SCHEMA_VERSION)

    def unfold(
        self, states: PageStates, files: Sequence[StoreFile], ranges: Sequence[FileRange], seen: Mapping[str, int]
    ) -> None:
        """Take files out of their pages, into rows."""
        marks = ", ".join("?" * len(_COLUMNS))
        statements: list[Statement] = [
            (f"INSERT INTO files VALUES ({marks})", msgspec.structs.astuple(file)[: len(_COLUMNS)]) for file in files
        ]
        statements += [(_KEPT_KEYS, (file.name, *_keys_of(file))) for file in files if file.is_merged]
        statements += [("INSERT INTO ranges VALUES (?, ?, ?, ?, ?)", tuple(entry)) for entry in ranges]
        statements += [(_SEEN, entry) for entry in seen.items()]
        self._transaction([*statements, *_of_states(states)])

    def _transaction(self, statements: Iterable[Statement], *, version: int = FIRST_SCHEMA_VERSION) -> None:
        """`version`: the first one that knows what the statements write."""
        if self._connection is None and self._besides:
            self._connect()
        database, before = self._database, (self._seal.sums, self.version)
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        database.execute("BEGIN IMMEDIATE")
        try:
            while self.version < version:
                self._raise_version(database)
            for statement, values in statements:
                database.execute(statement, values)
            self._seal.write(database, self._tables)
            database.execute("COMMIT")
        except BaseException:
            self._seal.sums, self.version = before
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _raise_version(self, database: sqlite3.Connection) -> None:
        """Make the tables of the next version."""
        before, self.version = set(self._tables), self.version + 1
        schemas = {"keys": _KEYS_SCHEMA, "pages": _PAGES_SCHEMA, "page_states": _STATES_SCHEMA}
        for table in self._tables:
            if table not in before:
                database.execute(schemas[table])
                self._seal.keep(database, table)
        database.execute(f"PRAGMA user_version = {self.version}")


def is_new(path: str) -> bool:
    """Whether there is no such file yet, or nothing in it."""
    return not os.path.exists(path) or not os.path.getsize(path)


def _reader(path: str) -> sqlite3.Connection | None:
    """A connection that changes nothing; None where this is no database."""
    database = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, isolation_level=None)
    try:
        database.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError:
        database.close()
        return None
    return database


_CHANGED: Statement = ("UPDATE store SET commits = commits + 1", ())

_DROPPED = "INSERT INTO dropped VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET dropped_ms = excluded.dropped_ms"
"""No REPLACE: sqlite fires no trigger for what that deletes."""

_SEEN = "INSERT INTO seen VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seen_ms = excluded.seen_ms"
"""An earlier version may have left the time of a file of this name."""


_KEPT_KEYS = "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def _of_states(states: PageStates) -> Iterator[Statement]:
    """Statements that give pages other states; pages of which nothing counts go."""
    for number, state in states.items():
        if state.alive.any():
            alive, seen = state.pack()
            yield "UPDATE page_states SET alive = ?, seen = ? WHERE number = ?", (alive, seen, number)
        else:
            yield "DELETE FROM page_states WHERE number = ?", (number,)
            yield "DELETE FROM pages WHERE number = ?", (number,)


def _additions(group: int, entries: Entries) -> list[Statement]:
    """The statements that add files to a write group."""
    statements = [statement for _after, _upto, file in entries for statement in _description(file)]
    statements += [
        ("INSERT INTO ranges (write_group, after, upto, name) VALUES (?, ?, ?, ?)", (group, after, upto, file.name))
        for after, upto, file in entries
    ]
    return statements


def _description(file: StoreFile) -> list[Statement]:
    """The statements that describe a file."""
    marks = ", ".join("?" * len(_COLUMNS))
    statements: list[Statement] = [
        (
            f"INSERT INTO files VALUES ({marks}) ON CONFLICT (name) DO NOTHING",
            msgspec.structs.astuple(file)[: len(_COLUMNS)],
        )
    ]
    if file.is_merged:
        statements.append((f"{_KEPT_KEYS} ON CONFLICT (name) DO NOTHING", (file.name, *_keys_of(file))))
    return statements


def _file(row: Sequence[Any], keys: Mapping[str, Any] | None) -> StoreFile:
    name, retention_class, size, batch_bytes, batches, records, queues, low, high = row
    return StoreFile(
        name=name, retention_class=retention_class, bytes=size, batch_bytes=batch_bytes, batch_count=batches,
        record_count=records, queue_count=queues, min_timestamp=low, max_timestamp=high, **(keys or {}),
    )  # fmt: skip


def _keys_of(file: StoreFile) -> tuple[object, ...]:
    return msgspec.structs.astuple(file)[len(_COLUMNS) :]


def _position(group: int, position: WriteGroupPosition) -> Statement:
    return (
        "INSERT INTO positions VALUES (?, ?, ?) ON CONFLICT (write_group) DO UPDATE "
        "SET position = excluded.position, applied_index = excluded.applied_index",
        (group, *position),
    )
