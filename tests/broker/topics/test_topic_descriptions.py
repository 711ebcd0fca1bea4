"""The part of Metadata about topics is what the codec makes of plain objects, however it is cut into slices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from tests.broker.harness import Fakes, make_broker

from mainstem.broker.topics.topic_descriptions import PARTITIONS_PER_TURN, TOPICS_PER_TURN, Entry, TopicDescriptions
from mainstem.model import Topic
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

REFUSED = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="unknown", partitions=())


def topic(number: int, partitions: int) -> Topic:
    return Topic(name=f"t{number}", number=number, topic_id=UUID(int=number), partitions=partitions)


def plainly(fakes: Fakes, entry: Entry) -> MetadataResponseTopic:
    if isinstance(entry, MetadataResponseTopic):
        return entry
    partitions = []
    for index in range(entry.partitions):
        queue_id = entry.queue_id(index)
        group = fakes.leadership.replicas(queue_id)
        leader = -1 if group.leader in fakes.metadata.dead else group.leader
        partitions.append(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=group.leader_epoch,
                replica_nodes=group.replicas,
                isr_nodes=tuple(node for node in group.in_sync if node not in fakes.metadata.dead),
                offline_replicas=tuple(node for node in group.replicas if node in fakes.metadata.dead),
            )
        )
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=entry.name,
        topic_id=entry.topic_id,
        is_internal=entry.internal,
        partitions=tuple(partitions),
        topic_authorized_operations=7,
    )


def check(fakes: Fakes, entries: Sequence[Entry], version: int) -> None:
    async def encode() -> None:
        alive = {1, 2, 3} - fakes.metadata.dead
        encoded = await TopicDescriptions(fakes.leadership, alive, version, 7).encode(entries)
        topics = tuple(plainly(fakes, entry) for entry in entries)
        expected = MetadataResponse(brokers=(), topics=topics)
        assert codec.write(MetadataResponse(brokers=(), topics=encoded), version) == codec.write(expected, version)

    asyncio.run(encode())


@pytest.mark.parametrize("version", range(8, 14))
def test_slices_make_what_the_codec_makes(version: int) -> None:
    fakes = make_broker()
    fakes.store.leader_epoch = 5
    asyncio.run(fakes.topic("known", partitions=3))
    known = fakes.metadata.topic("known")
    assert known is not None
    many = [topic(number, 1) for number in range(100, 101 + TOPICS_PER_TURN)]
    check(fakes, [known, REFUSED, topic(7, 2), *many, topic(8, PARTITIONS_PER_TURN), topic(9, 1)], version)


@pytest.mark.parametrize("partitions", [1, PARTITIONS_PER_TURN + 1])
def test_partitions_without_a_leader_and_with_others(partitions: int) -> None:
    fakes = make_broker()
    wanted = topic(3, partitions)
    fakes.metadata.leaders = {
        wanted.queue_id(0): -1,
        wanted.queue_id(1): 2,
        wanted.queue_id(partitions - 1): -1,
    }
    check(fakes, [topic(2, 2), wanted, topic(4, 2)], 12)
    fakes.metadata.leaders = {wanted.queue_id(partitions // 2): 2}
    check(fakes, [topic(2, 2), wanted, topic(4, 2)], 12)


@pytest.mark.parametrize("version", [8, 12, 13])
@pytest.mark.parametrize("partitions", [3, 200])
def test_replicas_of_which_some_are_late_or_dead(version: int, partitions: int) -> None:
    fakes = make_broker()
    fakes.store.leader_epoch = 4
    asyncio.run(fakes.topic("known", partitions=partitions))
    known = fakes.metadata.topic("known")
    assert known is not None
    for partition in range(partitions):
        queue_id = known.queue_id(partition)
        fakes.leadership.replica_nodes[queue_id] = ((1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2))[partition % 4]
        fakes.metadata.leaders[queue_id] = (1, 2, 3, 1, -1)[partition % 5]
        fakes.leadership.out_of_sync[queue_id] = ({2}, set[int](), {1, 3})[partition % 3]
    check(fakes, [topic(2, 2), known, topic(4, 2)], version)
    fakes.metadata.dead = {3}
    check(fakes, [topic(2, 2), known, topic(4, 2)], version)


def test_nothing_is_asked_for() -> None:
    check(make_broker(), [], 12)


def test_others_have_their_turn_while_a_large_topic_is_described() -> None:
    async def watch() -> None:
        fakes = make_broker()
        task = asyncio.ensure_future(
            TopicDescriptions(fakes.leadership, {1}, 12, 7).encode([topic(1, 5 * PARTITIONS_PER_TURN)])
        )
        turns = 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 5

    asyncio.run(watch())
