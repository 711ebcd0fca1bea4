"""Another number of copies of a topic: its partitions are reassigned to the nodes of write groups that have as many.

HTTP tells which write groups there are; the rest goes over Kafka, as of any client. Of Kafka's clients for Python only
kafka-python can ask for a reassignment, so the command speaks the protocol itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import RequestRefused
from mainstem.cli.terminal.output import counted
from mainstem.console.views.of_cluster import ClusterView, WriteGroupView
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
)

PARTITIONS_AT_ONCE = 500
"""In one request: a node begins so many moves within a second or two."""

Ask = Callable[[Any, int], Any]
"""A request and its version to the answer of any node. Raises NodeUnreachable, NotAdmitted."""


def change(bootstrap: str, http: str, topic: str, factor: int) -> int:
    """Have a topic come to so many copies. Returns how many of its partitions move for that; raises RequestRefused,
    NodeUnreachable, NotAdmitted."""
    cluster = HttpNode(http).get("/v1/cluster", ClusterView)
    connections = KafkaConnections(settings_of(bootstrap))
    try:
        return reassign(
            cluster, lambda message, version: connections.call_any(bootstrap, message, version), topic, factor
        )
    finally:
        connections.close()


def reassign(cluster: ClusterView, ask: Ask, topic: str, factor: int) -> int:
    """`change`, of a cluster that HTTP tells of."""
    lists = replica_lists(cluster.write_groups, factor)
    asked = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
    told = ask(asked, 9)
    if told.cluster_id != cluster.cluster_id:
        raise RequestRefused(
            f"the replicas of {topic} were not changed: another cluster answers over HTTP; give --bootstrap and --http "
            "of the same one"
        )
    (described,) = told.topics
    if described.error_code:
        raise RequestRefused(f"the replicas of {topic} were not changed: {ErrorCode(described.error_code).message}")
    wanted = [
        ReassignablePartition(partition_index=it.partition_index, replicas=lists[it.partition_index % len(lists)])
        for it in sorted(described.partitions, key=lambda it: it.partition_index)
        if len(it.replica_nodes) != factor
    ]
    refused: list[ReassignablePartitionResponse] = []
    for start in range(0, len(wanted), PARTITIONS_AT_ONCE):
        some = ReassignableTopic(name=topic, partitions=tuple(wanted[start : start + PARTITIONS_AT_ONCE]))
        refused += _refused(ask(AlterPartitionReassignmentsRequest(topics=(some,)), 1))
    if refused:
        why = next((it.error_message for it in refused if it.error_message), ErrorCode(refused[0].error_code).message)
        others = f", and {counted(len(refused) - 1, 'other')} neither" if len(refused) > 1 else ""
        moving = len(wanted) - len(refused)
        rest = f" ({counted(moving, 'partition')} of it move)" if moving else ""
        raise RequestRefused(f"partition {refused[0].partition_index} of {topic} does not move{others}: {why}{rest}")
    return len(wanted)


def replica_lists(groups: Sequence[WriteGroupView], factor: int) -> list[tuple[int, ...]]:
    """The nodes of each write group that has so many replicas, its preferred leader first. Raises RequestRefused."""
    lists = []
    for group in groups:
        nodes = {it.node for it in group.replicas if it.voter}
        if group.replication_factor == factor == len(nodes) and group.preferred_leader in nodes:
            lists.append((group.preferred_leader, *sorted(nodes - {group.preferred_leader})))
    if not lists:
        there_are = ", ".join(map(str, sorted({it.replication_factor for it in groups})))
        raise RequestRefused(
            f"no write group has {counted(factor, 'replica')}, all in place; there are some with {there_are}. mainstem "
            f"cluster write-groups TOTAL --replication-factor {factor} adds some"
        )
    return lists


def _refused(answer: Any) -> list[ReassignablePartitionResponse]:
    """The partitions that do not move. Raises RequestRefused."""
    if answer.error_code:
        why = answer.error_message or ErrorCode(answer.error_code).message
        raise RequestRefused(f"no partitions were reassigned: {why}")
    return [it for topic in answer.responses for it in topic.partitions if it.error_code]
