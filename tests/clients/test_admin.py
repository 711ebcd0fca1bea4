"""Admin clients: topics, partitions, configs, groups, records, offsets, the cluster and its disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AsyncioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewTopic as AsyncioTopic
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import TopicPartition as PythonPartition
from kafka.admin import NewTopic as PythonTopic
from kafka.errors import (
    InvalidReplicationAssignmentError,
    InvalidTopicError,
    InvalidUpdateVersionError,
    NoReassignmentInProgressError,
    TopicAlreadyExistsError,
)
from tests.clients.conftest import MakeTopic
from tests.clients.drivers import kafka_python, librdkafka
from tests.clients.drivers.message import FIRST_TIMESTAMP_MS, Message
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.model import FeatureLevel

NEWEST = FeatureLevel.newest()


def refusal(call: Callable[[], Any]) -> int:
    """The error code that a call is refused with."""
    with pytest.raises(KafkaException) as refused:
        call()
    code: int = refused.value.args[0].code()
    return code


def only(futures: dict[Any, Any]) -> Any:
    """The result of an admin call about one thing. Raises KafkaException where it was refused."""
    (future,) = futures.values()
    return future.result(PATIENCE_SECONDS)


def names(admin: AdminClient) -> set[str]:
    return set(admin.list_topics(timeout=PATIENCE_SECONDS).topics)


def test_topics_come_and_go(admin: AdminClient, bootstrap: str, name: str) -> None:
    only(admin.create_topics([NewTopic(name, 5, 1)]))
    described = only(admin.describe_topics(TopicCollection([name])))
    assert (described.name, len(described.partitions), described.is_internal) == (name, 5, False)
    for partition in described.partitions:
        assert partition.leader.id == 1
        assert [replica.id for replica in partition.replicas] == [replica.id for replica in partition.isr] == [1]
    librdkafka.produce(bootstrap, name, [Message(b"old")])
    only(admin.delete_topics([name]))
    assert name not in names(admin)
    assert refusal(lambda: only(admin.describe_topics(TopicCollection([name])))) == KafkaError.UNKNOWN_TOPIC_OR_PART
    only(admin.create_topics([NewTopic(name, 1, 1)]))
    again = only(admin.describe_topics(TopicCollection([name])))
    assert str(again.topic_id) != str(described.topic_id), "a new topic of the same name"
    librdkafka.produce(bootstrap, name, [Message(b"new")])
    assert [message.value for message in librdkafka.consume(bootstrap, name, 1)] == [b"new"]


def test_creating_a_topic_is_refused_for_the_right_reason(admin: AdminClient, topic: str, name: str) -> None:
    def create(**wanted: Any) -> int:
        new = NewTopic(**{"topic": name, "num_partitions": 1, "replication_factor": 1, **wanted})
        return refusal(lambda: only(admin.create_topics([new])))

    assert create(topic=topic) == KafkaError.TOPIC_ALREADY_EXISTS
    assert create(topic="with space") == KafkaError.TOPIC_EXCEPTION
    assert create(topic="..") == KafkaError.TOPIC_EXCEPTION
    assert create(topic="x" * 250) == KafkaError.TOPIC_EXCEPTION
    assert create(num_partitions=0) == KafkaError.INVALID_PARTITIONS
    assert create(replication_factor=3) == KafkaError.INVALID_REPLICATION_FACTOR
    assert create(config={"retention.ms": "soon"}) == KafkaError.INVALID_CONFIG
    assert create(config={"no.such.config": "1"}) == KafkaError.INVALID_CONFIG
    assert create(config={"cleanup.policy": "shred"}) == KafkaError.INVALID_CONFIG
    assert name not in names(admin)


def test_a_topic_may_be_tried_without_creating_it(admin: AdminClient, name: str) -> None:
    only(admin.create_topics([NewTopic(name, 3, 1)], validate_only=True))
    assert name not in names(admin)


def test_deleting_what_is_not_there(admin: AdminClient, name: str) -> None:
    assert refusal(lambda: only(admin.delete_topics([name]))) == KafkaError.UNKNOWN_TOPIC_OR_PART


def grow(admin: AdminClient, topic: str, total: int) -> None:
    only(admin.create_partitions([NewPartitions(topic, total)]))


def test_partitions_grow_and_never_shrink(admin: AdminClient, topic: str, name: str) -> None:
    grow(admin, topic, 4)
    assert len(only(admin.describe_topics(TopicCollection([topic]))).partitions) == 4
    for count in (4, 1):
        assert refusal(partial(grow, admin, topic, count)) == KafkaError.INVALID_PARTITIONS
    assert refusal(partial(grow, admin, name, 2)) == KafkaError.UNKNOWN_TOPIC_OR_PART


def config(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    described: dict[str, ConfigEntry] = only(admin.describe_configs([resource]))
    return described


def change(admin: AdminClient, topic: str, name: str, value: str | None, operation: AlterConfigOpType) -> None:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]))


def test_configs_are_described_changed_and_reset(admin: AdminClient, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    before = config(admin, resource)["retention.ms"]
    assert (before.value, before.is_default) == ("604800000", True)
    change(admin, topic, "retention.ms", "60000", AlterConfigOpType.SET)
    changed = config(admin, resource)["retention.ms"]
    assert (changed.value, changed.is_default) == ("60000", False)
    change(admin, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert config(admin, resource)["cleanup.policy"].value == "delete,compact"
    change(admin, topic, "cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    assert config(admin, resource)["cleanup.policy"].value == "compact"
    change(admin, topic, "retention.ms", None, AlterConfigOpType.DELETE)
    assert config(admin, resource)["retention.ms"].value == "604800000"


def test_wrong_configs_are_refused_and_change_nothing(admin: AdminClient, topic: str, name: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    before = {key: entry.value for key, entry in config(admin, resource).items()}
    for key, value in (
        ("retention.ms", "a week"),
        ("retention.ms", "-5"),
        ("max.message.bytes", "-1"),
        ("cleanup.policy", "shred"),
        ("message.timestamp.type", "Whenever"),
        ("min.insync.replicas", "0"),
        ("no.such.config", "1"),
    ):
        wrong = refusal(partial(change, admin, topic, key, value, AlterConfigOpType.SET))
        assert wrong == KafkaError.INVALID_CONFIG, (key, value)
    not_a_list = refusal(lambda: change(admin, topic, "retention.ms", "1", AlterConfigOpType.APPEND))
    assert not_a_list in (KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST)
    assert {key: entry.value for key, entry in config(admin, resource).items()} == before
    unknown = ConfigResource(ResourceType.TOPIC, name)
    assert refusal(lambda: config(admin, unknown)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    missing = refusal(lambda: change(admin, name, "retention.ms", "1", AlterConfigOpType.SET))
    assert missing == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_changed_limit_counts_at_once(admin: AdminClient, bootstrap: str, topic: str) -> None:
    change(admin, topic, "max.message.bytes", "1000", AlterConfigOpType.SET)
    assert (
        refusal(lambda: librdkafka.produce(bootstrap, topic, [Message(bytes(2_000))])) == KafkaError.MSG_SIZE_TOO_LARGE
    )
    change(admin, topic, "max.message.bytes", None, AlterConfigOpType.DELETE)
    librdkafka.produce(bootstrap, topic, [Message(bytes(2_000))])


def test_a_limit_that_is_set_for_brokers_counts_at_once(admin: AdminClient, bootstrap: str, topic: str) -> None:
    def change_broker(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        only(admin.incremental_alter_configs([resource]))

    described = config(admin, ConfigResource(ResourceType.BROKER, "1"))
    assert described["message.max.bytes"].value == "1048588"
    assert described["auto.create.topics.enable"].value == "true"
    change_broker("message.max.bytes", "1000", AlterConfigOpType.SET)
    try:
        sent = refusal(lambda: librdkafka.produce(bootstrap, topic, [Message(bytes(2_000))]))
        assert sent == KafkaError.MSG_SIZE_TOO_LARGE
        assert config(admin, ConfigResource(ResourceType.TOPIC, topic))["max.message.bytes"].value == "1000"
    finally:
        change_broker("message.max.bytes", None, AlterConfigOpType.DELETE)
    librdkafka.produce(bootstrap, topic, [Message(bytes(2_000))])
    change_broker("log.cleaner.backoff.ms", "15001", AlterConfigOpType.SET)
    assert config(admin, ConfigResource(ResourceType.BROKER, "1"))["log.cleaner.backoff.ms"].value == "15001"
    fixed = refusal(lambda: change_broker("listeners", "PLAINTEXT://:1", AlterConfigOpType.SET))
    assert fixed == KafkaError.INVALID_REQUEST


def test_records_are_deleted_up_to_an_offset(admin: AdminClient, bootstrap: str, topic: str) -> None:
    librdkafka.produce(bootstrap, topic, [Message(b"%d" % number) for number in range(20)])
    deleted = only(admin.delete_records([TopicPartition(topic, 0, 12)]))
    assert deleted.low_watermark == 12
    reader = librdkafka.consumer(bootstrap, "unused")
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_SECONDS) == (12, 20)
    reader.assign([TopicPartition(topic, 0, 3)])
    assert [message.offset() for message in librdkafka.take(reader, 8)] == list(range(12, 20))
    reader.close()
    assert refusal(lambda: only(admin.delete_records([TopicPartition(topic, 0, 21)]))) == (
        KafkaError.OFFSET_OUT_OF_RANGE
    )
    everything = only(admin.delete_records([TopicPartition(topic, 0, -1)]))
    assert everything.low_watermark == 20
    librdkafka.produce(bootstrap, topic, [Message(b"after")])
    (message,) = librdkafka.consume(bootstrap, topic, 1)
    assert (message.offset, message.value) == (20, b"after")


def test_offsets_are_listed(admin: AdminClient, bootstrap: str, topic: str) -> None:
    timestamps = [FIRST_TIMESTAMP_MS + after for after in (0, 50, 20, 30)]
    librdkafka.produce(bootstrap, topic, [Message(b"x", timestamp_ms=at) for at in timestamps])
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 4),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(FIRST_TIMESTAMP_MS + 25), 1),
        (OffsetSpec.for_timestamp(FIRST_TIMESTAMP_MS + 51), -1),
    ):
        assert only(admin.list_offsets({TopicPartition(topic, 0): spec})).offset == offset, spec
    beyond = {TopicPartition(topic, 7): OffsetSpec.latest()}
    assert refusal(lambda: only(admin.list_offsets(beyond))) == KafkaError._NOENT, "the client knows better"


def test_the_cluster_is_described(admin: AdminClient, bootstrap: str, make_topic: MakeTopic) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_SECONDS)
    (broker,) = cluster.nodes
    assert (broker.id, f"{broker.host}:{broker.port}") == (1, bootstrap)
    assert cluster.controller.id == 1
    assert cluster.cluster_id
    assert cluster.authorized_operations

    by_python = kafka_python.admin(bootstrap)
    try:
        described = by_python.describe_cluster()
        assert described["cluster_id"] == cluster.cluster_id
        topic = make_topic(partitions=5)
        first = by_python.describe_topic_partitions([topic], response_partition_limit=3)
        rest = by_python.describe_topic_partitions([topic], cursor=first["next_cursor"])
        parts = [part for answer in (first, rest) for one in answer["topics"] for part in one["partitions"]]
        assert [(part["partition_index"], part["leader_id"]) for part in parts] == [(it, 1) for it in range(5)]
        assert rest["next_cursor"] is None
        quorum = by_python.describe_metadata_quorum()
        (partition,) = quorum["topics"][0]["partitions"]
        assert (partition["error"], partition["leader_id"]) == (None, 1)
        assert [voter["replica_id"] for voter in partition["current_voters"]] == [1]
        assert partition["current_voters"][0]["log_end_offset"] == partition["high_watermark"] > 1
        assert partition["observers"] == []
        features = by_python.describe_features()
        level = features["mainstem.level"]
        assert (level["supported"], level["finalized"]) == ((FeatureLevel.FIRST, NEWEST), (NEWEST, NEWEST))
        assert level["finalized_epoch"] > 0
        assert features["group.version"]["finalized"] == (1, 1)
        assert by_python.update_features({"mainstem.level": NEWEST}, validate_only=True) == {"mainstem.level": "OK"}
        with pytest.raises(InvalidUpdateVersionError):
            by_python.update_features({"mainstem.level": NEWEST + 1})
        assert by_python.list_partition_reassignments() == {}
        here, cancelled = (PythonPartition(topic, index) for index in (0, 1))
        assert by_python.alter_partition_reassignments({here: [1], cancelled: None}) == {
            here: None,
            cancelled: NoReassignmentInProgressError,
        }
        assert by_python.alter_partition_reassignments({here: [2]}) == {here: InvalidReplicationAssignmentError}
        listed = by_python.list_config_resources(["TOPIC", "BROKER"])
        assert topic in listed["topic"]
        assert listed["broker"] == ["1"]
    finally:
        by_python.close()


def test_leaders_that_are_preferred_already_are_not_elected(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    asked = [TopicPartition(topic, 0), TopicPartition(topic, 9)]
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        elected = admin.elect_leaders(kind, asked).result(PATIENCE_SECONDS)
        assert {partition.partition: error.code() for partition, error in elected.items()} == {
            0: KafkaError.ELECTION_NOT_NEEDED,
            9: KafkaError.UNKNOWN_TOPIC_OR_PART,
        }
        assert admin.elect_leaders(kind, None).result(PATIENCE_SECONDS) == {}
    by_python = kafka_python.admin(bootstrap)
    try:
        (result,) = by_python.elect_leaders(0, {topic: [0, 1]}).replica_election_results
        assert sorted(part.partition_id for part in result.partition_result) == [0, 1]
    finally:
        by_python.close()


def test_groups_are_listed_described_and_deleted(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(partitions=2)
    librdkafka.produce(bootstrap, topic, [Message(b"x")] * 5)
    reader = librdkafka.consumer(bootstrap, name, **{"client.id": "the-reader"})
    reader.subscribe([topic])
    librdkafka.take(reader, 5)
    reader.commit(asynchronous=False)

    listed = admin.list_consumer_groups().result(PATIENCE_SECONDS)
    assert listed.errors == []
    state_of = {group.group_id: group.state for group in listed.valid}
    assert state_of[name] == ConsumerGroupState.STABLE
    described = only(admin.describe_consumer_groups([name]))
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    (member,) = described.members
    assert member.client_id == "the-reader"
    assert sorted(p.partition for p in member.assignment.topic_partitions) == [0, 1]
    assert described.coordinator.id == 1
    assert refusal(lambda: only(admin.delete_consumer_groups([name]))) == KafkaError.NON_EMPTY_GROUP

    reader.close()
    described = only(admin.describe_consumer_groups([name]))
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])
    offsets = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]))
    assert {p.partition: p.offset for p in offsets.topic_partitions}[0] == 5
    wanted = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, 2)])
    only(admin.alter_consumer_group_offsets([wanted]))
    offsets = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]))
    assert {p.partition: p.offset for p in offsets.topic_partitions}[0] == 2

    only(admin.delete_consumer_groups([name]))
    assert name not in {group.group_id for group in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid}
    assert refusal(lambda: only(admin.delete_consumer_groups([name]))) == KafkaError.GROUP_ID_NOT_FOUND


def test_kafka_pythons_admin_client(bootstrap: str, name: str) -> None:
    admin = kafka_python.admin(bootstrap)
    try:
        admin.create_topics([PythonTopic(name, num_partitions=2, replication_factor=1)])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([PythonTopic(name, num_partitions=2, replication_factor=1)])
        with pytest.raises(InvalidTopicError):
            admin.create_topics([PythonTopic("a/b", num_partitions=2, replication_factor=1)])
        assert name in admin.list_topics()
        librdkafka.produce(bootstrap, name, [Message(bytes(1_000))] * 7)
        reader = librdkafka.consumer(bootstrap, name)
        reader.subscribe([name])
        librdkafka.take(reader, 7)
        reader.commit(asynchronous=False)
        reader.close()
        assert name in {group["group_id"] for group in admin.list_groups()}
        offsets = admin.list_group_offsets({name: None})[name]
        assert offsets[PythonPartition(name, 0)].offset == 7
        admin.delete_group_offsets(name, [PythonPartition(name, 0)])
        assert PythonPartition(name, 0) not in admin.list_group_offsets({name: None})[name]
        admin.delete_groups([name])
        assert name not in {group["group_id"] for group in admin.list_groups()}
        admin.delete_records({PythonPartition(name, 0): 3})
        assert [message.offset for message in librdkafka.consume(bootstrap, name, 4, offset=3)] == [
            3,
            4,
            5,
            6,
        ]
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


def test_log_directories_show_where_a_partitions_bytes_are(
    bootstrap: str, node: Serving, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    librdkafka.produce(bootstrap, topic, [Message(bytes(10_000))] * 10)
    admin = kafka_python.admin(bootstrap)
    try:
        described = admin.describe_log_dirs()
    finally:
        admin.close()
    (of_node,) = described
    directories = {each["log_dir"]: each for each in of_node["log_dirs"]}
    assert set(directories) == {str(node.write_dir), str(node.store_dir)}
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for found in directories[str(node.write_dir)]["topics"]
        if found["name"] == topic
        for partition in found["partitions"]
    }
    assert 100_000 < sizes[0] < 200_000, "unsplit, so on disk 1"
    assert sizes[1] == 0
    assert topic not in {found["name"] for found in directories[str(node.store_dir)]["topics"]}
    assert all(0 < each["usable_bytes"] <= each["total_bytes"] for each in directories.values())


def test_aiokafkas_admin_client(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=PATIENCE_MS)
        await admin.start()
        try:
            created = await admin.create_topics([AsyncioTopic(name, num_partitions=3, replication_factor=1)])
            assert [error[1] for error in created.topic_errors] == [0]
            again = await admin.create_topics([AsyncioTopic(name, num_partitions=3, replication_factor=1)])
            assert [error[1] for error in again.topic_errors] == [KafkaError.TOPIC_ALREADY_EXISTS]
            assert name in await admin.list_topics()
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            cluster = await admin.describe_cluster()
            assert [broker["node_id"] for broker in cluster["brokers"]] == [1]
            await asyncio.to_thread(librdkafka.produce, bootstrap, name, [Message(b"x")] * 5)
            where = AsyncioPartition(name, 0)
            assert await admin.delete_records({where: RecordsToDelete(3)}) == {where: 3}
            async with AIOKafkaConsumer(name, bootstrap_servers=bootstrap, group_id=name) as reader:
                await reader.commit({where: 4})
                assert name in {group[0] for group in await admin.list_consumer_groups()}
                (groups,) = await admin.describe_consumer_groups([name])
                assert [(group[1], group[2]) for group in groups.groups] == [(name, "Stable")]
            assert (await admin.list_consumer_group_offsets(name))[where].offset == 4
            await admin.delete_topics([name])
            assert name not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(scenario())


def test_a_topic_of_many_partitions(admin: AdminClient, bootstrap: str, name: str) -> None:
    only(admin.create_topics([NewTopic(name, 5_000, 1)]))
    assert len(admin.list_topics(name, PATIENCE_SECONDS).topics[name].partitions) == 5_000
    librdkafka.produce(bootstrap, name, [Message(b"first")])
    reader = librdkafka.consumer(bootstrap, "unused")
    ends = [reader.get_watermark_offsets(TopicPartition(name, number), PATIENCE_SECONDS) for number in (0, 1, 4_999)]
    assert ends == [(0, 1), (0, 0), (0, 0)]
    reader.close()
    only(admin.delete_topics([name]))
    eventually(lambda: name not in names(admin), what="the deletion")


def test_the_older_way_to_alter_configs_sets_all_of_them(admin: AdminClient, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for configs in ({"retention.ms": "60000"}, {"max.message.bytes": "5000"}):
        wanted = ConfigResource(ResourceType.TOPIC, topic, set_config=configs)
        with pytest.warns(DeprecationWarning, match="incremental"):
            altered = admin.alter_configs([wanted])
        only(altered)
    found = config(admin, resource)
    assert (found["max.message.bytes"].value, found["max.message.bytes"].is_default) == ("5000", False)
    assert found["retention.ms"].is_default
