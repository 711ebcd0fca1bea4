"""The questions to all queues at once, against a look at each of them."""

from __future__ import annotations

import asyncio
import random

import numpy
import pytest

from mainstem.kernel import CHUNK_SLOTS, COMMITTED_END, LOG_START, QueueTable
from mainstem.model import queue_id_of, topic_number_of
from mainstem.storage.state.queue_scan import live_queues, topics_with_data


def filled(seed: int) -> tuple[QueueTable, dict[int, tuple[int, int]]]:
    """A table with dropped topics and several chunks; (log start, high watermark) of what ever had records."""
    randomness, table = random.Random(seed), QueueTable()
    found: dict[int, tuple[int, int]] = {}
    for topic in range(1, 30):
        partitions = randomness.choice((1, 4, 100, CHUNK_SLOTS // 2))
        table.create(topic, 0, partitions)
        for partition in randomness.sample(range(partitions), min(partitions, randomness.choice((0, 1, 9)))):
            queue_id = queue_id_of(topic, partition)
            start = randomness.randint(0, 5)
            found[queue_id] = (start, start + randomness.randint(0, 2))
            slot = table.find(queue_id)
            table.set(slot, LOG_START, found[queue_id][0])
            table.set(slot, COMMITTED_END, found[queue_id][1])
        if randomness.random() < 0.3:
            dropped = randomness.randint(1, topic)
            table.drop(dropped)
            found = {queue_id: at for queue_id, at in found.items() if topic_number_of(queue_id) != dropped}
    return table, found


@pytest.mark.parametrize("seed", range(5))
def test_live_queues_are_those_with_something_between_start_and_end(seed: int) -> None:
    table, found = filled(seed)
    live = asyncio.run(live_queues(table))
    expected = sorted((queue_id, start, end) for queue_id, (start, end) in found.items() if start < end)
    assert list(zip(*(column.tolist() for column in live), strict=True)) == expected
    assert live.queue_ids.dtype == numpy.uint64


@pytest.mark.parametrize("seed", range(5))
def test_topics_with_data_are_those_that_ever_had_a_record(seed: int) -> None:
    table, found = filled(seed)
    expected = {topic_number_of(queue_id) for queue_id, at in found.items() if at[1]}
    assert asyncio.run(topics_with_data(table)) == expected


def test_an_empty_table() -> None:
    assert len(asyncio.run(live_queues(QueueTable())).queue_ids) == 0
    assert asyncio.run(topics_with_data(QueueTable())) == set()
