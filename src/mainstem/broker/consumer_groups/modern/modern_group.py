"""A consumer group whose partitions the coordinator assigns (KIP-848), as a noun: what such groups have beside epochs.

Invariant: a partition has one owner. A member owns what is assigned to it, and what it was told to revoke until it has
confirmed that.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import partitions_of, rows_of
from mainstem.broker.consumer_groups.epochs.epoch_group import EpochRecords, Part
from mainstem.broker.consumer_groups.epochs.epoch_member import (
    NAME_BYTES,
    CurrentAssignment,
    EpochMember,
    ReconciliationState,
    member_bytes,
)
from mainstem.broker.consumer_groups.epochs.partition_group import PartitionGroup
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.modern.upcoming_targets import UpcomingTargets
from mainstem.broker.consumer_groups.step import ModernRecord
from mainstem.protocol.messages.consumer_group_heartbeat import STATIC_LEAVE_EPOCH
from mainstem.protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
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


class ModernGroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group's epoch."""
    RECONCILING = "Reconciling"
    """Members are on their way to the target assignment."""
    STABLE = "Stable"


@dataclass(slots=True)
class ModernMember(EpochMember[ConsumerGroupMemberMetadataValue, CurrentAssignment]):
    """A member of a consumer group."""

    @property
    def classic(self) -> ClassicMemberMetadata | None:
        """Of a member that speaks the classic protocol."""
        return None if self.metadata is None else self.metadata.classic_member_metadata

    @property
    def gone_for_now(self) -> bool:
        """Whether it is a static member that left and is expected back."""
        return self.current.epoch == STATIC_LEAVE_EPOCH


RECORDS = EpochRecords(
    record=ModernRecord,
    epoch_key=ConsumerGroupMetadataKey,
    epoch=ConsumerGroupMetadataValue,
    member_key=ConsumerGroupMemberMetadataKey,
    target_epoch_key=ConsumerGroupTargetAssignmentMetadataKey,
    target_epoch=ConsumerGroupTargetAssignmentMetadataValue,
    target_key=ConsumerGroupTargetAssignmentMemberKey,
    target=ConsumerGroupTargetAssignmentMemberValue,
    current_key=ConsumerGroupCurrentMemberAssignmentKey,
)


