"""`ports.Clock`: clocks of tests tell what the machine's clock tells, in the same units, and never go back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.fakes.clock import FakeClock, HastyClock, LoopClock
from tests.fakes.simulated_loop import SimulatedLoop
from tests.fakes.splitting.split_node import SkippingClock
from tests.simulation.cluster.lives import ClusterLoop
from tests.simulation.cluster.node import NodeClock

from mainstem.node.node import SystemClock
from mainstem.ports import Clock

LOOKS = 50
PASSING_SECONDS = 0.01
YEAR_MS = 365 * 86_400_000


class Subject(NamedTuple):
    clock: Clock
    passes: Callable[[float], Awaitable[object]]
    """Lets so many seconds pass, or more."""


Story = Callable[[Subject], Awaitable[None]]


def fake() -> Subject:
    clock = FakeClock()

    async def passes(seconds: float) -> None:
        clock.advance(seconds)

    return Subject(clock, passes)


def skipping() -> Subject:
    clock = SkippingClock()

    async def passes(seconds: float) -> None:
        clock.skipped_seconds += seconds

    return Subject(clock, passes)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "machine": lambda: Subject(SystemClock(), asyncio.sleep),
    "fake": fake,
    "loop": lambda: Subject(LoopClock(), asyncio.sleep),
    "hasty": lambda: Subject(HastyClock(), asyncio.sleep),
    "skipping": skipping,
}


@pytest.fixture(params=[*SUBJECTS, "simulated loop", "loop of a cluster", "node of a cluster"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    def told(story: Story) -> None:
        if request.param in SUBJECTS:
            asyncio.run(_told(story, SUBJECTS[request.param]))
            return
        loop = SimulatedLoop() if request.param == "simulated loop" else ClusterLoop()
        clock: Clock = NodeClock(loop) if request.param == "node of a cluster" else loop  # type: ignore[arg-type]
        try:
            loop.run_until_complete(_told(story, lambda: Subject(clock, asyncio.sleep)))
        finally:
            loop.close()

    return told


async def _told(story: Story, subject: Callable[[], Subject]) -> None:
    await story(subject())


def test_seconds_never_go_back(tell: Callable[[Story], None]) -> None:
    async def story(subject: Subject) -> None:
        seen = []
        for look in range(LOOKS):
            seen.append(subject.clock.monotonic())
            if look % 10 == 0:
                await subject.passes(0.001)
        assert seen == sorted(seen)
        assert seen[0] < seen[-1]

    tell(story)


def test_the_time_of_day_is_in_whole_milliseconds_of_this_century(tell: Callable[[Story], None]) -> None:
    async def story(subject: Subject) -> None:
        now = subject.clock.now_ms()
        assert isinstance(now, int)
        assert 53 * YEAR_MS < now < 130 * YEAR_MS, "a clock in seconds or in microseconds is off by more"

    tell(story)


def test_what_passes_is_seen_by_both(tell: Callable[[Story], None]) -> None:
    async def story(subject: Subject) -> None:
        clock = subject.clock
        seconds, ms = clock.monotonic(), clock.now_ms()
        for _ in range(LOOKS):
            await subject.passes(PASSING_SECONDS)
            clock.monotonic()
        assert clock.monotonic() >= seconds + LOOKS * 0.001, "a millisecond per look is the least"
        assert clock.now_ms() > ms

    tell(story)
