"""The consumer group machine: the consumer groups and offsets of one partition of `__consumer_offsets`. It does no
I/O.

Events go in (requests with a ticket, the passing of time), one `Result` comes out per event; see `result` for the
order of its effects. State that must survive a restart changes in `replay` alone: an event that changes it produces a
record and replays it at once. So the machine is always what its log says plus what the log does not hold (waiting
requests), and after a restart `replay` of the log makes the same machine again.

Invariants: records leave in the order they were replayed; every ticket is answered exactly once; a consumer group
that has neither members nor anything in the log is forgotten at the end of the event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.consumer_groups import offsets, pending_offsets
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup, ConsumerGroupState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.migration import classic_members, conversion
from mainstem.broker.consumer_groups.modern import described, group_changes
from mainstem.broker.consumer_groups.modern.group_changes import GroupStep
from mainstem.broker.consumer_groups.modern.heartbeat import HeartbeatCaller, heartbeat, refusal_of_first, refused
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.modern.subscribed_topics import CurrentTopics, no_topics
from mainstem.broker.consumer_groups.offsets import Offsets, TopicId
from mainstem.broker.consumer_groups.pending_offsets import PendingOffsets
from mainstem.broker.consumer_groups.rebalancing import assignment, joining, presence, rebalance
from mainstem.broker.consumer_groups.shared import share_described, share_heartbeat
from mainstem.broker.consumer_groups.shared.share_group import ShareGroup
from mainstem.broker.consumer_groups.shared.share_heartbeat import ShareStep
from mainstem.broker.consumer_groups.step import (
    Caller,
    ConsumerGroupRecord,
    Counts,
    LogRecord,
    ModernRecord,
    OffsetRecord,
    PendingRecord,
    ShareRecord,
    Step,
)
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind, Timers
from mainstem.broker.machines.result import Moment, Result, Ticket, UnknownRecord
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    ConsumerGroupHeartbeatRequest,
)
from mainstem.protocol.messages.consumer_group_records import ConsumerGroupMetadataKey
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    PendingOffsetKey,
    read_key,
    write_key,
)
from mainstem.protocol.messages.group_administration import DeletableGroupResult, DescribedGroup, ListedGroup
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from mainstem.protocol.messages.offset_commit import OffsetCommitRequest
from mainstem.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from mainstem.protocol.messages.producer_transactions import TxnOffsetCommitRequest
from mainstem.protocol.messages.share_group_records import ShareGroupMetadataKey, ShareKey
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from mainstem.protocol.schema import ZERO_UUID

EXPIRY_GROUPS_PER_STEP = 1_000
"""Consumer groups checked in one event when offsets expire: a few milliseconds of work."""

EXPIRY_PAUSE_MS = 10
"""Between two such events."""


class PendingSection(NamedTuple):
    """The part of a snapshot with the pending offsets of a group."""

    group_id: str


Section = str | bytes | PendingSection


class ConsumerGroupMachine:
    """One per partition. `new_id` gives unique strings, for member ids; `counts` may outlive the machine;
    `topic_id_of` gives the id of the topic that has a name, as this node knows it now, and `topics` all of them;
    `holdings` is charged for the members' memory."""

    def __init__(
        self,
        config: ConsumerGroupsConfig,
        new_id: Callable[[], str],
        counts: Counts | None = None,
        topic_id_of: TopicId = lambda name: ZERO_UUID,
        holdings: Holdings | None = None,
        topics: CurrentTopics | None = None,
    ) -> None:
        self.counts = counts or Counts()
        self.groups: dict[str, ConsumerGroup] = {}
        self.modern: dict[str, ModernGroup] = {}
        """The groups whose partitions this machine assigns; no id is in `groups` as well."""
        self.shared: dict[str, ShareGroup] = {}
        """The share groups; no id is in the others as well."""
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self.unknown: dict[bytes, UnknownRecord] = {}
        """Per key the record that a later version wrote, to be handed on."""
        self._topic_id_of = topic_id_of
        self._topics = topics or no_topics()
        self._holdings = holdings or Holdings(config.members_bytes_max)
        self._config = config
        self._new_id = new_id
        self._timers = Timers()
        self._to_expire: deque[str] = deque()

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, record: LogRecord) -> None:
        """Apply the next record of the log."""
        if isinstance(record, UnknownRecord):
            self._replay_unknown(record)
            return
        if self.unknown:
            self.unknown.pop(write_key(record.key), None)
        if isinstance(record, OffsetRecord):
            self.offsets.replay(record)
            if record.value is not None and record.key.group not in self.modern:
                self._group(record.key.group)
        elif isinstance(record, ModernRecord):
            self._replay_modern(record)
        elif isinstance(record, PendingRecord):
            self.pending.replay(record)
        elif isinstance(record, ShareRecord):
            self._replay_shared(record)
        elif record.value is not None:
            self._group(record.key.group).restore(record.value)
        else:
            self._forget(record.key.group)

    def _replay_modern(self, record: ModernRecord) -> None:
        group_id = record.key.group
        if record.value is None and isinstance(record.key, ConsumerGroupMetadataKey):
            self._forget_modern(group_id)
        elif record.value is not None or group_id in self.modern:
            group = self.modern.get(group_id)
            if group is None:
                group = self.modern[group_id] = ModernGroup(group_id, self._holdings)
            if group_id in self.groups and not self.groups[group_id].members:
                self._forget(group_id)
            group.replay(record.key, record.value)

    def _forget_modern(self, group_id: str) -> None:
        group = self.modern.pop(group_id, None)
        if group is not None:
            group.abandon()
        if self.offsets.has(group_id):
            self._group(group_id)

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
            elif isinstance(key, PendingOffsetKey):
                self.pending.replay(PendingRecord(key, None))
            elif isinstance(key, ShareKey):
                self._replay_shared(ShareRecord(key, None))
            else:
                self._replay_modern(ModernRecord(key, None))
        if record.value is None:
            self.unknown.pop(record.key, None)
        else:
            self.unknown[record.key] = record

    def lose(self) -> None:
        """The next part of the log cannot be read. Members may know of a generation that this machine has not
        heard of: they are told that the generation is another, and join again."""
        self.offsets.lose()

    def recovered(self, now: Moment) -> Result:
        """The whole log has been replayed: each member found in it has one session timeout in which to send a
        heartbeat."""
        step = self._step(now)
        for modern in list(self.modern.values()):
            self._recovered_modern(step, modern)
        for shared in self.shared.values():
            it = ShareStep(step, shared, self._topics)
            unknown = [member.member_id for member in shared.members.values() if member.metadata is None]
            if unknown:
                share_heartbeat.remove_sharing(it, unknown)
            for member_id in shared.members:
                it.restart_session(member_id)
        for group in list(self.groups.values()):
            self._forget_if_vacant(group)
            for member_id in group.members:
                step.restart_session(group, member_id)
        interval_ms = self._config.offsets_retention_check_interval_ms
        self._timers.set(TimerKey(TimerKind.EXPIRY), now.monotonic_ms + interval_ms)
        return self._finish(step)

    def _recovered_modern(self, step: Step, group: ModernGroup) -> None:
        """Start the timers of a group's members. A node of an earlier version knows no such groups, so it may have let
        members of the classic protocol join one meanwhile: theirs it is then."""
        if group.group_id in self.groups:
            for key in group.tombstones():
                step.write(ModernRecord(key, None))
            return
        it = GroupStep(step, group, self._topics)
        unknown = [member.member_id for member in group.members.values() if member.metadata is None]
        if unknown:
            group_changes.remove(it, unknown)
        for member_id in group.members:
            it.restart_session(member_id)
            it.time_revocation(member_id)

    def sections(self) -> list[Section]:
        """The contents of a snapshot, one after the other: consumer groups by their ids, the pending offsets of groups,
        then the keys of unknown records."""
        pending = map(PendingSection, self.pending.groups())
        return [*self.groups, *self.modern, *self.shared, *pending, *self.unknown]

    def snapshot(self, section: Section) -> Iterator[LogRecord]:
        """The records that make a section as it is now; none when it is gone."""
        if isinstance(section, PendingSection):
            return (PendingRecord(key, value) for key, value in self.pending.of_group(section.group_id))
        if isinstance(section, str):
            return self._snapshot_of_group(section)
        record = self.unknown.get(section)
        return iter(() if record is None else (record,))

    def _snapshot_of_group(self, group_id: str) -> Iterator[LogRecord]:
        """The logged state of a consumer group in as few records as possible; none if it is gone. Take it bit
        by bit while the group goes on: each record gives the state at the time it is taken, and the log has
        the changes made meanwhile."""
        group = self.groups.get(group_id)
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
        for key, value in self.offsets.of_group(group_id):
            yield OffsetRecord(key, value)

    # --- membership ----------------------------------------------------------------------------------

    def join(self, ticket: Ticket, request: JoinGroupRequest, caller: Caller, now: Moment) -> Result:
        step = self._step(now)
        timeout_ms, config = request.session_timeout_ms, self._config
        group = self.groups.get(request.group_id)
        modern = self.modern.get(request.group_id)
        if request.group_id in self.shared:
            step.answer(ticket, rebalance.refused_join(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return self._finish(step)
        if not config.session_timeout_ms_min <= timeout_ms <= config.session_timeout_ms_max:
            code = ErrorCode.INVALID_SESSION_TIMEOUT
        elif modern is not None and not modern.empty:
            it = GroupStep(step, modern, self._topics)
            step.answer(ticket, classic_members.join(it, request, caller))
            self._downgrade_if_due(it)  # it may have taken the place of the last member of the new protocol
            return self._finish(step)
        elif group is None and request.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif group is None and not self._has_room:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            for key in () if modern is None else modern.tombstones():
                step.write(ModernRecord(key, None))
            group = self._group(request.group_id)
            joining.join(step, group, ticket, request, caller)
            return self._finish(step, group)
        step.answer(ticket, rebalance.refused_join(request.member_id, code))
        return self._finish(step, group)

    def sync(self, ticket: Ticket, request: SyncGroupRequest, now: Moment) -> Result:
        step = self._step(now)
        group = self.groups.get(request.group_id)
        modern = self.modern.get(request.group_id)
        if modern is not None:
            step.answer(ticket, classic_members.sync(GroupStep(step, modern, self._topics), request))
        elif group is None:
            step.answer(ticket, rebalance.refused_sync(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            assignment.sync(step, group, ticket, request)
        return self._finish(step, group)

    def heartbeat(self, ticket: Ticket, request: HeartbeatRequest, now: Moment) -> Result:
        step = self._step(now)
        group = self.groups.get(request.group_id)
        modern = self.modern.get(request.group_id)
        if modern is not None:
            code = classic_members.heartbeat(GroupStep(step, modern, self._topics), request)
        else:
            code = ErrorCode.UNKNOWN_MEMBER_ID if group is None else presence.heartbeat(step, group, request)
        step.answer(ticket, HeartbeatResponse(error_code=code))
        return self._finish(step, group)

    def leave(self, ticket: Ticket, request: LeaveGroupRequest, now: Moment) -> Result:
        """A request in the form of version 3 and later: `members` names the members that leave."""
        step = self._step(now)
        if request.group_id in self.modern:
            it = GroupStep(step, self.modern[request.group_id], self._topics)
            members = classic_members.leave(it, request.members)
            step.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.NONE, members=members))
            self._downgrade_if_due(it)
            return self._finish(step)
        group = self.groups.get(request.group_id) or ConsumerGroup(request.group_id)
        members = presence.leave(step, group, request.members)
        step.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.NONE, members=members))
        return self._finish(step, group)

    def consumer_heartbeat(
        self, ticket: Ticket, request: ConsumerGroupHeartbeatRequest, sender: HeartbeatCaller, now: Moment
    ) -> Result:
        """ConsumerGroupHeartbeat. A join turns a classic group into one that this machine assigns: an empty one, or one
        whose members may come along."""
        step = self._step(now)
        group_id, joins = request.group_id, request.member_epoch == JOIN_EPOCH
        classic, group = self.groups.get(group_id), self.modern.get(group_id)
        it = GroupStep(step, group or ModernGroup(group_id, self._holdings), self._topics)
        other = classic is not None and not (joins and conversion.can_upgrade(it, classic))
        if group_id in self.shared or other:
            step.answer(ticket, refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."))
        elif group is None and not joins:
            step.answer(ticket, refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."))
        elif group is None and classic is None and not self._has_room:
            step.answer(ticket, refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif group is None and (refusal := refusal_of_first(it, request, sender)) is not None:
            step.answer(ticket, refusal)
        else:
            self.modern[group_id] = it.group
            waiting = [] if classic is None else conversion.upgrade(it, classic)
            step.answer(ticket, heartbeat(it, request, sender))
            for join_ticket, member_id in waiting:
                step.answer(join_ticket, classic_members.joined(it, member_id))
            if it.group.vacant:
                self._forget_modern(group_id)
            self._downgrade_if_due(it)
        return self._finish(step)

    def _downgrade_if_due(self, it: GroupStep) -> None:
        """The last member of the new protocol may be gone: a classic group goes on with the others."""
        value = conversion.downgraded(it)
        if value is None:
            return
        protocols = conversion.downgrade(it, value)
        group = self.groups[it.group.group_id]
        for member in group.members.values():
            group.set_protocols(member, protocols[member.member_id])
            it.step.restart_session(group, member.member_id)
        rebalance.prepare(it.step, group)

    def share_heartbeat(
        self, ticket: Ticket, request: ShareGroupHeartbeatRequest, caller: Caller, now: Moment
    ) -> Result:
        """ShareGroupHeartbeat."""
        step = self._step(now)
        group_id, group = request.group_id, self.shared.get(request.group_id)
        if group is None and (group_id in self.groups or group_id in self.modern):
            why = f"Group {group_id} is not a share group."
            step.answer(ticket, share_heartbeat.refused_share(ErrorCode.GROUP_ID_NOT_FOUND, why))
        elif group is None and request.member_epoch != JOIN_EPOCH:
            why = f"Group {group_id} not found."
            step.answer(ticket, share_heartbeat.refused_share(ErrorCode.GROUP_ID_NOT_FOUND, why))
        elif group is None and not self._has_room:
            step.answer(ticket, share_heartbeat.refused_share(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            if group is None:
                group = self.shared[group_id] = ShareGroup(group_id, self._holdings)
            it = ShareStep(step, group, self._topics)
            step.answer(ticket, share_heartbeat.share_heartbeat(it, request, caller))
            if group.vacant:
                del self.shared[group_id]
        return self._finish(step)

    # --- offsets -------------------------------------------------------------------------------------

    def commit(self, ticket: Ticket, request: OffsetCommitRequest, caller: Caller, now: Moment) -> Result:
        """Topics are given by name and, where it is known, by id."""
        step = self._step(now)
        modern = self.modern.get(request.group_id)
        if request.group_id in self.shared:
            step.answer(ticket, offsets.commit(step, ErrorCode.GROUP_ID_NOT_FOUND, request, self._topic_id_of))
            return self._finish(step)
        if modern is not None:
            code = described.commit_error(modern, request, caller.version)
            step.answer(ticket, offsets.commit(step, code, request, self._topic_id_of))
            return self._finish(step)
        group = self.groups.get(request.group_id)
        room = self._has_room
        step.answer(ticket, offsets.commit_classic(step, group, request, caller, self._topic_id_of, room=room))
        return self._finish(step, group)

    def commit_in_transaction(
        self, ticket: Ticket, request: TxnOffsetCommitRequest, asked_at: int, now: Moment
    ) -> Result:
        """TxnOffsetCommit of a producer whose coordinator has said that its transaction is open, asked after
        `asked_at` markers. Topics are given by name."""
        step = self._step(now)
        group = self._any_group(request.group_id)
        code = self.pending.refusal(request.producer_id, request.producer_epoch, asked_at)
        code = code or pending_offsets.commit_error(group, request)
        wanted = sum(len(topic.partitions) for topic in request.topics)
        if code is ErrorCode.NONE and self.pending.count + wanted > self._config.pending_offsets_max:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is ErrorCode.NONE and group is None and not self._has_room:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is ErrorCode.NONE and isinstance(group, ConsumerGroup) and request.member_id in group.members:
            step.restart_session(group, request.member_id)
        step.answer(ticket, pending_offsets.commit(step, code, request, self._topic_id_of))
        return self._finish(step)

    def end_transaction(self, ticket: Ticket, producer_id: int, epoch: int, commit: bool, now: Moment) -> Result:
        """A marker: what the producer's transaction commits comes into force, or is dropped. The answer is a code."""
        step = self._step(now)
        code = pending_offsets.end(step, self.pending, producer_id, epoch, commit=commit, topic_id_of=self._topic_id_of)
        step.answer(ticket, code)
        return self._finish(step)

    def pending_producers(self, ticket: Ticket, now: Moment) -> Result:
        """The answer lists the producers with open transactions: ids, epochs, times of their last offsets."""
        step = self._step(now)
        step.answer(ticket, self.pending.producers())
        return self._finish(step)

    def fetch(
        self, ticket: Ticket, request: OffsetFetchRequestGroup, now: Moment, *, require_stable: bool = False
    ) -> Result:
        """Topics are looked up by name."""
        step = self._step(now)
        modern = self.modern.get(request.group_id)
        code = ErrorCode.NONE if modern is None else described.fetch_error(modern, request)
        if request.group_id in self.shared:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        if code is ErrorCode.NONE:
            unstable = self.pending.unstable(request.group_id) if require_stable else frozenset()
            step.answer(ticket, offsets.fetch(self.offsets, request, self._topic_id_of, unstable))
        else:
            step.answer(ticket, OffsetFetchResponseGroup(group_id=request.group_id, topics=(), error_code=code))
        return self._finish(step)

    def committed(self, ticket: Ticket, group_id: str, now: Moment) -> Result:
        """The answer lists the topics, and the indexes of their partitions, for which a consumer group has
        offsets, committed or pending."""
        step = self._step(now)
        found = {topic: self.offsets.indexes(group_id, topic) for topic in self.offsets.topics(group_id)}
        for topic, partition in sorted(self.pending.unstable(group_id)):
            if partition not in found.setdefault(topic, []):
                found[topic].append(partition)
        step.answer(ticket, list(found.items()))
        return self._finish(step)

    def delete_offsets(self, ticket: Ticket, request: OffsetDeleteRequest, now: Moment) -> Result:
        step = self._step(now)
        group = self._any_group(request.group_id)
        if group is None:
            response = OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=())
        else:
            response = offsets.delete(step, group, self.offsets, request)
        step.answer(ticket, response)
        return self._finish(step, self.groups.get(request.group_id))

    def forget_topic(self, ticket: Ticket, topic: str, topic_id: UUID, now: Moment) -> Result:
        """The topic is gone: forget its offsets, but keep those of another topic of the same name. The answer
        is how many were forgotten."""
        step = self._step(now)
        for group_id in self.offsets.groups_of(topic):
            for partition, value in self.offsets.partitions(group_id, topic):
                doubtful = self.offsets.doubtful(group_id, topic, partition)
                if value.topic_id in (ZERO_UUID, topic_id) and not doubtful:
                    offsets.forget(step, OffsetCommitKey(group=group_id, topic=topic, partition=partition))
            if group_id in self.groups:
                self._forget_if_vacant(self.groups[group_id])
        step.answer(ticket, len(step.result.records))
        for pending_key, pending in self.pending.of_topic(topic):
            if pending.topic_id in (ZERO_UUID, topic_id):
                step.write(PendingRecord(pending_key, None))
        return self._finish(step)

    def forget_stale(self, keys: Iterable[OffsetCommitKey], now: Moment) -> Result:
        """Forget offsets of topics that are gone; offsets committed under these keys since are kept."""
        step = self._step(now)
        for key in keys:
            value = self.offsets.get(key.group, key.topic, key.partition)
            doubtful = self.offsets.doubtful(key.group, key.topic, key.partition)
            if value is not None and not doubtful and offsets.is_stale(value, self._topic_id_of(key.topic)):
                offsets.forget(step, key)
                if key.group in self.groups:
                    self._forget_if_vacant(self.groups[key.group])
        return self._finish(step)

    # --- groups --------------------------------------------------------------------------------------

    def describe(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DescribedGroup`, in the order asked for."""
        step = self._step(now)
        step.answer(ticket, [self._described(group_id) for group_id in group_ids])
        return self._finish(step)

    def describe_modern(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DescribedConsumerGroup`, in the order asked for."""
        step = self._step(now)
        found = []
        for group_id in group_ids:
            group = self.modern.get(group_id)
            if group is not None:
                found.append(described.described(group, self._topics))
                continue
            what = "is not a consumer group" if group_id in self.groups else "not found"
            why = f"Group {group_id} {what}."
            found.append(described.not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, why))
        step.answer(ticket, found)
        return self._finish(step)

    def describe_shared(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DescribedShareGroup`, in the order asked for."""
        step = self._step(now)
        found = []
        for group_id in group_ids:
            group = self.shared.get(group_id)
            if group is not None:
                found.append(share_described.described_share(group, self._topics))
                continue
            what = "is not a share group" if self._any_group(group_id) is not None else "not found"
            why = f"Group {group_id} {what}."
            found.append(share_described.share_not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, why))
        step.answer(ticket, found)
        return self._finish(step)

    def list_groups(self, ticket: Ticket, now: Moment) -> Result:
        """The answer is a list of `ListedGroup`."""
        step = self._step(now)
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type="classic",
            )
            for group in self.groups.values()
        ]
        listed += [described.listed(group) for group in self.modern.values()]
        listed += [share_described.listed_share(group) for group in self.shared.values()]
        step.answer(ticket, listed)
        return self._finish(step)

    def delete_groups(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DeletableGroupResult`, in the order asked for."""
        step = self._step(now)
        results = []
        for group_id in group_ids:
            shared = self.shared.get(group_id)
            group = self._any_group(group_id)
            code = ErrorCode.NONE
            if shared is not None:
                code = ErrorCode.NONE if shared.empty else ErrorCode.NON_EMPTY_GROUP
                for share_key in shared.tombstones() if shared.empty else ():
                    step.write(ShareRecord(share_key, None))
            elif group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.empty:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                offsets.delete_group(step, group, self.offsets)
                for key, _ in list(self.pending.of_group(group_id)):
                    step.write(PendingRecord(key, None))
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
        step.answer(ticket, results)
        return self._finish(step)

    # --- time ----------------------------------------------------------------------------------------

    def advance(self, now: Moment) -> Result:
        """Time has passed: fire the timers that have run out. An early call does no harm."""
        step = self._step(now)
        for key in self._timers.due(now.monotonic_ms):
            if key.kind == TimerKind.EXPIRY:
                self._expire(step)
                continue
            if key.group_id in self.shared:
                sharing = ShareStep(step, self.shared[key.group_id], self._topics)
                share_heartbeat.sharing_session_over(sharing, key.member_id)
                continue
            if key.group_id in self.modern:
                it = GroupStep(step, self.modern[key.group_id], self._topics)
                group_changes.time_over(it, key.kind, key.member_id)
                self._downgrade_if_due(it)
                continue
            group = self.groups.get(key.group_id)
            if group is None:
                continue
            if key.kind == TimerKind.SESSION:
                presence.session_over(step, group, key.member_id)
            elif key.kind == TimerKind.JOIN:
                rebalance.join_time_over(step, group)
            elif key.kind == TimerKind.SYNC:
                rebalance.sync_time_over(step, group)
            self._forget_if_vacant(group)
        return self._finish(step)

    def _expire(self, step: Step) -> None:
        if not self._to_expire:
            self._to_expire.extend([*self.groups, *self.modern])
        for _ in range(min(EXPIRY_GROUPS_PER_STEP, len(self._to_expire))):
            group = self._any_group(self._to_expire.popleft())
            if group is not None and not self.pending.has(group.group_id):
                offsets.expire(step, group, self.offsets)
            if isinstance(group, ConsumerGroup):
                self._forget_if_vacant(group)
        pause_ms = EXPIRY_PAUSE_MS if self._to_expire else self._config.offsets_retention_check_interval_ms
        self._timers.set(TimerKey(TimerKind.EXPIRY), step.now.monotonic_ms + pause_ms)

    # --- internals -----------------------------------------------------------------------------------

    def _step(self, now: Moment) -> Step:
        return Step(self._config, self._timers, self.counts, self.replay, self._new_id, now, self._holdings)

    def _finish(self, step: Step, group: ConsumerGroup | None = None) -> Result:
        if group is not None:
            self._forget_if_vacant(group)
        step.result.wake_at_ms = self._timers.next_deadline_ms()
        return step.result

    @property
    def group_count(self) -> int:
        """How many groups there are, of all kinds."""
        return len(self.groups) + len(self.modern) + len(self.shared)

    @property
    def _has_room(self) -> bool:
        return self.group_count < self._config.groups_max

    def _any_group(self, group_id: str) -> ConsumerGroup | ModernGroup | None:
        return self.groups.get(group_id) or self.modern.get(group_id)

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ConsumerGroup(group_id, self._holdings)
        return group

    def _forget(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.abandon()

    def _forget_if_vacant(self, group: ConsumerGroup) -> None:
        if group.vacant and not self.offsets.has(group.group_id):
            self._timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
            self.groups.pop(group.group_id, None)

    def _described(self, group_id: str) -> DescribedGroup:
        group, other = self.groups.get(group_id), group_id in self.modern or group_id in self.shared
        if group is None:
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {'is not a classic group' if other else 'not found'}.",
                group_id=group_id,
                group_state=ConsumerGroupState.DEAD.value,
                protocol_type="",
                protocol_data="",
                members=(),
            )
        protocol = group.protocol if group.state is ConsumerGroupState.STABLE else None
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=tuple(member.described(protocol) for member in group.members.values()),
        )
