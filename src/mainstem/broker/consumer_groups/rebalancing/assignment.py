"""SyncGroup: the consumer group's leader hands in the assignment, and each member receives its share.

The clients give an assignment its meaning; here it is bytes. It counts once it is in the log, together
with the generation and its members: that record is what makes the consumer group stable.
"""

from __future__ import annotations

from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup, ConsumerGroupState, generation_error
from mainstem.broker.consumer_groups.rebalancing import rebalance
from mainstem.broker.consumer_groups.rebalancing.rebalance import refused_sync, synced
from mainstem.broker.consumer_groups.step import Step
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.machines.result import Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import GroupMetadataValue
from mainstem.protocol.messages.group_membership import SyncGroupRequest

_MEMBER_BYTES = 32
"""Bytes for lengths and timeouts of a member in a record, rounded up."""


def sync(step: Step, group: ConsumerGroup, ticket: Ticket, request: SyncGroupRequest) -> None:
    code = _error(group, request)
    if code is not ErrorCode.NONE:
        step.answer(ticket, refused_sync(code))
        return
    member = group.members[request.member_id]
    _heard_from(step, group, member.member_id)
    if group.state is ConsumerGroupState.STABLE:
        step.answer(ticket, synced(group, member))
        step.restart_session(group, member.member_id)
        return
    if member.sync_ticket is not None:
        step.answer(member.sync_ticket, refused_sync(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync_ticket = ticket
    if member.member_id == group.leader:
        _assign(step, group, request)


def _error(group: ConsumerGroup, request: SyncGroupRequest) -> ErrorCode:
    code = generation_error(group, request.member_id, request.group_instance_id, request.generation_id)
    if code is not ErrorCode.NONE:
        return code
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is ConsumerGroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _heard_from(step: Step, group: ConsumerGroup, member_id: str) -> None:
    group.pending_sync.discard(member_id)
    if not group.pending_sync:
        step.stop_timer(TimerKind.SYNC, group)


def _assign(step: Step, group: ConsumerGroup, request: SyncGroupRequest) -> None:
    assignments = {item.member_id: item.assignment for item in request.assignments}
    before = sum(len(member.assignment) for member in group.members.values())
    more = sum(map(len, assignments.values())) - before
    if not step.holdings.has_room(group.members[request.member_id].client_host, more):
        rebalance.refuse_syncs(step, group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        rebalance.prepare(step, group)
        return
    value = group.assigned(step.now.wall_ms, assignments)
    if _size_bytes(value) > step.config.group_metadata_bytes_max:
        rebalance.refuse_syncs(step, group, ErrorCode.UNKNOWN_SERVER_ERROR)
        rebalance.prepare(step, group)
        return
    step.write_group(group, value)
    assert group.state is ConsumerGroupState.STABLE
    step.rebalanced(group.group_id, len(group.members))
    for member in group.members.values():
        if member.sync_ticket is not None:
            step.answer(member.sync_ticket, synced(group, member))
            member.sync_ticket = None
            step.restart_session(group, member.member_id)


def _size_bytes(value: GroupMetadataValue) -> int:
    """Roughly the size of the record in bytes; ids count double, since they need not be ASCII."""
    return sum(
        len(row.subscription)
        + len(row.assignment)
        + 2 * (len(row.member_id) + len(row.group_instance_id or "") + len(row.client_id))
        + _MEMBER_BYTES
        for row in value.members
    )
