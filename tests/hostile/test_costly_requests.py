"""Small requests that would cost much: batches that inflate to millions of records, and millions of nothings."""

from __future__ import annotations

import struct

import pytest
from tests.harness.crafted_batches import KEYED_RECORD, KEYLESS_RECORD, crafted_batch
from tests.harness.patience import PATIENCE_MS
from tests.hostile.conftest import StartNode
from tests.hostile.honest import HonestClient, create_topic
from tests.hostile.wire import Wire

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import RequestHeader, write_request_header
from mainstem.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

RECORDS = 9_000_000
"""Seven bytes each, in a batch of 5.8 KB; a look-up went through all of them, for 34 s."""


def produce(topic: str, batch: bytes) -> ProduceRequest:
    data = (PartitionProduceData(index=0, records=batch),)
    topics = (TopicProduceData(name=topic, partition_data=data),)
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=PATIENCE_MS, topic_data=topics)


def look_up(topic: str, timestamp: int) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(wanted,)),))


def test_a_batch_of_millions_of_records_is_looked_into_beside_the_loop(start_node: StartNode) -> None:
    node = start_node()
    create_topic(node.kafka, "times")
    with HonestClient(node.kafka) as honest, Wire(node.kafka) as wire:
        honest.goes_on()
        wire.call(produce("times", crafted_batch(KEYLESS_RECORD, RECORDS, max_timestamp=9_000)), 9)
        for timestamp in (5_000, 5_001, 5_000):
            answer = wire.call(look_up("times", timestamp), 6).topics[0].partitions[0]
            assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, 9_000)
        honest.goes_on()
    assert node.metric("mainstem_server_connections_failed_total") == 0


def test_keys_in_a_batch_of_millions_are_checked_beside_the_loop(start_node: StartNode) -> None:
    node = start_node()
    compact = CreatableTopicConfig(name="cleanup.policy", value="compact")
    topic = CreatableTopic(name="latest", num_partitions=1, replication_factor=1, assignments=(), configs=(compact,))
    with HonestClient(node.kafka) as honest, Wire(node.kafka) as wire:
        wire.call(CreateTopicsRequest(topics=(topic,), timeout_ms=PATIENCE_MS), 5)
        sound, offset = crafted_batch(KEYED_RECORD, 400_000), 0
        for _ in range(3):
            answer = wire.call(produce("latest", sound), 9).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, offset)
            offset += 400_000
        for batch in (crafted_batch(KEYLESS_RECORD, 400_000), crafted_batch(KEYED_RECORD, 8_000_000)):
            answer = wire.call(produce("latest", batch), 9).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.INVALID_RECORD
        honest.goes_on()


def empty_names(count: int) -> bytes:
    return struct.pack(">i", count) + bytes(2 * count) + b"\0"


def tagged_fields(count: int) -> bytes:
    return b"\x01\0\0\0" + b"\xff\xff\xff\x02" + bytes([99, 0]) * count


@pytest.mark.parametrize(
    ("version", "body"),
    [(4, empty_names(2_000_000)), (4, empty_names(6_000_000)), (9, tagged_fields(6_000_000))],
    ids=["4 MB of names", "12 MB of names", "12 MB of tags"],
)
def test_millions_of_nothings_end_the_connection_that_sends_them(
    start_node: StartNode, version: int, body: bytes
) -> None:
    node = start_node()
    with HonestClient(node.kafka) as honest, Wire(node.kafka) as wire:
        head = write_request_header(RequestHeader(3, version, 1, "wire"))
        wire.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        assert wire.closed_by_node()
        honest.goes_on()
    assert node.metric("mainstem_server_connections_failed_total") == 1


def test_a_long_request_that_is_legal_is_answered_and_others_beside_it(start_node: StartNode) -> None:
    node = start_node("broker.auto_create_topics=false")
    names = tuple(MetadataRequestTopic(name=f"topic-{number}") for number in range(20_000))
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    with HonestClient(node.kafka) as honest, Wire(node.kafka) as wire, Wire(node.kafka) as other:
        for asking in (wire, other):
            asking.send(request, 9)
        honest.goes_on()
        for asking in (wire, other):
            assert len(asking.answer(3, 9).topics) == 20_000
