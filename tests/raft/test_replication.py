"""Transcripts: how logs come to match, what is committed when, what waits for which disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from tests.raft.cluster import Cluster
from tests.raft.planted import CommitOldTerm

from mainstem.errors import ConfigError
from mainstem.raft import (
    KIND_DATA,
    BrokenInvariant,
    ChangeKind,
    CommittedTruncation,
    Entry,
    HardState,
    MembershipChange,
    NotLeader,
    NotReady,
    RaftConfig,
    RaftCore,
    Role,
)
from mainstem.raft.leader.counted_on import ALL_PROMPT_TICKS, HELPED_MIN, TRIAL_EVERY_TICKS
from mainstem.raft.leader.progress import SendState
from mainstem.raft.leader.replication import WAITING_BYTES_MAX, WITHHELD_ENTRIES_MAX
from mainstem.raft.messages import Append, AppendResponse, InstallSnapshot, Message

FIGURE_7_LEADER = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
FIGURE_7 = {
    "a: entries are missing": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b: many are missing": [1, 1, 1, 4],
    "c: an uncommitted one too many": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d: uncommitted ones of a later term": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e: missing and uncommitted": [1, 1, 1, 4, 4, 4, 4],
    "f: a leader of terms 2 and 3 that committed nothing": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("log", FIGURE_7.values(), ids=FIGURE_7)
def test_any_log_of_figure_7_comes_to_match(log: list[int]) -> None:
    cluster = Cluster(logs={1: FIGURE_7_LEADER, 2: log, 3: FIGURE_7_LEADER}, term=7)
    cluster.elect(1)
    assert cluster.terms(2) == cluster.terms(1) == [*FIGURE_7_LEADER, 8]
    assert cluster[1].commit_index == cluster[2].commit_index == len(FIGURE_7_LEADER) + 1


def test_a_rejection_skips_a_whole_term_at_a_time() -> None:
    leader = [1] * 5 + [6] * 20
    follower = [1] * 5 + [2] * 15
    cluster = Cluster(logs={1: leader, 2: follower, 3: leader}, term=6)
    cluster.elect(1)
    assert cluster.terms(2) == [*leader, 7]
    rejected = [m for m in cluster.log if isinstance(m, AppendResponse) and m.sender == 2 and m.rejected]
    assert len(rejected) <= 2


def figure_8(core_class: type[RaftCore]) -> Cluster:
    """Up to (c): 1 leads for the second time and copies its entry of term 2 to a majority, and nothing of its own
    term, which it has logged; 5 holds an entry of term 3 that nobody else has."""
    cluster = Cluster(
        range(1, 6), logs={1: [1, 2], 2: [1, 2], 3: [1], 4: [1], 5: [1, 3]}, term=3, core_class=core_class
    )
    cluster.isolate(5)
    cluster[1].campaign()
    while cluster[1].role is not Role.LEADER:
        cluster.deliver()
    leader, entry = cluster[1], 2
    for _ in range(20):  # entries of the new term stay away from the others
        cluster.run()
        for at, (message, state) in enumerate(cluster.wire):
            if isinstance(message, Append) and message.previous_index + len(message.entries) > entry:
                kept = tuple(e for e in message.entries if e.index <= entry)
                fields = (
                    message.sender,
                    message.to,
                    message.term,
                    message.previous_index,
                    message.previous_term,
                )
                cluster.wire[at] = (Append(*fields, message.commit_index, kept), state)
        cluster.deliver()
    assert [cluster.terms(node_id)[:2] for node_id in (2, 3, 4)] == [[1, 2]] * 3
    assert leader.term == 4
    return cluster


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    cluster = figure_8(RaftCore)
    assert cluster[1].commit_index == 0
    assert cluster[1].durable_index(3) == 0


def test_the_planted_bug_of_figure_8_commits_what_a_later_leader_takes_away() -> None:
    cluster = figure_8(CommitOldTerm)
    assert cluster[1].commit_index >= 2
    cluster.stop(1)
    cluster.heal()
    cluster[5].campaign()  # hears of the newer term
    cluster.settle()
    with pytest.raises(BrokenInvariant):  # its log ends in a later term, although it lacks what was committed
        cluster.elect(5)


def test_a_leader_commits_older_entries_with_one_of_its_own() -> None:
    cluster = Cluster(logs={1: [1, 2], 2: [1, 2], 3: [1]}, term=2)
    cluster.elect(1)
    assert cluster[1].commit_index == 3
    assert cluster[1].serves


def test_a_leader_sends_before_its_own_disk_is_done_and_counts_itself_after() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.slow = {1, 2}
    entry = cluster[1].propose("x", 1)
    cluster.settle()
    assert cluster.members[3].disk.durable.last_index == entry.index
    assert cluster[1].commit_index == entry.index - 1, "durable on one of three"
    cluster.members[1].sync()
    cluster.settle()
    assert cluster[1].commit_index == entry.index
    assert cluster[1].durable_index(2) == entry.index
    assert cluster[1].durable_index(3) == entry.index - 1
    assert cluster[1].durable_index(4) == 0
    cluster.members[2].sync()
    cluster.settle()
    assert cluster[1].durable_index(3) == entry.index


def test_commits_may_wait_for_the_next_entries_or_the_next_heartbeat() -> None:
    cluster = Cluster(commits_with_heartbeats=True, heartbeat_ticks=2)
    cluster.elect(1)
    first = cluster[1].propose("x", 1)
    cluster.settle()
    assert (cluster[1].commit_index, cluster[2].commit_index) == (first.index, first.index - 1)
    second = cluster[1].propose("y", 1)
    cluster.settle()
    assert (cluster[1].commit_index, cluster[2].commit_index) == (second.index, first.index)
    cluster.tick(2)
    assert cluster[2].commit_index == cluster[3].commit_index == second.index
    assert cluster.data(2) == ["x", "y"]


def test_the_last_member_to_hold_an_entry_gives_the_leader_nothing_to_do() -> None:
    cluster = Cluster(commits_with_heartbeats=True)
    cluster.elect(1)
    cluster.settle()
    entry = cluster[1].propose("one", 1)
    cluster.deliver(lambda message: isinstance(message, Append))
    cluster.deliver(lambda message: message.sender == 2)
    assert cluster[1].applied_index == entry.index
    ((answer, _state),) = cluster.wire
    assert isinstance(answer, AppendResponse)
    cluster[1].step(answer)
    assert cluster[1].ready() is None
    assert {peer.node_id: peer.match_index for peer in cluster[1].peers()} == {2: entry.index, 3: entry.index}


def test_an_entry_that_others_committed_is_applied_once_the_leaders_disk_has_it() -> None:
    cluster = Cluster(commits_with_heartbeats=True)
    cluster.elect(1)
    cluster.settle()
    cluster.slow.add(1)
    entry = cluster[1].propose("one", 1)
    cluster.settle()
    assert cluster[1].commit_index == entry.index
    assert cluster[1].applied_index == entry.index - 1
    cluster.slow.clear()
    cluster.run()
    assert cluster[1].applied_index == entry.index


def test_the_short_way_of_a_leader_alone_comes_to_the_same() -> None:
    """Entries go both ways in turn, and who joins afterwards gets all of them."""
    cluster = Cluster(voters=(1,))
    cluster.elect(1)
    core, member = cluster[1], cluster.members[1]

    def append(data: str) -> int:
        assert core.alone
        index = core.append_alone()
        member.disk.append(Entry(core.term, index, KIND_DATA, 1, data))
        return index

    append("a")
    append("b")
    assert core.commit_index == 1, "the no-op: nothing else is durable"
    core.propose("c", 1)
    assert not core.alone, "the store is to be told of an entry"
    cluster.settle()
    assert cluster.data(1) == ["a", "b", "c"]
    index = append("d")
    (entry,) = member.disk.sync(1)
    assert isinstance(entry, Entry)
    assert core.persisted_alone(index, core.term)
    assert not core.persisted_alone(index, core.term), "that is known"
    assert core.commit_index == core.durable_index(1) == index
    member.apply(entry)
    core.applied_alone(index)
    assert core.alone
    cluster.add(2)
    core.propose_membership(MembershipChange(ChangeKind.ADD_LEARNER, 2))
    cluster.settle()
    assert not core.alone
    assert cluster.data(1) == cluster.data(2) == ["a", "b", "c", "d"]


def test_what_is_committed_but_not_durable_here_is_not_applied_here() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.slow = {1}
    entry = cluster[1].propose("x", 1)
    cluster.settle()
    assert cluster[1].commit_index == entry.index
    assert cluster.data(1) == []
    cluster.members[1].sync()
    cluster.settle()
    assert cluster.data(1) == ["x"]


def test_a_follower_acknowledges_what_is_durable_and_no_more() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.slow = {2}
    for value in "abc":
        cluster[1].propose(value, 1)
        cluster.settle()
    acknowledged = [m.match_index for m in cluster.log if isinstance(m, AppendResponse) and m.sender == 2]
    assert max(acknowledged) == 1
    cluster.members[2].sync(2)
    cluster.deliver()
    assert cluster[1].peers()[0].match_index == 3


def test_a_report_about_a_replaced_entry_is_not_taken_for_the_new_one() -> None:
    cluster = Cluster(logs={1: [1, 2], 2: [1], 3: [1]}, term=2)
    cluster.elect(2)
    assert cluster.terms(1) == [1, 3]
    before = cluster[1].persisted_index
    cluster[1].persisted(2, 2)
    assert cluster[1].persisted_index == before


def test_messages_wait_until_the_term_is_durable() -> None:
    core = Cluster(pre_vote=False)[1]
    core.campaign()
    ready = core.ready()
    assert ready is not None
    assert ready.messages == ()
    assert ready.hard_state == HardState(1, 1)
    core.advance(ready)
    assert core.ready() is None
    core.hard_state_persisted(ready.hard_state)
    following = core.ready()
    assert following is not None
    assert {message.to for message in following.messages} == {2, 3}


def test_a_leader_that_contradicts_a_committed_entry_is_refused_loudly() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[1].propose("x", 1)
    cluster.settle()
    entry = cluster.members[2].disk.seen.entries[-1]
    other = type(entry)(entry.term + 1, entry.index, 0, 1, "y")
    with pytest.raises(CommittedTruncation):
        cluster[2].step(Append(3, 2, entry.term + 1, entry.index - 1, entry.term, 0, (other,)))


def test_the_window_bounds_what_is_in_flight() -> None:
    cluster = Cluster(entries_in_flight_max=4, bytes_in_flight_max=100, append_bytes_max=20)
    cluster.elect(1)
    cluster.cut = {(2, 1)}
    before = len(cluster.log)
    for at in range(20):
        cluster[1].propose(at, 10)
    cluster.settle()
    appends = [m for m in cluster.log[before:] if isinstance(m, Append) and m.to == 2 and m.entries]
    assert sum(len(m.entries) for m in appends) == 4
    assert all(sum(entry.size for entry in m.entries) <= 20 for m in appends)
    assert cluster.data(3) == list(range(20)), "the silent member holds up nobody"


def test_bytes_in_flight_are_bounded_too() -> None:
    cluster = Cluster(bytes_in_flight_max=30, append_bytes_max=10)
    cluster.elect(1)
    cluster.cut = {(2, 1)}
    before = len(cluster.log)
    for at in range(20):
        cluster[1].propose(at, 10)
    cluster.settle()
    assert sum(len(m.entries) for m in cluster.log[before:] if isinstance(m, Append) and m.to == 2) == 3


def test_lost_appends_are_noticed_and_sent_again() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.cut = {(1, 2)}
    cluster[1].propose("lost", 1)
    cluster.settle()
    cluster.heal()
    cluster.tick(2, 1)
    assert cluster.data(2) == ["lost"]


def test_an_unreachable_member_is_probed() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[1].report_unreachable(2)
    assert cluster[1].peers()[0].state is SendState.PROBE
    cluster[1].propose("x", 1)
    cluster.tick(2, 1)
    assert cluster[1].peers()[0].state is SendState.REPLICATE
    assert cluster.data(2) == ["x"]


def with_one_behind(keep: int) -> Cluster:
    """Member 2 lacks ten entries, of which the leader's log has the last `keep`."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.stop(2)
    for at in range(10):
        cluster[1].propose(at, 1)
    cluster.settle()
    cluster.members[1].compact(keep=keep)
    cluster.members[1].settle()
    cluster.start(2)
    return cluster


