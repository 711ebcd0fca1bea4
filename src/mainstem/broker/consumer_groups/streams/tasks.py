"""Tasks, and how requests and records spell them. A task reads one partition of the topics of one subtopology; a member
runs it (active), follows its state (standby), or restores its state to take it over (warm-up)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mainstem.protocol.messages.streams_group_records import StreamsGroupTargetAssignmentMemberValue
from mainstem.protocol.messages.streams_groups import DescribedTasks, StreamsTaskIds

Tasks = Mapping[str, frozenset[int]]
"""Tasks by the ids of their subtopologies; no set is empty."""


class TaskId(NamedTuple):
    subtopology: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """The tasks of one member, by the part that it has in them."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def roles(self) -> tuple[Tasks, Tasks, Tasks]:
        return self.active, self.standby, self.warmup

    @property
    def empty(self) -> bool:
        return not any(self.roles)

    def overlaps(self, other: TaskSet) -> bool:
        """Whether a task stands in the same role in both."""
        return any(
            indexes & theirs.get(subtopology, frozenset())
            for ours, theirs in zip(self.roles, other.roles, strict=True)
            for subtopology, indexes in ours.items()
        )

    def within(self, other: TaskSet) -> bool:
        """Whether the other has every one of these tasks, in the same role."""
        return all(
            indexes <= theirs.get(subtopology, frozenset())
            for ours, theirs in zip(self.roles, other.roles, strict=True)
            for subtopology, indexes in ours.items()
        )

    def recorded(self) -> StreamsGroupTargetAssignmentMemberValue:
        return StreamsGroupTargetAssignmentMemberValue(
            active_tasks=task_rows(self.active),
            standby_tasks=task_rows(self.standby),
            warmup_tasks=task_rows(self.warmup),
        )

    def described(self) -> DescribedTasks:
        return DescribedTasks(
            active_tasks=task_rows(self.active),
            standby_tasks=task_rows(self.standby),
            warmup_tasks=task_rows(self.warmup),
        )


NO_TASKS = TaskSet()


def ids_of(tasks: Tasks) -> Iterator[TaskId]:
    """In order."""
    for subtopology in sorted(tasks):
        for partition in sorted(tasks[subtopology]):
            yield TaskId(subtopology, partition)


def tasks_of(ids: Iterable[TaskId]) -> Tasks:
    found: dict[str, set[int]] = {}
    for subtopology, partition in ids:
        found.setdefault(subtopology, set()).add(partition)
    return {subtopology: frozenset(indexes) for subtopology, indexes in found.items()}


def count_of(tasks: Tasks) -> int:
    return sum(map(len, tasks.values()))


def read_tasks(rows: Iterable[StreamsTaskIds]) -> Tasks:
    return tasks_of(TaskId(row.subtopology_id, partition) for row in rows for partition in row.partitions)


def task_rows(tasks: Tasks) -> tuple[StreamsTaskIds, ...]:
    return tuple(
        StreamsTaskIds(subtopology_id=subtopology, partitions=tuple(sorted(tasks[subtopology])))
        for subtopology in sorted(tasks)
    )
