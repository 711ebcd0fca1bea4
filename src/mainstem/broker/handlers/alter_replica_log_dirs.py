"""AlterReplicaLogDirs: there is nothing to choose. Each replica lies in both directories of its node, its newest
messages in the journal's and the rest in the queue store, so whoever names one of these has what they asked for. No
replica goes anywhere else."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from mainstem.security.acls.acl import Operation

PARTITIONS_PER_TURN = 1_000
"""Partitions judged within one turn of the event loop: about a millisecond."""


async def handle(
    broker: Broker, request: AlterReplicaLogDirsRequest, call: RequestContext
) -> AlterReplicaLogDirsResponse:
    allowed = broker.verdicts(call.session).allows_on_cluster(Operation.ALTER)
    own = {place.location for place in (broker.facts.write_dir, broker.facts.store_dir) if place is not None}
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    results = []
    for directory in request.dirs:
        for asked in directory.topics:
            judge = _judge_of(broker, asked.name, allowed=allowed, known=directory.path in own)
            answers = []
            for partition in asked.partitions:
                await pace.step()
                answers.append(
                    AlterReplicaLogDirPartitionResult(partition_index=partition, error_code=judge(partition))
                )
            results.append(AlterReplicaLogDirTopicResult(topic_name=asked.name, partitions=tuple(answers)))
    return AlterReplicaLogDirsResponse(results=tuple(results))


def _judge_of(broker: Broker, name: str, *, allowed: bool, known: bool) -> Callable[[int], ErrorCode]:
    if not allowed:
        return lambda partition: ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not known:
        return lambda partition: ErrorCode.LOG_DIR_NOT_FOUND
    topic = broker.metadata.topic(name)
    if topic is None:
        return lambda partition: ErrorCode.REPLICA_NOT_AVAILABLE
    return lambda partition: _of_partition(broker, topic, partition)


def _of_partition(broker: Broker, topic: Topic, partition: int) -> ErrorCode:
    if not 0 <= partition < topic.partitions:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    group = broker.leadership.group_of(topic.queue_id(partition))
    return (
        ErrorCode.NONE
        if broker.node_id in broker.leadership.replicas(group).replicas
        else (ErrorCode.REPLICA_NOT_AVAILABLE)
    )
