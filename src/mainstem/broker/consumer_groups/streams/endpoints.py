"""The addresses at which a streams application answers queries, and the partitions whose state each of them has."""

from __future__ import annotations

from mainstem.broker.consumer_groups.streams.streams_step import StreamsStep
from mainstem.broker.consumer_groups.streams.tasks import Tasks
from mainstem.protocol.messages.streams_groups import StreamsEndpointPartitions, StreamsTopicPartitions

ROWS_MAX = 50_000
"""Partitions told in one answer: a megabyte or two. Members of larger applications hear of some endpoints alone."""


def endpoint_rows(it: StreamsStep) -> tuple[StreamsEndpointPartitions, ...]:
    """Of all members that say where they answer."""
    topology = it.group.topology
    if topology is None or it.group.configured is None or not it.group.configured.ready:
        return ()
    sources = {
        part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
        for part in topology.subtopologies
    }
    rows: list[StreamsEndpointPartitions] = []
    told = 0
    for member in it.group.members.values():
        if member.metadata is None or member.metadata.user_endpoint is None:
            continue
        active = _partitions(it, sources, member.current.assigned.active)
        standby = _partitions(it, sources, member.current.assigned.standby)
        told += sum(len(row.partitions) for row in (*active, *standby))
        if told > ROWS_MAX:
            break
        rows.append(
            StreamsEndpointPartitions(
                user_endpoint=member.metadata.user_endpoint, active_partitions=active, standby_partitions=standby
            )
        )
    return tuple(rows)


def _partitions(it: StreamsStep, sources: dict[str, list[str]], tasks: Tasks) -> tuple[StreamsTopicPartitions, ...]:
    """The partitions of topics that tasks read, of those that exist."""
    rows = []
    for subtopology, indexes in sorted(tasks.items()):
        for topic in sources.get(subtopology, ()):
            size = it.partitions_of(topic) or 0
            if there := tuple(sorted(index for index in indexes if index < size)):
                rows.append(StreamsTopicPartitions(topic=topic, partitions=there))
    return tuple(rows)
