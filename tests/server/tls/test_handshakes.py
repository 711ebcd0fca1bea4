"""The turns of handshakes: their share of the time, address by address."""

from __future__ import annotations

import asyncio

from tests.fakes.clock import FakeClock
from tests.server.scripted import run, until

from mainstem.server.tls.handshakes import SAVED_SECONDS, SHARE, Handshakes


class Step:
    def __init__(self, host: str, clock: FakeClock, seconds: float, steps: list[str]) -> None:
        self.host, self._clock, self._seconds, self._steps = host, clock, seconds, steps

    def step(self) -> None:
        self._clock.advance(self._seconds)
        self._steps.append(self.host)

    def abort(self) -> None:
        pass


def test_addresses_take_turns_whatever_each_asks_for() -> None:
    async def scenario() -> None:
        clock, steps = FakeClock(), list[str]()
        found = Handshakes(clock, lambda host: True)
        for host in [*["many"] * 50, "few", "one"]:
            handshake = Step(host, clock, 0, steps)
            assert found.begin(handshake)
            found.wait(handshake)
        await until(lambda: len(steps) == 52)
        assert steps[:4] == ["many", "few", "one", "many"]

    run(scenario())


def test_steps_take_no_more_than_their_share_of_the_time() -> None:
    async def scenario() -> None:
        clock, steps = FakeClock(), list[str]()
        found = Handshakes(clock, lambda host: True)
        for number in range(100):
            handshake = Step(str(number), clock, SAVED_SECONDS / 4, steps)
            found.begin(handshake)
            found.wait(handshake)
        before = clock.monotonic()
        for _ in range(50):
            await asyncio.sleep(0)
        taken = clock.monotonic() - before
        # what was saved, and the share of what they took themselves
        assert taken <= SAVED_SECONDS / (1 - SHARE) + SAVED_SECONDS / 4
        assert 4 <= len(steps) < 10
        clock.advance(10 * SAVED_SECONDS / SHARE)
        count = len(steps)
        await until(lambda: len(steps) > count)

    run(scenario())


def test_whoever_has_left_does_not_take_a_turn() -> None:
    async def scenario() -> None:
        clock, steps = FakeClock(), list[str]()
        found = Handshakes(clock, lambda host: host != "refused")
        gone, stays = (Step(host, clock, 0, steps) for host in ("gone", "stays"))
        assert not found.begin(Step("refused", clock, 0, steps))
        for handshake in (gone, stays):
            found.begin(handshake)
            found.wait(handshake)
        found.end(gone)
        found.end(gone)
        await until(lambda: steps)
        assert steps == ["stays"]
        assert (len(found), found.of("gone"), found.of("stays")) == (1, 0, 1)

    run(scenario())
