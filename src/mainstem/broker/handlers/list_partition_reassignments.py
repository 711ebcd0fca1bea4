"""ListPartitionReassignments: the partitions whose replicas are on their way from node to node, whatever began that.

Partitions share the replicas of their write group, so all queues of a write group move together; there can be very
many. A partition is encoded once for each write group, and its number is set before the rest of it. The partitions of a
slot that moves to another write group are listed as well; where both are on the same nodes no replica comes or goes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy

from mainstem.broker.admin.reassignments import under_way_to
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.partitions import ExistingPartitions, existing_partitions, in_write_groups
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import MoveUnderWay, Topic, slot_of
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

if TYPE_CHECKING:
    from numpy import int64, uint64
    from numpy.typing import NDArray

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
    if not moves and not broker.queue_moves.under_way():
        return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE)
    named = None
    if request.topics is not None:
        named = [(topic.name, topic.partition_indexes) for topic in request.topics]
    asked = await existing_partitions(broker, named, PARTITIONS_PER_TURN)
    topics = await _topics(broker, asked, _Moving(broker, broker.standing, moves, call.version))
    return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, topics=topics)


class _Moving:
    """The partitions that move, as the answer shows them. As in Kafka, replicas that come and that go are among
    all."""

    def __init__(self, broker: Broker, standing: ClusterStanding, moves: Sequence[MoveUnderWay], version: int) -> None:
        self.version = version
        self._of_groups = {group: self._encoded(*_replicas(standing, group, moves)) for group in _groups(moves)}
        self._groups = numpy.array(sorted(self._of_groups))
        self._slots = broker.queue_moves.under_way()
        self._placements = broker.queue_moves.placements()
        self._of_both: dict[tuple[int, int], bytes] = {}
        """By write group before and after a move of a queue."""
        self.partition_costs = 4 if self._slots else 1
        """Finding out the slot takes most of the time then."""

    def rows(self, topic: Topic, indexes: NDArray[uint64], groups: NDArray[int64]) -> list[bytes]:
        """Two for each partition that moves: its number, and the rest of it."""
        rows: list[bytes] = []
        if not self._slots:
            here = numpy.isin(groups, self._groups)
            indexes, groups = indexes[here], groups[here]
        for index, group in zip(indexes.tolist(), groups.tolist(), strict=True):
            to = self._slots.get(slot_of(topic.queue_id(index))) if self._slots else None
            rest = self._of_groups.get(group) if to is None else self._between(group, to)
            if rest is not None:
                rows += (_INDEX.pack(index), rest)
        return rows

    def _between(self, before: int, after: int) -> bytes:
        if (before, after) not in self._of_both:
            nodes = (self._placements.get(group, ()) for group in (before, after))
            self._of_both[before, after] = self._encoded(*under_way_to(*nodes))
        return self._of_both[before, after]

    def _encoded(self, replicas: tuple[int, ...], coming: tuple[int, ...], going: tuple[int, ...]) -> bytes:
        one = OngoingPartitionReassignment(
            partition_index=0, replicas=replicas, adding_replicas=coming, removing_replicas=going
        )
        encoded = codec.encode_elements(
            ListPartitionReassignmentsResponse, self.version, OngoingPartitionReassignment, [one]
        )
        return b"".join(encoded)[_INDEX.size :]


def _groups(moves: Sequence[MoveUnderWay]) -> set[int]:
    return {move.group for move in moves}


def _replicas(
    standing: ClusterStanding, group: int, moves: Sequence[MoveUnderWay]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """All replicas of a write group, those that come, and those that go."""
    coming = tuple(move.new for move in moves if move.group == group and move.new)
    going = tuple(move.old for move in moves if move.group == group and move.old)
    placed = standing.placed(group)
    return (*placed, *(node_id for node_id in going if node_id not in placed)), coming, going


async def _topics(broker: Broker, asked: ExistingPartitions, moving: _Moving) -> EncodedArray:
    """The topics that have partitions on their way, with these."""
    encoded: list[bytes] = []
    count = 0

    def add(name: str, rows: list[bytes]) -> None:
        nonlocal count
        if rows:
            count += 1
            one = OngoingTopicReassignment(name=name, partitions=EncodedArray(len(rows) // 2, (b"".join(rows),)))
            response, version = ListPartitionReassignmentsResponse, moving.version
            encoded.extend(map(bytes, codec.encode_elements(response, version, OngoingTopicReassignment, [one])))

    name = ""
    rows: list[bytes] = []
    per_turn = PARTITIONS_PER_TURN // moving.partition_costs
    async for topic, indexes, groups in in_write_groups(broker, asked, per_turn):
        if topic.name != name:
            add(name, rows)
            name, rows = topic.name, []
        rows += moving.rows(topic, indexes, groups)
    add(name, rows)
    return EncodedArray(count, encoded)
