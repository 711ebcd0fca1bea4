"""Offsets of consumer groups: committed, alone or within transactions, fetched, deleted, and forgotten when their topic
is gone or their time is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from uuid import UUID

from mainstem.broker.consumer_groups import offsets, pending_offsets
from mainstem.broker.consumer_groups.events.event_frame import EventFrame
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.modern import described
from mainstem.broker.consumer_groups.step import Caller, PendingRecord, Step
from mainstem.broker.consumer_groups.streams import streams_commits
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import OffsetCommitKey
from mainstem.protocol.messages.offset_commit import OffsetCommitRequest
from mainstem.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from mainstem.protocol.messages.producer_transactions import TxnOffsetCommitRequest
from mainstem.protocol.schema import ZERO_UUID

EXPIRY_GROUPS_PER_STEP = 1_000
"""Consumer groups checked in one event when offsets expire: a few milliseconds of work."""

EXPIRY_PAUSE_MS = 10
"""Between two such events."""


class OffsetEvents:
    """Of one machine."""

    def __init__(self, frame: EventFrame) -> None:
        self._frame = frame
        self._state = frame.state
        self._to_expire: deque[str] = deque()

    def commit(self, ticket: Ticket, request: OffsetCommitRequest, caller: Caller, now: Moment) -> Result:
        """Topics are given by name and, where it is known, by id."""
        step, state, topic_id_of = self._frame.begin(now), self._state, self._frame.topic_id_of
        known = state.offsets
        refusal = self._frame.offset_room.refusal(known, request.group_id, known.new_in(request))
        more = offsets.NewOffsets(known, refusal)
        modern, streams = state.modern.get(request.group_id), state.streams.get(request.group_id)
        if request.group_id in state.shared:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif modern is not None:
            code = described.commit_error(modern, request, caller.version)
        elif streams is not None:
            code = streams_commits.commit_error(streams, request, caller.version)
        else:
            group, room = state.classic.get(request.group_id), self._frame.has_room
            answer = offsets.commit_classic(step, group, request, caller, topic_id_of, room=room, more=more)
            step.answer(ticket, answer)
            return self._frame.finish(step, group)
        step.answer(ticket, offsets.commit(step, code, request, topic_id_of, more))
        return self._frame.finish(step)

    def commit_in_transaction(
        self, ticket: Ticket, request: TxnOffsetCommitRequest, asked_at: int, coordinator_epoch: int, now: Moment
    ) -> Result:
        """TxnOffsetCommit of a producer whose coordinator, of this epoch, has said that its transaction is open, asked
        after `asked_at` markers. Topics are given by name."""
        step = self._frame.begin(now)
        group = self._state.any_group(request.group_id)
        producer_id, epoch = request.producer_id, request.producer_epoch
        code = self._state.pending.refusal(producer_id, epoch, asked_at, coordinator_epoch)
        code = code or pending_offsets.commit_error(group, request)
        wanted = sum(len(topic.partitions) for topic in request.topics)
        if code is ErrorCode.NONE and self._state.pending.count + wanted > self._frame.config.pending_offsets_max:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is ErrorCode.NONE and group is None and not self._frame.has_room:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is ErrorCode.NONE:
            known = self._state.offsets
            code = self._frame.offset_room.refusal(known, request.group_id, known.new_in(request))
        if code is ErrorCode.NONE and isinstance(group, ConsumerGroup) and request.member_id in group.members:
            step.restart_session(group, request.member_id)
        step.answer(ticket, pending_offsets.commit(step, code, request, coordinator_epoch, self._frame.topic_id_of))
        return self._frame.finish(step)

    def end_transaction(
        self, ticket: Ticket, producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, now: Moment
    ) -> Result:
        """A marker: what the producer's transaction commits comes into force, or is dropped. The answer is a code."""
        step = self._frame.begin(now)
        code = pending_offsets.end(
            step,
            self._state.pending,
            producer_id,
            epoch,
            coordinator_epoch,
            commit=commit,
            topic_id_of=self._frame.topic_id_of,
        )
        step.answer(ticket, code)
        return self._frame.finish(step)

    def pending_producers(self, ticket: Ticket, now: Moment) -> Result:
        """The answer lists the producers with open transactions: ids, epochs, times of their last offsets."""
        step = self._frame.begin(now)
        step.answer(ticket, self._state.pending.producers())
        return self._frame.finish(step)

    def fetch(
        self, ticket: Ticket, request: OffsetFetchRequestGroup, now: Moment, *, require_stable: bool = False
    ) -> Result:
        """Topics are looked up by name."""
        step = self._frame.begin(now)
        modern = self._state.modern.get(request.group_id)
        code = ErrorCode.NONE if modern is None else described.fetch_error(modern, request)
        streams = self._state.streams.get(request.group_id)
        if streams is not None:
            code = streams_commits.fetch_error(streams, request)
        if request.group_id in self._state.shared:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        if code is ErrorCode.NONE:
            unstable = self._state.pending.unstable(request.group_id) if require_stable else frozenset()
            step.answer(ticket, offsets.fetch(self._state.offsets, request, self._frame.topic_id_of, unstable))
        else:
            step.answer(ticket, OffsetFetchResponseGroup(group_id=request.group_id, topics=(), error_code=code))
        return self._frame.finish(step)

    def committed(self, ticket: Ticket, group_id: str, now: Moment) -> Result:
        """The answer lists the topics, and the indexes of their partitions, for which a consumer group has
        offsets, committed or pending."""
        step = self._frame.begin(now)
        found = {topic: self._state.offsets.indexes(group_id, topic) for topic in self._state.offsets.topics(group_id)}
        for topic, partition in sorted(self._state.pending.unstable(group_id)):
            if partition not in found.setdefault(topic, []):
                found[topic].append(partition)
        step.answer(ticket, list(found.items()))
        return self._frame.finish(step)

    def delete_offsets(self, ticket: Ticket, request: OffsetDeleteRequest, now: Moment) -> Result:
        step = self._frame.begin(now)
        group = self._state.any_group(request.group_id)
        if group is None:
            response = OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=())
        else:
            response = offsets.delete(step, group, self._state.offsets, request)
        step.answer(ticket, response)
        return self._frame.finish(step, self._state.classic.get(request.group_id))

    def forget_topic(self, ticket: Ticket, topic: str, topic_id: UUID, now: Moment) -> Result:
        """The topic is gone: forget its offsets, but keep those of another topic of the same name. The answer
        is how many were forgotten."""
        step = self._frame.begin(now)
        for group_id in self._state.offsets.groups_of(topic):
            for partition, value in self._state.offsets.partitions(group_id, topic):
                doubtful = self._state.offsets.doubtful(group_id, topic, partition)
                if value.topic_id in (ZERO_UUID, topic_id) and not doubtful:
                    offsets.forget(step, OffsetCommitKey(group=group_id, topic=topic, partition=partition))
            if group_id in self._state.classic:
                self._frame.forget_if_vacant(self._state.classic[group_id])
        step.answer(ticket, len(step.result.records))
        for pending_key, pending in self._state.pending.of_topic(topic):
            if pending.topic_id in (ZERO_UUID, topic_id):
                step.write(PendingRecord(pending_key, None))
        return self._frame.finish(step)

    def forget_stale(self, keys: Iterable[OffsetCommitKey], now: Moment) -> Result:
        """Forget offsets of topics that are gone; offsets committed under these keys since are kept."""
        step = self._frame.begin(now)
        for key in keys:
            value = self._state.offsets.get(key.group, key.topic, key.partition)
            doubtful = self._state.offsets.doubtful(key.group, key.topic, key.partition)
            if value is not None and not doubtful and offsets.is_stale(value, self._frame.topic_id_of(key.topic)):
                offsets.forget(step, key)
                if key.group in self._state.classic:
                    self._frame.forget_if_vacant(self._state.classic[key.group])
        return self._frame.finish(step)

    def recovered(self, step: Step) -> None:
        """The log has been replayed: look for offsets that expire from now on."""
        self._expire_in(step, self._frame.config.offsets_retention_check_interval_ms)

    def expire(self, step: Step) -> None:
        """Drop offsets whose retention is over, of some groups; its timer is set for the others."""
        if not self._to_expire:
            self._to_expire.extend([*self._state.classic, *self._state.modern, *self._state.streams])
        for _ in range(min(EXPIRY_GROUPS_PER_STEP, len(self._to_expire))):
            group = self._state.any_group(self._to_expire.popleft())
            if group is not None and not self._state.pending.has(group.group_id):
                offsets.expire(step, group, self._state.offsets)
            if isinstance(group, ConsumerGroup):
                self._frame.forget_if_vacant(group)
        pause_ms = EXPIRY_PAUSE_MS if self._to_expire else self._frame.config.offsets_retention_check_interval_ms
        self._expire_in(step, pause_ms)

    def _expire_in(self, step: Step, wait_ms: int) -> None:
        self._frame.timers.set(TimerKey(TimerKind.EXPIRY), step.now.monotonic_ms + wait_ms)
