"""Which write group a queue belongs to: by its slot, for one queue or for an array of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import numpy.typing

from mainstem.model import SLOTS, slot_of
from mainstem.storage.queue_store.extent_index import QueueIds

Groups = numpy.typing.NDArray[numpy.int64]

_SPREAD = numpy.uint64(0x9E3779B97F4A7C15)
_SLOT_SHIFT = numpy.uint64(64 - (SLOTS - 1).bit_length())
"""The steps of `model.slot_of`, on arrays."""


class Placement:
    """`slots` maps each slot to its write group."""

    def __init__(self, slots: Sequence[int]) -> None:
        assert len(slots) == SLOTS
        self._slots = slots
        self._table = numpy.array(slots, numpy.int64)

    @property
    def groups(self) -> int:
        return max(self._slots) + 1

    def group_of(self, queue_id: int) -> int:
        return self._slots[slot_of(queue_id)]

    def groups_of(self, queue_ids: QueueIds) -> Groups:
        """The group of each queue, in their order."""
        slots = (queue_ids * _SPREAD) >> _SLOT_SHIFT
        return self._table[slots.astype(numpy.intp)]
