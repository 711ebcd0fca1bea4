"""The turns of those who are not let in yet: their share of the time, address by address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise

import pytest
from tests.fakes.clock import FakeClock
from tests.server.raw_client import RawClient
from tests.server.scripted import ECHO, PIPELINED, ScriptedDispatcher, framed, run, serving, until

from mainstem.server import paced_steps
from mainstem.server.listener_config import ListenerConfig
from mainstem.server.paced_steps import IDLE_SECONDS, SAVED_SECONDS, SHARE, PacedSteps

GATED = {"GATED": ListenerConfig(listen="127.0.0.1:0", protocol="SASL_PLAINTEXT")}


class Step:
    def __init__(self, host: str, clock: FakeClock, seconds: float, steps: list[str]) -> None:
        self.host, self._clock, self._seconds, self._steps = host, clock, seconds, steps

    def step(self) -> None:
        self._clock.advance(self._seconds)
        self._steps.append(self.host)


def test_addresses_take_turns_whatever_each_asks_for() -> None:
    async def scenario() -> None:
        clock, steps = FakeClock(), list[str]()
        paced = PacedSteps(clock)
        for host in [*["many"] * 50, "few", "one"]:
            paced.wait(Step(host, clock, 0, steps))
        await until(lambda: len(steps) == 52)
        assert steps[:4] == ["many", "few", "one", "many"]

    run(scenario())


@pytest.mark.parametrize("asked", [count().__next__, None], ids=["known clients ask all the time", "nobody knows"])
def test_steps_take_no_more_than_their_share_of_the_time(
    asked: Callable[[], int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paced_steps, "GIVES_WAY_SECONDS", 0.0)

    async def scenario() -> None:
        clock, steps = FakeClock(), list[str]()
        paced = PacedSteps(clock, asked)
        for number in range(100):
            paced.wait(Step(str(number), clock, SAVED_SECONDS / 4, steps))
        before = clock.monotonic()
        for _ in range(50):
            await asyncio.sleep(0)
        taken = clock.monotonic() - before
        # what was saved, and the share of what they took themselves
        assert taken <= SAVED_SECONDS / (1 - SHARE) + SAVED_SECONDS / 4
        assert 4 <= len(steps) < 10, "they have their share, though each other turn gives way"
        clock.advance(10 * SAVED_SECONDS / SHARE)
        begun = len(steps)
        await until(lambda: len(steps) > begun)

    run(scenario())


def test_no_step_is_taken_just_behind_a_request_of_a_known_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        clock, steps, asked = FakeClock(), list[str](), [7]
        paced = PacedSteps(clock, lambda: asked[0])
        paced.wait(Step("first", clock, 0, steps))
        await until(lambda: steps)
        paced.wait(Step("second", clock, 0, steps))
        await asyncio.sleep(0)
        assert len(steps) == 2, "nobody has asked since"
        monkeypatch.setattr(paced_steps, "GIVES_WAY_SECONDS", 3600.0)
        asked[0] += 1
        paced.wait(Step("third", clock, 0, steps))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(steps) == 2

    run(scenario())


def test_steps_take_most_of_the_time_while_nobody_else_asks() -> None:
    async def scenario() -> None:
        clock, steps = FakeClock(), list[str]()
        paced = PacedSteps(clock, lambda: 7)
        paced.wait(Step("first", clock, 0, steps))
        await until(lambda: steps)
        clock.advance(IDLE_SECONDS)
        for number in range(100):
            paced.wait(Step(str(number), clock, SAVED_SECONDS / 4, steps))
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(steps) > 20

    run(scenario())


def test_whoever_has_left_takes_no_turn_of_others() -> None:
    async def scenario() -> None:
        clock, steps = FakeClock(), list[str]()
        paced = PacedSteps(clock)
        gone = [Step("many", clock, 0, steps) for _ in range(100)]
        stays = Step("many", clock, 0, steps)
        for one in (*gone, stays):
            paced.wait(one)
        for one in gone:
            paced.leave(one)
            paced.leave(one)
        await asyncio.sleep(0)  # one turn
        assert steps == ["many"]
        paced.leave(stays)
        paced.wait(stays)
        paced.leave(stays)
        await asyncio.sleep(0)
        assert steps == ["many"]

    run(scenario())


@contextmanager
def noting(dispatcher: ScriptedDispatcher) -> Iterator[list[int]]:
    """How many requests have been dispatched, before and after each turn of the loop."""
    loop = asyncio.get_running_loop()
    by_turn: list[int] = []

    ended = False

    def note() -> None:
        by_turn.append(len(dispatcher.seen))
        if not ended:
            loop.call_soon(note)

    note()
    try:
        yield by_turn
    finally:
        ended = True
        by_turn.append(len(dispatcher.seen))


def test_requests_of_clients_that_are_not_known_go_on_one_in_a_turn() -> None:
    """However many come at once. A client that has shown who it is waits for nobody."""

    async def story() -> None:
        async with serving(FakeClock(), listeners=GATED) as (server, dispatcher):
            clients = [await RawClient.connect(server.addresses[0]) for _ in range(5)]
            requests = [ECHO + bytes([number]) for number in range(20)]
            with noting(dispatcher) as by_turn:
                for client in clients:
                    await client.send(framed(*requests))
                for client in clients:
                    assert [await client.receive() for _ in requests] == requests
            assert max(after - before for before, after in pairwise(by_turn)) == 1
            known = next(session for session in dispatcher.sessions if session.connection_id == 1)
            known.gated, known.authenticated = False, True
            with noting(dispatcher) as by_turn:
                await clients[0].send(framed(*requests))
                assert [await clients[0].receive() for _ in requests] == requests
            assert max(after - before for before, after in pairwise(by_turn)) == len(requests)
            for client in clients:
                await client.close()

    run(story())


def test_a_client_that_is_not_known_and_ends_its_stream_is_answered_first() -> None:
    async def story() -> None:
        async with serving(listeners=GATED) as (server, dispatcher):
            for ending in (b"", framed(ECHO)[:-1]):
                client = await RawClient.connect(server.addresses[0])
                await client.send(framed(ECHO, PIPELINED) + ending)
                client.writer.write_eof()
                assert await client.receive() == ECHO
                await dispatcher.until_seen(1)
                await until(lambda: dispatcher.pending)
                dispatcher.resolve(0)
                assert await client.receive() == PIPELINED
                assert await client.closed_by_server()
                dispatcher.pending.clear()
            assert not server.connections

    run(story())
