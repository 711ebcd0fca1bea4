"""The background tasks of a node: what becomes of one that dies, and who is told.

A task that dies by itself would leave a node that looks well and no longer does part of its work. So each is started
here, and says what its death means:

* RESTART: it holds nothing that an error could leave half changed. It is begun again after a pause.
* END: the rest of the node relies on what it leaves behind. The node ends, and its next start recovers from the disks.

A task that returns has done its work. One that is cancelled was stopped by its owner. What still runs and does nothing
is found out by its pulse: it says that it is well as often as it should, or the node is not.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from mainstem.model import Sample

log = logging.getLogger(__name__)

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Before a task that died is begun again; doubled each time that it dies before it was well for as long."""


class OnDeath(enum.Enum):
    RESTART = "restart"
    END = "end"


class Supervision:
    """Of one node, or of one room where it is looked at alone. The tasks themselves belong to who starts them."""

    def __init__(self, monotonic: Callable[[], float] | None = None) -> None:
        """`monotonic`: the node's clock; None: that of the loop in which it is asked."""
        self._monotonic = monotonic or (lambda: asyncio.get_running_loop().time())
        self.on_end: Callable[[], object] = lambda: None
        """Called when a task died that the node cannot do without. The node sets it."""
        self._running: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._down: dict[str, str] = {}
        """Tasks that died and were not begun again yet, and why."""
        self._dead: dict[str, str] = {}
        """Those that will not be."""
        self._pulses: dict[str, tuple[float, float]] = {}
        """When a pulse was felt last, and how many seconds may pass until the next."""

    def start(
        self, run: Callable[[], Coroutine[Any, Any, None]], name: str, on_death: OnDeath = OnDeath.RESTART
    ) -> asyncio.Task[None]:
        """Begin a task. `run` is called again for each new beginning."""
        return asyncio.get_running_loop().create_task(self._keep(run, name, on_death), name=name)

    def beat(self, name: str, seconds_max: float) -> None:
        """A pulse; the next is to come within so many seconds."""
        self._pulses[name] = self._monotonic(), seconds_max

    def ceased(self, name: str) -> None:
        """No more pulses are to come: the task is stopped."""
        self._pulses.pop(name, None)

    def why_not(self) -> str | None:
        """What is wrong with the node's tasks; None: nothing."""
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
        """A task died that the node cannot do without, or stands still."""
        now = self._monotonic()
        return bool(self._dead) or any(now - felt > most for felt, most in self._pulses.values())

    def samples(self) -> Iterable[Sample]:
        what = "Background tasks: running, and dead, those included that are begun again soon."
        dead = len(self._dead) + len(self._down)
        for state, count in (("running", sum(self._running.values())), ("dead", dead)):
            yield Sample("mainstem_tasks", "gauge", what, count, (("state", state),))
        for name, count in self._failures.items():
            what = "Deaths of a background task by an error of its own."
            yield Sample("mainstem_task_failures_total", "counter", what, count, (("task", name),))

    async def _keep(self, run: Callable[[], Coroutine[Any, Any, None]], name: str, on_death: OnDeath) -> None:
        pause = PAUSE_SECONDS_MIN
        while True:
            began = self._monotonic()
            self._running[name] += 1
            try:
                await run()
                return
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                self._failures[name] += 1
                if on_death is OnDeath.END:
                    self._dead[name] = reason
                    log.critical("task %r died, and this node cannot do without it; it ends", name, exc_info=error)
                    self.on_end()
                    return
                self._down[name] = reason
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
