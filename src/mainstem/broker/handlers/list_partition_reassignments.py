"""ListPartitionReassignments: the partitions whose replicas are on their way from node to node, whatever began that.

Partitions share the replicas of their write group, so all queues of a write group move together; there can be very
many. A partition is encoded once for each write group, and its number is set before the rest of it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.partitions import ExistingPartitions, existing_partitions, in_write_groups
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import MoveUnderWay
from mainstem.ports import ClusterStanding
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

PARTITIONS_PER_TURN = 5_000
"""Partitions looked at within one turn of the event loop: about a millisecond. A topic counts as some more."""

_INDEX = struct.Struct(">i")


async def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, call: RequestContext
) -> ListPartitionReassignmentsResponse:
    if broker.standing is None:
        return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE)
    try:
        moves = await broker.standing.moves()
    except MainstemError as error:
        return ListPartitionReassignmentsResponse(error_code=error_of_refusal(error), error_message=str(error))
    if not moves:
        return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE)
    named = None
    if request.topics is not None:
        named = [(topic.name, topic.partition_indexes) for topic in request.topics]
    asked = await existing_partitions(broker, named, PARTITIONS_PER_TURN)
    topics = await _topics(broker, asked, _moving(broker.standing, moves), call.version)
    return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, topics=topics)


def _moving(standing: ClusterStanding, moves: Sequence[MoveUnderWay]) -> dict[int, OngoingPartitionReassignment]:
    """Per write group any of its partitions. As in Kafka, replicas that come and replicas that go are among all."""
    moving = {}
    for group in {move.group for move in moves}:
        coming = tuple(move.new for move in moves if move.group == group and move.new)
        going = tuple(move.old for move in moves if move.group == group and move.old)
        placed = standing.placed(group)
        moving[group] = OngoingPartitionReassignment(
            partition_index=0,
            replicas=(*placed, *(node_id for node_id in going if node_id not in placed)),
            adding_replicas=coming,
            removing_replicas=going,
        )
    return moving


async def _topics(
    broker: Broker,
    asked: ExistingPartitions,
    moving: Mapping[int, OngoingPartitionReassignment],
    version: int,
) -> EncodedArray:
    """The topics that have partitions on their way, with these."""
    response = ListPartitionReassignmentsResponse
    rests = {
        group: b"".join(codec.encode_elements(response, version, OngoingPartitionReassignment, [one]))[_INDEX.size :]
        for group, one in moving.items()
    }
    groups_moving = numpy.array(sorted(moving))
    encoded: list[bytes] = []
    count = 0

    def add(name: str, rows: list[bytes]) -> None:
        nonlocal count
        if rows:
            count += 1
            one = OngoingTopicReassignment(name=name, partitions=EncodedArray(len(rows) // 2, (b"".join(rows),)))
            encoded.extend(map(bytes, codec.encode_elements(response, version, OngoingTopicReassignment, [one])))

    name = ""
    rows: list[bytes] = []
    async for topic, indexes, groups in in_write_groups(broker, asked, PARTITIONS_PER_TURN):
        if topic.name != name:
            add(name, rows)
            name, rows = topic.name, []
        here = numpy.isin(groups, groups_moving)
        for index, group in zip(indexes[here].tolist(), groups[here].tolist(), strict=True):
            rows += (_INDEX.pack(index), rests[group])
    add(name, rows)
    return EncodedArray(count, encoded)
