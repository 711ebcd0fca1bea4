"""The steps that change a group's members, epoch and target assignment, each by its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment, ReconciliationState
from mainstem.broker.consumer_groups.epochs.epoch_step import EpochStep
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup, ModernMember
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.protocol.messages.consumer_group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)

ANSWER_WAIT_MS_MIN = 1_000
"""Clients choose rebalance timeouts; below this one, a member would be gone before it could answer."""

LARGE_GROUP = 100
"""Members. An assignment looks at all members and partitions: of so many it takes a millisecond or two, and one for
each that joins a group of thousands takes minutes in all."""

MEMBERS_PER_INTERVAL = 2_000
"""A group of so many members is assigned once in an interval, one of ten thousand once in five: each assignment looks
at every member, and gives most of them work."""


@dataclass(frozen=True, slots=True)
class GroupStep(EpochStep[ModernGroup]):
    """One event on its way through one group, with the topics there are."""

    def write_expression(self, expression: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        key = ConsumerGroupRegularExpressionKey(group=self.group.group_id, regular_expression=expression)
        self.write(key, value)

    def forget_unused_expressions(self) -> None:
        for expression in [*self.group.expressions]:
            if not self.group.uses(expression):
                self.write_expression(expression, None)

    # --- timers --------------------------------------------------------------------------------------

    def restart_session(self, member_id: str) -> None:
        classic = self.group.members[member_id].classic
        timeout_ms = self.own.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self.step.timers.set(self.timer(TimerKind.SESSION, member_id), self.step.now.monotonic_ms + timeout_ms)

    def await_join(self, member_id: str) -> None:
        """A classic member is told to join again, and has its rebalance timeout for that, from the first time on."""
        self.step.timers.cancel(self.timer(TimerKind.FETCH, member_id))
        if self.timer(TimerKind.REJOIN, member_id) not in self.step.timers:
            self._start_rebalance_timeout(TimerKind.REJOIN, member_id)

    def await_fetch(self, member_id: str) -> None:
        """A classic member has joined, and has its rebalance timeout to fetch its assignment."""
        self.stop_await_join(member_id)
        self._start_rebalance_timeout(TimerKind.FETCH, member_id)

    def stop_await_join(self, member_id: str) -> None:
        self.step.timers.cancel(self.timer(TimerKind.REJOIN, member_id))

    def stop_await(self, member_id: str) -> None:
        """Nothing is expected of a classic member."""
        self.stop_await_join(member_id)
        self.step.timers.cancel(self.timer(TimerKind.FETCH, member_id))

    def _start_rebalance_timeout(self, kind: int, member_id: str) -> None:
        metadata = self.group.members[member_id].metadata
        if metadata is not None:
            timeout_ms = max(metadata.rebalance_timeout_ms, ANSWER_WAIT_MS_MIN)
            self.step.timers.set(self.timer(kind, member_id), self.step.now.monotonic_ms + timeout_ms)

    def stop_timers(self, member_id: str) -> None:
        self.stop_revocation(member_id)
        self.stop_await(member_id)
        self.step.timers.cancel(self.timer(TimerKind.SESSION, member_id))


def remove(it: GroupStep, member_ids: Iterable[str]) -> None:
    """Members are gone: their partitions are free, and the next heartbeat of any other assigns them."""
    for member_id in member_ids:
        it.stop_timers(member_id)
        if it.group.upcoming is not None:
            it.group.upcoming.left(member_id)
        it.forget_member(member_id)
    it.forget_unused_expressions()
    it.begin_epoch()


def take_over(it: GroupStep, old: ModernMember, member_id: str, metadata: ConsumerGroupMemberMetadataValue) -> None:
    """A static member is back under another id: it has the target, and the partitions, of its former self."""
    target, assigned = it.group.target(old.member_id), old.current.assigned
    it.stop_timers(old.member_id)
    if it.group.upcoming is not None:
        it.group.upcoming.replaced(old.member_id, member_id)
    it.forget_member(old.member_id)
    it.write_member(member_id, metadata)
    it.write_target(member_id, target)
    it.write_current(member_id, CurrentAssignment(assigned=assigned))


def time_over(it: GroupStep, kind: int, member_id: str) -> None:
    """A member's time is over: no heartbeat came for its session timeout, or it did not give up partitions, or a
    classic one did not join or sync, within its rebalance timeout."""
    member = it.group.members.get(member_id)
    if member is None:
        return
    if kind == TimerKind.SESSION:
        it.step.counts.sessions_expired += 1
    over = {
        TimerKind.SESSION: True,
        TimerKind.REVOCATION: member.current.state == ReconciliationState.UNREVOKED_PARTITIONS,
        TimerKind.REJOIN: member.classic is not None,
        TimerKind.FETCH: member.classic is not None,
    }
    if over.get(kind, False):
        remove(it, [member_id])


def is_delayed(it: GroupStep) -> bool:
    """Whether no target is made now, as the last one of a large group is too young: members come and go together."""
    since_ms = it.group.assigned_ms
    if len(it.group.members) < LARGE_GROUP or since_ms is None:
        return False
    return it.step.now.monotonic_ms - since_ms < assignment_interval_ms(it)


def assignment_interval_ms(it: GroupStep) -> int:
    """Between two targets of a large group at least: the larger it is, the longer each takes."""
    return it.own.consumer_assignment_interval_ms * max(1, len(it.group.members) // MEMBERS_PER_INTERVAL)
