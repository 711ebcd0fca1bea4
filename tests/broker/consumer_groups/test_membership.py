"""Transcripts of joining, syncing, leaving and falling silent: one story per test."""

from __future__ import annotations

import msgspec
import pytest
from tests.broker.consumer_groups.transcript import (
    AT_ONCE,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Transcript,
    protocols,
)

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import MemberIdentity


def test_first_member_gets_an_id_first_and_then_leads() -> None:
    table = Transcript()
    first = table.join_once("a")
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id == "a-0001"
    assert first.generation_id == -1
    assert table.state == "Empty"

    joined = table.join_once("a")
    assert joined.error is ErrorCode.NONE
    assert (joined.generation_id, joined.leader, joined.member_id) == (1, "a-0001", "a-0001")
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [member.member_id for member in joined.members] == ["a-0001"]
    assert table.state == "CompletingRebalance"

    synced = table.sync("a", 1, {"a": b"everything"})
    assert synced.error is ErrorCode.NONE
    assert synced.assignment == b"everything"
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert table.state == "Stable"
    assert len(table.log) == 1, "the generation is written once, with its assignment"


def test_old_clients_join_without_being_given_an_id_first() -> None:
    table = Transcript()
    joined = table.join_once("a", version=3)
    assert joined.error is ErrorCode.NONE
    assert joined.generation_id == 1


def test_second_member_rebalances_and_the_follower_waits_for_the_leader() -> None:
    table = Transcript()
    table.stable("a")
    b = table.join("b")
    assert not b.answered, "b waits until a has joined again"
    assert table.heartbeat("a", 1) is ErrorCode.REBALANCE_IN_PROGRESS
    a = table.join("a")
    assert a.generation_id == b.generation_id == 2
    assert a.leader == b.leader == table.ids["a"] == a.member_id
    assert {member.member_id for member in a.members} == {a.member_id, b.member_id}
    assert b.members == (), "only the leader sees the members"

    table.ids["b"] = b.member_id
    follower = table.sync("b", 2)
    assert not follower.answered
    leader = table.sync("a", 2, {"a": b"0", "b": b"1"})
    assert leader.assignment == b"0"
    assert follower.assignment == b"1"
    assert table.heartbeat("b", 2) is ErrorCode.NONE


def test_cooperative_rebalance_takes_two_rounds() -> None:
    """The second round starts because a member joins again, having given up a partition."""
    table = Transcript()
    offers = protocols("cooperative-sticky")
    assert table.stable("a", offers=offers) == 1
    b = table.join("b", offers=offers)
    a = table.join("a", offers=offers)
    table.ids["b"] = b.member_id
    assert a.generation_id == 2
    table.sync("b", 2)
    assert table.sync("a", 2, {"a": b"p0", "b": b""}).assignment == b"p0"

    gave_up = protocols("cooperative-sticky", topics=("flights", "owned nothing of p1"))
    again = table.join("a", offers=gave_up)
    assert not again.answered
    assert table.heartbeat("b", 2) is ErrorCode.REBALANCE_IN_PROGRESS
    b = table.join("b", offers=offers)
    assert again.generation_id == b.generation_id == 3
    table.sync("a", 3, {"a": b"p0", "b": b"p1"})
    assert table.sync("b", 3).assignment == b"p1"


def test_a_stable_follower_that_joins_unchanged_gets_its_generation_again() -> None:
    table = Transcript()
    generation = table.stable("a", "b")
    leader = table.describe().members[0].member_id
    follower = "b" if table.ids["a"] == leader else "a"
    again = table.join(follower)
    assert again.generation_id == generation
    assert again.members == ()
    assert table.state == "Stable"
    assert table.sync(follower, generation).assignment == f"share of {follower}".encode()


def test_a_stable_leader_that_joins_starts_a_rebalance() -> None:
    table = Transcript()
    table.stable("a", "b")
    pending = table.join("a")
    assert not pending.answered
    assert table.state == "PreparingRebalance"


def test_changed_metadata_starts_a_rebalance() -> None:
    table = Transcript()
    generation = table.stable("a", "b")
    pending = table.join("b", offers=protocols("range", topics=("other",)))
    assert not pending.answered
    assert table.join("a").generation_id == generation + 1


def test_a_lost_join_answer_is_given_again() -> None:
    table = Transcript()
    table.join("a")
    again = table.join("a")
    assert again.error is ErrorCode.NONE
    assert again.generation_id == 1
    assert len(again.members) == 1


