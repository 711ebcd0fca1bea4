"""A consumer group whose partitions the coordinator assigns, as a noun: what its records say, and nothing else.

All of it changes in `replay`, live and after a restart alike. Three epochs tell how far the group is: `epoch` rises
with every change of members, subscriptions or topics; `assignment_epoch` is the epoch for which the target assignment
was made; each member's own epoch is that of the target which it has reached, or is on its way from.

Invariant: a partition has one owner. A member owns what is assigned to it, and what it was told to revoke until it has
confirmed that.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from mainstem.broker.consumer_groups.members.holdings import Holdings
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
    ModernKey,
    ModernValue,
    RecordedTopicPartitions,
)

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic id; no set is empty."""

MODERN_MEMBER_BYTES = 2048
"""Bytes of a member without its subscription: the objects, its ids, its timers."""

NAME_BYTES = 64
"""Bytes of a name beside its text."""


class ModernGroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group's epoch."""
    RECONCILING = "Reconciling"
    """Members are on their way to the target assignment."""
    STABLE = "Stable"


class ReconciliationState(enum.IntEnum):
    """Kafka's numbers, as records have them."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    """The member has yet to confirm that it gave up partitions."""
    UNRELEASED_PARTITIONS = 3
    """Partitions of the member's target still belong to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """How far a member is."""

    epoch: int = 0
    previous_epoch: int = 0
    state: int = ReconciliationState.STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)
    """Partitions that the member was told to give up, until it confirms that."""


@dataclass(slots=True)
class ModernMember:
    """A member by its records. Without metadata: the log has yet to tell of it."""

    member_id: str
    metadata: ConsumerGroupMemberMetadataValue | None = None
    current: CurrentAssignment = field(default_factory=CurrentAssignment)
    charged: int = 0
    """Bytes that the holdings are charged for it."""

    @property
    def classic(self) -> ClassicMemberMetadata | None:
        """Of a member that speaks the classic protocol."""
        return None if self.metadata is None else self.metadata.classic_member_metadata

    @property
    def gone_for_now(self) -> bool:
        """Whether it is a static member that left and is expected back."""
        return self.current.epoch == STATIC_LEAVE_EPOCH


def partitions_of(rows: Iterable[RecordedTopicPartitions]) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for row in rows:
        if row.partitions:
            found[row.topic_id] = found.get(row.topic_id, frozenset()) | frozenset(row.partitions)
    return found


def rows_of(partitions: Partitions) -> tuple[RecordedTopicPartitions, ...]:
    return tuple(
        RecordedTopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions[topic_id])))
        for topic_id in sorted(partitions)
    )


def metadata_bytes(member_id: str, metadata: ConsumerGroupMemberMetadataValue) -> int:
    """Roughly the memory of a member with this metadata."""
    texts = (metadata.instance_id, metadata.rack_id, metadata.client_id, metadata.client_host, metadata.server_assignor)
    size = MODERN_MEMBER_BYTES + 2 * len(member_id) + sum(len(text or "") for text in texts)
    size += len(metadata.subscribed_topic_regex or "")
    if metadata.classic_member_metadata is not None:
        protocols = metadata.classic_member_metadata.supported_protocols
        size += sum(NAME_BYTES + len(protocol.name) + len(protocol.metadata) for protocol in protocols)
    return size + sum(NAME_BYTES + len(name) for name in metadata.subscribed_topic_names)


