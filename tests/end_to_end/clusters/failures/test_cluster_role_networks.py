"""Nodes that keep the metadata, nodes that store, and brokers, each on a host of its own, whose network is cut between
these roles: what was acknowledged is there once and in its order, and all goes on that need not wait for the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.end_to_end.both_loads import both_load
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import GIVES_UP_SOON_MS, goes_on
from tests.end_to_end.hosts_of_nodes import entered_network, started
from tests.end_to_end.namespaces import Network
from tests.harness.serving import eventually

NAMESERVERS, STORES, BROKERS = (1, 2, 3), (4, 5, 6), (7, 8)
ROLES = dict.fromkeys(NAMESERVERS, "nameserver") | dict.fromkeys(STORES, "storage") | dict.fromkeys(BROKERS, "broker")

pytestmark = pytest.mark.long  # eight processes; the simulation cuts the same wires


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with entered_network((*NAMESERVERS, *STORES, *BROKERS)) as network:
        yield network


@pytest.fixture(scope="module")
def shared(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), "pipeline.mode=off", count=8, roles=ROLES, network=network)
    with started(cluster, network):
        yield cluster


@pytest.fixture
def cluster(shared: Cluster, network: Network) -> Iterator[Cluster]:
    shared.wait_until_well()
    yield shared
    network.mend()


def cut(network: Network, some: tuple[int, ...], others: tuple[int, ...]) -> None:
    for one in some:
        for other in others:
            network.cut(one, other)


def is_held_for(state: str, cluster: Cluster, node_id: int, asked: int) -> None:
    """Wait until a node says that another one is in this state."""

    def states() -> dict[int, str]:
        return {node["node_id"]: node["state"] for node in cluster.get("/v1/cluster", asked)["nodes"]}

    eventually(lambda: states().get(node_id, "dead") == state, what=f"a node {asked} that holds {node_id} for {state}")


def test_a_broker_that_hears_no_node_is_replaced_by_the_other(cluster: Cluster, network: Network) -> None:
    """Clients hear it."""
    with both_load(cluster, "lone-broker", GIVES_UP_SOON_MS, network.mend) as load:
        cut(network, BROKERS[:1], (*NAMESERVERS, *STORES, *BROKERS[1:]))
        is_held_for("dead", cluster, BROKERS[0], NAMESERVERS[0])
        goes_on(load, "lone-broker")


def test_a_broker_that_the_metadata_alone_has_lost_serves_on(cluster: Cluster, network: Network) -> None:
    """Those that store hear it, and so do clients: it is suspected, and nobody takes its place."""
    with both_load(cluster, "lost-broker", GIVES_UP_SOON_MS, network.mend) as load:
        cut(network, BROKERS[:1], NAMESERVERS)
        is_held_for("suspected", cluster, BROKERS[0], NAMESERVERS[0])
        goes_on(load, "lost-broker")


def test_a_broker_that_hears_no_node_that_stores_goes_on_when_it_does(cluster: Cluster, network: Network) -> None:
    """The metadata hold it for alive: its queues wait, those of the other broker do not."""
    with both_load(cluster, "deaf-broker", GIVES_UP_SOON_MS, network.mend) as load:
        cut(network, BROKERS[:1], STORES)
        before = load.acknowledged_count
        eventually(lambda: load.acknowledged_count > before + 100, what="acknowledgements by the other broker")
        network.mend()
        goes_on(load, "deaf-broker")


def test_a_node_that_stores_and_that_the_metadata_alone_has_lost_leads_on(cluster: Cluster, network: Network) -> None:
    with both_load(cluster, "lost-store", GIVES_UP_SOON_MS, network.mend) as load:
        lost = cluster.leader("lost-store", 0)
        cut(network, (lost,), NAMESERVERS)
        is_held_for("suspected", cluster, lost, NAMESERVERS[0])
        goes_on(load, "lost-store")


def test_a_leader_that_other_nodes_that_store_have_lost_makes_way(cluster: Cluster, network: Network) -> None:
    """Brokers and the metadata hear it."""
    with both_load(cluster, "lone-leader", GIVES_UP_SOON_MS, network.mend) as load:
        lone = cluster.leader("lone-leader", 0)
        cut(network, (lone,), tuple(it for it in STORES if it != lone))
        cluster.leader_other_than(lone, "lone-leader", 0, asked=NAMESERVERS[0])
        goes_on(load, "lone-leader")


def test_records_flow_while_nobody_hears_the_metadata(cluster: Cluster, network: Network) -> None:
    """Those that keep it hear each other. Clients need no node of them for what is known, and brokers find the next
    leaders of a node that stands still."""
    with both_load(cluster, "no-metadata", GIVES_UP_SOON_MS, network.mend) as load:
        still = cluster.leader("no-metadata", 0)
        cut(network, NAMESERVERS, (*STORES, *BROKERS))
        goes_on(load, "no-metadata")
        cluster.freeze(still)
        try:
            goes_on(load, "no-metadata")
        finally:
            cluster.thaw(still)
        is_held_for("dead", cluster, STORES[0], NAMESERVERS[0])
        goes_on(load, "no-metadata")
