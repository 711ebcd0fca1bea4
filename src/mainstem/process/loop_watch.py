"""Notices when the event loop stands still, and logs where: a blocked loop answers no probe, and logs
nothing.

The loop beats once a second; a thread checks that it did. Without a beat for longer than `STALL_SECONDS` the thread
logs the stack of the loop's thread, once per stall and at most once a minute; when the loop goes on, it logs how long
it stood still. Shorter stalls, down to late beats, are in the metrics only.

If the thread was late as well, no stack can show where the loop was: the process was stopped as a whole (a debugger,
a suspended machine), or some code kept the interpreter to itself. The loop says so when it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable

from mainstem.model import Sample

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
STALL_SECONDS = 10.0
"""A turn of the loop takes milliseconds, and even on the slowest of machines less than this."""
TOLD_SECONDS_MIN = 60.0
"""Seconds between two stacks in the log."""


class LoopWatch:
    """Watches one loop; call `start` and `close` on that loop. Implements `ports.Statistics`."""

    def __init__(
        self,
        *,
        beat_seconds: float = BEAT_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        told_seconds_min: float = TOLD_SECONDS_MIN,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beat_seconds = beat_seconds
        self._stall_seconds = stall_seconds
        self._told_seconds_min = told_seconds_min
        self._monotonic = monotonic
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = 0.0
        """When the loop last beat; written by the loop, read by the thread."""
        self._told_of = -1.0
        """The beat before the stall whose stack was logged; written by the thread, read by the loop."""
        self._looked_at = 0.0
        """When the thread last logged a stack; used by the thread alone."""
        self._looked_late = False
        """Whether a check of the thread came much later than it was due, since the loop last beat."""
        self.longest_seconds = 0.0
        """The longest delay of a beat so far, in seconds."""
        self.stalls = 0
        """How many times there was no beat for as long as a stall takes."""

    def start(self) -> None:
        """Begin; called on the loop to be watched."""
        self._loop_thread = threading.get_ident()
        self._beat_at = self._looked_at = self._monotonic()
        self._schedule()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End; the loop may block from now on."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._beat_seconds, self._beat)

    def _beat(self) -> None:
        now, before = self._monotonic(), self._beat_at
        self._beat_at = now
        self.longest_seconds = max(self.longest_seconds, now - before - self._beat_seconds)
        if now - before > self._stall_seconds:
            self.stalls += 1
            if self._told_of == before:
                log.error("the event loop goes on: it had stood still for %.1f s", now - before)
            elif self._looked_late or now - self._looked_at > self._stall_seconds / 2:
                log.error(
                    "the whole process had stood still for %.1f s: it was stopped, or something kept the interpreter "
                    "to itself", now - before,
                )  # fmt: skip
        self._looked_late = False
        self._schedule()

    def _watch(self) -> None:
        told_at = awake_at = float("-inf")  # since `awake_at` the loop could have beaten
        while not self._ended.wait(self._beat_seconds):
            now = self._monotonic()
            beat_at = self._beat_at
            late, self._looked_at = now - self._looked_at > self._stall_seconds / 2, now
            if late:  # the loop may be slower to go on than the next checks, which are in time
                self._looked_late, awake_at = True, now
            stalled = now - max(beat_at, awake_at) > self._stall_seconds and self._told_of != beat_at
            if stalled and now - told_at >= self._told_seconds_min:
                told_at, self._told_of = now, beat_at
                self._tell(now - beat_at)

    def _tell(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  # its documented name
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "its thread is gone\n"
        log.critical(
            "the event loop has stood still for %.1f s, nobody is served meanwhile; its thread is here:\n%s",
            seconds, stack.rstrip(),
        )  # fmt: skip

    def samples(self) -> Iterable[Sample]:
        longest = "How long the event loop stood still at the most since the start"
        yield Sample("mainstem_loop_stall_seconds_max", "gauge", longest, self.longest_seconds)
        yield Sample(
            "mainstem_loop_stalls_total", "counter",
            f"How often the event loop stood still for longer than {self._stall_seconds:g} s", self.stalls)  # fmt: skip
