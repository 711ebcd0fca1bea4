"""The conduct of a node about topics whose queues nobody came to make or delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.broker.harness import Fakes, make_broker
from tests.fakes.memory_store import MemoryStore
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.topics.queue_care import GRACE_SECONDS, LEFT_OVER_MAX, QueueCare
from mainstem.errors import LeaderMissing
from mainstem.model import QueueRange, Topic


class CountingStore(MemoryStore):
    """How often queues were made or deleted, and how often that fails first."""

    changes = 0
    failures = 0
    leaderless = 0

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(loop)
        self.elsewhere: list[int] = []
        """Deleted topics whose queues are here, and on no leader."""
        self.asked: list[list[int]] = []
        self.unheard: list[QueueRange] = []
        """Queues that leaders have, and this node, which has a replica, has not."""

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        self.changes += 1
        if self.failures:
            self.failures -= 1
            raise LeaderMissing("write groups [1] have no leader")
        await super().create(ranges)
        self.unheard = [one for one in self.unheard if one not in ranges]

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        self.changes += 1
        self.asked.append(list(topic_numbers))
        if self.leaderless:
            self.leaderless -= 1
            raise LeaderMissing("write groups [1] could not be changed")
        await super().delete(topic_numbers)
        self.elsewhere = [number for number in self.elsewhere if number not in topic_numbers]

    async def left_over(self) -> list[int]:
        return self.elsewhere

    async def lacking(self, topic: Topic | None) -> list[QueueRange]:
        return [one for one in self.unheard if topic is None or one.topic_number == topic.number]


def told(story: Callable[[Fakes, CountingStore, QueueCare], Awaitable[None]]) -> None:
    loop = SimulatedLoop()

    async def cared_for() -> None:
        fakes = make_broker(loop)
        store = CountingStore(loop)
        care = QueueCare(fakes.metadata, fakes.leadership, store, store, loop, store.left_over, store.lacking)
        fakes.leadership.store = store
        running = asyncio.ensure_future(care.run())
        await story(fakes, store, care)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    try:
        loop.run_until_complete(cared_for())
    finally:
        loop.close()


def test_queues_that_were_not_made_are_made_after_a_while() -> None:
    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        topic = await fakes.metadata.create_topic("t", 3, 1, {})
        care.changed(topic)
        await asyncio.sleep(GRACE_SECONDS - 1)
        assert store.queues == {}, "whoever made the topic has time to make them"
        await asyncio.sleep(2)
        assert set(store.queues) == {topic.queue_id(partition) for partition in range(3)}

    told(story)


def test_where_nothing_lacks_nothing_is_done() -> None:
    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        topic = await fakes.metadata.create_topic("t", 2_500, 1, {})
        await MemoryStore.create(store, [QueueRange(topic.number, 0, 2_500)])
        gone = await fakes.metadata.create_topic("gone", 3, 1, {})
        await fakes.metadata.delete_topics(["gone"])
        care.changed(topic)
        care.changed(gone)
        await asyncio.sleep(2 * GRACE_SECONDS)
        assert store.changes == 0

    told(story)


def test_queues_of_other_leaders_are_not_this_nodes_business() -> None:
    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        topic = await fakes.metadata.create_topic("t", 2, 1, {})
        await MemoryStore.create(store, [QueueRange(topic.number, 0, 1)])
        fakes.metadata.leaders[topic.queue_id(1)] = 2
        care.changed(topic)
        await asyncio.sleep(2 * GRACE_SECONDS)
        assert store.changes == 0

    told(story)


def test_queues_of_deleted_topics_go_and_those_of_a_new_one_of_the_name_come() -> None:
    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        old = await fakes.metadata.create_topic("t", 2, 1, {})
        await MemoryStore.create(store, [QueueRange(old.number, 0, 2)])
        await fakes.metadata.delete_topics(["t"])
        care.changed(old)
        new = await fakes.metadata.create_topic("t", 1, 1, {})
        care.changed(new)
        await asyncio.sleep(2 * GRACE_SECONDS)
        assert set(store.queues) == {new.queue_id(0)}

    told(story)


def test_what_fails_is_tried_again() -> None:
    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        store.failures = 2
        topic = await fakes.metadata.create_topic("t", 1, 1, {})
        care.changed(topic)
        await asyncio.sleep(2.5 * GRACE_SECONDS)
        assert (store.changes, store.queues) == (2, {})
        await asyncio.sleep(GRACE_SECONDS)
        assert (store.changes, set(store.queues)) == (3, {topic.queue_id(0)})

    told(story)


def test_queues_that_only_this_node_has_left_of_deleted_topics_go_at_the_leaders() -> None:
    """They are found a while after the start, whose metadata may have been old."""

    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        store.elsewhere = [7, 9]
        await asyncio.sleep(GRACE_SECONDS - 1)
        assert store.asked == []
        await asyncio.sleep(2)
        assert store.asked == [[7, 9]]
        await asyncio.sleep(3 * GRACE_SECONDS)
        assert store.changes == 1, "nothing is left"

    told(story)


def test_queues_left_over_are_looked_for_after_a_deletion_and_until_they_are_gone() -> None:
    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        await asyncio.sleep(2 * GRACE_SECONDS)
        gone = await fakes.metadata.create_topic("t", 1, 1, {})
        await fakes.metadata.delete_topics(["t"])
        store.elsewhere, store.leaderless = [gone.number, *range(10_000, 10_000 + LEFT_OVER_MAX)], 1
        care.changed(gone)
        await asyncio.sleep(5.5 * GRACE_SECONDS)
        first = store.asked[0]
        assert first == [gone.number, *range(10_000, 10_000 + LEFT_OVER_MAX - 1)]
        assert store.asked[1:] == [first, [10_000 + LEFT_OVER_MAX - 1]]
        assert store.elsewhere == []

    told(story)


@pytest.mark.parametrize("heard", [True, False], ids=["topic heard of", "since the start"])
def test_queues_that_lack_on_a_replica_alone_are_made_by_the_leaders_again(heard: bool) -> None:
    async def story(fakes: Fakes, store: CountingStore, care: QueueCare) -> None:
        topic = await fakes.metadata.create_topic("t", 3, 1, {})
        await MemoryStore.create(store, [QueueRange(topic.number, 0, 3)])
        store.unheard, store.failures = [QueueRange(topic.number, 0, 3)], 1
        if heard:
            care.changed(topic)
        await asyncio.sleep(3 * GRACE_SECONDS)
        assert store.unheard == []
        assert store.changes == 2, "once in vain"

    told(story)
