"""Clients of a listener are told where that listener is, on every node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.broker import test_produce
from tests.broker.fetching.test_fetch import Ask
from tests.broker.fetching.test_fetch import request_for as fetch_request_for
from tests.broker.harness import Fakes, batch, make_broker
from tests.fakes.clock import LoopClock
from tests.server.raw_client import RawClient

from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.model import ListenerAddress, Node
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_cluster import DescribeClusterRequest
from mainstem.protocol.messages.group_membership import FindCoordinatorRequest
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.server.config import ServerConfig
from mainstem.server.kafka_server import KafkaServer
from mainstem.server.listener_config import ListenerConfig

NODES = [
    Node(
        node_id=number,
        host=f"in{number}",
        port=9092,
        endpoints=(ListenerAddress("INSIDE", f"in{number}", 9092), ListenerAddress("OUTSIDE", f"out{number}", 9094)),
    )
    for number in (1, 2)
]
INSIDE_ONLY = Node(node_id=3, host="in3", port=9092, endpoints=(ListenerAddress("INSIDE", "in3", 9092),))
BEFORE = Node(node_id=4, host="in4", port=9092)
"""A node that has not said where its listeners are."""


@asynccontextmanager
async def two_listeners() -> AsyncIterator[tuple[Fakes, RawClient, RawClient]]:
    """A broker among several, and a client by each of its listeners."""
    listeners = {name: ListenerConfig(listen="127.0.0.1:0", protocol="PLAINTEXT") for name in ("INSIDE", "OUTSIDE")}
    clock = LoopClock()
    fakes = make_broker(clock)
    fakes.metadata.nodes_known[:] = [*NODES, INSIDE_ONLY, BEFORE]
    async with BrokerDispatcher(fakes.broker) as dispatcher:
        server = KafkaServer(ServerConfig(listen=(), listeners=listeners, shutdown_ms_max=50), clock)
        server.bind()
        fakes.broker.groups.served.start()
        await server.start(dispatcher)
        inside, outside = [await RawClient.connect(address) for address in server.addresses]
        try:
            yield fakes, inside, outside
        finally:
            await inside.close()
            await outside.close()
            await server.close()
            await fakes.broker.groups.served.close()


def test_metadata_and_the_cluster_have_the_nodes_that_have_the_listener_at_its_addresses() -> None:
    async def scenario() -> None:
        async with two_listeners() as (fakes, inside, outside):
            fakes.metadata.metadata_leader = 3
            topic = await fakes.topic(partitions=3)
            for partition in range(3):
                fakes.metadata.leaders[topic.queue_id(partition)] = partition + 1
                fakes.leadership.replica_nodes[topic.queue_id(partition)] = (partition + 1,)
            for client, name, numbers, controller in ((inside, "in", (1, 2, 3), 3), (outside, "out", (1, 2), 1)):
                expected = [(number, f"{name}{number}") for number in numbers]
                found = await client.call(MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), 12)
                assert [(node.node_id, node.host) for node in found.brokers] == expected
                assert found.controller_id == controller
                (described,) = found.topics
                reached = [part.error_code == ErrorCode.NONE for part in described.partitions]
                assert reached == [number in numbers for number in (1, 2, 3)]
                cluster = await client.call(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
                assert [(node.broker_id, node.host) for node in cluster.brokers] == expected

    asyncio.run(scenario())


def test_a_coordinator_is_found_where_the_listener_is() -> None:
    async def scenario() -> None:
        async with two_listeners() as (_, inside, outside):
            for client, host in ((inside, "in1"), (outside, "out1")):
                while (found := await client.call(FindCoordinatorRequest(key="group"), 3)).error_code:
                    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                    await asyncio.sleep(0.01)
                assert found.host == host

    asyncio.run(scenario())


def test_clients_that_ask_the_wrong_node_are_sent_to_the_listener_that_they_know() -> None:
    async def scenario() -> None:
        async with two_listeners() as (fakes, inside, outside):
            topic = await fakes.topic()
            fakes.metadata.leaders[topic.queue_id(0)] = 2
            fakes.store.led_elsewhere.add(topic.queue_id(0))
            for client, host in ((inside, "in2"), (outside, "out2")):
                written = await client.call(test_produce.request_for(topic, batch(b"a")), 10)
                assert [node.host for node in written.node_endpoints] == [host]
                read = await client.call(fetch_request_for(topic.topic_id, Ask(0)), 16)
                assert [node.host for node in read.node_endpoints] == [host]

    asyncio.run(scenario())


def test_where_no_node_has_said_where_a_listener_is_clients_get_the_first_address_of_all() -> None:
    async def scenario() -> None:
        async with two_listeners() as (fakes, _, outside):
            fakes.metadata.nodes_known[:] = [BEFORE]
            found = await outside.call(MetadataRequest(topics=()), 12)
            assert [node.host for node in found.brokers] == ["in4"]

    asyncio.run(scenario())
