"""Topics that are deleted while a write group has no leader.

The deletion is in the logs of the other write groups then. Each node that applies it there drops the topic's queues of
all write groups, so the next leader finds nothing to delete, and the log of the write group that had none never says
that the topic is gone. Its runs go all the same, one by one, as no node has the queues any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.whole.admin import Admin
from tests.simulation.whole.clients import Producer
from tests.simulation.whole.run import WholeRun

from mainstem.model import Topic

SEED = 4
"""It has two write groups."""

WAITED_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1


class DeletedWithoutALeader(WholeRun):
    """The topic shares its first and its last run with one that stays, and is alone in a run between these."""

    group = -1
    """That has no leader."""
    deleted: Topic

    async def _start_nodes(self) -> None:
        settings = self.cluster.settings
        settings.storage = msgspec.structs.replace(settings.storage, retention_check_seconds=0.5)
        await super()._start_nodes()

    async def _settle(self) -> None:
        await self._agree_on_metadata()
        nodes = list(self.cluster.nodes.values())
        going, staying = [await self._new_topic() for _ in range(2)]
        self.deleted = going
        self.group = group = self.cluster.group_of(going.queue_id(0))
        await self._fill([going, staying])
        before = {node: runs_of(node) for node in nodes}
        await self._fill([going])
        between = {node: runs_of(node) - before[node] for node in nodes}
        await self._fill([going, staying])
        self.cluster.network.mute.add(group)
        await self._until(lambda: not self.cluster.leaders(group))
        await Admin(self.work).delete(going)
        await self._until(lambda: not any(going.number in node.storage.table.topics() for node in nodes))
        await self._until(lambda: all(between[node] - runs_of(node) for node in nodes))  # retention drops them
        self.cluster.network.mute.discard(group)
        await super()._settle()
        await self._start_again()  # the topic does not come back, though that log has its creation only

    async def _new_topic(self) -> Topic:
        admin, before = Admin(self.work), {topic.topic_id for topic in self.work.kept()}
        while True:
            await admin.create(partitions=8, configs={"retention.ms": "-1"})
            for topic in self.work.kept():
                if topic.topic_id not in before:
                    return topic

    async def _fill(self, topics: list[Topic]) -> None:
        """Batches to each partition of these, split on every node into runs of their own."""
        producer = Producer(self.work, -1)
        for topic in topics:
            for partition in range(topic.partitions):
                await self._last_batch(producer, self.work.new_batch(topic, partition, (-1, -1, -1), 1))
        await self._converge()
        await asyncio.gather(*map(self._split_all, self.cluster.nodes.values()))

    async def _until(self, holds: Callable[[], bool]) -> None:
        for _ in range(round(WAITED_SECONDS_MAX / LOOK_SECONDS)):
            if holds():
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError(f"the story does not go on within {WAITED_SECONDS_MAX:g} s")


def runs_of(node: SimulatedNode) -> set[str]:
    return set(node.storage.queue_store.manifest.files)


def test_what_a_deleted_topic_leaves_is_no_hole_where_no_node_has_it_any_more(tmp_path: Path) -> None:
    run = DeletedWithoutALeader(SEED, tmp_path, seconds=1.0, faults=["transfer"])
    run.play()
    queues = [run.cluster.history.queue(run.deleted.queue_id(number)) for number in range(run.deleted.partitions)]
    in_group = [queue for queue in queues if run.cluster.group_of(queue.queue_id) == run.group]
    assert in_group
    assert len(in_group) < len(queues)
    assert not any(queue.deleted for queue in in_group), "the log of the write group without a leader says it"
    assert all(queue.deleted for queue in queues if queue not in in_group)
