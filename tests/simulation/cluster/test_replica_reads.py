"""Readers of a replica whose leader is elsewhere: what they are served, what wakes them, when they are sent back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.replica_reads import begun, read_replica
from tests.simulation.cluster.run import Run
from tests.storage.small_node import new_batch

from mainstem.kernel import FetchPlan, Verdict
from mainstem.model import Outcome, QueueRead
from mainstem.storage.cluster.queue_leadership import WriteGroupLeadership
from mainstem.storage.role import Storage

PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.05
BYTES_MAX = 1 << 20


class Story(Run):
    """Three nodes without load or faults: one leads the queue, one is read, and does not."""

    def __init__(self, directory: Path) -> None:
        super().__init__(1, directory)

    async def _story(self) -> None:
        for node in self.cluster.nodes.values():
            await node.start()
        topic = await self.cluster.create_topic(1, patience=PATIENCE_SECONDS)
        self.queue_id = topic.queue_id(0)
        self.group = self.cluster.group_of(self.queue_id)
        self.leader = await self.cluster.lead(self.group, PATIENCE_SECONDS)
        self.read_from = next(node for node in self.cluster.nodes.values() if node is not self.leader)
        await self.append()
        await self._until(lambda: self._end(self.follower) == 1)
        await self.told()

    async def told(self) -> None:
        raise NotImplementedError

    @property
    def follower(self) -> Storage:
        assert self.read_from.serving is not None
        return self.read_from.serving

    async def append(self) -> None:
        assert self.leader.serving is not None
        batch = new_batch(self.queue_id, 100)
        self.cluster.history.sending(bytes(batch.data))
        (result,) = await self.leader.serving.messages.append([batch], -1)
        assert result.outcome is Outcome.OK

    def read(self, offset: int, *, leader_epoch: int = -1) -> FetchPlan:
        """A round at the follower, as far as memory goes."""
        plan = begun(QueueRead(self.queue_id, offset, BYTES_MAX), BYTES_MAX, leader_epoch=leader_epoch)
        self.follower.messages.read_at_once(plan)
        return plan

    def verdict(self, offset: int, *, leader_epoch: int = -1) -> Verdict:
        (row,) = self.read(offset, leader_epoch=leader_epoch).partitions()
        return Verdict(row.verdict)

    def _end(self, storage: Storage) -> int:
        (offsets,) = storage.messages.offsets([self.queue_id]).result()
        return -1 if offsets is None else offsets.high_watermark

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(POLL_SECONDS)


def test_a_reader_at_the_end_of_a_replica_is_woken_by_what_the_replica_applies(tmp_path: Path) -> None:
    class Woken(Story):
        async def told(self) -> None:
            found = await read_replica(self.follower, QueueRead(self.queue_id, 0, BYTES_MAX), BYTES_MAX)
            assert (found.outcome, len(found.batches), found.offsets.high_watermark) == (Outcome.OK, 1, 1)
            plan = self.read(1)
            assert plan.settled
            assert not plan.final
            waiting = self.follower.messages.wait(plan, 1, 1000.0)
            before = self.loop.time()
            await self.append()
            await waiting
            assert self.loop.time() - before < PATIENCE_SECONDS, "and not by its timeout"
            found = await read_replica(self.follower, QueueRead(self.queue_id, 1, BYTES_MAX), BYTES_MAX)
            assert (len(found.batches), found.next_offset) == (1, 2)

    Woken(tmp_path).play()


def test_a_reader_that_the_replica_has_not_caught_up_with_waits_for_it(tmp_path: Path) -> None:
    class Ahead(Story):
        async def told(self) -> None:
            plan = self.read(2)
            assert plan.settled
            assert not plan.final, "it may come"
            waiting = self.follower.messages.wait(plan, 1, 1000.0)
            await self.append()
            await waiting
            await self.append()
            await self._until(lambda: self._end(self.follower) == 3)
            assert self.read(2).bytes or not self.read(2).settled
            late = self.read(9)
            late.give_up_ahead()
            assert [row.verdict for row in late.partitions()] == [Verdict.OFFSET_NOT_AVAILABLE], "its time is over"

    Ahead(tmp_path).play()


def test_readers_of_another_leader_epoch_are_told(tmp_path: Path) -> None:
    class Epochs(Story):
        async def told(self) -> None:
            epoch = self.follower.groups[self.group].term
            assert self.verdict(1, leader_epoch=epoch) is Verdict.OK
            assert self.verdict(1, leader_epoch=epoch - 1) is Verdict.FENCED_LEADER_EPOCH
            assert self.verdict(1, leader_epoch=epoch + 1) is Verdict.UNKNOWN_LEADER_EPOCH
            assert self.verdict(-1) is Verdict.OFFSET_OUT_OF_RANGE

    Epochs(tmp_path).play()


def test_a_replica_that_hears_no_leader_sends_its_readers_away_until_it_does(tmp_path: Path) -> None:
    class Alone(Story):
        async def told(self) -> None:
            assert self.verdict(1) is Verdict.OK
            others = [node for node in self.cluster.nodes.values() if node is not self.read_from]
            for node in others:
                node.lose_power()
            await self._until(lambda: self.verdict(1) is Verdict.NOT_LEADER)
            for node in others:
                await node.restart()
            await self.cluster.lead(self.group, PATIENCE_SECONDS)
            await self._until(lambda: self.verdict(1) is Verdict.OK)

    Alone(tmp_path).play()


def test_only_consumers_that_may_read_replicas_do(tmp_path: Path) -> None:
    class Others(Story):
        async def told(self) -> None:
            plan = begun(QueueRead(self.queue_id, 0, BYTES_MAX), BYTES_MAX)
            plan.from_followers = False
            self.follower.messages.read_at_once(plan)
            assert [row.verdict for row in plan.partitions()] == [Verdict.NOT_LEADER]

    Others(tmp_path).play()


def test_a_leader_names_the_replicas_that_lack_nothing(tmp_path: Path) -> None:
    class Abreast(Story):
        async def told(self) -> None:
            others = {node.node_id for node in self.cluster.nodes.values() if node is not self.leader}
            await self._until(lambda: set(self._named(self.leader)) == others)
            assert not self._named(self.read_from)
            self.read_from.lose_power()
            await self._until(lambda: self.read_from.node_id not in self._named(self.leader))

        def _named(self, node: SimulatedNode) -> list[int]:
            assert node.serving is not None
            leadership = WriteGroupLeadership(node.node_id, node.serving.placement, node.serving.groups)
            return list(leadership.abreast().get(self.group, ()))

    Abreast(tmp_path).play()
