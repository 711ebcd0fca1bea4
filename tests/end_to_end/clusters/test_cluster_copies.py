"""How many copies a topic has, and in which racks: what clients of real nodes are told, and what they are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers import kafka_python, librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

RACKS = {1: "east", 2: "east", 3: "west"}
COPIES = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = ("pipeline.mode=off", f"nameserver.replication_factor={COPIES}")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), *settings)
    for node_id, rack in RACKS.items():
        cluster.nodes[node_id].settings += (f"rack={rack}",)
    try:
        cluster.start()
        cluster.wait_until_well()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})


def create(admin: AdminClient, topic: str, replication_factor: int) -> None:
    admin.create_topics([NewTopic(topic, 4, replication_factor)])[topic].result(PATIENCE_SECONDS)


@pytest.mark.parametrize("asked", [-1, 1, COPIES])
def test_metadata_tells_the_copies_there_are_each_in_a_rack_of_its_own(
    cluster: Cluster, admin: AdminClient, asked: int
) -> None:
    topic = f"asked-for-{asked}"
    create(admin, topic, asked)
    partitions = admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions.values()
    assert len(partitions) == 4
    for partition in partitions:
        assert len(partition.replicas) == COPIES
        assert {RACKS[node_id] for node_id in partition.replicas} == {"east", "west"}


def test_more_copies_than_the_write_groups_keep_are_refused(cluster: Cluster, admin: AdminClient) -> None:
    for asked in (COPIES + 1, len(cluster.nodes) + 1):
        with pytest.raises(KafkaException) as refused:
            create(admin, "wide", asked)
        assert refused.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR, asked
    assert "wide" not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_racks_are_in_metadata_and_a_client_with_a_rack_is_served(cluster: Cluster, admin: AdminClient) -> None:
    described = admin.describe_cluster(request_timeout=PATIENCE_SECONDS).result()
    assert {node.id: node.rack for node in described.nodes} == RACKS
    known = kafka_python.consumer(cluster.bootstrap)
    try:
        known.topics()
        brokers = known._manager.cluster.brokers()  # noqa: SLF001  # kafka-python tells racks nowhere else
        assert {broker.node_id: broker.rack for broker in brokers} == RACKS
    finally:
        known.close()
    create(admin, "near", -1)
    librdkafka.produce(cluster.bootstrap, "near", [Message(b"%d" % number) for number in range(20)])
    for rack in ("east", "west", "nowhere"):
        reader = librdkafka.consumer(cluster.bootstrap, "unused", **{"client.rack": rack})
        try:
            reader.assign([TopicPartition("near", partition, 0) for partition in range(4)])
            values = sorted(int(message.value()) for message in librdkafka.take(reader, 20))
            assert values == list(range(20)), rack
        finally:
            reader.close()


def test_commands_tell_the_copies_there_are_and_those_that_a_dead_node_has(
    cluster: Cluster, admin: AdminClient
) -> None:
    """The last test here: node 3 is the only one of its rack, so that it keeps a copy of everything, and dies."""
    create(admin, "told", 1)
    node = cluster.nodes[1]

    def listed() -> tuple[int, int]:
        (line,) = [it for it in mainstem_json(node, "topic", "list")["topics"] if it["name"] == "told"]
        return line["replication_factor"], line["under_replicated_partitions"]

    eventually(lambda: listed() == (COPIES, 0), what="topic list with all copies in sync")
    known = admin.list_topics("told", PATIENCE_SECONDS).topics["told"].partitions
    described = mainstem_json(node, "topic", "describe", "told")["partitions"]
    assert {it["partition"]: it["replicas"] for it in described} == {it.id: it.replicas for it in known.values()}
    assert all(set(it["in_sync"]) == set(it["replicas"]) for it in described)
    assert "REPLICAS" in mainstem(node, "topic", "describe", "told")

    cluster.kill(3)
    eventually(lambda: listed() == (COPIES, 4), what="topic list with a copy less in sync of every partition")
    (row,) = [line.split() for line in mainstem(node, "topic", "list").splitlines() if line.startswith("told ")]
    assert row[1:4] == ["4", f"{COPIES}", "4"]
