"""The durable log of the metadata quorum on one node; snapshots keep it short.

`metadata/<first index>.log` takes entries; `metadata/<index>.snapshot` holds the state after that entry as a shorter
list of commands, with the entry's term and the members. This module knows neither what an entry means nor what is
committed. `metadata_recovery` reads the files at a start.

A log only ever grows: entries that replace others are written behind them. A snapshot is made in an order that may
stop anywhere: the next log is opened, with the entries behind the snapshot, and takes over; then the snapshot is
written aside and renamed; then the files that it replaces are removed. Until the rename the old files count, so a
failure on the way costs nothing but a longer recovery. A snapshot taken from another node is written in the opposite
order, since no entries lie between the old log and it.

Invariants: `append` returns when the entries are on disk. Entries appended together share one write and one sync; a
stop in between may leave the first of them, never one without those before it. A torn end is written over; all other
unreadable bytes are refused, with file and position, and left as they are. A write without room is repeated until
there is room (`room`), and no other write overtakes it. After a write that failed otherwise nothing more is written,
since nobody knows what the disk holds until the next start. Nothing outside `metadata/` is ever touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from mainstem.nameserver.disk.log_format import (
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    KIND_LOG,
    KIND_SNAPSHOT,
    PAYLOAD_BYTES_MAX,
    LogEntry,
    LogRecordKind,
    encode_file_header,
    encode_mark,
    encode_record,
)
from mainstem.nameserver.disk.metadata_files import (
    DIRECTORY,
    LOCK,
    log_path,
    remove_replaced,
    remove_unfinished,
    snapshot_path,
    write_aside,
)
from mainstem.nameserver.disk.metadata_recovery import FoundEntries, find
from mainstem.nameserver.disk.room import NO_ROOM, Wait, at_once
from mainstem.nameserver.errors import ForeignDirectory, MetadataUnavailable
from mainstem.ports import File, Files

_CHUNK_BYTES = 64 * 1024  # of a snapshot, encoded within one turn of the event loop: about 2 ms

log = logging.getLogger(__name__)


class MetadataSnapshot(NamedTuple):
    """The state after entry `index`, as encoded commands that lead to it. This module does not look into
    `membership`."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    term: int
    membership: bytes
    commands: Iterable[bytes]


