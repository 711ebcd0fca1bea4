"""A cluster and its clients on hosts of their own, whose network is cut here and there, by the kernel's TCP on both
ends: what was acknowledged is there once, in its order, whichever client sent it; leaders move where they must and
only there; and who talks to a node that is cut off is told.

Beyond `test_cluster_partitions`, which cuts what nodes say to each other: clients lose their nodes, too, and packets
are lost instead of connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, PartitionMetadata
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.both_loads import both_load
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import GIVES_UP_SOON_MS, NEVER, PARTITIONS, goes_on
from tests.end_to_end.hosts_of_nodes import CLIENTS, entered_network, started
from tests.end_to_end.load import Queue
from tests.end_to_end.namespaces import Network
from tests.end_to_end.raw_producer import TIMEOUT_SOON_MS, RawProducer
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

from mainstem.protocol.error_codes import ErrorCode

NODES = (1, 2, 3)
SOME_PACKETS = 500
"""So many are dropped before a lossy network counts as one."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with entered_network(NODES) as network:
        yield network


@pytest.fixture(scope="module")
def shared(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), "pipeline.mode=off", network=network)
    with started(cluster, network):
        yield cluster


@pytest.fixture
def cluster(shared: Cluster, network: Network) -> Iterator[Cluster]:
    shared.wait_until_well()
    yield shared
    network.mend()


def partitions_of(cluster: Cluster, topic: str) -> list[PartitionMetadata]:
    """As clients are told, the preferred leader first among the replicas."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
    return list(admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions.values())


@pytest.mark.long  # `test_cluster_partitions` has it over wires that are cut, for librdkafka
def test_a_bridge_carries_all_of_it(cluster: Cluster, network: Network) -> None:
    """Two nodes do not hear each other, the third hears both; clients hear all."""
    with both_load(cluster, "bridged", mend=network.mend) as load:
        chief = cluster.metadata_leader()
        silent = eventually(
            lambda: next((one for one in cluster.others(chief) if cluster.led_by(one, "bridged")), 0),
            what="another node that leads a partition",
        )
        (bridge,) = set(cluster.nodes) - {chief, silent}
        network.cut(chief, silent)
        eventually(
            lambda: all(view["metadata_leader"] == bridge for view in cluster.views().values()),
            what=f"node {bridge} to lead the metadata",
        )
        goes_on(load, "bridged")


def test_a_node_without_the_others_acknowledges_nothing_to_its_clients(cluster: Cluster, network: Network) -> None:
    with both_load(cluster, "parted", GIVES_UP_SOON_MS, mend=network.mend) as load:
        alone = cluster.leader("parted", 0)
        others = cluster.others(alone)
        with RawProducer(cluster.nodes[alone].kafka) as producer:
            for other in others:
                network.cut(alone, other)
            producer.send("parted", 0, NEVER, TIMEOUT_SOON_MS)
            cluster.leader_other_than(alone, "parted", 0, asked=others[0])
            goes_on(load, "parted")
            assert producer.answer() == ErrorCode.REQUEST_TIMED_OUT, "it cannot know that nobody has it"
            producer.send("parted", 0, NEVER)
            assert producer.answer() == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_node_that_only_its_clients_have_lost_leads_on_and_they_come_back(cluster: Cluster, network: Network) -> None:
    """No other node could tell: what it leads waits, all else goes on, and nothing is given up."""
    with both_load(cluster, "unreached", mend=network.mend) as load:
        eventually(
            lambda: all(one.leader == one.replicas[0] for one in partitions_of(cluster, "unreached")),
            seconds=PATIENCE_SECONDS,
            what="leaderships where placement wants them, which stay there: an election may have given one node all",
        )
        away = cluster.leader("unreached", 0)
        led = eventually(lambda: cluster.led_by(away, "unreached"), what="partitions that it leads")
        elsewhere = [partition for partition in range(PARTITIONS) if partition not in led]
        assert elsewhere, "one node leads all of it"
        network.cut(away, CLIENTS)
        asked = cluster.others(away)[0]
        for _ in range(3):
            for partition in elsewhere:
                goes_on(load, "unreached", range(partition, partition + 1))
        assert cluster.leader("unreached", led[0], asked=asked) == away
        assert away in cluster.not_dead(asked)
        network.mend()
        goes_on(load, "unreached")


def test_a_leader_that_hears_neither_nodes_nor_clients_makes_way(cluster: Cluster, network: Network) -> None:
    """Its messages arrive, messages to it do not."""
    with both_load(cluster, "deaf", GIVES_UP_SOON_MS, mend=network.mend) as load:
        deaf = cluster.leader("deaf", 0)
        for other in (*cluster.others(deaf), CLIENTS):
            network.cut_one_way(other, deaf)
        cluster.leader_other_than(deaf, "deaf", 0, asked=cluster.others(deaf)[0])
        goes_on(load, "deaf")


@pytest.mark.long  # the simulation loses more at each change; this is for kernels and clients
def test_a_network_that_loses_three_packets_in_ten_loses_no_message(cluster: Cluster, network: Network) -> None:
    """Connections stall, elections come and go, answers are lost and requests repeated."""
    with both_load(cluster, "lossy", mend=network.mend) as load:
        before, acknowledged = network.dropped, load.acknowledged_count
        network.lose(0.3)
        eventually(
            lambda: network.dropped > before + SOME_PACKETS and load.acknowledged_count > acknowledged,
            what="some packets lost and some messages acknowledged",
        )
        network.mend()
        goes_on(load, "lossy")
        assert {Queue("lossy", partition) for partition in range(PARTITIONS)} >= set(load.acknowledged)
