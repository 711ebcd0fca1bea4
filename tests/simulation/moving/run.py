"""A storage role under random programs in which slots move between its write groups, whatever else is under way."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.fakes.files import SimulatedFiles
from tests.simulation.clients import Clients
from tests.simulation.merger import Mergers
from tests.simulation.moving.planted import PLANTS
from tests.simulation.node import SimulatedNode
from tests.simulation.oracle import QueueOracle, Refusals, require, seed_failed
from tests.simulation.run import Run

from mainstem.errors import MainstemError
from mainstem.model import AppendResult, BatchAppend, Outcome, Topic, slot_of
from mainstem.storage.cluster.slot_mover import MetadataOfMoves, Wish
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.role import Storage


class MovingNode(SimulatedNode):
    """The metadata of moves survives everything, as the nameserver's does."""

    faults: Sequence[str] = ()
    is_handing_in = False
    serving: Storage | None = None
    wishes: dict[int, Wish]
    numbers: dict[int, int]
    others: dict[int, Sequence[int]]
    """Per slot, the write groups that may have records of its queues besides its own."""
    moved: int = 0

    def watch(self, storage: Storage) -> None:
        self.serving = storage
        self.terms: dict[int, int] = {}
        storage.grow(self.slots, self.settings.groups, self.numbers)
        storage.mover.metadata = MetadataOfMoves(lambda: self.wishes, lambda: self.others, self._moved, self._settled)
        for fault in self.faults:
            PLANTS[fault](storage)

    @property
    def disk2(self) -> SimulatedFiles:
        return self.machine.disk2

    @property
    def manifest_path(self) -> str:
        return self.machine.manifest_path

    async def create(self, topic: Topic) -> None:
        while True:
            try:
                return await super().create(topic)
            except NotTheLeader:
                await asyncio.sleep(0.01)  # until the write group has its next term

    async def _moved(self, slot: int, wish: Wish, others: Sequence[int]) -> None:
        del self.wishes[slot]
        self.numbers[slot] = wish.number
        self.slots[slot] = wish.group
        self.others[slot] = others
        self.moved += 1
        self.storage.grow(list(self.slots), self.settings.groups, self.numbers)

    async def _settled(self, slot: int) -> None:
        del self.others[slot]

    def refusals_of(self, group: int) -> Refusals:
        """The refusals that a write group has counted; it forgets them with every leadership."""
        term = self.storage.groups[group].term
        if self.terms.setdefault(group, term) != term:
            self.terms[group] = term
            self.refusals[group].forget()
        return self.refusals[group]


class MovingClients(Clients):
    """Producers are refused while their queue moves, and go on where it comes to."""

    node: MovingNode

    def broken_by(self, result: AppendResult, right: AppendResult) -> str:
        if right.outcome is Outcome.NOT_LEADER and result.outcome is Outcome.OK:
            return "C"  # behind a fence the write group before gives no offsets any more
        return "D" if Outcome.SKIPPED_SEQUENCE in (result.outcome, right.outcome) else ""

    def expected(self, batch: BatchAppend) -> AppendResult:
        storage = self.node.storage
        number = storage.group_of(batch.queue_id)
        if slot_of(batch.queue_id) in storage.state.moves.shut or not storage.groups[number].serving:
            return AppendResult(Outcome.NOT_LEADER)
        return super().expected(batch)

    def taken(self, queue: QueueOracle, batch: BatchAppend) -> AppendResult:
        storage = self.node.storage
        number = storage.group_of(batch.queue_id)
        queue.refusals = self.node.refusals_of(number)
        epoch = storage.groups[number].term
        newest = queue.batches[-1].leader_epoch if queue.batches else 0
        require(epoch >= newest, f"queue {queue.queue_id:#x}: leader epoch {epoch} after {newest}", "C")
        return super().taken(queue, batch)

    async def move(self) -> None:
        """Have a queue move to another write group."""
        node, rng = self.node, self.rng
        queue = rng.choice(list(node.queues.values())) if node.queues else None
        if queue is None or "compact" in queue.settings.cleanup_policy:
            return
        slot = slot_of(queue.queue_id)
        others = [group for group in range(node.settings.groups) if group != node.slots[slot]]
        if others and slot not in node.wishes and not self._has_compacted(slot):
            node.wishes[slot] = Wish(rng.choice(others), node.numbers.get(slot, 0) + 1)
            node.storage.mover.wake()

    def _has_compacted(self, slot: int) -> bool:
        return any(
            "compact" in queue.settings.cleanup_policy and slot_of(queue.queue_id) == slot
            for queue in self.node.queues.values()
        )

    async def truncated(self, queue_id: int, offset: int) -> int | MainstemError | None:
        if offset == -1:  # it may have to be asked for twice
            offset = self.node.offsets(self.node.queues[queue_id]).high_watermark
        while True:
            answer = await super().truncated(queue_id, offset)
            if not isinstance(answer, NotTheLeader):
                return answer
            await asyncio.sleep(0.01)  # until the write group has its next term

    async def deleted(self, number: int) -> None:
        while True:
            try:
                return await super().deleted(number)
            except NotTheLeader:
                await asyncio.sleep(0.01)  # until the write group has its next term

    async def lead_anew(self) -> None:
        """A write group takes later terms, as one that has had more leaders."""
        group = self.rng.choice(list(self.node.storage.groups))
        if group.serving:
            group.lead_anew(group.term + self.rng.randint(1, 3), self.node.loop.now_ms())


class MovingRun(Run):
    node: MovingNode
    clients: MovingClients

    def __init__(self, seed: int, directory: Path, faults: Sequence[str] = ()) -> None:
        self._faults = faults
        super().__init__(seed, directory)
        self._merging: asyncio.Task[bool] | None = None
        self.mergers = Mergers(self.node, random.Random(f"{seed} merges"))

    def node_of(self, rng: random.Random) -> SimulatedNode:
        self.settings.groups = max(2, self.settings.groups)
        node = MovingNode(self.machine, self.settings, rng)
        node.faults, node.wishes, node.numbers, node.others = self._faults, {}, {}, {}
        return node

    def clients_of(self, rng: random.Random) -> Clients:
        return MovingClients(self.node, rng)

    def actions(self) -> list[tuple[Callable[[], Awaitable[None]], float]]:
        """Nobody waits for a queue's end: write groups that lead anew wake everybody."""
        usual = [(action, weight) for action, weight in super().actions() if action != self.clients.poll]
        return [
            *usual,
            (self.clients.move, 8),
            (self.clients.lead_anew, 0.7),
            (self.merge, 6),
            (self.mergers.replay, 1),
        ]

    async def merge(self) -> None:
        """Make a merge, unless one is being made: a node has its files merged one after the other."""
        if self._merging is None or self._merging.done():
            self._merging = asyncio.get_running_loop().create_task(self.mergers.merge())
            await self._merging

    async def _stop(self) -> None:
        self.node.serving = None
        await super()._stop()


def play(seed: int, directory: Path, *, faults: Sequence[str] = ()) -> MovingRun:
    """Play one run; a failure names its seed."""
    logging.disable(logging.CRITICAL)
    directory.mkdir(parents=True, exist_ok=True)
    run = MovingRun(seed, directory, faults)
    try:
        run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
    finally:
        logging.disable(logging.NOTSET)
    return run
