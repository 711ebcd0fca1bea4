"""Answers StreamsGroupHeartbeat: members join with the topology of their application, stay, and leave.

A request goes through at most five changes, each a record: the topology, which the first member brings; the member's
metadata; the group's epoch, if members, topics or settings have changed; the target assignment of that epoch; and one
step of this member toward it. Nothing waits: a member hears of what others do at its own next heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.consumer_groups.streams.endpoints import endpoint_rows
from mainstem.broker.consumer_groups.streams.streams_group import RECORD_FACTOR, TOPOLOGIES, topology_bytes
from mainstem.broker.consumer_groups.streams.streams_member import StreamsMember
from mainstem.broker.consumer_groups.streams.streams_step import (
    StreamsStep,
    assign_group,
    follow_topology,
    is_delayed,
    remove_streams_members,
)
from mainstem.broker.consumer_groups.streams.task_reconciliation import Free, next_tasks
from mainstem.broker.consumer_groups.streams.tasks import NO_TASKS, TaskSet, read_tasks, task_rows
from mainstem.broker.consumer_groups.streams.topology import (
    ApplicationTopic,
    ConfiguredTopology,
    Status,
    check_topology,
)
from mainstem.broker.errors import MemberRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from mainstem.protocol.messages.streams_group_records import StreamsGroupMemberMetadataValue, StreamsGroupTopologyValue
from mainstem.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
)

ACCEPTABLE_RECOVERY_LAG = 10_000
"""Records that a warm-up task may lack to count as caught up. Members are told, though no warm-up is assigned."""

TASK_OFFSET_INTERVAL_MS = 60_000
"""How often members would report how far their tasks are."""


@dataclass(frozen=True, slots=True)
class StreamsAnswer:
    """The response to a heartbeat, and the work that it leaves to the node."""

    response: StreamsGroupHeartbeatResponse
    to_make: tuple[ApplicationTopic, ...] = ()
    """Internal topics that the application lacks."""


def refused_streams(code: ErrorCode, why: str | None = None) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(
        error_code=code,
        error_message=why or code.message,
        member_id="",
        member_epoch=0,
        heartbeat_interval_ms=0,
        acceptable_recovery_lag=0,
        task_offset_interval_ms=0,
        status=None,
        endpoint_information_epoch=0,
    )


def streams_heartbeat(it: StreamsStep, request: StreamsGroupHeartbeatRequest, caller: Caller) -> StreamsAnswer:
    """A refusal leaves the group as it was."""
    try:
        _check(request)
        if request.member_epoch == LEAVE_EPOCH:
            return StreamsAnswer(_leave(it, request))
        return _stay(it, request, caller)
    except MemberRefused as refusal:
        return StreamsAnswer(refused_streams(refusal.code, refusal.why))


def _check(request: StreamsGroupHeartbeatRequest) -> None:
    """Raises `MemberRefused` for a request that contradicts itself, or asks for what Kafka does not have yet."""
    epoch, topology = request.member_epoch, request.topology
    joins = epoch == JOIN_EPOCH
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    for wrong, why in (
        (request.instance_id is not None, "streams groups have no static members: leave out group.instance.id"),
        (request.task_offsets is not None or request.task_end_offsets is not None, "offsets of tasks are not taken"),
        (bool(request.warmup_tasks), "no warm-up tasks are assigned, so that none can be owned"),
        (not request.member_id, "the member id is empty"),
        (request.rack_id == "", "the rack id is empty"),
        (epoch < STATIC_LEAVE_EPOCH, f"member epoch {epoch}"),
        (epoch == STATIC_LEAVE_EPOCH, "a member without an instance id does not return"),
        (joins and request.rebalance_timeout_ms < 0, "a member that joins names its rebalance timeout"),
        (joins and any(tasks), "a member that joins owns no tasks"),
        (joins and topology is None, "a member that joins brings its topology"),
        (not joins and topology is not None, "a member brings its topology when it joins, and then only"),
        (None in tasks and tasks != (None, None, None), "a member names its tasks of all kinds, or none"),
    ):
        if wrong:
            raise MemberRefused(ErrorCode.INVALID_REQUEST, why)
    if topology is not None:
        check_topology(topology.subtopologies)


def _leave(it: StreamsStep, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
    member = _known(it, request.member_id)
    if request.shutdown_application:
        it.group.shutdown_by = member.member_id
    remove_streams_members(it, [member.member_id])
    return replace(
        refused_streams(ErrorCode.NONE),
        error_message=None,
        member_id=member.member_id,
        member_epoch=request.member_epoch,
        status=(),
    )


def _known(it: StreamsStep, member_id: str) -> StreamsMember:
    """Raises `MemberRefused`."""
    member = it.group.members.get(member_id)
    if member is None or member.metadata is None:
        raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _stay(it: StreamsStep, request: StreamsGroupHeartbeatRequest, caller: Caller) -> StreamsAnswer:
    group, member_id = it.group, request.member_id
    joins = request.member_epoch == JOIN_EPOCH
    owned = _owned(request)
    known = group.members.get(member_id) if joins else _known(it, member_id)
    if known is not None and not joins:
        _check_epoch(known, request.member_epoch, owned)
    before = None if known is None else known.metadata
    metadata = _metadata(before, request, caller)
    topology = _topology(it, request)
    it.check_room(member_id, known, metadata)
    if topology is not None:
        _check_topology_room(it, topology)
    delay_ms = it.own.streams_initial_rebalance_delay_ms
    if group.empty and delay_ms:
        group.delayed_until_ms = it.step.now.monotonic_ms + delay_ms
    if topology is not None:
        it.write_topology(topology)
    if metadata != before:
        it.write_member(member_id, metadata)
    return _settle(it, request, owned, changed=metadata != before or topology is not None)


def _settle(
    it: StreamsStep, request: StreamsGroupHeartbeatRequest, owned: TaskSet | None, *, changed: bool
) -> StreamsAnswer:
    """Bring the group to the epoch of its members and topics, and the member a step closer to its target."""
    group, member_id = it.group, request.member_id
    configured = follow_topology(it, changed=changed)
    statuses = _statuses(it, member_id, configured)
    if group.epoch > group.assignment_epoch:
        delay = is_delayed(it)
        if delay is None:
            assign_group(it, configured)
        else:
            statuses.append(StreamsStatus(status_code=Status.ASSIGNMENT_DELAYED, status_detail=delay))
    moved = _reconcile(it, member_id, owned)
    it.restart_session(member_id)
    if request.shutdown_application:
        group.shutdown_by = member_id
    if group.shutdown_by is not None:
        why = f"member {group.shutdown_by} asked all members of the application to stop"
        statuses.append(StreamsStatus(status_code=Status.SHUTDOWN_APPLICATION, status_detail=why))

    member = group.members[member_id]
    tells = request.member_epoch != member.current.epoch or moved or _is_full(request)
    if moved and member.metadata is not None and member.metadata.user_endpoint is not None:
        group.endpoint_epoch += 1
    tasks = member.current.assigned
    response = StreamsGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=member_id,
        member_epoch=member.current.epoch,
        heartbeat_interval_ms=it.own.streams_heartbeat_interval_ms,
        acceptable_recovery_lag=ACCEPTABLE_RECOVERY_LAG,
        task_offset_interval_ms=TASK_OFFSET_INTERVAL_MS,
        status=tuple(statuses),
        active_tasks=task_rows(tasks.active) if tells else None,
        standby_tasks=task_rows(tasks.standby) if tells else None,
        warmup_tasks=task_rows(tasks.warmup) if tells else None,
        endpoint_information_epoch=group.endpoint_epoch,
        partitions_by_user_endpoint=endpoint_rows(it)
        if request.endpoint_information_epoch != group.endpoint_epoch
        else None,
    )
    return StreamsAnswer(response, tuple(configured.missing))


def _is_full(request: StreamsGroupHeartbeatRequest) -> bool:
    """Whether a member tells all that it has: it missed an answer."""
    return request.rebalance_timeout_ms >= 0 and request.active_tasks is not None and request.process_id is not None


def _owned(request: StreamsGroupHeartbeatRequest) -> TaskSet | None:
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return NO_TASKS if request.member_epoch == JOIN_EPOCH else None
    return TaskSet(
        active=read_tasks(request.active_tasks),
        standby=read_tasks(request.standby_tasks),
        warmup=read_tasks(request.warmup_tasks),
    )


def _check_epoch(member: StreamsMember, epoch: int, owned: TaskSet | None) -> None:
    """A member may be one epoch behind, where it lost the answer, if it owns nothing that it should not. Raises
    `MemberRefused`."""
    current = member.current
    if epoch == current.epoch:
        return
    lost_answer = epoch < current.epoch and epoch == current.previous_epoch
    if not lost_answer or owned is None or not owned.within(current.assigned):
        why = f"the member's epoch is {current.epoch}, not {epoch}: it must give up its tasks and join again"
        raise MemberRefused(ErrorCode.FENCED_MEMBER_EPOCH, why)


def _metadata(
    before: StreamsGroupMemberMetadataValue | None, request: StreamsGroupHeartbeatRequest, caller: Caller
) -> StreamsGroupMemberMetadataValue:
    """A member's metadata with what a request says anew."""
    known = before or StreamsGroupMemberMetadataValue(
        client_id=caller.client_id, client_host=caller.client_host, topology_epoch=0, process_id="", client_tags=()
    )
    timeout_ms, tags = request.rebalance_timeout_ms, request.client_tags
    return replace(
        known,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rack_id=request.rack_id or known.rack_id,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
        topology_epoch=known.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=known.process_id if request.process_id is None else request.process_id,
        user_endpoint=request.user_endpoint or known.user_endpoint,
        client_tags=known.client_tags if tags is None else tuple(sorted(tags, key=lambda tag: (tag.key, tag.value))),
    )


