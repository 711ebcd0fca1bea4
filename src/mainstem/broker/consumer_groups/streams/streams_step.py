"""The steps that change a streams group, each by its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.epoch_step import TOPICS_CHECK_MS
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics, hash_of
from mainstem.broker.consumer_groups.step import Step, StreamsRecord
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup, streams_member_keys
from mainstem.broker.consumer_groups.streams.streams_member import record_of_current
from mainstem.broker.consumer_groups.streams.task_assignor import Runner, TaskKinds, assign_tasks
from mainstem.broker.consumer_groups.streams.task_reconciliation import CurrentTasks, TaskState
from mainstem.broker.consumer_groups.streams.tasks import TaskSet
from mainstem.broker.consumer_groups.streams.topology import ConfiguredTopology, configure, topics_of
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind
from mainstem.protocol.messages.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    StreamsKey,
    StreamsValue,
)
from mainstem.protocol.messages.streams_groups import StreamsKeyValue

STANDBYS_KEY = "num.standby.replicas"
"""Kafka's name for how many standbys a task has, in the record of the group."""


@dataclass(frozen=True, slots=True)
class StreamsStep:
    """One event on its way through one streams group, with the topics there are."""

    step: Step
    group: StreamsGroup
    topics: CurrentTopics

    @property
    def own(self) -> ConsumerGroupsConfig:
        """The settings of the group."""
        return self.step.config_of(self.group.group_id)

    # --- records -------------------------------------------------------------------------------------

    def write(self, key: StreamsKey, value: StreamsValue | None) -> None:
        self.step.write(StreamsRecord(key, value))

    def write_member(self, member_id: str, metadata: StreamsGroupMemberMetadataValue) -> None:
        self.write(StreamsGroupMemberMetadataKey(group=self.group.group_id, member_id=member_id), metadata)

    def write_current(self, member_id: str, current: CurrentTasks) -> None:
        key = StreamsGroupCurrentMemberAssignmentKey(group=self.group.group_id, member_id=member_id)
        self.write(key, record_of_current(current))

    def write_target(self, member_id: str, tasks: TaskSet) -> None:
        key = StreamsGroupTargetAssignmentMemberKey(group=self.group.group_id, member_id=member_id)
        self.write(key, tasks.recorded())

    def write_topology(self, topology: StreamsGroupTopologyValue) -> None:
        self.write(StreamsGroupTopologyKey(group=self.group.group_id), topology)

    def write_metadata(self, value: StreamsGroupMetadataValue) -> None:
        self.write(StreamsGroupMetadataKey(group=self.group.group_id), value)

    # --- timers --------------------------------------------------------------------------------------

    def restart_session(self, member_id: str) -> None:
        deadline_ms = self.step.now.monotonic_ms + self.own.streams_session_timeout_ms
        self.step.timers.set(self._timer(TimerKind.SESSION, member_id), deadline_ms)

    def time_task_revocation(self, member_id: str) -> None:
        """A member that is to give up tasks has its rebalance timeout for that."""
        member = self.group.members[member_id]
        if member.current.state != TaskState.UNREVOKED_TASKS or member.metadata is None:
            self.step.timers.cancel(self._timer(TimerKind.REVOCATION, member_id))
            return
        timeout_ms = min(member.metadata.rebalance_timeout_ms, self.step.config.rebalance_timeout_ms_max)
        self.step.timers.set(self._timer(TimerKind.REVOCATION, member_id), self.step.now.monotonic_ms + timeout_ms)

    def stop_timers(self, member_id: str) -> None:
        for kind in (TimerKind.SESSION, TimerKind.REVOCATION):
            self.step.timers.cancel(self._timer(kind, member_id))

    def _timer(self, kind: int, member_id: str) -> TimerKey:
        return TimerKey(kind, self.group.group_id, member_id)

    # --- topics and settings -------------------------------------------------------------------------

    def partitions_of(self, name: str) -> int | None:
        topic = self.topics.named(name)
        return None if topic is None else topic.partitions

    def settings(self) -> tuple[StreamsKeyValue, ...]:
        """Those that a target assignment follows from."""
        return (StreamsKeyValue(key=STANDBYS_KEY, value=str(self.own.streams_num_standby_replicas)),)


