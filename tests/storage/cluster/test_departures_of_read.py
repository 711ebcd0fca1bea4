"""A replica stays on its node as long as that has one of a write group to which queues went on from it, whatever the
members are: who leads them reads what they had before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from mainstem.model import SLOTS, queue_id_of, slot_of
from mainstem.rpc.messages.cluster import MembersOf, WriteGroupMembers
from mainstem.rpc.wire.method import Reply
from mainstem.storage.cluster.departures import Departures
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.state.slot_moves import Fence

QUEUE = queue_id_of(1, 0)
BEFORE, HOME = 0, 1
HERE, OTHERS = 7, (1, 2, 3)


class Replica:
    """A replica that hears from no leader."""

    last_index = 0
    learners: frozenset[int] = frozenset()

    def __init__(self, number: int) -> None:
        self.group = number
        self.core: Any = SimpleNamespace(leader_id=0, commit_index=1)
        self.consensus = self


class Node:
    """Node 7, with a replica of each of two write groups, whose leaders say that it is a member of neither, but for
    those that a test makes it a `member` of; it is to have those that are `placed`."""

    def __init__(self) -> None:
        self.placement = Placement([BEFORE] * SLOTS)
        self.placement.grow([BEFORE] * (SLOTS - 1) + [HOME], 2)
        self.replicas = [Replica(BEFORE), Replica(HOME)]
        self.member: set[int] = set()
        self.placed: set[int] = set()
        self.unsettled: dict[int, list[int]] = {}
        self.fences: dict[int, Fence] = {}
        moves = SimpleNamespace(
            keeps=self.placed.__contains__, unsettled=lambda slot: self.unsettled.get(slot, ()), fences=self.fences
        )
        anything: Any = SimpleNamespace(moves=moves)
        self.departures = Departures(
            HERE, self.replicas, anything, anything, anything, anything, anything, self.placement, self, self  # type: ignore[arg-type]
        )  # fmt: skip

    async def call(
        self, _node_id: int, _method: object, question: MembersOf, **_options: object
    ) -> Reply[WriteGroupMembers]:
        return Reply(WriteGroupMembers(5, [*OTHERS, *([HERE] if question.group in self.member else [])]))

    async def leave(self, number: int) -> None:
        self.replicas[number].core = None

    def has_left(self, number: int) -> bool:
        return False  # what it empties is tested elsewhere

    def look(self, number: int) -> bool:
        """Whether the replica stays."""
        asyncio.run(self.departures.look(number, OTHERS))
        return self.replicas[number].core is not None


def test_a_replica_that_is_read_stays_until_the_reading_one_has_left() -> None:
    node = Node()
    node.placement.remember(QUEUE, [Stay(BEFORE, 0), Stay(HOME, 10)])
    node.member.add(HOME)
    assert node.look(BEFORE)
    assert node.look(HOME)
    assert node.look(BEFORE)
    node.member.clear()
    assert not node.look(HOME), "nothing reads this one"
    assert not node.look(BEFORE)


def test_the_metadata_knows_of_moves_that_no_log_here_has_yet() -> None:
    node = Node()
    slots = [BEFORE] * SLOTS
    slots[slot_of(QUEUE)] = HOME
    node.unsettled[slot_of(QUEUE)] = [BEFORE]
    node.placement.grow(slots, 2, {slot_of(QUEUE): 1}, {slot_of(QUEUE): [BEFORE]})
    node.member.add(HOME)
    assert node.look(BEFORE)
    node.unsettled.clear()
    assert not node.look(BEFORE), "nothing is left there"


def test_two_replicas_that_read_each_other_do_not_stay_for_ever() -> None:
    """Some queues have moved from the one write group to the other, and some the other way; the node has left both."""
    node, other = Node(), queue_id_of(2, 0)
    node.placement.remember(QUEUE, [Stay(BEFORE, 0), Stay(HOME, 10)])
    node.placement.remember(other, [Stay(HOME, 0), Stay(BEFORE, 10)])
    node.member.add(HOME)
    assert node.look(BEFORE)
    assert node.look(HOME)
    node.member.clear()
    assert node.look(BEFORE), "it may lead the other one yet, as far as it knows"
    node.replicas[BEFORE].core.leader_id = 1
    assert node.look(HOME), "it is a member again, and reads this one"
    node.replicas[BEFORE].core.leader_id = 0
    assert not node.look(HOME)
    assert not node.look(BEFORE)


def test_what_a_queue_has_returned_to_does_not_wait_to_hear_of_that() -> None:
    """A guest of the write group that a queue was in first, whose log here ends before the queue's return: nobody sends
    it the rest. It would keep that for ever, and the journal."""
    node = Node()
    node.placement.remember(QUEUE, [Stay(BEFORE, 0), Stay(HOME, 10)])
    node.member.add(HOME)
    node.fences[slot_of(QUEUE)] = Fence(HOME, BEFORE, 2, 57)
    assert not node.look(BEFORE)
    assert node.look(HOME), "the node is a member"


def test_what_a_guest_follows_for_other_queues_reads_nothing() -> None:
    node = Node()
    node.placement.remember(QUEUE, [Stay(BEFORE, 0), Stay(HOME, 10)])
    node.member.add(HOME)
    node.replicas[HOME].learners = frozenset([HERE])
    node.placed.add(HOME)
    assert node.look(BEFORE), "it gets a vote, and leads then"
    node.placed.clear()
    assert not node.look(BEFORE)
    assert node.look(HOME)
