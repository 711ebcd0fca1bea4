"""A replica stays on its node as long as that has one of a write group to which queues went on from it, whatever the
members are: who leads them reads what they had before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from mainstem.model import SLOTS, queue_id_of, slot_of
from mainstem.rpc.messages.cluster import WriteGroupMembers
from mainstem.rpc.wire.method import Reply
from mainstem.storage.cluster.departures import Departures
from mainstem.storage.placement import Placement, Stay

QUEUE = queue_id_of(1, 0)
BEFORE, HOME = 0, 1
HERE, OTHERS = 7, (1, 2, 3)


class Replica:
    """A replica that hears from no leader."""

    last_index = 0

    def __init__(self, number: int) -> None:
        self.group = number
        self.core: Any = SimpleNamespace(leader_id=0, commit_index=1)
        self.consensus = self


class Node:
    """Node 7, with a replica of each of two write groups, whose leaders say that it is a member of neither."""

    def __init__(self) -> None:
        self.placement = Placement([BEFORE] * SLOTS)
        self.placement.grow([BEFORE] * (SLOTS - 1) + [HOME], 2)
        self.replicas = [Replica(BEFORE), Replica(HOME)]
        self.asked = 0
        anything: Any = SimpleNamespace()
        self.departures = Departures(
            HERE, self.replicas, anything, anything, anything, anything, anything, self.placement, self, self  # type: ignore[arg-type]
        )  # fmt: skip

    async def call(self, *_question: object, **_options: object) -> Reply[WriteGroupMembers]:
        self.asked += 1
        return Reply(WriteGroupMembers(5, list(OTHERS)))

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
    assert node.look(BEFORE)
    assert not node.asked
    assert not node.look(HOME), "nothing reads this one"
    assert not node.look(BEFORE)


def test_the_metadata_knows_of_moves_that_no_log_here_has_yet() -> None:
    node = Node()
    slots = [BEFORE] * SLOTS
    slots[slot_of(QUEUE)] = HOME
    node.placement.grow(slots, 2, {slot_of(QUEUE): 1}, {slot_of(QUEUE): [BEFORE]})
    assert node.look(BEFORE)
    node.placement.grow(slots, 2, {slot_of(QUEUE): 1})
    assert not node.look(BEFORE), "nothing is left there"
