"""Three nodes whose write groups have three replicas come to some with one while they run: topics choose among them by
their replication factor, clients are told the truth, and each class keeps what it promises while nodes are drained,
die, and start again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition as PythonPartition
from kafka.admin import NewTopic as PythonTopic
from kafka.errors import InvalidReplicationAssignmentError, InvalidReplicationFactorError, NoReassignmentInProgressError
from tests.clients.drivers import kafka_python
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.shell import mainstem, mainstem_json, refused
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

NODES = {1, 2, 3}
PARTITIONS = 8
SAFE, SINGLE = "kept-thrice", "kept-once"
SINGLES = {2, 3, 4}
"""The write groups with one replica."""
LEFT, DYING = 3, 2
"""The node that is drained, and the one that dies later."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = ("pipeline.mode=off", "nameserver.write_groups=2", "groups.rebalance_delay_ms=0")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), *settings)
    try:
        cluster.start()
        cluster.wait_until_well()
        mainstem(cluster.nodes[1], "cluster", "write-groups", "5", "--replication-factor", "1")
        cluster.wait_until_well()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})


def replicas(admin: AdminClient, topic: str) -> list[set[int]]:
    partitions = admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions.values()
    assert all(set(partition.isrs) == set(partition.replicas) for partition in partitions)
    return [set(partition.replicas) for partition in partitions]


def in_write_groups(cluster: Cluster, topic: str) -> set[int]:
    return {one["write_group"] for one in cluster.get(f"/v1/topics/{topic}", 1)["partitions"]}


def members(cluster: Cluster) -> dict[int, set[int]]:
    groups = cluster.get("/v1/cluster", 1)["write_groups"]
    return {group["group"]: {one["node"] for one in group["replicas"] if one["voter"]} for group in groups}


def single_node(cluster: Cluster, group: int) -> int | None:
    """The only member of a write group, as its leader tells; None: it has several, or nobody leads it just now."""
    told = cluster.get("/v1/cluster", 1)["write_groups"][group]["replicas"]
    return told[0]["node"] if len(told) == 1 and told[0]["active"] else None


def leaderless(cluster: Cluster) -> set[int]:
    return {group["group"] for group in cluster.get("/v1/cluster", 1)["write_groups"] if group["leader"] < 0}


def test_a_topics_factor_chooses_its_write_groups_and_clients_are_told_the_truth(
    cluster: Cluster, admin: AdminClient
) -> None:
    asked = {"once": 1, "thrice": 3, "left-to-the-cluster": -1}
    for made in admin.create_topics([NewTopic(name, PARTITIONS, factor) for name, factor in asked.items()]).values():
        made.result(PATIENCE_SECONDS)
    cluster.wait_until_well()
    assert [len(nodes) for nodes in replicas(admin, "once")] == [1] * PARTITIONS
    assert set().union(*replicas(admin, "once")) == NODES, "each node has one of the new write groups"
    assert replicas(admin, "thrice") == replicas(admin, "left-to-the-cluster") == [NODES] * PARTITIONS
    assert in_write_groups(cluster, "once") == SINGLES
    assert in_write_groups(cluster, "thrice") == {0, 1}
    told = {it["name"]: it["replication_factor"] for it in mainstem_json(cluster.nodes[2], "topic", "list")["topics"]}
    assert {name: told[name] for name in asked} == {"once": 1, "thrice": 3, "left-to-the-cluster": 3}
    assert mainstem_json(cluster.nodes[2], "topic", "describe", "once")["replication_factor"] == 1
    assert "2 write groups with 3 replicas" in mainstem(cluster.nodes[1], "cluster", "status")
    assert "No other node has a copy" in mainstem(cluster.nodes[1], "cluster", "explain", "once:0")


def test_a_factor_that_no_class_has_is_granted_by_the_first_or_refused(cluster: Cluster, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("twice", 1, 2)])["twice"].result(PATIENCE_SECONDS)
    assert replicas(admin, "twice") == [NODES]
    with pytest.raises(KafkaException) as failed:
        admin.create_topics([NewTopic("four-times", 1, 4)])["four-times"].result(PATIENCE_SECONDS)
    assert failed.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
    assert "1 or 3 replicas" in failed.value.args[0].str()
    python = kafka_python.admin(cluster.bootstrap)
    try:
        with pytest.raises(InvalidReplicationFactorError):
            python.create_topics([PythonTopic("five-times", num_partitions=1, replication_factor=5)])
        python.create_topics([PythonTopic("by-kafka-python", num_partitions=1, replication_factor=1)])
        (described,) = python.describe_topics(["by-kafka-python"])
        (partition,) = described["partitions"]
        replicas_key = next(key for key in partition if key.startswith("replica"))
        assert len(partition[replicas_key]) == 1
    finally:
        python.close()


