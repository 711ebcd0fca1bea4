"""A few samples tell which queues bring most of the bytes, however many queues there are and whatever their batches are
like; and what is remembered stays small."""

from __future__ import annotations

import random

import numpy
import pytest

from mainstem.storage.journal.encoding.format import DIRECTORY_ROW
from mainstem.storage.state.busy_queues import (
    BUSIEST_MAX,
    QUEUES_MAX,
    SAMPLES_PER_LOOK_MAX,
    BusyQueues,
)


def block(*batches: tuple[int, int]) -> tuple[memoryview, int]:
    """(queue id, bytes) each: the directory, and the bytes of all."""
    rows = numpy.zeros(len(batches), DIRECTORY_ROW)
    rows["queue_id"], rows["length"] = zip(*batches, strict=True)
    return memoryview(rows.tobytes()), sum(size for _, size in batches)


def filled(seconds: int, blocks_per_second: int, *batches: tuple[int, int], seed: int = 1) -> BusyQueues:
    """After so many seconds with blocks of these batches, in any order."""
    busy, rng = BusyQueues(), random.Random(seed)
    busy.look(0.0)
    for second in range(seconds):
        for _ in range(blocks_per_second):
            busy.applied(0, *block(*rng.sample(batches, len(batches))))
        busy.look(second + 1.0)
    return busy


@pytest.mark.parametrize(
    ("blocks_per_second", "batches"),
    [
        (40, [(7, 100_000), *((100 + it, 10_000) for it in range(10))]),
        (40, [*((7, 1_000) for _ in range(100)), (100, 99_999), (101, 1)]),
        (400, [(7, 5_000), (100, 2_500), (101, 2_500)]),
    ],
    ids=["large batches", "small batches beside a large one", "small blocks"],
)
def test_the_part_of_a_queue_is_its_part_of_the_bytes(blocks_per_second: int, batches: list[tuple[int, int]]) -> None:
    parts = {it.queue_id: it.part for it in filled(60, blocks_per_second, *batches).busiest(0)}
    assert parts[7] == pytest.approx(0.5, abs=0.05)


def test_very_many_queues_beside_one_do_not_make_it_seem_busier() -> None:
    busy, others = BusyQueues(), iter(range(1_000, 10_000_000))
    busy.look(0.0)
    for second in range(600):
        for _ in range(8):
            busy.applied(0, *block((7, 20_000), *((next(others), 1_000) for _ in range(80))))
        busy.look(second + 1.0)
    (told,) = busy.busiest(0)
    assert told.part == pytest.approx(0.2, abs=0.03)


def test_queues_that_bring_little_are_not_told_nor_more_than_a_few() -> None:
    assert filled(60, 10, *((it, 1_000) for it in range(1_000))).busiest(0) == []
    told = filled(60, 10, *((it, 1_000) for it in range(9))).busiest(0)
    assert len(told) == BUSIEST_MAX


def test_a_write_group_with_few_samples_tells_nothing_and_another_one_is_told_apart() -> None:
    busy = BusyQueues()
    busy.look(0.0)
    for second in range(40):
        for _ in range(20):
            busy.applied(1, *block((7, 50_000)))
        busy.look(second + 1.0)
    busy.applied(2, *block((8, 50_000)))
    assert [it.queue_id for it in busy.busiest(1)] == [7]
    assert busy.busiest(2) == []
    assert busy.busiest(0) == []


def test_nothing_is_sampled_while_nobody_looks() -> None:
    busy = BusyQueues()
    _directory, size = block((7, 1 << 20))
    for _ in range(1000):
        busy.applied(0, memoryview(b""), size)  # a sample would find no row there


def test_between_two_looks_samples_are_bounded_and_so_are_queues() -> None:
    busy = BusyQueues()
    busy.look(0.0)
    queue_id = 0
    for second in range(120):
        for _ in range(50):
            rows = [(queue_id := queue_id + 1, 1_000) for _ in range(100)]
            busy.applied(0, *block(*rows))
        busy.look(second + 1.0)
        assert sum(map(len, busy._weights.values())) <= QUEUES_MAX  # noqa: SLF001
    fresh = BusyQueues()
    fresh.look(0.0)
    for _ in range(100):
        fresh.applied(0, *block(*((it, 100_000) for it in range(100))))
    assert sum(fresh._weights[0].values()) <= SAMPLES_PER_LOOK_MAX  # noqa: SLF001


def test_a_queue_that_was_busy_is_forgotten() -> None:
    busy = filled(60, 20, (7, 10_000))
    assert [it.queue_id for it in busy.busiest(0)] == [7]
    for second in range(60, 1200):
        busy.applied(0, *block((8, 200_000)))
        busy.look(second + 1.0)
    assert [it.queue_id for it in busy.busiest(0)] == [8]
    for second in range(1200, 3000):
        busy.look(second + 1.0)
    assert busy.busiest(0) == []