class MetadataLog:
    """The open log, made by `open`; has one appender and one maker of snapshots at a time. From `bytes_max`
    on it `wants_snapshot`."""

    def __init__(self, files: Files, lock: File, bytes_max: int) -> None:
        self._files = files
        self._lock = lock
        self._bytes_max = bytes_max
        self._file: File | None = None
        self._first_index = 1
        self._last_index = 0
        self._end = 0
        self._snapshot_bytes = 0
        self._bytes_at_last_try = 0
        self._failure: OSError | None = None
        self._turn = asyncio.Lock()
        """Held while the file is written, or replaced by the next."""

    @classmethod
    async def open(cls, files: Files, *, bytes_max: int) -> tuple[MetadataLog, FoundEntries]:
        """Lock the directory and read it; nothing is changed before `start`. Raises `MetadataCorrupt`, and
        `ForeignDirectory` when another process holds the directory."""
        lock = await files.open(LOCK, create=True)
        metadata_log = cls(files, lock, bytes_max)
        try:
            if not await lock.lock(exclusive=True):
                raise ForeignDirectory("the metadata directory is in use by another process")
            return metadata_log, await find(files)
        except BaseException:
            await metadata_log._release()
            raise

    async def begin(self, snapshot: MetadataSnapshot) -> None:
        """In a new directory, before `start`: write the snapshot that the quorum begins with."""
        await self._write_snapshot(snapshot)

    async def start(self, found: FoundEntries) -> None:
        """Get ready to append behind the entries found on disk."""
        self._last_index = found.last_index
        if found.snapshot is not None:
            self._snapshot_bytes = found.snapshot.length
        newest = found.newest
        if newest is None or newest.version != FORMAT_VERSION:
            await self._open_next(found.last_index + 1, ())
        else:
            self._file = await self._files.open(log_path(newest.first_index))
            self._first_index, self._end = newest.first_index, newest.end
            if newest.file_bytes != newest.end:
                await self._file.size(truncate_to=newest.end)
                await self._file.sync()
        await remove_replaced(self._files)
        await remove_unfinished(self._files)

    @property
    def last_index(self) -> int:
        """The index of the newest durable entry; 0 before the first."""
        return self._last_index

    @property
    def length(self) -> int:
        """Bytes in the log that takes entries now."""
        return self._end

    @property
    def wants_snapshot(self) -> bool:
        """Whether the log has outgrown its bound, and the newest snapshot, so that the bytes written for
        snapshots never exceed those written for entries by much."""
        if self._failure is not None:
            return False  # the log may hold a record of unknown fate: no other log may follow it
        return self._end - self._bytes_at_last_try > max(self._bytes_max, self._snapshot_bytes)

    async def append(self, entries: Sequence[LogEntry], wait: Wait = at_once) -> None:
        """Write entries with consecutive indexes and force them to disk; the first may replace an existing
        entry. Raises `MetadataUnavailable` when the disk refuses: after a restart the entries, or the first
        of them, may be there or not; until then no other entry is taken. While the call waits for room, the
        file holds the entries in part, if at all; a start finds a torn end there."""
        async with self._turn:
            if self._failure is not None or self._file is None:
                raise MetadataUnavailable(f"the metadata log takes no more changes: {self._failure or 'closed'}")
            assert self._first_index <= entries[0].index <= self._last_index + 1, "the entries continue the log"
            records, end = _records(entries, self._end)
            # all bytes not known to be on disk: the last record's mark lies where the first of these records
            # goes
            write = partial(self._file.write, self._end, records, sync=True)
            try:
                await wait(log_path(self._first_index), end - self._end, write)
            except OSError as error:
                self._failure = error
                raise MetadataUnavailable(f"the metadata log cannot be written: {error}") from error
            self._last_index, self._end = entries[-1].index, end
            await self._write_mark(sync=False)

    async def snapshot(self, snapshot: MetadataSnapshot, behind: Callable[[], Sequence[LogEntry]]) -> bool:
        """Replace the log up to `snapshot.index`; `behind` gives the entries that follow it. False: a failing
        or full disk left the log longer than wanted, and the caller tries again later."""
        assert self._file is not None, "a closed log takes no snapshot"
        try:
            async with self._turn:
                if self._failure is not None:
                    return False
                if self._first_index != snapshot.index + 1:
                    await self._go_on_in_next(snapshot.index + 1, behind())
            self._snapshot_bytes = await self._write_snapshot(snapshot)
            await remove_replaced(self._files)
        except OSError as error:
            self._bytes_at_last_try = self._end
            log.warning("no snapshot of the metadata could be written: %s", error)
            return False
        return True

    async def _go_on_in_next(self, first_index: int, entries: Sequence[LogEntry]) -> None:
        try:
            await self._open_next(first_index, entries)
        except OSError:
            if self._first_index != first_index:
                await self._take_back(first_index)
            raise

    async def _take_back(self, first_index: int) -> None:
        """Remove a next log that did not take over: left in place, it would hide from the next start the
        entries that the old log is yet to take."""
        try:
            await self._files.remove(log_path(first_index))
        except OSError as error:
            self._failure = error
            log.error("the metadata log takes no more changes: %s", error)

    async def install(self, snapshot: MetadataSnapshot, wait: Wait = at_once) -> None:
        """Replace all that is here by another node's snapshot, whose commands can be read more than once.
        Raises `MetadataUnavailable`."""

        async def write() -> None:
            self._snapshot_bytes = await self._write_snapshot(snapshot)

        async with self._turn:
            if self._failure is not None or self._file is None:
                raise MetadataUnavailable(f"the metadata log takes no snapshot: {self._failure or 'closed'}")
            following = snapshot.index + 1
            try:
                await wait(snapshot_path(snapshot.index), 0, write)
                await wait(log_path(following), 0, partial(self._open_next, following, ()))
                await wait(DIRECTORY, 0, partial(remove_replaced, self._files))
            except OSError as error:
                self._failure = error
                raise MetadataUnavailable(f"the metadata cannot be written: {error}") from error

    async def close(self) -> None:
        async with self._turn:
            if self._file is not None and self._failure is None:
                await self._write_mark(sync=True)
            await self._release()

    async def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await file.close()
        await self._lock.close()

    async def _write_mark(self, *, sync: bool) -> None:
        """Vouch for the newest record. The record is durable already, so a failure stops only the records
        after it; without room for the mark, the next record vouches for it."""
        assert self._file is not None
        mark = encode_mark(self._end, self._last_index, self._end)
        try:
            await self._file.write(self._end, [mark], sync=sync)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._failure = error
                log.error("the metadata log takes no more changes: %s", error)

    async def _open_next(self, first_index: int, entries: Sequence[LogEntry]) -> None:
        """Open the log that begins with `entries`, and let it take over."""
        path = log_path(first_index)
        records, end = _records(entries, FILE_HEADER_BYTES)
        await write_aside(self._files, path, [encode_file_header(KIND_LOG, first_index), *records])
        file = await self._files.open(path)
        old, self._file = self._file, file
        self._first_index, self._end = first_index, end
        self._last_index = first_index - 1 + len(entries)
        self._bytes_at_last_try = 0
        if old is not None:
            await old.close()

    async def _write_snapshot(self, snapshot: MetadataSnapshot) -> int:
        return await write_aside(self._files, snapshot_path(snapshot.index), _snapshot_chunks(snapshot))


def _records(entries: Sequence[LogEntry], position: int) -> tuple[list[bytes], int]:
    """Records for these entries from this position on, and the position behind them. All bytes before are
    durable."""
    records: list[bytes] = []
    durable = position
    for entry in entries:
        if len(entry.payload) > PAYLOAD_BYTES_MAX:
            raise MetadataUnavailable(f"a change of {len(entry.payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
        record = encode_record(position, entry.index, durable, entry.payload, term=entry.term, kind=entry.kind)
        records.append(record)
        position += len(record)
    return records, position


def _snapshot_chunks(snapshot: MetadataSnapshot) -> Iterator[bytes]:
    chunk = bytearray(encode_file_header(KIND_SNAPSHOT, snapshot.index))
    position = len(chunk)
    count = 1
    record = encode_record(position, count, 0, snapshot.membership, term=snapshot.term, kind=LogRecordKind.MEMBERSHIP)
    position += len(record)
    chunk += record
    for command in snapshot.commands:
        count += 1
        record = encode_record(position, count, 0, command, term=snapshot.term)
        position += len(record)
        chunk += record
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk) + encode_mark(position, count, 0)
