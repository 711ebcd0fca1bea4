"""A streams group as a noun: a group with epochs, whose members have tasks of one topology.

Invariant: a task has one member that runs it, and no process has two parts in a task. A member has what is assigned to
it, and what it was told to revoke until it has confirmed that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any

from mainstem.broker.consumer_groups.epochs.epoch_group import EpochGroup, EpochRecords, Part
from mainstem.broker.consumer_groups.epochs.epoch_member import ReconciliationState, member_bytes
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.step import StreamsRecord
from mainstem.broker.consumer_groups.streams.streams_member import StreamsMember, current_of_record, record_of_current
from mainstem.broker.consumer_groups.streams.task_reconciliation import CurrentTasks
from mainstem.broker.consumer_groups.streams.tasks import NO_TASKS, TaskId, TaskSet, ids_of, read_tasks
from mainstem.broker.consumer_groups.streams.topology import ConfiguredTopology, topics_of
from mainstem.protocol.messages.streams_group_records import (
    STREAMS_RECORDS,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)


class StreamsGroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of the application are missing, or have the wrong number of partitions."""
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


TOPOLOGIES = "topologies"
"""The account that is charged for topologies, beside those of clients: topologies stay when their members go."""


RECORD_FACTOR = 3
"""The memory of a topology is about so many times its record."""


def topology_bytes(topology: StreamsGroupTopologyValue) -> int:
    """Roughly the memory of a topology."""
    return RECORD_FACTOR * len(STREAMS_RECORDS.write_value(topology))


RECORDS = EpochRecords(
    record=StreamsRecord,
    epoch_key=StreamsGroupMetadataKey,
    epoch=StreamsGroupMetadataValue,
    member_key=StreamsGroupMemberMetadataKey,
    target_epoch_key=StreamsGroupTargetAssignmentMetadataKey,
    target_epoch=StreamsGroupTargetAssignmentMetadataValue,
    target_key=StreamsGroupTargetAssignmentMemberKey,
    target=StreamsGroupTargetAssignmentMemberValue,
    current_key=StreamsGroupCurrentMemberAssignmentKey,
)