def test_a_join_that_is_repeated_on_a_new_connection_answers_the_old_one() -> None:
    table = Transcript()
    table.stable("a", "b")
    first = table.join("a")
    second = table.join("a")
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.answered
    table.join("b")
    assert second.error is ErrorCode.NONE


def test_protocol_is_the_one_with_most_votes_among_those_all_support() -> None:
    table = Transcript(msgspec.structs.replace(AT_ONCE, rebalance_delay_ms=100))
    votes = {
        "a": ("only-a", "range", "sticky"),
        "b": ("sticky", "range"),
        "c": ("range", "sticky"),
        "d": ("sticky", "range"),
        "e": ("sticky", "range"),
    }
    joins = {who: table.join(who, offers=protocols(*names)) for who, names in votes.items()}
    table.wait(100_000)
    assert {joined.protocol_name for joined in joins.values()} == {"sticky"}


def test_a_member_that_shares_no_protocol_is_refused() -> None:
    table = Transcript()
    table.stable("a")
    assert table.join("b", offers=protocols("other")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert table.join("b", protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert table.join("b", protocol_type="").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert table.state == "Stable"


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_session_timeout_out_of_bounds(session_ms: int) -> None:
    table = Transcript()
    assert table.join("a", session_ms=session_ms).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert table.state == "Dead"


def test_an_unknown_member_id_is_refused_with_and_without_a_group() -> None:
    table = Transcript()
    assert table.join("x", member_id="x-1").error is ErrorCode.UNKNOWN_MEMBER_ID
    table.stable("a")
    assert table.join("x", member_id="x-1").error is ErrorCode.UNKNOWN_MEMBER_ID
    table.ids["ghost"] = "x-1"
    assert table.heartbeat("ghost", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.sync("ghost", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.leave("ghost") == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_generation_fencing() -> None:
    table = Transcript()
    generation = table.stable("a", "b")
    for wrong in (generation - 1, generation + 1):
        assert table.heartbeat("a", wrong) is ErrorCode.ILLEGAL_GENERATION
        assert table.sync("a", wrong).error is ErrorCode.ILLEGAL_GENERATION
        assert table.commit({("flights", 0): 1}, client="a", generation=wrong) == [ErrorCode.ILLEGAL_GENERATION]


def test_sync_with_another_protocol_is_refused() -> None:
    table = Transcript()
    table.join("a")
    assert table.sync("a", 1, protocol_name="sticky").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert table.sync("a", 1, protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert table.sync("a", 1, {"a": b"1"}, protocol_name="range", protocol_type="consumer").assignment == b"1"


def test_initial_delay_gathers_members_and_grows_with_newcomers() -> None:
    table = Transcript(ConsumerGroupsConfig())
    a = table.join("a")
    table.wait(2_000)
    b = table.join("b")
    table.wait(1_500)
    assert not a.answered, "b came within the first 3 s, so 3 s more are waited"
    table.wait(2_500)
    assert a.generation_id == b.generation_id == 1
    assert len(a.members) == 2


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    table = Transcript(ConsumerGroupsConfig())
    first = table.join("m0", rebalance_ms=7_000)
    for index in range(1, 4):
        table.wait(2_000)
        table.join(f"m{index}", rebalance_ms=7_000)
    table.wait(1_000)
    assert first.answered, "7 s are over, although newcomers came all the time"


def test_member_that_vanishes_before_joining_again_is_dropped() -> None:
    table = Transcript()
    table.stable("a", "b", rebalance_ms=8_000)
    c = table.join("c", rebalance_ms=8_000)
    a = table.join("a", rebalance_ms=8_000)
    table.wait(7_999)
    assert not a.answered
    table.wait(1)
    assert {member.member_id for member in a.members} == {a.member_id, c.member_id}
    assert table.heartbeat("b", a.generation_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_that_vanishes_in_join_is_replaced() -> None:
    table = Transcript()
    table.stable("a", "b", rebalance_ms=8_000)
    assert table.machine.state.classic[GROUP].leader == table.ids["a"]
    b = table.join("b", rebalance_ms=8_000, offers=protocols("range", topics=("x",)))
    table.wait(8_000)
    assert b.leader == b.member_id
    assert len(b.members) == 1


def test_follower_that_vanishes_before_sync_is_dropped_after_the_rebalance_timeout() -> None:
    table = Transcript()
    table.stable("a")
    b = table.join("b", session_ms=600_000)
    a = table.join("a", session_ms=600_000)
    table.ids["b"] = b.member_id
    table.sync("a", a.generation_id, {"a": b"0", "b": b"1"})
    assert table.state == "Stable"
    table.wait(REBALANCE_MS)
    assert table.state == "PreparingRebalance"
    a = table.join("a", session_ms=600_000)
    assert [member.member_id for member in a.members] == [a.member_id]


def test_leader_that_vanishes_before_sync_fails_its_followers() -> None:
    table = Transcript()
    table.stable("a")
    b = table.join("b")
    a = table.join("a")
    table.ids["b"] = b.member_id
    waiting = table.sync("b", 2)
    table.wait(SESSION_MS)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    b = table.join("b")
    assert b.leader == b.member_id != a.member_id
    assert b.generation_id == 3


def test_a_pending_member_that_never_comes_back_does_not_hold_the_group_up_for_long() -> None:
    table = Transcript()
    table.stable("a")
    table.join_once("b")
    c = table.join("c")
    table.heartbeat("a", 1)
    a = table.join("a")
    assert not a.answered, "b was given an id and is expected"
    table.wait(SESSION_MS)
    assert a.generation_id == c.generation_id == 2


def test_only_a_pending_member_leaves_no_trace() -> None:
    table = Transcript()
    table.join_once("a")
    assert table.state == "Empty"
    table.wait(SESSION_MS)
    assert table.state == "Dead"
    assert table.log == []


def test_a_silent_member_is_dropped_after_its_session_timeout() -> None:
    table = Transcript()
    generation = table.stable("a", "b")
    table.wait(SESSION_MS - 1)
    assert table.heartbeat("a", generation) is ErrorCode.NONE
    table.wait(1)
    assert table.state == "PreparingRebalance"
    assert table.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.join("a").generation_id == generation + 1
    assert table.machine.counts.sessions_expired == 1


def test_a_new_member_is_held_to_its_session_timeout_once_it_was_answered() -> None:
    table = Transcript()
    table.join("a")
    assert table.state == "CompletingRebalance"
    table.wait(SESSION_MS - 1)
    assert table.state == "CompletingRebalance"
    table.wait(1)
    assert table.state == "Empty"


def test_waiting_members_do_not_time_out_but_new_ones_do_in_the_end() -> None:
    config = msgspec.structs.replace(AT_ONCE, new_member_join_timeout_ms=30_000)
    table = Transcript(config)
    table.stable("a")
    b = table.join("b", rebalance_ms=600_000, session_ms=SESSION_MS)
    for _ in range(5):
        table.wait(5_000)
        table.heartbeat("a", 1)  # alive, but never joins
    assert not b.answered
    table.wait(5_000)
    assert b.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_leaves_and_the_group_is_empty() -> None:
    table = Transcript()
    generation = table.stable("a")
    assert table.leave("a") == [ErrorCode.NONE]
    assert table.state == "Empty"
    assert table.describe().protocol_type == "consumer"
    table.restart()
    assert table.state == "Empty"
    assert table.join("b").generation_id == generation + 2


def test_leaving_starts_a_rebalance_and_can_end_the_joining() -> None:
    table = Transcript()
    table.stable("a", "b", "c")
    assert table.leave("c") == [ErrorCode.NONE]
    a = table.join("a")
    assert not a.answered
    assert table.leave("b", "c") == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert len(a.members) == 1


def test_a_pending_member_can_leave() -> None:
    table = Transcript()
    table.join_once("a")
    assert table.leave("a") == [ErrorCode.NONE]
    assert table.state == "Dead"


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    table = Transcript()
    table.stable("a", "b")
    waiting = table.join("a")
    table.leave("a")
    assert waiting.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_size_is_bounded() -> None:
    table = Transcript(msgspec.structs.replace(AT_ONCE, group_size_max=2))
    generation = table.stable("a", "b")
    assert table.join("c").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert table.state == "Stable"
    table.leave("b")
    c = table.join("c")
    a = table.join("a")
    assert c.generation_id == a.generation_id == generation + 1


def test_number_of_groups_is_bounded() -> None:
    table = Transcript(msgspec.structs.replace(AT_ONCE, groups_max=1))
    table.stable("a")
    assert table.join("b", group="another").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert table.commit({("t", 0): 1}, group="another") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_an_assignment_too_large_for_the_log_is_refused() -> None:
    table = Transcript(msgspec.structs.replace(AT_ONCE, group_metadata_bytes_max=1_000))
    table.join("a")
    assert table.sync("a", 1, {"a": bytes(1_001)}).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert table.log == []
    assert table.join("a").generation_id == 2
    assert table.sync("a", 2, {"a": bytes(100)}).error is ErrorCode.NONE


def test_rebalance_timeout_of_zero_does_not_spin() -> None:
    table = Transcript()
    table.stable("a", rebalance_ms=0)
    table.join("b", rebalance_ms=0)
    table.wait(60_000)
    assert table.state == "Empty", "both stopped talking"


# --- static members -------------------------------------------------------------------------------------


def test_a_static_member_joins_without_being_given_an_id_first() -> None:
    table = Transcript()
    joined = table.join_once("a", instance="i")
    assert joined.error is ErrorCode.NONE
    assert joined.member_id == "i-0001"


def _static_pair(table: Transcript, version: int = 9) -> int:
    """A stable group of static members i (led by client a) and j (client b)."""
    table.join("a", instance="i", version=version, session_ms=60_000)
    b = table.join("b", instance="j", version=version, session_ms=60_000)
    a = table.join("a", instance="i", version=version, session_ms=60_000)
    table.ids["b"] = b.member_id
    table.sync("a", a.generation_id, {"a": b"0", "b": b"1"}, instance="i")
    table.sync("b", a.generation_id, instance="j")
    assert table.state == "Stable"
    generation: int = a.generation_id
    return generation


def test_a_static_follower_restarts_without_a_rebalance_and_its_old_self_is_fenced() -> None:
    table = Transcript()
    generation = _static_pair(table)
    table.ids["old b"] = table.ids["b"]
    again = table.join("b", instance="j", member_id="")
    assert again.error is ErrorCode.NONE
    assert again.generation_id == generation
    assert again.member_id != table.ids["old b"]
    assert table.state == "Stable"
    assert table.sync("b", generation, instance="j").assignment == b"1"
    assert table.heartbeat("b", generation, instance="j") is ErrorCode.NONE

    assert table.heartbeat("old b", generation, instance="j") is ErrorCode.FENCED_INSTANCE_ID
    assert table.heartbeat("old b", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.sync("old b", generation, instance="j").error is ErrorCode.FENCED_INSTANCE_ID
    assert table.join("old b", instance="j").error is ErrorCode.FENCED_INSTANCE_ID
    assert table.commit({("flights", 0): 1}, client="old b", generation=generation, instance="j") == [
        ErrorCode.FENCED_INSTANCE_ID
    ]
    assert table.leave(MemberIdentity(member_id=table.ids["old b"], group_instance_id="j")) == [
        ErrorCode.FENCED_INSTANCE_ID
    ]
    table.restart()
    assert table.heartbeat("b", generation, instance="j") is ErrorCode.NONE


def test_a_static_leader_restarts_and_is_told_not_to_assign() -> None:
    table = Transcript()
    generation = _static_pair(table)
    again = table.join("a", instance="i", member_id="")
    assert again.generation_id == generation
    assert again.leader == again.member_id
    assert again.skip_assignment
    assert len(again.members) == 2


def test_an_old_static_leader_restarts_and_is_not_told_that_it_leads() -> None:
    table = Transcript()
    generation = _static_pair(table, version=8)
    old = table.ids["a"]
    again = table.join("a", instance="i", member_id="", version=8)
    assert again.generation_id == generation
    assert again.leader == old != again.member_id
    assert not again.skip_assignment
    assert again.members == ()
    assert table.machine.state.classic[GROUP].leader == again.member_id


def test_a_static_member_that_comes_back_with_another_protocol_rebalances() -> None:
    table = Transcript()
    both = protocols("range", "sticky")
    table.join("a", instance="i", offers=both)
    b = table.join("b", instance="j", offers=both)
    a = table.join("a", instance="i", offers=both)
    table.ids["b"] = b.member_id
    table.sync("a", a.generation_id, {"a": b"0", "b": b"1"})
    pending = table.join("b", instance="j", member_id="", offers=protocols("sticky"))
    assert not pending.answered
    assert table.join("a", instance="i", offers=both).protocol_name == "sticky"
    assert pending.protocol_name == "sticky"


def test_a_static_member_that_restarts_while_assignments_are_made_starts_over() -> None:
    table = Transcript()
    table.join("a", instance="i")
    b = table.join("b", instance="j")
    a = table.join("a", instance="i")
    table.ids["b"] = b.member_id
    waiting = table.sync("b", a.generation_id, instance="j")
    restarted = table.join("b", instance="j", member_id="")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert table.sync("a", a.generation_id, {"a": b"0"}).error is ErrorCode.REBALANCE_IN_PROGRESS
    a = table.join("a", instance="i")
    assert a.generation_id == restarted.generation_id


def test_a_static_member_that_restarts_while_joining_fences_its_old_self() -> None:
    table = Transcript()
    _static_pair(table)
    waiting = table.join("a", instance="i")
    restarted = table.join("a", instance="i", member_id="")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert not restarted.answered
    table.join("b", instance="j")
    assert restarted.error is ErrorCode.NONE


def test_a_silent_static_member_stays_over_a_rebalance_but_must_sync_in_the_end() -> None:
    table = Transcript()
    how = {"session_ms": 600_000, "rebalance_ms": 8_000}
    table.join("a", instance="i", **how)
    b = table.join("b", instance="j", **how)
    a = table.join("a", instance="i", **how)
    table.ids["b"] = b.member_id
    table.sync("a", a.generation_id, {"a": b"0", "b": b"1"})
    table.sync("b", a.generation_id)

    again = table.join("a", instance="i", **how)
    table.wait(8_000)
    assert len(again.members) == 2, "b did not join again, but its session goes on"
    table.sync("a", again.generation_id, {"a": b"0", "b": b"1"})
    assert table.state == "Stable"
    table.wait(8_000)
    assert table.state == "PreparingRebalance"
    assert len(table.join("a", instance="i", **how).members) == 1


def test_only_silent_static_members_postpone_the_rebalance_until_one_joins() -> None:
    table = Transcript()
    how = {"session_ms": 600_000, "rebalance_ms": 8_000}
    generation = table.stable("a", instance="i", **how)
    table.join("b", **how)
    table.leave("b")
    table.wait(40_000)
    assert table.state == "PreparingRebalance"
    assert table.join("a", instance="i", **how).generation_id == generation + 1


def test_a_static_leader_that_restarts_while_joining_still_leads() -> None:
    table = Transcript()
    _static_pair(table)
    table.join("a", instance="i")
    restarted = table.join("a", instance="i", member_id="")
    table.join("b", instance="j")
    assert restarted.leader == restarted.member_id
    assert len(restarted.members) == 2


def test_a_static_member_is_removed_by_its_instance_id() -> None:
    table = Transcript()
    _static_pair(table)
    nobody = MemberIdentity(member_id="", group_instance_id="k")
    named = MemberIdentity(member_id="", group_instance_id="j")
    assert table.leave(nobody, named) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert table.state == "PreparingRebalance"
    assert len(table.join("a", instance="i").members) == 1


# --- restarts -------------------------------------------------------------------------------------------


def test_members_carry_on_after_a_restart() -> None:
    table = Transcript()
    generation = table.stable("a", "b")
    described = table.describe()
    table.restart()
    assert table.state == "Stable"
    assert table.describe() == described
    assert table.heartbeat("a", generation) is ErrorCode.NONE
    assert table.sync("b", generation).assignment == b"share of b"


def test_members_that_died_with_the_node_are_dropped_after_a_restart() -> None:
    table = Transcript()
    table.stable("a", "b")
    table.restart()
    table.wait(SESSION_MS - 1)
    assert table.state == "Stable"
    table.wait(1)
    assert table.state == "Empty"


def test_a_rebalance_cut_off_by_a_restart_starts_again_from_the_last_generation() -> None:
    table = Transcript()
    generation = table.stable("a")
    lost = table.join("b")
    table.restart()
    assert not lost.answered
    assert table.state == "Stable"
    assert table.heartbeat("a", generation) is ErrorCode.NONE


def test_describe_shows_members_and_hides_assignments_while_rebalancing() -> None:
    table = Transcript()
    table.stable("a")
    described = table.describe()
    [member] = described.members
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert (member.client_id, member.client_host) == ("a", "/10.0.0.1")
    assert member.member_assignment == b"share of a"
    assert member.member_metadata == protocols("range")[0].metadata
    table.join("b")
    described = table.describe()
    assert described.group_state == "PreparingRebalance"
    assert {(m.member_metadata, m.member_assignment) for m in described.members} == {(b"", b"")}
    missing = table.describe("nowhere")
    assert (missing.group_state, missing.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
