"""Copies a part of a store file from another node: the extents of one write group, behind what this node has of it.

The receiver reads the file's index first, asks for the bytes of the extents that it wants, checks each against its
CRC32C in the index, and writes them as a run of its own. Of an extent that begins before what is wanted, whole batches
are left out. The run's name is made of what is in it, so that an attempt finds what an earlier one has copied. A run
that is wanted as it is, is copied whole, under its own name.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol, cast

import numpy
import numpy.typing

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.ports import ReadingMode
from mainstem.protocol.records import walk_batches
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.extents.aborted import AbortedRows, no_rows
from mainstem.storage.extents.extent_format import ABORTED_VERSION, FORMAT_VERSION
from mainstem.storage.extents.extent_index import ExtentIndex, Rows
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.copies.file_copy import BESIDE_BYTES_MAX, ByteRange, FileCopies, write_copied
from mainstem.storage.queue_store.copies.file_mending import batch_rows
from mainstem.storage.queue_store.copies.queue_offsets import Offsets, OffsetsOfQueues, looked_at
from mainstem.storage.queue_store.reading.open_files import Readable, load_aborted, load_index
from mainstem.storage.queue_store.reading.stored_files import StoredFiles, WriteGroupsAt, check_content
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import (
    QUEUES_DIRECTORY,
    RUN_SUFFIX,
    StoreFile,
    has_index_beside,
    index_path_of,
    path_of,
)

PIECE_BYTES = 256 << 10
"""Bytes written and synced at a time: commits share the disk."""


class GivesWholeFiles(StorageError):
    """The other node's version gives files only as a whole."""


class Elsewhere(Protocol):
    """A node that has the file."""

    def whole(self, name: str) -> AsyncIterator[bytes]:
        """All bytes of a file, or of one that lies beside a queue segment, by its name below `queues`."""
        ...

    def part(self, name: str, ranges: Sequence[ByteRange]) -> AsyncIterator[bytes]:
        """The bytes of these ranges of a file, which rise, one behind the other. Raises `GivesWholeFiles`."""
        ...


class _Chosen(NamedTuple):
    """The extents of a file that are wanted."""

    rows: Rows
    after: Offsets
    """Per extent: batches that begin before this offset are not wanted."""
    cut: numpy.typing.NDArray[numpy.bool_]
    """Per extent: whether it has such batches."""
    ranges: list[ByteRange]
    """Their places, neighbours joined."""
    name: str
    """Of a run that has just this."""
    aborted: AbortedRows
    """Aborted transactions of the file."""


class PartCopies:
    """Parts of files that are copied to this node."""

    def __init__(self, stored: StoredFiles, copies: FileCopies, orphans: Orphans) -> None:
        self._stored = stored
        self._copies = copies
        self._orphans = orphans

    async def copy(
        self, file: StoreFile, group: int, groups_at: WriteGroupsAt, kept: OffsetsOfQueues, elsewhere: Elsewhere
    ) -> StoreFile | None:
        """Make sure that what a file has of a write group, behind what is kept here, is here: whole, durable and held.
        Returns the run that has it, which is the file itself if that is a run of which all is wanted; None: it has
        nothing of that. A merged file becomes a run in any case, since a merged file and a run of the same blocks have
        no order. Raises `StorageError`, OSError, and what `elsewhere` raises."""
        index = await index_of(file, elsewhere)
        chosen = await looked_at(len(index), partial(_choose, file, index, group, groups_at, kept))
        chosen = chosen._replace(aborted=await aborted_of(file, elsewhere))
        if not len(chosen.rows):
            return None
        all_of_it = not file.is_merged and len(chosen.rows) == len(index) and not chosen.cut.any()
        name = file.name if all_of_it else chosen.name
        self._orphans.hold(name)
        try:
            if all_of_it:
                await self._copies.copy(file, elsewhere.whole)
                return file
            async with self._copies.one_at_a_time:
                return await self._found(name, file) or await self._written(name, file, chosen, elsewhere)
        except BaseException:
            self._orphans.let_go(name)
            raise

    async def _found(self, name: str, like: StoreFile) -> StoreFile | None:
        """The run that an earlier attempt has copied under this name."""
        known = self._stored.manifest.files.get(name)
        if known is not None and name not in self._stored.damaged:
            return known
        self._orphans.spare(name)
        try:
            return await self._described(name, like)
        except (StorageError, OSError):
            return None

    async def _written(self, name: str, like: StoreFile, chosen: _Chosen, elsewhere: Elsewhere) -> StoreFile:
        bytes_max = like.bytes + chosen.rows.nbytes + BESIDE_BYTES_MAX
        async with aclosing(_run_of(name, like, chosen, elsewhere)) as pieces:
            await write_copied(self._stored.files, path_of(name), bytes_max, pieces)
        self._copies.copied_bytes += int(chosen.rows["length"].sum(dtype=numpy.int64))
        await self._stored.renewed(name, "it was copied from another node")
        return await self._described(name, like)

    async def _described(self, name: str, like: StoreFile) -> StoreFile:
        target = await self._stored.files.open(path_of(name), reading=ReadingMode.COLD)
        try:
            rows = (await load_index(target, path_of(name), name)).rows
            size = await target.size()
        finally:
            await target.close()
        return StoreFile(
            name=name,
            retention_class=like.retention_class,
            bytes=size,
            batch_bytes=int(rows["length"].sum(dtype=numpy.int64)),
            batch_count=int(rows["batch_count"].sum(dtype=numpy.int64)),
            record_count=int(rows["record_count"].sum(dtype=numpy.int64)),
            queue_count=len(numpy.unique(rows["queue_id"])),
            min_timestamp=like.min_timestamp,  # the index has the largest of each extent alone: this is no later
            max_timestamp=int(rows["max_timestamp"].max()),
        )


