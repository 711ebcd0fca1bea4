"""The pace of background work: free while nobody publishes, slower while publishing feels it, never below its least."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.storage.reading.pacing import (
    CALM_EVERY_SECONDS,
    COPY_SHARE_MIN,
    IDLE_SECONDS,
    KEPT_SECONDS,
    MOST_BYTES_PER_SECOND,
    SHARE_MIN,
    SLOWEST,
    START_BYTES_PER_SECOND,
    STEP_SECONDS,
    UPKEEP_SHARE_MIN,
    WINDOW_SECONDS_MAX,
    Lane,
    Pacing,
)

MEBIBYTE = 1 << 20
LEAST = 4 * MEBIBYTE
DISK_BYTES_PER_SECOND = 2 << 30
QUIET_SECONDS = 0.001
TURNS_PER_SECOND = 200
MANY_PER_SECOND = 2 * 16 * 10 * (SLOWEST + 1)
"""Turns of which twice as many as a window's slowest are a sixteenth of a window's."""


def simulated(story: Callable[[SimulatedLoop, Pacing], Awaitable[None]], slowdown_max: float = 1.2) -> None:
    loop = SimulatedLoop()
    try:
        pacing = Pacing(loop, slowdown_max=slowdown_max, bytes_per_second_min=LEAST)
        loop.run_until_complete(story(loop, pacing))
    finally:
        loop.close()


def pacing_works(pacing: Pacing) -> bool:
    """Whether work is not held in this window."""
    return not pacing.calm


async def publish(pacing: Pacing, seconds: float, latency: Callable[[], float]) -> None:
    """Turns at an even pace, each as slow as `latency` says."""
    for _ in range(round(seconds * TURNS_PER_SECOND)):
        await asyncio.sleep(1 / TURNS_PER_SECOND)
        pacing.committed(latency())


async def work(pacing: Pacing, lane: Lane = Lane.DISK, size: int = MEBIBYTE, least: float = 0.0) -> None:
    while True:
        await pacing.take(lane, size, least=least)
        await asyncio.sleep(size / DISK_BYTES_PER_SECOND)


def slow_beside(pacing: Pacing) -> Callable[[], float]:
    """Commits that are slow for a while after anything was done."""
    seen = [0, 0]  # bytes done, turns left to be slow

    def latency() -> float:
        now = sum(done(pacing, lane) for lane in Lane)
        seen[1] = TURNS_PER_SECOND // 20 if now != seen[0] else seen[1] - 1
        seen[0] = now
        return 1.0 if seen[1] > 0 else QUIET_SECONDS

    return latency


def done(pacing: Pacing, lane: Lane = Lane.DISK) -> int:
    return next(
        int(sample.value) for sample in pacing.samples()
        if sample.name == "mainstem_pacing_bytes_total" and sample.labels == (("lane", lane.value),)
    )  # fmt: skip


async def beside(pacing: Pacing, seconds: float, latency: Callable[[], float], least: float = 0.0) -> float:
    """Bytes a second of one worker beside publishing."""
    worker = asyncio.ensure_future(work(pacing, least=least))
    before = done(pacing)
    await publish(pacing, seconds, latency)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    return (done(pacing) - before) / seconds


def test_nothing_is_held_while_nobody_publishes() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        for _ in range(100):
            assert await pacing.take(Lane.SERVE, 100 * MEBIBYTE)
        assert loop.time() == 0
        assert pacing.idle

    simulated(story)


def test_commits_now_and_then_are_no_load() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        for _ in range(20):
            await asyncio.sleep(WINDOW_SECONDS_MAX / 3)
            pacing.committed(1.0)
            assert pacing.idle

    simulated(story)


def test_work_goes_faster_and_faster_while_publishing_does_not_feel_it() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        await beside(pacing, 10, lambda: QUIET_SECONDS)
        assert pacing.bytes_per_second > 20 * START_BYTES_PER_SECOND
        assert pacing.bytes_per_second <= MOST_BYTES_PER_SECOND
        assert pacing.undisturbed_seconds == QUIET_SECONDS

    simulated(story)


def test_work_settles_where_publishing_begins_to_feel_it() -> None:
    hurts_from = 200 * MEBIBYTE

    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        disturbed = asyncio.ensure_future(work(pacing))

        def latency() -> float:
            return QUIET_SECONDS * (2 if done(pacing) - before[0] > hurts_from / TURNS_PER_SECOND * 30 else 1)

        before = [0]
        for _ in range(60):  # 30 turns at a time: what was done in them decides how slow they are
            before[0] = done(pacing)
            await publish(pacing, 30 / TURNS_PER_SECOND, latency)
        assert hurts_from / 3 < pacing.bytes_per_second < hurts_from * 2
        disturbed.cancel()
        await asyncio.gather(disturbed, return_exceptions=True)

    simulated(story)


@pytest.mark.parametrize("least", [0.0, 3.0 * LEAST])
def test_work_never_ends_however_slow_commits_become(least: float) -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        worker = asyncio.ensure_future(work(pacing, least=least))
        await publish(pacing, 6, slow_beside(pacing))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        assert pacing.bytes_per_second == LEAST
        found = await beside(pacing, 20, slow_beside(pacing), least)
        assert max(LEAST, least) * 0.7 < found < max(LEAST, least) * 1.3

    simulated(story)


def test_rare_stalls_that_come_anyway_are_not_taken_for_the_works_doing() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        chance = random.Random(7)
        await beside(pacing, 60, lambda: 1.0 if chance.random() < 0.002 else QUIET_SECONDS)
        assert pacing.bytes_per_second > START_BYTES_PER_SECOND

    simulated(story)


def test_rare_stalls_count_where_work_makes_them() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        turns = iter(range(10**6))

        def stalls() -> float:
            hurts = pacing.bytes_per_second > 2 * START_BYTES_PER_SECOND and not pacing.calm
            return 0.1 if hurts and next(turns) % 50 == 0 else QUIET_SECONDS

        await beside(pacing, 20, stalls)
        assert pacing.bytes_per_second < 4 * START_BYTES_PER_SECOND
        settled = pacing.bytes_per_second
        await beside(pacing, 20, lambda: QUIET_SECONDS)
        assert pacing.bytes_per_second > 8 * settled, "what hurts no more is tried again"

    simulated(story)


def test_what_is_undisturbed_follows_a_load_that_grows() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        await beside(pacing, 5, lambda: QUIET_SECONDS)
        await beside(pacing, 8 * CALM_EVERY_SECONDS, lambda: 5 * QUIET_SECONDS)
        assert pacing.undisturbed_seconds == pytest.approx(5 * QUIET_SECONDS)
        rate = pacing.bytes_per_second
        await beside(pacing, 5, lambda: 5 * QUIET_SECONDS)
        assert pacing.bytes_per_second >= rate

    simulated(story)


def test_a_rate_that_was_found_outlives_a_pause() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        await beside(pacing, 10, slow_beside(pacing))
        found = pacing.bytes_per_second
        assert found < START_BYTES_PER_SECOND / 2
        for pause in (2 * IDLE_SECONDS, KEPT_SECONDS / 2):
            await asyncio.sleep(pause)
            assert pacing.idle
            await publish(pacing, 0.5, lambda: QUIET_SECONDS)
            assert not pacing.idle
            assert pacing.bytes_per_second == found
        await asyncio.sleep(KEPT_SECONDS)
        await publish(pacing, 0.5, lambda: QUIET_SECONDS)
        assert pacing.bytes_per_second == START_BYTES_PER_SECOND

    simulated(story)


def test_a_few_slow_commits_of_many_count_where_work_makes_them() -> None:
    """A sixteenth of them: no ninth in ten is slow."""

    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        number = [0]

        def latency() -> float:
            number[0] += 1
            return (2 if pacing_works(pacing) and number[0] % 16 == 0 else 1) * QUIET_SECONDS

        worker = asyncio.ensure_future(work(pacing))
        for _ in range(20 * MANY_PER_SECOND):
            await asyncio.sleep(1 / MANY_PER_SECOND)
            pacing.committed(latency())
        assert pacing.bytes_per_second < START_BYTES_PER_SECOND / 2
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    simulated(story)


def test_those_who_are_held_go_on_at_once_when_publishing_ends() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        await publish(pacing, 2, lambda: QUIET_SECONDS)
        assert not await pacing.take(Lane.DISK, 1 << 40)  # a debt of hours
        began = loop.time()
        await pacing.take(Lane.DISK, 1)
        assert loop.time() - began <= IDLE_SECONDS + STEP_SECONDS

    simulated(story)


async def rates(pacing: Pacing, loads: dict[Lane, float], seconds: float = 20) -> dict[Lane, float]:
    """Bytes a second by lane, of one worker in each, by the bytes a second that each states as its least, beside
    publishing that feels all of it."""
    workers = [asyncio.ensure_future(work(pacing, lane, MEBIBYTE // 4, least)) for lane, least in loads.items()]
    latency = slow_beside(pacing)
    await publish(pacing, 10, latency)
    assert (pacing.bytes_per_second, pacing.upkeep_share) == (LEAST, UPKEEP_SHARE_MIN)
    before = {lane: done(pacing, lane) for lane in loads}
    await publish(pacing, seconds, latency)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return {lane: (done(pacing, lane) - before[lane]) / seconds for lane in loads}


def test_readers_share_a_lane_evenly_and_lanes_do_not_wait_for_each_other() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        counts = [0, 0, 0]

        async def reader(number: int) -> None:
            while True:
                await pacing.take(Lane.DISK, MEBIBYTE)
                await asyncio.sleep(MEBIBYTE / DISK_BYTES_PER_SECOND)
                counts[number] += 1

        readers = [asyncio.ensure_future(reader(number)) for number in range(3)]
        splitter = asyncio.ensure_future(work(pacing, Lane.SPLIT))
        await publish(pacing, 10, slow_beside(pacing))
        counts[:] = [0, 0, 0]
        split_before = done(pacing, Lane.SPLIT)
        await publish(pacing, 40, slow_beside(pacing))
        for task in (*readers, splitter):
            task.cancel()
        await asyncio.gather(*readers, splitter, return_exceptions=True)
        assert max(counts) - min(counts) <= 1
        read, split = sum(counts) * MEBIBYTE, done(pacing, Lane.SPLIT) - split_before
        assert 0.7 * LEAST < (read + split) / 40 < 1.3 * LEAST
        assert 0.8 * read < split < 1.2 * read

    simulated(story)


@pytest.mark.parametrize(
    ("lanes", "parts"),
    [
        ({Lane.DISK: 0.0, Lane.SERVE: 0.0}, {Lane.DISK: 1.0, Lane.SERVE: 1.0}),
        ({Lane.SERVE: 0.0, Lane.DISK: 0.0, Lane.SPLIT: 0.0}, {Lane.SERVE: 0.5, Lane.DISK: 0.5, Lane.SPLIT: 0.5}),
        (
            {Lane.SERVE: 0.0, Lane.SPLIT: 0.0, Lane.UPKEEP: 0.0},
            {Lane.SERVE: 0.375, Lane.SPLIT: 0.375, Lane.UPKEEP: 0.25},
        ),
        (
            {Lane.SERVE: 0.0, Lane.SPLIT: 0.0, Lane.UPKEEP: 0.0, Lane.COPY: 0.0},
            {Lane.SERVE: SHARE_MIN, Lane.SPLIT: SHARE_MIN, Lane.UPKEEP: 0.25, Lane.COPY: 0.5},
        ),
        ({Lane.SERVE: 0.0, Lane.SPLIT: 1.5 * LEAST}, {Lane.SERVE: 0.5, Lane.SPLIT: 1.5}),
    ],
)
def test_kinds_of_work_that_are_done_at_once_share_the_least_rate(
    lanes: dict[Lane, float], parts: dict[Lane, float]
) -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        found = await rates(pacing, lanes)
        for lane, part in parts.items():
            assert 0.7 * part < found[lane] / LEAST < 1.3 * part, lane

    simulated(story)


def test_who_is_alone_again_has_all_of_the_least_rate() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        both = await rates(pacing, {Lane.SERVE: 0.0, Lane.SPLIT: 0.0})
        assert both[Lane.SERVE] < 0.65 * LEAST
        alone = await rates(pacing, {Lane.SERVE: 0.0})
        assert alone[Lane.SERVE] > 0.7 * LEAST

    simulated(story)


def test_a_slowdown_of_0_turns_it_off() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        await publish(pacing, 2, lambda: QUIET_SECONDS)
        began = loop.time()
        await pacing.take(Lane.SPLIT, 1 << 40)
        await pacing.take(Lane.SPLIT, 1 << 40)
        assert loop.time() == began

    simulated(story, slowdown_max=0)


@pytest.mark.parametrize(("lane", "share"), [(Lane.UPKEEP, UPKEEP_SHARE_MIN), (Lane.COPY, COPY_SHARE_MIN)])
def test_what_can_wait_goes_slower_than_the_least_of_others_and_is_the_first_to_get_faster(
    lane: Lane, share: float
) -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        worker = asyncio.ensure_future(work(pacing, lane, MEBIBYTE // 4))
        await publish(pacing, 10, slow_beside(pacing))
        assert (pacing.bytes_per_second, pacing.upkeep_share) == (LEAST, UPKEEP_SHARE_MIN)
        before = done(pacing, lane)
        await publish(pacing, 20, slow_beside(pacing))
        slow = (done(pacing, lane) - before) / 20
        assert LEAST * share * 0.7 < slow < LEAST * share * 1.3
        while pacing.upkeep_share < 1:
            assert pacing.bytes_per_second == LEAST
            await publish(pacing, 0.5, lambda: QUIET_SECONDS)
        await publish(pacing, 10, lambda: QUIET_SECONDS)
        assert pacing.bytes_per_second > LEAST
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    simulated(story)


def test_upkeep_gets_what_its_caller_needs_at_least() -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        worker = asyncio.ensure_future(work(pacing, Lane.UPKEEP, MEBIBYTE // 4, least=2.0 * LEAST))
        await publish(pacing, 10, slow_beside(pacing))
        before = done(pacing, Lane.UPKEEP)
        await publish(pacing, 20, slow_beside(pacing))
        assert 1.4 * LEAST < (done(pacing, Lane.UPKEEP) - before) / 20 < 2.6 * LEAST
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    simulated(story)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 10)), max_size=200))
def test_the_rate_stays_within_its_bounds_whatever_commits_take(turns: list[tuple[float, float]]) -> None:
    async def story(loop: SimulatedLoop, pacing: Pacing) -> None:
        worker = asyncio.ensure_future(work(pacing))
        for pause, seconds in turns:
            await asyncio.sleep(max(pause / 20, 0.0001))
            pacing.committed(seconds)
            assert LEAST <= pacing.bytes_per_second <= MOST_BYTES_PER_SECOND
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    simulated(story)
