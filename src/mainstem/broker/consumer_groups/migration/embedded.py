"""Translates between the bytes that members of the classic protocol send each other and the coordinator's partitions.

Bytes name topics, the coordinator's partitions have their ids: topics that are not there now are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    read_subscription,
    write_assignment,
)

VERSION_MAX = 3
"""The last version of these messages that has a name here; a client never gets a later one than it sent."""


def subscription_in(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """The words of a member in the metadata of its protocol; None: these are no such bytes."""
    try:
        return read_subscription(metadata)
    except ProtocolError:
        return None


def assigned_in(assignment: bytes, topics: CurrentTopics) -> Partitions | None:
    """The partitions that a leader gave to a member; None: these are no such bytes."""
    if not assignment:
        return {}
    try:
        return partitions_in(read_assignment(assignment).assigned_partitions, topics)
    except ProtocolError:
        return None


def partitions_in(rows: Iterable[TopicPartition], topics: CurrentTopics) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for row in rows:
        topic = topics.named(row.topic)
        if topic is not None and row.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(row.partitions)
    return found


def assignment_bytes(partitions: Partitions, topics: CurrentTopics, metadata: bytes) -> bytes:
    """Partitions for a member that joined with this metadata, in the version that it speaks."""
    named = []
    for topic_id, indexes in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            named.append(TopicPartition(topic=topic.name, partitions=tuple(sorted(indexes))))
    rows = tuple(sorted(named, key=lambda row: row.topic))
    version = min(max(int.from_bytes(metadata[:2], "big", signed=True), 0), VERSION_MAX)
    return write_assignment(ConsumerProtocolAssignment(assigned_partitions=rows), version)
