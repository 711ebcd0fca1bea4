"""A streams group as a noun: what its records say, and nothing else but what follows from them and the topics.

All of it changes in `replay`, live and after a restart alike. Three epochs tell how far the group is, as in consumer
groups whose partitions the coordinator assigns: `epoch` rises with every change of members, topics or settings;
`assignment_epoch` is the epoch for which the target was made; each member has the epoch of the target that it has
reached, or is on its way from.

Invariant: a task has one member that runs it, and no process has two parts in a task. A member has what is assigned to
it, and what it was told to revoke until it has confirmed that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.streams.streams_member import StreamsMember, current_of_record, streams_bytes
from mainstem.broker.consumer_groups.streams.task_reconciliation import CurrentTasks, TaskState
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
    StreamsKey,
    StreamsValue,
)


class StreamsGroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of the application are missing, or have the wrong number of partitions."""
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


FIRST_EPOCH = 1
"""Of a group that nobody has joined: members that wait for their first tasks have it, since 0 says that they join."""

TOPOLOGIES = "topologies"
"""The account that is charged for topologies, beside those of clients: topologies stay when their members go."""


def topology_bytes(topology: StreamsGroupTopologyValue) -> int:
    """Roughly the memory of a topology; its record is about a third of that."""
    return 3 * len(STREAMS_RECORDS.write_value(topology))


