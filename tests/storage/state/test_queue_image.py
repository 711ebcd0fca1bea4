"""The image of the queues that a checkpoint keeps: put back and caught up with, it is the table it was taken of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from mainstem.kernel import CHUNK_SLOTS, COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, QueueTable
from mainstem.model import queue_id_of
from mainstem.storage.state import queue_image

Change = Callable[[QueueTable], None]


def content(table: QueueTable) -> dict[int, tuple[int, ...]]:
    """(next offset, high watermark, log start) of every queue that exists, by queue id."""
    found = {}
    for topic in table.topics():
        for entry in table.ranges(topic):
            for partition in range(entry.first_partition, entry.first_partition + entry.count):
                queue_id = queue_id_of(topic, partition)
                slot = table.find(queue_id)
                found[queue_id] = tuple(table.get(slot, cell) for cell in (NEXT_OFFSET, COMMITTED_END, LOG_START))
    return found


def end_at(queue_id: int, end: int) -> Change:
    def change(table: QueueTable) -> None:
        slot = table.find(queue_id)
        if slot != NO_SLOT:
            table.set(slot, COMMITTED_END, end)
            table.set(slot, NEXT_OFFSET, max(end, table.get(slot, NEXT_OFFSET)))

    return change


def start_at(queue_id: int, start: int) -> Change:
    def change(table: QueueTable) -> None:
        slot = table.find(queue_id)
        if slot != NO_SLOT:
            wanted = min(start, table.get(slot, COMMITTED_END))
            table.set(slot, LOG_START, max(wanted, table.get(slot, LOG_START)))

    return change


def creation(topic: int, first: int, partitions: int) -> Change:
    return lambda table: table.create(topic, first, partitions)


def deletion(topic: int) -> Change:
    return lambda table: table.drop(topic)


class History:
    """Changes as a log of blocks would bring them: ends of queues grow, numbers of deleted topics do not return."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._partitions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._topics = 0

    def next(self) -> Change:
        kind = self._random.choices(("create", "grow", "delete", "append", "trim"), (3, 2, 1, 20, 6))[0]
        topic = self._random.choice(list(self._partitions)) if self._partitions else 0
        if kind == "create" or not topic:
            self._topics += 1
            self._partitions[self._topics] = self._random.choice((1, 3, 50, CHUNK_SLOTS // 3))
            return creation(self._topics, 0, self._partitions[self._topics])
        if kind == "grow":
            first = self._partitions[topic]
            self._partitions[topic] += 5
            return creation(topic, first, 5)
        if kind == "delete":
            del self._partitions[topic]
            return deletion(topic)
        queue_id = queue_id_of(topic, self._random.randrange(min(self._partitions[topic], 9)))
        if kind == "append":
            self._ends[queue_id] = self._ends.get(queue_id, 0) + self._random.randint(1, 10)
            return end_at(queue_id, self._ends[queue_id])
        return start_at(queue_id, self._random.randint(0, self._ends.get(queue_id, 0)))


def put_back(image: queue_image.QueueImage) -> QueueTable:
    table = QueueTable()
    queue_image.put_back(table, b"".join(image.ranges), b"".join(image.queues))
    return table


@pytest.mark.parametrize("seed", range(6))
def test_an_image_of_a_table_at_rest_is_that_table(seed: int) -> None:
    history, table = History(seed), QueueTable()
    for _ in range(60):
        history.next()(table)
    assert content(put_back(asyncio.run(queue_image.take(table)))) == content(table)


@pytest.mark.parametrize("seed", range(12))
def test_an_image_taken_while_blocks_are_applied_leads_to_the_same_once_they_are_applied_again(seed: int) -> None:
    async def run() -> None:
        history, table = History(seed), QueueTable()
        for _ in range(60):
            history.next()(table)
        taking = asyncio.ensure_future(queue_image.take(table))
        since: list[Change] = []
        while not taking.done():
            for _ in range(4):
                since.append(history.next())
                since[-1](table)
            await asyncio.sleep(0)
        assert len(since) > 4, "it took several turns"
        restored = put_back(taking.result())
        for change in since:
            change(restored)
        assert content(restored) == content(table)

    asyncio.run(run())


def test_idle_queues_cost_nothing_but_their_range() -> None:
    table = QueueTable()
    table.create(5, 0, 2 * CHUNK_SLOTS)
    image = asyncio.run(queue_image.take(table))
    assert (sum(map(len, image.ranges)), image.queues) == (queue_image.RANGE_CELLS * 8, [])
    end_at(queue_id_of(5, CHUNK_SLOTS + 7), 3)(table)
    image = asyncio.run(queue_image.take(table))
    assert sum(map(len, image.queues)) == queue_image.QUEUE_CELLS * 8
    assert content(put_back(image)) == content(table)


def test_what_is_appended_and_not_committed_is_no_part_of_it() -> None:
    table = QueueTable()
    table.create(1, 0, 1)
    slot = table.find(queue_id_of(1, 0))
    table.set(slot, COMMITTED_END, 5)
    table.set(slot, NEXT_OFFSET, 9)
    restored = put_back(asyncio.run(queue_image.take(table)))
    assert content(restored) == {queue_id_of(1, 0): (5, 5, 0)}
