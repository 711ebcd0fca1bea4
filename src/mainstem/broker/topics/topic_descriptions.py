"""Encodes the topics of Metadata answers piece by piece, so that a million partitions do not hold the event
loop.

Strategy: the entries of an answer are taken in slices of some thousand partitions, with a turn of the event
loop between two of them. Within a slice, the partitions of all topics become rows of one byte array: a row is a
template, encoded once by the codec for all partitions with the same leader and replicas, into which arrays of partition
numbers and leader epochs are set. So a partition costs some bytes of copying, a topic a few microseconds, and no object
is made per partition. Rows differ in length when some replicas are not in sync; the shorter ones are cut then.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy
import numpy.typing

from mainstem.broker.queue_routing import QueueRouting
from mainstem.model import PARTITION_BITS, Topic, WriteGroupNodes
from mainstem.ports import QueueLeadership
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from mainstem.turns import Turns

NO_LEADER = -1

PARTITIONS_PER_TURN = 8192
"""Partitions in a slice, at the most: a millisecond or two, and some 300 KB of answer."""

TOPICS_PER_TURN = 256
"""Topics in a slice, at the most: about a millisecond."""

_LEADER_EPOCH_FROM = 7
_INDEX_AT = 2  # behind the error code
_EPOCH_AT = 10  # behind error code, index and leader

Entry = Topic | MetadataResponseTopic
"""A topic to describe, or the answer's item instead of a description."""

Operations = int | Callable[[str], int]
"""The operations that are allowed, a bit each: on every topic, or on the topic of a name."""

Integers = numpy.typing.NDArray[numpy.int64]


