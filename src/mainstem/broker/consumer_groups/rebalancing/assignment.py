"""SyncGroup: the consumer group's leader hands in the assignment, and each member receives its share.

The clients give an assignment its meaning; here it is bytes. It counts once it is in the log, together
with the generation and its members: that record is what makes the consumer group stable.
"""

from __future__ import annotations

from mainstem.broker.consumer_groups.long_work import Current, Slices, in_pieces
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup, ConsumerGroupState, generation_error
from mainstem.broker.consumer_groups.rebalancing import rebalance
from mainstem.broker.consumer_groups.rebalancing.rebalance import refused_sync, synced
from mainstem.broker.consumer_groups.step import ConsumerGroupRecord, Step
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.machines.result import Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import GroupMetadataKey, MemberMetadata
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
    generation, ticket = group.generation, group.members[request.member_id].sync_ticket
    step.begin(lambda current: _assigned(current, group, generation, ticket, request))


def _assigned(
    current: Current[Step], group: ConsumerGroup, generation: int, ticket: Ticket | None, request: SyncGroupRequest
) -> Slices[None]:
    """Make the record of the assignment, and have it replayed when it is whole. The members of a generation stay the
    same as long as it waits for its assignment."""
    leader = group.members[request.member_id]
    assignments: dict[str, bytes] = {}
    rows: list[MemberMetadata] = []
    more = size_bytes = 0
    members = list(group.members.values())
    for items in in_pieces(request.assignments):
        assignments.update((item.member_id, item.assignment) for item in items)
        yield len(items)
    for some in in_pieces(members):
        for member in some:
            row = member.persisted(group.protocol, assignments.get(member.member_id, b""))
            rows.append(row)
            more += len(row.assignment) - len(member.assignment)
            size_bytes += _row_bytes(row)
        yield len(some)
        superseded = leader.sync_ticket != ticket
        if superseded or not rebalance.is_at(group, generation, ConsumerGroupState.COMPLETING_REBALANCE):
            return
    step = current.step
    if not step.holdings.has_room(group.members[request.member_id].client_host, more):
        rebalance.refuse_syncs(step, group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        rebalance.prepare(step, group)
        return
    if size_bytes > step.config.group_metadata_bytes_max:
        rebalance.refuse_syncs(step, group, ErrorCode.UNKNOWN_SERVER_ERROR)
        rebalance.prepare(step, group)
        return
    value = group.assigned(step.now.wall_ms, rows)
    record = ConsumerGroupRecord(GroupMetadataKey(group=group.group_id), value)
    step.write_together([record], lambda: group.take_assignments(value))
    assert group.state is ConsumerGroupState.STABLE
    step.rebalanced(group.group_id, len(group.members))
    rebalance.answer_syncs(step, group)


def _row_bytes(row: MemberMetadata) -> int:
    """Roughly the size of a member in the record; ids count double, since they need not be ASCII."""
    names = len(row.member_id) + len(row.group_instance_id or "") + len(row.client_id)
    return len(row.subscription) + len(row.assignment) + 2 * names + _MEMBER_BYTES
