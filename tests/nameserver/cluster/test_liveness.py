"""Verdicts about nodes, and who leads what: from what was heard and when, without any clock."""

from __future__ import annotations

import pytest

from mainstem.nameserver.cluster.node_liveness import ALIVE, NodeLiveness, NodeState, Report, Thresholds
from mainstem.nameserver.cluster.reach import better_connected, helpers_among
from mainstem.nameserver.cluster.write_group_leaders import WriteGroupLeaders
from mainstem.rpc.messages.metadata import WriteGroupLeader

LIMITS = Thresholds(suspect_seconds=2.0, refused_seconds=1.0, dead_seconds=6.0)


@pytest.mark.parametrize(
    ("silence", "state"),
    [
        (0.0, NodeState.ALIVE),
        (1.9, NodeState.ALIVE),
        (2.0, NodeState.SUSPECTED),
        (5.9, NodeState.SUSPECTED),
        (6.0, NodeState.DEAD),
    ],
)
def test_silence_is_judged(silence: float, state: NodeState) -> None:
    liveness = NodeLiveness(LIMITS, began=0.0)
    liveness.heard(1, 100.0, Report(5))
    verdict = liveness.verdict(1, 100.0 + silence)
    assert verdict.state is state
    assert (f"no heartbeat for {silence:.1f} s" in verdict.reason) == (state is not NodeState.ALIVE)


def test_who_was_never_heard_of_has_time_since_the_leader_began() -> None:
    liveness = NodeLiveness(LIMITS, began=50.0)
    assert liveness.verdict(1, 51.0) == ALIVE
    verdict = liveness.verdict(1, 57.0)
    assert verdict.state is NodeState.DEAD
    assert "never heard of since this leader began, 7.0 s ago" in verdict.reason


def test_a_refused_connection_shortens_the_wait_and_is_named() -> None:
    liveness = NodeLiveness(LIMITS, began=0.0)
    liveness.heard(1, 10.0, Report())
    liveness.failed(1, "connection refused", refused=True, now=10.5)
    assert liveness.verdict(1, 10.9) == ALIVE
    verdict = liveness.verdict(1, 11.0)
    assert verdict.state is NodeState.DEAD
    assert verdict.reason == "no heartbeat for 1.0 s; connection refused"
    liveness.heard(1, 11.5, Report())
    assert liveness.verdict(1, 12.6) == ALIVE


def test_who_is_silent_here_and_answers_another_is_not_dead_for_as_long_as_it_does() -> None:
    liveness = NodeLiveness(LIMITS, began=0.0)
    liveness.heard(2, 10.0, Report())
    liveness.failed(2, "cannot reach node 2", refused=True, now=11.0)
    liveness.reached(2, by=3, now=15.0)
    assert liveness.verdict(2, 11.5) == ALIVE
    verdict = liveness.verdict(2, 20.9)
    assert verdict.state is NodeState.SUSPECTED
    assert verdict.reason == "no heartbeat for 10.9 s; cannot reach node 2; node 3 reaches it"
    assert liveness.verdict(2, 21.0).state is NodeState.DEAD
    liveness.reached(2, by=3, now=22.0)
    assert liveness.verdict(2, 22.0).state is NodeState.SUSPECTED
    liveness.left(2, 23.0)
    liveness.reached(2, by=3, now=23.1)
    assert liveness.is_gone(2)
    assert liveness.verdict(2, 23.2).state is NodeState.DEAD, "it said so itself"


def test_the_dead_of_the_leader_before_live_when_another_node_reaches_them() -> None:
    liveness = NodeLiveness(LIMITS, began=0.0, dead={2: "no heartbeat for 9 s"})
    liveness.reached(2, by=3, now=1.0)
    assert liveness.verdict(2, 1.0) == ALIVE


@pytest.mark.parametrize(
    ("reached", "better"),
    [
        ({3: {2, 3}}, 3),
        ({3: {3}}, 0),
        ({}, 0),
        ({3: {2, 3}, 4: {2, 3, 4}}, 4),
        ({3: {2, 3}, 9: {2, 3, 4, 9}}, 0),
        ({3: {2, 3, 4}, 4: {2, 3, 4, 5}}, 4),
    ],
    ids=["the bridge", "no more than this", "nobody", "all that are heard", "no voter", "the most"],
)
def test_who_reaches_everybody_that_the_leader_hears_and_more_is_better_connected(
    reached: dict[int, set[int]], better: int
) -> None:
    silent, heard = {2, 5}, reached.keys()
    assert better_connected(heard, silent, reached, voters={1, 2, 3, 4, 5}) == better


def test_some_are_asked_for_help_voters_first() -> None:
    assert helpers_among({9, 8, 7, 4, 3}, voters={1, 2, 3, 4}) == [3, 4, 7]


def test_who_stops_may_say_why() -> None:
    liveness = NodeLiveness(LIMITS, began=0.0)
    liveness.left(2, 23.0, "disk 1 failed")
    assert liveness.verdict(2, 25.0) == (NodeState.DEAD, "it said that it stops, 2.0 s ago; disk 1 failed")


def test_what_failed_before_a_heartbeat_does_not_count() -> None:
    liveness = NodeLiveness(LIMITS, began=0.0)
    liveness.heard(1, 10.0, Report())
    liveness.failed(1, "connection refused", refused=True, now=9.0)
    assert liveness.verdict(1, 11.5) == ALIVE


def test_the_dead_of_the_leader_before_stay_dead_until_heard() -> None:
    liveness = NodeLiveness(LIMITS, began=0.0, dead={2: "no heartbeat for 9 s"})
    assert liveness.verdicts([1, 2], 0.5) == {2: (NodeState.DEAD, "no heartbeat for 9 s")}
    liveness.heard(2, 0.6, Report())
    assert liveness.verdicts([1, 2], 0.7) == {}


def test_of_two_claims_the_higher_term_holds_and_in_one_term_the_first() -> None:
    leaders = WriteGroupLeaders()
    assert leaders.learn(0, 1, 5)
    assert not leaders.learn(0, 2, 5)
    assert not leaders.learn(0, 2, 4)
    assert leaders.of(0) == (1, 5)
    assert leaders.learn_all([WriteGroupLeader(0, 3, 6), WriteGroupLeader(9, 1, 1)], groups=4)
    assert leaders.all() == {0: (3, 6)}
    assert leaders.told() == [WriteGroupLeader(0, 3, 6)]
