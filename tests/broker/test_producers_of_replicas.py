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
from mainstem.node.broker_role.broker_calls import ASK_SECONDS_MAX
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

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def write(self, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        raise AssertionError("no transaction ends here")

    async def producers(self, queue_ids: Sequence[int]) -> list[list[ActiveProducer] | Outcome]:
        self.asked.append(list(queue_ids))
        return [[PRODUCER] for _ in queue_ids]


class TheOther:
    """`BrokerCalls` to the nodes that coordinate the groups, of this version or of an older one."""

    def __init__(self) -> None:
        self.is_older = False
        self.untold: set[int] = set()
        """Partitions that the answer does not have."""
        self.answers_after = 1
        """So many nodes have to be asked before any of them answers."""
        self.asked: dict[int, list[int]] = {}
        """Partitions by node."""
        self._enough = asyncio.Event()

    async def ask(self, node_id: int, api_key: int, version: int, body: bytes) -> bytes:
        if self.is_older:
            raise NotServed("DescribeProducers is not served between nodes")
        [topic] = codec.read(DescribeProducersRequest, version, body).topics
        self.asked.setdefault(node_id, []).extend(topic.partition_indexes)
        if len(self.asked) >= self.answers_after:
            self._enough.set()
        try:
            await asyncio.wait_for(self._enough.wait(), ASK_SECONDS_MAX)
        except TimeoutError as error:
            raise NotServed("the others are not asked meanwhile") from error
        partitions = tuple(
            DescribeProducersPartitionResponse(
                partition_index=index, error_code=0, error_message=None, active_producers=(PENDING,)
            )
            for index in topic.partition_indexes
            if index not in self.untold
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
    [[(_index, code, producers)]] = await all_described(fakes, (name, (0,)))
    return code, producers


async def all_described(
    fakes: Fakes, *topics: tuple[str, Sequence[int]]
) -> list[list[tuple[int, ErrorCode, list[int]]]]:
    """For each topic the rows of its partitions: index, error, producers."""
    asked = tuple(DescribeProducersTopic(name=name, partition_indexes=tuple(indexes)) for name, indexes in topics)
    answer: Any = await describe_producers.handle(fakes.broker, DescribeProducersRequest(topics=asked), call(0))
    assert [topic.name for topic in answer.topics] == [name for name, _ in topics]
    return [
        [
            (row.partition_index, ErrorCode(row.error_code), [each.producer_id for each in row.active_producers])
            for row in topic.partitions
        ]
        for topic in answer.topics
    ]


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


def test_leaders_are_asked_once_about_all_partitions_however_often_these_are_named() -> None:
    async def story(fakes: Fakes, other: TheOther) -> None:
        several = await fakes.topic("several", 3)
        fakes.metadata.leaders = dict.fromkeys(fakes.store.queues, OTHER)
        fakes.leadership.replica_nodes = dict.fromkeys(fakes.store.queues, (OTHER, 1))
        fakes.leadership.replica_nodes[several.queue_id(1)] = (OTHER, STRANGER)
        found = (ErrorCode.NONE, [PRODUCER.producer_id])
        assert await all_described(fakes, ("several", (2, 0, 1, 7, 2)), ("t", (0,)), ("none", (0,))) == [
            [
                (2, *found),
                (0, *found),
                (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, []),
                (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
                (2, *found),
            ],
            [(0, *found)],
            [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])],
        ]
        t = fakes.metadata.topic("t")
        assert t is not None
        markers = cast(ToldByLeaders, fakes.broker.markers)
        assert markers.asked == [[several.queue_id(2), several.queue_id(0), t.queue_id(0)]]

    told(story)


def test_coordinators_are_asked_at_the_same_time_each_once() -> None:
    async def story(fakes: Fakes, other: TheOther) -> None:
        fakes.metadata.nodes_known.append(Node(node_id=STRANGER, host="three", port=9092))
        fakes.leadership.replica_nodes = dict.fromkeys(fakes.store.queues, (OTHER, 1))
        topic = fakes.metadata.topic(OFFSETS_TOPIC)
        assert topic is not None
        for index in (1, 3):
            fakes.metadata.leaders[topic.queue_id(index)] = STRANGER
        other.answers_after = 2
        found = (ErrorCode.NONE, [PENDING.producer_id])
        [rows] = await all_described(fakes, (OFFSETS_TOPIC, (0, 1, 2, 3, 1)))
        assert rows == [(index, *found) for index in (0, 1, 2, 3, 1)]
        assert other.asked == {OTHER: [0, 2], STRANGER: [1, 3]}

    told(story)


def test_a_partition_that_the_coordinator_does_not_tell_of_is_refused() -> None:
    async def story(fakes: Fakes, other: TheOther) -> None:
        fakes.leadership.replica_nodes = dict.fromkeys(fakes.store.queues, (OTHER, 1))
        other.untold = {1}
        assert await all_described(fakes, (OFFSETS_TOPIC, (0, 1))) == [
            [(0, ErrorCode.NONE, [PENDING.producer_id]), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
        ]
        other.untold = {0, 1}
        assert await described(fakes, OFFSETS_TOPIC) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])

    told(story)