def _choose(
    file: StoreFile, index: ExtentIndex, group: int, groups_at: WriteGroupsAt, kept: OffsetsOfQueues
) -> _Chosen:
    rows = index.rows
    after = kept.of(rows["queue_id"])
    wanted = (groups_at(rows["queue_id"], rows["base_offset"]) == group) & (rows["last_offset"] >= after)
    rows, after = rows[wanted], after[wanted]
    cut: numpy.typing.NDArray[numpy.bool_] = rows["base_offset"] < after
    content = hashlib.blake2b(file.name.encode(), digest_size=16)
    content.update(rows.tobytes())
    content.update(numpy.where(cut, after, 0).tobytes())
    return _Chosen(rows, after, cut, _ranges_of(rows), f"copied-{content.hexdigest()}{RUN_SUFFIX}", no_rows())


def _ranges_of(rows: Rows) -> list[ByteRange]:
    """The places of extents, neighbours joined."""
    positions = rows["position"].astype(numpy.int64)
    ends = positions + rows["length"]
    firsts = numpy.ones(len(rows), numpy.bool_)
    firsts[1:] = positions[1:] != ends[:-1]
    edges = [*numpy.flatnonzero(firsts).tolist(), len(rows)]
    return [ByteRange(int(positions[first]), int(ends[end - 1] - positions[first])) for first, end in pairwise(edges)]


async def _run_of(name: str, like: StoreFile, chosen: _Chosen, elsewhere: Elsewhere) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a run of these extents. Raises `StorageError`, and what `elsewhere` raises."""
    target = _Passing()
    with RunWriter(name, target, ABORTED_VERSION if len(chosen.aborted) else FORMAT_VERSION) as writer:
        first, waiting = 0, _Passing()
        async with aclosing(_extents(like, chosen, elsewhere)) as extents:
            async for row, data in extents:
                if not chosen.cut[row]:
                    waiting.write(data)
                if chosen.cut[row] or waiting.size >= PIECE_BYTES:
                    end = row + (not chosen.cut[row])
                    writer.append([waiting.taken()], chosen.rows[first:end], like.min_timestamp)
                    first = row + 1
                if chosen.cut[row]:
                    _append_behind(writer, like, chosen.rows[row], int(chosen.after[row]), data)
                if target.size >= PIECE_BYTES:
                    yield target.taken()
        writer.append([waiting.taken()], chosen.rows[first:], like.min_timestamp)
        writer.finish(chosen.aborted)
    yield target.taken()


def _append_behind(writer: RunWriter, like: StoreFile, extent: numpy.void, after: int, data: bytes) -> None:
    """Append the batches of an extent from the one at offset `after` on. Raises `StorageError` if none begins there."""
    batches = list(walk_batches(data))
    first = next((place for place, (_at, header) in enumerate(batches) if header.base_offset >= after), len(batches))
    if batches[first - 1][1].next_offset > after:
        raise StorageError(
            f"{like.name}: queue {int(extent['queue_id']):#x} ends at {after} here, and no batch of it begins there"
        )
    writer.append([data[batches[first][0] :]], batch_rows(int(extent["queue_id"]), [one[1] for one in batches[first:]]))


def extents_of(file: StoreFile, rows: Rows, elsewhere: Elsewhere) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the place and the bytes of these extents of another node's file, checked. Raises `StorageError`, and what
    `elsewhere` raises."""
    none = numpy.zeros(len(rows), numpy.int64)
    return _extents(file, _Chosen(rows, none, none > 0, _ranges_of(rows), "", no_rows()), elsewhere)


