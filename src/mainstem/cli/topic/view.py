"""Topics as the commands show them: what Kafka's protocol says, and beside it what only a Mainstem node knows.

Names, partitions, leaders, replicas, offsets and configs come over Kafka and are always there. Bytes per disk, write
groups and files come over HTTP; where it does not answer, or answers for another cluster, those fields are None. Topic
ids tell: they are unique in the world, so that figures of a node elsewhere are never put beside our topics.

These structs are what `--json` prints: fields are added and never renamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import Node, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from mainstem.cli.clients import kafka_node
from mainstem.console.views.of_topics import FileView, PartitionView, SegmentView, StayView, TopicSummary, TopicView


class TopicLine(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in the list."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    """How many nodes keep each partition: those of the partition that the fewest keep."""
    under_replicated_partitions: int
    """Partitions of which some replica is not in sync."""
    internal: bool
    unsplit_bytes: int | None = None
    stored_bytes: int | None = None


class PartitionTree(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a described topic; see `console.views.of_topics.PartitionView` for the fields' meanings."""

    partition: int
    leader: int
    """-1: it has none now."""
    leader_epoch: int | None
    """None, as with the offsets: nobody leads it, or whoever does has not answered."""
    replicas: Sequence[int]
    """The nodes that keep it, also those that are away; the preferred leader is the first."""
    in_sync: Sequence[int]
    log_start: int | None
    high_watermark: int | None
    write_group: int | None = None
    split_end: int | None = None
    end: int | None = None
    unsplit_bytes: int | None = None
    stored_bytes: int | None = None
    files: Sequence[FileView] | None = None
    segments: Sequence[SegmentView] | None = None
    stays: Sequence[StayView] = []


class TopicTree(msgspec.Struct, frozen=True, kw_only=True):
    """A described topic."""

    name: str
    topic_id: str
    internal: bool
    configs: dict[str, str]
    """Explicit overrides only."""
    partitions: Sequence[PartitionTree]
    replication_factor: int = 0
    """How many nodes keep each partition: those of the partition that the fewest keep."""


def lines(admin: AdminClient) -> list[TopicLine]:
    """Every topic, by name. Raises RequestRefused."""
    names = sorted(kafka_node.topic_names(admin))
    if not names:
        return []
    futures = admin.describe_topics(TopicCollection(names), request_timeout=kafka_node.REQUEST_SECONDS)
    found = []
    for name in names:
        topic = kafka_node.outcome(futures[name], f"topic {name}")
        found.append(
            TopicLine(
                name=name,
                topic_id=_uuid(topic.topic_id),
                partitions=len(topic.partitions),
                replication_factor=min((len(_ids(one.replicas)) for one in topic.partitions), default=0),
                under_replicated_partitions=sum(
                    is_under_replicated(_ids(one.replicas), _ids(one.isr)) for one in topic.partitions
                ),
                internal=topic.is_internal,
            )
        )
    return found


def tree(admin: AdminClient, name: str) -> TopicTree:
    """A topic down to its offsets, as far as its partitions have leaders. Raises RequestRefused."""
    futures = admin.describe_topics(TopicCollection([name]), request_timeout=kafka_node.REQUEST_SECONDS)
    topic = kafka_node.outcome(futures[name], f"topic {name}")
    queues = [(name, partition.id) for partition in sorted(topic.partitions, key=lambda one: int(one.id))]
    leaders = {one.id: -1 if one.leader is None else one.leader.id for one in topic.partitions}
    led = [queue for queue in queues if leaders[queue[1]] >= 0]
    starts, ends = _listed(admin, led, OffsetSpec.earliest(), OffsetSpec.latest())
    replicas = {one.id: _ids(one.replicas) for one in topic.partitions}
    in_sync = {one.id: _ids(one.isr) for one in topic.partitions}
    return TopicTree(
        name=name,
        topic_id=_uuid(topic.topic_id),
        internal=topic.is_internal,
        configs=_overrides(admin, name),
        partitions=[
            PartitionTree(
                partition=queue[1],
                leader=leaders[queue[1]],
                leader_epoch=ends[queue].leader_epoch if queue in ends else None,
                replicas=replicas[queue[1]],
                in_sync=in_sync[queue[1]],
                log_start=starts[queue].offset if queue in starts else None,
                high_watermark=ends[queue].offset if queue in ends else None,
            )
            for queue in queues
        ],
        replication_factor=min(map(len, replicas.values()), default=0),
    )


