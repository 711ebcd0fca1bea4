"""The state of one partition of `__consumer_offsets`, as its log says it: groups of all kinds, and offsets.

All of it changes in `replay` alone, live and after a restart alike. Beside it a machine holds only what the log does
not know: waiting requests and timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.offsets import Offsets
from mainstem.broker.consumer_groups.pending_offsets import PendingOffsets
from mainstem.broker.consumer_groups.shared.share_group import ShareGroup
from mainstem.broker.consumer_groups.step import (
    ConsumerGroupRecord,
    LogRecord,
    MemberRead,
    ModernRecord,
    OffsetRecord,
    PendingRecord,
    ReadRecord,
    ShareRecord,
    StreamsRecord,
    WrittenOffset,
)
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.machines.letting_go import emptied, emptied_to_its_leaves
from mainstem.broker.machines.result import UnknownRecord
from mainstem.kernel import untrack
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.consumer_group_records import ConsumerGroupMetadataKey
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    PendingOffsetKey,
    read_key,
    write_key,
)
from mainstem.protocol.messages.share_group_records import ShareGroupMetadataKey, ShareKey
from mainstem.protocol.messages.streams_group_records import StreamsGroupMetadataKey, StreamsKey


class PendingSection(NamedTuple):
    """The part of a snapshot with the pending offsets of a group."""

    group_id: str


Section = str | bytes | PendingSection


class LoggedState:
    """Of one partition. `holdings` is charged for the members' memory."""

    def __init__(self, holdings: Holdings) -> None:
        self.classic: dict[str, ConsumerGroup] = {}
        self.modern: dict[str, ModernGroup] = {}
        """The groups whose partitions the coordinator assigns; no id is in `classic` as well."""
        self.shared: dict[str, ShareGroup] = {}
        """The share groups; no id is in the others as well."""
        self.streams: dict[str, StreamsGroup] = {}
        """The streams groups; no id is in the others as well."""
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self.unknown: dict[bytes, UnknownRecord] = {}
        """Per key the record that a later version wrote, to be handed on."""
        self._holdings = holdings
        self._restoring: ConsumerGroup | None = None
        """A large group whose members are being replayed, one by one; its record follows."""

    @property
    def group_count(self) -> int:
        """How many groups there are, of all kinds."""
        return len(self.classic) + len(self.modern) + len(self.shared) + len(self.streams)

    def any_group(self, group_id: str) -> ConsumerGroup | ModernGroup | StreamsGroup | None:
        """The group of this id that commits offsets, of any protocol; share groups do not."""
        return self.classic.get(group_id) or self.modern.get(group_id) or self.streams.get(group_id)

    def classic_group(self, group_id: str) -> ConsumerGroup:
        """The classic group of this id, made if need be."""
        group = self.classic.get(group_id)
        if group is None:
            group = self.classic[group_id] = ConsumerGroup(group_id, self._holdings)
            untrack(self.classic)  # else each full collection visits every group: 30 ms with a hundred thousand
        return group

    def let_go(self) -> Iterator[None]:
        """Free the content of a machine that serves no more, a piece at a time."""
        for groups in (self.classic, self.modern, self.shared, self.streams, self.unknown):
            yield from emptied(groups)
        yield from emptied_to_its_leaves(self.offsets.by_group)

    # --- replay --------------------------------------------------------------------------------------

    def replay(self, record: ReadRecord | MemberRead) -> None:
        """Apply the next record of the log."""
        if isinstance(record, WrittenOffset):  # of most records there are, at a start
            self._replay_written(record)
            return
        if isinstance(record, UnknownRecord):
            self._replay_unknown(record)
            return
        if isinstance(record, MemberRead):
            self._replay_member(record)
            return
        if self.unknown:
            self.unknown.pop(write_key(record.key), None)
        if isinstance(record, OffsetRecord):
            self.offsets.replay(record)
            group_id = record.key.group
            if record.value is not None and group_id not in self.modern and group_id not in self.streams:
                self.classic_group(group_id)
        elif isinstance(record, ModernRecord):
            self._replay_modern(record)
        elif isinstance(record, PendingRecord):
            self.pending.replay(record)
        elif isinstance(record, ShareRecord):
            self._replay_shared(record)
        elif isinstance(record, StreamsRecord):
            self._replay_streams(record)
        elif record.value is not None:
            self._restore(record.key.group, record.value)
        else:
            self._forget(record.key.group)

    def replay_together(self, records: Sequence[LogRecord], apply: Callable[[], None]) -> None:
        """The same for some records that do to one group what `apply` does."""
        if self.unknown:  # of which these may take the place
            for record in records:
                self.replay(record)
        else:
            apply()

    def _replay_member(self, read: MemberRead) -> None:
        if read.number == 0 or self._restoring is None:
            self._restoring = ConsumerGroup(read.key.group, self._holdings)
            self._restoring.begin_restoring(read.value)
        self._restoring.restore_member(read.value, read.value.members[read.number], None)

    def _restore(self, group_id: str, value: GroupMetadataValue) -> None:
        whole, self._restoring = self._restoring, None
        if whole is None or whole.persisted is not value:
            self.classic_group(group_id).restore(value)
            return
        whole.end_restoring(value)
        self._forget(group_id)
        self.classic[group_id] = whole

    def _replay_written(self, record: WrittenOffset) -> None:
        group_id = record.group
        if self.unknown:
            key = OffsetCommitKey(group=group_id, topic=record.topic, partition=record.partition)
            self.unknown.pop(write_key(key), None)
        self.offsets.keep(group_id, record.topic, record.partition, record.value)
        if group_id not in self.classic and group_id not in self.modern and group_id not in self.streams:
            self.classic_group(group_id)

    def _replay_modern(self, record: ModernRecord) -> None:
        group_id = record.key.group
        if record.value is None and isinstance(record.key, ConsumerGroupMetadataKey):
            self.forget_modern(group_id)
        elif record.value is not None or group_id in self.modern:
            group = self.modern.get(group_id)
            if group is None:
                group = self.modern[group_id] = ModernGroup(group_id, self._holdings)
            if group_id in self.classic and not self.classic[group_id].members:
                self._forget(group_id)
            group.replay(record.key, record.value)

    def forget_modern(self, group_id: str) -> None:
        group = self.modern.pop(group_id, None)
        if group is not None:
            group.abandon()
        self._adopt_offsets(group_id)

    def _adopt_offsets(self, group_id: str) -> None:
        """A group is gone: its offsets, if there are any, belong to a classic one, in whose section a snapshot has
        them."""
        if self.offsets.has(group_id) and group_id not in self.modern and group_id not in self.streams:
            self.classic_group(group_id)

    def _replay_shared(self, record: ShareRecord) -> None:
        group_id = record.key.group
        if record.value is None and isinstance(record.key, ShareGroupMetadataKey):
            gone = self.shared.pop(group_id, None)
            if gone is not None:
                gone.abandon()
        elif record.value is not None or group_id in self.shared:
            group = self.shared.get(group_id)
            if group is None:
                group = self.shared[group_id] = ShareGroup(group_id, self._holdings)
            group.replay(record.key, record.value)

    def _replay_streams(self, record: StreamsRecord) -> None:
        group_id = record.key.group
        if record.value is None and isinstance(record.key, StreamsGroupMetadataKey):
            self.forget_streams(group_id)
        elif record.value is not None or group_id in self.streams:
            group = self.streams.get(group_id)
            if group is None:
                group = self.streams[group_id] = StreamsGroup(group_id, self._holdings)
            if group_id in self.classic and not self.classic[group_id].members:
                self._forget(group_id)
            group.replay(record.key, record.value)

    def forget_streams(self, group_id: str) -> None:
        group = self.streams.pop(group_id, None)
        if group is not None:
            group.abandon()
        self._adopt_offsets(group_id)

    def _replay_unknown(self, record: UnknownRecord) -> None:
        """Keep a record of a later version; what was known under its key no longer holds."""
        try:
            key = read_key(record.key)
        except UnsupportedVersion:
            pass
        else:
            if isinstance(key, OffsetCommitKey):
                self.offsets.replay(OffsetRecord(key, None))
            elif isinstance(key, GroupMetadataKey):
                self._forget(key.group)
                self._adopt_offsets(key.group)
            elif isinstance(key, PendingOffsetKey):
                self.pending.replay(PendingRecord(key, None))
            elif isinstance(key, ShareKey):
                self._replay_shared(ShareRecord(key, None))
            elif isinstance(key, StreamsKey):
                self._replay_streams(StreamsRecord(key, None))
            else:
                self._replay_modern(ModernRecord(key, None))
        if record.value is None:
            self.unknown.pop(record.key, None)
        else:
            self.unknown[record.key] = record

    def _forget(self, group_id: str) -> None:
        group = self.classic.pop(group_id, None)
        if group is not None:
            group.abandon()
            group.gone = True

    # --- snapshots -----------------------------------------------------------------------------------

    def sections(self) -> list[Section]:
        """The contents of a snapshot, one after the other: consumer groups by their ids, the pending offsets of groups,
        then the keys of unknown records."""
        pending = map(PendingSection, self.pending.groups())
        return [*self.classic, *self.modern, *self.shared, *self.streams, *pending, *self.unknown]

    def snapshot(self, section: Section) -> Iterator[ReadRecord]:
        """The records that make a section as it is now; none when it is gone."""
        if isinstance(section, PendingSection):
            return (PendingRecord(key, value) for key, value in self.pending.of_group(section.group_id))
        if isinstance(section, str):
            return self._snapshot_of_group(section)
        record = self.unknown.get(section)
        return iter(() if record is None else (record,))

    def _snapshot_of_group(self, group_id: str) -> Iterator[ReadRecord]:
        """The logged state of a consumer group in as few records as possible; none if it is gone. Take it bit
        by bit while the group goes on: each record gives the state at the time it is taken, and the log has
        the changes made meanwhile."""
        group = self.classic.get(group_id)
        if group is not None and group.persisted is not None:
            yield ConsumerGroupRecord(GroupMetadataKey(group=group_id), group.persisted)
        modern = self.modern.get(group_id)
        if modern is not None:
            for modern_key, part in modern.snapshot():
                yield ModernRecord(modern_key, part)
        shared = self.shared.get(group_id)
        if shared is not None:
            for share_key, share_part in shared.snapshot():
                yield ShareRecord(share_key, share_part)
        streams = self.streams.get(group_id)
        if streams is not None:
            for streams_key, streams_part in streams.snapshot():
                yield StreamsRecord(streams_key, streams_part)
        yield from self.offsets.as_kept(group_id)
