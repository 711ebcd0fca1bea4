"""Which markers a coordinator writes where it does not know a transaction's partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.fakes.metadata import FakeMetadata

from mainstem.broker.transactions.markers import NodeMarkers
from mainstem.broker.transactions.transaction import TopicPartition, Transaction, TransactionState
from mainstem.errors import MainstemError
from mainstem.model import ActiveProducer, Outcome, TransactionMarker

NEW = "new", 0
OLD = "old", 0
DELETED = "deleted", 0


class WrittenMarkers:
    """`ports.TransactionMarkers` that keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[TransactionMarker] = []

    async def write(self, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        self.written += markers
        return [Outcome.OK] * len(markers)

    async def producers(self, queue_ids: Sequence[int]) -> list[list[ActiveProducer] | Outcome]:
        raise NotImplementedError


class Coordinator:
    """Of a transaction in these partitions; its node knows the topic `old`, and `hears` of others when it reads the
    metadata."""

    def __init__(self, hears: Callable[[FakeMetadata], Awaitable[Any]]) -> None:
        self.metadata = FakeMetadata()
        self.metadata.add_topic(OLD[0], 1, 1, {}, False)
        self.queues = WrittenMarkers()
        self.hears = hears
        calls: Any = None
        self.markers = NodeMarkers(
            self.metadata, self.queues, calls, "__consumer_offsets", lambda index: -1, self.current
        )

    async def current(self) -> None:
        await self.hears(self.metadata)

    async def write(self, *partitions: TopicPartition) -> set[TopicPartition]:
        prepared = Transaction("t", TransactionState.PREPARE_COMMIT, 7, 0, 60_000, 0, partitions=frozenset(partitions))
        return await self.markers.write(prepared, 0, partitions)

    def marked(self) -> set[str]:
        queues = {marker.queue_id for marker in self.queues.written}
        return {topic.name for topic in self.metadata.topics() if topic.queue_id(0) in queues}


def test_a_topic_that_the_coordinators_node_has_yet_to_hear_of_gets_its_marker() -> None:
    async def hears(metadata: FakeMetadata) -> None:
        if metadata.topic(NEW[0]) is None:
            metadata.add_topic(NEW[0], 1, 1, {}, False)

    async def story() -> None:
        coordinator = Coordinator(hears)
        assert await coordinator.write(OLD, NEW, DELETED) == {NEW}
        assert await coordinator.write(NEW) == set()
        assert coordinator.marked() == {"old", "new"}

    asyncio.run(story())


def test_nothing_counts_as_deleted_while_the_metadata_cannot_be_read() -> None:
    async def fails(metadata: FakeMetadata) -> None:
        raise MainstemError("no leader")

    async def story() -> None:
        coordinator = Coordinator(fails)
        assert await coordinator.write(OLD, DELETED) == {DELETED}
        assert coordinator.marked() == {"old"}, "the others do not wait for it"

    asyncio.run(story())