class ModernGroup(PartitionGroup[ModernMember]):
    """One consumer group. A new one is empty, and the log does not know it."""

    records = RECORDS

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        super().__init__(group_id, holdings)
        self.static_members: dict[str, str] = {}
        """Instance id → member id."""
        self.expressions: dict[str, ConsumerGroupRegularExpressionValue] = {}
        """Regular expression → the topics that it stands for."""
        self.expressions_checked_ms: dict[str, int] = {}
        """When an expression was last matched with all topics; not in the log."""
        self.assigned_ms: int | None = None
        """When the target assignment was last made, monotonic; not in the log."""
        self.upcoming: UpcomingTargets | None = None
        """The target assignment that is being made; not in the log."""
        self._expression_users: Counter[str] = Counter()
        """How many members subscribe to a regular expression."""
        self._owners: dict[UUID, dict[int, str]] = {}
        self._classic_members = 0
        self._classic_protocols: Counter[str] = Counter()
        """How many classic members support a protocol."""

    @property
    def only_classic(self) -> bool:
        """Whether it has members, all of which speak the classic protocol."""
        return 0 < self._classic_members == len(self.members)

    def supports_classic(self, names: Iterable[str], besides: ModernMember | None) -> bool:
        """Whether a member has one of these protocols in common with all classic members, itself left out."""
        itself: set[str] = set()
        others = self._classic_members
        if besides is not None and besides.classic is not None:
            itself = {protocol.name for protocol in besides.classic.supported_protocols}
            others -= 1
        return any(self._classic_protocols[name] - (name in itself) == others for name in names)

    def classic_protocol(self) -> str | None:
        """A protocol that all classic members support."""
        shared = (name for name, count in self._classic_protocols.items() if count == self._classic_members)
        return min(shared, default=None)

    @property
    def state(self) -> ModernGroupState:
        if not self.members:
            return ModernGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ModernGroupState.ASSIGNING
        for member in list(self.members.values()):  # metrics are read in another thread
            at_target = member.current.epoch in (self.assignment_epoch, STATIC_LEAVE_EPOCH)
            if not at_target or member.current.state != ReconciliationState.STABLE:
                return ModernGroupState.RECONCILING
        return ModernGroupState.STABLE

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        """The member that a partition belongs to until it confirms that it gave it up."""
        return self._owners.get(topic_id, {}).get(partition)

    def subscribed_names(self) -> set[str]:
        """The topics that members subscribe to, by name or through a regular expression."""
        names = super().subscribed_names()
        for value in self.expressions.values():
            names.update(value.topics)
        return names

    def subscribes_to(self, topic: str) -> bool:
        return topic in self._subscribers or any(topic in value.topics for value in self.expressions.values())

    def topics_of(self, metadata: ConsumerGroupMemberMetadataValue) -> frozenset[str]:
        """The topics that a member with this metadata subscribes to."""
        names = frozenset(metadata.subscribed_topic_names)
        found = self.expressions.get(metadata.subscribed_topic_regex or "")
        return names if found is None else names | frozenset(found.topics)

    def uses(self, expression: str) -> bool:
        """Whether a member subscribes to a regular expression."""
        return expression in self._expression_users

    def expression_is_due(self, expression: str, now_ms: int, interval_ms: int) -> bool:
        """Whether an expression was not matched for a while."""
        checked_ms = self.expressions_checked_ms.get(expression)
        return checked_ms is None or now_ms - checked_ms >= interval_ms

    # --- what the log says ---------------------------------------------------------------------------

    def bytes_of(self, member_id: str, metadata: ConsumerGroupMemberMetadataValue) -> int:
        texts = (
            metadata.instance_id,
            metadata.rack_id,
            metadata.client_id,
            metadata.client_host,
            metadata.server_assignor,
            metadata.subscribed_topic_regex,
        )
        size = member_bytes(member_id, texts, metadata.subscribed_topic_names)
        if metadata.classic_member_metadata is not None:
            protocols = metadata.classic_member_metadata.supported_protocols
            size += sum(NAME_BYTES + len(protocol.name) + len(protocol.metadata) for protocol in protocols)
        return size

    def current_value(self, current: CurrentAssignment) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=int(current.state),
            assigned_partitions=rows_of(current.assigned),
            partitions_pending_revocation=rows_of(current.revoking),
        )

    def _current(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
        return CurrentAssignment(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state,
            assigned=partitions_of(value.assigned_partitions),
            revoking=partitions_of(value.partitions_pending_revocation),
        )

    def _new_member(self, member_id: str) -> ModernMember:
        return ModernMember(member_id, CurrentAssignment())

    def _replay_other(self, key: Any, value: Any) -> None:
        assert isinstance(key, ConsumerGroupRegularExpressionKey)
        if value is None:
            self.expressions.pop(key.regular_expression, None)
            self.expressions_checked_ms.pop(key.regular_expression, None)
        else:
            self.expressions[key.regular_expression] = value

    def _other_parts(self) -> Iterator[Part]:
        for expression in list(self.expressions):
            if expression in self.expressions:
                key = ConsumerGroupRegularExpressionKey(group=self.group_id, regular_expression=expression)
                yield key, self.expressions[expression]

    def _metadata_known(self, member: ModernMember) -> None:
        super()._metadata_known(member)
        metadata = member.metadata
        assert metadata is not None
        if metadata.subscribed_topic_regex:
            self._expression_users[metadata.subscribed_topic_regex] += 1
        if metadata.classic_member_metadata is not None:
            self._classic_members += 1
            self._classic_protocols.update({it.name for it in metadata.classic_member_metadata.supported_protocols})
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member.member_id

    def _metadata_gone(self, member: ModernMember) -> None:
        super()._metadata_gone(member)
        old = member.metadata
        assert old is not None
        if old.subscribed_topic_regex:
            self._expression_users[old.subscribed_topic_regex] -= 1
            if not self._expression_users[old.subscribed_topic_regex]:
                del self._expression_users[old.subscribed_topic_regex]
        if old.classic_member_metadata is not None:
            self._classic_members -= 1
            self._classic_protocols.subtract({it.name for it in old.classic_member_metadata.supported_protocols})
            self._classic_protocols += Counter()  # drops protocols that no member supports any more
        if old.instance_id is not None and self.static_members.get(old.instance_id) == member.member_id:
            del self.static_members[old.instance_id]

    def abandon(self) -> None:
        super().abandon()
        self.upcoming = None

    def _takes(self, member: ModernMember) -> None:
        for held in (member.current.assigned, member.current.revoking):
            for topic_id, indexes in held.items():
                owners = self._owners.setdefault(topic_id, {})
                for index in indexes:
                    owners[index] = member.member_id

    def _gives_up(self, member: ModernMember) -> None:
        for held in (member.current.assigned, member.current.revoking):
            for topic_id, indexes in held.items():
                owners = self._owners.get(topic_id, {})
                for index in indexes:
                    if owners.get(index) == member.member_id:
                        del owners[index]
                if not owners:
                    self._owners.pop(topic_id, None)
