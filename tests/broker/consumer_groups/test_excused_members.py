"""Members are not judged by time in which the node did not serve them; those who are silent by themselves are."""

from __future__ import annotations

from tests.broker.consumer_groups.heartbeats import GROUP, Consumer, Table

from mainstem.broker.consumer_groups.excused_members import ASK_AGAIN_MS, EXCUSES_MAX, LATE_MS, ExcusedMembers
from mainstem.broker.consumer_groups.machine import RECORDS_AT_ONCE
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind, Timers
from mainstem.protocol.error_codes import ErrorCode

OK = ErrorCode.NONE
TOPIC = "flights"
RECORDS_OF_A_MEMBER = 4
"""Deleted when it is gone, with the group's new epoch."""


def test_a_session_does_not_end_while_the_member_waits_for_an_answer_and_begins_anew_with_it() -> None:
    table = Table(flights=4)
    session_ms = table.config.consumer_session_timeout_ms
    assert Consumer(table, "served", (TOPIC,)).beat() is OK
    table.log_is_slow = True
    waiting = Consumer(table, "waits", (TOPIC,))
    assert waiting.beat() is OK, "the table shows the answer, which has yet to leave"
    table.wait(2 * session_ms)
    assert set(table.machine.state.modern[GROUP].members) == {"waits"}
    table.machine.answered(range(1_000), table.now)
    table.log_is_slow = False
    table.wait(session_ms - 1)
    assert waiting.beat() is OK
    table.wait(session_ms)
    assert GROUP not in table.machine.state.modern or not table.machine.state.modern[GROUP].members


def test_a_node_that_was_held_up_waits_as_long_again_but_not_for_ever() -> None:
    timers = Timers()
    excused = ExcusedMembers(timers)
    timer = TimerKey(TimerKind.SESSION, GROUP, "m")

    def given(deadline_ms: int, now_ms: int) -> bool:
        """Whether the member is excused at this time."""
        timers.set(timer, deadline_ms)
        assert list(timers.due(now_ms)) == [timer]
        return excused.is_excused(timer, timers.given_ms, now_ms)

    assert not given(1_000, 1_000 + LATE_MS - 1), "in time"
    deadline_ms = 1_000
    for _ in range(EXCUSES_MAX):
        assert given(deadline_ms, deadline_ms + 2_000)
        assert timers.next_deadline_ms() == deadline_ms + 4_000
        deadline_ms += 4_000
    assert not given(deadline_ms, deadline_ms + 2_000)
    assert given(50_000, 52_000), "its session began anew in between"
    other = TimerKey(TimerKind.REVOCATION, GROUP, "m")
    assert not excused.is_excused(other, 0, 1_000_000)


def test_a_member_that_waits_is_looked_at_again() -> None:
    timers = Timers()
    excused = ExcusedMembers(timers)
    excused.asked(1, GROUP, "m")
    excused.asked(2, GROUP, "m")
    timer = TimerKey(TimerKind.SESSION, GROUP, "m")
    timers.set(timer, 1_000)
    assert excused.answered(1) == timer
    assert list(timers.due(1_000)) == [timer]
    assert excused.is_excused(timer, 1_000, 1_000), "one more answer"
    assert timers.next_deadline_ms() == 1_000 + ASK_AGAIN_MS
    assert excused.answered(2) == timer
    assert excused.answered(2) is None
    assert list(timers.due(3_000)) == [timer]
    assert not excused.is_excused(timer, 3_000, 3_000)


def test_sessions_of_very_many_members_end_in_several_events() -> None:
    table = Table(flights=4)
    members = RECORDS_AT_ONCE // RECORDS_OF_A_MEMBER + 50
    for number in range(members):
        assert Consumer(table, f"m-{number}", (TOPIC,)).beat() is OK
    group = table.machine.state.modern[GROUP]
    table.now_ms += table.config.consumer_session_timeout_ms
    result = table.machine.advance(table.now)
    assert RECORDS_AT_ONCE <= len(result.records) < RECORDS_AT_ONCE + 10
    assert 0 < len(group.members) < members
    assert result.wake_at_ms is not None
    assert result.wake_at_ms <= table.now_ms, "the rest is due at once"
    table.take(result)
    table.wait(1)
    assert not group.members
