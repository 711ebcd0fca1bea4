"""A group's committed offsets against its queues: what describe and reset-offsets both need."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from mainstem.cli import kafka_node
from mainstem.cli.position import bounds


class GroupOffset(NamedTuple):
    topic: str
    partition: int
    committed: int | None
    """None: the group has none here; where it begins is up to its members."""
    log_start: int
    end: int

    @property
    def lag(self) -> int | None:
        """Records yet to be read: what retention took is not among them. None where nothing is committed."""
        return None if self.committed is None else max(self.end - max(self.committed, self.log_start), 0)


def committed(
    admin: AdminClient, group: str, assigned: Collection[tuple[str, int]] = ()
) -> list[GroupOffset]:
    """Every queue the group has an offset for, and those `assigned` to its members, in order.
    Raises RequestRefused."""
    request = ConsumerGroupTopicPartitions(group)
    futures = admin.list_consumer_group_offsets([request], request_timeout=kafka_node.REQUEST_SECONDS)
    found = kafka_node.outcome(futures[group], f"no offsets of group {group}")
    offsets = {
        (queue.topic, queue.partition): queue.offset for queue in found.topic_partitions if queue.offset >= 0
    }
    queues = sorted({*offsets, *assigned})
    ranges = bounds(admin, queues)
    return [GroupOffset(*queue, offsets.get(queue), *ranges[queue]) for queue in queues]
