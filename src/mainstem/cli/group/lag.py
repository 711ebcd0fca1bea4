"""How far a consumer group is behind in time, and why, as Kafka's protocol tells it.

A partition's lag in seconds is the age of the first message that the group has not committed, by its timestamp, whoever
gave it that. Brokers tell offsets and no times, so the message is read; a client that may not read the topic is told
the lag in messages alone. Two causes are beyond Kafka's protocol, whether a quota holds a member back and whether the
group comes to agreements again and again: these a node's HTTP port tells (`with_causes_of`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from mainstem.address import Address
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.group.offsets import ConsumerGroupOffset
from mainstem.group_lag import GroupLag, cause
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.records import stored_batches
from mainstem.protocol.records.lookup import look_into

READ_MAX = 1_000
"""Partitions whose first message is read, those with the greatest lag: a millisecond or two each."""
FETCH_BYTES = 1
"""A fetch brings at least one batch, however large it is."""
METADATA_VERSION, FETCH_VERSION = 9, 12
_ANY_TIME = -(1 << 62)

REBALANCING_STATES = ("preparing_rebalancing", "completing_rebalancing", "assigning", "reconciling")
"""States of groups in which members wait for partitions, by librdkafka's names."""

Queue = tuple[str, int]


class Behind(NamedTuple):
    seconds: float | None
    """None: there is no lag, or the message could not be read."""
    why: str | None
    """None: the group keeps up."""


PartitionLeaders = Mapping[Queue, Address | None]
"""None: the partition has no leader."""


class KnownLeaders(NamedTuple):
    cluster_id: str | None
    of: PartitionLeaders


def leaders_of(connections: KafkaConnections, bootstrap: str, topics: Collection[str]) -> KnownLeaders:
    """The leaders of all partitions of topics that there are. Raises NodeUnreachable, NotAdmitted."""
    named = tuple(MetadataRequestTopic(name=topic) for topic in sorted(topics))
    request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
    answer = connections.call_any(bootstrap, request, METADATA_VERSION)
    nodes = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
    leaders = {
        (topic.name, partition.partition_index): nodes.get(partition.leader_id)
        for topic in answer.topics
        for partition in topic.partitions
    }
    return KnownLeaders(answer.cluster_id, leaders)


def behind(
    connections: KafkaConnections,
    leaders: PartitionLeaders,
    offsets: Iterable[ConsumerGroupOffset],
    read_by_members: Collection[Queue],
    state: str,
) -> dict[Queue, Behind]:
    """For each partition how far the group is behind. `read_by_members`: those that members have; `state`: the
    group's."""
    found: dict[Queue, Behind] = {}
    by_lag = sorted(offsets, key=lambda each: -each.lag)
    for number, each in enumerate(by_lag):
        queue = each.topic, each.partition
        leader = leaders.get(queue)
        seconds = None
        if each.lag and leader is not None and number < READ_MAX:
            seconds = _age(connections, leader, each)
        why = cause(
            leaderless=leader is None,
            lag=each.lag,
            seconds=seconds,
            has_member=queue in read_by_members,
            rebalancing=state in REBALANCING_STATES,
        )
        found[queue] = Behind(seconds, why)
    return found


def _age(connections: KafkaConnections, leader: Address, each: ConsumerGroupOffset) -> float | None:
    """The age of the first message that is not committed, in seconds; None: it cannot be read."""
    first = max(each.committed or 0, each.log_start)
    wanted = FetchPartition(partition=each.partition, fetch_offset=first, partition_max_bytes=FETCH_BYTES)
    topics = (FetchTopic(topic=each.topic, partitions=(wanted,)),)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, topics=topics)
    try:
        answer = connections.call(leader, request, FETCH_VERSION)
        (partition,) = answer.responses[0].partitions if answer.responses else (None,)
        if partition is None or partition.error_code:
            return None
        for batch in stored_batches(_joined(partition.records), partial_last=True):
            message = look_into(batch, _ANY_TIME, first).found
            if message is not None:
                return max(0.0, time.time() - message.timestamp / 1000)
    except (OSError, ProtocolError):
        return None
    return None


def with_causes_of(
    node: HttpNode, group: str, cluster_id: str | None, found: dict[Queue, Behind]
) -> dict[Queue, Behind]:
    """The same with what a node's HTTP port says of the group, which knows all causes; unchanged, after one line on
    stderr, where it does not answer, or is another cluster's."""
    left_out = "the causes throttled and rebalance loop are left out"
    told = node.get_or_tell(f"/v1/groups/{group}", GroupLag, left_out)
    if told is None:
        return found
    if cluster_id is None or told.cluster_id != cluster_id:
        node.tell("is of another cluster", left_out)
        return found
    rows = {(row.topic, row.partition): row for row in told.partitions}
    return {
        queue: behind
        if (row := rows.get(queue)) is None
        else Behind(row.seconds if behind.seconds is None else behind.seconds, row.why)
        for queue, behind in found.items()
    }


def _joined(records: Any) -> bytes:
    if records is None:
        return b""
    return b"".join(map(bytes, records)) if isinstance(records, tuple) else bytes(records)
