"""Transactions over real sockets: a hand-made transactional producer, readers of both isolation levels, and a client of
Kafka's; memory and files answer alike."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from tests.broker.harness import Serving, serving
from tests.fakes.clock import LoopClock
from tests.server.raw_client import RawClient
from tests.server.scripted import run
from tests.storage.queues.test_transactions import Verified, part_of_transaction
from tests.storage.queues.test_transactions import produce as storage_produce
from tests.storage.small_node import QUEUE, SmallNode, new_batch

from mainstem.errors import MainstemError
from mainstem.model import AbortedRange, FeatureLevel, Outcome, Topic, TransactionMarker
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from mainstem.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import ControlType, build_control_batch

READ_COMMITTED, READ_UNCOMMITTED = 1, 0


@asynccontextmanager
async def transactional(directory: Path) -> AsyncIterator[tuple[SmallNode, Serving, Topic, Verified]]:
    """A broker behind a socket, over the storage of a node."""
    node: Any = SmallNode(LoopClock(), directory)  # type: ignore[arg-type]
    coordinator = Verified()
    await node.start()
    node.storage.transaction_checks.verification = coordinator
    async with serving() as kafka:
        kafka.broker.store = node.storage.messages
        kafka.broker.queue_admin = node.storage.queues
        kafka.broker.committed_reads = node.storage.committed_reads
        topic = await kafka.metadata.create_topic("t", 2, 1, {})
        assert topic.queue_id(0) == QUEUE
        yield node, kafka, topic, coordinator
    await node.storage.close()


async def produce(client: RawClient, data: bytes, version: int, transactional_id: str | None = "tx") -> int:
    request = ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=1000,
        topic_data=(
            TopicProduceData(name="t", partition_data=(PartitionProduceData(index=0, records=data),)),
        ),
    )  # fmt: skip
    response = await client.call(request, version)
    error: int = response.responses[0].partition_responses[0].error_code
    return error


def asking(isolation_level: int, offset: int = 0, wait_ms: int = 0) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation_level, session_epoch=-1,
        topics=(
            FetchTopic(
                topic="t",
                partitions=(FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20),),
            ),
        ),
    )  # fmt: skip


async def fetched(client: RawClient, isolation_level: int, offset: int = 0, wait_ms: int = 0, version: int = 12) -> Any:
    response = await client.call(asking(isolation_level, offset, wait_ms), version)
    return response.responses[0].partitions[0]


def aborted(part: PartitionData) -> list[tuple[int, int]] | None:
    found = part.aborted_transactions
    return None if found is None else [(one.producer_id, one.first_offset) for one in found]


async def end(node: SmallNode, producer_id: int, epoch: int, *, commit: bool) -> None:
    marker = TransactionMarker(QUEUE, producer_id, epoch, commit, 0)
    assert await node.storage.markers.write([marker]) == [Outcome.OK]


def test_readers_of_committed_transactions_over_sockets(tmp_path: Path) -> None:
    async def story() -> None:
        async with transactional(tmp_path) as (node, kafka, _, coordinator):
            client, reader = await kafka.connect(), await kafka.connect()
            assert await produce(client, bytes(new_batch(QUEUE, 10).data), 9, None) == 0
            assert await produce(client, bytes(part_of_transaction(QUEUE, (7, 0, 0), 2).data), 9) == 0
            assert await produce(client, bytes(part_of_transaction(QUEUE, (8, 0, 0)).data), 12) == 0
            assert [asked[0] for asked in coordinator.asked] == ["tx", "tx"]
            for version in (4, 11, 12):
                plain = await fetched(reader, READ_UNCOMMITTED, version=version)
                committed = await fetched(reader, READ_COMMITTED, version=version)
                assert (plain.high_watermark, plain.last_stable_offset) == (4, 1)
                assert (committed.high_watermark, committed.last_stable_offset) == (4, 1)
                assert len(committed.records) < len(plain.records)
                assert (aborted(plain), aborted(committed)) == (None, [])

            # a reader at the end waits for the marker, not for batches of open transactions
            await reader.request(asking(READ_COMMITTED, 1, wait_ms=30_000), 12)
            assert await produce(client, bytes(part_of_transaction(QUEUE, (8, 0, 1)).data), 12) == 0
            await end(node, 8, 0, commit=True)
            await end(node, 7, 0, commit=False)
            part = (await reader.response(1, 12)).responses[0].partitions[0]
            assert part.last_stable_offset == 7
            assert aborted(part) == [(7, 1)]
            assert len(part.records) == len((await fetched(reader, READ_UNCOMMITTED, 1)).records)
            assert aborted(await fetched(reader, READ_COMMITTED, 5)) == [(7, 1)]

            ends = {}
            await produce(client, bytes(part_of_transaction(QUEUE, (7, 0, 2)).data), 9)
            for level in (READ_COMMITTED, READ_UNCOMMITTED):
                partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
                topics = (ListOffsetsTopic(name="t", partitions=(partition,)),)
                response = await client.call(ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=topics), 7)
                ends[level] = response.topics[0].partitions[0].offset
            assert ends == {READ_COMMITTED: 7, READ_UNCOMMITTED: 8}

    run(story())


class TrimmedMeanwhile:
    """It tells what was aborted once the log start of the first queue has passed the records that were read of it."""

    def __init__(self, node: SmallNode) -> None:
        self._node = node

    def aborted_at_once(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[AbortedRange]] | None:
        return None

    async def aborted(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[list[AbortedRange] | MainstemError | OSError]:
        await self._node.storage.queues.truncate({QUEUE: 1})
        return await self._node.storage.committed_reads.aborted(ranges)


def test_a_deletion_in_one_queue_leaves_the_readers_of_others_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with transactional(tmp_path) as (node, kafka, topic, _):
            kafka.broker.committed_reads = TrimmedMeanwhile(node)
            client = await kafka.connect()
            for queue_id in (QUEUE, topic.queue_id(1)):
                batches = [part_of_transaction(queue_id, (7, 0, 0), 2)]
                assert [one.outcome for one in await storage_produce(node, *batches)] == [Outcome.OK]
                marker = TransactionMarker(queue_id, 7, 0, False, 0)
                assert await node.storage.markers.write([marker]) == [Outcome.OK]
            partitions = tuple(FetchPartition(partition=it, fetch_offset=0, partition_max_bytes=9999) for it in (0, 1))
            asked = dataclasses.replace(asking(READ_COMMITTED), topics=(FetchTopic(topic="t", partitions=partitions),))
            trimmed, other = (await client.call(asked, 12)).responses[0].partitions
            assert (trimmed.error_code, bytes(trimmed.records)) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
            assert (other.error_code, aborted(other)) == (ErrorCode.NONE, [(7, 0)])
            assert other.records

    run(story())


def test_what_clients_may_not_write(tmp_path: Path) -> None:
    async def story() -> None:
        async with transactional(tmp_path) as (node, kafka, _, coordinator):
            client = await kafka.connect()
            batch = bytes(part_of_transaction(QUEUE, (7, 0, 0)).data)
            marker = build_control_batch(
                ControlType.COMMIT, timestamp=1, producer_id=7, producer_epoch=0, coordinator_epoch=0
            )
            assert await produce(client, bytes(marker.data), 9) == ErrorCode.INVALID_RECORD
            assert await produce(client, batch, 9, None) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            coordinator.answers[QUEUE] = Outcome.INVALID_TXN_STATE
            assert await produce(client, batch, 9) == ErrorCode.INVALID_TXN_STATE
            coordinator.answers[QUEUE] = Outcome.CONCURRENT_TRANSACTIONS
            assert await produce(client, batch, 9) == ErrorCode.NOT_ENOUGH_REPLICAS
            assert await produce(client, batch, 12) == ErrorCode.CONCURRENT_TRANSACTIONS
            coordinator.answers.clear()
            node.level = FeatureLevel.ELASTIC
            assert await produce(client, batch, 12) == ErrorCode.INVALID_TXN_STATE
            assert node.offsets().end == 0

    run(story())


def consumed(bootstrap: str, offsets: int, isolation_level: str) -> list[bytes]:
    """The values that kafka-python's consumer gets of a partition, up to an offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation_level, enable_auto_commit=False, group_id=None
    )
    try:
        partition = TopicPartition("t", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[bytes] = []
        while consumer.position(partition) < offsets:
            for records in consumer.poll(timeout_ms=200).values():
                found += [record.value for record in records]
        return found
    finally:
        consumer.close()


def test_a_client_of_kafkas_gets_what_was_committed_from_memory_and_from_files(tmp_path: Path) -> None:
    async def story() -> None:
        async with transactional(tmp_path) as (node, kafka, _, _coordinator):
            client = await kafka.connect()
            for number in range(6):
                data = bytes(part_of_transaction(QUEUE, (7, number, 0), 2).data)
                assert await produce(client, data, 12) == 0
                await end(node, 7, number, commit=number % 2 == 0)
            bootstrap = str(kafka.server.addresses[0])

            async def look() -> None:
                committed = await asyncio.to_thread(consumed, bootstrap, 18, "read_committed")
                assert len(committed) == 6
                assert len(await asyncio.to_thread(consumed, bootstrap, 18, "read_uncommitted")) == 12

            await look()
            transactions = node.storage.groups[0].transactions
            assert len(transactions.aborted) == 3
            assert await node.split() == ["committed"]
            await node.storage.pruning.prune()
            assert not len(transactions.aborted), "files have them now"
            await look()

    run(story())