def test_a_member_behind_the_log_gets_a_snapshot() -> None:
    cluster = with_one_behind(keep=2)
    cluster.tick(4, 1)
    assert any(isinstance(m, InstallSnapshot) for m in cluster.log)
    assert cluster.data(2) == list(range(10))
    cluster[1].propose("after", 1)
    cluster.settle()
    assert cluster.data(2)[-1] == "after"
    assert cluster[1].peers()[0].state is SendState.REPLICATE


def test_a_snapshot_that_did_not_arrive_is_sent_again() -> None:
    cluster = with_one_behind(keep=0)
    cluster[1].tick()
    for _ in range(5):
        cluster.deliver(lambda message: not isinstance(message, InstallSnapshot))
        cluster[1].tick()
    cluster.wire.clear()
    assert cluster[1].peers()[0].state is SendState.SNAPSHOT
    cluster[1].report_snapshot(2, ok=False)
    cluster.tick(3, 1)
    assert cluster.data(2) == list(range(10))


def test_proposals_are_for_the_leader_and_bounded() -> None:
    cluster = Cluster(uncommitted_bytes_max=100)
    with pytest.raises(NotLeader) as nobody:
        cluster[2].propose("x", 1)
    assert nobody.value.leader_id == 0
    cluster.elect(1)
    with pytest.raises(NotLeader) as hint:
        cluster[2].propose("x", 1)
    assert hint.value.leader_id == 1
    cluster[1].propose("large ones are taken alone", 1000)
    with pytest.raises(NotReady):
        cluster[1].propose("x", 1)
    cluster.settle()
    cluster[1].propose("x", 1)


