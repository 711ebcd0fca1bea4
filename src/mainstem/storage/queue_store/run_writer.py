"""Writes a run: sorted batches in, one finished file and its summary out.

Synchronous, made for an executor of the pipeline that does nothing else meanwhile. An array describes all batches
of a call, and extents are cut with numpy; their bytes come in contiguous pieces (what a gather yields), and Python
runs per extent and piece, never per batch. Memory is bounded by one piece plus 64 bytes per extent.

The bytes go to a `RunTarget`, which states when they are durable. An extent is the batches of a queue that start within
the same `EXTENT_BYTES` of the queue's bytes in this run, so that cutting needs no loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.format import (
    EXTENT_BYTES,
    EXTENT_ROW,
    FRAME_BYTES,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.queue_store.run_target import RunTarget

BATCH_ROW = numpy.dtype(
    [
        ("queue_id", "<u8"),
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("max_timestamp", "<i8"),
        ("length", "<u4"),
        ("record_count", "<u4"),
        ("leader_epoch", "<i4"),
    ]
)
"""A batch as the writer needs it, besides its bytes."""

Array = numpy.typing.NDArray[numpy.void]


class RunSummary(NamedTuple):
    """A finished run. Timestamps are the smallest and largest `max_timestamp` of its batches (ms; -1 when
    it is empty)."""

    name: str
    bytes: int
    batch_bytes: int
    batch_count: int
    record_count: int
    queue_count: int
    min_timestamp: int
    max_timestamp: int


class RunWriter:
    """Writes one run. Use as a context manager: leaving it without `finish` abandons the run."""

    def __init__(self, name: str, target: RunTarget) -> None:
        self._name = name
        self._target = target
        self._extents: list[Array] = []
        """Pieces of the index, in order; its very last row is the open extent, which may still grow."""
        self._batch_bytes = 0
        self._batch_count = 0
        self._record_count = 0
        self._queue_count = 0
        self._min_timestamp = -1
        self._queue_bytes = 0
        """Bytes so far of the queue being written."""
        self._cell = -1
        """The number of the open extent: the last batch starts in this `EXTENT_BYTES` of its queue."""
        self._finished = False
        target.write(FileFrame(RUN_MAGIC).pack())

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._finished:
            self._target.abandon()

    def append(self, pieces: Iterable[Buffer], batches: Array) -> None:
        """Append batches: `pieces` are their bytes one after the other, cut anywhere; `batches` is an array of
        `BATCH_ROW`.

        Sorted by (queue, offset) within and across calls. Raises `FormatError`, having written nothing, when
        they are not; `FormatError` when the lengths do not add up to the pieces and OSError when the disk refuses,
        and then the run must be abandoned."""
        assert batches.dtype == BATCH_ROW
        assert not self._finished
        if not len(batches):
            return
        self._check_order(batches)
        extents, grows = self._cut(batches)
        self._write(pieces, extents, int(self._extents[-1][-1]["crc"]) if grows else 0)
        if grows:
            self._grow(extents[0])
            extents = extents[1:]
        if len(extents):
            self._extents.append(extents)
        low = int(batches["max_timestamp"].min())
        self._min_timestamp = min(self._min_timestamp, low) if self._batch_count else low
        self._batch_bytes += int(batches["length"].sum(dtype=numpy.int64))
        self._batch_count += len(batches)
        self._record_count += int(batches["record_count"].sum(dtype=numpy.int64))

    def finish(self) -> RunSummary:
        """Write index and footer, then make the run durable and visible under its name."""
        assert not self._finished, "a run is finished once"
        rows = numpy.concatenate(self._extents) if self._extents else numpy.empty(0, EXTENT_ROW)
        high = int(rows["max_timestamp"].max()) if len(rows) else -1
        index = rows.tobytes()
        footer = FileFrame(
            RUN_MAGIC,
            crc32c(index),
            FRAME_BYTES + self._batch_bytes,
            len(rows),
            self._batch_bytes,
            self._min_timestamp,
            high,
            name_crc_of(self._name),
        )
        self._target.write(index)
        self._target.write(footer.pack())
        self._target.finish()
        self._finished = True
        return RunSummary(
            name=self._name,
            bytes=2 * FRAME_BYTES + self._batch_bytes + len(index),
            batch_bytes=self._batch_bytes,
            batch_count=self._batch_count,
            record_count=self._record_count,
            queue_count=self._queue_count,
            min_timestamp=self._min_timestamp,
            max_timestamp=high,
        )

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
                f"{self._name}: batch {self._batch_count + row} (queue {queue_ids[row]:#x}, offsets "
                f"{base[row]} to {last[row]}) is not behind the one before it"
            )

    def _cut(self, batches: Array) -> tuple[Array, bool]:
        """The extents of these batches, without checksums, and whether the first continues the open one."""
        queue_ids = batches["queue_id"]
        lengths = batches["length"].astype(numpy.int64)
        starts = numpy.cumsum(lengths) - lengths
        new_queue = numpy.ones(len(batches), numpy.bool_)
        new_queue[1:] = queue_ids[1:] != queue_ids[:-1]
        if self._extents and self._extents[-1][-1]["queue_id"] == queue_ids[0]:
            new_queue[0] = False
        queue_firsts = numpy.flatnonzero(new_queue)
        origins = numpy.concatenate(([-self._queue_bytes], starts[queue_firsts]))  # where each queue begins
        in_queue = starts - origins[numpy.cumsum(new_queue)]
        cells = in_queue // EXTENT_BYTES
        cut = new_queue
        cut[1:] |= cells[1:] != cells[:-1]
        cut[0] |= cells[0] != self._cell
        self._queue_count += len(queue_firsts)
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
        extents["position"] = FRAME_BYTES + self._batch_bytes + starts[firsts]
        extents["length"] = numpy.add.reduceat(lengths, firsts)
        extents["batch_count"] = ends - firsts
        extents["record_count"] = numpy.add.reduceat(batches["record_count"].astype(numpy.int64), firsts)
        return extents, grows

    def _write(self, pieces: Iterable[Buffer], extents: Array, crc: int) -> None:
        """Write the pieces and fill in the CRC of every extent; the first continues from `crc`."""
        checksums: list[int] = []
        ends = numpy.cumsum(extents["length"], dtype=numpy.int64).tolist()
        written = 0
        for piece in pieces:
            view = memoryview(piece).cast("B")
            self._target.write(view)
            start, written = written, written + len(view)
            done = start
            while done < written and len(checksums) < len(ends):
                end = ends[len(checksums)]
                crc = crc32c(view[done - start : end - start], crc)
                done = min(end, written)
                if done == end:
                    checksums.append(crc)
                    crc = 0
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
        extent["max_timestamp"] = max(extent["max_timestamp"][0], more["max_timestamp"])
