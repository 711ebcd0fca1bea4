"""AlterPartitionReassignments: refused, with the reason. Partitions of many topics share the replicas of their write
group, which move together, by commands of the cluster. A list that is placed already is accepted, and a cancellation is
told whether anything is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import MoveUnderWay, NodeRole
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

PARTITIONS_PER_TURN = 1_000
"""Partitions judged within one turn of the event loop: about a millisecond."""


class Judgement(NamedTuple):
    error: ErrorCode
    message: str | None = None


DONE = Judgement(ErrorCode.NONE)
UNKNOWN = Judgement(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
NOT_MOVING = Judgement(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)


async def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, call: RequestContext
) -> AlterPartitionReassignmentsResponse:
    try:
        judge = _Judge(broker, await _moves(broker, request))
    except MainstemError as error:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=error_of_refusal(error),
            error_message=str(error),
        )
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    responses = []
    for topic in request.topics:
        await pace.step()
        answers = []
        for asked in topic.partitions:
            await pace.step()
            found = judge.judged(topic.name, asked)
            answers.append(
                ReassignablePartitionResponse(
                    partition_index=asked.partition_index, error_code=found.error, error_message=found.message
                )
            )
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=tuple(answers)))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        responses=tuple(responses),
    )


async def _moves(broker: Broker, request: AlterPartitionReassignmentsRequest) -> Mapping[int, MoveUnderWay]:
    """A move of each write group that has one, if the request cancels anything."""
    cancels = any(partition.replicas is None for topic in request.topics for partition in topic.partitions)
    if broker.standing is None or not cancels:
        return {}
    return {move.group: move for move in await broker.standing.moves()}


class _Judge:
    """Judges the partitions of one request. The reason is told once for each write group and error: there can be very
    many partitions."""

    def __init__(self, broker: Broker, moves: Mapping[int, MoveUnderWay]) -> None:
        self._broker = broker
        self._moves = moves
        self._storing = {node.node_id for node in broker.metadata.nodes() if NodeRole.STORAGE in node.roles}
        self._told: set[tuple[int, ErrorCode]] = set()

    def judged(self, name: str, asked: ReassignablePartition) -> Judgement:
        topic = self._broker.metadata.topic(name)
        if topic is None or not 0 <= asked.partition_index < topic.partitions:
            return UNKNOWN
        group = self._broker.leadership.group_of(topic.queue_id(asked.partition_index))
        found = self._cancelled(group) if asked.replicas is None else self._moved(group, asked.replicas)
        if found.message is None or (group, found.error) not in self._told:
            self._told.add((group, found.error))
            return found
        return Judgement(found.error)

    def _cancelled(self, group: int) -> Judgement:
        move = self._moves.get(group)
        if move is None:
            return NOT_MOVING
        return Judgement(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"a replica of write group {group} {_way(move)}, with all of its partitions. Only what began that can end "
            "it: see mainstem cluster status, mainstem cluster drain NODE --cancel",
        )

    def _moved(self, group: int, replicas: tuple[int, ...]) -> Judgement:
        placed = self._broker.standing.placed(group) if self._broker.standing is not None else ()
        if replicas and replicas == placed:
            return DONE
        unknown = [node_id for node_id in replicas if node_id not in self._storing]
        if not replicas or len(set(replicas)) < len(replicas):
            why = "replicas are on different nodes, and there is at least one"
        elif unknown:
            why = f"node {unknown[0]} is not registered in this cluster, or does not store"
        else:
            why = (
                f"no partition moves by itself: this one shares the replicas of write group {group} with partitions of "
                f"other topics, on nodes {', '.join(map(str, placed))}. Write groups are moved by mainstem cluster "
                "rebalance, mainstem cluster drain and mainstem cluster replace"
            )
        return Judgement(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)


def _way(move: MoveUnderWay) -> str:
    away = f"from node {move.old}" if move.old else ""
    there = f"to node {move.new}" if move.new else ""
    return " ".join(part for part in ("moves", away, there) if part)
