"""A group that reads by committed offsets, of whatever protocol, as `mainstem group describe` shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from mainstem.cli.group.coordinators import state_of
from mainstem.protocol.messages.streams_groups import DescribedStreamsGroup, StreamsTaskIds

Queue = tuple[str, int]


class TasksOfMember(NamedTuple):
    """Each as `subtopology_partition`."""

    active: list[str]
    standby: list[str]
    warmup: list[str]


class ShownMember(NamedTuple):
    member_id: str
    client_id: str
    host: str
    tasks: TasksOfMember | None = None
    """None: it is of no streams group."""


class ShownGroup(NamedTuple):
    kind: str
    state: str
    members: list[ShownMember]
    owners: dict[Queue, ShownMember]
    """The reader of each partition that somebody reads."""
    epoch: int | None = None
    topology_epoch: int | None = None
    """Both of streams groups."""


def of_streams(group: DescribedStreamsGroup) -> ShownGroup:
    sources: dict[str, list[str]] = {}
    topology = group.topology
    for part in (topology.subtopologies or ()) if topology is not None else ():
        sources[part.subtopology_id] = [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
    members, owners = [], {}
    for one in group.members:
        tasks = TasksOfMember(
            _names(one.assignment.active_tasks),
            _names(one.assignment.standby_tasks),
            _names(one.assignment.warmup_tasks),
        )
        member = ShownMember(one.member_id, one.client_id, one.client_host, tasks)
        members.append(member)
        for tasks_of_part in one.assignment.active_tasks:
            for topic in sources.get(tasks_of_part.subtopology_id, ()):
                owners.update({(topic, partition): member for partition in tasks_of_part.partitions})
    epoch = None if topology is None else topology.epoch
    return ShownGroup("streams", state_of(group.group_state), members, owners, group.group_epoch, epoch)


def of_consumers(description: Any) -> ShownGroup:
    """`description`: that of librdkafka's admin client."""
    members, owners = [], {}
    for one in description.members:
        member = ShownMember(one.member_id, one.client_id, one.host)
        members.append(member)
        for queue in one.assignment.topic_partitions if one.assignment else []:
            owners[queue.topic, queue.partition] = member
    kind = description.type.name.lower() if hasattr(description, "type") else "classic"  # older clients see no others
    return ShownGroup(kind, description.state.name.lower(), members, owners)


def _names(tasks: Iterable[StreamsTaskIds]) -> list[str]:
    return [f"{one.subtopology_id}_{partition}" for one in tasks for partition in sorted(one.partitions)]
