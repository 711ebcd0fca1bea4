"""Transcripts: who is elected, who disturbs nobody, who steps down, and how leadership is handed over."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.raft.cluster import Cluster
from tests.raft.disk import Disk
from tests.raft.member import Member

from mainstem.raft import (
    BrokenInvariant,
    Membership,
    MembershipRefused,
    NotLeader,
    NotReady,
    RaftConfig,
    RaftError,
    Role,
)
from mainstem.raft.messages import Heartbeat, RequestVote, TimeoutNow, VoteResponse
from mainstem.raft.roles import TRANSITIONS


def test_somebody_is_elected_when_time_passes() -> None:
    cluster = Cluster()
    cluster.tick(40)
    assert len(cluster.leaders()) == 1
    leader = cluster.leaders()[0]
    assert {member.core.leader_id for member in cluster.members.values()} == {leader}
    assert cluster[leader].serves


def test_timeouts_are_drawn_between_one_and_two_election_timeouts() -> None:
    drawn = set()
    config = RaftConfig(node_id=1, election_ticks=10)
    for seed in range(200):
        member = Member(config, Disk(Membership.of([1, 2, 3], [])), random.Random(seed), lambda *_: None)
        member.receive(Heartbeat(2, 1, 1, 0), ())  # a member that has just started does not wait for as long
        drawn.add(member.core.timeout_ticks)
    assert drawn == set(range(10, 20))


@pytest.mark.parametrize(
    ("candidate", "granted"),
    [
        ([1, 1], False),
        ([1, 1, 1], True),
        ([1, 1, 1, 1], True),
        ([2], True),
        ([1, 1, 0], False),
    ],
)
def test_a_vote_goes_to_a_log_as_far_as_the_own(candidate: list[int], granted: bool) -> None:
    voter = Cluster(logs={1: [1, 1, 1]}, term=2).members[1]
    voter.receive(RequestVote(2, 1, 3, len(candidate), candidate[-1]), ())
    voter.run()
    voter.sync_hard_state()
    ready = voter.core.ready()
    assert ready is not None
    assert ready.messages == (VoteResponse(1, 2, 3, granted),)


def test_one_vote_per_term_also_after_a_restart() -> None:
    cluster = Cluster()
    cluster.members[1].receive(RequestVote(2, 1, 5, 0, 0), ())
    cluster.members[1].settle()
    cluster.restart(1)
    cluster.members[1].receive(RequestVote(3, 1, 5, 0, 0), ())
    cluster.members[1].receive(RequestVote(2, 1, 5, 0, 0), ())
    cluster.members[1].settle()
    votes = [m for m in cluster.log if isinstance(m, VoteResponse)]
    assert [(m.to, m.granted) for m in votes] == [(2, True), (3, False), (2, True)]


def test_a_node_that_was_cut_off_disturbs_nobody_when_it_comes_back() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(3)
    cluster.tick(100)
    assert cluster[3].role is Role.PRE_CANDIDATE
    assert cluster[3].term == 1, "pre-votes take no term"
    cluster.heal()
    cluster.tick(20)
    assert cluster.leaders() == [1]
    assert cluster[1].term == 1


def test_who_is_left_stands_soon_when_the_leader_is_gone() -> None:
    """One after the other, so that no vote is split."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.stop(1)
    for node_id in (2, 3):
        cluster[node_id].report_gone(1)
        assert cluster[node_id].leader_id == 0
    dues = [cluster[node_id].timeout_ticks for node_id in (2, 3)]
    assert sorted(dues) == [1, 1 + cluster.members[2].config.stand_ticks]
    cluster.tick(1)
    heir = 2 + dues.index(1)
    assert cluster[heir].role is Role.LEADER
    assert cluster[heir].term == 2


def test_of_many_terms_each_one_that_is_left_is_the_first_to_stand() -> None:
    first = set()
    for term in range(4):
        cluster = Cluster(range(1, 6), term=term)
        cluster.elect(5)
        cluster.stop(5)
        for node_id in range(1, 5):
            cluster[node_id].report_gone(5)
        first |= {node_id for node_id in range(1, 5) if cluster[node_id].timeout_ticks == 1}
        assert all(
            cluster[node_id].timeout_ticks <= cluster.members[node_id].config.election_ticks * 2
            for node_id in range(1, 5)
        )
    assert first == {1, 2, 3, 4}


def test_members_that_start_stand_soon_as_nobody_may_lead() -> None:
    """A majority was killed and comes back: the members do not wait for an election timeout, one after the other."""
    cluster = Cluster()
    cluster.elect(1)
    for node_id in (1, 2):
        cluster.stop(node_id)
    cluster.tick(100, 3)
    for node_id in (1, 2):
        cluster.start(node_id)
    config = cluster.members[1].config
    dues = [cluster[node_id].timeout_ticks for node_id in (1, 2)]
    assert len(set(dues)) == 2
    assert max(dues) <= 1 + 3 * config.stand_ticks <= config.election_ticks
    cluster.tick(min(dues), 1, 2)
    assert cluster.leaders() == [1 + dues.index(min(dues))]


