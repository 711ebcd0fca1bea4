"""DescribeTopicPartitions against fakes: the partitions of Metadata, in pieces that a cursor joins."""

from __future__ import annotations

import random

import pytest
from tests.broker.admin.admin_broker import AdminBroker

from mainstem.broker.handlers import describe_topic_partitions, metadata
from mainstem.model import PARTITION_BITS
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic


def asked(
    admin: AdminBroker, *names: str, limit: int = 2000, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in names), response_partition_limit=limit, cursor=cursor
    )
    return admin.ask(describe_topic_partitions.handle, request)


@pytest.fixture
def admin() -> AdminBroker:
    admin = AdminBroker()
    for name, partitions in (("b", 3), ("a", 5), ("c", 1)):
        admin.create(name, partitions)
    return admin


def test_partitions_are_those_of_metadata(admin: AdminBroker) -> None:
    topic = admin.metadata.topic("a")
    assert topic is not None
    led = topic.number << PARTITION_BITS
    admin.leadership.replica_nodes = {led | 2: (1, 7), led | 3: (1, 2)}
    admin.leadership.out_of_sync = {led | 3: {2}}
    (found,) = asked(admin, "a").topics
    request = MetadataRequest(topics=(MetadataRequestTopic(name="a"),), include_topic_authorized_operations=True)
    topics = admin.ask(metadata.handle, request).topics
    assert isinstance(topics, tuple)
    (known,) = topics
    assert isinstance(known.partitions, tuple)
    assert (found.name, found.topic_id, found.is_internal) == (known.name, known.topic_id, known.is_internal)
    assert found.topic_authorized_operations == known.topic_authorized_operations
    fields = (
        "error_code", "partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "offline_replicas",
    )  # fmt: skip
    assert [[getattr(one, field) for field in fields] for one in found.partitions] == [
        [getattr(one, field) for field in fields] for one in known.partitions
    ]
    assert found.partitions[2].offline_replicas == (7,)


@pytest.mark.parametrize("names", [(), ("c", "a", "b", "a")], ids=["all", "named"])
def test_pieces_of_any_size_are_the_whole_in_the_order_of_names(admin: AdminBroker, names: tuple[str, ...]) -> None:
    choice = random.Random(7)
    for limit in (1, 2, 3, 5, 8, 9, 100, 0, -5):
        seen: list[tuple[str | None, int]] = []
        cursor = None
        for _ in range(20):
            answer = asked(admin, *names, limit=limit or choice.randint(1, 9), cursor=cursor)
            piece = [(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions]
            assert 0 < len(piece) <= max(1, limit or 9)
            seen += piece
            cursor = answer.next_cursor
            if cursor is None:
                break
        assert seen == [("a", number) for number in range(5)] + [("b", number) for number in range(3)] + [("c", 0)]


def test_more_than_the_limit_of_the_node_is_in_the_next_piece(admin: AdminBroker) -> None:
    admin.create("large", 2_500)
    answer = asked(admin, "large", limit=1_000_000)
    assert [one.partition_index for one in answer.topics[0].partitions] == list(range(2_000))
    assert answer.next_cursor == Cursor(topic_name="large", partition_index=2_000)
    rest = asked(admin, "large", cursor=answer.next_cursor)
    assert [one.partition_index for one in rest.topics[0].partitions] == list(range(2_000, 2_500))
    assert rest.next_cursor is None


def test_a_topic_that_is_not_there_has_an_error_of_its_own(admin: AdminBroker) -> None:
    answer = asked(admin, "nowhere", "c", "no name")
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics] == [
        ("c", ErrorCode.NONE, 1),
        ("no name", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]


def test_a_cursor_behind_a_topic_or_at_one_that_is_gone_goes_on_with_the_next(admin: AdminBroker) -> None:
    for cursor in (
        Cursor(topic_name="a", partition_index=5),
        Cursor(topic_name="a", partition_index=99),
        Cursor(topic_name="aa", partition_index=3),
    ):
        answer = asked(admin, cursor=cursor)
        assert [(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions] == [
            ("b", 0), ("b", 1), ("b", 2), ("c", 0),
        ]  # fmt: skip


def test_a_cursor_below_the_first_partition_is_refused(admin: AdminBroker) -> None:
    answer = asked(admin, "a", "c", cursor=Cursor(topic_name="a", partition_index=-1))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a", ErrorCode.INVALID_REQUEST), ("c", ErrorCode.INVALID_REQUEST),
    ]  # fmt: skip
