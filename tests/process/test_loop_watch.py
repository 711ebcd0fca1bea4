"""A loop that is really blocked: the log says where, once per stall, and the metrics for how long."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tests.harness.patience import PATIENCE_SECONDS

from mainstem.process.loop_watch import LoopWatch

STACK = "the event loop has stood still"
OVER = "the event loop goes on"
BEAT_SECONDS = 0.01


class WatchersClock:
    """Stands still until the loop is `blocked`; then each look of the watch takes it on by as much as lies between two
    looks, however late they come on a busy machine."""

    def __init__(self) -> None:
        self.now = 0.0
        self.blocked = False
        self.beats = 0
        """How often the loop has looked at it."""
        self._looks = 0
        self._loop_thread = threading.get_ident()
        self._reached = threading.Condition()

    def __call__(self) -> float:
        with self._reached:
            if threading.get_ident() == self._loop_thread:
                self.beats += 1
            else:
                self._looks += 1
                self.now += BEAT_SECONDS if self.blocked else 0.0
                self._reached.notify_all()
            return self.now

    def block_for_looks(self, looks: int) -> None:
        """Keep this thread to itself until the watch has looked so often; no time passes."""
        with self._reached:
            wanted = self._looks + looks
            assert self._reached.wait_for(lambda: self._looks >= wanted, PATIENCE_SECONDS), "the watch does not look"

    def block_until(self, moment: float) -> None:
        """Keep this thread, the loop's, to itself."""
        with self._reached:
            self.blocked = True
            reached = self._reached.wait_for(lambda: self.now >= moment, PATIENCE_SECONDS)
            self.blocked = False
        assert reached, "the watch does not look"


def blocked_here(clock: WatchersClock, until: threading.Event) -> None:
    clock.blocked = True
    assert until.wait(PATIENCE_SECONDS), "nobody said anything about it"
    clock.blocked = False


class Told(logging.Handler):
    """The lines that the watch logs; sets an event at each stack."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.stack = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if STACK in self.messages[-1]:
            self.stack.set()

    def of(self, text: str) -> list[str]:
        return [message for message in self.messages if text in message]


@contextmanager
def listening() -> Iterator[Told]:
    told, logger = Told(), logging.getLogger("mainstem.process.loop_watch")
    logger.addHandler(told)
    try:
        yield told
    finally:
        logger.removeHandler(told)


def watched(watch: LoopWatch, story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        watch.start()
        try:
            await story()
        finally:
            await watch.close()

    asyncio.run(run())


def test_a_blocked_loop_is_found_and_the_log_says_where() -> None:
    clock = WatchersClock()
    watch = LoopWatch(beat_seconds=BEAT_SECONDS, stall_seconds=0.1, told_seconds_min=0.0, monotonic=clock)

    async def story() -> None:
        blocked_here(clock, told.stack)
        await beats(clock)

    with listening() as told:
        watched(watch, story)
    (stack,) = told.of(STACK)
    assert "in blocked_here" in stack
    assert "in story" in stack
    assert len(told.of(OVER)) == 1
    assert watch.stalls == 1
    samples = {sample.name: sample.value for sample in watch.samples()}
    assert samples["mainstem_loop_stalls_total"] == 1
    assert samples["mainstem_loop_stall_seconds_max"] > 0.05


def test_stacks_are_logged_at_a_bounded_rate() -> None:
    clock = WatchersClock()
    watch = LoopWatch(beat_seconds=BEAT_SECONDS, stall_seconds=0.1, told_seconds_min=1e6, monotonic=clock)

    async def story() -> None:
        blocked_here(clock, told.stack)
        await beats(clock)
        clock.block_until(clock.now + 0.3)
        await beats(clock)

    with listening() as told:
        watched(watch, story)
    assert watch.stalls == 2
    assert len(told.of(STACK)) == 1
    assert len(told.of(OVER)) == 1, "who was not told of a stall is not told of its end"


def test_a_process_that_was_stopped_as_a_whole_has_no_loop_that_hangs() -> None:
    """The clock jumps for both."""
    clock = WatchersClock()
    watch = LoopWatch(beat_seconds=BEAT_SECONDS, stall_seconds=100.0, told_seconds_min=0.0, monotonic=clock)

    async def story() -> None:
        await beats(clock)
        clock.now += 1000.0
        clock.block_for_looks(3)  # the thread may wake up some time before the loop
        await beats(clock)

    with listening() as told:
        watched(watch, story)
    assert not told.of(STACK), "it would blame whatever the loop happens to do"
    assert len(told.of("the whole process had stood still for 1000")) == 1
    assert watch.stalls == 1, "nobody was served all the same"


async def beats(clock: WatchersClock) -> None:
    """Until the loop has beaten a few times more."""
    until = clock.beats + 3
    while clock.beats < until:  # noqa: ASYNC110  # nothing tells of a beat
        await asyncio.sleep(BEAT_SECONDS / 2)