class StreamsGroup:
    """One streams group. A new one is empty, and the log does not know it."""

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        self.group_id = group_id
        self.metadata = StreamsGroupMetadataValue(epoch=FIRST_EPOCH, metadata_hash=0)
        self.assigned_at = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=FIRST_EPOCH)
        self.topology: StreamsGroupTopologyValue | None = None
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, TaskSet] = {}
        self.configured: ConfiguredTopology | None = None
        """The topology with the topics as of the last look at them; not in the log, as all that follows."""
        self.topics_hash = 0
        """Of the topics as of that look."""
        self.topics_checked_ms: int | None = None
        self.delayed_until_ms: int | None = None
        """No target is made before: a new group waits for more members."""
        self.shutdown_by: str | None = None
        """The member that asked all others to stop."""
        self.endpoint_epoch = 0
        """Rises when a member that answers queries has other tasks."""
        self._holdings = holdings or Holdings()
        self._runners: dict[TaskId, str] = {}
        self._followers: dict[TaskId, set[str]] = {}

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    @property
    def assignment_epoch(self) -> int:
        return self.assigned_at.assignment_epoch

    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def vacant(self) -> bool:
        """Whether the log knows nothing of it."""
        return self.epoch == FIRST_EPOCH and not self.members and self.topology is None

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.configured is not None and not self.configured.ready:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        for member in list(self.members.values()):  # metrics are read in another thread
            if member.current.epoch != self.assignment_epoch or member.current.state != TaskState.STABLE:
                return StreamsGroupState.RECONCILING
        return StreamsGroupState.STABLE

    def target(self, member_id: str) -> TaskSet:
        return self.targets.get(member_id, NO_TASKS)

    def subscribes_to(self, topic: str) -> bool:
        """Whether members consume a topic."""
        return bool(self.members) and self.topology is not None and topic in topics_of(self.topology)

    def others_run(self, task: TaskId, member_id: str) -> bool:
        return self._runners.get(task, member_id) != member_id

    def process_has(self, task: TaskId, member_id: str) -> bool:
        """Whether another member in the same process has a part in a task."""
        process_id = self.members[member_id].process_id
        having = {*self._followers.get(task, ()), self._runners.get(task, member_id)}
        return any(it != member_id and self.members[it].process_id == process_id for it in having)

    def has_room(self, host: str, more: int) -> bool:
        """Whether the client at this address may hold so many additional bytes."""
        return self._holdings.has_room(host, more)

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, key: StreamsKey, value: StreamsValue | None) -> None:
        """Apply a record of this group. The record that ends the group itself is its owner's to apply."""
        if isinstance(key, StreamsGroupMetadataKey):
            assert isinstance(value, StreamsGroupMetadataValue)
            self.metadata = value
        elif isinstance(key, StreamsGroupMemberMetadataKey):
            assert value is None or isinstance(value, StreamsGroupMemberMetadataValue)
            self._replay_member(key.member_id, value)
        elif isinstance(key, StreamsGroupTargetAssignmentMetadataKey):
            assert value is None or isinstance(value, StreamsGroupTargetAssignmentMetadataValue)
            self.assigned_at = value or StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=FIRST_EPOCH)
        elif isinstance(key, StreamsGroupTargetAssignmentMemberKey):
            assert value is None or isinstance(value, StreamsGroupTargetAssignmentMemberValue)
            if value is None:
                self.targets.pop(key.member_id, None)
            else:
                self.targets[key.member_id] = TaskSet(
                    active=read_tasks(value.active_tasks),
                    standby=read_tasks(value.standby_tasks),
                    warmup=read_tasks(value.warmup_tasks),
                )
        elif isinstance(key, StreamsGroupCurrentMemberAssignmentKey):
            assert value is None or isinstance(value, StreamsGroupCurrentMemberAssignmentValue)
            self._replay_current(key.member_id, value)
        else:
            assert value is None or isinstance(value, StreamsGroupTopologyValue)
            self._replay_topology(value)

    def _replay_topology(self, value: StreamsGroupTopologyValue | None) -> None:
        before = 0 if self.topology is None else topology_bytes(self.topology)
        self._holdings.change(TOPOLOGIES, (0 if value is None else topology_bytes(value)) - before)
        self.topology, self.configured = value, None

    def _replay_member(self, member_id: str, value: StreamsGroupMemberMetadataValue | None) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._give_back(member)
        if value is None:
            if member is not None:
                self._release(member)
                del self.members[member_id]
            if self.shutdown_by is not None and not self.members:
                self.shutdown_by = None
            return
        if member is None:
            member = self.members[member_id] = StreamsMember(member_id)
        member.metadata = value
        member.charged = streams_bytes(member_id, value)
        self._holdings.change(value.client_host, member.charged)

    def _give_back(self, member: StreamsMember) -> None:
        if member.metadata is not None:
            self._holdings.change(member.metadata.client_host, -member.charged)
            member.charged, member.metadata = 0, None

    def _replay_current(self, member_id: str, value: StreamsGroupCurrentMemberAssignmentValue | None) -> None:
        member = self.members.get(member_id)
        if member is None and value is None:
            return
        if member is None:
            member = self.members[member_id] = StreamsMember(member_id)
        self._release(member)
        member.current = CurrentTasks() if value is None else current_of_record(value)
        running, following = _parts(member)
        for task in running:
            self._runners[task] = member_id
        for task in following:
            self._followers.setdefault(task, set()).add(member_id)

    def _release(self, member: StreamsMember) -> None:
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
        """The group is gone: give up what its members hold."""
        for member in self.members.values():
            self._give_back(member)
        self._replay_topology(None)

    def snapshot(self) -> Iterator[tuple[StreamsKey, StreamsValue]]:
        """The records that make the group. Each gives the state at the time it is taken."""
        group_id = self.group_id
        yield StreamsGroupMetadataKey(group=group_id), self.metadata
        if self.topology is not None:
            yield StreamsGroupTopologyKey(group=group_id), self.topology
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None and member.metadata is not None:
                yield StreamsGroupMemberMetadataKey(group=group_id, member_id=member_id), member.metadata
        yield StreamsGroupTargetAssignmentMetadataKey(group=group_id), self.assigned_at
        for member_id in list(self.targets):
            if member_id in self.targets:
                key = StreamsGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id)
                yield key, self.targets[member_id].recorded()
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is not None:
                yield (
                    StreamsGroupCurrentMemberAssignmentKey(group=group_id, member_id=member_id),
                    member.recorded_current(),
                )

    def tombstones(self) -> list[StreamsKey]:
        """The keys to be deleted when the group is gone."""
        keys: list[StreamsKey] = []
        for member_id in dict.fromkeys([*self.members, *self.targets]):
            keys += streams_member_keys(self.group_id, member_id)
        return [
            *keys,
            StreamsGroupTargetAssignmentMetadataKey(group=self.group_id),
            StreamsGroupTopologyKey(group=self.group_id),
            StreamsGroupMetadataKey(group=self.group_id),
        ]


def _parts(member: StreamsMember) -> tuple[Iterable[TaskId], Iterable[TaskId]]:
    """The tasks that a member runs, and those that it follows or warms up, until it has confirmed to have given them
    up."""
    held = (member.current.assigned, member.current.revoking)
    running = [task for of in held for task in ids_of(of.active)]
    following = [task for of in held for tasks in (of.standby, of.warmup) for task in ids_of(tasks)]
    return running, following


def streams_member_keys(group_id: str, member_id: str) -> list[StreamsKey]:
    """The keys to be deleted when a member is gone, in Kafka's order."""
    return [
        StreamsGroupCurrentMemberAssignmentKey(group=group_id, member_id=member_id),
        StreamsGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id),
        StreamsGroupMemberMetadataKey(group=group_id, member_id=member_id),
    ]
