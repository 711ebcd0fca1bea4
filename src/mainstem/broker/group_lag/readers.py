"""How a group stands with its topics, by what its coordinator knows: who reads which partition, and what is committed.

Read beside the machine's events, in turns: a group may have ten thousand members. A member that changes
meanwhile shows as it was before or after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup, ConsumerGroupState
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup, ModernGroupState
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup, StreamsGroupState
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.messages.consumer_protocol import read_assignment

MEMBERS_AT_ONCE = 100
"""Looked at in one turn of the event loop: about a millisecond."""

Queue = tuple[str, int]

_REBALANCING = (
    ConsumerGroupState.PREPARING_REBALANCE,
    ConsumerGroupState.COMPLETING_REBALANCE,
    ModernGroupState.ASSIGNING,
    ModernGroupState.RECONCILING,
    StreamsGroupState.ASSIGNING,
    StreamsGroupState.RECONCILING,
)

_Group = ConsumerGroup | ModernGroup | StreamsGroup


class Reader(NamedTuple):
    """A member that reads a partition."""

    member_id: str
    client_id: str
    host: str


class ReadGroup(NamedTuple):
    kind: str
    state: str
    rebalancing: bool
    members: int
    readers: dict[Queue, Reader]
    committed: dict[Queue, int]


async def read_group(state: LoggedState, topics: CurrentTopics, group_id: str) -> ReadGroup | None:
    """None: there is no such group that commits offsets."""
    group = state.any_group(group_id)
    if group is None:
        return None
    readers: dict[Queue, Reader] = {}
    for number, (reader, queues) in enumerate(_read(group, topics), 1):
        readers.update(dict.fromkeys(queues, reader))
        if number % MEMBERS_AT_ONCE == 0:
            await asyncio.sleep(0)
    committed = {
        (topic, partition): offset
        for topic in state.offsets.topics(group_id)
        for partition, offset in state.offsets.numbers(group_id, topic)
    }
    return ReadGroup(
        kind=_kind(group),
        state=group.state.value,
        rebalancing=group.state in _REBALANCING,
        members=len(group.members),
        readers=readers,
        committed=committed,
    )


def _kind(group: _Group) -> str:
    if isinstance(group, ConsumerGroup):
        return "classic"
    return "consumer" if isinstance(group, ModernGroup) else "streams"


def _read(group: _Group, topics: CurrentTopics) -> Iterator[tuple[Reader, list[Queue]]]:
    """Each member with the partitions that it reads."""
    if isinstance(group, ConsumerGroup):
        for member in list(group.members.values()):
            yield Reader(member.member_id, member.client_id, member.client_host), _assigned(member.assignment)
        return
    if isinstance(group, ModernGroup):
        for modern in list(group.members.values()):
            if modern.metadata is not None:
                yield (
                    Reader(modern.member_id, modern.metadata.client_id, modern.metadata.client_host),
                    [
                        (topic.name, partition)
                        for topic_id, partitions in modern.current.assigned.items()
                        if (topic := topics.by_id(topic_id)) is not None
                        for partition in partitions
                    ],
                )
        return
    sources = _sources(group)
    for streams in list(group.members.values()):
        if streams.metadata is not None:
            yield (
                Reader(streams.member_id, streams.metadata.client_id, streams.metadata.client_host),
                [
                    (topic, partition)
                    for part, partitions in streams.current.assigned.active.items()
                    for topic in sources.get(part, ())
                    for partition in partitions
                ],
            )


def _assigned(assignment: bytes) -> list[Queue]:
    """The partitions that a classic member reads; none where its leader speaks words of its own."""
    if not assignment:
        return []
    try:
        rows = read_assignment(assignment).assigned_partitions
    except ProtocolError:
        return []
    return [(row.topic, partition) for row in rows for partition in row.partitions]


def _sources(group: StreamsGroup) -> dict[str, list[str]]:
    """The topics that each subtopology reads."""
    if group.topology is None:
        return {}
    return {
        part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
        for part in group.topology.subtopologies
    }
