"""The bench of groups: when a group counts as settled, and its members against a node."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from bench.errors import BenchError
from bench.groups.administration import coordinators, new_topic
from bench.groups.board import Board
from bench.groups.offsets import answered, committed
from bench.groups.rebalances import CAUSES, Meter, rebalances
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

SESSION_MS = 1_000
SETTINGS = ("groups.consumer_heartbeat_interval_ms=100", f"groups.consumer_session_timeout_ms={SESSION_MS}")


def test_a_group_is_settled_when_all_have_their_parts_in_one_generation() -> None:
    board = Board(4)
    board.expect(2)
    board.told("a", 1, frozenset({0, 1, 2, 3}))
    assert not board.is_settled, "b is missing"
    board.told("b", 2, frozenset())
    assert not board.is_settled, "they are of two generations"
    board.told("a", 2, frozenset({0, 1, 2}))
    assert not board.is_settled, "nobody reads partition 3"
    board.told("b", 2, frozenset({3}))
    assert not board.is_settled, "one has two more than the other"
    board.told("b", 2, frozenset({2, 3}))
    assert not board.is_settled, "two read partition 2"
    assert board.shared == 1
    board.told("a", 2, frozenset({0, 1}))
    assert board.is_settled
    board.expect(1)
    board.gone("b")
    assert not board.is_settled
    board.told("a", 3, frozenset(range(4)))
    assert board.is_settled


def test_a_member_that_fails_ends_the_waiting() -> None:
    async def story() -> None:
        async def fail() -> None:
            raise BenchError("refused")

        board = Board(1)
        board.expect(1)
        asyncio.create_task(fail()).add_done_callback(board.ended)
        with pytest.raises(BenchError, match="refused"):
            await board.settled(PATIENCE_SECONDS)

    asyncio.run(story())


def test_a_group_goes_through_its_rebalances_and_many_give_their_offsets_after_a_kill(tmp_path: Path) -> None:
    node = Serving(tmp_path, *SETTINGS).start()
    group_ids = [f"g{number}" for number in range(40)]

    async def before() -> None:
        await coordinators(node.kafka, group_ids)
        found = await rebalances(node.kafka, "consumer", 3, Meter(lambda: 0.0), SESSION_MS)
        assert [one.cause for one in found] == list(CAUSES)
        await new_topic(node.kafka, "committed", 2)
        assert await committed(node.kafka, group_ids, "committed", [0, 1]) > 0

    async def afterwards() -> None:
        back = await answered([node.kafka], group_ids, "committed", time.monotonic())
        assert back.first <= back.all

    try:
        asyncio.run(before())
        node.kill()
        node.start()
        asyncio.run(afterwards())
    finally:
        node.close()
