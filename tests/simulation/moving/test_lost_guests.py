"""A guest is lost for good while a move, which has begun, waits for an open transaction.

No replica of the two write groups goes elsewhere until the slot has moved, so the move must not wait for that node. Its
replica is made elsewhere then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.moving.clusters import ANSWER_SECONDS
from tests.simulation.moving.other_nodes import ApartMover, ApartRun
from tests.simulation.oracle import require
from tests.simulation.transactions.atomicity import Atomicity
from tests.simulation.transactions.producers import TransactionalProducer
from tests.simulation.whole.clients import Producer

from mainstem.errors import MainstemError
from mainstem.model import Topic, slot_of
from mainstem.nameserver.errors import InvalidPlacement
from mainstem.nameserver.nameserver import Nameserver

SEED = 3

LOOK_SECONDS = 0.1

STEP_SECONDS = 60.0
"""Simulated, for each step of the story: a replica comes elsewhere once the log of the write group before begins behind
the fence."""

TRANSACTION_MS = 120_000
"""The transaction is open until another producer takes the place of its own."""


class Move(NamedTuple):
    topic: Topic
    partition: int
    before: int
    to: int
    guest: int
    """A node of the next write group that has no replica of the one before."""

    @property
    def slot(self) -> int:
        return slot_of(self.topic.queue_id(self.partition))


class LosesAGuest(ApartMover):
    """One move, of which a guest is lost."""

    atomicity: Atomicity
    told = False
    """Whether the story came to its end."""

    async def run(self) -> None:
        await self._until("topics", lambda: bool(self._work.partitions()))
        move = self._move()
        producer = TransactionalProducer(self._work, self.atomicity, "dies", random.Random(SEED))
        await producer.die_in_a_transaction(move.topic, move.partition, TRANSACTION_MS)
        await self._insist(lambda it: it.operations.move_slot_of(move.topic.name, move.partition, move.to))
        await self._until("a transaction that the move waits for", lambda: self._waits_for_a_transaction(move.slot))
        wish = self._nameserver().lookups.moving_slots.wishes[move.slot]
        # as a leader notes it that has looked for transactions right before this one began
        await self._insist(lambda it: it.operations.slot_move_begins(move.slot, wish.group, wish.number))
        lost = self._cluster.nodes[move.guest]
        lost.lose_power()
        spare = min(set(self._cluster.nodes) - set(self._placement(move.to)))
        replaced = await self._insist(lambda it: it.operations.move_replica(move.to, move.guest, spare))
        require(not replaced, "a replica goes elsewhere while its slot may be fenced")
        await producer.begin()
        await self._until("a move without the node that is lost", lambda: move.slot not in self.wished())
        await self._insist(lambda it: it.operations.move_replica(move.to, move.guest, spare))
        await self._until("a replica on another node", lambda: self._is_replaced(move))
        self.told = True

    def _move(self) -> Move:
        """Of a queue to a write group with a node that has no replica of its own."""
        lookups = self._nameserver().lookups
        placements = lookups.placements()
        for topic, partition in self._work.partitions():
            before = lookups.write_group(topic.queue_id(partition))
            for to, replicas in placements.items():
                if guests := set(replicas) - set(placements[before]):
                    return Move(topic, partition, before, to, min(guests))
        raise AssertionError("all write groups are on the same nodes: take another seed")

    async def _insist(self, change: Callable[[Nameserver], Coroutine[Any, Any, object]]) -> bool:
        """Ask for a change until somebody carries it out, or refuses it. Whether it was carried out."""

        async def changed(nameserver: Nameserver) -> bool | None:
            try:
                await change(nameserver)
            except InvalidPlacement:
                return False
            except MainstemError:  # nobody leads the metadata now
                return None
            return True

        while True:
            node = self._rng.choice([node for node in self._cluster.nodes.values() if node.serving is not None])
            if node.roles is not None:
                answer = await node.call(changed(node.roles.nameserver), patience=ANSWER_SECONDS)
                if answer is not None:
                    return answer
            await asyncio.sleep(LOOK_SECONDS)

    def _nameserver(self) -> Nameserver:
        newest = self._cluster.newest_metadata()
        assert newest is not None, "nodes are up"
        return newest

    def _placement(self, group: int) -> tuple[int, ...]:
        return tuple(self._nameserver().lookups.placements()[group])

    def _waits_for_a_transaction(self, slot: int) -> bool:
        up = [node.serving for node in self._cluster.nodes.values() if node.serving is not None]
        return any("a transaction is open" in storage.mover.standing.get(slot, "") for storage in up)

    def _is_replaced(self, move: Move) -> bool:
        for leader in self._cluster.leaders(move.to)[:1]:
            consensus = leader.storage.groups[move.to].consensus
            return consensus.committed_membership.voters == set(self._placement(move.to))
        return False

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        for _ in range(round(STEP_SECONDS / LOOK_SECONDS)):
            if holds():
                return
            await asyncio.sleep(LOOK_SECONDS)
        standing = [node.serving.mover.standing for node in self._cluster.nodes.values() if node.serving is not None]
        require(False, f"there never is {what}: {standing}", "S")


class LostGuest(ApartRun):
    """The story is told before the faults begin, beside one producer and the splitters. Then the node comes back."""

    mover: LosesAGuest

    async def _create_topics(self) -> None:
        await super()._create_topics()
        for node in self.cluster.nodes.values():
            super()._begin_splitting(node)
        producer = Producer(self.work, -1, idempotent=True)
        self._producing = self.loop.create_task(self._looked_after(producer.run()))
        await self.mover.run()

    def _begin_splitting(self, node: SimulatedNode) -> None:
        """That has begun."""

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._produced()

    async def _produced(self) -> None:
        await self._producing

    def _mover(self, rng: random.Random) -> LosesAGuest:
        mover = LosesAGuest(self.cluster, self.work, rng)
        mover.atomicity = Atomicity(self.cluster.history, self.loop.time)
        return mover


def test_a_move_that_has_begun_goes_on_without_a_guest_that_is_lost(tmp_path: Path) -> None:
    run = LostGuest(SEED, tmp_path, seconds=0.5, faults=["transfer"])
    run.play()
    assert run.mover.told
