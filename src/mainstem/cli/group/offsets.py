"""A consumer group's committed offsets against its queues: what describe and reset-offsets both need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters.position import bounds, partitions_of

LostQueues = Callable[[Collection[str]], Iterable[tuple[str, int]]]


class ConsumerGroupOffset(NamedTuple):
    topic: str
    partition: int
    committed: int | None
    """None: the group has none here; where it begins is up to its members."""
    log_start: int
    end: int
    """The offset after the last one."""

    @property
    def lag(self) -> int:
        """Offsets yet to be read: what retention took is not among them; where nothing is committed, all there are."""
        return max(self.end - max(self.committed or 0, self.log_start), 0)


def committed(admin: AdminClient, group: str) -> list[ConsumerGroupOffset]:
    """Every queue that the group has an offset for, in order. Raises RequestRefused."""
    offsets = _committed(admin, group)
    ranges = bounds(admin, sorted(offsets))
    return [ConsumerGroupOffset(*queue, offsets[queue], *ranges[queue]) for queue in ranges]


class GroupOffsets(NamedTuple):
    """A group's offsets in all partitions of the topics that it reads."""

    led: list[ConsumerGroupOffset]
    without_leader: list[tuple[str, int, int | None]]
    """Topic, partition, and what is committed: nobody knows where these end."""


def of_all_partitions(
    admin: AdminClient, group: str, assigned: Collection[tuple[str, int]], leaderless: LostQueues
) -> GroupOffsets:
    """Every queue of the topics that the group has an offset in or a member reads, in order: one that nobody has
    committed for has a lag, too. Topics that were deleted are left out. `leaderless` tells the queues of some topics
    that have no leader. Raises RequestRefused."""
    offsets = _committed(admin, group)
    queues = set()
    topics = {topic for topic, _ in (*offsets, *assigned)}
    lost = set(leaderless(topics)) if topics else set()
    for topic in topics:
        try:
            queues |= {(topic, partition) for partition in partitions_of(admin, topic)}
        except RequestRefused:
            continue
    ranges = bounds(admin, sorted(queues - lost))
    led = [ConsumerGroupOffset(*queue, offsets.get(queue), *ranges[queue]) for queue in ranges]
    return GroupOffsets(led, [(*queue, offsets.get(queue)) for queue in sorted(queues & lost)])


def _committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    request = ConsumerGroupTopicPartitions(group)
    found = kafka_node.outcome_of_coordinator(
        lambda: admin.list_consumer_group_offsets([request], request_timeout=kafka_node.REQUEST_SECONDS)[group],
        f"no offsets of consumer group {group}",
    )
    return {(queue.topic, queue.partition): queue.offset for queue in found.topic_partitions if queue.offset >= 0}
