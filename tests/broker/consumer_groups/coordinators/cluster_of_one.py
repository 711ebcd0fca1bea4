"""A coordinator on a memory store, on simulated time: whole minutes pass in microseconds.

The loop sleeps by moving its clock to the next timer, so that everything is deterministic.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.broker.serving_node_of import serving_node_of
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.machines.serving_node import ServingNode

T = TypeVar("T")


class ClusterOfOne:
    """The parts that survive a restart (store, metadata), and the coordinator of the day."""

    def __init__(self, loop: SimulatedLoop, config: ConsumerGroupsConfig) -> None:
        self.clock = loop
        self.config = config
        self.store = MemoryStore(loop)
        self.metadata = FakeMetadata()
        self.metadata.add_topic("flights")
        self._uniques = itertools.count(1)
        self.groups = self.new_coordinator()

    def new_coordinator(self) -> ConsumerGroupCoordinator:
        served = ServedPartitions(self.node, self.config, new_id=lambda: f"{next(self._uniques):04}")
        return ConsumerGroupCoordinator(served)

    @property
    def node(self) -> ServingNode:
        return serving_node_of(self.metadata, self.leadership, self.store, self.clock)

    @property
    def leadership(self) -> FakeLeadership:
        return FakeLeadership(self.metadata, self.store)

    async def restart(self) -> None:
        await self.groups.served.close()
        self.groups = self.new_coordinator()
        self.groups.served.start()


def simulated(story: Callable[[ClusterOfOne], Awaitable[T]], config: ConsumerGroupsConfig | None = None) -> T:
    """Run a story on a fresh cluster; it must be over within a simulated day."""
    loop = SimulatedLoop()

    async def told() -> Any:
        cluster = ClusterOfOne(loop, config or ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=2))
        cluster.groups.served.start()
        try:
            async with asyncio.timeout(86_400):
                return await story(cluster)
        finally:
            await cluster.groups.served.close()

    try:
        result: T = loop.run_until_complete(told())
        assert not asyncio.all_tasks(loop)
        return result
    finally:
        loop.close()
