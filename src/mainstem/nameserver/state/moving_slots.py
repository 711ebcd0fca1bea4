"""The slots that move between write groups with their queues, and those that have moved.

A wish (`MoveSlot`) stands until the leaders of both write groups have moved the slot there, and the new one's says so
(`SlotMoved`); the slot table follows then. Before the old one's leader fences the slot it has that noted
(`SlotMoveBegins`); until then the wish can be taken back (`KeepSlot`), so that no slot is fenced that nobody wants to
move. The number of a move that was taken back is used again: no log has it.

While a slot is wished for elsewhere, the replicas of all write groups concerned stay on their nodes; at feature levels
below `UNPINNED` until retention has removed what the queues had in other write groups (`SettleSlot`). The leader of a
queue has to reach all that it has: nodes of its write group that have no replica of another one with its records are
guests of that one (`guests`), learners, from the wish on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mainstem.model import SLOTS, SLOTS_OF_ALL, FeatureLevel, Topic, slot_of
from mainstem.nameserver.errors import InconsistentCommand, InvalidConfig, InvalidPlacement, MoveBegun, NotMoving
from mainstem.nameserver.state.commands import Command, KeepSlot, MoveSlot, SettleSlot, SlotMoveBegins, SlotMoved
from mainstem.nameserver.state.plans.reduced_slots import check_room
from mainstem.nameserver.state.plans.replica_classes import Factors


class WishedMove(NamedTuple):
    group: int
    number: int
    """How often the slot has moved then."""
    begun: bool = False
    """Whether the slot may be fenced by now, so that the move is not taken back any more."""


class MovingSlots:
    """Wishes and what became of them, by slot."""

    def __init__(self) -> None:
        self.wishes: dict[int, WishedMove] = {}
        self.numbers: dict[int, int] = {}
        """How often each slot has moved that has."""
        self.others: dict[int, tuple[int, ...]] = {}
        """The write groups that may have records of a slot's queues from before its last move, in the order in which it
        came to them first. Its own is among them if it has been there before."""

    @property
    def known(self) -> set[int]:
        """The slots that move or ever moved: they go nowhere else by themselves."""
        return self.numbers.keys() | self.wishes.keys()

    def next_number(self, slot: int) -> int:
        return self.numbers.get(slot, 0) + 1

    # before the log

    def check_wish(
        self,
        command: MoveSlot,
        slots: Sequence[int],
        placements: Mapping[int, Sequence[int]],
        factors: Factors,
    ) -> None:
        """Raises `InvalidPlacement`."""
        slot, group = command.slot, command.group
        if group not in placements:
            raise InvalidPlacement(f"there is no write group {group}: the cluster has {len(placements)}")
        if (wish := self.wishes.get(slot)) is not None:
            raise InvalidPlacement(f"slot {slot} is on its way to write group {wish.group}: wait until it is there")
        before = slots[slot]
        if before == group:
            raise InvalidPlacement(f"slot {slot} is in write group {group} already")
        if command.number != self.next_number(slot):
            raise InvalidPlacement(f"slot {slot} has moved meanwhile: try again")
        if len(placements[group]) < factors[slot // SLOTS]:
            check_room(slot, self.reduced(slots, placements, factors))
        for other in self.others.get(slot, ()):
            lacking = set(placements[group]) - set(placements[other])
            if other != before and lacking:
                raise InvalidPlacement(
                    f"queues of slot {slot} have records from before in write group {other}, which has no replica on "
                    f"nodes {_numbers(sorted(lacking))}, where write group {group} has some: they move there once "
                    "retention has removed these records, which it does not where a topic is compacted alone"
                )

    def reduced(
        self, slots: Sequence[int], placements: Mapping[int, Sequence[int]], factors: Factors
    ) -> frozenset[int]:
        """The slots that have fewer copies than topics are promised which are created in their class, or are about to
        have fewer."""
        found = set()
        for slot in self.known:
            wish = self.wishes.get(slot)
            groups = (slots[slot],) if wish is None else (slots[slot], wish.group)
            if any(len(placements.get(group, ())) < factors[slot // SLOTS] for group in groups):
                found.add(slot)
        return frozenset(found)

    def level_of(self, slot: int, topics: Iterable[Topic]) -> FeatureLevel:
        """The feature level from which on slots with such queues move as this one has."""
        level = FeatureLevel.FIRST
        for topic in topics:
            needed = topic.level_to_move
            if needed > level and _first_in(topic, {slot}) is not None:
                level = needed
        return level

    def kept_in(self, slot: int, topics: Iterable[Topic]) -> str:
        """The name of a topic with a queue in a slot that keeps records whatever their age; empty: none does."""
        kept = (topic for topic in topics if topic.keeps_old_stays)
        return next((topic.name for topic in kept if _first_in(topic, {slot}) is not None), "")

    def check_begin(self, command: SlotMoveBegins) -> None:
        """Raises `InvalidPlacement` unless this is what is wished for."""
        wish = self.wishes.get(command.slot)
        if wish is None or (wish.group, wish.number) != (command.group, command.number):
            raise InvalidPlacement(f"slot {command.slot} is not to move to write group {command.group} any more")

    def wish_to_recall(self, slot: int) -> WishedMove:
        """The move of a slot that can be taken back. Raises `NotMoving`, `MoveBegun`."""
        wish = self.wishes.get(slot)
        if wish is None:
            raise NotMoving(f"slot {slot} is not on its way to another write group")
        if wish.begun:
            raise MoveBegun(f"slot {slot} is on its way to write group {wish.group}, and cannot be taken back any more")
        return wish

    def check_moved(self, command: SlotMoved) -> None:
        """Raises `InvalidPlacement` unless this is what is wished for."""
        wish = self.wishes.get(command.slot)
        if wish is None or (wish.group, wish.number) != (command.group, command.number):
            raise InvalidPlacement(f"slot {command.slot} is not to move to write group {command.group} any more")

    def check_replica(self, group: int, slots: Sequence[int], *, pinned: bool) -> None:
        """Raises `InvalidPlacement` if a replica of a write group must stay where it is (`staying`)."""
        if (why := self.staying(slots, pinned=pinned).get(group)) is not None:
            raise InvalidPlacement(f"write group {group}: {why}")

    def staying(self, slots: Sequence[int], *, pinned: bool) -> Mapping[int, str]:
        """The write groups whose replicas must stay where they are, and why. `pinned`: also while they have records of
        queues that have gone on, or have such queues: nodes do not keep what they read."""
        found: dict[int, str] = {}
        for slot in sorted(self.wishes.keys() | (self.others.keys() if pinned else set())):
            wish = self.wishes.get(slot)
            concerned = {slots[slot], *self.others.get(slot, ()), *((wish.group,) if wish is not None else ())}
            if wish is not None and not pinned:
                why = (
                    f"its replica stays where it is while slot {slot} is on its way to write group {wish.group}: "
                    "mainstem cluster status shows what that waits for"
                )
            else:
                why = (
                    f"its replica stays where it is while queues of slot {slot} have records in several write groups "
                    f"({_numbers(sorted(concerned))}), until retention has removed them from all but one, or the "
                    "cluster is at a later feature level"
                )
            for group in concerned:
                found.setdefault(group, why)
        return found

    def waiting_for(
        self, nodes: Collection[int], slots: Sequence[int], placements: Mapping[int, Sequence[int]]
    ) -> list[int]:
        """The slots whose moves have not begun, and wait for one of these nodes to copy what the write group before
        has."""
        found = []
        for slot, wish in sorted(self.wishes.items()):
            guests = set(placements.get(wish.group, ())) - set(placements.get(slots[slot], ()))
            if not wish.begun and not guests.isdisjoint(nodes):
                found.append(slot)
        return found

    def guests(self, slots: Sequence[int], placements: Mapping[int, Sequence[int]]) -> Mapping[int, frozenset[int]]:
        """Per write group the nodes that follow it though they have no replica of it: they have one of a write group
        to which queues with records in the first one have come, or are about to."""
        found: dict[int, frozenset[int]] = {}
        for slot in self.wishes.keys() | self.others.keys():
            home, wish = slots[slot], self.wishes.get(slot)
            reading = {*placements.get(home, ()), *(placements.get(wish.group, ()) if wish is not None else ())}
            for group in {home, *self.others.get(slot, ())}:
                if lacking := reading - set(placements.get(group, ())):
                    found[group] = found.get(group, frozenset()) | lacking
        return found

    def check_configs(self, before: Topic, after: Topic, *, kept_move: bool) -> None:
        """Raises `InvalidConfig` for what queues cannot have while they move, or lie in several write groups.
        `kept_move`: queues that are compacted alone move as others do."""
        compacts = "compact" in after.settings.cleanup_policy and "compact" not in before.settings.cleanup_policy
        keeps = after.settings.keeps_for_good and not before.settings.keeps_for_good
        if not compacts and (not keeps or kept_move):
            return
        if (partition := _first_in(after, self.wishes.keys() | self.others.keys())) is not None:
            raise InvalidConfig(
                f"topic {after.name!r} cannot be compacted{'' if compacts else ' without delete'} while partition "
                f"{partition} moves between write groups, or has records in several"
            )

    # after the log

    def wish(self, command: MoveSlot, *, begun: bool) -> None:
        """`begun`: it is not noted when the slot may be fenced."""
        if not 0 <= command.slot < SLOTS_OF_ALL:
            raise InconsistentCommand(f"there is no slot {command.slot}")
        self.wishes[command.slot] = WishedMove(command.group, command.number, begun)

    def begin(self, command: SlotMoveBegins) -> None:
        wish = self.wishes.get(command.slot)
        if wish is not None and (wish.group, wish.number) == (command.group, command.number):
            self.wishes[command.slot] = wish._replace(begun=True)

    def keep(self, command: KeepSlot) -> None:
        if self.wishes.get(command.slot) == (command.group, command.number, False):
            del self.wishes[command.slot]

    def moved(self, command: SlotMoved) -> None:
        if not 0 <= command.slot < SLOTS_OF_ALL or command.number <= self.numbers.get(command.slot, 0):
            raise InconsistentCommand(f"slot {command.slot} moves for the time {command.number}, or there is none")
        self.wishes.pop(command.slot, None)
        self.numbers[command.slot] = command.number
        self.others[command.slot] = tuple(command.others)

    def settle(self, command: SettleSlot) -> bool:
        """Whether anything changes by that: the slot may have moved on."""
        return self.numbers.get(command.slot) == command.number and self.others.pop(command.slot, None) is not None

    # snapshots

    def commands(self, slots: Sequence[int], *, recallable: bool) -> Iterator[Command]:
        """`recallable`: it is noted when moves begin."""
        for slot, number in sorted(self.numbers.items()):
            yield SlotMoved(slot, slots[slot], number, list(self.others.get(slot, ())))
            if slot not in self.others:
                yield SettleSlot(slot, number)
        for slot, wish in sorted(self.wishes.items()):
            yield MoveSlot(slot, wish.group, wish.number)
            if wish.begun and recallable:
                yield SlotMoveBegins(slot, wish.group, wish.number)


def _first_in(topic: Topic, slots: Collection[int]) -> int | None:
    """The first partition of a topic in one of these slots."""
    first = topic.queue_id(0)
    return next((number for number in range(topic.partitions) if slot_of(first + number) in slots), None)


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
