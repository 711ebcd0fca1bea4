"""A share group as a noun: what its records say, and nothing else. All of it changes in `replay`, live and after a
restart alike.

`epoch` rises with every change of members, subscriptions or topics; `assignment_epoch` is the epoch for which the
targets were made. A member is at the group's epoch as soon as it hears of its target.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.modern.modern_group import (
    MODERN_MEMBER_BYTES,
    NAME_BYTES,
    Partitions,
    partitions_of,
    rows_of,
)
from mainstem.protocol.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareKey,
    ShareValue,
)

STABLE = 1
"""Kafka's number of the only state that a member of a share group has."""


class ShareGroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(slots=True)
class SharingMember:
    """A member by its records. Without metadata: the log has yet to tell of it."""

    member_id: str
    metadata: ShareGroupMemberMetadataValue | None = None
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = field(default_factory=dict)
    charged: int = 0
    """Bytes that the holdings are charged for it."""


def sharing_bytes(member_id: str, metadata: ShareGroupMemberMetadataValue) -> int:
    """Roughly the memory of a member with this metadata."""
    texts = (metadata.rack_id, metadata.client_id, metadata.client_host)
    size = MODERN_MEMBER_BYTES + 2 * len(member_id) + sum(len(text or "") for text in texts)
    return size + sum(NAME_BYTES + len(name) for name in metadata.subscribed_topic_names)


class ShareGroup:
    """One share group. A new one is empty, and the log does not know it."""

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        """Of the subscribed topics, as of the epoch."""
        self.assignment_epoch = 0
        self.members: dict[str, SharingMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.topics_checked_ms: int | None = None
        """When the subscribed topics were last compared with `metadata_hash`; not in the log."""
        self._holdings = holdings or Holdings()
        self._subscribers: Counter[str] = Counter()
        """How many members subscribe to a topic by its name."""

    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def vacant(self) -> bool:
        """Whether the log knows nothing of it."""
        return not self.epoch and not self.members

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, {})

    def subscribed_names(self) -> set[str]:
        return set(self._subscribers)

    def has_room(self, host: str, more: int) -> bool:
        """Whether the client at this address may hold so many additional bytes."""
        return self._holdings.has_room(host, more)

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, key: ShareKey, value: ShareValue | None) -> None:
        """Apply a record of this group; the end of the group as a whole is for its owner to apply."""
        if isinstance(key, ShareGroupMetadataKey):
            assert isinstance(value, ShareGroupMetadataValue)
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(key, ShareGroupMemberMetadataKey):
            assert value is None or isinstance(value, ShareGroupMemberMetadataValue)
            self._replay_member(key.member_id, value)
        elif isinstance(key, ShareGroupTargetAssignmentMetadataKey):
            assert value is None or isinstance(value, ShareGroupTargetAssignmentMetadataValue)
            self.assignment_epoch = 0 if value is None else value.assignment_epoch
        elif isinstance(key, ShareGroupTargetAssignmentMemberKey):
            assert value is None or isinstance(value, ShareGroupTargetAssignmentMemberValue)
            if value is None:
                self.targets.pop(key.member_id, None)
            else:
                self.targets[key.member_id] = partitions_of(value.topic_partitions)
        else:
            assert value is None or isinstance(value, ShareGroupCurrentMemberAssignmentValue)
            self._replay_current(key.member_id, value)

    def _replay_member(self, member_id: str, value: ShareGroupMemberMetadataValue | None) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._give_back(member)
        if value is None:
            self.members.pop(member_id, None)
            return
        if member is None:
            member = self.members[member_id] = SharingMember(member_id)
        member.metadata = value
        member.charged = sharing_bytes(member_id, value)
        self._holdings.change(value.client_host, member.charged)
        self._subscribers.update(set(value.subscribed_topic_names))

    def _replay_current(self, member_id: str, value: ShareGroupCurrentMemberAssignmentValue | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                member.epoch, member.previous_epoch, member.assigned = 0, 0, {}
            return
        if member is None:
            member = self.members[member_id] = SharingMember(member_id)
        member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
        member.assigned = partitions_of(value.assigned_partitions)

    def _give_back(self, member: SharingMember) -> None:
        if member.metadata is None:
            return
        self._holdings.change(member.metadata.client_host, -member.charged)
        member.charged = 0
        self._subscribers.subtract(set(member.metadata.subscribed_topic_names))
        self._subscribers += Counter()  # drops what is zero
        member.metadata = None

    def abandon(self) -> None:
        """The group is gone: give up what its members hold."""
        for member in self.members.values():
            self._give_back(member)

    def snapshot(self) -> Iterator[tuple[ShareKey, ShareValue]]:
        """The records that make the group. Each gives the state at the time it is taken."""
        group_id = self.group_id
        yield (
            ShareGroupMetadataKey(group=group_id),
            ShareGroupMetadataValue(epoch=self.epoch, metadata_hash=self.metadata_hash),
        )
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None and member.metadata is not None:
                yield ShareGroupMemberMetadataKey(group=group_id, member_id=member_id), member.metadata
        yield (
            ShareGroupTargetAssignmentMetadataKey(group=group_id),
            ShareGroupTargetAssignmentMetadataValue(assignment_epoch=self.assignment_epoch),
        )
        for member_id in list(self.targets):
            if member_id in self.targets:
                yield (
                    ShareGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id),
                    ShareGroupTargetAssignmentMemberValue(topic_partitions=rows_of(self.targets[member_id])),
                )
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None:
                key = ShareGroupCurrentMemberAssignmentKey(group=group_id, member_id=member_id)
                yield key, current_of(member.epoch, member.previous_epoch, member.assigned)

    def tombstones(self) -> list[ShareKey]:
        """The keys to be deleted when the group is gone."""
        keys: list[ShareKey] = []
        for member_id in dict.fromkeys([*self.members, *self.targets]):
            keys += keys_of(self.group_id, member_id)
        return [
            *keys,
            ShareGroupTargetAssignmentMetadataKey(group=self.group_id),
            ShareGroupMetadataKey(group=self.group_id),
        ]


def keys_of(group_id: str, member_id: str) -> list[ShareKey]:
    """The keys to be deleted when a member is gone, in Kafka's order."""
    return [
        ShareGroupCurrentMemberAssignmentKey(group=group_id, member_id=member_id),
        ShareGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id),
        ShareGroupMemberMetadataKey(group=group_id, member_id=member_id),
    ]


def current_of(epoch: int, previous_epoch: int, assigned: Partitions) -> ShareGroupCurrentMemberAssignmentValue:
    return ShareGroupCurrentMemberAssignmentValue(
        member_epoch=epoch,
        previous_member_epoch=previous_epoch,
        state=STABLE,
        assigned_partitions=rows_of(assigned),
    )
