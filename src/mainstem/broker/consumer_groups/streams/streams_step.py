"""The steps that change a streams group, each by its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mainstem.broker.consumer_groups.epochs.epoch_member import ReconciliationState
from mainstem.broker.consumer_groups.epochs.epoch_step import TOPICS_CHECK_MS, EpochStep
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.consumer_groups.streams.task_assignor import Runner, TaskKinds, assign_tasks
from mainstem.broker.consumer_groups.streams.tasks import NO_TASKS
from mainstem.broker.consumer_groups.streams.topology import ConfiguredTopology, configure
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.protocol.messages.streams_group_records import (
    StreamsGroupMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from mainstem.protocol.messages.streams_groups import StreamsKeyValue

STANDBYS_KEY = "num.standby.replicas"
"""Kafka's name for how many standbys a task has, in the record of the group."""


@dataclass(frozen=True, slots=True)
class StreamsStep(EpochStep[StreamsGroup]):
    """One event on its way through one streams group."""

    def write_topology(self, topology: StreamsGroupTopologyValue) -> None:
        self.write(StreamsGroupTopologyKey(group=self.group.group_id), topology)

    def write_epoch(self, value: StreamsGroupMetadataValue) -> None:
        """Begin the next epoch; the value's own does not count."""
        key = self.group.records.epoch_key(group=self.group.group_id)
        self.write(key, replace(value, epoch=self.group.epoch + 1))

    def restart_session(self, member_id: str) -> None:
        deadline_ms = self.step.now.monotonic_ms + self.own.streams_session_timeout_ms
        self.step.timers.set(self.timer(TimerKind.SESSION, member_id), deadline_ms)

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
        found = it.topics_hash()
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
        it.write_epoch(wanted)
    return configured


def is_delayed(it: StreamsStep) -> str | None:
    """Why no target may be made now; None: it may."""
    group, config = it.group, it.own
    if group.delayed_until_ms is not None:
        if it.step.now.monotonic_ms < group.delayed_until_ms:
            delay_ms = config.streams_initial_rebalance_delay_ms
            return f"the group is new, and waits {delay_ms} ms for more members"
        group.delayed_until_ms = None
    since_ms = it.step.now.wall_ms - group.assigned_at_ms
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
    it.write_targets(
        {member_id: found.get(member_id, NO_TASKS) for member_id in group.members},
        assignment_timestamp=it.step.now.wall_ms,
    )


def remove_streams_members(it: StreamsStep, member_ids: Iterable[str]) -> None:
    """Members are gone: their tasks are free, and the next heartbeat of any other assigns them."""
    for member_id in member_ids:
        member = it.group.members[member_id]
        if member.metadata is not None and member.metadata.user_endpoint is not None:
            it.group.endpoint_epoch += 1
        it.stop_revocation(member_id)
        it.step.timers.cancel(it.timer(TimerKind.SESSION, member_id))
        it.forget_member(member_id)
    if it.group.empty:
        it.group.shutdown_by = None
    it.write_epoch(it.group.metadata)


def streams_time_over(it: StreamsStep, kind: int, member_id: str) -> None:
    """A member's time is over: no heartbeat came for its session timeout, or it did not give up tasks within its
    rebalance timeout."""
    member = it.group.members.get(member_id)
    if member is None:
        return
    if kind == TimerKind.SESSION:
        it.step.counts.sessions_expired += 1
    if kind == TimerKind.SESSION or member.current.state == ReconciliationState.UNREVOKED_PARTITIONS:
        remove_streams_members(it, [member_id])
