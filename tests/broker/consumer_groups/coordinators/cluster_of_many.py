"""Coordinators of several nodes over one moving storage, on simulated time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tests.fakes.metadata import FakeMetadata
from tests.fakes.moving_store import MovingStore, NodeStore
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions, at_once
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.request_context import RequestContext
from mainstem.model import FeatureLevel, Node
from mainstem.ports import Session
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup

T = TypeVar("T")

NODES = (1, 2, 3)
CALL = RequestContext(version=8, client_id="c", session=Session("10.0.0.1", 5, 1))
CONFIG = ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=4)


class ClusterOfMany:
    """Node 1 leads everything at first."""

    def __init__(self, loop: SimulatedLoop, seed: int, config: ConsumerGroupsConfig) -> None:
        self.random = random.Random(seed)
        self.metadata = FakeMetadata([Node(node_id=node_id, host="h", port=9000 + node_id) for node_id in NODES])
        self.metadata.add_topic("flights")
        self.metadata_current: Callable[[], Awaitable[None]] = at_once
        self.levels: dict[int, FeatureLevel] = {}
        """By node, where it is not the newest."""
        self.commit_seconds = 0.0
        self.store = MovingStore(loop, 2, NODES, lambda: self.commit_seconds)
        uniques = itertools.count(1)
        self.coordinators: dict[int, ConsumerGroupCoordinator] = {}
        for node_id in NODES:
            view = NodeStore(self.store, node_id)
            node = ServingNode(
                node_id=node_id,
                metadata=self.metadata,
                metadata_admin=self.metadata,
                leadership=view,
                routing=QueueRouting(node_id, self.metadata, view, apart=False),
                store=view,
                queue_admin=view,
                clock=loop,
                feature_level=partial(self._level_of, node_id),
            )
            served = ServedPartitions(
                node,
                config,
                new_id=lambda: f"{next(uniques):04}",
                metadata_current=lambda: self.metadata_current(),
            )
            self.coordinators[node_id] = ConsumerGroupCoordinator(served)
            self.store.told[node_id] = served.serving_changed

    def _level_of(self, node_id: int) -> FeatureLevel:
        return self.levels.get(node_id, FeatureLevel.newest())

    def queue_of(self, group: str) -> int:
        topic = self.metadata.topic(OFFSETS_TOPIC)
        assert topic is not None
        return topic.queue_id(coordinator_partition_of(group, topic.partitions))

    def write_group_of(self, group: str) -> int:
        return self.store.group_of(self.queue_of(group))

    async def coordinator(self, group: str) -> ConsumerGroupCoordinator:
        """As a client finds it: any node knows."""
        while True:
            node_id = await self.coordinators[self.random.choice(NODES)].leader_of(group)
            if node_id >= 0:
                return self.coordinators[node_id]
            await asyncio.sleep(0.05)

    async def settled(self, group: str) -> ConsumerGroupCoordinator:
        """The coordinator of a group, once it is loaded."""
        while True:
            coordinator = await self.coordinator(group)
            fetched = await coordinator.offsets.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=None))
            if fetched.error_code == ErrorCode.NONE:
                return coordinator
            await asyncio.sleep(0.05)


def simulated(
    story: Callable[[ClusterOfMany], Awaitable[T]], seed: int = 1, config: ConsumerGroupsConfig = CONFIG
) -> T:
    """Run a story on a fresh cluster; it must be over within a simulated day."""
    loop = SimulatedLoop()

    async def told() -> Any:
        cluster = ClusterOfMany(loop, seed, config)
        for coordinator in cluster.coordinators.values():
            coordinator.served.start()
        try:
            async with asyncio.timeout(86_400):
                return await story(cluster)
        finally:
            for coordinator in cluster.coordinators.values():
                await coordinator.served.close()

    try:
        result: T = loop.run_until_complete(told())
        assert not asyncio.all_tasks(loop)
        return result
    finally:
        loop.close()


async def commit(coordinator: ConsumerGroupCoordinator, group: str, offset: int) -> ErrorCode:
    item = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
    request = OffsetCommitRequest(
        group_id=group, topics=(OffsetCommitRequestTopic(name="flights", partitions=(item,)),)
    )
    response = await coordinator.offsets.commit_offsets(request, CALL)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def fetch(coordinator: ConsumerGroupCoordinator, group: str) -> int | ErrorCode:
    """The committed offset, -1 for none."""
    response = await coordinator.offsets.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=None))
    if response.error_code:
        return ErrorCode(response.error_code)
    return next((item.committed_offset for topic in response.topics for item in topic.partitions), -1)
