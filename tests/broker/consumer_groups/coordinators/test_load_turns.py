"""Logs are loaded a few at a time, those that somebody asks for first."""

from __future__ import annotations

import asyncio

from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.machines.load_turns import LoadTurns

SLICES = 5


def loaded(turns: LoadTurns, asked: dict[str, str], stuck: str | None = None) -> list[str]:
    """The order in which four logs come to their end; `asked`: whoever is asked for once another has ended."""
    loop, order = SimulatedLoop(), list[str]()

    async def load(log: str) -> None:
        for _ in range(SLICES):
            await turns.take(log)
            if log == stuck:
                await asyncio.sleep(60)
        turns.ended(log)
        order.append(log)
        if log in asked:
            turns.prefer(asked[log])

    async def all_of_them() -> None:
        await asyncio.gather(*map(load, "abcd"))

    try:
        loop.run_until_complete(all_of_them())
    finally:
        loop.close()
    return order


def test_the_first_ones_are_loaded_before_the_others_begin() -> None:
    assert loaded(LoadTurns(at_once=1), {}) == ["a", "b", "c", "d"]
    assert loaded(LoadTurns(at_once=2), {}) == ["a", "b", "c", "d"]


def test_a_log_that_somebody_asks_for_comes_next() -> None:
    assert loaded(LoadTurns(at_once=1), {"a": "d"}) == ["a", "d", "b", "c"]


def test_a_log_that_does_not_get_on_holds_nobody_up_for_good() -> None:
    assert loaded(LoadTurns(at_once=1, patience_seconds=1.0), {}, stuck="a") == ["b", "c", "d", "a"]
