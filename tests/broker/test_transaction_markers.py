"""WriteTxnMarkers and DescribeProducers over real sockets, against the storage of a node: what they say and do, and the
errors that Kafka has for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.broker.test_transactions import READ_COMMITTED, aborted, fetched, produce, transactional
from tests.server.raw_client import RawClient
from tests.server.scripted import run
from tests.storage.queues.test_transactions import part_of_transaction
from tests.storage.small_node import QUEUE, new_batch

from mainstem.model import FeatureLevel
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.transaction_administration import (
    DescribedProducer,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

Codes = dict[tuple[int, str, int], int]
"""By producer, topic and partition."""

MARKERS_VERSIONS = (1, 2)


def marker(
    producer: tuple[int, int], *, commit: bool, coordinator_epoch: int = 3, **topics: Sequence[int]
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=commit,
        topics=tuple(WritableTxnMarkerTopic(name=name, partition_indexes=tuple(topics[name])) for name in topics),
        coordinator_epoch=coordinator_epoch,
        transaction_version=0,
    )


async def write(client: RawClient, *markers: WritableTxnMarker, version: int = 2) -> Codes:
    answer = await client.call(WriteTxnMarkersRequest(markers=markers), version)
    return {
        (one.producer_id, topic.name, result.partition_index): result.error_code
        for one in answer.markers
        for topic in one.topics
        for result in topic.partitions
    }


async def describe(client: RawClient, name: str, index: int) -> DescribeProducersPartitionResponse:
    asked = DescribeProducersTopic(name=name, partition_indexes=(index,))
    answer = await client.call(DescribeProducersRequest(topics=(asked,)), 0)
    ((found,),) = [topic.partitions for topic in answer.topics]
    assert isinstance(found, DescribeProducersPartitionResponse)
    assert found.partition_index == index
    return found


def told(found: DescribeProducersPartitionResponse) -> list[tuple[int, int, int, int, int]]:
    assert found.error_code == ErrorCode.NONE
    assert found.error_message is None
    return [state(one) for one in found.active_producers]


def state(one: DescribedProducer) -> tuple[int, int, int, int, int]:
    """All but the time."""
    assert one.last_timestamp > 0
    return (
        one.producer_id,
        one.producer_epoch,
        one.last_sequence,
        one.coordinator_epoch,
        one.current_txn_start_offset,
    )


def test_markers_end_transactions_and_producers_are_described(tmp_path: Path) -> None:
    async def story() -> None:
        async with transactional(tmp_path) as (node, kafka, _topic, _coordinator):
            kafka.broker.markers = node.storage.markers
            client = await kafka.connect()
            assert told(await describe(client, "t", 0)) == []
            assert await produce(client, bytes(new_batch(QUEUE, 10, producer=(5, 0, 0), records=2).data), 9, None) == 0
            assert await produce(client, bytes(part_of_transaction(QUEUE, (7, 0, 0), 2).data), 9) == 0
            assert await produce(client, bytes(part_of_transaction(QUEUE, (8, 4, 0)).data), 12) == 0
            before = [(5, 0, 1, -1, -1), (7, 0, 1, -1, 2), (8, 4, 0, -1, 4)]
            assert told(await describe(client, "t", 0)) == before
            assert told(await describe(client, "t", 1)) == []

            # several producers at once, and a partition without a batch of the transaction
            codes = await write(client, marker((7, 0), commit=True, t=(0, 1)), marker((8, 5), commit=False, t=(0,)))
            assert codes == {(7, "t", 0): 0, (7, "t", 1): 0, (8, "t", 0): 0}
            after = [(5, 0, 1, -1, -1), (7, 0, 1, 3, -1), (8, 5, -1, 3, -1)]
            assert told(await describe(client, "t", 0)) == after
            assert told(await describe(client, "t", 1)) == [(7, 0, -1, 3, -1)]
            part = await fetched(client, READ_COMMITTED)
            assert (part.last_stable_offset, part.high_watermark) == (7, 7)
            assert aborted(part) == [(8, 4)]

            # the same once more: nothing is added, in either version
            for version in MARKERS_VERSIONS:
                again = await write(client, marker((7, 0), commit=True, t=(0,)), version=version)
                assert again == {(7, "t", 0): 0}
            assert node.offsets().end == 7

    run(story())


def test_markers_are_refused_where_kafka_refuses_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with transactional(tmp_path) as (node, kafka, _topic, _coordinator):
            kafka.broker.markers = node.storage.markers
            client = await kafka.connect()
            assert await produce(client, bytes(part_of_transaction(QUEUE, (7, 1, 0)).data), 9) == 0

            # each partition for itself: what is there is written
            codes = await write(client, marker((7, 1), commit=True, t=(0, 2, -1), unknown=(0,)))
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes == {
                (7, "t", 0): 0, (7, "t", 2): unknown, (7, "t", -1): unknown, (7, "unknown", 0): unknown
            }  # fmt: skip
            end = node.offsets().end
            assert end == 2

            deposed = await write(client, marker((7, 1), commit=False, coordinator_epoch=2, t=(0,)))
            assert deposed == {(7, "t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}
            zombie = await write(client, marker((7, 0), commit=True, coordinator_epoch=4, t=(0,)))
            assert zombie == {(7, "t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
            await kafka.metadata.create_topic("__transaction_state", 1, 1, {}, internal=True)
            internal = await write(client, marker((7, 1), commit=True, __transaction_state=(0,)))
            assert internal == {(7, "__transaction_state", 0): ErrorCode.INVALID_TOPIC_EXCEPTION}
            node.level = FeatureLevel.ELASTIC
            assert await write(client, marker((7, 1), commit=True, t=(0,))) == {
                (7, "t", 0): ErrorCode.INVALID_TXN_STATE
            }
            assert node.offsets().end == end

    run(story())


def test_producers_are_described_by_the_leaders_of_partitions(tmp_path: Path) -> None:
    async def story() -> None:
        async with transactional(tmp_path) as (node, kafka, topic, _coordinator):
            kafka.broker.markers = node.storage.markers
            client = await kafka.connect()
            for name, index in (("unknown", 0), ("t", 2), ("t", -1)):
                found = await describe(client, name, index)
                assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert found.error_message
                assert found.active_producers == ()
            kafka.leadership.store.led_elsewhere.add(topic.queue_id(1))
            kafka.leadership.replica_nodes[topic.queue_id(1)] = (2,)
            assert (await describe(client, "t", 1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert told(await describe(client, "t", 0)) == []

    run(story())