def _listed(
    admin: AdminClient, queues: Sequence[tuple[str, int]], *specs: OffsetSpec
) -> list[dict[tuple[str, int], ListOffsetsResultInfo]]:
    """By ListOffsets, asked at once, the offsets of each kind of those queues whose leaders answer. Queues without a
    leader must not be among these: the client would wait for one, and then answer for none. Raises RequestRefused."""
    if not queues:
        return [{} for _ in specs]
    asked = [
        admin.list_offsets(
            {TopicPartition(*queue): spec for queue in queues}, request_timeout=kafka_node.REQUEST_SECONDS
        )
        for spec in specs
    ]
    found: list[dict[tuple[str, int], ListOffsetsResultInfo]] = []
    for futures in asked:
        answers = {
            (queue.topic, queue.partition): kafka_node.outcome_of_leader(
                future, f"no offsets of {queue.topic} [{queue.partition}]"
            )
            for queue, future in futures.items()
        }
        found.append({queue: answer for queue, answer in answers.items() if answer is not None})
    return found


def with_bytes(topics: Sequence[TopicLine], seen: Sequence[TopicSummary]) -> list[TopicLine]:
    """The lines with the bytes of those topics that a node knows under the same id."""
    by_id: Mapping[str, TopicSummary] = {topic.topic_id: topic for topic in seen}
    return [
        topic
        if (known := by_id.get(topic.topic_id)) is None
        else msgspec.structs.replace(topic, unsplit_bytes=known.unsplit_bytes, stored_bytes=known.stored_bytes)
        for topic in topics
    ]


def with_files(topic: TopicTree, seen: TopicView) -> TopicTree:
    """The tree with what a node knows of the same topic. Offsets stay those that Kafka answered."""
    by_partition: Mapping[int, PartitionView] = {view.partition: view for view in seen.partitions}
    return msgspec.structs.replace(
        topic,
        partitions=[
            partition
            if (view := by_partition.get(partition.partition)) is None
            else msgspec.structs.replace(
                partition,
                write_group=view.write_group,
                stays=view.stays,
                split_end=view.split_end,
                end=view.end,
                unsplit_bytes=view.unsplit_bytes,
                stored_bytes=view.stored_bytes,
                files=view.files,
                segments=view.segments,
            )
            for partition in topic.partitions
        ],
    )


def only(topic: TopicTree, partitions: Collection[int]) -> TopicTree:
    """The tree with these partitions alone."""
    kept = [one for one in topic.partitions if one.partition in partitions]
    return msgspec.structs.replace(topic, partitions=kept)


def is_under_replicated(replicas: Collection[int], in_sync: Collection[int]) -> bool:
    """Whether some replica of a partition is not in sync."""
    return not set(replicas) <= set(in_sync)


def _ids(nodes: Sequence[Node]) -> tuple[int, ...]:
    return tuple(node.id for node in nodes)


def _overrides(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    futures = admin.describe_configs([resource], request_timeout=kafka_node.REQUEST_SECONDS)
    entries = kafka_node.outcome(futures[resource], f"the configs of {name}")
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {key: str(entry.value) for key, entry in sorted(entries.items()) if entry.source == own}


def _uuid(topic_id: Any) -> str:
    """The client's topic id in the usual notation, as the node's HTTP answers write it."""
    bits = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return str(uuid.UUID(int=(bits[0] % (1 << 64)) << 64 | bits[1] % (1 << 64)))
