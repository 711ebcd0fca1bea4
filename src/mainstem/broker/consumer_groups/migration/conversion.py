"""Takes a group from one protocol to the other while its members go on (KIP-848, `group.consumer.migration.policy`).

A classic group becomes one that the coordinator assigns when a member of the new protocol joins, and a classic one
again when the last of these has gone. Its generation goes on as its epoch, and its members keep their partitions. The
record that decides stands where a log that ends early leaves the classic group: last of an upgrade, first of a
downgrade. A machine that finds both in its log drops the other.
"""

from __future__ import annotations

from mainstem.broker.consumer_groups.config import DOWNGRADING_POLICIES, UPGRADING_POLICIES
from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.members.member import Member
from mainstem.broker.consumer_groups.migration.embedded import assigned_in, assignment_bytes, subscription_in
from mainstem.broker.consumer_groups.modern.group_changes import GroupStep
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.rebalancing.rebalance import refuse_syncs
from mainstem.broker.consumer_groups.step import ConsumerGroupRecord, ModernRecord
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.machines.result import Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from mainstem.protocol.messages.consumer_offsets import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from mainstem.protocol.messages.group_membership import JoinGroupRequestProtocol

ROW_BYTES = 32
"""Bytes for lengths and timeouts of a member in the record of a classic group, rounded up."""


def can_upgrade(it: GroupStep, group: ConsumerGroup) -> bool:
    """Whether a classic group may become one that the coordinator assigns."""
    if not group.members:
        return True
    config = it.step.config
    if config.migration_policy not in UPGRADING_POLICIES or len(group.members) >= config.group_size_max:
        return False
    return group.consumers and all(
        subscription_in(member.protocols[0].metadata) is not None
        and assigned_in(member.assignment, it.topics) is not None
        for member in group.members.values()
    )


def upgrade(it: GroupStep, group: ConsumerGroup) -> list[tuple[Ticket, str]]:
    """Make `it.group`, which is new, of a classic group that `can_upgrade`. Returns the members that wait for answers
    to their joins, with their tickets."""
    step, group_id, epoch = it.step, it.group.group_id, max(group.generation, 1)
    waiting = _end_rebalance(it, group)
    metadata_key = ConsumerGroupMetadataKey(group=group_id)
    step.write(ModernRecord(metadata_key, ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=0)))
    target_key = ConsumerGroupTargetAssignmentMetadataKey(group=group_id)
    step.write(ModernRecord(target_key, ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)))
    for member in group.members.values():
        assigned = _unowned(it.group, assigned_in(member.assignment, it.topics) or {})
        it.write_member(member.member_id, _modern_metadata(group, member))
        it.write_target(member.member_id, assigned)
        if not member.new:
            it.write_current(member.member_id, CurrentAssignment(epoch=epoch, previous_epoch=epoch, assigned=assigned))
        it.restart_session(member.member_id)
    step.write(ConsumerGroupRecord(GroupMetadataKey(group=group_id), None))
    return waiting


def _end_rebalance(it: GroupStep, group: ConsumerGroup) -> list[tuple[Ticket, str]]:
    """Have members that wait for their assignments join again. Those that wait for answers to their joins are returned:
    a refusal is nothing that all clients keep to themselves."""
    step, waiting = it.step, []
    refuse_syncs(step, group, ErrorCode.REBALANCE_IN_PROGRESS)
    for member in group.members.values():
        if member.join_ticket is not None:
            waiting.append((member.join_ticket, member.member_id))
            group.set_join_ticket(member, None)
    for member_id in group.pending_members:
        step.stop_timer(TimerKind.SESSION, group, member_id)
    step.stop_timer(TimerKind.JOIN, group)
    step.stop_timer(TimerKind.SYNC, group)
    return waiting


def _unowned(group: ModernGroup, assigned: Partitions) -> Partitions:
    """Partitions that a leader gave to two members belong to the first."""
    kept = {
        topic_id: frozenset(index for index in indexes if group.owner(topic_id, index) is None)
        for topic_id, indexes in assigned.items()
    }
    return {topic_id: indexes for topic_id, indexes in kept.items() if indexes}


def _modern_metadata(group: ConsumerGroup, member: Member) -> ConsumerGroupMemberMetadataValue:
    subscription = subscription_in(member.protocols[0].metadata)
    assert subscription is not None, f"member {member.member_id!r} of {group.group_id!r} has no subscription"
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=tuple(
                ClassicProtocol(name=protocol.name, metadata=protocol.metadata) for protocol in member.protocols
            ),
        ),
    )


def downgraded(it: GroupStep) -> GroupMetadataValue | None:
    """The record of the classic group that this one becomes; None: it stays. Its generation is the last that a member
    knows: those that know it hear of the rebalance, and may still commit."""
    group, config = it.group, it.step.config
    if not group.only_classic or config.migration_policy not in DOWNGRADING_POLICIES:
        return None
    protocol = group.classic_protocol()
    if protocol is None:
        return None
    rows = tuple(
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=metadata.instance_id,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            rebalance_timeout=metadata.rebalance_timeout_ms,
            session_timeout=classic.session_timeout_ms,
            subscription=_metadata_for(classic, protocol),
            assignment=assignment_bytes(member.current.assigned, it.topics, _metadata_for(classic, protocol)),
        )
        for member in group.members.values()
        if (metadata := member.metadata) is not None and (classic := member.classic) is not None
    )
    size = sum(len(row.subscription) + len(row.assignment) + 2 * len(row.member_id) + ROW_BYTES for row in rows)
    if size > config.group_metadata_bytes_max:
        return None  # the coordinator assigns partitions to as many members as it likes
    return GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        generation=max(member.current.epoch for member in group.members.values()),
        protocol=protocol,
        leader=rows[0].member_id,
        current_state_timestamp=it.step.now.wall_ms,
        members=rows,
    )


def downgrade(it: GroupStep, value: GroupMetadataValue) -> dict[str, tuple[JoinGroupRequestProtocol, ...]]:
    """Write the classic group's record, and that the other is gone. Returns the protocols of its members, by their ids:
    the record has but one of each."""
    protocols = {}
    for member in it.group.members.values():
        it.stop_timers(member.member_id)
        assert member.classic is not None, f"member {member.member_id!r} is not a classic one"
        protocols[member.member_id] = tuple(
            JoinGroupRequestProtocol(name=protocol.name, metadata=protocol.metadata)
            for protocol in member.classic.supported_protocols
        )
    keys = it.group.tombstones()
    it.step.write(ConsumerGroupRecord(GroupMetadataKey(group=it.group.group_id), value))
    for key in keys:
        it.step.write(ModernRecord(key, None))
    return protocols


def _metadata_for(classic: ClassicMemberMetadata, name: str) -> bytes:
    return next((protocol.metadata for protocol in classic.supported_protocols if protocol.name == name), b"")
