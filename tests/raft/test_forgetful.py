"""Transcripts: a member that has forgotten votes or entries, and what it may say before it has got them back."""

from __future__ import annotations

import random

import pytest
from tests.raft.cluster import Cluster
from tests.raft.disk import Disk
from tests.raft.member import Member

from mainstem.raft import KIND_NO_OP, Entry, HardState, RaftConfig, RaftCore, Role
from mainstem.raft.core import WAITS_TIMEOUTS_MAX
from mainstem.raft.entry import KIND_DATA
from mainstem.raft.messages import Append, AppendResponse, Heartbeat, RequestVote, TimeoutNow, VoteResponse


def silent(cluster: Cluster, node_id: int, entries: int) -> None:
    """A member has only this much of its log left, no vote, and says nothing."""
    cluster.down.add(node_id)
    old = cluster.members[node_id]
    disk = Disk(cluster.membership)
    for entry in old.disk.durable.entries[:entries]:
        disk.append(entry)
    disk.sync(disk.writes_waiting)
    disk.hard_state = HardState(1)
    old.disk = disk


def back(cluster: Cluster, node_id: int, abstains_to: int, term: int, leader: int) -> RaftCore:
    """It has heard up to where to abstain, and takes part again."""
    member = cluster.members[node_id]
    member.disk.hard_state = HardState(term, leader)
    image = member.disk.seen
    member.start()
    member.core = RaftCore(
        member.config, member.disk, member.disk.hard_state, image.memberships, random.Random(9),
        applied_index=member.applied_index, abstains_to=abstains_to,
    )  # fmt: skip
    cluster.down.discard(node_id)
    return member.core


def forgotten(entries: int = 2) -> Cluster:
    """1 and 3 have acknowledged and committed six entries; then 3 forgot all but two, and is silent."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(2)
    for number in range(5):
        cluster[1].propose(f"entry {number}", 1)
        cluster.settle()
    cluster.tick(3, 1)
    assert cluster[1].commit_index == cluster[3].persisted_index == 6
    silent(cluster, 3, entries)
    cluster.heal()
    return cluster


def test_without_it_nothing_is_elected_that_lacks_what_it_acknowledged() -> None:
    """2 has missed what 1 and 3 committed; 1 is gone."""
    cluster = forgotten()
    cluster.down.add(1)
    core = back(cluster, 3, abstains_to=7, term=1, leader=1)
    cluster.tick(200)
    assert cluster[2].role is not Role.LEADER
    assert core.role is Role.FOLLOWER
    assert core.abstains
    assert not [m for m in cluster.log if isinstance(m, VoteResponse) and m.sender == 3 and m.granted and m.term > 1]


def test_it_gives_no_vote_no_pre_vote_and_takes_over_from_nobody() -> None:
    config = RaftConfig(node_id=3)
    disk = Disk(Cluster().membership)
    member = Member(config, disk, random.Random(3), lambda message, state: sent.append(message))
    sent: list[object] = []
    member.core = RaftCore(config, disk, HardState(4, 1), disk.seen.memberships, random.Random(3), abstains_to=9)
    for message in (
        RequestVote(2, 3, 5, 100, 5, pre_vote=True), RequestVote(2, 3, 5, 100, 5), TimeoutNow(2, 3, 5)
    ):  # fmt: skip
        member.receive(message, ())
        member.settle()
    for _ in range(300):
        member.core.tick()
        member.settle()
    assert sent == []
    assert member.core.role is Role.FOLLOWER


def test_with_the_entry_that_the_others_committed_without_it_it_votes_again() -> None:
    cluster = forgotten()
    leader = cluster[1]
    leader.member_forgot(3)
    entry = leader.propose(None, 0, KIND_NO_OP)
    cluster.settle()
    cluster.tick(5)
    assert leader.commit_index == entry.index  # 2 has caught up
    core = back(cluster, 3, abstains_to=entry.index, term=leader.term, leader=1)
    assert core.abstains
    cluster.tick(10)
    assert not core.abstains
    assert cluster.terms(3) == cluster.terms(1)
    cluster.down.add(1)
    cluster.tick(60)
    assert cluster.leaders()[-1] in (2, 3)
    assert cluster[cluster.leaders()[-1]].commit_index > entry.index  # by the votes of 2 and 3


def test_once_the_others_know_no_more_than_it_does_it_votes_and_stands_again_without_the_entry() -> None:
    cluster = forgotten(6)
    core = back(cluster, 3, abstains_to=9, term=4, leader=1)
    member = cluster.members[3]
    core.abstain_no_more(waits_for_leader=True)
    for message in (
        RequestVote(2, 3, 4, 100, 4),  # it has voted for 1
        RequestVote(2, 3, 5, 5, 1),  # its own log goes further
        RequestVote(2, 3, 5, 6, 1),
    ):
        member.receive(message, ())
        member.settle()
    votes = [(m.term, m.granted) for m in cluster.log if isinstance(m, VoteResponse) and (m.sender, m.to) == (3, 2)]
    assert votes == [(4, False), (5, False), (5, True)]
    core.abstain_no_more(waits_for_leader=False)
    core.campaign()
    member.settle()
    assert [m for m in cluster.log if isinstance(m, RequestVote) and m.sender == 3]


def test_the_entry_cannot_be_committed_by_what_it_had_acknowledged_before() -> None:
    """The leader's knowledge of its log is of its life before, and answers from then are still on their way."""
    cluster = forgotten()
    cluster.isolate(2)
    leader = cluster[1]
    leader.member_forgot(3)
    entry = leader.propose(None, 0, KIND_NO_OP)
    cluster.members[1].receive(AppendResponse(3, 1, leader.term, 6), ())
    cluster.settle()
    assert leader.commit_index == 6 < entry.index


