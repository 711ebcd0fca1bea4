"""One event on its way through a group with epochs: its changes, each by its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.epoch_group import EpochGroup
from mainstem.broker.consumer_groups.epochs.epoch_member import EpochMember, ReconciliationState
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics, hash_of
from mainstem.broker.consumer_groups.step import LogRecord, Step
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind
from mainstem.broker.errors import MemberRefused
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode

G = TypeVar("G", bound=EpochGroup[Any, Any])

TOPICS_CHECK_MS = 1_000
"""How often a group's topics are compared with those there are."""


class MadeTarget(NamedTuple):
    """A target that is to be written, as the log will have it."""

    member_id: str
    record: LogRecord
    target: Any


@dataclass(frozen=True, slots=True)
class EpochStep(Generic[G]):
    """With the topics there are."""

    step: Step
    group: G
    topics: CurrentTopics

    @property
    def own(self) -> ConsumerGroupsConfig:
        """The settings of the group."""
        return self.step.config_of(self.group.group_id)

    # --- records -------------------------------------------------------------------------------------

    def write(self, key: Any, value: Any) -> None:
        self.step.write(self.group.records.record(key, value))

    def write_member(self, member_id: str, metadata: Any) -> None:
        self.write(self.group.records.member_key(group=self.group.group_id, member_id=member_id), metadata)

    def write_current(self, member_id: str, current: Any) -> None:
        key = self.group.records.current_key(group=self.group.group_id, member_id=member_id)
        self.write(key, self.group.current_value(current))

    def write_target(self, member_id: str, target: Any) -> None:
        key = self.group.records.target_key(group=self.group.group_id, member_id=member_id)
        self.write(key, self.group.target_value(target))

    def write_targets(self, targets: Mapping[str, Any], **also: Any) -> None:
        """The targets of all members, for the group's epoch. `also`: what the protocol's record of that has besides."""
        group, kinds = self.group, self.group.records
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                self.write_target(member_id, target)
        value = kinds.target_epoch(assignment_epoch=group.epoch, **also)
        self.write(kinds.target_epoch_key(group=group.group_id), value)
        self.step.rebalanced(group.group_id, len(group.members))

    def made_target(self, member_id: str, target: Any) -> MadeTarget:
        """A member's target with its record, not written yet."""
        kinds, value = self.group.records, self.group.target_value(target)
        key = kinds.target_key(group=self.group.group_id, member_id=member_id)
        return MadeTarget(member_id, kinds.record(key, value), self.group.target_of(value))

    def write_made_targets(self, made: Mapping[str, MadeTarget], epoch: int) -> None:
        """The targets of an epoch, by member: of all members that have others than before."""
        group, kinds = self.group, self.group.records
        targets = {member_id: one.target for member_id, one in made.items()}
        self.step.write_together([one.record for one in made.values()], lambda: group.targets.update(targets))
        self.write(kinds.target_epoch_key(group=group.group_id), kinds.target_epoch(assignment_epoch=epoch))
        self.step.rebalanced(group.group_id, len(group.members))

    def forget_member(self, member_id: str) -> None:
        for key in self.group.records.keys_of_member(self.group.group_id, member_id):
            self.write(key, None)

    def begin_epoch(self) -> None:
        kinds = self.group.records
        value = kinds.epoch(epoch=self.group.epoch + 1, metadata_hash=self.topics_hash())
        self.write(kinds.epoch_key(group=self.group.group_id), value)

    # --- topics --------------------------------------------------------------------------------------

    def subscribed_topics(self) -> dict[str, Topic]:
        """Those of the topics that members subscribe to which exist, by name."""
        return {topic.name: topic for topic in self.topics.known(self.group.subscribed_names())}

    def topics_hash(self) -> int:
        """Of the topics that members subscribe to, as they are now."""
        return hash_of(self.topics.known(self.group.subscribed_names()))

    def follow_topics(self, *, changed: bool) -> None:
        """A new epoch, if members or subscriptions have `changed`, or the topics that they subscribe to."""
        group, now_ms = self.group, self.step.now.monotonic_ms
        checked_ms = group.topics_checked_ms
        if not changed and checked_ms is not None and now_ms - checked_ms < TOPICS_CHECK_MS:
            return
        group.topics_checked_ms = now_ms
        if changed or self.topics_hash() != group.metadata_hash:
            self.begin_epoch()

    # --- members -------------------------------------------------------------------------------------

    def check_room(self, member_id: str, known: EpochMember[Any, Any] | None, metadata: Any) -> None:
        """Raises `MemberRefused` where the group, a record or the node's memory cannot take the member."""
        config = self.step.config
        if known is None and len(self.group.members) >= config.group_size_max:
            raise MemberRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        size = self.group.bytes_of(member_id, metadata)
        if size > config.group_metadata_bytes_max:
            why = f"the member's metadata take {size} bytes; {config.group_metadata_bytes_max} are the most"
            raise MemberRefused(ErrorCode.INVALID_REQUEST, why)
        if not self.group.has_room(metadata.client_host, size - (known.charged if known is not None else 0)):
            raise MemberRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def timer(self, kind: int, member_id: str) -> TimerKey:
        return TimerKey(kind, self.group.group_id, member_id)

    def restart_session(self, member_id: str) -> None:
        timeout_ms = self.own.consumer_session_timeout_ms
        self.step.timers.set(self.timer(TimerKind.SESSION, member_id), self.step.now.monotonic_ms + timeout_ms)

    def time_revocation(self, member_id: str) -> None:
        """A member that is to give up partitions, or tasks, has its rebalance timeout for that."""
        member = self.group.members[member_id]
        if member.current.state != ReconciliationState.UNREVOKED_PARTITIONS or member.metadata is None:
            self.stop_revocation(member_id)
            return
        timeout_ms = min(member.metadata.rebalance_timeout_ms, self.step.config.rebalance_timeout_ms_max)
        self.step.timers.set(self.timer(TimerKind.REVOCATION, member_id), self.step.now.monotonic_ms + timeout_ms)

    def stop_revocation(self, member_id: str) -> None:
        self.step.timers.cancel(self.timer(TimerKind.REVOCATION, member_id))
