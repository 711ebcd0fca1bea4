"""Nodes that do not hear each other while clients still reach them all: only a majority acknowledges, and what it
acknowledged is there when the wires are whole again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients.drivers.librdkafka import produce
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster, not_dead, terms
from tests.end_to_end.cluster_load import GIVES_UP_SOON_MS, NEVER, PARTITIONS, goes_on, load_on
from tests.end_to_end.raw_producer import TIMEOUT_SOON_MS, RawAsker, RawProducer
from tests.end_to_end.wires import Wires
from tests.harness.serving import eventually

from mainstem.protocol.error_codes import ErrorCode


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), "pipeline.mode=off", wired=True)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    shared.wait_until_well()
    yield shared
    wires(shared).mend()


def wires(cluster: Cluster) -> Wires:
    assert cluster.wires is not None
    return cluster.wires


def test_a_leader_that_is_cut_off_acknowledges_nothing(cluster: Cluster) -> None:
    with load_on(cluster, "parted", gives_up_ms=GIVES_UP_SOON_MS) as load:
        alone = cluster.leader("parted", 0)
        with RawProducer(cluster.nodes[alone].kafka) as producer:
            wires(cluster).isolate(alone)
            producer.send("parted", 0, NEVER, TIMEOUT_SOON_MS)
            cluster.leader_other_than(alone, "parted", 0, asked=cluster.others(alone)[0])
            goes_on(load, "parted")
            assert producer.answer() == ErrorCode.REQUEST_TIMED_OUT, "it cannot know that nobody has it"
            producer.send("parted", 0, NEVER)
            assert producer.answer() == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert cluster.leader("parted", 0, asked=alone) in (-1, alone)
            wires(cluster).mend()


def test_a_leader_that_wakes_up_cut_off_does_not_tell_where_a_queue_ends(cluster: Cluster) -> None:
    """It has heard nothing of a new leader, nor of what was acknowledged meanwhile, and takes itself for the leader."""
    with load_on(cluster, "asleep", gives_up_ms=GIVES_UP_SOON_MS) as load:
        asleep = cluster.leader("asleep", 0)
        with RawAsker(cluster.nodes[asleep].kafka) as asker:
            asker.ask("asleep", 0)
            error, before = asker.answer()
            assert (error, before > 0) == (ErrorCode.NONE, True)
            wires(cluster).isolate(asleep)
            cluster.freeze(asleep)
            cluster.leader_other_than(asleep, "asleep", 0, asked=cluster.others(asleep)[0])
            goes_on(load, "asleep")
            asker.ask("asleep", 0)
            cluster.thaw(asleep)
            assert asker.answer() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        wires(cluster).mend()


def test_two_leaders_that_do_not_hear_each_other_serve_on_and_the_third_leads_the_metadata(cluster: Cluster) -> None:
    """A bridge: for the metadata's leader the other one is silent, but it leads with a majority and lives for all."""
    with load_on(cluster, "bridged") as load:
        chief = cluster.metadata_leader()
        silent = eventually(
            lambda: next((one for one in cluster.others(chief) if cluster.led_by(one, "bridged")), 0),
            what="another node that leads a partition",
        )
        (bridge,) = set(cluster.nodes) - {chief, silent}
        wires(cluster).cut(chief, silent)

        def bridge_leads() -> bool:
            views = cluster.views()
            for asked, view in views.items():
                assert silent in not_dead(view), f"node {asked} takes node {silent} for dead"
            return all(view["metadata_leader"] == bridge for view in views.values())

        eventually(bridge_leads, what=f"node {bridge} to lead the metadata")
        eventually(
            lambda: all(
                cluster.leader("bridged", partition, asked=asked) > 0
                for asked in cluster.nodes
                for partition in range(PARTITIONS)
            ),
            what="every node to know who leads each partition",
        )
        goes_on(load, "bridged")
        cluster.create_topic("made-meanwhile", PARTITIONS)
        for asked in cluster.nodes.values():  # by clients that know no other node to begin with
            produce(asked.kafka, "made-meanwhile", [Message(b"by way of one node")])
        wires(cluster).mend()


def test_a_leader_that_nobody_answers_makes_way(cluster: Cluster) -> None:
    """Its messages arrive, so that the others hear a leader; theirs do not, so that it commits nothing."""
    with load_on(cluster, "deaf") as load:
        deaf = cluster.leader("deaf", 0)
        for other in cluster.others(deaf):
            wires(cluster).cut_one_way(other, deaf)
        cluster.leader_other_than(deaf, "deaf", 0, asked=cluster.others(deaf)[0])
        goes_on(load, "deaf")
        wires(cluster).mend()


def test_who_knows_only_the_node_that_is_cut_off_gets_to_know_the_others(cluster: Cluster) -> None:
    """A client asks for the new leader where it is connected, which is at the node that has heard of none."""
    with load_on(cluster, "misled", 1, by_leader=True) as load:
        alone = cluster.leader("misled", 0)
        wires(cluster).isolate(alone)
        cluster.leader_other_than(alone, "misled", 0, asked=cluster.others(alone)[0])
        goes_on(load, "misled", range(1))
        wires(cluster).mend()


def test_a_follower_that_was_cut_off_does_not_unseat_the_leaders(cluster: Cluster) -> None:
    """It asks before it stands for election, so that it comes back with no higher term than the leaders have."""
    with load_on(cluster, "away") as load:
        away, other = cluster.others(cluster.leader("away", 0))
        wires(cluster).isolate(away)
        eventually(lambda: cluster.metadata_leader(away) <= 0, what="a node that hears no leader")
        for _ in range(2):
            goes_on(load, "away")
        views = cluster.views()
        reached = {group: term for group, (_, term) in terms(views[away]).items()}
        for group, (_, term) in terms(views[other]).items():
            assert reached[group] <= term, f"write group {group}"
        wires(cluster).mend()
