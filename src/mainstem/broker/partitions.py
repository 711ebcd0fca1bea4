"""Finds the partition a request names, and checks that the client and this node agree about it.

Some APIs refuse requests that name a partition twice; `asked_twice` finds those partitions. The consumer group
coordinator answers a request in one step, within one turn of the event loop; so `in_steps` cuts a request for a hundred
thousand partitions into many for some hundreds each, with turns of the loop between them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import numpy

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_failed_read
from mainstem.errors import MainstemError
from mainstem.model import QueueOffsets, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.turns import Pace

if TYPE_CHECKING:
    from numpy import int64, uint64
    from numpy.typing import NDArray

NO_LEADER_EPOCH = -1


class FoundPartition(NamedTuple):
    """A partition that this node serves. `offsets` are those at the time of the lookup."""

    topic: Topic
    queue_id: int
    offsets: QueueOffsets


def find_topic(broker: Broker, key: str | UUID) -> Topic | ErrorCode:
    """The topic of a name or an id, or the error that says that there is none."""
    if isinstance(key, UUID):
        return broker.metadata.topic_by_id(key) or ErrorCode.UNKNOWN_TOPIC_ID
    return broker.metadata.topic(key) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def find_partition(
    broker: Broker, key: str | UUID, partition: int, leader_epoch: int = NO_LEADER_EPOCH
) -> FoundPartition | ErrorCode:
    """The partition, if it exists, is led by this node, and `leader_epoch`, where the client knows one, is
    the node's; else Kafka's error."""
    topic = find_topic(broker, key)
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not broker.serves(topic, partition):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    queue_id = topic.queue_id(partition)
    try:
        (offsets,) = await broker.store.offsets([queue_id])
    except MainstemError as failure:  # a store elsewhere that is not reached
        return error_of_failed_read(failure)
    if offsets is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if leader_epoch != NO_LEADER_EPOCH and leader_epoch != offsets.leader_epoch:
        older = leader_epoch < offsets.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
    return FoundPartition(topic, queue_id, offsets)


class AskedPartition(Protocol):
    @property
    def partition_index(self) -> int: ...


class AskedTopic(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> Iterable[AskedPartition]: ...


async def asked_twice(topics: Iterable[AskedTopic], pace: Pace) -> set[tuple[str, int]]:
    """Names and indexes of the partitions named more than once."""
    once: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in topics:
        await pace.step()
        for asked in topic.partitions:
            await pace.step()
            key = topic.name, asked.partition_index
            if key in once:
                twice.add(key)
            once.add(key)
    return twice


ExistingPartitions = Sequence[tuple[Topic, Sequence[int]]]
"""Topics with the indexes of partitions that they have, each once."""


async def existing_partitions(
    broker: Broker, named: Iterable[tuple[str, Sequence[int]]] | None, partitions_per_turn: int
) -> ExistingPartitions:
    """The partitions that a request names by topic and index, as far as they exist; None names all."""
    if named is None:
        return [(topic, range(topic.partitions)) for topic in broker.metadata.topics()]
    asked: dict[str, dict[int, None]] = {}
    pace = broker.turns.pace(partitions_per_turn)
    for name, partitions in named:
        await pace.step(8 + len(partitions))
        asked.setdefault(name, {}).update(dict.fromkeys(partitions))
    found = []
    for name, once in asked.items():
        await pace.step(8 + len(once))
        topic = broker.metadata.topic(name)
        if topic is not None:
            found.append((topic, [index for index in once if 0 <= index < topic.partitions]))
    return found


TOPIC_COSTS_PARTITIONS = 20
"""Partitions that take as long to look up as a topic."""


async def in_write_groups(
    broker: Broker, asked: ExistingPartitions, partitions_per_turn: int
) -> AsyncIterator[tuple[Topic, NDArray[uint64], NDArray[int64]]]:
    """Indexes of a topic with their write groups: topic by topic, in slices with turns of the loop between them."""
    pace = broker.turns.pace(partitions_per_turn)
    for topic, partitions in asked:
        await pace.step(TOPIC_COSTS_PARTITIONS)
        for start in range(0, len(partitions), partitions_per_turn):
            indexes = numpy.array(partitions[start : start + partitions_per_turn], numpy.uint64)
            await pace.step(len(indexes))
            yield topic, indexes, broker.leadership.groups_of(indexes | numpy.uint64(topic.queue_id(0)))


T = TypeVar("T")

PARTITIONS_PER_STEP = 500
"""Partitions that a coordinator commits or looks up in one turn of the event loop: some milliseconds."""


class TopicsOfStep(NamedTuple):
    topics: list[Any]
    continued: bool
    """Whether the first topic is the last one of the step before, whose partitions did not fit."""


def in_steps(topics: Iterable[T], field: str, size: int = PARTITIONS_PER_STEP) -> Iterator[TopicsOfStep]:
    """Topics with at most `size` partitions in all at a time. `field` names the sequence in a topic that is cut; a
    topic counts as one more."""
    taken: list[T] = []
    room = size
    continued = False
    for topic in topics:
        partitions: Sequence[Any] = getattr(topic, field)
        if len(partitions) < room:
            taken.append(topic)
            room -= len(partitions) + 1
            continue
        for start in range(0, max(len(partitions), 1), size):
            if taken:
                yield TopicsOfStep(taken, continued)
            taken = [replace(topic, **{field: partitions[start : start + size]})]  # type: ignore[type-var]
            continued = start > 0
            room = size - len(partitions[start : start + size]) - 1
    if taken:
        yield TopicsOfStep(taken, continued)