def test_ready_may_be_asked_for_while_one_is_out() -> None:
    cluster = Cluster()
    cluster.elect(1)
    core = cluster[1]
    core.propose("a", 1)
    ready = core.ready()
    assert ready is not None
    core.propose("b", 1)
    assert core.ready() is None
    for entry in ready.entries:
        cluster.members[1].disk.append(entry)
    core.advance(ready)
    following = core.ready()
    assert following is not None
    assert [entry.data for entry in following.entries] == ["b"]


def test_a_group_of_one_commits_what_its_disk_has() -> None:
    cluster = Cluster([1])
    cluster.slow = {1}
    cluster[1].campaign()
    cluster.settle()
    assert cluster[1].role is Role.LEADER
    assert not cluster[1].serves
    cluster.members[1].sync()
    cluster.settle()
    assert cluster[1].serves
    cluster[1].read_index("r")
    cluster.settle()
    assert [result.context for result, _ in cluster.members[1].answered] == ["r"]


def test_a_member_that_forgot_what_it_acknowledged_catches_up_where_that_may_be() -> None:
    cluster = Cluster(may_forget=True)
    cluster.elect(1)
    for at in range(5):
        cluster[1].propose(at, 1)
    cluster.settle()
    cluster.tick(2, 1)
    cluster.stop(2)
    disk = cluster.members[2].disk
    for image in (disk.seen, disk.durable):
        image.truncate(image.last_index - 2)
    cluster.start(2)
    cluster.tick(4, 1)
    cluster[1].propose("after", 1)
    cluster.settle()
    assert cluster.data(2) == [0, 1, 2, 3, 4, "after"]


