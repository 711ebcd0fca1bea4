"""ListOffsets, OffsetForLeaderEpoch and InitProducerId."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.fetching.test_fetch import append
from tests.broker.harness import Fakes, batch, call, make_broker

from mainstem.broker.handlers import init_producer_id, list_offsets, offset_for_leader_epoch
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from mainstem.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


async def offset(
    fakes: Fakes,
    timestamp: int,
    version: int = 11,
    *,
    partition: int = 0,
    leader_epoch: int = -1,
    times: int = 1,
    isolation_level: int = 0,
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=(ListOffsetsTopic(name="t", partitions=(asked,) * times),),
    )
    response = await list_offsets.handle(fakes.broker, request, call(version))
    codec.write(response, version)
    found: ListOffsetsPartitionResponse = response.topics[0].partitions[-1]
    return found


async def filled() -> Fakes:
    """Offsets 0 to 5 at 1000, 1001, 3000, 3001, 2000, 2001 ms; the first two are gone."""
    fakes = make_broker()
    topic = await fakes.topic("t")
    for timestamp in (1000, 3000, 2000):
        await append(fakes, topic, 0, batch(b"a", b"b", timestamp=timestamp))
    await fakes.store.truncate({topic.queue_id(0): 2})
    return fakes


@pytest.mark.parametrize(
    ("timestamp", "found", "at"),
    [
        (LATEST, 6, -1),
        (EARLIEST, 2, -1),
        (MAX, 3, 3001),
        (EARLIEST_LOCAL, 2, -1),
        (LATEST_TIERED, -1, -1),
        (PENDING_UPLOAD, -1, -1),
        (0, 2, 3000),
        (3001, 3, 3001),
        (3002, -1, -1),
    ],
)
def test_offsets_for_timestamps(timestamp: int, found: int, at: int) -> None:
    async def scenario() -> None:
        answer = await offset(await filled(), timestamp)
        assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.NONE, found, at)

    asyncio.run(scenario())


def test_readers_of_committed_transactions_end_where_the_oldest_open_one_begins() -> None:
    async def scenario() -> None:
        fakes = await filled()
        topic = fakes.metadata.topic("t")
        assert topic is not None
        assert [(await offset(fakes, LATEST, isolation_level=level)).offset for level in (0, 1)] == [6, 6]
        fakes.store.queues[topic.queue_id(0)].first_unstable = 4
        assert [(await offset(fakes, LATEST, isolation_level=level)).offset for level in (0, 1)] == [6, 4]

    asyncio.run(scenario())


def test_readers_of_committed_transactions_are_told_no_record_of_an_open_one() -> None:
    async def scenario() -> None:
        fakes = await filled()
        topic = fakes.metadata.topic("t")
        assert topic is not None
        fakes.store.queues[topic.queue_id(0)].first_unstable = 3
        for timestamp, uncommitted, committed in ((3000, 2, 2), (3001, 3, -1), (MAX, 3, -1), (EARLIEST_LOCAL, 2, 2)):
            answers = [await offset(fakes, timestamp, isolation_level=level) for level in (0, 1)]
            assert [answer.offset for answer in answers] == [uncommitted, committed]
            assert [answer.error_code for answer in answers] == [ErrorCode.NONE] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize("timestamp", [LATEST, MAX, 0, 3002])
def test_the_end_of_a_log_is_told_by_who_is_confirmed_to_lead_it(timestamp: int) -> None:
    async def scenario() -> None:
        fakes = await filled()
        topic = fakes.metadata.topic("t")
        assert topic is not None
        fakes.leadership.unconfirmed = {topic.queue_id(0)}
        answer = await offset(fakes, timestamp)
        assert (answer.error_code, answer.offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    asyncio.run(scenario())


@pytest.mark.parametrize("timestamp", [EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD])
def test_the_start_of_a_log_needs_no_confirmation(timestamp: int) -> None:
    async def scenario() -> None:
        fakes = await filled()
        assert (await offset(fakes, timestamp)).error_code == ErrorCode.NONE
        assert not fakes.leadership.confirmations

    asyncio.run(scenario())


def test_what_is_asked_of_many_partitions_is_confirmed_once_per_write_group_and_in_time() -> None:
    """The watermark is looked up when the leadership is confirmed, not before."""

    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t", partitions=3)

        async def confirm(group: int) -> None:
            fakes.leadership.confirmations.append(group)
            await append(fakes, topic, 0, batch(b"acknowledged meanwhile"))

        fakes.leadership.group_of = lambda queue_id: 7  # type: ignore[method-assign]
        fakes.leadership.serves_here = lambda queue_id: True  # type: ignore[method-assign]
        fakes.leadership.confirm = confirm  # type: ignore[method-assign]
        asked = tuple(ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (0, 1, 2, 9))
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=asked),))
        response = await list_offsets.handle(fakes.broker, request, call(11))
        assert [answer.offset for answer in response.topics[0].partitions] == [1, 0, 0, -1]
        assert fakes.leadership.confirmations == [7]

    asyncio.run(scenario())


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_is_answered(version: int) -> None:
    async def scenario() -> None:
        assert (await offset(await filled(), LATEST, version)).offset == 6

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(MAX, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (PENDING_UPLOAD, 10), (-7, 11), (-(2**63), 11)],
)
def test_special_timestamps_unknown_to_a_version_are_refused(timestamp: int, version: int) -> None:
    async def scenario() -> None:
        answer = await offset(await filled(), timestamp, version)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    asyncio.run(scenario())


def test_what_cannot_be_read_is_an_error_of_its_partition() -> None:
    """Not of the whole request, and no reason to close the connection."""

    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t", partitions=2)
        for partition in range(2):
            await append(fakes, topic, partition, batch(b"a", timestamp=1000))
        fakes.store.leader_epoch = 2
        fakes.store.unreadable.add(topic.queue_id(0))
        times = tuple(ListOffsetsPartition(partition_index=place, timestamp=5) for place in range(2))
        response = await list_offsets.handle(
            fakes.broker,
            ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=times),)),
            call(11),
        )
        codec.write(response, 11)
        found = [(part.error_code, part.offset) for part in response.topics[0].partitions]
        assert found == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (ErrorCode.NONE, 0)]
        epochs = tuple(OffsetForLeaderPartition(partition=place, leader_epoch=0) for place in range(2))
        ends = await offset_for_leader_epoch.handle(
            fakes.broker,
            OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="t", partitions=epochs),)),
            call(4),
        )
        codec.write(ends, 4)
        answers = [(part.error_code, part.end_offset) for part in ends.topics[0].partitions]
        assert answers == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (ErrorCode.NONE, 1)]

    asyncio.run(scenario())


def test_partitions_are_checked() -> None:
    async def scenario() -> None:
        fakes = await filled()
        answer = await offset(fakes, LATEST, partition=1)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await offset(fakes, LATEST, leader_epoch=1)
        assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        fakes.store.leader_epoch = 2
        answer = await offset(fakes, LATEST, leader_epoch=1)
        assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await offset(fakes, LATEST, leader_epoch=2)).leader_epoch == 2
        assert (await offset(fakes, LATEST, times=2)).error_code == ErrorCode.INVALID_REQUEST

    asyncio.run(scenario())


def test_only_committed_records_count() -> None:
    async def scenario() -> None:
        fakes = await filled()
        fakes.store.hold()
        topic = fakes.metadata.topic("t")
        assert topic is not None
        held = asyncio.ensure_future(append(fakes, topic, 0, batch(b"late", timestamp=9000)))
        await asyncio.sleep(0)
        assert (await offset(fakes, LATEST)).offset == 6
        assert (await offset(fakes, 9000)).offset == -1
        fakes.store.release()
        await held
        assert (await offset(fakes, 9000)).offset == 6

    asyncio.run(scenario())


@pytest.mark.parametrize("version", range(2, 5))
def test_ends_of_epochs(version: int) -> None:
    async def end(fakes: Fakes, epoch: int, partition: int = 0, current: int = -1) -> EpochEndOffset:
        asked = OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="t", partitions=(asked,)),))
        response = await offset_for_leader_epoch.handle(fakes.broker, request, call(version))
        codec.write(response, version)
        found: EpochEndOffset = response.topics[0].partitions[0]
        return found

    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t")
        for epoch in (1, 3):
            fakes.store.leader_epoch = epoch
            await append(fakes, topic, 0, batch(b"a", b"b"))
        ends = [await end(fakes, epoch) for epoch in (0, 1, 2, 3, 9)]
        assert [(e.leader_epoch, e.end_offset) for e in ends] == [(0, 0), (1, 2), (1, 2), (3, 4), (-1, -1)]
        assert (await end(fakes, 1, current=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await end(fakes, 1, partition=7)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())


async def new_producer(
    fakes: Fakes, transactional_id: str | None = None, id: int = -1, epoch: int = -1
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=1000, producer_id=id, producer_epoch=epoch
    )
    response = await init_producer_id.handle(fakes.broker, request, call(5))
    codec.write(response, 5)
    return response


def test_producer_ids_are_never_handed_out_twice() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        found = [await new_producer(fakes) for _ in range(3)]
        found.append(await new_producer(fakes, id=found[0].producer_id, epoch=5))
        assert len({response.producer_id for response in found}) == 4
        assert {(response.error_code, response.producer_epoch) for response in found} == {(ErrorCode.NONE, 0)}

    asyncio.run(scenario())


def test_what_cannot_have_a_producer_id_is_refused() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        assert (await new_producer(fakes, "tx")).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await new_producer(fakes, id=5)).error_code == ErrorCode.INVALID_REQUEST
        assert (await new_producer(fakes, epoch=5)).error_code == ErrorCode.INVALID_REQUEST
        fakes.metadata.refuse = MetadataUnavailable("away")
        assert (await new_producer(fakes)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    asyncio.run(scenario())


def test_partitions_led_elsewhere_are_answered_by_their_leaders() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=2)
        fakes.metadata.leaders[topic.queue_id(1)] = 2
        found = await offset(fakes, -1, partition=1)
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fakes.metadata.leaders.clear()
        fakes.store.led_elsewhere.add(topic.queue_id(1))  # it leads, and has yet to apply what was committed
        found = await offset(fakes, -1, partition=1)
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        asked = OffsetForLeaderPartition(partition=1, leader_epoch=0)
        request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="t", partitions=(asked,)),))
        response = await offset_for_leader_epoch.handle(fakes.broker, request, call(4))
        assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())
