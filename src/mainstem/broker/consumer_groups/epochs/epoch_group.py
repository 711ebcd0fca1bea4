"""A group with epochs as a noun: what its records say, and nothing else. All of it changes in `replay`, live and after
a restart alike.

The records of the protocols differ in their kinds and in what members say of themselves, but they tell the same story:
the group's epoch, its members, the epoch of the targets, a target per member, and how far each member is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from mainstem.broker.consumer_groups.epochs.epoch_member import EpochMember
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.step import LogRecord

M = TypeVar("M", bound=EpochMember[Any, Any])
T = TypeVar("T")

Part = tuple[Any, Any]
"""A key and its value, of the classes that `EpochRecords` names."""


class EpochRecords(NamedTuple):
    """The classes of a protocol's records, as far as all protocols have them."""

    record: Callable[[Any, Any], LogRecord]
    """Makes a record of a key and a value; None for the value deletes what the key names."""
    epoch_key: type[Any]
    epoch: type[Any]
    member_key: type[Any]
    target_epoch_key: type[Any]
    target_epoch: type[Any]
    target_key: type[Any]
    target: type[Any]
    current_key: type[Any]

    def keys_of_member(self, group_id: str, member_id: str) -> list[Any]:
        """The keys to be deleted when a member is gone, in Kafka's order."""
        return [
            key_class(group=group_id, member_id=member_id)
            for key_class in (self.current_key, self.target_key, self.member_key)
        ]


