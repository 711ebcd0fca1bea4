"""Logs are loaded a few at a time, those that somebody asks for first; then they are written afresh, one at a time."""

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


def test_logs_are_written_afresh_one_at_a_time_when_all_are_loaded() -> None:
    turns, order = LoadTurns(), list[str]()
    waiting = ["a", "b", "c"]

    def ask() -> None:
        for log in [*waiting]:
            if turns.may_rewrite(log, ask):
                waiting.remove(log)
                order.append(log)

    async def load() -> None:
        await asyncio.gather(turns.take("a"), turns.take("b"))
        ask()
        turns.ended("a")
        assert order == []
        turns.ended("b")

    asyncio.run(load())
    assert order == ["a"]
    turns.rewrite_ended("b")  # it waits no more: it was lost
    waiting.remove("b")
    assert order == ["a"]
    turns.rewrite_ended("a")
    assert order == ["a", "c"]
    turns.rewrite_ended("c")
    assert turns.may_rewrite("a", ask)


def test_a_log_that_waits_to_be_written_afresh_and_need_not_be_holds_no_other_up() -> None:
    turns, told = LoadTurns(), list[str]()
    assert turns.may_rewrite("a", lambda: told.append("a"))
    assert not turns.may_rewrite("b", lambda: told.append("b"))
    assert not turns.may_rewrite("c", lambda: told.append("c"))
    turns.rewrite_ended("a")
    assert told == ["b", "c"]
    assert turns.may_rewrite("c", lambda: told.append("c"))