def test_what_the_driver_cannot_apply_yet_is_handed_out_again() -> None:
    cluster = Cluster(voters=(1,))
    cluster.elect(1)
    core, member = cluster[1], cluster.members[1]
    for data in ("a", "b", "c"):
        core.propose(data, 1)
    assert member.take()
    ready = member.ready
    assert ready is not None
    core.advance(ready)
    member.disk.sync(member.disk.writes_waiting)
    core.persisted(core.last_index, core.term)
    ready = core.ready()
    assert ready is not None
    assert [entry.data for entry in ready.committed] == ["a", "b", "c"]
    first = ready.committed[0].index
    core.advance(ready, applied_to=first)
    assert (core.applied_index, core.applying_waits) == (first, True)
    core.propose("d", 1)
    ready = core.ready()
    assert ready is not None
    assert not ready.committed, "the others wait until the driver goes on"
    core.advance(ready)
    core.go_on()
    ready = core.ready()
    assert ready is not None
    assert [entry.data for entry in ready.committed] == ["b", "c"]
    core.advance(ready)
    assert (core.applied_index, core.applying_waits) == (first + 2, False)


def test_an_entry_that_somebody_has_applied_is_committed_wherever_the_log_has_it() -> None:
    """Its leader is gone, and the next one cannot commit anything of its own term yet."""
    cluster = Cluster(logs={1: [1, 1], 2: [1, 1], 3: [1]}, term=1)
    core = cluster[2]
    assert not core.known_committed(3, 1), "the log does not have it"
    assert not core.known_committed(2, 2), "that is another entry"
    assert core.commit_index == 0
    assert core.known_committed(2, 1)
    assert core.commit_index == 2
    assert not core.known_committed(1, 1), "no news"
    ready = core.ready()
    assert ready is not None
    assert [entry.index for entry in ready.committed] == [1, 2]


