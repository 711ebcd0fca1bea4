"""A member of a streams group by its records, and the records of a member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mainstem.broker.consumer_groups.epochs.epoch_member import MEMBER_BYTES, NAME_BYTES
from mainstem.broker.consumer_groups.streams.task_reconciliation import CurrentTasks
from mainstem.broker.consumer_groups.streams.tasks import TaskId, Tasks, TaskSet, ids_of, tasks_of
from mainstem.protocol.messages.streams_group_records import (
    RecordedTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
)


@dataclass(slots=True)
class StreamsMember:
    """Without metadata: the log has yet to tell of it."""

    member_id: str
    metadata: StreamsGroupMemberMetadataValue | None = None
    current: CurrentTasks = field(default_factory=CurrentTasks)
    charged: int = 0
    """Bytes that the holdings are charged for it."""

    @property
    def process_id(self) -> str:
        return "" if self.metadata is None else self.metadata.process_id

    def recorded_current(self) -> StreamsGroupCurrentMemberAssignmentValue:
        return record_of_current(self.current)


def streams_bytes(member_id: str, metadata: StreamsGroupMemberMetadataValue) -> int:
    """Roughly the memory of a member with this metadata."""
    endpoint = metadata.user_endpoint
    texts = (metadata.rack_id, metadata.client_id, metadata.client_host, metadata.process_id)
    size = MEMBER_BYTES + 2 * len(member_id) + sum(len(text or "") for text in texts)
    size += 0 if endpoint is None else NAME_BYTES + len(endpoint.host)
    return size + sum(2 * NAME_BYTES + len(tag.key) + len(tag.value) for tag in metadata.client_tags)


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
