"""The members of streams groups: they join, stay and leave, and are missed when their time is over."""

from __future__ import annotations

from mainstem.broker.consumer_groups.events.event_frame import EventFrame
from mainstem.broker.consumer_groups.step import (
    Caller,
    ConsumerGroupRecord,
    LogRecord,
    ModernRecord,
    Step,
    StreamsRecord,
)
from mainstem.broker.consumer_groups.streams import streams_step
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.consumer_groups.streams.streams_heartbeat import StreamsAnswer, refused_streams, streams_heartbeat
from mainstem.broker.consumer_groups.streams.streams_step import StreamsStep
from mainstem.broker.consumer_groups.timers import TimerKey
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH
from mainstem.protocol.messages.consumer_offsets import GroupMetadataKey
from mainstem.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest


class StreamsEvents:
    """Of one machine."""

    def __init__(self, frame: EventFrame) -> None:
        self._frame = frame
        self._state = frame.state

    def heartbeat(self, ticket: Ticket, request: StreamsGroupHeartbeatRequest, caller: Caller, now: Moment) -> Result:
        """StreamsGroupHeartbeat. A join turns a consumer group without members into a streams group. The answer is a
        `StreamsAnswer`."""
        step = self._frame.begin(now)
        refusal = self._refusal(request)
        if refusal is not None:
            step.answer(ticket, refusal)
            return self._frame.finish(step)
        group_id = request.group_id
        group = self._state.streams.get(group_id)
        if group is None:
            group = StreamsGroup(group_id, self._frame.holdings)
        former = self._former(group_id)
        it = StreamsStep(step, group, self._frame.topics)
        self._state.streams[group_id] = group
        step.answer(ticket, streams_heartbeat(it, request, caller))
        if group.vacant:
            del self._state.streams[group_id]
        else:
            for record in former:
                step.write(record)
        return self._frame.finish(step)

    def _refusal(self, request: StreamsGroupHeartbeatRequest) -> StreamsAnswer | None:
        group_id, joins = request.group_id, request.member_epoch == JOIN_EPOCH
        if group_id in self._state.streams:
            return None
        other = self._state.any_group(group_id)
        awaited = group_id in self._state.classic and bool(self._state.classic[group_id].pending_members)
        if group_id in self._state.shared or (other is not None and (awaited or not (joins and other.empty))):
            why = f"Group {group_id} is not a streams group."
            return StreamsAnswer(refused_streams(ErrorCode.GROUP_ID_NOT_FOUND, why))
        if not joins:
            return StreamsAnswer(refused_streams(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."))
        if other is None and not self._frame.has_room:
            return StreamsAnswer(refused_streams(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return None

    def _former(self, group_id: str) -> list[LogRecord]:
        """The records that end a consumer group without members, which becomes a streams group; its offsets stay."""
        classic, modern = self._state.classic.get(group_id), self._state.modern.get(group_id)
        records: list[LogRecord] = []
        if classic is not None and classic.persisted is not None:
            records.append(ConsumerGroupRecord(GroupMetadataKey(group=group_id), None))
        records += [ModernRecord(key, None) for key in ([] if modern is None else modern.tombstones())]
        return records

    def time_over(self, step: Step, timer: TimerKey) -> None:
        """A member's timer has run out."""
        it = StreamsStep(step, self._state.streams[timer.group_id], self._frame.topics)
        streams_step.streams_time_over(it, timer.kind, timer.member_id)

    def recovered(self, step: Step) -> None:
        """Start the timers of all members. A node of an earlier version knows no such groups, so it may have let
        consumers join one meanwhile: theirs it is then."""
        for group in list(self._state.streams.values()):
            if group.group_id in self._state.classic or group.group_id in self._state.modern:
                drop_streams(step, group)
                continue
            it = StreamsStep(step, group, self._frame.topics)
            unknown = [member.member_id for member in group.members.values() if member.metadata is None]
            if unknown:
                streams_step.remove_streams_members(it, unknown)
            for member_id in group.members:
                it.restart_session(member_id)
                it.time_revocation(member_id)


def drop_streams(step: Step, group: StreamsGroup | None) -> None:
    """A streams group without members becomes a group of another kind; its offsets stay."""
    for key in () if group is None else group.tombstones():
        step.write(StreamsRecord(key, None))
