"""What grows with a node is done in pieces: how many turns of the event loop it takes grows along.

Counts, not times: `python -m bench.stalls` has the times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from bench.stalls import cases
from bench.stalls.crowded_node import Crowd, CrowdedNode, crowded_node
from bench.stalls.turns import MeasuredLoop

from mainstem.storage.checkpointer import PRODUCERS_PER_TURN
from mainstem.storage.queue_admin import TOPICS_PER_TURN
from mainstem.storage.queue_store.run_search import RUNS_PER_TURN
from mainstem.storage.retention_pass import TOPICS_PER_TURN as CLASSES_PER_TURN
from mainstem.storage.sealed_segments import SEGMENTS_PER_TURN

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
    assert turns("search of a sparse queue") >= CROWD.runs // RUNS_PER_TURN
    assert turns("journal asked before the store") >= CROWD.segments // SEGMENTS_PER_TURN


def test_retention_looks_at_one_segment_in_a_turn(turns: Callable[[str], int]) -> None:
    assert turns("retention pass") >= CROWD.segments
