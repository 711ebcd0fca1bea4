"""The applied state of moves: which slots are fenced in their write group, and where queues have been.

A move is two entries in two logs. `SlotFenced` ends the slot's queues in the write group that had them: from there on
none of their batches is in its log. `QueuesArrived` begins them in the next one, at the offsets at which they ended.
Between the two nobody takes batches for them. The fence is applied before the arrival is logged, so that a fence that a
start applies again comes too late if the arrival with its number, or a later one, is known already.

The two logs are replicated and applied by themselves. The arrival names the block that has the fence (`behind`), and a
replica that has not applied that block neither writes nor applies the arrival (`awaits`): so each replica applies the
last batches of a queue in the write group before, then the first ones in the next.

A snapshot of a write group tells what its log would have told up to the snapshot's block (`told_of`, `learn`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, QueueTable
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.write_groups.control import DONE, QueuesArrived, SlotFenced


class Fence(NamedTuple):
    """A slot takes no batches: it is on its way between two write groups."""

    before: int
    to: int
    number: int
    index: int = 0  # type: ignore[assignment]
    """Of its block, in the log of the write group before; 0: not known, of a node that has both write groups alone."""


class Arrival(NamedTuple):
    """A slot has come to a write group."""

    group: int
    number: int
    index: int = 0  # type: ignore[assignment]
    """Of its last block, in the log of that write group; 0: not known."""
    before: int = -1
    behind: int = 0
    """The block of the write group before that has the fence."""


class MovesTold(msgspec.Struct, frozen=True, array_like=True):
    """The moves that a snapshot of a write group tells of: all histories that pass through it, and the fences and
    arrivals in its log up to the snapshot's block."""

    fences: dict[int, Fence] = {}
    arrivals: dict[int, Arrival] = {}
    histories: dict[int, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self.fences or self.arrivals or self.histories)


class MovesImage(msgspec.Struct, frozen=True, array_like=True):
    """The state as checkpoints keep it."""

    fences: dict[int, Fence] = {}
    """Per slot that is on its way."""
    placed: dict[int, tuple[int, int]] = {}
    """Per slot that has moved, its write group and the number of the move."""
    histories: dict[int, list[tuple[int, int]]] = {}
    """Per queue that has been in several write groups, these, and the first offset in each."""
    arrivals: dict[int, Arrival] = {}
    """As `placed`, and where the logs say so. Earlier versions pass over this field and the next."""
    left: dict[int, dict[int, Fence]] = {}
    """Per write group and slot the newest fence in the write group's log."""