def look_at_topics(it: StreamsStep) -> tuple[ConfiguredTopology, int]:
    """The group's topology with the topics there are, looked at anew where that is due; and a hash of them. The group
    has a topology."""
    group, now_ms = it.group, it.step.now.monotonic_ms
    assert group.topology is not None
    due = group.topics_checked_ms is None or now_ms - group.topics_checked_ms >= TOPICS_CHECK_MS
    if group.configured is None or due:
        group.topics_checked_ms = now_ms
        found = hash_of(it.topics.known(topics_of(group.topology)))
        if group.configured is None or found != group.topics_hash:
            group.configured, group.topics_hash = configure(group.topology, it.partitions_of), found
    return group.configured, group.topics_hash


def follow_topology(it: StreamsStep, *, changed: bool) -> ConfiguredTopology:
    """Look at the topics where that is due, and begin an epoch if members have `changed`, or topics, or settings."""
    configured, topics_hash = look_at_topics(it)
    metadata = it.group.metadata
    wanted = replace(
        metadata,
        metadata_hash=topics_hash,
        validated_topology_epoch=configured.epoch if configured.ready else -1,
        last_assignment_configs=it.settings(),
    )
    if changed or wanted != metadata:
        it.write_metadata(replace(wanted, epoch=metadata.epoch + 1))
    return configured


def is_delayed(it: StreamsStep) -> str | None:
    """Why no target may be made now; None: it may."""
    group, config = it.group, it.own
    if group.delayed_until_ms is not None:
        if it.step.now.monotonic_ms < group.delayed_until_ms:
            delay_ms = config.streams_initial_rebalance_delay_ms
            return f"the group is new, and waits {delay_ms} ms for more members"
        group.delayed_until_ms = None
    since_ms = it.step.now.wall_ms - group.assigned_at.assignment_timestamp
    if 0 <= since_ms < config.streams_assignment_interval_ms:
        return f"tasks are assigned every {config.streams_assignment_interval_ms} ms at most"
    return None


def assign_group(it: StreamsStep, configured: ConfiguredTopology) -> None:
    """Make the target assignment of the group's epoch: no tasks as long as topics are missing."""
    group = it.group
    assert group.topology is not None
    stateful = frozenset(part.subtopology_id for part in group.topology.subtopologies if part.state_changelog_topics)
    members = {
        member_id: Runner(member.process_id, group.target(member_id))
        for member_id, member in group.members.items()
        if member.metadata is not None and member.metadata.topology_epoch == configured.epoch
    }
    found = assign_tasks(members, TaskKinds(configured.sizes, stateful), it.own.streams_num_standby_replicas)
    for member_id in group.members:
        tasks = found.get(member_id, TaskSet())
        if group.targets.get(member_id) != tasks:
            it.write_target(member_id, tasks)
    it.write(
        StreamsGroupTargetAssignmentMetadataKey(group=group.group_id),
        StreamsGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.epoch, assignment_timestamp=it.step.now.wall_ms
        ),
    )
    it.step.counts.rebalances += 1


def remove_streams_members(it: StreamsStep, member_ids: Iterable[str]) -> None:
    """Members are gone: their tasks are free, and the next heartbeat of any other assigns them."""
    for member_id in member_ids:
        member = it.group.members[member_id]
        if member.metadata is not None and member.metadata.user_endpoint is not None:
            it.group.endpoint_epoch += 1
        it.stop_timers(member_id)
        for key in streams_member_keys(it.group.group_id, member_id):
            it.write(key, None)
    it.write_metadata(replace(it.group.metadata, epoch=it.group.epoch + 1))


def streams_time_over(it: StreamsStep, kind: int, member_id: str) -> None:
    """A member's time is over: no heartbeat came for its session timeout, or it did not give up tasks within its
    rebalance timeout."""
    member = it.group.members.get(member_id)
    if member is None:
        return
    if kind == TimerKind.SESSION:
        it.step.counts.sessions_expired += 1
    if kind == TimerKind.SESSION or member.current.state == TaskState.UNREVOKED_TASKS:
        remove_streams_members(it, [member_id])