# --- acknowledgements that wait ---------------------------------------------------------------------------


def asked_to_wait(cluster: Cluster, before: int) -> dict[int, bool]:
    """Of the members that were sent entries since the log of messages was so long: whether their answer may wait."""
    return {m.to: m.may_wait for m in cluster.log[before:] if isinstance(m, Append) and m.entries}


def propose(cluster: Cluster, size: int = 1) -> dict[int, bool]:
    before = len(cluster.log)
    cluster[1].propose(b"", size)
    cluster.settle()
    return asked_to_wait(cluster, before)


@pytest.mark.parametrize(("members", "waiting"), [(3, 1), (5, 2), (4, 1)])
def test_a_leader_counts_on_as_many_members_as_a_majority_takes(members: int, waiting: int) -> None:
    cluster = Cluster(range(1, members + 1), acknowledgements_wait=True, commits_with_heartbeats=True)
    cluster.elect(1)
    cluster.tick(1, 1)
    cluster.settle()
    asked = propose(cluster)
    assert len(asked) == members - 1
    assert sum(asked.values()) == waiting
    assert cluster[1].commit_index == cluster[1].last_index
    answers = {m.sender: m.may_wait for m in cluster.log[-2 * members :] if isinstance(m, AppendResponse)}
    assert answers == asked


def test_no_acknowledgement_waits_unless_it_is_wanted() -> None:
    cluster = Cluster(range(1, 4))
    cluster.elect(1)
    cluster.tick(1, 1)
    cluster.settle()
    assert propose(cluster) == {2: False, 3: False}


def with_acknowledgements_that_wait(members: int = 3) -> Cluster:
    """So many members, led by the first, which has chosen whom it counts on."""
    cluster = Cluster(range(1, members + 1), acknowledgements_wait=True, commits_with_heartbeats=True)
    cluster.elect(1)
    cluster.tick(1, 1)
    cluster.settle()
    return cluster


def test_a_member_that_is_cut_off_is_not_counted_on() -> None:
    cluster = with_acknowledgements_that_wait()
    (counted_on,) = (node_id for node_id, waits in propose(cluster).items() if not waits)
    cluster[1].report_unreachable(counted_on)
    other = 5 - counted_on
    assert propose(cluster)[other] is False