def test_what_it_had_acknowledged_before_does_not_help_to_commit_what_others_acknowledge_later() -> None:
    """Of five, 1 and 3 have an entry that no majority has; then 3 forgets it, and 2 gets it: two have it, not three."""
    cluster = Cluster(voters=range(1, 6))
    cluster.elect(1)
    leader = cluster[1]
    for away in (2, 4, 5):
        cluster.isolate(away)
    entry = leader.propose("entry", 1)
    cluster.settle()
    assert leader.commit_index < entry.index == cluster[3].persisted_index
    silent(cluster, 3, 1)
    leader.member_forgot(3)
    cluster.heal()
    cluster.down |= {4, 5}
    cluster.settle()
    cluster.tick(3, 1)
    assert cluster[2].persisted_index == entry.index
    assert leader.commit_index < entry.index
    cluster.down -= {4}
    cluster.tick(3, 1)
    assert leader.commit_index >= entry.index


def test_it_catches_up_although_late_answers_tell_the_leader_that_it_has_everything() -> None:
    cluster = forgotten()
    leader = cluster[1]
    leader.member_forgot(3)
    entry = leader.propose(None, 0, KIND_NO_OP)
    cluster.settle()
    cluster.tick(5)
    cluster.members[1].receive(AppendResponse(3, 1, leader.term, 6), ())
    core = back(cluster, 3, abstains_to=entry.index, term=leader.term, leader=1)
    cluster.members[3].receive(Heartbeat(1, 3, leader.term, 6), ())  # of before, too: it has two entries
    cluster.tick(20)
    assert cluster.terms(3) == cluster.terms(1)
    assert not core.abstains


def test_what_is_committed_and_not_durable_here_does_not_end_it() -> None:
    config = RaftConfig(node_id=3)
    disk = Disk(Cluster().membership)
    member = Member(config, disk, random.Random(3), lambda message, state: None)
    member.core = RaftCore(config, disk, HardState(1, 1), disk.seen.memberships, random.Random(3), abstains_to=1)
    member.receive(Append(1, 3, 1, 0, 0, 1, (Entry(1, 1, KIND_DATA, 1, "x"),)), ())
    member.run()
    assert member.core.abstains
    member.sync()
    assert not member.core.abstains


def test_one_that_waits_for_a_leader_stands_when_none_comes() -> None:
    cluster = Cluster()
    member = cluster.members[1]
    member.core = RaftCore(
        member.config, member.disk, HardState(), member.disk.seen.memberships, random.Random(1), waits_for_leader=True
    )
    for _ in range((WAITS_TIMEOUTS_MAX - 1) * member.config.election_ticks):
        member.core.tick()
        member.settle()
    assert not [m for m in cluster.log if isinstance(m, RequestVote)]
    for _ in range((WAITS_TIMEOUTS_MAX + 1) * 2 * member.config.election_ticks):
        member.core.tick()
        member.settle()
    assert [m for m in cluster.log if isinstance(m, RequestVote)]


@pytest.mark.parametrize("known", [0, 2, 3])
def test_what_is_known_to_be_committed_is_applied_before_there_is_a_leader(known: int) -> None:
    member = Cluster(logs={1: [1, 1, 1]}).members[1]
    member.core = RaftCore(
        member.config, member.disk, HardState(1), member.disk.seen.memberships, random.Random(1), committed_index=known
    )
    member.run()
    assert member.applied_index == member.core.commit_index == known
