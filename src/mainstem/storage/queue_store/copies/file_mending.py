"""Makes damaged files whole again on this node's disks and in its manifest; the caller (`storage.repair.file_repair`)
gets the bytes.

    an extent    its bytes are known by their length and CRC32C, which the index has: they are written in its place.
                 A crash in the middle of that leaves an extent that is damaged, as it was before.
    a file       its content is what the other files of its write groups lack. New runs, a few megabytes each,
                 are written beside it and take its place in the manifest in one step; the file becomes an orphan.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import crc32c
from mainstem.kernel.batch_header import TRANSACTIONAL_BIT
from mainstem.model import Buffer
from mainstem.protocol.records import BatchHeader, verify_checksum, walk_batches
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.extents.aborted import AbortedRows, joined_rows, no_rows
from mainstem.storage.extents.extent_format import ABORTED_VERSION, FORMAT_VERSION, TRANSACTIONAL
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.copies.file_copy import copy_file
from mainstem.storage.queue_store.manifest.in_memory.spans import Span
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.run_writer import BATCH_ROW, RunWriter
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS
from mainstem.storage.store_files.store_file import RUN_SUFFIX, StoreFile, path_of
from mainstem.storage.store_files.transaction_scan import TransactionScan

NEW_RUN_BYTES_MAX = 8 << 20
"""Bytes of batches in a run that is made here: it is put together in memory."""

PIECE_BYTES = 256 << 10
"""Bytes written and synced at a time: commits share the disk."""


class MissingOffsets(NamedTuple):
    """Offsets of a queue that no file of this node has: from `first`, up to but without `end`."""

    queue_id: int
    first: int
    end: int


class FileRemains(NamedTuple):
    """The sound part of a damaged file: its index, and its bad extents."""

    extents: ExtentIndex | None
    """Its index; None: its content is unknown."""
    bad_rows: list[int]


class Mending:
    """Examines and mends the files of one queue store."""

    def __init__(
        self, stored: StoredFiles, changes: StoreChanges, orphans: Orphans, new_id: Callable[[], uuid.UUID]
    ) -> None:
        """`new_id` makes the names of new runs unique."""
        self._stored = stored
        self._manifest = stored.manifest
        self._search = stored.search
        self._changes = changes
        self._orphans = orphans
        self._new_id = new_id

    async def examine(self, name: str, pace: Callable[[int], Awaitable[object]] | None = None) -> FileRemains:
        """Read and check every byte of a file. `pace(bytes)` is awaited before bytes are read."""
        await self._stored.open_files.renewed(name)  # the file as it is now, not as it was when it was opened
        known = self._search.known(name)
        try:
            index = await self._stored.open_files.index(known, keep=False)
        except (StorageError, OSError):
            return FileRemains(None, [])
        bad: list[int] = []
        async with self._stored.open_files.opened(known) as file:
            for row, extent in enumerate(index.rows):
                length = int(extent["length"])
                if pace is not None:
                    await pace(length)
                try:
                    data = await file.read(int(extent["position"]), length)
                except OSError:
                    data = b""
                if len(data) != length or crc32c(data) != int(extent["crc"]):
                    bad.append(row)
        if bad:
            place = int(index.rows["position"][bad[0]])
            self._stored.damaged.note(
                name, FormatError(f"{name}: {len(bad)} extents fail their checks, the first at {place}")
            )
        return FileRemains(index, bad)

    async def patch(self, name: str, extent: numpy.void, data: Buffer) -> None:
        """Put an extent's bytes in their place. Raises `StorageError` unless they are its bytes, and OSError."""
        if len(data) != int(extent["length"]) or crc32c(data) != int(extent["crc"]):
            raise StorageError(f"{name}: the bytes sent for the extent at {int(extent['position'])} are not its own")
        file = await self._stored.files.open(path_of(name))
        try:
            await file.write(int(extent["position"]), [data], sync=True)
        finally:
            await file.close()

    async def whole_again(self, name: str, how: str) -> None:
        await self._stored.renewed(name, how)

    def ranges(self, name: str) -> dict[int, tuple[int, int]]:
        """The blocks (after, upto] that the file was made of, per write group it counts for."""
        return {group: self._manifest.blocks_of(name, group) for group in self._manifest.counts_for(name)}

    async def lost(
        self, name: str, group: int, candidates: Iterable[tuple[int, int, int]], unreadable: Collection[str]
    ) -> list[MissingOffsets]:
        """Find what this file has lost, among stretches of a write group's queues, as (queue id, first offset, end):
        what no readable file of the group has, and would have to be in this one, as it lies behind what older files
        have and before what newer ones have. Raises `StorageError`, OSError."""
        own = self._manifest.entries(name)
        blocks = {(entry.after, entry.upto) for entry in own if entry.group == group}
        file = self._manifest.files[name]
        spans: list[Span] = []
        mine = 0
        for span in self._manifest.spans(group):
            if (span.after, span.upto) in blocks:
                mine = len(spans)
            readable = [entry for entry in span if entry.name != name and entry.name not in unreadable]
            if readable:
                spans.append(span if len(readable) == len(span) else Span(readable, self._manifest.files))
        beside = mine < len(spans) and (spans[mine].after, spans[mine].upto) in blocks
        found: list[MissingOffsets] = []
        for queue_id, first, end in candidates:
            if file.is_merged and not file.first_queue <= queue_id <= file.last_queue:
                continue
            position, older = first, True
            while position < end:
                place = await self._search.find_in_any_stay(queue_id, spans, group, position)
                start = end if place is None else int(place.extents.rows["base_offset"][place.row])
                newer = place is None or place.at >= mine
                if start > position and older and newer:
                    found.append(MissingOffsets(queue_id, position, min(start, end)))
                if place is None:
                    break
                older = place.at < mine + beside  # what lies beside it comes before and after
                position = int(place.extents.rows["last_offset"][place.row]) + 1
        return found

    async def write(self, like: StoreFile, batches: Sequence[tuple[int, Buffer]]) -> StoreFile:
        """A new run of batches, as (queue id, one batch or more), in the order of queues and offsets; whole and durable
        when this returns, and held. Raises `StorageError`, `ProtocolError` for what is no batch, and OSError."""
        name = f"mended-{self._new_id().hex}{RUN_SUFFIX}"
        target = _InMemory()
        walked = [(queue_id, data, list(walk_batches(data))) for queue_id, data in batches]
        marked = any(header.attributes & TRANSACTIONAL_BIT for *_, found in walked for _at, header in found)
        aborted = await self._aborted(like, walked) if marked else no_rows()
        with RunWriter(name, target, ABORTED_VERSION if marked else FORMAT_VERSION) as writer:
            for queue_id, data, found in walked:
                for at, header in found:
                    verify_checksum(memoryview(data)[at : at + header.size_bytes], header)
                writer.append([data], batch_rows(queue_id, [header for _at, header in found]))
            summary = writer.finish(aborted)
        file = StoreFile(retention_class=like.retention_class, **summary._asdict())
        self._orphans.hold(name)
        try:
            await copy_file(self._stored.files, file, target.pieces())
        except BaseException:
            self._orphans.let_go(name)
            raise
        return file

    async def _aborted(
        self, like: StoreFile, walked: Sequence[tuple[int, Buffer, list[tuple[int, BatchHeader]]]]
    ) -> AbortedRows:
        """The aborted transactions of batches, as the damaged file that had them still says, or as these tell
        themselves. Raises `FormatError` where neither knows."""
        try:
            return await self._stored.open_files.aborted(self._search.known(like.name))
        except (StorageError, OSError):
            pass
        scans: dict[int, TransactionScan] = {}
        for queue_id, data, found in walked:
            scan = scans.get(queue_id)
            if scan is None:
                scans[queue_id] = scan = TransactionScan(queue_id, from_first=False, where=path_of(like.name))
            scan.add(data, batch_fields(found))
        return joined_rows([scan.rows() for scan in scans.values()])

    async def replace(self, name: str, by: Mapping[int, Sequence[StoreFile]]) -> None:
        """Put runs that were written here in a file's place, and let go of them, also after an error."""
        try:
            await self._changes.replace(name, by)
        finally:
            for file in {file.name: file for files in by.values() for file in files}:
                self._orphans.let_go(file)

    async def stretches(
        self, group: int, after: int, upto: int, queues_of: Callable[[ExtentIndex], numpy.ndarray]
    ) -> tuple[int, list[numpy.ndarray]]:
        """List what the write group's files have that hold blocks of (after, upto]: the last block they reach to, and
        per file an array of `STRETCH`. `queues_of` says of an index which rows are the group's. Raises `StorageError`
        when one of them cannot be read: what it held would be taken for nothing."""
        reached = upto
        found: list[numpy.ndarray] = []
        spans = self._manifest.spans(group)
        for entry in chain.from_iterable(spans[spans.behind(after) : spans.behind(upto) + 1]):
            if entry.after >= upto:
                continue
            reached = max(reached, entry.upto)
            try:
                index = await self._stored.open_files.index(self._search.known(entry.name), keep=False)
            except OSError as error:
                raise FormatError(f"{entry.name}: {error}") from error
            found.append(stretches_of(index.rows[queues_of(index)]))
            await asyncio.sleep(0)
        return reached, found