class SlotMoves:
    """Applies fences and arrivals, and has the node's placement follow them."""

    def __init__(self, table: QueueTable, placement: Placement) -> None:
        self._table = table
        self._placement = placement
        self.fences: dict[int, Fence] = {}
        """Per slot that is on its way."""
        self.left: dict[int, dict[int, Fence]] = {}
        """Per write group and slot the newest fence in the write group's log."""
        self.arrivals: dict[int, Arrival] = {}
        """Per slot that has moved."""
        self.closing: set[int] = set()
        """Slots whose fence is about to be logged."""
        self.changed: Callable[[], None] = lambda: None
        """Called when slots take batches elsewhere, or nowhere."""
        self.reached: Callable[[int, int], bool] = lambda group, index: True
        """Whether this node has applied a write group's blocks up to this one, or has no part in it."""

    @property
    def shut(self) -> set[int]:
        """The slots that take no batches."""
        return self.closing | self.fences.keys()

    def close(self, slot: int, *, shut: bool) -> None:
        """Take no more batches of a slot from this turn on, as its fence is about to be logged; or take them again."""
        (self.closing.add if shut else self.closing.discard)(slot)
        self.changed()

    @property
    def placement(self) -> Placement:
        return self._placement

    def number_of(self, slot: int) -> int:
        """The number of the slot's last move that has arrived, as far as this node knows."""
        return self.arrivals[slot].number if slot in self.arrivals else 0

    def fenced(self, group: int, index: int, command: SlotFenced) -> str:
        """Apply a fence. Returns `done`, or that the slot has gone on already."""
        return self._shut(command.slot, Fence(group, command.to, command.number, index))

    def _shut(self, slot: int, fence: Fence) -> str:
        left = self.left.setdefault(fence.before, {})
        if slot not in left or left[slot].number < fence.number:
            left[slot] = fence
        if fence.number <= self.number_of(slot):
            return "the slot has moved since"
        self.fences[slot] = fence
        self.changed()
        return DONE

    def awaits(self, command: QueuesArrived) -> bool:
        """Whether the write group that the queues of an arrival come from has not come to the fence here."""
        return not self.reached(command.before, command.behind)

    def arrived(self, group: int, index: int, command: QueuesArrived) -> str:
        """Apply an arrival."""
        slot, number = command.slot, command.number
        if number <= self.number_of(slot):
            return "the slot has moved since"
        table = self._table
        for queue_id, end in command.ends:
            place = table.find(queue_id)
            if place == NO_SLOT:  # deleted meanwhile
                continue
            for cell in (COMMITTED_END, NEXT_OFFSET):  # a replica that had no part in the write group before lacks it
                table.set(place, cell, max(table.get(place, cell), end))
            if table.get(place, LOG_START) >= end:  # nothing of it is left where it was
                self._placement.forget(queue_id)
            else:
                self._placement.arrive(queue_id, command.before, group, end)
        if command.last:
            self._open(slot, Arrival(group, number, index, command.before, command.behind))
        return DONE

    def _open(self, slot: int, arrival: Arrival) -> None:
        self.arrivals[slot] = arrival
        self._placement.place(slot, arrival.group, arrival.number)
        if slot in self.fences and self.fences[slot].number <= arrival.number:
            del self.fences[slot]
        self.changed()

    # --- snapshots ----------------------------------------------------------------------------------------

    def told_of(self, group: int, index: int) -> MovesTold:
        """The moves that a snapshot of a write group at a block tells of."""
        return MovesTold(
            {slot: fence for slot, fence in self.left.get(group, {}).items() if fence.index <= index},
            {
                slot: arrival
                for slot, arrival in self.arrivals.items()
                if arrival.group == group and arrival.index <= index
            },
            {
                queue_id: [(stay.group, stay.first_offset) for stay in stays]
                for queue_id, stays in self._placement.moved.items()
                if any(stay.group == group for stay in stays)
            },
        )

    def comes_later(self, group: int, index: int) -> set[int]:
        """The slots that have come to a write group only behind this block."""
        return {slot for slot, come in self.arrivals.items() if come.group == group and come.index > index}

    def remember(self, told: MovesTold) -> None:
        """Know the histories that a snapshot tells. They hold whatever has been applied here: offsets do not change
        their write group."""
        for queue_id, stays in told.histories.items():
            known = self._placement.moved.get(queue_id, ())
            upto = known[-1].first_offset if known else -1
            news = [Stay(*stay) for stay in stays if stay[1] > upto]
            if news:
                self._placement.remember(queue_id, [*known, *news])

    def waits_for(self, told: MovesTold) -> list[Arrival]:
        """The arrivals whose fences are not applied here, though the write group before is here."""
        return [one for one in told.arrivals.values() if one.before >= 0 and not self.reached(one.before, one.behind)]

    def learn(self, told: MovesTold) -> None:
        """Take over fences and arrivals as of a snapshot that has taken the place of a log."""
        for slot, fence in told.fences.items():
            self._shut(slot, fence)
        for slot, arrival in told.arrivals.items():
            if arrival.number > self.number_of(slot):
                self._open(slot, arrival)

    # --- checkpoint ---------------------------------------------------------------------------------------

    def image(self) -> MovesImage:
        return MovesImage(
            dict(self.fences),
            dict(self._placement.placed),
            {
                queue_id: [(stay.group, stay.first_offset) for stay in stays]
                for queue_id, stays in self._placement.moved.items()
            },
            dict(self.arrivals),
            {group: dict(fences) for group, fences in self.left.items()},
        )

    def load(self, image: MovesImage) -> None:
        """Take the place of what is known, before anything is applied."""
        self.fences = dict(image.fences)
        for queue_id, stays in image.histories.items():
            self._placement.remember(queue_id, [Stay(*stay) for stay in stays])
        self.left = {group: dict(fences) for group, fences in image.left.items()}
        for slot, (group, number) in image.placed.items():
            self.arrivals[slot] = image.arrivals.get(slot, Arrival(group, number))
            self._placement.place(slot, group, number)
        self.changed()
