"""Metadata and the creation of topics behind it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.broker.harness import Fakes, call, make_broker, serving
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadata
from tests.harness.patience import PATIENCE_SECONDS
from tests.server.raw_client import RawClient

from mainstem.broker.admin.topic_admin import create_partitions, create_topic, delete_topics
from mainstem.broker.config import BrokerConfig
from mainstem.broker.handlers import metadata
from mainstem.broker.queue_routing import LISTED_SECONDS, STORAGE_LISTED_SECONDS
from mainstem.errors import ConfigError
from mainstem.model import Node, NodeRole, QueueRange, SharedBytes, Topic, queue_id_of
from mainstem.nameserver.errors import MetadataUnavailable, UnknownTopic
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray, elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.api_versions import ApiVersionsRequest
from mainstem.protocol.messages.metadata import (
    AUTHORIZED_OPERATIONS_UNKNOWN,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from mainstem.protocol.schema import ZERO_UUID


async def ask(
    fakes: Fakes, *names: str, version: int = 9, everything: bool = False, create: bool = True
) -> MetadataResponse:
    topics = None if everything else tuple(MetadataRequestTopic(name=name) for name in names)
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
    return await answer(fakes, request, version)


async def answer(fakes: Fakes, request: MetadataRequest, version: int) -> MetadataResponse:
    """As it arrives on the other side."""
    response = await metadata.handle(fakes.broker, request, call(version))
    return codec.read(MetadataResponse, version, codec.write(response, version))


@pytest.mark.parametrize("version", range(14))
def test_every_version_describes_nodes_and_topics(version: int) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t", partitions=2)
        response = await ask(fakes, "t", version=version)
        (node,) = response.brokers
        assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", 9092)
        assert response.cluster_id == ("fake-cluster" if version >= 2 else None)
        (found,) = elements(response.topics)
        topic_id = topic.topic_id if version >= 10 else ZERO_UUID
        assert (found.name, found.topic_id, found.error_code) == ("t", topic_id, ErrorCode.NONE)
        assert [(p.partition_index, p.leader_id, p.isr_nodes) for p in elements(found.partitions)] == [
            (0, 1, (1,)),
            (1, 1, (1,)),
        ]

    asyncio.run(scenario())


def test_all_topics_are_asked_for_by_null_or_in_version_0_by_nothing() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        await fakes.topic("a")
        await fakes.topic("b")
        assert [topic.name for topic in elements((await ask(fakes, everything=True)).topics)] == ["a", "b"]
        assert [topic.name for topic in elements((await ask(fakes, version=0)).topics)] == ["a", "b"]
        assert (await ask(fakes, version=1)).topics == ()

    asyncio.run(scenario())


def test_unknown_topics_are_created_with_the_nodes_defaults() -> None:
    async def scenario() -> None:
        fakes = make_broker(config=BrokerConfig(num_partitions=3))
        (found,) = elements((await ask(fakes, "new", "new")).topics)
        assert (found.error_code, len(elements(found.partitions))) == (ErrorCode.NONE, 3)
        assert len(fakes.store.queues) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize(("by_node", "by_client"), [(True, False), (False, True)])
def test_creation_can_be_switched_off_by_node_and_client(by_node: bool, by_client: bool) -> None:
    async def scenario() -> None:
        fakes = make_broker(config=BrokerConfig(auto_create_topics=by_node))
        (found,) = elements((await ask(fakes, "new", create=by_client)).topics)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert list(fakes.metadata.topics()) == []

    asyncio.run(scenario())


def test_an_unknown_topic_is_unknown_whatever_factors_the_cluster_has() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        fakes.metadata.nodes_known = [Node(node_id=number, host="127.0.0.1", port=9092) for number in (1, 2, 3)]
        fakes.metadata.factors = (3, 2)
        (found,) = elements((await ask(fakes, "new", create=False)).topics)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, "ü"])
def test_illegal_names_are_told_apart(name: str, create: bool) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        (found,) = elements((await ask(fakes, name, create=create)).topics)
        assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    asyncio.run(scenario())


def test_internal_topics_are_not_made_by_asking() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        (found,) = elements((await ask(fakes, "__consumer_offsets")).topics)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())


def test_one_request_creates_a_bounded_number_of_topics() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        names = [f"t{n}" for n in range(metadata.TOPICS_CREATED_MAX + 5)]
        for left in (5, 0):
            response = await ask(fakes, *names)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert sum(topic.error_code == unknown for topic in elements(response.topics)) == left

    asyncio.run(scenario())


def test_metadata_that_cannot_change_now_is_a_retriable_error() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        fakes.metadata.refuse = MetadataUnavailable("the disk is away")
        (found,) = elements((await ask(fakes, "new")).topics)
        assert ErrorCode.LEADER_NOT_AVAILABLE.retriable
        assert found.error_code == ErrorCode.LEADER_NOT_AVAILABLE

    asyncio.run(scenario())


def test_who_asks_for_a_topic_that_is_being_created_is_not_told_that_it_exists_already() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        async with fakes.broker.topic_changes.of(["t"]):  # by another client; it takes its time
            async with asyncio.timeout(PATIENCE_SECONDS):  # it would wait for ever
                (unknown,) = elements((await ask(fakes, "t", create=False)).topics)
            assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            created = asyncio.create_task(ask(fakes, "t"))
            await asyncio.sleep(0)  # it waits for its turn
            await fakes.topic("t", partitions=3)
        (found,) = elements((await created).topics)
        assert (found.error_code, len(elements(found.partitions))) == (ErrorCode.NONE, 3)

    asyncio.run(scenario())


def test_a_topic_that_appears_while_its_name_is_checked_is_described() -> None:
    class Racing(FakeMetadata):
        """Somebody else is always faster."""

        async def create_topic(self, name: str, *_: Any, **options: Any) -> Topic:
            await super().create_topic(name, 3, 1, {})
            return await super().create_topic(name, 3, 1, {}, **options)

    async def scenario() -> None:
        fakes = make_broker()
        fakes.broker.metadata = fakes.broker.metadata_admin = Racing()
        (found,) = elements((await ask(fakes, "t", create=False)).topics)
        assert (found.name, found.error_code) == ("t", ErrorCode.NONE)

    asyncio.run(scenario())


def test_topics_are_found_by_id_from_version_12() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t")
        asked = tuple(MetadataRequestTopic(topic_id=id, name=None) for id in (topic.topic_id, UUID(int=1)))
        response = await answer(fakes, MetadataRequest(topics=asked), 12)
        assert [(t.name, t.error_code) for t in elements(response.topics)] == [
            ("t", ErrorCode.NONE),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        response = await answer(fakes, MetadataRequest(topics=asked[:1]), 10)
        assert elements(response.topics)[0].error_code == ErrorCode.INVALID_REQUEST
        assert elements(response.topics)[0].topic_id == ZERO_UUID

    asyncio.run(scenario())


def test_a_partition_without_a_leader_says_so() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t", partitions=2)
        fakes.metadata.leaders[topic.queue_id(1)] = -1
        (found,) = elements((await ask(fakes, "t")).topics)
        assert [p.error_code for p in elements(found.partitions)] == [ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE]

    asyncio.run(scenario())


def test_a_cluster_of_several_nodes_is_described() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        fakes = make_broker(clock)
        fakes.metadata.nodes_known[:] = [Node(node_id=n, host="h", port=9000 + n) for n in (1, 2, 3)]
        fakes.metadata.metadata_leader = 2
        topic = await fakes.topic("t", partitions=3)
        for partition in range(3):
            queue_id = topic.queue_id(partition)
            fakes.metadata.leaders[queue_id] = partition + 1
            fakes.leadership.replica_nodes[queue_id] = (partition + 1, (partition + 1) % 3 + 1)
        response = await ask(fakes, "t")
        assert [node.node_id for node in response.brokers] == [1, 2, 3]
        assert response.controller_id == 2
        found = [(p.leader_id, p.replica_nodes, p.isr_nodes) for p in elements(elements(response.topics)[0].partitions)]
        assert found == [(1, (1, 2), (1, 2)), (2, (2, 3), (2, 3)), (3, (3, 1), (3, 1))]
        fakes.metadata.dead = {2}
        response = await ask(fakes, "t")
        assert [node.node_id for node in response.brokers] == [1, 3, 2], "it may come back"
        assert response.controller_id == 1, "changes are taken anywhere"
        described = elements(response.topics)[0].partitions
        assert [p.error_code for p in elements(described)] == [
            ErrorCode.NONE,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.NONE,
        ]
        assert [(p.leader_id, p.replica_nodes, p.isr_nodes, p.offline_replicas) for p in elements(described)] == [
            (1, (1, 2), (1,), (2,)),
            (-1, (2, 3), (3,), (2,)),
            (3, (3, 1), (3, 1), ()),
        ]
        clock.advance(STORAGE_LISTED_SECONDS)
        assert [node.node_id for node in (await ask(fakes, "t")).brokers] == [1, 3]

    asyncio.run(scenario())


def test_a_client_is_told_of_dead_nodes_by_the_name_that_it_gave_on_its_connection() -> None:
    async def scenario() -> None:
        async with serving() as node:
            node.metadata.nodes_known[:] = [Node(node_id=n, host="h", port=9000 + n) for n in (1, 2, 3)]

            async def told(client: RawClient) -> set[int]:
                response = await client.call(MetadataRequest(topics=()), 9)
                return {broker.node_id for broker in response.brokers}

            sarama, other = await node.connect(), await node.connect()
            try:
                await sarama.call(ApiVersionsRequest(client_software_name="sarama", client_software_version="1"), 3)
                await other.call(ApiVersionsRequest(client_software_name="other", client_software_version="1"), 3)
                assert await told(sarama) == await told(other) == {1, 2, 3}
                node.metadata.dead = {2}
                assert await told(sarama) == {1, 3}, "it would go on asking the replica that it read from"
                assert await told(other) == {1, 2, 3}
            finally:
                await sarama.close()
                await other.close()

    asyncio.run(scenario())


def test_the_queues_of_a_broker_that_goes_move_before_it_is_no_longer_listed() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        fakes = make_broker(clock)
        apart = frozenset({NodeRole.BROKER})
        stores = Node(node_id=1, host="h", port=9001)
        fakes.metadata.nodes_known[:] = [
            stores,
            *(Node(node_id=n, host="h", port=9000 + n, roles=apart) for n in (4, 5)),
        ]
        await fakes.topic("t", partitions=8)

        async def described() -> tuple[list[int], set[int]]:
            response = await ask(fakes, "t")
            partitions = elements(elements(response.topics)[0].partitions)
            return [node.node_id for node in response.brokers], {p.leader_id for p in partitions}

        assert await described() == ([1, 4, 5], {4, 5})
        fakes.metadata.dead = {4}
        assert await described() == ([1, 5, 4], {5})
        clock.advance(LISTED_SECONDS)
        assert await described() == ([1, 5], {5})

    asyncio.run(scenario())


def test_authorized_operations_are_listed_when_asked_for() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        await fakes.topic("t")
        request = MetadataRequest(
            topics=None,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        response = await answer(fakes, request, 9)
        assert response.cluster_authorized_operations & 1 << 5
        assert elements(response.topics)[0].topic_authorized_operations & 1 << 3
        plain = await ask(fakes, "t")
        assert plain.cluster_authorized_operations == AUTHORIZED_OPERATIONS_UNKNOWN

    asyncio.run(scenario())


def test_topics_and_their_queues_come_grow_and_go_together() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        await create_topic(fakes.broker, "checked", 2, 1, {}, validate_only=True)
        assert (list(fakes.metadata.topics()), fakes.store.queues) == ([], {})
        topic = await create_topic(fakes.broker, "t", 2, 1, {})
        assert set(fakes.store.queues) == {topic.queue_id(0), topic.queue_id(1)}
        await create_partitions(fakes.broker, "t", 5, validate_only=True)
        assert len(fakes.store.queues) == 2
        await create_partitions(fakes.broker, "t", 4)
        assert set(fakes.store.queues) == {queue_id_of(topic.number, n) for n in range(4)}
        await delete_topics(fakes.broker, ["t"])
        assert (list(fakes.metadata.topics()), fakes.store.queues) == ([], {})
        (refusal,) = await delete_topics(fakes.broker, ["t"])
        assert isinstance(refusal, UnknownTopic)

    asyncio.run(scenario())


def test_the_configuration_is_checked() -> None:
    BrokerConfig().validate()
    with pytest.raises(ConfigError, match="num_partitions = 0"):
        BrokerConfig(num_partitions=0).validate()


def test_all_topics_are_encoded_once_for_all_who_ask_and_anew_when_something_changes() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        for number in range(5):
            await fakes.topic(f"t{number}", partitions=300)
        broker = fakes.broker

        async def ask(version: int = 9, **how: bool) -> MetadataResponse:
            return await metadata.handle(broker, MetadataRequest(topics=None, **how), call(version))

        def encoded(answer: MetadataResponse) -> object:
            assert isinstance(answer.topics, EncodedArray)
            assert all(type(part) is SharedBytes for part in answer.topics.buffers)
            return answer.topics

        first, *others = await asyncio.gather(*(ask() for _ in range(50)))
        assert broker.all_topics.encodings == 1
        assert all(encoded(answer) is encoded(first) for answer in others)
        assert len(elements(codec.read(MetadataResponse, 9, codec.write(first, 9)).topics)) == 5
        await asyncio.gather(*(ask(12) for _ in range(10)), ask(9, include_topic_authorized_operations=True))
        assert broker.all_topics.encodings == 3
        await ask()
        assert broker.all_topics.encodings == 3
        await fakes.topic("new")
        named = codec.read(MetadataResponse, 9, codec.write(await ask(), 9)).topics
        assert {topic.name for topic in elements(named)} == {"t0", "t1", "t2", "t3", "t4", "new"}
        queue_id = (await fakes.metadata.create_topic("led", 1, 1, {})).queue_id(0)
        await fakes.store.create([QueueRange(queue_id >> 32, 0, 1)])
        await ask()
        count = broker.all_topics.encodings
        fakes.leadership.replica_nodes[queue_id] = (1, 2)
        await ask()
        fakes.metadata.nodes_known.append(Node(node_id=2, host="b", port=2))
        await ask()
        await ask()
        assert broker.all_topics.encodings == count + 2

    asyncio.run(scenario())
