"""Work that grows with a node is done in pieces: how many turns of the event loop it takes grows along.

Counts, not times: `python -m bench.stalls` has the times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from bench.stalls import cases
from bench.stalls.crowded_node import Crowd, CrowdedNode, crowded_node
from bench.stalls.turns import MeasuredLoop

from mainstem.kernel.pure.producer_states import KEY
from mainstem.storage.queue_store.reading.file_search import SPANS_PER_TURN
from mainstem.storage.queues.queue_admin import TOPICS_PER_TURN
from mainstem.storage.reading.sealed_segments import SEGMENTS_PER_TURN
from mainstem.storage.state.checkpointer import PRODUCERS_PER_TURN
from mainstem.storage.state.producers.producer_files import PAGES_AT_ONCE, ROWS_PER_PAGE, write
from mainstem.storage.state.producers.producer_rows import STATE, States
from mainstem.storage.upkeep.pruning import ROWS_PER_TURN, Pruning
from mainstem.storage.upkeep.retention_pass import TOPICS_PER_TURN as CLASSES_PER_TURN

CROWD = Crowd(queues=1_200_000, producers=20_000, runs=3_000, segments=400)
TOPICS = CROWD.queues // 100


async def many_deleted_queues(node: CrowdedNode) -> None:
    await node.storage.queues.settle(0, (), lambda number: False)


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], int]:
    """How many turns of the event loop each case takes."""
    asked: dict[str, Callable[[CrowdedNode], Awaitable[Any]]] = {
        name: cases.CASES[name]
        for name in (
            "checkpoint", "retention classes of a slice", "queues of a newly led group", "search of a sparse queue",
            "journal asked before the store", "retention pass",
        )
    }  # fmt: skip
    asked["queues that are gone"] = many_deleted_queues
    loop = MeasuredLoop()
    counted: dict[str, int] = {}

    async def count(directory: Path) -> None:
        async with crowded_node(directory, CROWD) as node:
            for name, case in asked.items():
                counted[name] = (await loop.measured(case(node)))[1]

    try:
        loop.run_until_complete(count(tmp_path_factory.mktemp("crowded")))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return counted.__getitem__


def test_a_checkpoint_puts_producers_down_some_at_a_time(turns: Callable[[str], int]) -> None:
    assert turns("checkpoint") >= CROWD.producers // PRODUCERS_PER_TURN


def test_topics_are_looked_at_some_at_a_time_for_a_slice_and_a_newly_led_group(turns: Callable[[str], int]) -> None:
    assert turns("retention classes of a slice") >= TOPICS // CLASSES_PER_TURN
    assert turns("queues of a newly led group") >= 2 * (TOPICS // TOPICS_PER_TURN)
    assert turns("queues that are gone") >= TOPICS // TOPICS_PER_TURN


def test_runs_and_segments_without_a_queue_are_stepped_over_some_at_a_time(turns: Callable[[str], int]) -> None:
    assert turns("search of a sparse queue") >= CROWD.runs // SPANS_PER_TURN
    assert turns("journal asked before the store") >= CROWD.segments // SEGMENTS_PER_TURN


def test_retention_looks_at_one_segment_in_a_turn(turns: Callable[[str], int]) -> None:
    assert turns("retention pass") >= CROWD.segments


def turns_of(work: Awaitable[Any]) -> int:
    """How many turns of the event loop something takes where no disk is waited for."""
    count = 0

    async def counted() -> None:
        nonlocal count
        doing = asyncio.ensure_future(work)
        while not doing.done():
            count += 1
            await asyncio.sleep(0)
        await doing

    asyncio.run(counted())
    return count


class AtOnce:
    """A disk that takes everything without a pause."""

    def __init__(self) -> None:
        self.written = 0

    async def open(self, *_arguments: Any, **_options: Any) -> AtOnce:
        return self

    async def write(self, _position: int, buffers: list[bytes], **_options: Any) -> None:
        self.written += sum(map(len, buffers))

    async def close(self) -> None: ...

    async def rename(self, *_paths: str) -> None: ...


def test_producers_are_written_some_at_a_time_though_the_disk_takes_them_at_once() -> None:
    pages = 10 * PAGES_AT_ONCE
    disk = AtOnce()

    async def pieces() -> AsyncIterator[States]:
        yield numpy.zeros(pages * ROWS_PER_PAGE, STATE)

    assert turns_of(write(disk, 1, 0, pieces())) >= pages // PAGES_AT_ONCE  # type: ignore[arg-type]
    assert disk.written > pages * (4096 + ROWS_PER_PAGE * KEY.size)


def test_a_segment_in_which_nothing_lives_is_looked_through_some_rows_at_a_time() -> None:
    rows = numpy.zeros(10 * ROWS_PER_TURN, [("queue_id", "<u8"), ("last_offset", "<i8")])

    segment = SimpleNamespace(sequence=7, index_ready=True, end=1)
    splits: list[int] = []
    """Up to which block the split was moved because nothing before lives."""
    looked_at: list[int] = []
    """How many rows each look was at."""

    async def index(_sequence: int) -> Any:
        return SimpleNamespace(rows=rows)

    async def at_once(*_arguments: Any) -> None: ...

    def log_starts(queue_ids: Any) -> Any:
        looked_at.append(len(queue_ids))
        return numpy.ones(len(queue_ids), "<i8")

    async def passed_over(group: int, upto: int) -> None:
        splits.append(upto)

    mark = SimpleNamespace(last=[5], last_data=[5])
    manifest = SimpleNamespace(written=lambda group: 0, reached=lambda group: 0, drained=at_once)
    parts: Any = SimpleNamespace(
        index=index, segments=lambda: [segment], log_starts=log_starts, applied_end=1, out_of_space=False,
        sync=at_once, pass_over=passed_over, manifest=manifest,
        journal_map=SimpleNamespace(at_end_of=lambda sequence: mark),
    )  # fmt: skip
    groups: Any = [SimpleNamespace(group=0)]
    unread: Any = SimpleNamespace(prune=lambda split: None)
    pruning = Pruning(parts, groups, parts, parts, parts, parts, unread, checkpoint_seconds=1.0)
    assert turns_of(pruning.prune()) >= 10
    assert splits == [5]
    assert sum(looked_at) == len(rows)
    rows["last_offset"][5] = 1
    for _ in range(2):
        looked_at.clear()
        asyncio.run(pruning.prune())
        assert splits == [5], "something lives"
    assert looked_at == [1], "what lived at the last look is looked at first"
