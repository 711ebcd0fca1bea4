"""A member of a streams group, and the record of how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mainstem.broker.consumer_groups.epochs.epoch_member import EpochMember
from mainstem.broker.consumer_groups.streams.task_reconciliation import CurrentTasks
from mainstem.broker.consumer_groups.streams.tasks import TaskId, Tasks, TaskSet, ids_of, tasks_of
from mainstem.protocol.messages.streams_group_records import (
    RecordedTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
)


@dataclass(slots=True)
class StreamsMember(EpochMember[StreamsGroupMemberMetadataValue, CurrentTasks]):
    """A member of a streams group."""

    @property
    def process_id(self) -> str:
        return "" if self.metadata is None else self.metadata.process_id


def current_of_record(value: StreamsGroupCurrentMemberAssignmentValue) -> CurrentTasks:
    since: dict[TaskId, int] = {}
    for row in value.active_tasks:
        epochs = row.assignment_epochs or (0,) * len(row.partitions)
        for partition, epoch in zip(row.partitions, epochs, strict=False):
            since[TaskId(row.subtopology_id, partition)] = epoch
    return CurrentTasks(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=value.state,
        assigned=TaskSet(
            active=_read(value.active_tasks),
            standby=_read(value.standby_tasks),
            warmup=_read(value.warmup_tasks),
        ),
        revoking=TaskSet(
            active=_read(value.active_tasks_pending_revocation),
            standby=_read(value.standby_tasks_pending_revocation),
            warmup=_read(value.warmup_tasks_pending_revocation),
        ),
        since=since,
    )


def record_of_current(current: CurrentTasks) -> StreamsGroupCurrentMemberAssignmentValue:
    return StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        active_tasks=_rows(current.assigned.active, current.since),
        standby_tasks=_rows(current.assigned.standby),
        warmup_tasks=_rows(current.assigned.warmup),
        active_tasks_pending_revocation=_rows(current.revoking.active),
        standby_tasks_pending_revocation=_rows(current.revoking.standby),
        warmup_tasks_pending_revocation=_rows(current.revoking.warmup),
    )


def _read(rows: Iterable[RecordedTaskIds]) -> Tasks:
    return tasks_of(TaskId(row.subtopology_id, partition) for row in rows for partition in row.partitions)


def _rows(tasks: Tasks, since: Mapping[TaskId, int] | None = None) -> tuple[RecordedTaskIds, ...]:
    rows = []
    for subtopology in sorted(tasks):
        of = tuple(ids_of({subtopology: tasks[subtopology]}))
        epochs = None if since is None else tuple(since.get(task, 0) for task in of)
        partitions = tuple(task.partition for task in of)
        rows.append(RecordedTaskIds(subtopology_id=subtopology, partitions=partitions, assignment_epochs=epochs))
    return tuple(rows)