STRETCH = numpy.dtype([("queue_id", "<u8"), ("first", "<i8"), ("end", "<i8")])


def stretches_of(rows: numpy.ndarray) -> numpy.ndarray:
    """Neighbouring extents of a queue in one."""
    if not len(rows):
        return numpy.zeros(0, STRETCH)
    begins = numpy.ones(len(rows), numpy.bool_)
    same = rows["queue_id"][1:] == rows["queue_id"][:-1]
    begins[1:] = ~(same & (rows["base_offset"][1:] == rows["last_offset"][:-1] + 1))
    firsts = numpy.flatnonzero(begins)
    lasts = numpy.append(firsts[1:], len(rows)) - 1
    found = numpy.zeros(len(firsts), STRETCH)
    found["queue_id"] = rows["queue_id"][firsts]
    found["first"] = rows["base_offset"][firsts]
    found["end"] = rows["last_offset"][lasts] + 1
    return found


def batch_rows(queue_id: int, headers: Sequence[BatchHeader]) -> numpy.ndarray:
    """Rows of `BATCH_ROW` for batches of a queue."""
    rows = numpy.zeros(len(headers), BATCH_ROW)
    for row, header in zip(rows, headers, strict=True):
        row["queue_id"] = queue_id
        row["base_offset"] = header.base_offset
        row["last_offset"] = header.next_offset - 1
        row["max_timestamp"] = header.max_timestamp
        row["length"] = header.size_bytes
        row["record_count"] = header.record_count
        row["leader_epoch"] = header.leader_epoch
        row["flags"] = TRANSACTIONAL if header.attributes & TRANSACTIONAL_BIT else 0
    return rows


def batch_fields(batches: Sequence[tuple[int, BatchHeader]]) -> numpy.typing.NDArray[numpy.int64]:
    """A row of `BATCH_FIELDS` for each of these batches, with their positions."""
    rows = [
        (at, it.size_bytes, it.base_offset, it.last_offset, it.max_timestamp, it.record_count, it.leader_epoch)
        for at, it in batches
    ]
    return numpy.array(rows, numpy.int64).reshape(-1, len(BATCH_FIELDS))


class _InMemory:
    """`RunTarget` whose bytes are written elsewhere once the run is finished."""

    def __init__(self) -> None:
        self._content = bytearray()

    def write(self, buffer: Buffer) -> None:
        self._content += buffer

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        self._content.clear()

    async def pieces(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), PIECE_BYTES):
            yield bytes(self._content[start : start + PIECE_BYTES])
