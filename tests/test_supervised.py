"""Background tasks: one that dies is begun again or ends the node, and whoever asks is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes.simulated_loop import SimulatedLoop
from tests.storage.small_node import SmallNode, simulated

from mainstem.supervised import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, Errands, OnDeath, Supervision


def on_simulated_time(story: Callable[[], Awaitable[None]]) -> None:
    loop = SimulatedLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


class Failing:
    """Dies so many times, then waits until it is stopped."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.begun_at: list[float] = []

    async def run(self) -> None:
        self.begun_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        if len(self.begun_at) <= self.times:
            raise ValueError(f"number {len(self.begun_at)}")
        await asyncio.Event().wait()


def test_a_task_that_dies_is_begun_again_after_longer_and_longer_pauses() -> None:
    async def story() -> None:
        supervision, failing = Supervision(), Failing(9)
        task = supervision.start(failing.run, "worker")
        await asyncio.sleep(0.1)
        assert supervision.why_not() == "task 'worker' failed and is begun again soon: ValueError: number 1"
        assert not supervision.lost
        await asyncio.sleep(300)
        pauses = [later - earlier for earlier, later in zip(failing.begun_at, failing.begun_at[1:], strict=False)]
        assert len(pauses) == 9
        assert pauses[0] == pytest.approx(PAUSE_SECONDS_MIN + 0.01)
        assert pauses[-1] == pytest.approx(PAUSE_SECONDS_MAX + 0.01)
        assert supervision.why_not() is None
        samples = {(sample.name, sample.labels): sample.value for sample in supervision.samples()}
        assert samples["mainstem_task_failures_total", (("task", "worker"),)] == 9
        assert samples["mainstem_tasks", (("state", "running"),)] == 1
        assert samples["mainstem_tasks", (("state", "dead"),)] == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    on_simulated_time(story)


def test_a_task_that_fails_as_it_is_cancelled_is_not_begun_again() -> None:
    async def scenario() -> None:
        begun = 0
        begins = asyncio.Event()

        async def fails_when_cancelled() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise OSError("the disk is gone") from None

        async def run() -> None:
            nonlocal begun
            begun += 1
            begins.set()
            await asyncio.gather(fails_when_cancelled(), asyncio.sleep(3600))

        supervision = Supervision()
        task = supervision.start(run, "work")
        await begins.wait()
        await asyncio.sleep(0)
        task.cancel()
        done, _pending = await asyncio.wait([task], timeout=10)
        assert task in done
        assert task.cancelled()
        assert begun == 1
        assert supervision.why_not() is None

    asyncio.run(scenario())


def test_a_task_that_nothing_goes_on_without_ends_the_node() -> None:
    async def story() -> None:
        supervision, failing = Supervision(), Failing(1)
        ended: list[bool] = []
        supervision.ended.add_done_callback(lambda _: ended.append(True))
        await supervision.start(failing.run, "writer", OnDeath.END)
        assert (ended, len(failing.begun_at)) == ([True], 1)
        assert supervision.lost
        assert supervision.why_not() == "task 'writer' died: ValueError: number 1"

    on_simulated_time(story)


def test_a_task_that_returns_has_done_its_work() -> None:
    async def story() -> None:
        supervision = Supervision()
        await supervision.start(lambda: asyncio.sleep(0), "once", OnDeath.END)
        assert supervision.why_not() is None

    on_simulated_time(story)


async def dies(error: Exception) -> None:
    await asyncio.sleep(1)
    raise error


def test_an_errand_that_dies_is_counted_and_nothing_else_ends_with_it() -> None:
    async def story() -> None:
        supervision = Supervision()
        errands = Errands(supervision, "errand", answers=(LookupError,))
        errands.start(dies(ValueError("made up")))
        asked = errands.start(dies(KeyError("that there is none")))
        long = errands.start(asyncio.sleep(5, "done"))
        assert len(errands) == 3
        with pytest.raises(KeyError):
            await asked
        assert await long == "done"
        await errands.ended()
        assert supervision.why_not() is None
        failures = {sample.labels: sample.value for sample in supervision.samples() if "failures" in sample.name}
        assert failures == {(("task", "errand"),): 1}

    on_simulated_time(story)


def test_an_errand_that_has_ended_is_not_under_way_even_before_its_end_is_told() -> None:
    async def story() -> None:
        errands, seen = Errands(None, "errand"), []

        async def last_step() -> None:
            asyncio.get_running_loop().call_soon(lambda: seen.append(len(errands)))

        await errands.start(last_step())
        assert seen == [0], "who looks whether to begin another one would wait for it in vain"

    on_simulated_time(story)


def test_errands_are_cancelled_and_waited_for() -> None:
    async def story() -> None:
        errands, ended = Errands(None, "errand"), []

        async def takes_its_time() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(3)
                ended.append(asyncio.get_running_loop().time())

        errands.start(takes_its_time())
        await asyncio.sleep(1)
        errands.cancel()
        await errands.ended()
        assert len(ended) == 1

    on_simulated_time(story)


def test_a_failed_disk_ends_the_node_once_and_says_what_to_do() -> None:
    supervision = Supervision(lambda: 0.0)
    ended: list[bool] = []
    supervision.ended.add_done_callback(lambda _: ended.append(True))
    supervision.disk_failed("a write failed")
    supervision.disk_failed("votes cannot be written")
    assert ended == [True]
    assert supervision.lost
    assert (supervision.why_not() or "").startswith("disk 1 failed, and this node ends: a write failed; put the disk")


def test_what_stands_still_is_found_out_by_its_pulse() -> None:
    async def story() -> None:
        supervision = Supervision()
        supervision.beat("ticks", 5)
        await asyncio.sleep(5)
        assert supervision.why_not() is None
        await asyncio.sleep(1)
        assert "ticks stopped: nothing of it for 6 s" in (supervision.why_not() or "")
        assert supervision.lost
        supervision.beat("ticks", 5)
        assert not supervision.lost
        supervision.ceased("ticks")
        await asyncio.sleep(50)
        assert supervision.why_not() is None

    on_simulated_time(story)


def test_a_storage_role_whose_parts_die_says_so_or_goes_on(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        supervision = node.storage.supervision
        assert supervision.why_not() is None

        def broken() -> None:
            raise RuntimeError("a group's tick failed")

        node.storage.groups[0].tick = broken  # type: ignore[method-assign]
        await asyncio.sleep(1)
        assert supervision.lost
        assert "task 'consensus' died: RuntimeError" in (supervision.why_not() or "")

    simulated(tmp_path, story)


def test_a_storage_role_whose_clock_stands_still_is_lost(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await asyncio.sleep(60)
        assert not node.storage.supervision.lost
        (ticking,) = (task for task in asyncio.all_tasks() if task.get_name() == "consensus")
        ticking.cancel()  # as if it waited for something that never comes
        await asyncio.sleep(60)
        assert node.storage.supervision.lost

    simulated(tmp_path, story)