def _topology(it: StreamsStep, request: StreamsGroupHeartbeatRequest) -> StreamsGroupTopologyValue | None:
    """The topology that the group is to have from now on; None: it stays as it is. A group without members takes that
    of the first to join; while it has some, they decide. Raises `MemberRefused`."""
    asked, has = request.topology, it.group.topology
    if asked is None:
        if has is None:
            raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID, "the group has lost its topology: join again")
        return None
    parts = tuple(sorted(asked.subtopologies, key=lambda part: part.subtopology_id))
    brought = StreamsGroupTopologyValue(epoch=asked.epoch, subtopologies=parts)
    if has is not None and (has == brought or asked.epoch < has.epoch):
        return None
    if has is None or not it.group.members.keys() - {request.member_id}:
        return brought
    why = f"the group runs another topology, of epoch {has.epoch}: stop all its members before you change it"
    raise MemberRefused(ErrorCode.INVALID_REQUEST, why)


def _check_topology_room(it: StreamsStep, topology: StreamsGroupTopologyValue) -> None:
    """Raises `MemberRefused` where a record or the node's memory cannot take a topology."""
    size, most = topology_bytes(topology), it.step.config.group_metadata_bytes_max
    if size > RECORD_FACTOR * most:
        why = f"the topology takes {size // RECORD_FACTOR} bytes; {most} are the most"
        raise MemberRefused(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)
    if not it.group.has_room(TOPOLOGIES, size):
        raise MemberRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _statuses(it: StreamsStep, member_id: str, configured: ConfiguredTopology) -> list[StreamsStatus]:
    """The things about the group that a member should know."""
    found = []
    metadata = it.group.members[member_id].metadata
    if metadata is not None and metadata.topology_epoch < configured.epoch:
        why = f"the member's topology has epoch {metadata.topology_epoch}, the group's {configured.epoch}"
        found.append(StreamsStatus(status_code=Status.STALE_TOPOLOGY, status_detail=why))
    if configured.fault is not None:
        found.append(configured.fault)
    return found


def _reconcile(it: StreamsStep, member_id: str, owned: TaskSet | None) -> bool:
    """Whether the member's tasks have changed."""
    group = it.group
    before = group.members[member_id].current
    free = Free(
        to_run=lambda task: not group.others_run(task, member_id) and not group.process_has(task, member_id),
        to_follow=lambda task: not group.process_has(task, member_id),
    )
    after = next_tasks(before, group.assignment_epoch, group.target(member_id), owned, free)
    if after is before:
        return False
    it.write_current(member_id, after)
    it.time_revocation(member_id)
    return after.assigned != before.assigned
