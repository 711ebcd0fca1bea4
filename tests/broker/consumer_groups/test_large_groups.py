"""No event of a group of thousands has something to do for each of its members: that goes in steps. An event that
comes between two steps finds the group as it was, or as it will be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.broker.consumer_groups.heartbeats import Consumer, Table, given
from tests.broker.consumer_groups.small_steps import small_steps
from tests.broker.consumer_groups.transcript import GROUP, Pending, Transcript, protocols

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.events.event_frame import EventFrame
from mainstem.broker.consumer_groups.long_work import ITEMS_AT_ONCE, ITEMS_PER_STEP, Current, LongWork, Slices
from mainstem.broker.consumer_groups.modern.upcoming_targets import UpcomingTargets
from mainstem.protocol.error_codes import ErrorCode

MEMBERS = 2_400
FEWER = 800
PARTITIONS = 1_500
"""Enough for several steps."""
REBALANCE_MS = 5_000
"""Shorter than a session."""
CONFIG = ConsumerGroupsConfig(rebalance_delay_ms=0, group_metadata_bytes_max=8_000_000)


class Events:
    """Counts the function calls of the events of a machine."""

    def __init__(self) -> None:
        self.most = 0
        self._calls = 0

    def __enter__(self) -> Events:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, what: str, arg: Any) -> None:
        if what == "call":
            self._calls = 0 if frame.f_code is EventFrame.begin.__code__ else self._calls + 1
        elif what == "return" and frame.f_code is EventFrame.finish.__code__:
            self.most = max(self.most, self._calls)


def classic_life(members: int) -> None:
    """All join and get their assignment; a coordinator loads them; half of them does not join again."""
    table = Transcript(CONFIG)
    names = [f"{number:04}" for number in range(members)]
    table.join(names[0], version=3, rebalance_ms=REBALANCE_MS)
    joins = {name: table.join(name, version=3, rebalance_ms=REBALANCE_MS) for name in names[1:]}
    joins[names[0]] = table.join(names[0], version=3, rebalance_ms=REBALANCE_MS)
    table.wait(0)
    [generation] = {answer.generation_id for answer in joins.values()}
    table.ids = {name: answer.member_id for name, answer in joins.items()}
    [leads] = [name for name, answer in joins.items() if answer.members]
    assert len(joins[leads].members) == members
    syncs = [table.sync(name, generation) for name in names if name != leads]
    syncs.append(table.sync(leads, generation, {name: name.encode() for name in names}))
    table.wait(0)
    assert sorted(answer.assignment.decode() for answer in syncs) == names
    assert {member.member_assignment.decode() for member in table.describe().members} == set(names)
    table.restart()
    table.wait(0)
    assert len(table.machine.timers) == members + 1, "a session for each, and the expiry of offsets"
    again = [table.join(name, version=3, rebalance_ms=REBALANCE_MS) for name in names[: members // 2]]
    table.wait(REBALANCE_MS)
    assert all(answer.error is ErrorCode.NONE for answer in again)
    assert len(table.machine.state.classic[GROUP].members) == len(again)


def consumer_life(members: int) -> None:
    table = Table(CONFIG, flights=PARTITIONS)
    consumers = [Consumer(table, f"{number:04}", ("flights",)) for number in range(members)]
    for consumer in consumers:
        assert consumer.beat() is ErrorCode.NONE
    table.wait(6_000)
    settle(table, consumers)
    assert sum(len(consumer.owned) for consumer in consumers) == PARTITIONS
    ticket = table.send(lambda ticket: table.machine.administration.describe_modern(ticket, [GROUP], table.now))
    table.wait(0)
    [told] = table.answer(ticket)
    assert sum(len(row.partitions) for one in told.members for row in one.assignment.topic_partitions) == PARTITIONS
    consumers.append(Consumer(table, "one more", ("flights",)))
    table.wait(6_000)
    settle(table, consumers)
    assert sum(len(consumer.owned) for consumer in consumers) == PARTITIONS
    table.restart()
    table.wait(0)


def settle(table: Table, consumers: list[Consumer]) -> None:
    for _ in range(3):
        for consumer in consumers:
            consumer.beat()
        table.wait(0)


@pytest.mark.parametrize("life", [classic_life, consumer_life])
def test_no_event_does_more_for_members_than_a_step_has_room_for(life: Callable[[int], None]) -> None:
    """Events may look at all members, which takes few calls; what they do for each takes dozens."""
    most = []
    for members in (FEWER, MEMBERS):
        with Events() as events:
            life(members)
        most.append(events.most)
    assert most[0] > ITEMS_PER_STEP
    assert most[1] < 1.5 * most[0]


def test_a_step_ends_when_it_has_had_its_fill() -> None:
    done: list[int] = []

    def work(current: Current[int]) -> Slices[None]:
        for _ in range(10 * ITEMS_PER_STEP // ITEMS_AT_ONCE):
            done.append(current.step)
            yield ITEMS_AT_ONCE

    long: LongWork[int] = LongWork()
    long.begin(1, work)
    long.begin(2, work)
    assert [done.count(step) * ITEMS_AT_ONCE for step in (1, 2)] == [ITEMS_PER_STEP] * 2
    for step in range(3, 23):
        long.go_on(step)
        assert done.count(step) * ITEMS_AT_ONCE <= ITEMS_PER_STEP
    assert not long
    assert len(done) == 2 * 10 * ITEMS_PER_STEP // ITEMS_AT_ONCE


def three_assigned(*, static: bool = False) -> tuple[Table, list[Consumer]]:
    """Three members, and a fourth that has just come: its coming is what a target is made for, step by step."""
    table = Table(flights=12)
    consumers = [
        Consumer(table, name, ("flights",), **({"instance_id": f"i-{name}"} if static else {})) for name in "abcd"
    ]
    for _ in range(3):
        settle(table, consumers[:3])
    consumers[3].beat()
    assert table.group.upcoming is not None
    assert table.group.state.value == "Assigning"
    return table, consumers


def test_members_are_answered_while_their_target_is_made() -> None:
    with small_steps():
        table, (a, b, c, d) = three_assigned()
        before = dict(table.group.targets)
        assert a.beat() is ErrorCode.NONE
        assert table.error(table.beat("b", b.epoch + 5)) is ErrorCode.FENCED_MEMBER_EPOCH
        assert table.error(table.beat("nobody", 3)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert c.leave() is ErrorCode.NONE
        assert d.epoch == table.group.assignment_epoch
        del before["c"]
        assert table.group.targets == before, "nothing of the new one is seen"
        steps = 0
        while table.group.upcoming is not None:
            assert table.group.targets == before
            table.take(table.machine.advance(table.now))
            steps += 1
        assert steps > 12
        assert table.group.targets.keys() == {"a", "b", "d"}, "who has left has no part in it"
        settle(table, [a, b, d])
        assert sorted(len(one.owned) for one in (a, b, d)) == [4, 4, 4]


def test_who_takes_the_place_of_a_static_member_has_its_part_of_the_target_that_is_made() -> None:
    with small_steps():
        table, _ = three_assigned(static=True)
        assert table.error(table.beat("b", -2, instance_id="i-b")) is ErrorCode.NONE
        back = table.join("b again", "flights", instance_id="i-b")
        had = given(back)
        table.wait(0)
        assert table.group.upcoming is None
        kept = table.group.targets["b again"]
        assert {(topic_id, index) for topic_id, some in kept.items() for index in some} < had
        assert sum(map(len, kept.values())) == 3
        assert "b" not in table.group.targets


def test_a_target_that_is_made_is_not_for_members_that_have_come_since_under_the_same_name() -> None:
    upcoming = UpcomingTargets(7, {}, {})
    upcoming.left("a")
    assert upcoming.holder("a") is None
    upcoming.left("a")  # the one that has come since
    upcoming.replaced("b", "c")
    upcoming.replaced("c", "b")
    assert upcoming.holder("b") == "b"
    upcoming.replaced("b", "d")
    upcoming.replaced("b", "e")  # another, which has come since
    assert upcoming.holder("b") == "d"
    upcoming.left("d")
    assert upcoming.holder("b") is None


def test_a_join_whose_answer_has_not_left_when_the_next_rebalance_begins_counts_for_that() -> None:
    with small_steps():
        table = Transcript()
        first = table.join("a", version=3)
        table.wait(0)
        table.ids["a"] = first.member_id
        joins: dict[str, Pending] = {
            "b": table.join("b", version=3, rebalance_ms=REBALANCE_MS),
            "c": table.join("c", version=3, rebalance_ms=REBALANCE_MS),
        }
        joins["a"] = table.join("a", version=3)
        group = table.machine.state.classic[GROUP]
        assert group.state.value == "CompletingRebalance"
        assert [one for one, answer in joins.items() if answer.answered] == [], "its leader, the first, comes last"
        table.advance()
        heard = [one for one, answer in joins.items() if answer.answered]
        assert len(heard) == 1
        generation = group.generation
        table.ids[heard[0]] = joins[heard[0]].member_id
        table.leave(heard[0])
        table.wait(0)
        assert all(answer.error is ErrorCode.NONE for answer in joins.values())
        assert group.generation == generation + 1
        assert {joins[name].generation_id for name in joins if name != heard[0]} == {generation + 1}


def test_an_assignment_that_is_being_recorded_when_the_next_rebalance_begins_is_given_up() -> None:
    """Although the leader, the last of those that wait, has not been refused yet."""
    followers = ("b", "c", "d", "e", "f")
    with small_steps():
        table = Transcript()
        table.join("a", instance="i-a", version=3)
        table.wait(0)
        joins = {name: table.join(name, version=3) for name in followers}
        joins["a"] = table.join("a", instance="i-a", version=3, member_id="")  # leads still, and comes last now
        table.wait(0)
        table.ids = {name: answer.member_id for name, answer in joins.items()}
        group = table.machine.state.classic[GROUP]
        assert list(group.members)[-1] == group.leader == table.ids["a"]
        generation = group.generation
        syncs = {name: table.sync(name, generation) for name in followers}
        syncs["a"] = table.sync("a", generation, {"a": b"all"}, instance="i-a")
        for _ in range(4):
            table.advance()
        written = len(table.log)
        table.leave("b")
        assert not syncs["a"].answered
        table.wait(0)
        assert group.state.value == "PreparingRebalance"
        assert {syncs[name].error for name in syncs if name != "b"} == {ErrorCode.REBALANCE_IN_PROGRESS}
        assert len(table.log) == written


def test_a_refusal_that_comes_late_leaves_alone_what_a_member_has_asked_since() -> None:
    with small_steps():
        table = Transcript()
        table.join("a", version=3)
        table.wait(0)
        table.ids["a"] = next(iter(table.machine.state.classic[GROUP].members))
        joins = {name: table.join(name, version=3) for name in ("b", "c", "d")}
        joins["a"] = table.join("a", version=3)
        table.wait(0)
        table.ids = {name: answer.member_id for name, answer in joins.items()}
        group = table.machine.state.classic[GROUP]
        first = [table.sync(name, group.generation) for name in ("b", "c", "d")]
        again = table.join("a", version=3, offers=protocols("range", "sticky"))
        assert [sync.answered for sync in first] == [True, False, False]
        table.leave("b", "c")
        back = table.join("d", version=3)
        assert first[-1].error is ErrorCode.REBALANCE_IN_PROGRESS
        table.advance()
        table.advance()
        assert back.error is ErrorCode.NONE
        second = table.sync("d", back.generation_id)
        table.wait(0)
        assert again.leader == again.member_id
        assert not second.answered
        table.sync("a", again.generation_id, {"d": b"its share"})
        table.wait(0)
        assert second.assignment == b"its share"
