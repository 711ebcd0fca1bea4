"""Finds the batches in the bytes of a slice: walk the block headers, keep the blocks of the ranges, read the
directories with numpy.

Nothing is taken on trust. Every block kept names its own place and passes its CRC; every index of every range is
there; every batch lies inside its block's payload and begins as its directory row says. Last, every batch passes its
own CRC: the run gets checksums of its own and the journal is then recycled, so this is the last place to notice bytes
that went bad on disk 1.

If an index was written more than once, the last one in the journal counts, not the one of the newest term: a leader
of a later term may have committed nothing, and the next leader may have put an older leader's block in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel.batch_header import LENGTH_EXCLUDES, MAGIC
from mainstem.pipeline.errors import SliceDamaged
from mainstem.pipeline.slices.journal_slice import Bytes, places_of
from mainstem.protocol.records.batch import first_damaged
from mainstem.rpc.messages.split import SegmentExtent, Slice, WriteGroupRange
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    BlockHeader,
    offset_of,
    position_of,
    segment_name,
    sequence_of,
)

Rows = numpy.typing.NDArray[numpy.void]
Integers = numpy.typing.NDArray[numpy.int64]
Positions = numpy.typing.NDArray[numpy.uint64]

BATCH_HEAD = numpy.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
    ]
)
"""The first fields of a record batch, as far as a directory row repeats them. `length` excludes itself and
the offset."""


class Batches(NamedTuple):
    """The batches of a slice in journal order."""

    rows: Rows
    """Their directory rows (`DIRECTORY_ROW`)."""
    starts: Integers
    """The position of each batch in the slice's buffer, ascending."""
    groups: Integers
    """The write group of each batch."""


class _Kept(NamedTuple):
    at: int
    """The position of the block in the slice's buffer."""
    header: BlockHeader


def batches_of(work: Slice, buffer: Bytes) -> Batches:
    """The batches in the slice's ranges. Raises `SliceDamaged`, naming the place."""
    kept = sorted(block for blocks in _blocks(work, buffer).values() for block in blocks.values())
    data = [block for block in kept if block.header.kind == KIND_DATA and block.header.batch_count]
    if not data:
        none = numpy.empty(0, numpy.int64)
        return Batches(numpy.empty(0, DIRECTORY_ROW), none, none)
    directories = b"".join(
        [
            buffer.data[block.at + BLOCK_HEADER_BYTES :][: block.header.batch_count * DIRECTORY_ROW_BYTES]
            for block in data
        ]
    )
    rows = numpy.frombuffer(directories, DIRECTORY_ROW)
    counts = [block.header.batch_count for block in data]
    payloads = numpy.array(
        [block.at + BLOCK_HEADER_BYTES + block.header.batch_count * DIRECTORY_ROW_BYTES for block in data]
    )
    ends = payloads + numpy.array([block.header.payload_length for block in data])
    starts = numpy.repeat(payloads, counts) + rows["position"].astype(numpy.int64)
    positions = numpy.array([block.header.position for block in data], numpy.uint64)
    _check(rows, starts, numpy.repeat(ends, counts), numpy.repeat(positions, counts), buffer)
    return Batches(rows, starts, numpy.repeat(numpy.array([block.header.group for block in data]), counts))


def _blocks(work: Slice, buffer: Bytes) -> dict[int, dict[int, _Kept]]:
    """The blocks of every range, by write group and index."""
    ranges = {entry.group: entry for entry in work.ranges}
    assert len(ranges) == len(work.ranges), "a slice has one range per group"
    kept: dict[int, dict[int, _Kept]] = {group: {} for group in ranges}
    for extent, place in zip(work.extents, places_of(work.extents), strict=False):
        _walk(extent, place, buffer.data, ranges, kept)
    for entry in work.ranges:
        if len(kept[entry.group]) != entry.upto - entry.after:
            raise SliceDamaged(_missing(entry, kept[entry.group], work.extents), _first_unsound(work, buffer))
    return kept


