"""CreateTopics, DeleteTopics and CreatePartitions against fakes, as Kafka answers them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.memory_store import MemoryStore

from mainstem.broker.broker import NodeFacts
from mainstem.broker.config import BrokerConfig
from mainstem.broker.handlers import create_partitions, create_topics, delete_topics
from mainstem.errors import LeaderMissing, StorageUnavailable
from mainstem.model import Node, QueueRange, queue_id_of
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from mainstem.protocol.schema import ZERO_UUID


def wanted(name: str, **changes: Any) -> CreatableTopic:
    values: dict[str, Any] = {"num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
    return CreatableTopic(name=name, **{**values, **changes})


def assigned(*replicas: tuple[int, ...], first: int = 0) -> dict[str, Any]:
    assignments = tuple(
        CreatableReplicaAssignment(partition_index=first + index, broker_ids=ids) for index, ids in enumerate(replicas)
    )
    return {"num_partitions": -1, "replication_factor": -1, "assignments": assignments}


def created(admin: AdminBroker, *topics: CreatableTopic, **options: Any) -> list[CreatableTopicResult]:
    return list(elements(admin.ask(create_topics.handle, CreateTopicsRequest(topics=topics, **options)).topics))


@pytest.mark.parametrize("version", versions_of(CreateTopicsRequest))
def test_a_topic_is_created_in_every_version(version: int) -> None:
    admin = AdminBroker(NodeFacts(topic_defaults={"segment.bytes": "1000"}))
    configs = (CreatableTopicConfig(name="retention.ms", value="5"),)
    request = CreateTopicsRequest(topics=(wanted("a", configs=configs),))
    (result,) = elements(admin.ask(create_topics.handle, request, version).topics)
    assert (result.name, result.error_code) == ("a", ErrorCode.NONE)
    topic = admin.metadata.topic("a")
    assert topic is not None
    assert (topic.partitions, topic.settings.retention_ms) == (2, 5)
    assert sorted(admin.store.queues) == [topic.queue_id(0), topic.queue_id(1)]
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        shown = {config.name: (config.value, config.config_source) for config in elements(result.configs or ())}
        assert shown["retention.ms"] == ("5", 1)
        assert shown["segment.bytes"] == ("1000", 4)
        assert shown["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert result.topic_id == topic.topic_id


def test_the_nodes_defaults_fill_in_for_minus_one() -> None:
    admin = AdminBroker(config=BrokerConfig(num_partitions=7))
    (result,) = created(admin, wanted("a", num_partitions=-1, replication_factor=-1))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 7, 1)


def test_validate_only_creates_nothing_and_gives_no_id() -> None:
    admin = AdminBroker()
    good, bad = created(admin, wanted("a"), wanted("b", num_partitions=0), validate_only=True)
    assert (good.error_code, good.num_partitions, good.topic_id) == (ErrorCode.NONE, 2, ZERO_UUID)
    assert bad.error_code == ErrorCode.INVALID_PARTITIONS
    assert not list(admin.metadata.topics())
    assert not admin.store.queues


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (wanted("taken"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (wanted(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("__transaction_state"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("a", num_partitions=0), ErrorCode.INVALID_PARTITIONS),
        (wanted("a", num_partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (wanted("a", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted("a", replication_factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted("a", configs=(CreatableTopicConfig(name="no", value="1"),)), ErrorCode.INVALID_CONFIG),
        (
            wanted("a", configs=(CreatableTopicConfig(name="retention.ms", value="x"),)),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            wanted("a", configs=(CreatableTopicConfig(name="retention.ms", value=None),)),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            wanted("a", configs=(CreatableTopicConfig(name="remote.storage.enable", value="true"),)),
            ErrorCode.INVALID_CONFIG,
        ),
        (wanted("a", **{**assigned((1,)), "num_partitions": 1}), ErrorCode.INVALID_REQUEST),
        (wanted("a", **{**assigned((1,)), "replication_factor": 1}), ErrorCode.INVALID_REQUEST),
        (wanted("a", **assigned((2,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("a", **assigned((1, 1))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("a", **assigned(())), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("a", **assigned((1,), (1,), first=1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refused_with_a_reason_and_nothing_created(topic: CreatableTopic, error: ErrorCode) -> None:
    admin = AdminBroker()
    admin.create("taken")
    queues = set(admin.store.queues)
    (result,) = created(admin, topic)
    assert result.error_code == error
    assert result.error_message
    assert [known.name for known in admin.metadata.topics()] == ["taken"]
    assert set(admin.store.queues) == queues


def test_a_manual_assignment_that_fits_is_accepted() -> None:
    admin = AdminBroker()
    (result,) = created(admin, wanted("a", **assigned((1,), (1,), (1,))))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)


def test_assignments_of_different_lengths_are_refused() -> None:
    admin = AdminBroker()
    admin.metadata.nodes_known.append(Node(node_id=2, host="h", port=1))
    (result,) = created(admin, wanted("a", **assigned((1, 2), (1,))))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_name_given_twice_is_refused_once_and_the_others_made() -> None:
    admin = AdminBroker()
    results = created(admin, wanted("a"), wanted("b"), wanted("a"))
    assert {result.name: result.error_code for result in results} == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
    assert len(results) == 2
    assert [topic.name for topic in admin.metadata.topics()] == ["b"]


def test_trouble_with_the_metadata_can_be_retried() -> None:
    admin = AdminBroker()
    admin.metadata.refuse = MetadataUnavailable("later")
    (result,) = created(admin, wanted("a"))
    assert result.error_code == ErrorCode.NOT_CONTROLLER
    assert ErrorCode.NOT_CONTROLLER.retriable


class Leaderless(MemoryStore):
    """A write group has no leader."""

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        raise LeaderMissing("write groups [3] have no leader")

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        raise LeaderMissing("write groups [3] have no leader")


def test_queues_without_a_leader_to_make_them_are_a_matter_of_time() -> None:
    admin = AdminBroker()
    admin.create("b", 1)
    admin.broker.queue_admin = Leaderless()
    (result,) = created(admin, wanted("a"))
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert ErrorCode.REQUEST_TIMED_OUT.retriable
    assert admin.metadata.topic("a") is not None, "the next leader makes its queues"
    (gone,) = admin.ask(
        delete_topics.handle, DeleteTopicsRequest(topics=(DeleteTopicState(name="b"),), timeout_ms=1)
    ).responses
    assert gone.error_code == ErrorCode.NONE, "the next leader deletes them"
    assert admin.groups.forgotten == ["b"]


class FailedDisk(MemoryStore):
    """Disk 1 of this node failed."""

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        raise StorageUnavailable("a sync of disk 1 failed")

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        raise StorageUnavailable("a sync of disk 1 failed")


def test_changes_of_topics_under_a_failed_disk_can_be_tried_again() -> None:
    admin = AdminBroker()
    admin.create("b", 1)
    admin.create("c", 1)
    admin.broker.queue_admin = FailedDisk()
    results = created(admin, wanted("a"), wanted("b"))
    assert {result.name: result.error_code for result in results} == {
        "a": ErrorCode.KAFKA_STORAGE_ERROR,
        "b": ErrorCode.TOPIC_ALREADY_EXISTS,
    }
    assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
    wider = CreatePartitionsTopic(name="b", count=3, assignments=None)
    grown = CreatePartitionsRequest(topics=(wider,), timeout_ms=1, validate_only=False)
    (result,) = admin.ask(create_partitions.handle, grown).results
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    unwanted = DeleteTopicState(name="c"), DeleteTopicState(name="nowhere")
    request = DeleteTopicsRequest(topics=unwanted, timeout_ms=1)
    answers = admin.ask(delete_topics.handle, request).responses
    assert {answer.name: answer.error_code for answer in answers} == {
        "c": ErrorCode.KAFKA_STORAGE_ERROR,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert admin.metadata.topic("c") is None, "it is deleted, though nobody is told that every leader knows"
    assert admin.groups.forgotten == ["c"]


@pytest.mark.parametrize("version", versions_of(DeleteTopicsRequest))
def test_topics_are_deleted_by_name_in_every_version(version: int) -> None:
    admin = AdminBroker()
    admin.create("a", 3)
    if version >= 6:
        states = tuple(DeleteTopicState(name=name) for name in ("a", "b"))
        request = DeleteTopicsRequest(topics=states, timeout_ms=0)
    else:
        request = DeleteTopicsRequest(topic_names=("a", "b"), timeout_ms=0)
    answers = admin.ask(delete_topics.handle, request, version).responses
    assert {answer.name: answer.error_code for answer in answers} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert not list(admin.metadata.topics())
    assert not admin.store.queues
    assert admin.groups.forgotten == ["a"]


def test_topics_are_deleted_by_id() -> None:
    admin = AdminBroker()
    admin.create("a")
    topic = admin.metadata.topic("a")
    assert topic is not None
    stranger = uuid.UUID(int=5)
    states = (DeleteTopicState(topic_id=topic.topic_id), DeleteTopicState(topic_id=stranger))
    request = DeleteTopicsRequest(topics=states, timeout_ms=1000)
    found, unknown = admin.ask(delete_topics.handle, request).responses
    assert (found.name, found.topic_id, found.error_code) == ("a", topic.topic_id, ErrorCode.NONE)
    assert (unknown.topic_id, unknown.error_code) == (stranger, ErrorCode.UNKNOWN_TOPIC_ID)


def test_what_names_a_topic_twice_or_not_at_all_is_refused_and_deletes_nothing() -> None:
    admin = AdminBroker()
    for name in ("a", "b", "c"):
        admin.create(name)
    topic = admin.metadata.topic("a")
    assert topic is not None
    states = (
        DeleteTopicState(name="a"),
        DeleteTopicState(topic_id=topic.topic_id),
        DeleteTopicState(name="b"),
        DeleteTopicState(name="b"),
        DeleteTopicState(name="c", topic_id=topic.topic_id),
        DeleteTopicState(),
    )
    answers = admin.ask(delete_topics.handle, DeleteTopicsRequest(topics=states, timeout_ms=1)).responses
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 5
    assert all(answer.error_message for answer in answers)
    assert len(list(admin.metadata.topics())) == 3


def test_internal_topics_are_not_deleted() -> None:
    admin = AdminBroker()
    admin.create("__consumer_offsets", 4, internal=True)
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name="__consumer_offsets"),), timeout_ms=1)
    (answer,) = admin.ask(delete_topics.handle, request).responses
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(admin.store.queues) == 4
    assert admin.groups.forgotten == []


def grow(name: str, count: int, *assigned_to: tuple[int, ...]) -> CreatePartitionsTopic:
    assignments = tuple(CreatePartitionsAssignment(broker_ids=ids) for ids in assigned_to) or None
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


def grown(admin: AdminBroker, *topics: CreatePartitionsTopic, validate_only: bool = False) -> dict[str, int]:
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)
    answer = admin.ask(create_partitions.handle, request)
    assert all(result.error_message for result in answer.results if result.error_code)
    assert len({result.name for result in answer.results}) == len(answer.results)
    return {result.name: result.error_code for result in answer.results}


@pytest.mark.parametrize("version", versions_of(CreatePartitionsRequest))
def test_topics_grow_in_every_version(version: int) -> None:
    admin = AdminBroker()
    admin.create("a", 2)
    admin.append("a", 1, 3)
    request = CreatePartitionsRequest(topics=(grow("a", 5),), timeout_ms=1000, validate_only=False)
    (result,) = admin.ask(create_partitions.handle, request, version).results
    assert (result.name, result.error_code, result.error_message) == ("a", 0, None)
    topic = admin.metadata.topic("a")
    assert topic is not None
    assert sorted(admin.store.queues) == [topic.queue_id(index) for index in range(5)]
    assert admin.store.queues[topic.queue_id(1)].end == 3


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (grow("a", 2), ErrorCode.INVALID_PARTITIONS),
        (grow("a", 1), ErrorCode.INVALID_PARTITIONS),
        (grow("a", -1), ErrorCode.INVALID_PARTITIONS),
        (grow("nowhere", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (grow("__consumer_offsets", 30), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (grow("a", 4, (1,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grow("a", 3, (9,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grow("a", 3, (1, 1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_refused(topic: CreatePartitionsTopic, error: ErrorCode) -> None:
    admin = AdminBroker()
    admin.create("a", 2)
    admin.create("__consumer_offsets", 4, internal=True)
    assert grown(admin, topic) == {topic.name: error}
    assert len(admin.store.queues) == 6


def test_growth_with_an_assignment_and_validate_only() -> None:
    admin = AdminBroker()
    admin.create("a", 2)
    assert grown(admin, grow("a", 4, (1,), (1,)), validate_only=True) == {"a": 0}
    assert len(admin.store.queues) == 2
    assert grown(admin, grow("a", 4, (1,), (1,))) == {"a": 0}
    assert len(admin.store.queues) == 4


def test_a_topic_named_twice_does_not_grow() -> None:
    admin = AdminBroker()
    admin.create("a", 2)
    admin.create("b", 2)
    answers = grown(admin, grow("a", 4), grow("a", 5), grow("b", 3))
    assert answers == {"a": ErrorCode.INVALID_REQUEST, "b": 0}


def test_the_answer_tells_how_many_copies_there_are_whatever_was_asked_for() -> None:
    admin = AdminBroker()
    (first,) = created(admin, wanted("a"))
    assert first.replication_factor == 1
    number = admin.metadata.topic("a").number + 1  # type: ignore[union-attr]
    admin.leadership.replica_nodes[queue_id_of(number, 0)] = (1, 2, 3)
    (second,) = created(admin, wanted("b"))
    assert (second.error_code, second.replication_factor) == (0, 3)
