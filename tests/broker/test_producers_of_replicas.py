"""DescribeProducers of a node that follows: it tells what the leader knows, or the coordinator of the groups, which are
other nodes. Kafka's tool for hanging transactions asks each broker about all replicas that it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from tests.broker.harness import Fakes, call, make_broker
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.broker import BrokerTransactions
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.handlers import describe_producers
from mainstem.broker.transactions.transaction_coordinator import TransactionCoordinator
from mainstem.broker.transactions.verification import CoordinatorVerification
from mainstem.model import ActiveProducer, Node, Outcome, TransactionMarker
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.transaction_administration import (
    DescribedProducer,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeProducersTopicResponse,
)
from mainstem.rpc.errors import NotServed

PRODUCER = ActiveProducer(
    producer_id=7, producer_epoch=2, last_sequence=5, last_timestamp_ms=1_000, transaction_start=3
)
PENDING = DescribedProducer(
    producer_id=8, producer_epoch=1, last_timestamp=2_000, coordinator_epoch=-1, current_txn_start_offset=0
)
OTHER, STRANGER = 2, 3


class ToldByLeaders:
    """`TransactionMarkers`, as far as they tell of producers."""

    async def write(self, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        raise AssertionError("no transaction ends here")

    async def producers(self, queue_ids: Sequence[int]) -> list[list[ActiveProducer] | Outcome]:
        return [[PRODUCER] for _ in queue_ids]


class TheOther:
    """`BrokerCalls` to the node that coordinates the groups, of this version or of an older one."""

    def __init__(self) -> None:
        self.is_older = False

    async def ask(self, node_id: int, api_key: int, version: int, body: bytes) -> bytes:
        assert node_id == OTHER
        if self.is_older:
            raise NotServed("DescribeProducers is not served between nodes")
        [topic] = codec.read(DescribeProducersRequest, version, body).topics
        partitions = tuple(
            DescribeProducersPartitionResponse(
                partition_index=index, error_code=0, error_message=None, active_producers=(PENDING,)
            )
            for index in topic.partition_indexes
        )
        answer = DescribeProducersTopicResponse(name=topic.name, partitions=partitions)
        return codec.write(DescribeProducersResponse(topics=(answer,)), version)


def told(story: Callable[[Fakes, TheOther], Awaitable[None]]) -> None:
    """Node 1, and all queues are led by node 2."""

    async def all_of_it() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        fakes, other = make_broker(loop), TheOther()
        fakes.metadata.nodes_known.append(Node(node_id=OTHER, host="two", port=9092))
        fakes.broker.markers = ToldByLeaders()
        fakes.broker.transactions = BrokerTransactions(
            cast(TransactionCoordinator, None), cast(CoordinatorVerification, None), other
        )
        await fakes.topic()
        fakes.broker.groups.served.start()
        try:
            await fakes.broker.groups.leader_of("g")  # which makes the topic
            fakes.metadata.leaders = dict.fromkeys(fakes.store.queues, OTHER)
            await story(fakes, other)
        finally:
            await fakes.broker.groups.served.close()

    loop = SimulatedLoop()
    try:
        loop.run_until_complete(all_of_it())
    finally:
        loop.close()


async def described(fakes: Fakes, name: str) -> tuple[ErrorCode, list[int]]:
    request = DescribeProducersRequest(topics=(DescribeProducersTopic(name=name, partition_indexes=(0,)),))
    answer: Any = await describe_producers.handle(fakes.broker, request, call(0))
    [[row]] = [topic.partitions for topic in answer.topics]
    return ErrorCode(row.error_code), [each.producer_id for each in row.active_producers]


def test_a_replica_tells_what_the_leader_knows() -> None:
    async def story(fakes: Fakes, other: TheOther) -> None:
        fakes.leadership.replica_nodes = dict.fromkeys(fakes.store.queues, (OTHER, 1))
        assert await described(fakes, "t") == (ErrorCode.NONE, [PRODUCER.producer_id])

    told(story)


def test_a_replica_of_committed_offsets_asks_their_coordinator() -> None:
    async def story(fakes: Fakes, other: TheOther) -> None:
        fakes.leadership.replica_nodes = dict.fromkeys(fakes.store.queues, (OTHER, 1))
        assert await described(fakes, OFFSETS_TOPIC) == (ErrorCode.NONE, [PENDING.producer_id])
        other.is_older = True
        assert await described(fakes, OFFSETS_TOPIC) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])

    told(story)


def test_a_node_without_a_replica_sends_to_another() -> None:
    async def story(fakes: Fakes, other: TheOther) -> None:
        fakes.leadership.replica_nodes = dict.fromkeys(fakes.store.queues, (OTHER, STRANGER))
        for name in ("t", OFFSETS_TOPIC):
            assert await described(fakes, name) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])

    told(story)
