"""A broker over the fakes, by itself or behind a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from tests.broker.serving_node_of import serving_node_of
from tests.broker.share_groups_of import share_groups_of
from tests.fakes.access.acls import MemoryAcls
from tests.fakes.clock import FakeClock, LoopClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.server.raw_client import RawClient

from mainstem.broker.broker import Broker
from mainstem.broker.config import BrokerConfig
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.broker.dispatch.routes import ROUTES, Route
from mainstem.broker.fetching.fetch_sessions import FetchSessions
from mainstem.broker.request_context import RequestContext
from mainstem.broker.throttling import Throttling
from mainstem.model import Node, QueueRange, Topic
from mainstem.ports import Clock, Session
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.security.quotas.quota_table import QuotaTable
from mainstem.server.config import ServerConfig
from mainstem.server.kafka_server import KafkaServer

SESSION = Session("127.0.0.1", 40_000, 1)


@dataclass
class Fakes:
    """A broker and what it stands on."""

    broker: Broker
    store: MemoryStore
    metadata: FakeMetadata
    leadership: FakeLeadership

    async def topic(self, name: str = "t", partitions: int = 1, **configs: str) -> Topic:
        """Create a topic; underscores in config names stand for dots."""
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        topic = await self.metadata.create_topic(name, partitions, 1, dotted)
        await self.store.create([QueueRange(topic.number, 0, partitions)])
        return topic


def make_broker(
    clock: Clock | None = None, config: BrokerConfig | None = None, groups: ConsumerGroupsConfig | None = None
) -> Fakes:
    clock = clock or FakeClock()
    config = config or BrokerConfig()
    config.validate()
    store = MemoryStore(clock)
    metadata = FakeMetadata()
    leadership = FakeLeadership(metadata, store)
    node = serving_node_of(metadata, leadership, store, clock)
    broker = Broker(
        node_id=1,
        config=config,
        metadata=metadata,
        metadata_admin=metadata,
        cluster=metadata,
        store=store,
        leadership=leadership,
        queue_admin=store,
        groups=ConsumerGroupCoordinator(ServedPartitions(node, groups or ConsumerGroupsConfig())),
        shares=share_groups_of(node),
        clock=clock,
        fetch_sessions=FetchSessions(
            sessions_max=config.fetch_sessions_max,
            idle_ms_min=config.fetch_session_idle_ms_min,
            partitions_max=config.fetch_session_partitions_max,
            random=Random(1),
        ),
    )
    return Fakes(broker, store, metadata, leadership)


def call(version: int) -> RequestContext:
    return RequestContext(version, "test", SESSION)


@dataclass
class Serving(Fakes):
    server: KafkaServer
    dispatcher: BrokerDispatcher

    async def connect(self) -> RawClient:
        return await RawClient.connect(self.server.addresses[0])


@asynccontextmanager
async def serving(
    config: BrokerConfig | None = None,
    routes: Iterable[Route] = ROUTES,
    acls: MemoryAcls | None = None,
    quotas: QuotaTable | None = None,
    groups: ConsumerGroupsConfig | None = None,
) -> AsyncIterator[Serving]:
    """A broker behind a server on a free port of 127.0.0.1. With `acls` it has an authorizer that goes by them, with
    `quotas` its clients are held to these."""
    clock = LoopClock()
    fakes = make_broker(clock, config, groups)
    if acls is not None:
        fakes.broker.authorizer, fakes.broker.acl_admin = acls.authorizer(), acls
    if quotas is not None:
        fakes.broker.throttling = Throttling(lambda: quotas, clock)
    async with BrokerDispatcher(fakes.broker, routes) as dispatcher:
        server = KafkaServer(ServerConfig(listen=("127.0.0.1:0",), shutdown_ms_max=50), clock)
        server.bind()
        host, port = server.advertised
        fakes.metadata.nodes_known[:] = [Node(node_id=1, host=host, port=port)]
        fakes.broker.groups.served.start()
        fakes.broker.shares.served.start()
        await server.start(dispatcher, dispatcher.may_connect)
        try:
            yield Serving(fakes.broker, fakes.store, fakes.metadata, fakes.leadership, server, dispatcher)
        finally:
            await server.close()
            await fakes.broker.groups.served.close()
            await fakes.broker.shares.served.close()


def batch(*values: bytes, timestamp: int = 1000, key: bytes | None = None) -> bytes:
    """A plain batch of these values, one millisecond apart."""
    records = [NewRecord(timestamp=timestamp + n, key=key, value=value) for n, value in enumerate(values)]
    return bytes(build_batch(records).data)
