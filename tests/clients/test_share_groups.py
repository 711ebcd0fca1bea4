"""librdkafka's share consumer (a preview, KIP-932): members read one partition together, records come back that nobody
accepted, and the node is killed; nothing is lost, and nothing that was accepted comes again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.conftest import SETTINGS
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.share_offsets import ShareOffsets
from tests.clients.drivers.sharing import Sharing
from tests.end_to_end.shell import mainstem, refused
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.address import parsed
from mainstem.cli.clients.kafka_connection import KafkaConnection
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from mainstem.protocol.messages.share_group_state import (
    DeleteShareGroupStateRequest,
    ForgottenStatePartition,
    ForgottenStateTopic,
    InitializedPartition,
    InitializedTopic,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    StateReadPartition,
    StateReadTopic,
    WriteShareGroupStateRequest,
    WrittenPartition,
    WrittenTopic,
)
from mainstem.protocol.messages.share_state_records import ShareStateBatch

HASTE = (
    "groups.consumer_heartbeat_interval_ms=100",
    "shares.auto_offset_reset=earliest",
    "shares.lock_duration_ms=2000",
    "shares.record_locks_max=200",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), *SETTINGS, *HASTE)
    try:
        yield serving.start()
    finally:
        serving.close()


def filled(node: Serving, topic: str, records: int, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_SECONDS)
    sender = librdkafka.producer(node.kafka, **{"batch.num.messages": 10})
    for number in range(records):
        sender.produce(topic, b"%d" % number, partition=number % partitions)
    assert sender.flush(PATIENCE_SECONDS) == 0


def until(done: Callable[[], object], step: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, what
        step()


def test_two_members_read_one_partition_together(node: Serving) -> None:
    filled(node, "together", 2_000)
    with Sharing(node.kafka, "team", "together") as one, Sharing(node.kafka, "team", "together") as two:
        until(
            lambda: len(one.accepted | two.accepted) == 2_000,
            lambda: (one.take(), two.take()),
            "all of it",
        )
        assert one.accepted, "each has a part"
        assert two.accepted, "each has a part"
        assert max((one.seen + two.seen).values()) == 1, "and no record went to both"


def test_records_are_released_and_rejected(node: Serving) -> None:
    filled(node, "mixed", 20)

    def say(message: Message) -> AcknowledgeType:
        first = member.seen[message.partition(), message.offset()] == 1
        if message.offset() == 3:
            return AcknowledgeType.REJECT
        return AcknowledgeType.RELEASE if message.offset() == 5 or (message.offset() == 7 and first) else accepted

    accepted = AcknowledgeType.ACCEPT
    with Sharing(node.kafka, "picky", "mixed") as member:
        until(
            lambda: len(member.accepted) == 18 and member.seen[0, 5] == 5,
            lambda: member.take(say),
            "all but what was rejected, and what was always released",
        )
        member.take(say)
    assert member.seen[0, 3] == 1, "what was rejected goes to nobody"
    assert member.seen[0, 7] == 2, "what was released comes again"
    assert member.seen[0, 5] == 5, "as often as a record is given out at most"
    assert all(member.seen[0, offset] == 1 for offset in range(20) if offset not in (3, 5, 7))


def test_a_group_is_deleted_with_what_it_has_read(node: Serving) -> None:
    filled(node, "deleted", 10)
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    for _ in range(2):
        with Sharing(node.kafka, "passing", "deleted") as member:
            until(lambda: len(member.accepted) == 10, member.take, "all of it, also by the group's second life")
        admin.delete_consumer_groups(["passing"])["passing"].result(PATIENCE_SECONDS)


def asked(node: Serving, request: Any, version: int = 0) -> Any:
    """The answer of the node, which coordinates all groups."""
    connection = KafkaConnection(parsed(node.kafka))
    try:
        return connection.call(request, version)
    finally:
        connection.close()


def test_offsets_are_described_moved_and_deleted(node: Serving) -> None:
    filled(node, "moved", 30, partitions=2)
    offsets = ShareOffsets(node.kafka, "movers")
    with Sharing(node.kafka, "movers", "moved") as member:
        until(lambda: len(member.accepted) == 30, member.take, "all of it")
        busy = offsets.altered("moved", (0, 0))
        assert busy.error_code == ErrorCode.NON_EMPTY_GROUP, "a group with members is left alone"
        assert offsets.deleted("moved").error_code == ErrorCode.NON_EMPTY_GROUP
        told = json.loads(mainstem(node, "group", "describe", "movers", "--json"))
        assert (told["type"], told["state"], len(told["members"])) == ("share", "stable", 1)
        assert [row["clients"] for row in told["partitions"]] == [[told["members"][0]["client_id"]]] * 2
        assert "NON_EMPTY_GROUP" in refused(node, "group", "reset-offsets", "movers", "--to", "beginning")
    rows = offsets.described()
    assert {place: (row.start_offset, row.lag) for place, row in rows.items()} == {
        ("moved", 0): (15, 0),
        ("moved", 1): (15, 0),
    }
    assert mainstem(node, "group", "describe", "movers").startswith("share group movers: empty, epoch ")
    listed = json.loads(mainstem(node, "group", "list", "--type", "share", "--json"))["groups"]
    assert {"group": "movers", "type": "share", "state": "empty"} in listed
    reset = ("group", "reset-offsets", "movers", "--to", "beginning", "--partition", "1", "--json")
    rows_told = json.loads(mainstem(node, *reset, "--dry-run"))["partitions"]
    assert rows_told == [{"topic": "moved", "partition": 1, "before": 15, "after": 0}]
    assert offsets.described()["moved", 1].start_offset == 15, "nothing was moved"
    assert json.loads(mainstem(node, *reset))["moved"]
    assert offsets.described()["moved", 1].start_offset == 0
    mainstem(node, "group", "reset-offsets", "movers", "--to", "end", "--partition", "1")
    answer = offsets.altered("moved", (0, 5), (7, 0))
    assert [(row.partition_index, row.error_code) for row in answer.responses[0].partitions] == [
        (0, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    rows = offsets.described(("moved", (0, 1)), ("nowhere", (0,)))
    assert [(row.start_offset, row.lag) for row in rows.values()] == [(5, 10), (15, 0), (-1, -1)]
    with Sharing(node.kafka, "movers", "moved") as member:
        until(lambda: len(member.accepted) == 10, member.take, "what is behind the new offset")
        assert set(member.seen) == {(0, offset) for offset in range(5, 15)}, "and nothing else"
    answer = offsets.deleted("moved", "nowhere")
    assert {row.topic_name: row.error_code for row in answer.responses} == {
        "moved": 0,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert offsets.described() == {}
    again = offsets.deleted("moved").responses[0]
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nothing is left to delete"
    with Sharing(node.kafka, "movers", "moved") as member:
        until(lambda: len(member.accepted) == 30, member.take, "all of it, from the beginning")


def test_a_group_begins_where_it_was_told_to_before_it_had_members(node: Serving) -> None:
    filled(node, "told", 20)
    offsets = ShareOffsets(node.kafka, "late")
    assert offsets.deleted("told").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert offsets.altered("told", (0, 12)).error_code == 0
    with Sharing(node.kafka, "late", "told") as member:
        until(lambda: len(member.accepted) == 8, member.take, "what is behind the offset")
        assert set(member.seen) == {(0, offset) for offset in range(12, 20)}


def test_a_group_of_committed_readers_gets_nothing_of_other_transactions(node: Serving) -> None:
    """Neither of one that was aborted, nor, until it ends, of one that is open and what is behind it."""
    filled(node, "banked", 0)
    mainstem(node, "config", "alter", "--group", "auditors", "--set", "share.isolation.level=read_committed")
    senders = [
        librdkafka.producer(node.kafka, **{"transactional.id": name, "batch.num.messages": 5})
        for name in ("first", "second")
    ]
    for sender in senders:
        sender.init_transactions(PATIENCE_SECONDS)

    def sent(sender: Producer, text: bytes, records: int) -> None:
        sender.begin_transaction()
        for _ in range(records):
            sender.produce("banked", text, partition=0)
        assert sender.flush(PATIENCE_SECONDS) == 0

    first, second = senders
    sent(first, b"kept", 10)
    first.commit_transaction(PATIENCE_SECONDS)
    sent(first, b"undone", 300)
    first.abort_transaction(PATIENCE_SECONDS)
    sent(first, b"kept", 10)
    sent(second, b"open", 10)
    first.commit_transaction(PATIENCE_SECONDS)
    texts: list[bytes | None] = []

    def say(message: Message) -> AcknowledgeType:
        texts.append(message.value())
        return AcknowledgeType.ACCEPT

    with Sharing(node.kafka, "auditors", "banked") as member:
        until(lambda: len(texts) >= 20, lambda: member.take(say), "what was committed")
        member.take(say)
        assert texts == [b"kept"] * 20, "nothing that was undone, and nothing of the open transaction"
        second.commit_transaction(PATIENCE_SECONDS)
        until(lambda: len(texts) >= 30, lambda: member.take(say), "what has been committed now")
        assert texts[20:] == [b"open"] * 10
    with ShareOffsets(node.kafka, "auditors") as offsets:
        assert offsets.described()["banked", 0].lag <= 1, "all but the last marker"


def test_brokers_read_and_write_the_state_of_a_group(node: Serving) -> None:
    filled(node, "kept", 10)
    names = (MetadataRequestTopic(name="kept"),)
    [topic] = asked(node, MetadataRequest(topics=names, allow_auto_topic_creation=False), 12).topics
    topic_id: UUID = topic.topic_id

    def initialized(epoch: int, start: int) -> int:
        row = InitializedPartition(partition=0, state_epoch=epoch, start_offset=start)
        topics = (InitializedTopic(topic_id=topic_id, partitions=(row,)),)
        answer = asked(node, InitializeShareGroupStateRequest(group_id="keepers", topics=topics))
        return int(answer.results[0].partitions[0].error_code)

    def read(leader_epoch: int) -> Any:
        row = StateReadPartition(partition=0, leader_epoch=leader_epoch)
        topics = (StateReadTopic(topic_id=topic_id, partitions=(row,)),)
        request = ReadShareGroupStateRequest(group_id="keepers", topics=topics)
        return asked(node, request).results[0].partitions[0]

    def written(state_epoch: int, leader_epoch: int, *batches: ShareStateBatch) -> int:
        row = WrittenPartition(
            partition=0, state_epoch=state_epoch, leader_epoch=leader_epoch, start_offset=-1, state_batches=batches
        )
        topics = (WrittenTopic(topic_id=topic_id, partitions=(row,)),)
        answer = asked(node, WriteShareGroupStateRequest(group_id="keepers", topics=topics), 1)
        return int(answer.results[0].partitions[0].error_code)

    done = ShareStateBatch(first_offset=3, last_offset=4, delivery_state=2, delivery_count=1)
    assert read(0).error_code == ErrorCode.INVALID_REQUEST, "nobody has begun"
    assert written(0, 0, done) == ErrorCode.INVALID_REQUEST
    assert initialized(4, 2) == 0
    assert initialized(3, 0) == ErrorCode.FENCED_STATE_EPOCH
    assert read(6).start_offset == 2
    assert read(5).error_code == ErrorCode.FENCED_LEADER_EPOCH, "a broker that came before"
    assert written(4, 5, done) == ErrorCode.FENCED_LEADER_EPOCH
    assert written(3, 6, done) == ErrorCode.FENCED_STATE_EPOCH
    assert written(4, 6, done) == 0
    node.kill()
    node.start()
    until(lambda: read(6).error_code == 0, lambda: None, "the state is loaded")
    kept = read(6)
    assert (kept.state_epoch, kept.start_offset, kept.state_batches) == (4, 2, (done,)), "the node was killed"
    row = StateReadPartition(partition=0, leader_epoch=-1)
    topics = (StateReadTopic(topic_id=topic_id, partitions=(row,)),)
    summary = asked(node, ReadShareGroupStateSummaryRequest(group_id="keepers", topics=topics), 1)
    told = summary.results[0].partitions[0]
    assert (told.start_offset, told.leader_epoch, told.delivery_complete_count) == (2, 6, 2)
    with Sharing(node.kafka, "keepers", "kept") as member:
        until(lambda: len(member.accepted) == 6, member.take, "the rest")
        assert set(member.seen) == {(0, offset) for offset in (2, 5, 6, 7, 8, 9)}
    gone = (ForgottenStateTopic(topic_id=topic_id, partitions=(ForgottenStatePartition(partition=0),)),)
    answer = asked(node, DeleteShareGroupStateRequest(group_id="keepers", topics=gone))
    assert answer.results[0].partitions[0].error_code == 0
    assert read(6).error_code == ErrorCode.INVALID_REQUEST


def test_the_node_is_killed_on_the_way(node: Serving) -> None:
    filled(node, "killed", 400, partitions=2)
    with Sharing(node.kafka, "brave", "killed") as member:
        until(lambda: len(member.accepted) >= 100, member.take, "a part")
        node.kill()
        node.start()
        before = set(member.accepted)
        with Sharing(node.kafka, "brave", "killed") as other:
            until(
                lambda: len(member.accepted | other.accepted) == 400,
                lambda: (member.take(), other.take()),
                "the rest",
            )
            assert not before & other.seen.keys(), "what was accepted does not come again"
            assert all(member.seen[record] == 1 for record in before)


def test_what_a_member_has_goes_to_others_when_its_connection_ends(tmp_path: Path) -> None:
    """It does not say goodbye, and no lock runs out meanwhile."""
    node = Serving(tmp_path, *SETTINGS, *HASTE, "shares.lock_duration_ms=3600000")
    try:
        node.start()
        filled(node, "dropped", 10)

        def fetching(topic_id: UUID, member: UUID) -> ShareFetchRequest:
            asked = ShareFetchPartition(partition_index=0, acknowledgement_batches=())
            return ShareFetchRequest(
                group_id="leavers", member_id=str(member), share_session_epoch=0, max_wait_ms=200, min_bytes=1,
                max_records=100, batch_size=100, forgotten_topics_data=(),
                topics=(ShareFetchTopic(topic_id=topic_id, partitions=(asked,)),),
            )  # fmt: skip

        def acquired(connection: KafkaConnection, member: UUID) -> list[tuple[int, int]]:
            """Offset and delivery count of each record: how many batches they lie in is their producer's affair."""
            names = (MetadataRequestTopic(name="dropped"),)
            topic_id = connection.call(MetadataRequest(topics=names), 12).topics[0].topic_id
            answer = connection.call(fetching(topic_id, member), 1)
            assert answer.error_code == ErrorCode.NONE
            return [
                (offset, run.delivery_count)
                for topic in answer.responses
                for partition in topic.partitions
                for run in partition.acquired_records
                for offset in range(run.first_offset, run.last_offset + 1)
            ]

        first, second = KafkaConnection(parsed(node.kafka)), KafkaConnection(parsed(node.kafka))
        found: list[tuple[int, int]] = []
        until(lambda: found, lambda: found.extend(acquired(first, UUID(int=1))), "all records")
        assert found == [(offset, 1) for offset in range(10)]
        assert acquired(second, UUID(int=2)) == [], "the first has them"
        first.close()
        found.clear()
        until(lambda: found, lambda: found.extend(acquired(second, UUID(int=2))), "what the first one had")
        assert found == [(offset, 2) for offset in range(10)]
        second.close()
    finally:
        node.close()
