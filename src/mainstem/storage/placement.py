"""Tells which write groups hold a queue, and from which offset each.

A queue belongs to the write group of its slot. There are two answers to which that is, and they differ while a slot
moves:

- Code that asks where batches are appended takes `group_of` (of many queues `routes_of`): as the metadata has it,
  unless a log of this node knows of a later move.
- Code that looks for batches that exist goes by `history`, and what is derived from it (`stays_from`, `group_at`,
  `groups_of` …): as the logs of this node have it. A replica that lags may hear of a move from the metadata first. By
  its logs the queue is where it was, and what it has of the queue belongs there.

A queue's batches stay where they are when it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import (
    CLASSED,
    CLASSES_MAX,
    PARTITION_BITS,
    SLOTS,
    SLOTS_OF_ALL,
    all_slots,
    is_slot_table,
    slot_of,
)
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.extents.offset_gaps import NO_GAPS, OffsetGaps

WriteGroups = numpy.typing.NDArray[numpy.int64]
Offsets = numpy.typing.NDArray[numpy.int64]
Places = numpy.typing.NDArray[numpy.intp]

ENDLESS = int(numpy.iinfo(numpy.int64).max)

NOTHING_MOVED: Mapping[int, int] = {}
NO_OTHERS: Mapping[int, Sequence[int]] = {}

_SPREAD = numpy.uint64(0x9E3779B97F4A7C15)
_SLOT_SHIFT = numpy.uint64(64 - (SLOTS - 1).bit_length())
"""The steps of `model.slot_of`, on arrays."""
_CLASSED = numpy.uint64(CLASSED << PARTITION_BITS)
_TOPIC_SHIFT = numpy.uint64(PARTITION_BITS)
_CLASS_MASK = numpy.uint64(CLASSES_MAX - 1)
_SLOTS = numpy.uint64(SLOTS)


class Stay(NamedTuple):
    """A queue's time in a write group: its offsets from `first_offset` on, up to where the next stay begins, are in the
    log of `group`."""

    group: int
    first_offset: int


class StayPart(NamedTuple):
    """Offsets of a queue that are in the log of one write group. It may have others of them, before and behind."""

    group: int
    first: int
    end: int
    """Behind the last; the largest i64: it goes on."""


class Placement:
    """`slots` maps each slot to its write group, as the metadata has it; `grow` hears of changes. The logs of this
    node's write groups tell of slots that have moved (`place`, `arrive`)."""

    def __init__(self, slots: Sequence[int], moved: Mapping[int, Sequence[Stay]] | None = None) -> None:
        self.shut: Collection[int] = ()
        """The slots that are on their way: no node serves their queues."""
        self._only: list[tuple[Stay]] = []
        """The history of every queue that has not moved, by its write group."""
        self._placed: dict[int, tuple[int, int]] = {}
        """Per slot that has moved, as the logs say: its write group, and the number of its move."""
        self._moved: dict[int, tuple[Stay, ...]] = {}
        """The histories of queues that have been elsewhere before."""
        self._classes: dict[int, set[int]] = {}
        """Per write group, the classes of which it has slots."""
        self._rows: _MovedRows | None = None
        """The same as arrays; None: they are to be made."""
        self.grow(slots, max(slots) + 1)
        for queue_id, stays in (moved or {}).items():
            self.remember(queue_id, stays)

    def grow(
        self,
        slots: Sequence[int],
        groups: int,
        numbers: Mapping[int, int] = NOTHING_MOVED,
        others: Mapping[int, Sequence[int]] = NO_OTHERS,
    ) -> None:
        """From now on there are so many write groups, and slots belong to them like this. `numbers`: of the slots that
        have moved, how often; `others`: the write groups that have records of their queues from before, in the order
        in which the slot was there first. No queue hashes to another slot that changes hands
        (`nameserver/state/plans/write_group_growth.py`)."""
        assert is_slot_table(slots, groups)
        assert len(self._only) <= groups, "write groups stay"
        self._of_metadata, self._numbers, self._others = all_slots(slots), numbers, others
        known = numpy.array(slots, numpy.int64)  # not of all there can be: that takes a millisecond
        self._table_of_metadata = numpy.concatenate((known, numpy.resize(known[:SLOTS], SLOTS_OF_ALL - len(known))))
        settled = sorted(slot for slot in numbers if slot < len(slots) and not others.get(slot))
        self._settled = numpy.array(settled, numpy.int64)
        self._classes = {}
        for first in range(0, len(slots), SLOTS):
            for group in set(slots[first : first + SLOTS]):
                self._classes.setdefault(group, set()).add(first // SLOTS)
        self._only += [(Stay(group, 0),) for group in range(len(self._only), groups)]
        self._spread()

    def place(self, slot: int, group: int, number: int) -> None:
        """The log of a write group says that a slot has come to it, with its move of this number."""
        if number >= self._placed.get(slot, (0, 0))[1]:
            self._placed[slot] = group, number
            self._put(slot)

    def _spread(self) -> None:
        """Make the tables of both answers."""
        slots, homes = self._of_metadata.copy(), self._of_metadata.copy()
        table, routes = self._table_of_metadata.copy(), self._table_of_metadata.copy()
        for slot, others in self._others.items():
            if others and slot < len(slots):  # until a log says more, it is where it was first
                table[slot] = homes[slot] = others[0]
        self.slots, self.routes, self._table, self._homes = slots, routes, table, homes
        for slot in self._placed:
            self._put(slot)

    def _put(self, slot: int) -> None:
        """Have both answers go by what a log says of a slot."""
        group, number = self._placed[slot]
        if group >= len(self._only):
            return
        self._table[slot] = self._homes[slot] = group
        if number >= self._numbers.get(slot, 0):
            self.slots[slot] = self.routes[slot] = group

    def remember(self, queue_id: int, stays: Sequence[Stay]) -> None:
        """The history of a queue is this from now on."""
        firsts = [stay.first_offset for stay in stays]
        assert firsts == sorted({0, *firsts}), f"queue {queue_id:#x}: no history: {stays}"
        self._moved[queue_id] = tuple(stays)
        self._rows = None

    def arrive(self, queue_id: int, before: int, group: int, first_offset: int) -> None:
        """A queue goes on in another write group from an offset on, and was in the one before: the metadata, which may
        be ahead of the logs at a start, is not asked. Stays without any record are forgotten; but where the queue was
        in the same write group before that, its next stay there begins anew, by which others know that it has returned.
        Nothing changes where a snapshot has told of later stays: it told of all."""
        known = self._moved.get(queue_id, self._only[before])
        if known[-1].first_offset > first_offset:
            return
        stays = [stay for stay in known if stay.first_offset < first_offset]
        if stays and (stays[-1].group != group or len(stays) < len(known)):
            stays.append(Stay(group, first_offset))
        if len(stays) > 1:
            self.remember(queue_id, stays)
        else:
            self.forget(queue_id)

    def cut(self, queue_id: int, log_start: int) -> None:
        """Nothing of a queue is left before this offset: forget the stays that lie before it."""
        stays = list(self.stays_from(queue_id, log_start))
        stays[0] = Stay(stays[0].group, 0)
        if len(stays) > 1:
            self.remember(queue_id, stays)
        else:
            self.forget(queue_id)

    def forget(self, queue_id: int) -> None:
        """A queue is where its slot is, and was nowhere else."""
        if self._moved.pop(queue_id, None) is not None:
            self._rows = None

    def classes_in(self, group: int) -> Collection[int]:
        """The classes of which a write group has slots: its own, and those of which slots have moved to it."""
        return self._classes.get(group, ())

    def moves_known(self, slot: int) -> int:
        """How often a slot has moved, as the metadata says."""
        return self._numbers.get(slot, 0)

    def home_known(self, slot: int) -> int:
        """The write group of a slot, as the metadata says."""
        return self._of_metadata[slot]

    def read_by(self, slot: int, number: int, group: int) -> int:
        """The write group whose nodes read a slot's queues after its move of this number, to `group`: where the slot is
        by now, as the metadata says, unless that has yet to hear of the move."""
        return group if number > self.moves_known(slot) else self.home_known(slot)

    @property
    def groups(self) -> int:
        return len(self._only)

    @property
    def moved(self) -> Mapping[int, tuple[Stay, ...]]:
        """The histories of the queues that have been elsewhere before."""
        return self._moved

    @property
    def others(self) -> Mapping[int, Sequence[int]]:
        """Per slot the write groups that have records of its queues from before its last move, as the metadata says."""
        return self._others

    @property
    def placed(self) -> Mapping[int, tuple[int, int]]:
        """Per slot that has moved, as the logs say: its write group, and the number of its move."""
        return self._placed

    def returned(self) -> list[int]:
        """The queues that have been in some write group twice, with others between."""
        several = ((queue_id, stays) for queue_id, stays in self._moved.items() if len(stays) > 2)
        return [queue_id for queue_id, stays in several if len({stay.group for stay in stays}) < len(stays)]

    def history(self, queue_id: int) -> tuple[Stay, ...]:
        """The stays of a queue, oldest first, whether or not it exists: at least one, the first from offset 0 on. The
        last one is where it is now, as far as the logs here go."""
        return self._moved.get(queue_id) or self._only[self._homes[slot_of(queue_id)]]

    def stays_from(self, queue_id: int, offset: int) -> tuple[Stay, ...]:
        """The part of a queue's history in which its batches lie from an offset on; first the stay that holds it."""
        history = self.history(queue_id)
        first = len(history) - 1
        while first and history[first].first_offset > offset:
            first -= 1
        return history[first:] if first else history

    def stretches_from(self, queue_id: int, offset: int) -> Iterator[StayPart]:
        """The same as stretches of offsets, the first of which begins at this one."""
        stays = self.stays_from(queue_id, offset)
        ends = [*(stay.first_offset for stay in stays[1:]), ENDLESS]
        for stay, end in zip(stays, ends, strict=True):
            yield StayPart(stay.group, max(offset, stay.first_offset), end)

    def stay_of(self, queue_id: int, offset: int, log_start_of: Callable[[int], int]) -> StayPart | None:
        """The offsets of a queue around this one that are in the log of the same write group, from the log start on.
        None: the queue was never anywhere else. Of one that was, the history may be forgotten, and files may still have
        what lies before its log start."""
        if queue_id not in self._moved and not self.has_moved(queue_id):
            return None
        history = self.history(queue_id)
        at = len(history) - len(self.stays_from(queue_id, offset))
        group, behind = history[at].group, at + 1
        while at and history[at - 1].group == group:  # it returned, and had nothing where it was meanwhile
            at -= 1
        while behind < len(history) and history[behind].group == group:
            behind += 1
        first = max(history[at].first_offset, min(log_start_of(queue_id), offset))
        return StayPart(group, first, history[behind].first_offset if behind < len(history) else ENDLESS)

    def group_at(self, queue_id: int, offset: int) -> int:
        """The write group in whose log an offset of a queue is."""
        return self.stays_from(queue_id, offset)[0].group

    def group_of(self, queue_id: int) -> int:
        """The write group that takes a queue's appends now."""
        return self.slots[slot_of(queue_id)]

    def routes_of(self, queue_ids: QueueIds) -> WriteGroups:
        """The write group that takes the appends of each queue now, in their order."""
        found: WriteGroups = self.routes[slots_of(queue_ids)]
        return found

    def is_shut(self, queue_id: int) -> bool:
        """Whether a queue is on its way, and no node serves it."""
        return bool(self.shut) and slot_of(queue_id) in self.shut

    def has_moved(self, queue_id: int) -> bool:
        """Whether the slot of a queue has moved with its queues, be it known from the metadata or from a log."""
        slot = slot_of(queue_id)
        return slot in self._placed or slot in self._numbers

    def gone_elsewhere(self, queue_ids: QueueIds, is_here: Callable[[int], bool]) -> numpy.typing.NDArray[numpy.bool_]:
        """Which of these queues have moved to a write group that this node has no replica of (`is_here`), and have
        nothing left in any other, as the metadata says: nobody asks this node for them any more."""
        homes = self._table_of_metadata[self._settled]
        away = [group for group in numpy.unique(homes).tolist() if not is_here(group)]
        if not away:
            return numpy.zeros(len(queue_ids), numpy.bool_)
        gone = [slot for slot in self._settled[numpy.isin(homes, away)].tolist() if not self._is_ahead(slot)]
        return numpy.isin(slots_of(queue_ids), gone)

    def _is_ahead(self, slot: int) -> bool:
        """Whether a log here knows of a later move of a slot than the metadata."""
        return self._placed.get(slot, (0, 0))[1] > self._numbers.get(slot, 0)

    def groups_of(self, queue_ids: QueueIds) -> WriteGroups:
        """The write group in which each queue is, by the logs, in their order."""
        groups: WriteGroups = self._table[slots_of(queue_ids)]
        if self._moved:
            rows, which, numbers = self._met(queue_ids)
            groups[which] = rows.groups[rows.ends[numbers] - 1]
        return groups

    def ever_of(self, queue_ids: QueueIds) -> WriteGroups:
        """The write groups in which any of these queues is, or has records from before, each once."""
        groups = self.groups_of(queue_ids)
        if self._moved:
            rows, _which, numbers = self._met(queue_ids)
            stays = [
                rows.groups[end - count : end]
                for end, count in zip(rows.ends[numbers], rows.counts[numbers], strict=True)
            ]
            groups = numpy.concatenate([groups, *stays])
        found: WriteGroups = numpy.unique(groups)
        return found

    def ever_in(self, queue_ids: QueueIds, groups: Collection[int]) -> numpy.typing.NDArray[numpy.bool_]:
        """Which of these queues are in one of the write groups, or have been."""
        found: numpy.typing.NDArray[numpy.bool_] = numpy.isin(self.groups_of(queue_ids), list(groups))
        if self._moved:
            rows, which, numbers = self._met(queue_ids)
            was_in = numpy.concatenate(([0], numpy.cumsum(numpy.isin(rows.groups, list(groups)))))
            found[which] = was_in[rows.ends[numbers]] > was_in[rows.ends[numbers] - rows.counts[numbers]]
        return found

    def bounds_in(self, group: int, queue_ids: QueueIds) -> tuple[Offsets, Offsets]:
        """Per queue, the first offset that is in the log of a write group, and the one behind the last. The largest i64
        stands for an end that is not known yet; a queue that was never there has the largest i64 and 0."""
        never = ENDLESS
        here = self.groups_of(queue_ids) == group
        firsts = numpy.where(here, 0, never)
        ends = numpy.where(here, never, 0)
        if self._moved:
            _rows, which, _numbers = self._met(queue_ids)
            for place in which.tolist():
                stays = self._moved[int(queue_ids[place])]
                mine = [number for number, stay in enumerate(stays) if stay.group == group]
                firsts[place], ends[place] = never, 0
                if mine:
                    firsts[place] = stays[mine[0]].first_offset
                    ends[place] = stays[mine[-1] + 1].first_offset if mine[-1] + 1 < len(stays) else never
        return firsts, ends

    def gaps_in(self, group: int, queue_ids: QueueIds) -> OffsetGaps:
        """The stretches of these queues, ascending, that are not in a write group's log, between others that are."""
        if not self._moved:
            return NO_GAPS
        found: list[tuple[int, int, int]] = []
        _rows, which, _numbers = self._met(queue_ids)
        for queue_id in queue_ids[which].tolist():
            stays = self._moved[queue_id]
            left = -1
            for before, stay in pairwise(stays):
                if before.group == group:
                    left = stay.first_offset
                elif stay.group == group and left >= 0:
                    found.append((queue_id, left, stay.first_offset))
        if not found:
            return NO_GAPS
        queues, firsts, ends = zip(*found, strict=True)
        return OffsetGaps(
            numpy.array(queues, numpy.uint64), numpy.array(firsts, numpy.int64), numpy.array(ends, numpy.int64)
        )

    def groups_at(self, queue_ids: QueueIds, offsets: Offsets) -> WriteGroups:
        """The write group in whose log each of these offsets is, one per queue id."""
        groups = self.groups_of(queue_ids)
        if self._moved:
            rows, which, numbers = self._met(queue_ids)
            groups[which] = rows.groups[rows.places(numbers, offsets[which])]
        return groups

    def stays_at(self, queue_ids: QueueIds, offsets: Offsets) -> Places:
        """The number of the stay in which each of these offsets is, from 0 on, one per queue id."""
        found = numpy.zeros(len(queue_ids), numpy.intp)
        if self._moved:
            rows, which, numbers = self._met(queue_ids)
            first = rows.ends[numbers] - rows.counts[numbers]
            found[which] = rows.places(numbers, offsets[which]) - first
        return found

    def of_first_stays(self, rows: Rows) -> Rows:
        """The rows of the oldest stay of each queue."""
        if not self._moved:
            return rows
        found: Rows = rows[self.stays_at(rows["queue_id"], rows["base_offset"]) == 0]
        return found

    def stay_starts(self, queue_ids: QueueIds, number: int) -> Offsets:
        """The first offset in the stay of this number of each queue; the largest i64 for queues without so many."""
        found = numpy.full(len(queue_ids), 0 if number == 0 else ENDLESS, numpy.int64)
        if self._moved and number:
            rows, which, numbers = self._met(queue_ids)
            many = rows.counts[numbers] > number
            which, numbers = which[many], numbers[many]
            found[which] = rows.firsts[rows.ends[numbers] - rows.counts[numbers] + number]
        return found

    @property
    def stays_most(self) -> int:
        """How many stays the longest history has."""
        return max(map(len, self._moved.values()), default=1)

    def _met(self, queue_ids: QueueIds) -> tuple[_MovedRows, Places, Places]:
        """The places of moved queues among these, and their numbers in the rows of moved queues."""
        if self._rows is None:
            self._rows = _MovedRows.of(self._moved)
        rows = self._rows
        numbers = numpy.searchsorted(rows.queue_ids, queue_ids)
        numbers[numbers == len(rows.queue_ids)] = 0
        which = numpy.flatnonzero(rows.queue_ids[numbers] == queue_ids)
        return rows, which, numbers[which]


class _MovedRows(NamedTuple):
    """The histories of moved queues as arrays: by queue id, and their stays one behind the other."""

    queue_ids: QueueIds
    ends: Places
    """Per queue, the place behind its last stay."""
    counts: Places
    firsts: Offsets
    groups: WriteGroups

    def places(self, numbers: Places, offsets: Offsets) -> Places:
        """The places of the stays in which these offsets are, of the queues with these numbers."""
        places = self.ends[numbers] - 1
        late = self.firsts[places] > offsets
        while late.any():  # no history has more than a few stays
            places[late] -= 1
            late = self.firsts[places] > offsets
        return places

    @classmethod
    def of(cls, moved: Mapping[int, Sequence[Stay]]) -> _MovedRows:
        queue_ids = sorted(moved)
        stays = [stay for queue_id in queue_ids for stay in moved[queue_id]]
        counts = numpy.array([len(moved[queue_id]) for queue_id in queue_ids], numpy.intp)
        return cls(
            numpy.array(queue_ids, numpy.uint64),
            numpy.cumsum(counts),
            counts,
            numpy.array([stay.first_offset for stay in stays], numpy.int64),
            numpy.array([stay.group for stay in stays], numpy.int64),
        )


def slots_of(queue_ids: QueueIds) -> Places:
    """`model.slot_of` of each queue."""
    slots = (queue_ids * _SPREAD) >> _SLOT_SHIFT
    classed = (queue_ids & _CLASSED) != 0
    if classed.any():
        slots = slots + numpy.where(classed, (queue_ids >> _TOPIC_SHIFT & _CLASS_MASK) * _SLOTS, numpy.uint64(0))
    return slots.astype(numpy.intp)
