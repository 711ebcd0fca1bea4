"""The applied state of moves: which slots are fenced in their write group, and where queues have been.

A move is two entries in two logs. `SlotFenced` ends the slot's queues in the write group that had them: from there on
none of their batches is in its log. `QueuesArrived` begins them in the next one, at the offsets at which they ended.
Between the two nobody takes batches for them. The fence is applied before the arrival is logged, so that a fence that a
start applies again comes too late if the arrival with its number, or a later one, is known already.

The two logs are applied by themselves. A checkpoint between fence and arrival (`slot_mover.py`) keeps a start from
applying the last batches of the write group before behind the first of the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mainstem.kernel import LOG_START, NO_SLOT, QueueTable
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.write_groups.control import QueuesArrived, SlotFenced


class Fence(NamedTuple):
    """A slot takes no batches: it is on its way between two write groups."""

    before: int
    to: int
    number: int


class MovesImage(msgspec.Struct, frozen=True, array_like=True):
    """The state as checkpoints keep it."""

    fences: dict[int, tuple[int, int, int]] = {}
    placed: dict[int, tuple[int, int]] = {}
    """Per slot that has moved, its write group and the number of the move."""
    histories: dict[int, list[tuple[int, int]]] = {}
    """Per queue that has been in several write groups, these, and the first offset in each."""


class SlotMoves:
    """Applies fences and arrivals, and has the node's placement follow them."""

    def __init__(self, table: QueueTable, placement: Placement) -> None:
        self._table = table
        self._placement = placement
        self.fences: dict[int, Fence] = {}
        """Per slot that is on its way."""
        self.closing: set[int] = set()
        """Slots whose fence is about to be logged."""
        self.changed: Callable[[], None] = lambda: None
        """Called when slots take batches elsewhere, or nowhere."""

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

    def fenced(self, group: int, command: SlotFenced) -> str:
        """Apply a fence. Returns `done`, or that the slot has gone on already."""
        slot, to, number = command.slot, command.to, command.number
        if number <= self._placement.placed.get(slot, (0, 0))[1]:
            return "the slot has moved since"
        self.fences[slot] = Fence(group, to, number)
        self.changed()
        return "done"

    def arrived(self, group: int, command: QueuesArrived) -> str:
        """Apply an arrival."""
        slot, number = command.slot, command.number
        if number <= self._placement.placed.get(slot, (0, 0))[1]:
            return "the slot has moved since"
        for queue_id, end in command.ends:
            place = self._table.find(queue_id)
            if place == NO_SLOT:  # deleted meanwhile
                continue
            if self._table.get(place, LOG_START) >= end:  # nothing of it is left where it was
                self._placement.forget(queue_id)
            else:
                self._placement.arrive(queue_id, command.before, group, end)
        if command.last:
            self._placement.place(slot, group, number)
            self.fences.pop(slot, None)
            self.changed()
        return "done"

    # --- checkpoint ---------------------------------------------------------------------------------------

    def image(self) -> MovesImage:
        return MovesImage(
            {slot: (fence.before, fence.to, fence.number) for slot, fence in self.fences.items()},
            dict(self._placement.placed),
            {
                queue_id: [(stay.group, stay.first_offset) for stay in stays]
                for queue_id, stays in self._placement.moved.items()
            },
        )

    def load(self, image: MovesImage) -> None:
        """Take the place of what is known, before anything is applied."""
        self.fences = {slot: Fence(*fence) for slot, fence in image.fences.items()}
        for queue_id, stays in image.histories.items():
            self._placement.remember(queue_id, [Stay(*stay) for stay in stays])
        for slot, (group, number) in image.placed.items():
            self._placement.place(slot, group, number)
        self.changed()
