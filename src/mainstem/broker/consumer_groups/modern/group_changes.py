"""The steps that change a group's members, epoch and target assignment, each by its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from mainstem.broker.consumer_groups.modern.assignors import ASSIGNORS, Subscriber
from mainstem.broker.consumer_groups.modern.modern_group import (
    CurrentAssignment,
    ModernGroup,
    ModernMember,
    Partitions,
    ReconciliationState,
    current_value,
    member_keys,
    partitions_of,
    rows_of,
)
from mainstem.broker.consumer_groups.modern.subscribed_topics import CurrentTopics, hash_of
from mainstem.broker.consumer_groups.step import ModernRecord, Step
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind
from mainstem.protocol.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

__all__ = ["GroupStep", "assign", "partitions_of", "remove", "take_over", "time_over"]

ANSWER_WAIT_MS_MIN = 1_000
"""Clients choose rebalance timeouts; below this one, a member would be gone before it could answer."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One event on its way through one group, with the topics there are."""

    step: Step
    group: ModernGroup
    topics: CurrentTopics

    # --- records -------------------------------------------------------------------------------------

    def write_member(self, member_id: str, metadata: ConsumerGroupMemberMetadataValue) -> None:
        key = ConsumerGroupMemberMetadataKey(group=self.group.group_id, member_id=member_id)
        self.step.write(ModernRecord(key, metadata))

    def write_current(self, member_id: str, current: CurrentAssignment) -> None:
        key = ConsumerGroupCurrentMemberAssignmentKey(group=self.group.group_id, member_id=member_id)
        self.step.write(ModernRecord(key, current_value(current)))

    def write_target(self, member_id: str, partitions: Partitions) -> None:
        key = ConsumerGroupTargetAssignmentMemberKey(group=self.group.group_id, member_id=member_id)
        value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=rows_of(partitions))
        self.step.write(ModernRecord(key, value))

    def write_expression(self, expression: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        key = ConsumerGroupRegularExpressionKey(group=self.group.group_id, regular_expression=expression)
        self.step.write(ModernRecord(key, value))

    def forget_member(self, member_id: str) -> None:
        for key in member_keys(self.group.group_id, member_id):
            self.step.write(ModernRecord(key, None))

    def forget_unused_expressions(self) -> None:
        members = self.group.members.values()
        used = {member.metadata.subscribed_topic_regex for member in members if member.metadata is not None}
        for expression in [*self.group.expressions]:
            if expression not in used:
                self.write_expression(expression, None)

    def topics_hash(self) -> int:
        """Of the topics that members subscribe to, as they are now."""
        return hash_of(self.topics.known(self.group.subscribed_names()))

    def begin_epoch(self) -> None:
        key = ConsumerGroupMetadataKey(group=self.group.group_id)
        value = ConsumerGroupMetadataValue(epoch=self.group.epoch + 1, metadata_hash=self.topics_hash())
        self.step.write(ModernRecord(key, value))

    # --- timers --------------------------------------------------------------------------------------

    def restart_session(self, member_id: str) -> None:
        classic = self.group.members[member_id].classic
        timeout_ms = self.step.config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self.step.timers.set(self._timer(TimerKind.SESSION, member_id), self.step.now.monotonic_ms + timeout_ms)

    def time_revocation(self, member_id: str) -> None:
        """A member that is to give up partitions has its rebalance timeout for that."""
        member = self.group.members[member_id]
        if member.current.state != ReconciliationState.UNREVOKED_PARTITIONS or member.metadata is None:
            self.stop_revocation(member_id)
            return
        timeout_ms = min(member.metadata.rebalance_timeout_ms, self.step.config.rebalance_timeout_ms_max)
        self.step.timers.set(self._timer(TimerKind.REVOCATION, member_id), self.step.now.monotonic_ms + timeout_ms)

    def stop_revocation(self, member_id: str) -> None:
        self.step.timers.cancel(self._timer(TimerKind.REVOCATION, member_id))

    def start_answer(self, member_id: str, *, unless_started: bool = False) -> None:
        """A classic member has its rebalance timeout for its next join, or its next sync."""
        timer = self._timer(TimerKind.ANSWER, member_id)
        metadata = self.group.members[member_id].metadata
        if metadata is not None and not (unless_started and timer in self.step.timers):
            timeout_ms = max(metadata.rebalance_timeout_ms, ANSWER_WAIT_MS_MIN)
            self.step.timers.set(timer, self.step.now.monotonic_ms + timeout_ms)

    def stop_answer(self, member_id: str) -> None:
        self.step.timers.cancel(self._timer(TimerKind.ANSWER, member_id))

    def stop_timers(self, member_id: str) -> None:
        self.stop_revocation(member_id)
        self.stop_answer(member_id)
        self.step.timers.cancel(self._timer(TimerKind.SESSION, member_id))

    def _timer(self, kind: int, member_id: str) -> TimerKey:
        return TimerKey(kind, self.group.group_id, member_id)


def remove(it: GroupStep, member_ids: Iterable[str]) -> None:
    """Members are gone: their partitions are free, and the next heartbeat of any other assigns them."""
    for member_id in member_ids:
        it.stop_timers(member_id)
        it.forget_member(member_id)
    it.forget_unused_expressions()
    it.begin_epoch()


def take_over(it: GroupStep, old: ModernMember, member_id: str, metadata: ConsumerGroupMemberMetadataValue) -> None:
    """A static member is back under another id: it has the target, and the partitions, of its former self."""
    target, assigned = it.group.target(old.member_id), old.current.assigned
    it.stop_timers(old.member_id)
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
        TimerKind.ANSWER: member.classic is not None,
    }
    if over.get(kind, False):
        remove(it, [member_id])


def assignor_of(group: ModernGroup) -> str:
    """The assignor that most members name, of those that name one."""
    votes = Counter(
        member.metadata.server_assignor
        for member in group.members.values()
        if member.metadata is not None and member.metadata.server_assignor in ASSIGNORS
    )
    if not votes:
        return next(iter(ASSIGNORS))
    return min(votes, key=lambda name: (-votes[name], name or "")) or next(iter(ASSIGNORS))


def assign(it: GroupStep) -> None:
    """Make the target assignment of the group's epoch."""
    group = it.group
    topics = {topic.name: topic for topic in it.topics.known(group.subscribed_names())}
    sizes = {topic.topic_id: topic.partitions for topic in topics.values()}
    subscribed: dict[tuple[object, ...], frozenset[UUID]] = {}
    members: dict[str, Subscriber] = {}
    for member_id, member in group.members.items():
        metadata = member.metadata
        if metadata is None:
            continue
        said = (metadata.subscribed_topic_names, metadata.subscribed_topic_regex)
        if said not in subscribed:
            names = group.topics_of(metadata)
            subscribed[said] = frozenset(topics[name].topic_id for name in names if name in topics)
        members[member_id] = Subscriber(subscribed[said], group.target(member_id), metadata.instance_id)
    for member_id, partitions in ASSIGNORS[assignor_of(group)](members, sizes).items():
        if group.targets.get(member_id) != partitions:
            it.write_target(member_id, partitions)
    key = ConsumerGroupTargetAssignmentMetadataKey(group=group.group_id)
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=group.epoch)
    it.step.write(ModernRecord(key, value))
    it.step.counts.rebalances += 1
