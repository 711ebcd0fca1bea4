"""Partitions of several topics, as groups hold them, and as records and answers have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.kernel import untrack
from mainstem.protocol.messages.consumer_group_heartbeat import (
    DescribedAssignment,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from mainstem.protocol.messages.consumer_group_records import RecordedTopicPartitions

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic id; no set is empty."""

Sizes = Mapping[UUID, int]
"""Topic id → how many partitions it has."""

Racks = Mapping[UUID, Sequence[frozenset[str]]]
"""Topic id → per partition the racks that have a replica of it. Topics whose racks are not known are missing."""

NO_RACKS: Racks = {}


def partitions_of(rows: Iterable[RecordedTopicPartitions | HeartbeatTopicPartitions]) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for row in rows:
        if row.partitions:
            found[row.topic_id] = found.get(row.topic_id, frozenset()) | frozenset(row.partitions)
    for indexes in found.values():
        untrack(indexes)
    untrack(found)  # of ids and numbers; each member of a group has some
    return found


def rows_of(partitions: Partitions) -> tuple[RecordedTopicPartitions, ...]:
    """As records have them."""
    return tuple(
        RecordedTopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions[topic_id])))
        for topic_id in sorted(partitions)
    )


def told(partitions: Partitions) -> HeartbeatAssignment:
    """As members hear of them."""
    return HeartbeatAssignment(
        topic_partitions=tuple(
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions[topic_id])))
            for topic_id in sorted(partitions)
        )
    )


def described_assignment(partitions: Partitions, topics: CurrentTopics) -> DescribedAssignment:
    """As administrators see them: those of topics that exist."""
    rows = []
    for topic_id, indexes in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            rows.append(
                DescribedTopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=tuple(sorted(indexes)))
            )
    return DescribedAssignment(topic_partitions=tuple(rows))
