"""Reads the metadata's files at a start: the newest snapshot, then every log behind it, in an unbroken chain.

A log may begin at or below the end of the one before: its entries replace those there, which were never committed.
All files are read before any is changed, so that a refused directory is left as it was.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from mainstem.nameserver.disk.log_format import LogEntry, LogRecord, LogRecordKind, read_log, read_snapshot
from mainstem.nameserver.disk.metadata_files import log_path, read_all, snapshot_path, stored
from mainstem.nameserver.errors import MetadataCorrupt
from mainstem.ports import Files

log = logging.getLogger(__name__)


class RecordPlace(NamedTuple):
    """The file and position at which a record was read, for messages."""

    path: str
    position: int


class FoundSnapshot(NamedTuple):
    """The newest snapshot. `membership` is the payload of its first record; None in version 1."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    term: int
    membership: bytes | None
    commands: list[LogRecord]
    length: int

    @property
    def path(self) -> str:
        return snapshot_path(self.index)


class FoundLog(NamedTuple):
    """The newest log, which takes more records."""

    first_index: int
    end: int
    file_bytes: int
    torn: bool
    version: int


class FoundEntries(NamedTuple):
    """All that the directory holds. `entries` follow the snapshot, one by one. `oldest` and `newest` are the
    logs behind it: None in a new directory, and where a node stopped before it made the log that follows
    another node's snapshot."""

    snapshot: FoundSnapshot | None
    entries: list[LogEntry]
    places: dict[int, RecordPlace]
    oldest: FoundLog | None
    newest: FoundLog | None

    @property
    def version_1(self) -> bool:
        """Whether version 0.1, which knew one node only, made these files."""
        if self.snapshot is not None:
            return self.snapshot.membership is None
        return self.oldest is not None and self.oldest.version == 1

    @property
    def first_index(self) -> int:
        """The index of the first of the entries."""
        return self.snapshot.index + 1 if self.snapshot is not None else 1

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1


async def find(files: Files) -> FoundEntries:
    """Read the directory. Raises `MetadataCorrupt`."""
    snapshots, logs = await stored(files)
    snapshot = await _find_snapshot(files, snapshots[-1]) if snapshots else None
    found = FoundEntries(snapshot, [], {}, None, None)
    chain = [first_index for first_index in logs if first_index >= found.first_index]
    for first_index in chain:
        following = found.first_index + len(found.entries)
        if first_index > following:
            what = f"entries {following} to {first_index - 1} are missing"
            raise MetadataCorrupt(log_path(first_index), 0, what)
        newest = await _find_log(files, first_index, found)
        found = found._replace(oldest=found.oldest or newest, newest=newest)
    if found.newest is None and snapshot is not None and snapshot.index and not logs:
        raise MetadataCorrupt(log_path(found.first_index), 0, "the file is missing")
    return found


async def _find_snapshot(files: Files, index: int) -> FoundSnapshot:
    path = snapshot_path(index)
    data = await read_all(files, path)
    records = read_snapshot(path, data, index)
    membership = None
    term = records[0].term if records else 0
    if records and records[0].kind == LogRecordKind.MEMBERSHIP:
        membership = records.pop(0).payload
    for record in records:
        if record.kind != LogRecordKind.CHANGE:
            raise MetadataCorrupt(path, record.position, f"a record of kind {record.kind.name} in a snapshot")
    return FoundSnapshot(index, term, membership, records, len(data))


async def _find_log(files: Files, first_index: int, found: FoundEntries) -> FoundLog:
    """Read a log; its entries go into `found`."""
    path = log_path(first_index)
    data = await read_all(files, path)
    content = read_log(path, data, first_index)
    del found.entries[first_index - found.first_index :]
    if content.records and found.entries and content.records[0].term < found.entries[-1].term:
        raise MetadataCorrupt(path, content.records[0].position, "the term is older than that of the log before")
    for record in content.records:
        found.entries.append(record.entry)
        found.places[record.number] = RecordPlace(path, record.position)
    if content.torn:
        log.warning(
            "%s: ends at byte %d, where a write was torn (%d bytes)",
            path,
            content.end,
            len(data) - content.end,
        )
    return FoundLog(first_index, content.end, len(data), content.torn, content.version)
