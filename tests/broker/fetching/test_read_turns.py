"""Reads of old messages of those who share a node."""

from __future__ import annotations

import asyncio

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.broker.fetching.read_turns import READS_TOGETHER_MAX, ReadTurns


class Reader:
    """Reads of one sharer, each of which ends when the test says so."""

    def __init__(self, turns: ReadTurns, name: str, *, always: bool = False) -> None:
        self._turns, self._name, self._always = turns, name, always
        self.begun = self.given_up = 0
        self.ends: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, count: int) -> None:
        self._tasks += [asyncio.create_task(self._read()) for _ in range(count)]
        await settle()

    async def end(self, count: int) -> None:
        for _ in range(count):
            self.ends.pop(0).set()
        await settle()

    async def give_up(self, first: int, count: int) -> None:
        for task in self._tasks[first : first + count]:
            task.cancel()
        await settle()

    async def _read(self) -> None:
        end = asyncio.Event()
        async with self._turns.of(self._name, always=self._always):
            self.begun += 1
            self.ends.append(end)
            await end.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: object) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_SECONDS))  # type: ignore[arg-type]


@pytest.mark.parametrize("always", [False, True])
def test_whose_reads_are_the_only_ones_waits_only_where_all_do(always: bool) -> None:
    async def scenario() -> None:
        reader = Reader(ReadTurns(), "one", always=always)
        await reader.ask(3 * READS_TOGETHER_MAX)
        assert reader.begun == (READS_TOGETHER_MAX if always else 3 * READS_TOGETHER_MAX)

    run(scenario())


def test_sharers_have_so_many_reads_under_way_each_while_others_read() -> None:
    async def scenario() -> None:
        turns = ReadTurns()
        flood, quiet = Reader(turns, "flood"), Reader(turns, "quiet")
        await quiet.ask(1)
        await flood.ask(3 * READS_TOGETHER_MAX)
        assert flood.begun == READS_TOGETHER_MAX
        await flood.end(2)
        assert flood.begun == READS_TOGETHER_MAX + 2
        await quiet.ask(1)
        assert quiet.begun == 2, "it has few under way"
        await quiet.end(2)
        assert flood.begun == 3 * READS_TOGETHER_MAX, "nobody else reads any more"
        await quiet.ask(1)
        await flood.ask(1)
        assert quiet.begun == 3
        assert flood.begun == 3 * READS_TOGETHER_MAX, "more than enough are under way"
        await flood.end(3 * READS_TOGETHER_MAX - 2)
        assert flood.begun == 3 * READS_TOGETHER_MAX + 1
        await flood.end(1)
        await quiet.end(1)
        assert not turns

    run(scenario())


def test_reads_that_are_given_up_take_nobodys_turn() -> None:
    async def scenario() -> None:
        turns = ReadTurns()
        flood, quiet = Reader(turns, "flood"), Reader(turns, "quiet")
        await quiet.ask(1)
        await flood.ask(READS_TOGETHER_MAX + 3)
        await flood.give_up(READS_TOGETHER_MAX, 2)
        await flood.end(1)
        assert flood.begun == READS_TOGETHER_MAX + 1
        await flood.give_up(1, 2)
        await flood.ask(5)
        assert flood.begun == READS_TOGETHER_MAX + 3, "two places were free"

    run(scenario())


def test_a_read_that_is_given_up_as_its_turn_comes_hands_it_on() -> None:
    async def scenario() -> None:
        turns = ReadTurns()
        flood, quiet = Reader(turns, "flood"), Reader(turns, "quiet")
        await quiet.ask(1)
        await flood.ask(READS_TOGETHER_MAX + 2)
        flood.ends.pop(0).set()
        await asyncio.sleep(0)  # the first one's turn goes to the next, which has not gone on yet
        await flood.give_up(READS_TOGETHER_MAX, 1)
        assert flood.begun == READS_TOGETHER_MAX + 1

    run(scenario())