class StreamsGroup(EpochGroup[StreamsMember, TaskSet]):
    """One streams group. A new one is empty, and the log does not know it."""

    records = RECORDS
    first_epoch = 1
    """Members that wait for their first tasks have it, since 0 says that they join."""

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        super().__init__(group_id, holdings)
        self.metadata = StreamsGroupMetadataValue(epoch=self.first_epoch, metadata_hash=0)
        """The last record of its epoch."""
        self.assigned_at_ms = 0
        """When the targets were made, by the wall clock."""
        self.topology: StreamsGroupTopologyValue | None = None
        self.configured: ConfiguredTopology | None = None
        """The topology with the topics as of the last look at them; not in the log, as all that follows."""
        self.topics_hash = 0
        """Of the topics as of that look."""
        self.delayed_until_ms: int | None = None
        """No target is made before: a new group waits for more members."""
        self.shutdown_by: str | None = None
        """The member that asked all others to stop."""
        self.endpoint_epoch = 0
        """Rises when a member that answers queries has other tasks."""
        self._runners: dict[TaskId, str] = {}
        self._followers: dict[TaskId, set[str]] = {}

    @property
    def vacant(self) -> bool:
        return super().vacant and self.topology is None

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.configured is not None and not self.configured.ready:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        for member in list(self.members.values()):  # metrics are read in another thread
            if member.current.epoch != self.assignment_epoch or member.current.state != ReconciliationState.STABLE:
                return StreamsGroupState.RECONCILING
        return StreamsGroupState.STABLE

    def subscribed_names(self) -> set[str]:
        """The topics that the application reads or owns."""
        return set() if self.topology is None else topics_of(self.topology)

    def subscribes_to(self, topic: str) -> bool:
        """Whether members consume a topic."""
        return bool(self.members) and topic in self.subscribed_names()

    def others_run(self, task: TaskId, member_id: str) -> bool:
        return self._runners.get(task, member_id) != member_id

    def process_has(self, task: TaskId, member_id: str) -> bool:
        """Whether another member in the same process has a part in a task."""
        process_id = self.members[member_id].process_id
        having = {*self._followers.get(task, ()), self._runners.get(task, member_id)}
        return any(it != member_id and self.members[it].process_id == process_id for it in having)

    # --- what the log says ---------------------------------------------------------------------------

    def bytes_of(self, member_id: str, metadata: StreamsGroupMemberMetadataValue) -> int:
        endpoint = metadata.user_endpoint
        host = None if endpoint is None else endpoint.host
        texts = (metadata.rack_id, metadata.client_id, metadata.client_host, metadata.process_id, host)
        return member_bytes(member_id, texts, (text for tag in metadata.client_tags for text in (tag.key, tag.value)))

    def current_value(self, current: CurrentTasks) -> StreamsGroupCurrentMemberAssignmentValue:
        return record_of_current(current)

    def target_value(self, target: TaskSet) -> StreamsGroupTargetAssignmentMemberValue:
        return target.recorded()

    def epoch_value(self) -> StreamsGroupMetadataValue:
        return self.metadata

    def target_epoch_value(self) -> StreamsGroupTargetAssignmentMetadataValue:
        return StreamsGroupTargetAssignmentMetadataValue(
            assignment_epoch=self.assignment_epoch, assignment_timestamp=self.assigned_at_ms
        )

    def _new_member(self, member_id: str) -> StreamsMember:
        return StreamsMember(member_id, CurrentTasks())

    def _no_target(self) -> TaskSet:
        return NO_TASKS

    def _current(self, value: StreamsGroupCurrentMemberAssignmentValue) -> CurrentTasks:
        return current_of_record(value)

    def target_of(self, value: StreamsGroupTargetAssignmentMemberValue) -> TaskSet:
        return TaskSet(
            active=read_tasks(value.active_tasks),
            standby=read_tasks(value.standby_tasks),
            warmup=read_tasks(value.warmup_tasks),
        )

    def _replay_epoch(self, value: StreamsGroupMetadataValue) -> None:
        super()._replay_epoch(value)
        self.metadata = value

    def _replay_target_epoch(self, value: StreamsGroupTargetAssignmentMetadataValue | None) -> None:
        super()._replay_target_epoch(value)
        self.assigned_at_ms = 0 if value is None else value.assignment_timestamp

    def _replay_other(self, key: Any, value: StreamsGroupTopologyValue | None) -> None:
        assert isinstance(key, StreamsGroupTopologyKey)
        before = 0 if self.topology is None else topology_bytes(self.topology)
        self._holdings.change(TOPOLOGIES, (0 if value is None else topology_bytes(value)) - before)
        self.topology, self.configured = value, None

    def _other_parts(self) -> Iterator[Part]:
        if self.topology is not None:
            yield StreamsGroupTopologyKey(group=self.group_id), self.topology

    def _takes(self, member: StreamsMember) -> None:
        running, following = _parts(member)
        for task in running:
            self._runners[task] = member.member_id
        for task in following:
            self._followers.setdefault(task, set()).add(member.member_id)

    def _gives_up(self, member: StreamsMember) -> None:
        running, following = _parts(member)
        for task in running:
            if self._runners.get(task) == member.member_id:
                del self._runners[task]
        for task in following:
            followers = self._followers.get(task, set())
            followers.discard(member.member_id)
            if not followers:
                self._followers.pop(task, None)

    def abandon(self) -> None:
        super().abandon()
        self._replay_other(StreamsGroupTopologyKey(group=self.group_id), None)


def _parts(member: StreamsMember) -> tuple[Iterable[TaskId], Iterable[TaskId]]:
    """The tasks that a member runs, and those that it follows or warms up, until it has confirmed to have given them
    up."""
    held = (member.current.assigned, member.current.revoking)
    running = [task for of in held for task in ids_of(of.active)]
    following = [task for of in held for tasks in (of.standby, of.warmup) for task in ids_of(tasks)]
    return running, following
