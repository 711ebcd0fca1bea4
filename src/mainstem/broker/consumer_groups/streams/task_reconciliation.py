"""Leads one member toward its target tasks, a heartbeat at a time: a member gives up tasks before it gets others, and
gets a task only when no other member is in its way.

    Stable ── the target has changed ──► what must go is revoked: UnrevokedPartitions, in the old epoch
    UnrevokedPartitions ── the member no longer names them as its own ──► on to the target's epoch
    what others still hold ──► UnreleasedPartitions, in the target's epoch, until they are free ──► Stable
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mainstem.broker.consumer_groups.epochs.epoch_member import ReconciliationState
from mainstem.broker.consumer_groups.streams.tasks import NO_TASKS, TaskId, Tasks, TaskSet, ids_of, tasks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTasks:
    """How far a member is."""

    epoch: int = 0
    previous_epoch: int = 0
    state: int = ReconciliationState.STABLE
    assigned: TaskSet = NO_TASKS
    revoking: TaskSet = NO_TASKS
    """Tasks that the member was told to give up, until it confirms that."""
    since: Mapping[TaskId, int] = field(default_factory=dict)
    """The epoch at which the member got each of its active tasks."""


@dataclass(frozen=True, slots=True)
class Free:
    """Whether nobody is in the way of a task that a member should have."""

    to_run: Callable[[TaskId], bool]
    """No member runs it, and this one's process has no other part in it."""
    to_follow: Callable[[TaskId], bool]
    """No member of the same process has a part in it."""


def next_tasks(
    current: CurrentTasks, target_epoch: int, target: TaskSet, owned: TaskSet | None, free: Free
) -> CurrentTasks:
    """The member's next tasks; the same object when there is nothing to do yet. `owned`: the tasks that the member
    says it has; None: it did not say."""
    if current.state == ReconciliationState.STABLE and current.epoch == target_epoch:
        return current
    if current.state == ReconciliationState.UNREVOKED_PARTITIONS and (
        owned is None or owned.overlaps(current.revoking)
    ):
        return current
    kept, gone = _split(current.assigned, target)
    if not gone.empty and (owned is None or owned.overlaps(gone)):
        return CurrentTasks(
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=ReconciliationState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=gone,
            since={task: epoch for task, epoch in current.since.items() if task in set(ids_of(kept.active))},
        )
    active, active_waits = _taken(target.active, kept.active, free.to_run)
    standby, standby_waits = _taken(target.standby, kept.standby, free.to_follow)
    warmup, warmup_waits = _taken(target.warmup, kept.warmup, free.to_follow)
    waits = active_waits or standby_waits or warmup_waits
    reached = CurrentTasks(
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else current.epoch,
        state=ReconciliationState.UNRELEASED_PARTITIONS if waits else ReconciliationState.STABLE,
        assigned=TaskSet(active=active, standby=standby, warmup=warmup),
        since={task: current.since.get(task, target_epoch) for task in ids_of(active)},
    )
    return current if reached == current else reached


def _split(assigned: TaskSet, target: TaskSet) -> tuple[TaskSet, TaskSet]:
    """The tasks that a member keeps, and those that it must give up."""
    kept: list[Tasks] = []
    gone: list[Tasks] = []
    for has, wanted in zip(assigned.roles, target.roles, strict=True):
        should = set(ids_of(wanted))
        kept.append(tasks_of(task for task in ids_of(has) if task in should))
        gone.append(tasks_of(task for task in ids_of(has) if task not in should))
    return (
        TaskSet(active=kept[0], standby=kept[1], warmup=kept[2]),
        TaskSet(active=gone[0], standby=gone[1], warmup=gone[2]),
    )


def _taken(wanted: Tasks, kept: Tasks, is_free: Callable[[TaskId], bool]) -> tuple[Tasks, bool]:
    """The tasks of a role that a member has now, and whether it waits for others."""
    has = set(ids_of(kept))
    missing = [task for task in ids_of(wanted) if task not in has]
    free = [task for task in missing if is_free(task)]
    return tasks_of([*has, *free]), len(free) < len(missing)