class EpochGroup(ABC, Generic[M, T]):
    """One group, with members `M` and a target `T` for each. A new one is empty, and the log does not know it."""

    records: ClassVar[EpochRecords]
    first_epoch: ClassVar[int] = 0
    """Of a group that nobody has joined."""

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        self.group_id = group_id
        self.epoch = self.first_epoch
        self.metadata_hash = 0
        """Of the subscribed topics, as of the epoch."""
        self.assignment_epoch = self.first_epoch
        self.members: dict[str, M] = {}
        self.targets: dict[str, T] = {}
        self.topics_checked_ms: int | None = None
        """When the subscribed topics were last compared with `metadata_hash`; not in the log."""
        self._holdings = holdings or Holdings()

    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def vacant(self) -> bool:
        """Whether the log knows nothing of it."""
        return self.epoch == self.first_epoch and not self.members

    def target(self, member_id: str) -> T:
        return self.targets.get(member_id, self._no_target())

    def has_room(self, host: str, more: int) -> bool:
        """Whether the client at this address may hold so many additional bytes."""
        return self._holdings.has_room(host, more)

    # --- what protocols say --------------------------------------------------------------------------

    @abstractmethod
    def subscribed_names(self) -> set[str]:
        """The topics that members subscribe to."""

    @abstractmethod
    def bytes_of(self, member_id: str, metadata: Any) -> int:
        """Roughly the memory of a member with this metadata."""

    @abstractmethod
    def current_value(self, current: Any) -> Any:
        """How far a member is, as a record says it."""

    @abstractmethod
    def target_value(self, target: T) -> Any:
        """A member's target, as a record says it."""

    @abstractmethod
    def _new_member(self, member_id: str) -> M:
        """A member that has nothing yet."""

    @abstractmethod
    def _no_target(self) -> T: ...

    @abstractmethod
    def _current(self, value: Any) -> Any:
        """How far a member is, by the value of a record."""

    @abstractmethod
    def target_of(self, value: Any) -> T:
        """A member's target, by the value of a record."""

    def epoch_value(self) -> Any:
        """The group's epoch, as a record says it."""
        return self.records.epoch(epoch=self.epoch, metadata_hash=self.metadata_hash)

    def target_epoch_value(self) -> Any:
        """The epoch of the targets, as a record says it."""
        return self.records.target_epoch(assignment_epoch=self.assignment_epoch)

    def _replay_epoch(self, value: Any) -> None:
        self.epoch, self.metadata_hash = value.epoch, value.metadata_hash

    def _replay_target_epoch(self, value: Any) -> None:
        self.assignment_epoch = self.first_epoch if value is None else value.assignment_epoch

    def _replay_other(self, key: Any, value: Any) -> None:
        """Apply a record that only this protocol has."""
        raise AssertionError(f"{type(key).__name__} is no key of a {type(self).__name__}")

    def _metadata_known(self, member: M) -> None:
        """A member has metadata, which it had not, or others."""

    def _metadata_gone(self, member: M) -> None:
        """The metadata that a member has are about to go."""

    def _takes(self, member: M) -> None:
        """A member has partitions from now on…"""

    def _gives_up(self, member: M) -> None:
        """…and has them no more."""

    def _other_parts(self) -> Iterator[Part]:
        """The parts that only this protocol has."""
        return iter(())

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any) -> None:
        """Apply a record of this group. The record that ends the group itself is its owner's to apply."""
        kinds = self.records
        if isinstance(key, kinds.epoch_key):
            self._replay_epoch(value)
        elif isinstance(key, kinds.member_key):
            self._replay_member(key.member_id, value)
        elif isinstance(key, kinds.target_epoch_key):
            self._replay_target_epoch(value)
        elif isinstance(key, kinds.target_key):
            if value is None:
                self.targets.pop(key.member_id, None)
            else:
                self.targets[key.member_id] = self.target_of(value)
        elif isinstance(key, kinds.current_key):
            self._replay_current(key.member_id, value)
        else:
            self._replay_other(key, value)

    def _replay_member(self, member_id: str, value: Any) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._forget_metadata(member)
        if value is None:
            if member is not None:
                self._gives_up(member)
                del self.members[member_id]
            return
        if member is None:
            member = self.members[member_id] = self._new_member(member_id)
        member.metadata = value
        member.charged = self.bytes_of(member_id, value)
        self._holdings.change(value.client_host, member.charged)
        self._metadata_known(member)

    def _forget_metadata(self, member: M) -> None:
        old = member.metadata
        if old is None:
            return
        self._holdings.change(old.client_host, -member.charged)
        member.charged = 0
        self._metadata_gone(member)
        member.metadata = None

    def _replay_current(self, member_id: str, value: Any) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._gives_up(member)
                member.current = self._new_member(member_id).current
            return
        if member is None:
            member = self.members[member_id] = self._new_member(member_id)
        self._gives_up(member)
        member.current = self._current(value)
        self._takes(member)

    def abandon(self) -> None:
        """The group is gone: give up what its members hold."""
        for member in self.members.values():
            self._forget_metadata(member)

    def snapshot(self) -> Iterator[Part]:
        """The records that make the group. Each gives the state at the time it is taken."""
        group_id, kinds = self.group_id, self.records
        yield kinds.epoch_key(group=group_id), self.epoch_value()
        yield from self._other_parts()
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None and member.metadata is not None:
                yield kinds.member_key(group=group_id, member_id=member_id), member.metadata
        yield kinds.target_epoch_key(group=group_id), self.target_epoch_value()
        for member_id in list(self.targets):
            if member_id in self.targets:
                key = kinds.target_key(group=group_id, member_id=member_id)
                yield key, self.target_value(self.targets[member_id])
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None:
                key = kinds.current_key(group=group_id, member_id=member_id)
                yield key, self.current_value(member.current)

    def tombstones(self) -> list[Any]:
        """The keys to be deleted when the group is gone."""
        group_id, kinds = self.group_id, self.records
        keys: list[Any] = []
        for member_id in self.members:
            keys += kinds.keys_of_member(group_id, member_id)
        keys += [
            kinds.target_key(group=group_id, member_id=member_id)
            for member_id in self.targets
            if member_id not in self.members
        ]
        keys.append(kinds.target_epoch_key(group=group_id))
        keys += [key for key, _ in self._other_parts()]
        keys.append(kinds.epoch_key(group=group_id))
        return keys