def test_a_member_that_holds_more_is_counted_on_from_the_next_heartbeat() -> None:
    cluster = with_acknowledgements_that_wait()
    (counted_on,) = (node_id for node_id, waits in propose(cluster).items() if not waits)
    other = 5 - counted_on
    cluster.isolate(counted_on)
    propose(cluster)
    cluster.tick(1, 1)
    cluster.settle()
    assert propose(cluster)[other] is False


def is_from(node_id: int, message: Message) -> bool:
    return message.sender == node_id


def with_trial(order: Sequence[int], proposals: int) -> Cluster:
    """After a trial with so many entries, which the members acknowledged in this order."""
    cluster = with_acknowledgements_that_wait(len(order) + 1)
    cluster.tick(TRIAL_EVERY_TICKS - 1, 1)  # one went by already
    assert propose(cluster) == dict.fromkeys(sorted(order), False), "nobody may wait in a trial"
    for _ in range(proposals - 1):
        cluster[1].propose(b"", 1)
        cluster.deliver(lambda message: isinstance(message, Append))
        for node_id in order:
            cluster.deliver(partial(is_from, node_id))
        cluster.settle()
    cluster.tick(1, 1)
    return cluster


@pytest.mark.parametrize("order", [(2, 3), (3, 2), (5, 4, 2, 3), (2, 5, 3, 4), (4, 2, 3)])
def test_members_that_acknowledge_before_the_commit_in_a_trial_are_counted_on(order: tuple[int, ...]) -> None:
    cluster = with_trial(order, 2 * HELPED_MIN)
    asked = propose(cluster)
    others = (len(order) + 1) // 2
    assert asked == {node_id: place >= others for place, node_id in enumerate(order)}
    cluster.tick(1, 1)
    assert propose(cluster) == asked, "the next heartbeat changes nothing"


def test_few_commits_decide_no_trial() -> None:
    cluster = with_trial((3, 2), HELPED_MIN - 1)
    assert propose(cluster) == {2: False, 3: True}, "as before"


def test_no_acknowledgement_waits_while_somebody_waits_for_more_copies() -> None:
    cluster = with_acknowledgements_that_wait()
    cluster[1].copies_awaited()
    assert propose(cluster) == {2: False, 3: False}
    cluster.tick(1, 1)
    cluster.settle()
    assert propose(cluster) == {2: False, 3: False}
    cluster.tick(ALL_PROMPT_TICKS, 1)
    cluster.settle()
    assert sum(propose(cluster).values()) == 1


def test_large_entries_are_acknowledged_at_once() -> None:
    cluster = with_acknowledgements_that_wait()
    assert propose(cluster, WAITING_BYTES_MAX + 1) == {2: False, 3: False}


def test_an_acknowledgement_that_is_counted_on_does_not_wait_for_one_that_may() -> None:
    cluster = Cluster(range(1, 4), acknowledgements_wait=True, commits_with_heartbeats=True)
    cluster.elect(1)
    follower, term, last = cluster[2], cluster[1].term, cluster[1].last_index
    before = len(cluster.log)
    for place, may_wait in enumerate((False, True)):
        entry = Entry(term, last + 1 + place, KIND_DATA, 1, b"")
        follower.step(Append(1, 2, term, last + place, term, last, (entry,), may_wait))
    cluster.run()
    first, *_ = (m for m in cluster.log[before:] if isinstance(m, AppendResponse) and m.sender == 2)
    assert not first.may_wait


# --- entries that wait --------------------------------------------------------------------------------------


