"""The members of groups of all kinds: they join, stay and leave, each by the protocol of its group, and are missed when
their time is over."""

from __future__ import annotations

from mainstem.broker.consumer_groups.events.event_frame import EventFrame
from mainstem.broker.consumer_groups.events.streams_events import StreamsEvents, drop_streams
from mainstem.broker.consumer_groups.long_work import Current, Slices, in_pieces
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.migration import classic_members, conversion
from mainstem.broker.consumer_groups.modern import group_changes
from mainstem.broker.consumer_groups.modern.group_changes import GroupStep
from mainstem.broker.consumer_groups.modern.heartbeat import HeartbeatCaller, heartbeat, refusal_of_first, refused
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.rebalancing import assignment, joining, presence, rebalance
from mainstem.broker.consumer_groups.shared import share_heartbeat
from mainstem.broker.consumer_groups.shared.share_group import ShareGroup
from mainstem.broker.consumer_groups.shared.share_heartbeat import ShareStep
from mainstem.broker.consumer_groups.step import Caller, ModernRecord, Step
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH, ConsumerGroupHeartbeatRequest
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest


class MembershipEvents:
    """Of one machine."""

    def __init__(self, frame: EventFrame) -> None:
        self._frame = frame
        self._state = frame.state
        self.streams = StreamsEvents(frame)

    # --- the classic protocol -----------------------------------------------------------------------

    def join(self, ticket: Ticket, request: JoinGroupRequest, caller: Caller, now: Moment) -> Result:
        step = self._frame.begin(now)
        timeout_ms, config = request.session_timeout_ms, self._frame.config
        group = self._state.classic.get(request.group_id)
        modern = self._state.modern.get(request.group_id)
        streams = self._state.streams.get(request.group_id)
        if request.group_id in self._state.shared or (streams is not None and not streams.empty):
            step.answer(ticket, rebalance.refused_join(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return self._frame.finish(step)
        if not config.session_timeout_ms_min <= timeout_ms <= config.session_timeout_ms_max:
            code = ErrorCode.INVALID_SESSION_TIMEOUT
        elif modern is not None and not modern.empty:
            it = GroupStep(step, modern, self._frame.topics)
            step.answer(ticket, classic_members.join(it, request, caller))
            self._downgrade_if_due(it)  # it may have taken the place of the last member of the new protocol
            return self._frame.finish(step)
        elif group is None and request.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif group is None and streams is None and not self._frame.has_room:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            for key in () if modern is None else modern.tombstones():
                step.write(ModernRecord(key, None))
            drop_streams(step, streams)
            group = self._state.classic_group(request.group_id)
            joining.join(step, group, ticket, request, caller)
            return self._frame.finish(step, group)
        step.answer(ticket, rebalance.refused_join(request.member_id, code))
        return self._frame.finish(step, group)

    def sync(self, ticket: Ticket, request: SyncGroupRequest, now: Moment) -> Result:
        step = self._frame.begin(now)
        group = self._state.classic.get(request.group_id)
        modern = self._state.modern.get(request.group_id)
        if modern is not None:
            step.answer(ticket, classic_members.sync(GroupStep(step, modern, self._frame.topics), request))
        elif group is None:
            step.answer(ticket, rebalance.refused_sync(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            assignment.sync(step, group, ticket, request)
        return self._frame.finish(step, group)

    def heartbeat(self, ticket: Ticket, request: HeartbeatRequest, now: Moment) -> Result:
        step = self._frame.begin(now)
        group = self._state.classic.get(request.group_id)
        modern = self._state.modern.get(request.group_id)
        if modern is not None:
            code = classic_members.heartbeat(GroupStep(step, modern, self._frame.topics), request)
        else:
            code = ErrorCode.UNKNOWN_MEMBER_ID if group is None else presence.heartbeat(step, group, request)
        step.answer(ticket, HeartbeatResponse(error_code=code))
        return self._frame.finish(step, group)

    def leave(self, ticket: Ticket, request: LeaveGroupRequest, now: Moment) -> Result:
        """A request in the form of version 3 and later: `members` names the members that leave."""
        step = self._frame.begin(now)
        if request.group_id in self._state.modern:
            it = GroupStep(step, self._state.modern[request.group_id], self._frame.topics)
            members = classic_members.leave(it, request.members)
            step.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.NONE, members=members))
            self._downgrade_if_due(it)
            return self._frame.finish(step)
        group = self._state.classic.get(request.group_id) or ConsumerGroup(request.group_id)
        members = presence.leave(step, group, request.members)
        step.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.NONE, members=members))
        return self._frame.finish(step, group)

    # --- partitions assigned by the coordinator -----------------------------------------------------

    def consumer_heartbeat(
        self, ticket: Ticket, request: ConsumerGroupHeartbeatRequest, sender: HeartbeatCaller, now: Moment
    ) -> Result:
        """ConsumerGroupHeartbeat. A join turns a classic group into one that this machine assigns: an empty one, or one
        whose members may come along."""
        step = self._frame.begin(now)
        group_id, joins = request.group_id, request.member_epoch == JOIN_EPOCH
        classic, group = self._state.classic.get(group_id), self._state.modern.get(group_id)
        it = GroupStep(step, group or ModernGroup(group_id, self._frame.holdings), self._frame.topics)
        other = classic is not None and not (joins and conversion.can_upgrade(it, classic))
        streams = self._state.streams.get(group_id)
        other = other or (streams is not None and not (joins and streams.empty))
        if group_id in self._state.shared or other:
            step.answer(ticket, refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."))
        elif group is None and not joins:
            step.answer(ticket, refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."))
        elif group is None and classic is None and streams is None and not self._frame.has_room:
            step.answer(ticket, refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif group is None and (refusal := refusal_of_first(it, request, sender)) is not None:
            step.answer(ticket, refusal)
        else:
            drop_streams(step, streams)
            if group_id in self._state.classic and classic is None:
                classic = self._state.classic[group_id]  # offsets of the streams group
            self._state.modern[group_id] = it.group
            waiting = [] if classic is None else conversion.upgrade(it, classic)
            answer = heartbeat(it, request, sender)
            step.answer(ticket, answer)
            self._frame.excused.asked(ticket, group_id, answer.member_id or "")
            for join_ticket, member_id in waiting:
                step.answer(join_ticket, classic_members.joined(it, member_id))
            if it.group.vacant:
                self._state.forget_modern(group_id)
            self._downgrade_if_due(it)
        return self._frame.finish(step)

    def _downgrade_if_due(self, it: GroupStep) -> None:
        """The last member of the new protocol may be gone: a classic group goes on with the others."""
        value = conversion.downgraded(it)
        if value is None:
            return
        protocols = conversion.downgrade(it, value)
        group = self._state.classic[it.group.group_id]
        for member in group.members.values():
            group.set_protocols(member, protocols[member.member_id])
            it.step.restart_session(group, member.member_id)
        rebalance.prepare(it.step, group)

    # --- share groups -------------------------------------------------------------------------------

    def share_heartbeat(
        self, ticket: Ticket, request: ShareGroupHeartbeatRequest, caller: Caller, now: Moment
    ) -> Result:
        """ShareGroupHeartbeat."""
        step = self._frame.begin(now)
        group_id, group = request.group_id, self._state.shared.get(request.group_id)
        if group is None and self._state.any_group(group_id) is not None:
            why = f"Group {group_id} is not a share group."
            step.answer(ticket, share_heartbeat.refused_share(ErrorCode.GROUP_ID_NOT_FOUND, why))
        elif group is None and request.member_epoch != JOIN_EPOCH:
            why = f"Group {group_id} not found."
            step.answer(ticket, share_heartbeat.refused_share(ErrorCode.GROUP_ID_NOT_FOUND, why))
        elif group is None and not self._frame.has_room:
            step.answer(ticket, share_heartbeat.refused_share(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            if group is None:
                group = self._state.shared[group_id] = ShareGroup(group_id, self._frame.holdings)
            it = ShareStep(step, group, self._frame.topics)
            step.answer(ticket, share_heartbeat.share_heartbeat(it, request, caller))
            if group.vacant:
                del self._state.shared[group_id]
        return self._frame.finish(step)

    def answered(self, step: Step, ticket: Ticket) -> None:
        """An answer has left: the session of the member that waited for it begins anew."""
        timer = self._frame.excused.answered(ticket)
        group = None if timer is None else self._state.modern.get(timer.group_id)
        if timer is not None and group is not None and timer.member_id in group.members:
            GroupStep(step, group, self._frame.topics).restart_session(timer.member_id)

    # --- time ---------------------------------------------------------------------------------------

    def time_over(self, step: Step, timer: TimerKey) -> None:
        """A member's timer, or that of a rebalance, has run out."""
        group_id, member_id = timer.group_id, timer.member_id
        if group_id in self._state.shared:
            sharing = ShareStep(step, self._state.shared[group_id], self._frame.topics)
            share_heartbeat.sharing_session_over(sharing, member_id)
        elif group_id in self._state.streams:
            self.streams.time_over(step, timer)
        elif group_id in self._state.modern:
            it = GroupStep(step, self._state.modern[group_id], self._frame.topics)
            group_changes.time_over(it, timer.kind, member_id)
            self._downgrade_if_due(it)
        elif (group := self._state.classic.get(group_id)) is not None:
            if timer.kind == TimerKind.SESSION:
                presence.session_over(step, group, member_id)
            elif timer.kind == TimerKind.JOIN:
                rebalance.join_time_over(step, group)
            elif timer.kind == TimerKind.SYNC:
                rebalance.sync_time_over(step, group)
            self._frame.forget_if_vacant(group)

    def recovered(self, step: Step) -> None:
        """The whole log has been replayed: each member found in it has one session timeout in which to send a
        heartbeat, from when their timers are started, some at a time."""
        for modern in list(self._state.modern.values()):
            self._recovered_modern(step, modern)
        for shared in self._state.shared.values():
            it = ShareStep(step, shared, self._frame.topics)
            unknown = [member.member_id for member in shared.members.values() if member.metadata is None]
            if unknown:
                share_heartbeat.remove_sharing(it, unknown)
            for member_id in shared.members:
                it.restart_session(member_id)
        self.streams.recovered(step)
        step.begin(self._sessions_begun)

    def _sessions_begun(self, current: Current[Step]) -> Slices[None]:
        for modern in list(self._state.modern.values()):
            for some in in_pieces(list(modern.members)):
                it = GroupStep(current.step, modern, self._frame.topics)
                if self._state.modern.get(modern.group_id) is modern:
                    for member_id in some:
                        if member_id in modern.members and it.timer(TimerKind.SESSION, member_id) not in it.step.timers:
                            it.restart_session(member_id)
                            it.time_revocation(member_id)
                yield len(some)
        for group in list(self._state.classic.values()):
            self._frame.forget_if_vacant(group)
            yield 1
            for some in in_pieces(list(group.members)):
                if self._state.classic.get(group.group_id) is group:
                    for member_id in some:
                        session = TimerKey(TimerKind.SESSION, group.group_id, member_id)
                        if member_id in group.members and session not in current.step.timers:
                            current.step.restart_session(group, member_id)
                yield len(some)

    def _recovered_modern(self, step: Step, group: ModernGroup) -> None:
        """A node of an earlier version knows no such groups, so it may have let members of the classic protocol join
        one meanwhile: theirs it is then."""
        if group.group_id in self._state.classic:
            for key in group.tombstones():
                step.write(ModernRecord(key, None))
            return
        it = GroupStep(step, group, self._frame.topics)
        unknown = [member.member_id for member in group.members.values() if member.metadata is None]
        if unknown:
            group_changes.remove(it, unknown)
