"""Which handshakes are under way, and how many of an address."""

from __future__ import annotations

from tests.fakes.clock import FakeClock
from tests.server.scripted import run, until

from mainstem.server.paced_steps import PacedSteps
from mainstem.server.tls.handshakes import Handshakes


class Step:
    def __init__(self, host: str, steps: list[str]) -> None:
        self.host, self._steps = host, steps

    def step(self) -> None:
        self._steps.append(self.host)

    def abort(self) -> None:
        pass


def test_whoever_has_left_does_not_take_a_turn() -> None:
    async def scenario() -> None:
        steps = list[str]()
        found = Handshakes(PacedSteps(FakeClock()), lambda host: host != "refused")
        gone, stays = (Step(host, steps) for host in ("gone", "stays"))
        assert not found.begin(Step("refused", steps))
        for handshake in (gone, stays):
            found.begin(handshake)
            found.wait(handshake)
        found.end(gone)
        found.end(gone)
        await until(lambda: steps)
        assert steps == ["stays"]
        assert (len(found), found.of("gone"), found.of("stays")) == (1, 0, 1)

    run(scenario())
