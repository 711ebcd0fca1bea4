"""Supervises the background tasks of a node: restarts a task that dies, or ends the node, and reports it.

A task that dies by itself would leave a node that looks well and no longer does part of its work. So each is started
here, with the consequence of its death:

* RESTART: it holds nothing that an error could leave half changed. It begins again after a pause.
* END: the rest of the node relies on its work. The node ends, and its next start recovers from the disks.

A task that returns has done its work; its owner stops it by cancelling it. A task that runs without doing its work
shows by its pulse: it must beat as often as it promised, or the node is not well.

Short tasks that end by themselves are `Errands` of the code that begins them. The caller that awaits an errand gets
its outcome; an unforeseen error ends that errand alone, and is logged and counted like any other death.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from mainstem.errors import DISK_REMEDY
from mainstem.model import Sample
from mainstem.prompt_future import PromptFuture

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Seconds before a dead task begins again; doubled each time that it dies before it ran well for as long."""


class OnDeath(enum.Enum):
    RESTART = "restart"
    END = "end"


class Supervision:
    """Watches the tasks of one node, or of one room that is tested alone. The code that starts a task owns
    it."""

    def __init__(self, monotonic: Callable[[], float] | None = None) -> None:
        """`monotonic`: the node's clock; None: that of the running loop."""
        self._monotonic = monotonic or (lambda: asyncio.get_running_loop().time())
        self.ended: PromptFuture[None] = PromptFuture()
        """Settled when a task has died that the node cannot do without, or disk 1 has failed: the node ends."""
        self.disk_failure: str | None = None
        """How disk 1 failed, in words; None: it has not."""
        self._running: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._down: dict[str, str] = {}
        """Dead tasks that have not begun again yet, and why."""
        self._dead: dict[str, str] = {}
        """Dead tasks that will not begin again."""
        self._pulses: dict[str, tuple[float, float]] = {}
        """When each pulse last beat, and how many seconds may pass until the next beat."""

    def start(
        self, run: Callable[[], Coroutine[Any, Any, None]], name: str, on_death: OnDeath = OnDeath.RESTART
    ) -> asyncio.Task[None]:
        """Begin a task. `run` is called again for each new beginning."""
        return asyncio.get_running_loop().create_task(self.keep(run, name, on_death), name=name)

    def disk_failed(self, reason: str) -> None:
        """Disk 1 refused a write, and not for lack of room. Only the next start can tell what it holds: the
        node ends. Its tasks are not at fault."""
        if self.disk_failure is None:
            self.disk_failure = reason
            self._end()

    def died(self, name: str, error: Exception) -> None:
        """A part that the node cannot do without died by an unforeseen error."""
        self._failures[name] += 1
        self._dead[name] = f"{type(error).__name__}: {error}"
        log.critical("task %r died, and this node cannot do without it; it ends", name, exc_info=error)
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def errand_died(self, name: str, error: BaseException) -> None:
        """A short task died by an unforeseen error."""
        self._failures[name] += 1
        log.error("task %r died; nothing else ends with it", name, exc_info=error)

    def beat(self, name: str, seconds_max: float) -> None:
        """Note a beat; the next must come within `seconds_max`."""
        self._pulses[name] = self._monotonic(), seconds_max

    def ceased(self, name: str) -> None:
        """No more beats will come: the task is stopped."""
        self._pulses.pop(name, None)

    def why_not(self) -> str | None:
        """The fault in the node's tasks, or in disk 1; None: there is none."""
        if self.disk_failure is not None:
            return f"disk 1 failed, and this node ends: {self.disk_failure}; {DISK_REMEDY}"
        for name, reason in self._dead.items():
            return f"task {name!r} died: {reason}"
        now = self._monotonic()
        for name, (felt_at, seconds_max) in self._pulses.items():
            if now - felt_at > seconds_max:
                return f"{name} stopped: nothing of it for {now - felt_at:.0f} s, where {seconds_max:g} s are the most"
        for name, reason in self._down.items():
            return f"task {name!r} failed and is begun again soon: {reason}"
        return None

    @property
    def lost(self) -> bool:
        """Whether a task died that the node cannot do without, or stands still, or disk 1 failed."""
        now = self._monotonic()
        if self._dead or self.disk_failure is not None:
            return True
        return any(now - felt > most for felt, most in self._pulses.values())

    def samples(self) -> Iterable[Sample]:
        what = "Background tasks: running, and dead, those included that are begun again soon."
        dead = len(self._dead) + len(self._down)
        for state, count in (("running", sum(self._running.values())), ("dead", dead)):
            yield Sample("mainstem_tasks", "gauge", what, count, (("state", state),))
        for name, count in self._failures.items():
            what = "Deaths of a background task by an error of its own."
            yield Sample("mainstem_task_failures_total", "counter", what, count, (("task", name),))

    async def keep(
        self, run: Callable[[], Coroutine[Any, Any, None]], name: str, on_death: OnDeath = OnDeath.RESTART
    ) -> None:
        """Run as `start` does, in a task of the caller's. Raises nothing but `CancelledError`."""
        pause = PAUSE_SECONDS_MIN
        while True:
            began = self._monotonic()
            self._running[name] += 1
            try:
                await run()
                return
            except Exception as error:
                task = asyncio.current_task()
                assert task is not None
                if task.cancelling():  # `asyncio.gather` tells only how a part of it failed meanwhile
                    raise asyncio.CancelledError from error
                if on_death is OnDeath.END:
                    self.died(name, error)
                    return
                self._failures[name] += 1
                self._down[name] = f"{type(error).__name__}: {error}"
                if self._monotonic() - began > pause:
                    pause = PAUSE_SECONDS_MIN
                log.error("task %r died; it is begun again in %g s", name, pause, exc_info=error)
            finally:
                self._running[name] -= 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._down.pop(name, None)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


class Errands:
    """Holds the short tasks of one owner. Not bound to a loop when made; `start` is called on the one they
    run on."""

    def __init__(
        self, supervision: Supervision | None, name: str, *, answers: tuple[type[Exception], ...] = ()
    ) -> None:
        """`name`: that of each task, in the log and in `mainstem_task_failures_total`. `answers`: errors that
        are ordinary outcomes, for the code that awaits the task. Without `supervision` deaths are only
        logged."""
        self._supervision = supervision or Supervision()
        self._answers = answers
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many are under way; the owner bounds it. A task that has ended does not count, even before its
        owner is told."""
        return sum(not task.done() for task in self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task. Its outcome goes to the code that awaits it; it need not be awaited."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, self._answers):
            self._supervision.errand_died(self._name, error)

    def cancel(self) -> None:
        """Cancel all tasks under way."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until none is under way. `Supervision` reports those that fail."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
            await asyncio.sleep(0)  # `_ended` runs
