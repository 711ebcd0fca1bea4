"""Writes batches sorted by (queue, offset), and keeps the rows that describe their extents.

The input is described by an array, one row per batch or per extent to be joined with its neighbours; extents are cut
with numpy. The bytes come in contiguous pieces (what a gather yields), and Python runs per extent and piece, never per
batch. Memory is bounded by one piece plus 64 bytes per extent.

An extent is the rows of a queue that start within the same `EXTENT_BYTES` of the queue's bytes in this file, so that
cutting needs no loop. It ends where offsets are missing, as these may be in another write group, between two stays of
the queue in this one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy
import numpy.typing

from mainstem.kernel import checksum_pieces
from mainstem.model import Buffer
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_BYTES, EXTENT_ROW
from mainstem.storage.store_files.run_target import RunTarget

BATCH_ROW = numpy.dtype(
    [
        ("queue_id", "<u8"),
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("max_timestamp", "<i8"),
        ("length", "<u4"),
        ("record_count", "<u4"),
        ("leader_epoch", "<i4"),
        ("flags", "<u4"),
    ]
)
"""A batch as the writer needs it, besides its bytes. Its flags may have `CUT_BEFORE`, which no file has."""

CUT_BEFORE = 1 << 31
"""An extent begins with this batch: it is of another write group than the one before, and an extent is of one."""

Array = numpy.typing.NDArray[numpy.void]


class ExtentsWriter:
    """Batches in a file from some position on. Does not finish the file."""

    def __init__(self, name: str, target: RunTarget, position: int, *, over_gaps: bool = False) -> None:
        """`name`: of the file, in errors. `over_gaps`: extents go on where offsets are missing, as compaction took
        them away."""
        self._name = name
        self._over_gaps = over_gaps
        self._target = target
        self._position = position
        """Of the first batch."""
        self._extents: list[Array] = []
        """Pieces of the index, in order; its very last row is the open extent, which may still grow."""
        self.batch_bytes = 0
        self.batch_count = 0
        self.record_count = 0
        self.queue_count = 0
        self.min_timestamp = -1
        """The smallest `max_timestamp` of what came in; -1: nothing did."""
        self._queue_bytes = 0
        """Bytes so far of the queue being written."""
        self._cell = -1
        """The number of the open extent: the last row starts in this `EXTENT_BYTES` of its queue."""

    def append(self, pieces: Iterable[Buffer], batches: Array, min_timestamp: int | None = None) -> None:
        """Append batches: `pieces` are their bytes one after the other, cut anywhere; `batches` is an array of
        `BATCH_ROW`, or of `EXTENT_ROW` for whole extents, of which position and CRC are not looked at. Those do not
        say what `min_timestamp` does: the smallest `max_timestamp` of the batches in them.

        Sorted by (queue, offset) within and across calls. Raises `FormatError`, having written nothing, when
        they are not; `FormatError` when the lengths do not add up to the pieces and OSError when the disk refuses,
        and then the file must be abandoned."""
        assert batches.dtype in (BATCH_ROW, EXTENT_ROW)
        if not len(batches):
            return
        self._check_order(batches)
        extents, grows = self._cut(batches)
        self._write(pieces, extents, int(self._extents[-1][-1]["crc"]) if grows else 0)
        if grows:
            self._grow(extents[0])
        low = int(batches["max_timestamp"].min()) if min_timestamp is None else min_timestamp
        self.min_timestamp = min(self.min_timestamp, low) if self.batch_count else low
        self.batch_bytes += int(batches["length"].sum(dtype=numpy.int64))
        self.batch_count += int(extents["batch_count"].sum(dtype=numpy.int64))
        self.record_count += int(batches["record_count"].sum(dtype=numpy.int64))
        if grows:
            extents = extents[1:]
        if len(extents):
            self._extents.append(extents)

    def rows(self) -> Array:
        """The index of all that was appended."""
        return numpy.concatenate(self._extents) if self._extents else numpy.empty(0, EXTENT_ROW)

    def _check_order(self, batches: Array) -> None:
        queue_ids, base, last = batches["queue_id"], batches["base_offset"], batches["last_offset"]
        bad = base > last
        bad[1:] |= queue_ids[1:] < queue_ids[:-1]
        bad[1:] |= (queue_ids[1:] == queue_ids[:-1]) & (base[1:] <= last[:-1])
        if self._extents:
            newest = self._extents[-1][-1]
            behind = (int(newest["queue_id"]), int(newest["last_offset"]))
            bad[0] |= (int(queue_ids[0]), int(base[0])) <= behind
        if bad.any():
            row = int(bad.argmax())
            raise FormatError(
                f"{self._name}: batch {self.batch_count + row} (queue {queue_ids[row]:#x}, offsets "
                f"{base[row]} to {last[row]}) is not behind the one before it"
            )

    def _cut(self, batches: Array) -> tuple[Array, bool]:
        """The extents of these batches, without checksums, and whether the first continues the open one."""
        queue_ids = batches["queue_id"]
        lengths = batches["length"].astype(numpy.int64)
        starts = numpy.cumsum(lengths) - lengths
        new_queue = numpy.ones(len(batches), numpy.bool_)
        new_queue[1:] = queue_ids[1:] != queue_ids[:-1]
        gaps = numpy.zeros(len(batches), numpy.bool_)
        gaps[1:] = batches["base_offset"][1:] != batches["last_offset"][:-1] + 1
        if self._extents and self._extents[-1][-1]["queue_id"] == queue_ids[0]:
            new_queue[0] = False
            gaps[0] = batches["base_offset"][0] != self._extents[-1][-1]["last_offset"] + 1
        queue_firsts = numpy.flatnonzero(new_queue)
        origins = numpy.concatenate(([-self._queue_bytes], starts[queue_firsts]))  # where each queue begins
        in_queue = starts - origins[numpy.cumsum(new_queue)]
        cells = in_queue // EXTENT_BYTES
        cut = new_queue
        cut[1:] |= cells[1:] != cells[:-1]
        cut[0] |= cells[0] != self._cell
        cut |= batches["flags"] & CUT_BEFORE != 0
        if not self._over_gaps:
            cut |= gaps
        self.queue_count += len(queue_firsts)
        self._queue_bytes = int(in_queue[-1] + lengths[-1])
        self._cell = int(cells[-1])
        grows = not cut[0]
        cut[0] = True
        firsts = numpy.flatnonzero(cut)
        ends = numpy.append(firsts[1:], len(batches))
        extents = numpy.zeros(len(firsts), EXTENT_ROW)
        for field in ("queue_id", "base_offset"):
            extents[field] = batches[field][firsts]
        for field in ("last_offset", "leader_epoch"):
            extents[field] = batches[field][ends - 1]
        extents["max_timestamp"] = numpy.maximum.reduceat(batches["max_timestamp"], firsts)
        extents["position"] = self._position + self.batch_bytes + starts[firsts]
        extents["length"] = numpy.add.reduceat(lengths, firsts)
        if batches.dtype == EXTENT_ROW:
            extents["batch_count"] = numpy.add.reduceat(batches["batch_count"].astype(numpy.int64), firsts)
        else:
            extents["batch_count"] = ends - firsts
        extents["record_count"] = numpy.add.reduceat(batches["record_count"].astype(numpy.int64), firsts)
        extents["flags"] = numpy.bitwise_or.reduceat(batches["flags"] & ~numpy.uint32(CUT_BEFORE), firsts)
        return extents, grows

    def _write(self, pieces: Iterable[Buffer], extents: Array, crc: int) -> None:
        """Write the pieces and fill in the CRC of every extent; the first continues from `crc`."""
        checksums = numpy.zeros(len(extents), numpy.int64)
        ends = numpy.cumsum(extents["length"], dtype=numpy.int64)
        written = number = 0
        for piece in pieces:
            view = memoryview(piece).cast("B")
            self._target.write(view)
            start, written = written, written + len(view)
            stop = int(ends.searchsorted(written))  # the extent that the piece ends in
            cuts = numpy.minimum(ends[number : stop + 1], written)
            if written > ends[-1]:
                raise FormatError(f"{self._name}: {written} bytes of payload described as {ends[-1]}")
            found = numpy.empty(len(cuts), numpy.int64)
            checksum_pieces(view, numpy.diff(cuts, prepend=start).data, found.data, crc)
            checksums[number : stop + 1] = found
            crc = int(found[-1])
            number = stop
            if written == ends[stop]:
                number, crc = stop + 1, 0
        if written != ends[-1]:
            raise FormatError(f"{self._name}: {written} bytes of payload described as {ends[-1]}")
        extents["crc"] = checksums

    def _grow(self, more: numpy.void) -> None:
        """The open extent takes in the batches of `more`, whose CRC already covers both."""
        extent = self._extents[-1][-1:]
        for field in ("last_offset", "leader_epoch", "crc"):
            extent[field] = more[field]
        for field in ("length", "batch_count", "record_count"):
            extent[field] += more[field]
        extent["flags"] |= more["flags"]
        extent["max_timestamp"] = max(extent["max_timestamp"][0], more["max_timestamp"])