def test_each_class_keeps_its_promise_while_a_node_is_drained_dies_and_returns(
    cluster: Cluster, admin: AdminClient
) -> None:
    asked = cluster.nodes[1]
    with (
        load_on(cluster, SAFE, PARTITIONS, copies=3) as safe,
        load_on(cluster, SINGLE, PARTITIONS, copies=1) as single,
    ):
        assert [{LEFT}] == [nodes for nodes in members(cluster).values() if LEFT in nodes and len(nodes) == 1]
        mainstem(asked, "cluster", "drain", str(LEFT))
        eventually(
            lambda: all(single_node(cluster, group) not in (None, LEFT) for group in SINGLES),
            seconds=PATIENCE_SECONDS,
            what="the only replica of a write group on another node",
        )
        now = members(cluster)
        assert now[0] == now[1] == NODES, "there is no fourth node for these"
        goes_on(single, SINGLE, range(PARTITIONS))
        mainstem(asked, "cluster", "drain", str(LEFT), "--cancel")
        cluster.kill(DYING)
        goes_on(safe, SAFE, range(PARTITIONS))
        only_there = {group for group, nodes in now.items() if nodes == {DYING}}
        assert only_there
        eventually(
            lambda: leaderless(cluster) == only_there,
            seconds=PATIENCE_SECONDS,
            what="only the write groups that no other node has without a leader",
        )
        cluster.start(DYING)
        cluster.wait_until_well()
        goes_on(safe, SAFE, range(PARTITIONS))
        goes_on(single, SINGLE, range(PARTITIONS))
    cluster.kill(*NODES)
    cluster.start(*NODES)
    cluster.wait_until_well()
    for load in (safe, single):
        check(cluster, load)
    assert in_write_groups(cluster, SINGLE) == SINGLES


def test_partitions_are_reassigned_to_write_groups_that_have_such_replicas(cluster: Cluster) -> None:
    """The last test: nodes that have several stays of a queue cannot be drained. Kafka's tools name the nodes in order,
    the one first that is to lead."""
    python = kafka_python.admin(cluster.bootstrap)
    try:
        python.create_topics([PythonTopic("reassigned", num_partitions=PARTITIONS, replication_factor=3)])
        cluster.wait_until_well()
        told = cluster.get("/v1/cluster", 1)["write_groups"]
        leader_in = {group: told[group]["preferred_leader"] for group in (0, 1)}
        assert leader_in[0] != leader_in[1]
        were = [one["write_group"] for one in cluster.get("/v1/topics/reassigned", 1)["partitions"]]
        assert set(were) == {0, 1}
        wanted = {
            PythonPartition("reassigned", partition): [leader_in[1 - group], *sorted(NODES - {leader_in[1 - group]})]
            for partition, group in enumerate(were)
        }
        assert python.alter_partition_reassignments(wanted) == dict.fromkeys(wanted)
        eventually(
            lambda: not python.list_partition_reassignments(),
            seconds=PATIENCE_SECONDS,
            what="the end of all moves",
        )
        now = [one["write_group"] for one in cluster.get("/v1/topics/reassigned", 1)["partitions"]]
        assert now == [1 - group for group in were]
        (described,) = python.describe_topics(["reassigned"])
        replicas_key = next(key for key in described["partitions"][0] if key.startswith("replica"))
        index_key = next(key for key in described["partitions"][0] if key.startswith("partition"))
        first = {one[index_key]: one[replicas_key][0] for one in described["partitions"]}
        assert first == {queue.partition: nodes[0] for queue, nodes in wanted.items()}, "Metadata tells the same"
        assert python.alter_partition_reassignments(wanted) == dict.fromkeys(wanted), "it is so already"
        one = PythonPartition("reassigned", 0)
        assert python.alter_partition_reassignments({one: None}) == {one: NoReassignmentInProgressError}
        assert python.alter_partition_reassignments({one: [1, 9]}) == {one: InvalidReplicationAssignmentError}
        alter = ("topic", "alter", "reassigned", "--replication-factor")
        assert mainstem_json(cluster.nodes[2], *alter, "3")["moving"] == 0, "each partition has as many"
        assert "there are some with 1, 3" in refused(cluster.nodes[2], *alter, "2")
    finally:
        python.close()
