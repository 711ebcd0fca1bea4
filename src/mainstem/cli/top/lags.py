"""The lags of consumer groups, asked over Kafka: what each has not committed yet of the topics it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, OffsetSpec

from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters.position import listed

GROUPS_MAX = 50
"""Asked for in one look: each is a request of its own."""
QUEUES_MAX = 20_000
"""Whose ends are asked for in one look."""


class ConsumerGroupLag(NamedTuple):
    group: str
    state: str
    lag: int | None


def lags_of(bootstrap: str, wanted: Sequence[str]) -> tuple[list[ConsumerGroupLag], int]:
    """The lags of the groups that are wanted, or of the first that there are, and how many were left out. Raises
    NodeUnreachable or RequestRefused."""
    admin = kafka_node.admin(bootstrap)
    future = admin.list_consumer_groups(request_timeout=kafka_node.REQUEST_SECONDS)
    found = kafka_node.outcome(future, "the consumer groups were not listed")
    states = {group.group_id: group.state.name.lower() for group in found.valid}
    names = [group for group in sorted(states) if not wanted or group in wanted]
    asked = {group: _committed(admin, group) for group in names[:GROUPS_MAX]}
    partitions = _partitions(admin) if any(asked.values()) else {}
    queues = {
        (topic, partition)
        for committed in asked.values()
        for topic in {topic for topic, _ in committed or ()}
        for partition in range(partitions.get(topic, 0))
    }
    if len(queues) > QUEUES_MAX:
        return [ConsumerGroupLag(group, states[group], None) for group in asked], len(names) - len(asked)
    starts, ends = (listed(admin, queues, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
    lags = []
    for group, committed in asked.items():
        lag = None
        if committed is not None:
            topics = {topic for topic, _ in committed}
            lag = sum(
                max(ends[queue] - max(committed.get(queue, 0), starts[queue]), 0)
                for queue in queues
                if queue[0] in topics
            )
        lags.append(ConsumerGroupLag(group, states[group], lag))
    return lags, len(names) - len(asked)


def _committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int] | None:
    """None where the group could not be asked for its offsets."""
    request = ConsumerGroupTopicPartitions(group)
    futures = admin.list_consumer_group_offsets([request], request_timeout=kafka_node.REQUEST_SECONDS)
    try:
        found = kafka_node.outcome(futures[group], f"no offsets of consumer group {group}")
    except RequestRefused:
        return None
    return {(queue.topic, queue.partition): queue.offset for queue in found.topic_partitions if queue.offset >= 0}


def _partitions(admin: AdminClient) -> dict[str, int]:
    topics = admin.list_topics(timeout=kafka_node.REQUEST_SECONDS).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}
