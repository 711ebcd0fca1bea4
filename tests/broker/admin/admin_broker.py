"""A broker over fakes, and requests that travel through the codec in every version there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar, cast

from tests.broker.serving_node_of import serving_node_of
from tests.broker.share_groups_of import share_groups_of
from tests.fakes.clock import FakeClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata

from mainstem.broker.broker import Broker, NodeFacts
from mainstem.broker.config import BrokerConfig
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.fetching.fetch_sessions import FetchSessions
from mainstem.broker.request_context import RequestContext
from mainstem.model import BatchAppend, QueueRange, Topic
from mainstem.ports import Session
from mainstem.protocol.codec import read, write
from mainstem.protocol.schema import declaration_of

Response = TypeVar("Response")


class ForgettingGroups:
    """The one thing admin handlers ask of the consumer group coordinator."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    async def forget_topic(self, topic: Topic) -> None:
        self.forgotten.append(topic.name)


class AdminBroker:
    """A broker and the fakes behind it. Every call is one event loop."""

    def __init__(self, facts: NodeFacts | None = None, config: BrokerConfig | None = None) -> None:
        self.metadata = FakeMetadata()
        self.store = MemoryStore()
        self.leadership = FakeLeadership(self.metadata, self.store)
        self.groups = ForgettingGroups()
        self.broker = Broker(
            node_id=1,
            config=config or BrokerConfig(),
            metadata=self.metadata,
            metadata_admin=self.metadata,
            cluster=self.metadata,
            store=self.store,
            leadership=self.leadership,
            queue_admin=self.store,
            groups=cast(ConsumerGroupCoordinator, self.groups),
            shares=share_groups_of(serving_node_of(self.metadata, self.leadership, self.store, FakeClock())),
            clock=FakeClock(),
            fetch_sessions=FetchSessions(sessions_max=10, idle_ms_min=1000, partitions_max=1000, random=Random(1)),
            facts=facts or NodeFacts(),
        )

    def ask(
        self,
        handle: Callable[[Broker, Any, RequestContext], Awaitable[Response]],
        request: Any,
        version: int | None = None,
    ) -> Response:
        """Request and response as they arrive on the other side; by default in the newest version."""
        if version is None:
            version = declaration_of(type(request)).versions.last
        received = read(type(request), version, write(request, version))
        call = RequestContext(version, "test", Session("127.0.0.1", 1, 1))

        async def answer() -> Response:
            return await handle(self.broker, received, call)

        response = asyncio.run(answer())
        return read(type(response), version, write(response, version))

    def create(self, name: str, partitions: int = 1, **options: Any) -> None:
        async def create() -> None:
            configs = options.pop("configs", {})
            topic = await self.metadata.create_topic(name, partitions, 1, configs, **options)
            await self.store.create([QueueRange(topic.number, 0, partitions)])

        asyncio.run(create())

    def append(self, name: str, partition: int, batches: int) -> None:
        """Batches of one record each; 100 bytes that only look like a batch from the outside."""

        async def append() -> None:
            topic = self.metadata.topic(name)
            assert topic is not None
            queue_id = topic.queue_id(partition)
            batch = BatchAppend(queue_id, memoryview(bytes(100)), 1, 0, 0, -1, -1, -1, 0, 0)
            await self.store.append([batch] * batches, -1)

        asyncio.run(append())


def versions_of(request_class: type[Any]) -> range:
    versions = declaration_of(request_class).versions
    return range(versions.first, versions.last + 1)
