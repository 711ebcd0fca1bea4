"""Transcripts: members come as learners, are promoted, and go, one at a time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raft.cluster import Cluster

from mainstem.raft import ChangeKind, Membership, MembershipChange, MembershipRefused, NotReady, Role

BLOCK = 100_000
"""More than a probe carries."""
ADD, PROMOTE, REMOVE = ChangeKind.ADD_LEARNER, ChangeKind.PROMOTE, ChangeKind.REMOVE


@given(
    st.frozensets(st.integers(1, 7), min_size=1),
    st.frozensets(st.integers(1, 7)),
    st.sampled_from(list(ChangeKind)),
    st.integers(1, 8),
)
def test_majorities_of_neighbouring_memberships_overlap(
    voters: frozenset[int], learners: frozenset[int], kind: ChangeKind, node_id: int
) -> None:
    before = Membership(voters, learners - voters)
    try:
        after = before.changed(MembershipChange(kind, node_id))
    except MembershipRefused:
        return
    assert len(before.voters ^ after.voters) <= 1
    assert not after.voters & after.learners
    assert before.quorum + after.quorum > len(before.voters | after.voters)


def test_a_learner_catches_up_and_is_promoted() -> None:
    cluster = Cluster([1, 2])
    cluster.elect(1)
    for at in range(5):
        cluster[1].propose(at, 1)
    cluster.settle()
    cluster.add(3)
    cluster[1].propose_membership(MembershipChange(ADD, 3))
    cluster.tick(3, 1)
    assert cluster.data(3) == list(range(5))
    assert cluster[3].membership == Membership.of([1, 2], [3])
    cluster[1].propose_membership(MembershipChange(PROMOTE, 3))
    cluster.settle()
    assert cluster[3].membership == Membership.of([1, 2, 3])
    cluster.stop(2)
    cluster[1].propose("with the new one", 1)
    cluster.settle()
    assert cluster.data(3)[-1] == "with the new one"


def test_a_learner_catches_up_at_its_pace_and_the_others_do_not_wait() -> None:
    cluster = Cluster([1, 2], learner_bytes_per_tick=2 * BLOCK)
    cluster.elect(1)
    for at in range(40):
        cluster[1].propose(at, BLOCK)
    cluster.settle()
    cluster.tick(2, 1)
    cluster.add(3)
    cluster[1].propose_membership(MembershipChange(ADD, 3))
    seen = [0]
    while len(cluster.data(3)) < 40:
        cluster.tick(1, 1)
        seen.append(len(cluster.data(3)))
    assert max(after - before for before, after in itertools.pairwise(seen)) == 2
    for at in range(40, 60):
        cluster[1].propose(at, BLOCK)
    cluster.settle()
    assert len(cluster.data(2)) == 60
    assert len(cluster.data(3)) < 60
    cluster.tick(1, 1)
    assert len(cluster.data(3)) == 60, "a log that grows fast is caught up with all the same"


def test_a_learner_does_not_count() -> None:
    cluster = Cluster([1, 2], learners=[3])
    cluster.elect(1)
    cluster.stop(2)
    entry = cluster[1].propose("x", 1)
    cluster.settle()
    assert cluster.terms(3)[-1] == entry.term
    assert cluster[1].commit_index == entry.index - 1


def test_a_learner_far_behind_is_not_promoted() -> None:
    cluster = Cluster([1, 2], learners=[3], learner_lag_max=3)
    cluster.elect(1)
    cluster.stop(3)
    for at in range(5):
        cluster[1].propose(at, 1)
    cluster.settle()
    with pytest.raises(MembershipRefused, match="lacks 5"):
        cluster[1].propose_membership(MembershipChange(PROMOTE, 3))


def test_a_change_counts_from_when_it_is_logged_and_not_when_it_is_truncated() -> None:
    cluster = Cluster([1, 2, 3])
    cluster.elect(1)
    cluster.isolate(1)
    cluster[1].propose_membership(MembershipChange(REMOVE, 3))
    cluster.settle()
    assert cluster[1].membership == Membership.of([1, 2])
    cluster.elect(2)
    cluster.heal()
    cluster.tick(3)
    assert cluster[1].membership == Membership.of([1, 2, 3])


def test_changes_wait_for_an_entry_of_the_own_term() -> None:
    cluster = Cluster([1, 2, 3], logs={1: [1], 2: [1], 3: [1]}, term=1)
    cluster.cut = {(1, 2), (1, 3)}
    cluster[1].campaign()
    cluster.cut = set()
    while cluster[1].role is not Role.LEADER:
        cluster.deliver()
    with pytest.raises(NotReady, match="term 2"):
        cluster[1].propose_membership(MembershipChange(REMOVE, 3))
    cluster.settle()
    cluster[1].propose_membership(MembershipChange(REMOVE, 3))


def test_changes_wait_for_each_other() -> None:
    cluster = Cluster([1, 2, 3])
    cluster.elect(1)
    cluster[1].propose_membership(MembershipChange(REMOVE, 3))
    with pytest.raises(NotReady, match="not committed"):
        cluster[1].propose_membership(MembershipChange(ADD, 4))
    cluster.settle()
    cluster[1].propose_membership(MembershipChange(ADD, 4))


def test_a_leader_removes_itself_and_leads_until_that_is_committed() -> None:
    cluster = Cluster([1, 2, 3])
    cluster.elect(1)
    cluster.slow = {2, 3}
    entry = cluster[1].propose_membership(MembershipChange(REMOVE, 1))
    cluster.settle()
    cluster.members[2].sync()
    cluster.settle()
    before = cluster[1].role
    cluster.members[3].sync()
    cluster.settle()
    assert (before, cluster[1].role) == (Role.LEADER, Role.FOLLOWER), "it does not count itself"
    assert cluster[2].commit_index == cluster[3].commit_index == entry.index
    cluster.slow = set()
    cluster.tick(60)
    assert cluster.leaders() in ([2], [3])
    assert cluster[1].role is Role.FOLLOWER


def test_who_holds_its_own_uncommitted_removal_may_still_be_needed() -> None:
    cluster = Cluster([1, 2])
    cluster.elect(1)
    cluster.cut = {(1, 2), (2, 1)}
    cluster[1].propose_membership(MembershipChange(REMOVE, 1))
    cluster.settle()
    cluster.restart(1)
    cluster.heal()
    cluster.tick(60)
    assert cluster[2].role is Role.LEADER
    assert cluster[2].membership == Membership.of([2])
    assert cluster[1].role is Role.FOLLOWER


@pytest.mark.parametrize(("kind", "node_id"), [(ADD, 2), (ADD, 0), (PROMOTE, 2), (PROMOTE, 9), (REMOVE, 9)], ids=str)
def test_changes_that_make_no_sense_are_refused(kind: ChangeKind, node_id: int) -> None:
    cluster = Cluster([1, 2, 3])
    cluster.elect(1)
    with pytest.raises(MembershipRefused):
        cluster[1].propose_membership(MembershipChange(kind, node_id))


def test_the_last_voter_stays() -> None:
    cluster = Cluster([1], learners=[2])
    cluster.elect(1)
    with pytest.raises(MembershipRefused, match="last voter"):
        cluster[1].propose_membership(MembershipChange(REMOVE, 1))
