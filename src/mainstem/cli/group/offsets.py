"""A group's committed offsets against its queues: what describe and reset-offsets both need."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from mainstem.cli import kafka_node
from mainstem.cli.position import bounds


class GroupOffset(NamedTuple):
    topic: str
    partition: int
    committed: int
    log_start: int
    end: int

    @property
    def lag(self) -> int:
        """Records yet to be read: what retention took is not among them."""
        return self.end - max(self.committed, self.log_start)


def committed(admin: AdminClient, group: str) -> list[GroupOffset]:
    """Every queue the group has an offset for, in order. Raises RequestRefused."""
    request = ConsumerGroupTopicPartitions(group)
    futures = admin.list_consumer_group_offsets([request], request_timeout=kafka_node.REQUEST_SECONDS)
    found = kafka_node.outcome(futures[group], f"no offsets of group {group}")
    offsets = {
        (queue.topic, queue.partition): queue.offset for queue in found.topic_partitions if queue.offset >= 0
    }
    ranges = bounds(admin, offsets)
    return [
        GroupOffset(topic, partition, offset, *ranges[topic, partition])
        for (topic, partition), offset in sorted(offsets.items())
    ]
