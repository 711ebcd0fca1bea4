"""The records that stay: the latest of each key, but for the tombstones among them that may go."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy

from mainstem.kernel import RULING_FIELDS
from mainstem.storage.compacting.window import NOT_JUDGED, Integers
from mainstem.storage.extents.extent_index import QueueIds

_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class Kept(NamedTuple):
    """Records with keys, each once, sorted by (queue, offset)."""

    queue_ids: QueueIds
    offsets: Integers

    def rulings(self, batches: Integers, queue_ids: QueueIds, ends: Integers, horizons: Integers) -> Integers:
        """The remainder of each batch, as `rewrite` takes it: a range of `offsets`, and the horizon.

        `batches` has rows of `BATCH_FIELDS`, those of a queue one after the other. Per batch: its queue; the clean end,
        the offset up to which its queue is compacted (of a batch that reaches beyond all records stay); and the delete
        horizon in ms that its tombstones get unless they have one."""
        rulings = numpy.empty((len(batches), RULING_FIELDS), numpy.int64)
        edges = (numpy.flatnonzero(queue_ids[1:] != queue_ids[:-1]) + 1).tolist() if len(batches) else []
        for first, end in zip([0, *edges], [*edges, len(batches)], strict=True):
            low, high = self._queue(queue_ids[first]) if first < end else (0, 0)
            offsets = self.offsets[low:high]
            rulings[first:end, 0] = low + offsets.searchsorted(batches[first:end, 2])
            rulings[first:end, 1] = low + offsets.searchsorted(batches[first:end, 3], side="right")
        rulings[:, 2] = horizons
        rulings[batches[:, 3] >= ends, 0] = NOT_JUDGED
        return rulings

    def _queue(self, queue_id: numpy.uint64) -> tuple[int, int]:
        """The range of `offsets` that are of this queue."""
        low, high = (int(self.queue_ids.searchsorted(queue_id, side=side)) for side in _SIDES)
        return low, high
