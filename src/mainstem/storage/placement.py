"""Tells which write groups hold a queue, and from which offset each.

`Placement.history` is the one answer; everything else here is derived from it. A queue belongs to the write group of
its slot. Code that asks where appended batches go takes the last entry (`group_of`); code that looks for batches that
exist goes by their offsets (`stays_from`, `group_at`, `groups_at`), since a queue's batches stay where they are when it
moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import SLOTS, slot_of
from mainstem.storage.extents.extent_index import QueueIds

WriteGroups = numpy.typing.NDArray[numpy.int64]
Offsets = numpy.typing.NDArray[numpy.int64]

_SPREAD = numpy.uint64(0x9E3779B97F4A7C15)
_SLOT_SHIFT = numpy.uint64(64 - (SLOTS - 1).bit_length())
"""The steps of `model.slot_of`, on arrays."""


class Stay(NamedTuple):
    """A queue's time in a write group: its offsets from `first_offset` on, up to where the next stay begins, are in the
    log of `group`."""

    group: int
    first_offset: int


class Placement:
    """`slots` maps each slot to its write group; `grow` gives some to new write groups. `moved` has the histories of
    the queues that have been elsewhere before; nothing moves a queue yet, so a node has none of them."""

    def __init__(self, slots: Sequence[int], moved: Mapping[int, Sequence[Stay]] | None = None) -> None:
        self._only: list[tuple[Stay]] = []
        """The history of every queue that has not moved, by its write group."""
        self.grow(slots, max(slots) + 1)
        self._moved = {queue_id: tuple(stays) for queue_id, stays in (moved or {}).items()}
        for queue_id, stays in self._moved.items():
            firsts = [stay.first_offset for stay in stays]
            assert firsts == sorted({0, *firsts}), f"queue {queue_id:#x}: no history: {stays}"

    def grow(self, slots: Sequence[int], groups: int) -> None:
        """From now on there are so many write groups, and slots belong to them like this. No queue hashes to a slot
        that changes hands (`nameserver/state/write_group_growth.py`), so this moves none."""
        assert len(slots) == SLOTS
        assert len(self._only) <= groups, "write groups stay"
        self._slots = slots
        self._table = numpy.array(slots, numpy.int64)
        self._only += [(Stay(group, 0),) for group in range(len(self._only), groups)]

    @property
    def groups(self) -> int:
        return len(self._only)

    def history(self, queue_id: int) -> tuple[Stay, ...]:
        """The stays of a queue, oldest first, whether or not it exists: at least one, the first from offset 0 on. The
        last one is where it is now."""
        return self._moved.get(queue_id) or self._only[self._slots[slot_of(queue_id)]]

    def stays_from(self, queue_id: int, offset: int) -> tuple[Stay, ...]:
        """The part of a queue's history in which its batches lie from an offset on; first the stay that holds it."""
        history = self.history(queue_id)
        first = len(history) - 1
        while first and history[first].first_offset > offset:
            first -= 1
        return history[first:] if first else history

    def group_at(self, queue_id: int, offset: int) -> int:
        """The write group in whose log an offset of a queue is."""
        return self.stays_from(queue_id, offset)[0].group

    def group_of(self, queue_id: int) -> int:
        """The write group that takes a queue's appends now."""
        return self.history(queue_id)[-1].group

    def groups_of(self, queue_ids: QueueIds) -> WriteGroups:
        """The write group that takes the appends of each queue now, in their order."""
        slots = (queue_ids * _SPREAD) >> _SLOT_SHIFT
        groups: WriteGroups = self._table[slots.astype(numpy.intp)]
        for queue_id, stays in self._moved.items():
            groups[queue_ids == queue_id] = stays[-1].group
        return groups

    def ever_in(self, queue_ids: QueueIds, groups: Collection[int]) -> numpy.typing.NDArray[numpy.bool_]:
        """Which of these queues are in one of the write groups, or have been."""
        found: numpy.typing.NDArray[numpy.bool_] = numpy.isin(self.groups_of(queue_ids), list(groups))
        for queue_id, stays in self._moved.items():
            found[queue_ids == queue_id] = any(stay.group in groups for stay in stays)
        return found

    def bounds_in(self, group: int, queue_ids: QueueIds) -> tuple[Offsets, Offsets]:
        """Per queue, the first offset that is in the log of a write group, and the one behind the last. The largest i64
        stands for an end that is not known yet; a queue that was never there has the largest i64 and 0."""
        never = numpy.iinfo(numpy.int64).max
        here = self.groups_of(queue_ids) == group
        firsts = numpy.where(here, 0, never)
        ends = numpy.where(here, never, 0)
        for queue_id, stays in self._moved.items():
            which = numpy.flatnonzero(queue_ids == queue_id)
            mine = [number for number, stay in enumerate(stays) if stay.group == group]
            if len(which) and mine:
                firsts[which] = stays[mine[0]].first_offset
                ends[which] = stays[mine[-1] + 1].first_offset if mine[-1] + 1 < len(stays) else never
            elif len(which):
                firsts[which], ends[which] = never, 0
        return firsts, ends

    def groups_at(self, queue_ids: QueueIds, offsets: Offsets) -> WriteGroups:
        """The write group in whose log each of these offsets is, one per queue id."""
        groups = self.groups_of(queue_ids)
        for queue_id, stays in self._moved.items():
            which = numpy.flatnonzero(queue_ids == queue_id)
            firsts = numpy.array([stay.first_offset for stay in stays], numpy.int64)
            places = numpy.searchsorted(firsts, offsets[which], "right") - 1
            groups[which] = numpy.array([stay.group for stay in stays], numpy.int64)[places]
        return groups
