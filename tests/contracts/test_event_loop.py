"""The event loop: those of the simulations keep what nodes rely on in asyncio's and in uvloop's.

Left open is the order of timers that are due at the same time, and how long work in a thread takes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable

import pytest
from tests.fakes.simulated_loop import SimulatedLoop
from tests.harness.patience import PATIENCE_SECONDS
from tests.simulation.cluster.lives import ClusterLoop, Life

from mainstem.process.event_loop import new_event_loop

Story = Callable[[], Awaitable[None]]
Tell = Callable[[Story], None]

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.fixture(params=["asyncio", "node", "simulated", "cluster", "life in a cluster"])
def tell(request: pytest.FixtureRequest) -> Tell:
    def told(story: Story) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await story()

        async def lived(loop: ClusterLoop) -> None:
            await loop.run_in(Life(1, 1), bounded())

        loop: asyncio.AbstractEventLoop
        match request.param:
            case "asyncio":
                loop = asyncio.SelectorEventLoop()
            case "node":
                loop = new_event_loop()
            case "simulated":
                loop = SimulatedLoop()
            case _:
                loop = ClusterLoop()
        try:
            inside = request.param == "life in a cluster"
            loop.run_until_complete(lived(loop) if inside and isinstance(loop, ClusterLoop) else bounded())
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    return told


def test_what_is_called_soon_runs_in_its_order_and_what_that_calls_behind_it(tell: Tell) -> None:
    async def story() -> None:
        loop, seen = asyncio.get_running_loop(), list[str]()
        done = loop.create_future()

        def first() -> None:
            seen.append("first")
            loop.call_soon(seen.append, "called by the first")
            loop.call_soon(done.set_result, None)

        loop.call_soon(first)
        loop.call_soon(seen.append, "second")
        loop.call_soon(seen.append, "cancelled").cancel()
        assert seen == [], "nothing runs at once"
        await done
        assert seen == ["first", "second", "called by the first"]

    tell(story)


def test_timers_come_due_in_the_order_of_their_times(tell: Tell) -> None:
    async def story() -> None:
        loop, seen = asyncio.get_running_loop(), list[int]()
        began = loop.time()
        for tens in (3, 1, 4, 2):
            loop.call_at(began + tens / 100, seen.append, tens)
        loop.call_later(0.015, seen.append, 15).cancel()
        await asyncio.sleep(0.05)
        assert round(loop.time() - began, 9) >= 0.05, "but for what floats round"
        assert seen == [1, 2, 3, 4]

    tell(story)


def test_a_timer_that_was_due_long_ago_is_due_now(tell: Tell) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.001)
        came = loop.create_future()
        before = loop.time()
        loop.call_at(before - 5, came.set_result, "came")
        assert await came == "came"
        assert loop.time() >= before, "time does not go back for it"

    tell(story)


def test_time_stands_still_for_nobody_and_sleepers_wake_in_order(tell: Tell) -> None:
    async def story() -> None:
        loop, woken = asyncio.get_running_loop(), list[float]()

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        before = loop.time()
        await asyncio.gather(*map(sleeper, (0.03, 0.01, 0.02)))
        assert woken == [0.01, 0.02, 0.03]
        assert round((loop.time() - before) * 1000) >= 30, "in the milliseconds of uvloop's clock, as floats round"

    tell(story)


def test_who_waits_too_long_hears_so_and_what_it_waited_for_is_cancelled(tell: Tell) -> None:
    async def story() -> None:
        ended: list[str] = []

        async def slow() -> None:
            try:
                await asyncio.sleep(PATIENCE_SECONDS / 2)
            finally:
                ended.append("slow")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow(), 0.01)
        assert ended == ["slow"]
        assert asyncio.all_tasks() == {asyncio.current_task()} | waiting_outside()

    tell(story)


def waiting_outside() -> set[asyncio.Task[object]]:
    """The task that waits for the story."""
    return {task for task in asyncio.all_tasks() if "lived" in repr(task.get_coro())}


def test_tasks_and_callbacks_inherit_where_they_were_made(tell: Tell) -> None:
    async def story() -> None:
        loop, seen = asyncio.get_running_loop(), list[str]()
        WHO.set("maker")

        async def task() -> None:
            seen.append(WHO.get())
            WHO.set("task")

        made = loop.create_task(task())
        loop.call_later(0.001, lambda: seen.append(WHO.get()))
        WHO.set("later")
        await made
        await asyncio.sleep(0.01)
        assert seen == ["maker", "maker"]
        assert WHO.get() == "later"

    tell(story)


def test_work_for_a_thread_has_its_outcome_later(tell: Tell) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        doing = loop.run_in_executor(None, lambda: 6 * 7)
        assert not doing.done()
        assert await doing == 42

        def fails() -> None:
            raise ZeroDivisionError("the work's own")

        with pytest.raises(ZeroDivisionError, match="own"):
            await loop.run_in_executor(None, fails)

    tell(story)


def test_work_for_a_thread_is_done_though_nobody_waits_for_it_any_more(tell: Tell) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        may_end, ended = threading.Event(), asyncio.Event()

        def work() -> None:
            if not isinstance(loop, SimulatedLoop):  # which has no threads: nobody could tell it to go on
                may_end.wait(PATIENCE_SECONDS)
            loop.call_soon_threadsafe(ended.set)

        doing = loop.run_in_executor(None, work)
        await asyncio.sleep(0)
        doing.cancel()
        may_end.set()
        await ended.wait()

    tell(story)


def test_a_task_that_is_cancelled_may_take_its_time_and_has_then_ended(tell: Tell) -> None:
    async def story() -> None:
        steps: list[str] = []

        async def careful() -> None:
            try:
                await asyncio.sleep(PATIENCE_SECONDS / 2)
            except asyncio.CancelledError:
                await asyncio.sleep(0.001)
                steps.append("put away")
                raise

        task = asyncio.get_running_loop().create_task(careful(), name="careful")
        await asyncio.sleep(0)
        task.cancel()
        assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (steps, task.cancelled(), task.get_name()) == (["put away"], True, "careful")

    tell(story)


def test_a_group_of_tasks_ends_with_the_first_that_fails(tell: Tell) -> None:
    async def story() -> None:
        ended: list[str] = []

        async def patient(name: str) -> None:
            try:
                await asyncio.sleep(PATIENCE_SECONDS / 2)
            finally:
                ended.append(name)

        async def fails() -> None:
            await asyncio.sleep(0.001)
            raise ZeroDivisionError

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(patient("one"))
                group.create_task(patient("other"))
                group.create_task(fails())

        with pytest.raises(ExceptionGroup) as raised:
            await together()
        assert sorted(ended) == ["one", "other"]
        assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]

    tell(story)