async def _extents(like: StoreFile, chosen: _Chosen, elsewhere: Elsewhere) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the place and the bytes of each of these extents, checked. Raises `StorageError`, and what `elsewhere`
    raises."""
    lengths, checksums = chosen.rows["length"].tolist(), chosen.rows["crc"].tolist()
    row, held = 0, bytearray()
    async with aclosing(cast(AsyncGenerator[bytes, None], elsewhere.part(like.name, chosen.ranges))) as pieces:
        async for piece in pieces:
            held += piece
            at = 0
            while row < len(lengths) and len(held) - at >= lengths[row]:
                data = bytes(held[at : at + lengths[row]])
                if crc32c(data) != checksums[row]:
                    place = int(chosen.rows["position"][row])
                    raise FormatError(f"{like.name}: what came of its extent at {place} fails its CRC")
                yield row, data
                at += lengths[row]
                row += 1
            del held[:at]
    if row < len(lengths) or held:
        raise StorageError(f"{like.name}: {row} of {len(lengths)} extents arrived, and {len(held)} bytes")


class _Passing:
    """`RunTarget` whose bytes are taken on while the run is written."""

    def __init__(self) -> None:
        self._buffers: list[bytes] = []
        self.size = 0

    def write(self, buffer: Buffer) -> None:
        self._buffers.append(bytes(buffer))
        self.size += len(self._buffers[-1])

    def taken(self) -> bytes:
        """Take the bytes that were written since the last call."""
        content = b"".join(self._buffers)
        self.abandon()
        return content

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        self._buffers.clear()
        self.size = 0


async def index_of(file: StoreFile, elsewhere: Elsewhere) -> ExtentIndex:
    """The index of another node's file. Raises `StorageError` unless it is this file's, and what `elsewhere` raises."""
    beside = has_index_beside(file.name)
    there = await _index_there(file, elsewhere)
    index = await load_index(there, index_path_of(file.name), file.name, file.bytes if beside else None)
    check_content(index, file)
    return index


async def aborted_of(file: StoreFile, elsewhere: Elsewhere) -> AbortedRows:
    """The index of aborted transactions of another node's file. Raises as `index_of`."""
    there = await _index_there(file, elsewhere)
    return await load_aborted(there, index_path_of(file.name), file.name, beside=has_index_beside(file.name))


async def _index_there(file: StoreFile, elsewhere: Elsewhere) -> Readable:
    """The file of another node that ends with the index of `file`."""
    if not has_index_beside(file.name):
        return _There(file, elsewhere)
    path = index_path_of(file.name)
    content = bytearray()
    async with aclosing(
        cast(AsyncGenerator[bytes, None], elsewhere.whole(path.removeprefix(f"{QUEUES_DIRECTORY}/")))
    ) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > file.bytes + BESIDE_BYTES_MAX:
                raise StorageError(f"{path}: more than {len(content)} bytes arrived")
    return _Fetched(content)


class _Fetched:
    """A file whose bytes are here."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    async def size(self) -> int:
        return len(self._content)

    async def read(self, position: int, length: int) -> bytes:
        return bytes(self._content[position : position + length])


class _There:
    """A file of another node, read over the network."""

    def __init__(self, file: StoreFile, elsewhere: Elsewhere) -> None:
        self._file = file
        self._elsewhere = elsewhere

    async def size(self) -> int:
        return self._file.bytes

    async def read(self, position: int, length: int) -> bytes:
        pieces = self._elsewhere.part(self._file.name, [ByteRange(position, length)])
        async with aclosing(cast(AsyncGenerator[bytes, None], pieces)) as arriving:
            return b"".join([piece async for piece in arriving])