def _walk(
    extent: SegmentExtent,
    place: int,
    view: memoryview,
    ranges: dict[int, WriteGroupRange],
    kept: dict[int, dict[int, _Kept]],
) -> None:
    offset = extent.start
    while offset < extent.end:
        at = place + offset - extent.start
        where = f"{extent.path} at {offset}"
        try:
            header = BlockHeader.unpack(view, at, where)
        except FormatError as error:
            raise SliceDamaged(str(error), position_of(extent.sequence, offset)) from error
        if header.position != position_of(extent.sequence, offset) or offset + header.length > extent.end:
            raise SliceDamaged(
                f"{where}: a block of {header.length} bytes that belongs elsewhere",
                position_of(extent.sequence, offset),
            )
        wanted = ranges.get(header.group)
        if wanted is not None and wanted.after < header.index <= wanted.upto:
            if not header.verify(view, at):
                raise SliceDamaged(
                    f"{where}: block header or directory fails its CRC", position_of(extent.sequence, offset)
                )
            kept[header.group][header.index] = _Kept(at, header)
        offset += header.length


def _first_unsound(work: Slice, buffer: Bytes) -> int:
    """The position of the first block that fails its CRC, whichever block it claims to be; 0: none does."""
    for extent, place in zip(work.extents, places_of(work.extents), strict=False):
        offset = extent.start
        while offset < extent.end:
            at = place + offset - extent.start
            header = BlockHeader.unpack(buffer.data, at, extent.path)
            if not header.verify(buffer.data, at):
                return position_of(extent.sequence, offset)
            offset += header.length
    return 0


def _missing(entry: WriteGroupRange, kept: dict[int, _Kept], extents: Sequence[SegmentExtent]) -> str:
    first = next(index for index in range(entry.after + 1, entry.upto + 1) if index not in kept)
    places = ", ".join(f"{extent.sequence}:{extent.start}-{extent.end}" for extent in extents)
    return f"block {first} of group {entry.group} is not in the journal at {places}"


def _check(rows: Rows, starts: Integers, payload_ends: Integers, positions: Positions, buffer: Bytes) -> None:
    """`positions`: per row, the position of its block."""
    ends = starts + rows["length"]
    bad = (rows["length"] < BATCH_HEAD.itemsize) | (ends > payload_ends)
    bad[1:] |= starts[1:] < ends[:-1]
    _refuse(bad, rows, positions, "lies outside its block's payload, or over another")
    heads = buffer[starts[:, None] + numpy.arange(BATCH_HEAD.itemsize)].view(BATCH_HEAD)[:, 0]
    bad = (
        (heads["base_offset"] != rows["base_offset"])
        | (heads["length"].astype(numpy.int64) + LENGTH_EXCLUDES != rows["length"])
        | (heads["leader_epoch"] != rows["leader_epoch"])
        | (heads["magic"] != MAGIC)
        | (heads["crc"] != rows["crc"])
    )
    _refuse(bad, rows, positions, "does not begin as its directory row says")
    base_offsets = numpy.ascontiguousarray(rows["base_offset"], numpy.int64)
    lengths, leader_epochs = (rows[name].astype(numpy.int64) for name in ("length", "leader_epoch"))
    damaged = first_damaged(buffer.data, starts.data, lengths.data, base_offsets.data, leader_epochs.data)
    bad = numpy.zeros(len(rows), numpy.bool_)
    bad[damaged : damaged + 1] = damaged >= 0
    _refuse(bad, rows, positions, "fails its CRC")


def _refuse(bad: numpy.typing.NDArray[numpy.bool_], rows: Rows, positions: Positions, what: str) -> None:
    if bad.any():
        row = rows[int(bad.argmax())]
        position = int(positions[int(bad.argmax())])
        raise SliceDamaged(
            f"{segment_name(sequence_of(position))} at byte {offset_of(position)}: the batch at offset "
            f"{row['base_offset']} of queue {row['queue_id']:#x} {what}",
            position,
        )
