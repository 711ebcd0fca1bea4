"""Stretches of offsets between others of the same queue: of a queue that has returned to a write group, what other
write groups have between two of its stays there."""

from __future__ import annotations

from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import QueueIds, Rows

Offsets = numpy.typing.NDArray[numpy.int64]

GAP_ROW_BYTES = 24
"""Of each in `OffsetGaps.packed`."""


class OffsetGaps(NamedTuple):
    """Stretches by queue id and offset, at most a few of each queue."""

    queue_ids: QueueIds
    firsts: Offsets
    ends: Offsets
    """Behind the last offset of each."""

    def cover(self, rows: Rows) -> numpy.typing.NDArray[numpy.bool_]:
        """Which rows, of extents, begin in one of these stretches."""
        found = numpy.zeros(len(rows), numpy.bool_)
        if not len(self.queue_ids):
            return found
        queue_ids = rows["queue_id"]
        first, end = (self.queue_ids.searchsorted(queue_ids, side) for side in ("left", "right"))
        which = numpy.flatnonzero(end > first)
        first, places, offsets = first[which], end[which] - 1, rows["base_offset"][which]
        late = self.firsts[places] > offsets
        while late.any():
            places[late] -= 1
            late = (places >= first) & (self.firsts[places] > offsets)
        found[which] = (places >= first) & (offsets < self.ends[places])
        return found

    def packed(self) -> bytes:
        return b"".join(column.astype(kind).tobytes() for column, kind in zip(self, ("<u8", "<i8", "<i8"), strict=True))


def unpacked(content: bytes) -> OffsetGaps:
    """Read the bytes of `OffsetGaps.packed`; their number is a multiple of `GAP_ROW_BYTES`."""
    queue_ids, firsts, ends = numpy.frombuffer(content, "<i8").reshape(3, -1).astype(numpy.int64)
    return OffsetGaps(queue_ids.astype(numpy.uint64), firsts, ends)


def joined_gaps(parts: list[OffsetGaps]) -> OffsetGaps:
    """All of these, of queues of their own each."""
    queue_ids, firsts, ends = (numpy.concatenate(columns) for columns in zip(*parts, strict=True))
    order = numpy.lexsort((firsts, queue_ids))
    return OffsetGaps(queue_ids[order], firsts[order], ends[order])


NO_GAPS = OffsetGaps(numpy.empty(0, numpy.uint64), numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64))