class TopicDescriptions:
    """Encodes entries of one answer. A node that is not `alive` is shown as leading nothing and in sync with
    nothing."""

    def __init__(
        self,
        leadership: QueueLeadership,
        alive: Container[int],
        version: int,
        operations: Operations,
        turns: Turns | None = None,
        routing: QueueRouting | None = None,
        apart: Container[int] = (),
    ) -> None:
        """`routing`: the brokers that partitions are led by, if not by the leaders of their write groups. `apart`:
        nodes that are no brokers: clients are never sent there, and whether they live is not told."""
        self._turns = turns or Turns()
        self._leadership = leadership
        self._alive = alive
        self._version = version
        self._operations = operations
        self._routing = routing
        self._apart = apart
        self.known: dict[int, WriteGroupNodes] = {}
        """The replicas of the write groups that occur, as the answer shows them."""

    async def encode(self, entries: Sequence[Entry]) -> EncodedArray:
        """The answer's topics, in the order of the entries."""
        buffers: list[bytes] = []
        taken: list[Entry] = []
        partitions = 0
        for entry in entries:
            size = entry.partitions if isinstance(entry, Topic) else 0
            if taken and (partitions + size > PARTITIONS_PER_TURN or len(taken) >= TOPICS_PER_TURN):
                buffers += self._slice(taken)
                taken, partitions = [], 0
                await self._turns.take()
            if isinstance(entry, Topic) and size > PARTITIONS_PER_TURN:
                buffers += self._encoded([self._described(entry, await self._many_partitions(entry))])
            else:
                taken.append(entry)
                partitions += size
        buffers += self._slice(taken)
        return EncodedArray(len(entries), buffers)

    async def _many_partitions(self, topic: Topic) -> EncodedArray:
        buffers: list[bytes] = []
        for first in range(0, topic.partitions, PARTITIONS_PER_TURN):
            count = min(PARTITIONS_PER_TURN, topic.partitions - first)
            rows = self._rows(numpy.full(count, topic.number), numpy.arange(first, first + count))
            buffers.append(rows(0, count))
            await self._turns.take()
        return EncodedArray(topic.partitions, buffers)

    def _slice(self, entries: Sequence[Entry]) -> list[bytes]:
        topics = [entry for entry in entries if isinstance(entry, Topic)]
        counts = numpy.array([topic.partitions for topic in topics], numpy.int64)
        numbers = numpy.array([topic.number for topic in topics], numpy.int64)
        indexes = numpy.arange(counts.sum()) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        rows = self._rows(numpy.repeat(numbers, counts), indexes)
        described: list[MetadataResponseTopic] = []
        place = 0
        for entry in entries:
            if isinstance(entry, Topic):
                end = place + entry.partitions
                described.append(self._described(entry, EncodedArray(entry.partitions, (rows(place, end),))))
                place = end
            else:
                described.append(entry)
        return self._encoded(described)

    def _rows(self, numbers: Integers, indexes: Integers) -> Callable[[int, int], bytes]:
        """The encoded partitions of these topic numbers and indexes, as a function: (first, end) to the bytes."""
        if not len(indexes):
            return lambda first, end: b""
        queue_ids = (numbers << PARTITION_BITS | indexes).astype(numpy.uint64)
        groups, group_of = numpy.unique(self._leadership.groups_of(queue_ids), return_inverse=True)
        replicas = {group: self._leadership.replicas(group) for group in groups.tolist()}
        self.known |= replicas
        known = [self._living(group) for group in replicas.values()]
        kinds, which = self._kinds(known, group_of, queue_ids)
        epochs = numpy.array([group.leader_epoch for group in known], numpy.int64)[group_of]
        templates = [self._partition(kind) for kind in kinds]
        widths = numpy.array([len(template) for template in templates], numpy.int64)
        longest = int(widths.max())
        padded = b"".join(template.ljust(longest, b"\0") for template in templates)
        rows = numpy.frombuffer(padded, numpy.uint8).reshape(len(templates), longest)[which]
        rows[:, _INDEX_AT : _INDEX_AT + 4] = _big_endian(indexes)
        if self._version >= _LEADER_EPOCH_FROM:
            rows[:, _EPOCH_AT : _EPOCH_AT + 4] = _big_endian(epochs)
        if widths.min() == longest:
            encoded = rows.tobytes()
            return lambda first, end: encoded[first * longest : end * longest]
        width_of_row = widths[which]
        encoded = rows[numpy.arange(longest) < width_of_row[:, numpy.newaxis]].tobytes()
        bounds = numpy.concatenate(([0], numpy.cumsum(width_of_row)))
        return lambda first, end: encoded[bounds[first] : bounds[end]]

    def nodes_of(self, topic: Topic, first: int, end: int) -> list[WriteGroupNodes]:
        """Leader, epoch and replicas of partitions `first` to `end` - 1 of a topic, as the answer shows them."""
        indexes = numpy.arange(first, end)
        queue_ids = (numpy.full(len(indexes), topic.number) << PARTITION_BITS | indexes).astype(numpy.uint64)
        groups, group_of = numpy.unique(self._leadership.groups_of(queue_ids), return_inverse=True)
        known = [self._living(self._leadership.replicas(group)) for group in groups.tolist()]
        kinds, which = self._kinds(known, group_of, queue_ids)
        shown = list(kinds)
        return [
            shown[kind]._replace(leader_epoch=known[group].leader_epoch)
            for kind, group in zip(which.tolist(), group_of.tolist(), strict=True)
        ]

    def offline(self, group: WriteGroupNodes) -> tuple[int, ...]:
        """The replicas whose nodes do not live."""
        return tuple(it for it in group.replicas if it not in self._alive and it not in self._apart)

    def _kinds(
        self, known: Sequence[WriteGroupNodes], group_of: Any, queue_ids: Any
    ) -> tuple[dict[WriteGroupNodes, int], Any]:
        """The different partitions, but for number and epoch; and which of these each queue is. `group_of` has the
        places of the queues' write groups in `known`."""
        kinds: dict[WriteGroupNodes, int] = {}
        brokers = self._routing.brokers() if self._routing is not None else ()
        if self._routing is None or not brokers:
            of_group = [kinds.setdefault(group._replace(leader_epoch=0), len(kinds)) for group in known]
            return kinds, numpy.array(of_group, numpy.intp)[group_of]
        shown = [node_id if node_id in self._alive else NO_LEADER for node_id in brokers]
        of_both = [
            [kinds.setdefault(group._replace(leader_epoch=0, leader=leader), len(kinds)) for leader in shown]
            for group in known
        ]
        return kinds, numpy.array(of_both, numpy.intp)[group_of, self._routing.choices(queue_ids, brokers)]

    def _living(self, group: WriteGroupNodes) -> WriteGroupNodes:
        leader = group.leader if group.leader in self._alive else NO_LEADER
        in_sync = tuple(node_id for node_id in group.in_sync if node_id in self._alive or node_id in self._apart)
        return group._replace(leader=leader, in_sync=in_sync)

    def _partition(self, group: WriteGroupNodes) -> bytes:
        """The first partition of a write group in epoch 0, encoded."""
        partition = MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if group.leader == NO_LEADER else ErrorCode.NONE,
            partition_index=0,
            leader_id=group.leader,
            leader_epoch=0,
            replica_nodes=group.replicas,
            isr_nodes=group.in_sync,
            offline_replicas=self.offline(group),
        )
        parts = codec.encode_elements(MetadataResponse, self._version, MetadataResponsePartition, [partition])
        return b"".join(parts)

    def _described(self, topic: Topic, partitions: EncodedArray) -> MetadataResponseTopic:
        operations = self._operations
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            partitions=partitions,
            topic_authorized_operations=operations if isinstance(operations, int) else operations(topic.name),
        )

    def _encoded(self, described: Sequence[MetadataResponseTopic]) -> list[bytes]:
        parts = codec.encode_elements(MetadataResponse, self._version, MetadataResponseTopic, described)
        return [b"".join(parts)]


def _big_endian(values: numpy.typing.NDArray[Any]) -> numpy.typing.NDArray[numpy.uint8]:
    """32-bit integers as rows of four bytes, in the order of the wire."""
    return values.astype(">i4").view(numpy.uint8).reshape(-1, 4)