class Gathering:
    """Three members, led by the first, which gathers entries for the member that it does not count on."""

    def __init__(self) -> None:
        self.cluster = Cluster(range(1, 4), acknowledgements_wait=True, entries_wait=True, commits_with_heartbeats=True)
        self.cluster.elect(1)
        self.cluster.tick(1, 1)
        self.cluster.settle()
        self.leader = self.cluster[1]
        self.seen = len(self.cluster.log)
        self.propose()
        (self.counted_on,) = {message.to for message in self.appends()}
        self.other = 5 - self.counted_on

    def propose(self, size: int = 1) -> None:
        self.leader.propose(b"", size)
        self.cluster.settle()

    def appends(self) -> list[Append]:
        """Those with entries that were sent since the last call."""
        self.cluster.settle()
        self.seen, before = len(self.cluster.log), self.seen
        return [m for m in self.cluster.log[before:] if isinstance(m, Append) and m.entries]

    def lacks(self, node_id: int) -> int:
        return self.leader.last_index - self.cluster[node_id].last_index


def test_entries_are_gathered_for_a_member_that_is_not_counted_on() -> None:
    gathering = Gathering()
    gathering.propose()
    gathering.propose()
    assert {message.to for message in gathering.appends()} == {gathering.counted_on}
    assert gathering.leader.commit_index == gathering.leader.last_index
    assert gathering.lacks(gathering.other) == 3
    assert gathering.leader.withholds
    gathering.leader.send_withheld()
    (sent,) = gathering.appends()
    assert (sent.to, len(sent.entries), sent.may_wait) == (gathering.other, 3, True)
    assert not gathering.leader.withholds
    assert gathering.lacks(gathering.other) == 0


def test_withheld_entries_are_asked_for_at_once_if_nobody_has_acknowledged_them() -> None:
    gathering = Gathering()
    gathering.cluster.isolate(gathering.counted_on)
    gathering.propose()
    assert gathering.leader.commit_index < gathering.leader.last_index
    gathering.leader.send_withheld()
    gathering.appends()
    gathering.propose()
    gathering.leader.send_withheld()
    (sent,) = (message for message in gathering.appends() if message.to == gathering.other)
    assert not sent.may_wait
    assert gathering.leader.commit_index == gathering.leader.last_index


def test_entries_are_withheld_no_more_once_the_member_counted_on_is_cut_off() -> None:
    gathering = Gathering()
    gathering.cluster.isolate(gathering.counted_on)
    gathering.propose()
    gathering.leader.report_unreachable(gathering.counted_on)
    gathering.cluster.settle()
    assert gathering.leader.commit_index == gathering.leader.last_index
    gathering.propose()
    assert gathering.leader.commit_index == gathering.leader.last_index


def test_withheld_entries_go_once_somebody_waits_for_more_copies() -> None:
    gathering = Gathering()
    gathering.leader.copies_awaited()
    (sent,) = gathering.appends()
    assert (sent.to, sent.may_wait) == (gathering.other, False)


def test_withheld_entries_go_to_a_member_that_is_to_lead() -> None:
    gathering = Gathering()
    gathering.leader.transfer_leadership(gathering.other)
    gathering.cluster.settle()
    assert gathering.cluster[gathering.other].role is Role.LEADER


def test_heartbeats_bring_entries_that_a_driver_forgot() -> None:
    gathering = Gathering()
    gathering.cluster.tick(1, 1)
    gathering.cluster.settle()
    assert gathering.lacks(gathering.other) == 0


def test_few_entries_and_bytes_are_withheld() -> None:
    gathering = Gathering()
    gathering.leader.send_withheld()
    gathering.cluster.settle()
    for _ in range(WITHHELD_ENTRIES_MAX):
        gathering.propose()
    assert gathering.lacks(gathering.other) == WITHHELD_ENTRIES_MAX
    gathering.propose()
    assert gathering.lacks(gathering.other) == 0
    gathering.propose(WAITING_BYTES_MAX)
    assert gathering.lacks(gathering.other) == 1
    gathering.propose()
    assert gathering.lacks(gathering.other) == 0
    gathering.propose(WAITING_BYTES_MAX + 1)
    assert gathering.lacks(gathering.other) == 0


def test_entries_wait_only_where_acknowledgements_do() -> None:
    with pytest.raises(ConfigError, match=r"raft\.entries_wait: it takes raft\.acknowledgements_wait"):
        RaftConfig(node_id=1, entries_wait=True).validate()
