"""Forgets unused offsets, and consumer groups that have nothing left, when they are too old.

An offset expires `offsets.retention.minutes` after its consumer group became empty. While consumers of the group are
at work, and for consumers without a group, it expires so long after its commit, but never while the topic is
subscribed to. Clients of old versions may give an offset a time to live of its own.
"""

from __future__ import annotations

from mainstem.broker.groups.group import ConsumerGroup
from mainstem.broker.groups.offsets import Offsets, forget
from mainstem.broker.groups.result import GroupRecord
from mainstem.broker.groups.states import ConsumerGroupState
from mainstem.broker.groups.step import Step
from mainstem.broker.groups.timers import TimerKind
from mainstem.protocol.messages.consumer_offsets import GroupMetadataKey, OffsetCommitValue

_MS_PER_MINUTE = 60_000


def expire(step: Step, group: ConsumerGroup, offsets: Offsets) -> None:
    """Forget a consumer group's expired offsets, and the group itself when it is empty and has none left.
    Where a part of the log is lost nothing expires: the lost part may hold a later commit, which would be
    undone if that part were found again."""
    if offsets.incomplete:
        return
    for key, value in list(offsets.of_group(group.group_id)):
        if not group.subscribes_to(key.topic) and _expired(step, group, value):
            forget(step, key)
            step.counts.offset_expirations += 1
    if group.state is ConsumerGroupState.EMPTY and not group.pending_members and not offsets.has(group.group_id):
        delete_group(step, group, offsets)


def delete_group(step: Step, group: ConsumerGroup, offsets: Offsets) -> None:
    """Forget an empty consumer group with all its offsets."""
    assert group.state is ConsumerGroupState.EMPTY
    for member_id in group.pending_members:
        step.stop_timer(TimerKind.SESSION, group, member_id)
    for key, _ in list(offsets.of_group(group.group_id)):
        forget(step, key)
    step.write(GroupRecord(GroupMetadataKey(group=group.group_id), None))


def _expired(step: Step, group: ConsumerGroup, value: OffsetCommitValue) -> bool:
    now_ms = step.now.wall_ms
    since_ms = value.commit_timestamp
    if group.protocol_type is not None:
        if group.state is ConsumerGroupState.EMPTY:
            if group.persisted is not None and group.persisted.current_state_timestamp >= 0:
                since_ms = group.persisted.current_state_timestamp
        elif group.state is not ConsumerGroupState.STABLE or not group.subscriptions_known:
            return False
    if value.expire_timestamp >= 0:
        return now_ms >= value.expire_timestamp
    return now_ms - since_ms >= step.config.offsets_retention_minutes * _MS_PER_MINUTE
