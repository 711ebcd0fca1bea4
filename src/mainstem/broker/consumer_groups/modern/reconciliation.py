"""Leads one member toward its target assignment, a heartbeat at a time: a member gives up partitions before it gets
others, and gets a partition only when no other member has it.

    Stable ── the target has changed ──► what must go is revoked: UnrevokedPartitions, in the old epoch
    UnrevokedPartitions ── the member no longer names them as its own ──► on to the target's epoch
    what others still hold ──► UnreleasedPartitions, in the target's epoch, until they are free ──► Stable
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment, ReconciliationState

IsFree = Callable[[UUID, int], bool]
"""Whether a partition, by topic id and index, belongs to no other member."""


def reconcile(
    current: CurrentAssignment, target_epoch: int, target: Partitions, owned: Partitions | None, is_free: IsFree
) -> CurrentAssignment:
    """The member's next assignment; the same object when there is nothing to do yet. `owned`: the partitions that the
    member says it has; None: it did not say."""
    if current.state == ReconciliationState.STABLE and current.epoch == target_epoch:
        return current
    if current.state == ReconciliationState.UNREVOKED_PARTITIONS and _still_has(owned, current.revoking):
        return current
    kept: dict[UUID, frozenset[int]] = {}
    revoking: dict[UUID, frozenset[int]] = {}
    for topic_id, indexes in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        if indexes & wanted:
            kept[topic_id] = indexes & wanted
        if indexes - wanted:
            revoking[topic_id] = indexes - wanted
    if revoking and _still_has(owned, revoking):
        return CurrentAssignment(
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=ReconciliationState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    unreleased = False
    for topic_id, wanted in target.items():
        missing = wanted - kept.get(topic_id, frozenset())
        free = frozenset(index for index in missing if is_free(topic_id, index))
        unreleased = unreleased or len(free) < len(missing)
        if free:
            kept[topic_id] = kept.get(topic_id, frozenset()) | free
    state = ReconciliationState.UNRELEASED_PARTITIONS if unreleased else ReconciliationState.STABLE
    previous = current.previous_epoch if current.epoch == target_epoch else current.epoch
    reached = CurrentAssignment(epoch=target_epoch, previous_epoch=previous, state=state, assigned=kept)
    return current if reached == current else reached


def contains(all_of: Partitions, some: Partitions) -> bool:
    """Whether every one of some partitions is among others."""
    return all(indexes <= all_of.get(topic_id, frozenset()) for topic_id, indexes in some.items())


def _still_has(owned: Partitions | None, revoking: Partitions) -> bool:
    """Whether the member has not confirmed that it gave up all of these partitions."""
    if owned is None:
        return True
    return any(indexes & owned.get(topic_id, frozenset()) for topic_id, indexes in revoking.items())
