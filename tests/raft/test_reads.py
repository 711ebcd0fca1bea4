"""Transcripts: reads that see all that was committed before them."""

from __future__ import annotations

import pytest
from tests.raft.cluster import Cluster

from mainstem.raft import NotLeader, NotReady, Role
from mainstem.raft.messages import Heartbeat, ReadIndex, ReadIndexResponse


def answers(cluster: Cluster, node_id: int) -> list[tuple[object, bool]]:
    return [(result.context, result.granted) for result, _ in cluster.members[node_id].answered]


def test_a_leader_answers_once_a_majority_confirms_it() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[1].read_index("a")
    cluster[1].read_index("b")
    before = len(cluster.log)
    cluster.run()
    assert answers(cluster, 1) == []
    cluster.settle()
    assert answers(cluster, 1) == [("a", True), ("b", True)]
    heartbeats = [m for m in cluster.log[before:] if isinstance(m, Heartbeat)]
    assert len(heartbeats) == 2, "one round for both"


def test_a_leader_cut_off_answers_nothing_and_refuses_when_it_steps_down() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    cluster[1].read_index("stale")
    cluster.settle()
    cluster.elect(2)
    cluster[2].propose("new", 1)
    cluster.settle()
    assert answers(cluster, 1) == []
    cluster.heal()
    cluster.tick(3)
    assert cluster[1].role is Role.FOLLOWER
    assert answers(cluster, 1) == [("stale", False)]


def test_a_confirmation_that_was_lost_comes_with_the_next_heartbeat() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    cluster[1].read_index("a")
    cluster.settle()
    cluster.heal()
    cluster.tick(1, 1)
    assert answers(cluster, 1) == [("a", True)]


def test_a_follower_asks_its_leader_and_waits_until_it_has_applied_as_much() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.slow = {2}
    cluster[1].propose("x", 1)
    cluster.settle()
    cluster[2].read_index("r")
    cluster.settle()
    assert [m.index for m in cluster.log if isinstance(m, ReadIndexResponse)] == [2]
    assert answers(cluster, 2) == []
    cluster.members[2].sync()
    cluster.settle()
    assert answers(cluster, 2) == [("r", True)]


def test_a_follower_is_refused_when_its_leader_is_gone() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.cut = {(2, 1), (1, 2)}
    cluster[2].read_index("r")
    cluster.settle()
    cluster.tick(30, 2)
    assert answers(cluster, 2) == [("r", False)]
    with pytest.raises(NotLeader):
        cluster[2].read_index("nobody to ask")


def test_a_new_leader_does_not_know_yet() -> None:
    cluster = Cluster(logs={1: [1], 2: [1], 3: [1]}, term=1)
    cluster[1].campaign()
    while cluster[1].role is not Role.LEADER:
        cluster.deliver()
    with pytest.raises(NotReady):
        cluster[1].read_index("r")
    cluster[1].step(ReadIndex(2, 1, cluster[1].term, 7))
    cluster.run()
    refused = [m for m in cluster.log if isinstance(m, ReadIndexResponse)]
    assert [(m.to, m.request, m.index) for m in refused] == [(2, 7, -1)]


def test_an_answer_of_an_earlier_life_finds_no_read_of_this_one() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[2].read_index("before the crash")
    cluster.deliver()
    late = cluster.wire
    cluster.wire = []
    cluster.restart(2)
    cluster.tick(2, 1)
    cluster.cut = {(2, 1)}
    cluster[2].read_index("after it")
    cluster.run()
    cluster.wire.extend(late)
    cluster.settle()
    assert answers(cluster, 2) == []


def test_reads_that_wait_are_bounded() -> None:
    cluster = Cluster(reads_waiting_max=2)
    cluster.elect(1)
    cluster[1].read_index("a")
    cluster[1].read_index("b")
    with pytest.raises(NotReady):
        cluster[1].read_index("c")