class ModernGroup:
    """One consumer group. A new one is empty, and the log does not know it."""

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        """Of the subscribed topics, as of the epoch."""
        self.assignment_epoch = 0
        self.members: dict[str, ModernMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.static_members: dict[str, str] = {}
        """Instance id → member id."""
        self.expressions: dict[str, ConsumerGroupRegularExpressionValue] = {}
        """Regular expression → the topics that it stands for."""
        self.topics_checked_ms: int | None = None
        """When the subscribed topics were last compared with `metadata_hash`; not in the log."""
        self.expressions_checked_ms: dict[str, int] = {}
        """When an expression was last matched with all topics; not in the log."""
        self._holdings = holdings or Holdings()
        self._owners: dict[UUID, dict[int, str]] = {}
        self._subscribers: Counter[str] = Counter()
        """How many members subscribe to a topic by its name."""
        self._classic_members = 0
        self._classic_protocols: Counter[str] = Counter()
        """How many classic members support a protocol."""

    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def vacant(self) -> bool:
        """Whether the log knows nothing of it."""
        return not self.epoch and not self.members

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

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, {})

    def subscribed_names(self) -> set[str]:
        """The topics that members subscribe to, by name or through a regular expression."""
        names = set(self._subscribers)
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

    def expression_is_due(self, expression: str, now_ms: int, interval_ms: int) -> bool:
        """Whether an expression was not matched for a while."""
        checked_ms = self.expressions_checked_ms.get(expression)
        return checked_ms is None or now_ms - checked_ms >= interval_ms

    def has_room(self, host: str, more: int) -> bool:
        """Whether the client at this address may hold so many additional bytes."""
        return self._holdings.has_room(host, more)

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, key: ModernKey, value: ModernValue | None) -> None:
        """Apply a record of this group. The record that ends the group itself is its owner's to apply."""
        if isinstance(key, ConsumerGroupMetadataKey):
            assert isinstance(value, ConsumerGroupMetadataValue)
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
            self._replay_member(key.member_id, value)
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
            self.assignment_epoch = 0 if value is None else value.assignment_epoch
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
            if value is None:
                self.targets.pop(key.member_id, None)
            else:
                self.targets[key.member_id] = partitions_of(value.topic_partitions)
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
            self._replay_current(key.member_id, value)
        else:
            assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
            if value is None:
                self.expressions.pop(key.regular_expression, None)
                self.expressions_checked_ms.pop(key.regular_expression, None)
            else:
                self.expressions[key.regular_expression] = value

    def _replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        member = self.members.get(member_id)
        if member is not None and member.metadata is not None:
            self._forget_metadata(member)
        if value is None:
            if member is not None:
                self._release(member)
                del self.members[member_id]
            return
        if member is None:
            member = self.members[member_id] = ModernMember(member_id)
        member.metadata = value
        member.charged = metadata_bytes(member_id, value)
        self._holdings.change(value.client_host, member.charged)
        self._subscribers.update(set(value.subscribed_topic_names))
        if value.classic_member_metadata is not None:
            self._classic_members += 1
            self._classic_protocols.update({it.name for it in value.classic_member_metadata.supported_protocols})
        if value.instance_id is not None:
            self.static_members[value.instance_id] = member_id

    def _forget_metadata(self, member: ModernMember) -> None:
        old = member.metadata
        assert old is not None
        self._holdings.change(old.client_host, -member.charged)
        member.charged = 0
        for name in set(old.subscribed_topic_names):
            self._subscribers[name] -= 1
            if not self._subscribers[name]:
                del self._subscribers[name]
        if old.classic_member_metadata is not None:
            self._classic_members -= 1
            self._classic_protocols.subtract({it.name for it in old.classic_member_metadata.supported_protocols})
            self._classic_protocols += Counter()  # drops protocols that no member supports any more
        if old.instance_id is not None and self.static_members.get(old.instance_id) == member.member_id:
            del self.static_members[old.instance_id]

    def _replay_current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._release(member)
                member.current = CurrentAssignment()
            return
        if member is None:
            member = self.members[member_id] = ModernMember(member_id)
        self._release(member)
        member.current = CurrentAssignment(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state,
            assigned=partitions_of(value.assigned_partitions),
            revoking=partitions_of(value.partitions_pending_revocation),
        )
        for held in (member.current.assigned, member.current.revoking):
            for topic_id, indexes in held.items():
                owners = self._owners.setdefault(topic_id, {})
                for index in indexes:
                    owners[index] = member_id

    def _release(self, member: ModernMember) -> None:
        for held in (member.current.assigned, member.current.revoking):
            for topic_id, indexes in held.items():
                owners = self._owners.get(topic_id, {})
                for index in indexes:
                    if owners.get(index) == member.member_id:
                        del owners[index]
                if not owners:
                    self._owners.pop(topic_id, None)

    def abandon(self) -> None:
        """The group is gone: give up what its members hold."""
        for member in self.members.values():
            if member.metadata is not None:
                self._holdings.change(member.metadata.client_host, -member.charged)
                member.charged = 0

    def snapshot(self) -> Iterator[tuple[ModernKey, ModernValue]]:
        """The records that make the group. Each gives the state at the time it is taken."""
        group_id = self.group_id
        yield (
            ConsumerGroupMetadataKey(group=group_id),
            ConsumerGroupMetadataValue(epoch=self.epoch, metadata_hash=self.metadata_hash),
        )
        for expression in list(self.expressions):
            if expression in self.expressions:
                key = ConsumerGroupRegularExpressionKey(group=group_id, regular_expression=expression)
                yield key, self.expressions[expression]
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None and member.metadata is not None:
                yield ConsumerGroupMemberMetadataKey(group=group_id, member_id=member_id), member.metadata
        yield (
            ConsumerGroupTargetAssignmentMetadataKey(group=group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=self.assignment_epoch),
        )
        for member_id in list(self.targets):
            if member_id in self.targets:
                yield (
                    ConsumerGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id),
                    ConsumerGroupTargetAssignmentMemberValue(topic_partitions=rows_of(self.targets[member_id])),
                )
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None:
                key_of_member = ConsumerGroupCurrentMemberAssignmentKey(group=group_id, member_id=member_id)
                yield key_of_member, current_value(member.current)

    def tombstones(self) -> list[ModernKey]:
        """The keys to be deleted when the group is gone."""
        keys: list[ModernKey] = []
        for member_id in [*self.members]:
            keys += member_keys(self.group_id, member_id)
        keys += [
            ConsumerGroupTargetAssignmentMemberKey(group=self.group_id, member_id=member_id)
            for member_id in self.targets
            if member_id not in self.members
        ]
        keys.append(ConsumerGroupTargetAssignmentMetadataKey(group=self.group_id))
        keys += [
            ConsumerGroupRegularExpressionKey(group=self.group_id, regular_expression=expression)
            for expression in self.expressions
        ]
        keys.append(ConsumerGroupMetadataKey(group=self.group_id))
        return keys


def member_keys(group_id: str, member_id: str) -> list[ModernKey]:
    """The keys to be deleted when a member is gone, in Kafka's order."""
    return [
        ConsumerGroupCurrentMemberAssignmentKey(group=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id),
        ConsumerGroupMemberMetadataKey(group=group_id, member_id=member_id),
    ]


def current_value(current: CurrentAssignment) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=int(current.state),
        assigned_partitions=rows_of(current.assigned),
        partitions_pending_revocation=rows_of(current.revoking),
    )