def test_who_lived_on_leads_before_members_that_come_back() -> None:
    """Clients are connected to it; it asks for pre-votes in vain, again and again, until somebody answers."""
    cluster = Cluster()
    cluster.elect(1)
    for node_id in (1, 2):
        cluster.stop(node_id)
    cluster.tick(100, 3)
    assert (cluster[3].role, cluster[3].term) == (Role.PRE_CANDIDATE, 1)
    for node_id in (1, 2):
        cluster.start(node_id)
    cluster.tick(2 * cluster.members[3].config.ask_again_ticks)
    assert cluster.leaders() == [3]


def test_a_member_that_starts_disturbs_no_leader() -> None:
    cluster = Cluster()
    cluster.elect(1)
    for node_id in (2, 3):
        cluster.restart(node_id)
        cluster.tick(1 + 3 * cluster.members[node_id].config.stand_ticks, node_id)
        assert cluster[node_id].role is Role.PRE_CANDIDATE, "it stands before it heard the leader"
        cluster.tick(40)
        assert cluster.leaders() == [1]
        assert (cluster[node_id].role, cluster[node_id].leader_id) == (Role.FOLLOWER, 1)
    assert cluster[1].term == 1


@pytest.mark.parametrize("settings", [{"pre_vote": False}, {"check_quorum": False}])
def test_a_member_that_might_depose_a_leader_starts_with_an_election_timeout(settings: dict[str, Any]) -> None:
    cluster = Cluster(**settings)
    assert all(
        cluster[node_id].timeout_ticks >= cluster.members[node_id].config.election_ticks for node_id in (1, 2, 3)
    )


def test_who_has_the_longer_log_stands_instead_of_the_candidate_that_it_refuses() -> None:
    cluster = Cluster(logs={1: [1], 2: [1, 1], 3: [1, 1]}, term=1)
    cluster[1].campaign()
    cluster.settle()
    assert cluster.leaders() == []
    dues = [cluster[node_id].timeout_ticks for node_id in (2, 3)]
    assert sorted(dues) == [1, 1 + cluster.members[2].config.stand_ticks], "one after the other"
    cluster.tick(1)
    assert cluster.leaders() == [2 + dues.index(1)]


def test_who_knows_a_leader_does_not_stand_when_it_refuses_a_candidate() -> None:
    cluster = Cluster(logs={1: [1], 2: [1, 1], 3: [1, 1]}, term=1)
    cluster.isolate(1)
    cluster.elect(2)
    due = cluster[3].timeout_ticks
    cluster.heal()
    cluster.members[3].receive(RequestVote(1, 3, cluster[3].term, 1, 1, pre_vote=True), ())
    assert cluster[3].timeout_ticks == due


def test_a_leader_that_is_not_gone_after_all_goes_on_leading() -> None:
    """Only one was told so: the other protects the leader that it hears."""
    cluster = Cluster()
    cluster.elect(1)
    cluster[3].report_gone(1)
    cluster.tick(2, 3)
    assert cluster[3].role is Role.PRE_CANDIDATE
    cluster.tick(20)
    assert cluster.leaders() == [1]
    assert cluster[3].leader_id == 1
    assert cluster[1].term == 1


def test_that_somebody_else_is_gone_changes_nothing() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[3].report_gone(2)
    cluster[1].report_gone(2)
    assert cluster[3].leader_id == 1
    assert cluster[1].role is Role.LEADER
    cluster[2].report_gone(0)
    assert cluster[2].leader_id == 1


def test_without_pre_vote_a_node_that_hears_from_its_leader_still_protects_it() -> None:
    cluster = Cluster(pre_vote=False)
    cluster.elect(1)
    cluster.members[2].receive(RequestVote(3, 2, 7, 99, 7), ())
    cluster.settle()
    assert cluster[2].term == 1
    assert not [m for m in cluster.log if isinstance(m, VoteResponse) and m.to == 3 and m.term == 7]


def test_a_removed_server_disturbs_nobody() -> None:
    cluster = Cluster(range(1, 5), pre_vote=False)
    cluster.elect(1)
    from mainstem.raft import ChangeKind, MembershipChange

    cluster.cut = {(1, 4)}  # it never hears that it is removed
    cluster[1].propose_membership(MembershipChange(ChangeKind.REMOVE, 4))
    cluster.settle()
    term = cluster[1].term
    cluster.tick(60)
    assert cluster[4].term > term
    assert cluster.leaders() == [1]
    assert cluster[1].term == term


def test_a_leader_without_a_quorum_steps_down() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(21, 1)
    assert cluster[1].role is Role.FOLLOWER
    assert cluster[1].leader_id == 0


def test_a_leader_with_a_quorum_stays() -> None:
    cluster = Cluster(range(1, 6))
    cluster.elect(1)
    cluster.isolate(4, 5)
    cluster.tick(50, 1, 2, 3)
    assert cluster.leaders() == [1]


def test_without_check_quorum_a_leader_stays_until_it_hears_of_another() -> None:
    cluster = Cluster(check_quorum=False)
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(60)
    assert cluster[1].role is Role.LEADER
    assert sorted(cluster.leaders()) != [1]
    cluster.heal()
    cluster.tick(3)
    assert 1 not in cluster.leaders()
    assert len(cluster.leaders()) == 1


def test_the_own_vote_counts_once_it_is_durable() -> None:
    core = Cluster([1], pre_vote=False)[1]
    core.campaign()
    ready, before = core.ready(), core.role
    assert ready is not None
    assert ready.hard_state is not None
    core.advance(ready)
    core.hard_state_persisted(ready.hard_state)
    assert (before, core.role) == (Role.CANDIDATE, Role.LEADER)


def test_two_leaders_of_one_term_are_impossible() -> None:
    cluster = Cluster()
    cluster.elect(1)
    with pytest.raises(BrokenInvariant):
        cluster[1].step(Heartbeat(2, 1, 1, 0))


def test_a_message_for_somebody_else_is_refused() -> None:
    with pytest.raises(RaftError, match="came to node 1"):
        Cluster()[1].step(Heartbeat(2, 3, 1, 0))


def test_leadership_is_handed_to_who_has_caught_up() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.slow = {2}
    cluster[1].propose("x", 1)
    cluster.settle()
    cluster[1].transfer_leadership(2)
    cluster.settle()
    assert not [m for m in cluster.log if isinstance(m, TimeoutNow)], "it lacks an entry"
    with pytest.raises(NotReady):
        cluster[1].propose("refused meanwhile", 1)
    cluster.slow = set()
    cluster.settle()
    assert cluster.leaders() == [2]
    assert cluster[2].term == 2
    assert cluster.data(2) == ["x"]


def test_a_transfer_is_given_up_after_an_election_timeout() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.stop(2)
    cluster[1].propose("x", 1)
    cluster.settle()
    cluster[1].transfer_leadership(2)
    cluster.tick(10, 1, 3)
    assert cluster[1].transfer_to == 0
    cluster[1].propose("taken again", 1)
    cluster.settle()
    assert cluster.data(1) == ["x", "taken again"]


def test_only_voters_may_be_handed_leadership() -> None:
    cluster = Cluster([1, 2], learners=[3])
    cluster.elect(1)
    for node_id in (3, 9):
        with pytest.raises(MembershipRefused):
            cluster[1].transfer_leadership(node_id)


def test_a_learner_never_stands() -> None:
    cluster = Cluster([1, 2], learners=[3])
    cluster[3].campaign()
    cluster.tick(100, 3)
    assert cluster[3].role is Role.FOLLOWER
    assert cluster[3].term == 0


def test_a_driver_hears_of_every_change_of_leader() -> None:
    cluster = Cluster()
    cluster.members[2].receive(Heartbeat(1, 2, 4, 0), ())
    ready = cluster[2].ready()
    assert ready is not None
    assert ready.role_change == (Role.FOLLOWER, 4, 1)


def test_the_documented_transitions_are_the_ones_in_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "replication.md").read_text()
    rows = {line for line in page.splitlines() if line.startswith("| ")}
    for (role, cause), to in TRANSITIONS.items():
        assert f"| {role.value} | {cause.value} | {to.value} |" in rows


def test_the_only_member_takes_a_later_term_that_is_high_enough() -> None:
    cluster = Cluster(voters=(1,))
    cluster.elect(1)
    core = cluster[1]
    core.propose("a", 1)
    cluster.settle()
    for wanted, term in ((core.term + 7, core.term + 7), (1, core.term + 8)):
        core.lead_anew(wanted)
        assert not core.serves, "its vote is not durable yet"
        cluster.settle()
        assert core.serves
        assert core.term == term
    core.propose("b", 1)
    cluster.settle()
    assert cluster.data(1) == ["a", "b"]


def test_the_leader_of_several_takes_a_later_term_with_their_votes() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[1].propose("a", 1)
    with pytest.raises(NotLeader):
        cluster[2].lead_anew(9)
    cluster[1].lead_anew(9)
    assert not cluster[1].serves
    cluster.settle()
    assert cluster[1].serves, "those who hear a leader vote at once, too"
    assert [cluster[node_id].term for node_id in (1, 2, 3)] == [9, 9, 9]
    assert cluster.data(1) == ["a"], "nothing that was proposed is lost"
    cluster[1].propose("b", 1)
    cluster.settle()
    assert cluster.data(3) == ["a", "b"]


def test_an_idle_follower_has_nothing_to_do() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[2].tick()
    assert cluster[2].ready() is None


def test_heartbeats_that_say_the_same_are_the_same_objects() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.tick(3, 1)
    sent = [m for m in cluster.log if isinstance(m, Heartbeat) and m.to == 2]
    assert sent[-1] is sent[-2]
