"""The supervisor of the nodes of one machine: it starts all of them, starts one again that ends, and ends with all.

A node that ends before it was ever ready cannot start as it is configured: its last words are told, and the others are
stopped. One that was ready is started again, after a pause that doubles with each failure. A stop goes from the last
node to the first, one at a time: the nodes that vote on the metadata are the first ones, and go last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from mainstem.cli.processes.node_process import how_it_ended

RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 60.0
STEADY_SECONDS = 60.0
"""A node that was ready for so long has no failures behind it."""

STOP_SECONDS_MAX = 30.0
"""Of one node: it takes 20 seconds at most where it cannot close all; then it is killed, and recovers at its next
start."""

POLL_SECONDS = 0.1

SIGNALLED = 128
"""Added to the number of a signal that ended a process, as shells do."""

logger = logging.getLogger("mainstem.supervisor")


class Supervised(Protocol):
    """A node's process, as the supervisor sees it."""

    node_id: int
    last_words: str
    """The last line that the process wrote."""

    @property
    def ready(self) -> bool:
        """Whether clients were accepted since its last start."""

    def begin(self) -> None: ...

    def ended(self) -> int | None:
        """The code with which it ended, once; negative for a signal."""

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class Watched:
    """A node's process with what became of its starts."""

    def __init__(self, process: Supervised) -> None:
        self.process = process
        self.was_ready = False
        self.ready_since: float | None = None
        self.failures = 0
        self.runs = False
        self.starts_at = 0.0
        """The time of its next start, while it does not run."""


class Supervisor:
    """Runs on one thread. `stops_wanted` counts the signals that asked for a stop; the second one kills."""

    def __init__(
        self,
        processes: Sequence[Supervised],
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        all_ready: Callable[[], object],
    ) -> None:
        """`all_ready` is called once."""
        self._watched = [Watched(process) for process in processes]
        self._monotonic = monotonic
        self._sleep = sleep
        self._all_ready = all_ready
        self._said_ready = False
        self.stops_wanted = 0

    def run(self) -> int:
        """Until a stop is wanted, or a node cannot start. Returns the exit code: that of the node that cannot start,
        else the first one that is not 0 among those of the stop."""
        code = 0
        try:
            while not self.stops_wanted and not code:
                code = self._look()
                self._sleep(POLL_SECONDS)
        finally:
            stopped = self._stop()
        return code or stopped

    def _look(self) -> int:
        """One look at all processes; the exit code of one that cannot start, else 0."""
        for watched in self._watched:
            process, now = watched.process, self._monotonic()
            if not watched.runs:
                if now >= watched.starts_at:
                    process.begin()
                    watched.runs = True
                continue
            if process.ready and watched.ready_since is None:
                watched.was_ready, watched.ready_since = True, now
            if (code := process.ended()) is None:
                continue
            watched.runs = False
            if not (watched.was_ready or process.ready):
                logger.error(
                    "node %d cannot start (%s): %s; the other nodes are stopped",
                    process.node_id, how_it_ended(code), process.last_words or "it said nothing",
                )  # fmt: skip
                return _exit_code(code) or 1
            self._start_later(watched, code, now)
        if not self._said_ready and all(watched.was_ready for watched in self._watched):
            self._said_ready = True
            self._all_ready()
        return 0

    def _start_later(self, watched: Watched, code: int, now: float) -> None:
        since, watched.ready_since, watched.was_ready = watched.ready_since, None, True
        watched.failures = 1 if since is not None and now - since >= STEADY_SECONDS else watched.failures + 1
        pause = min(RESTART_SECONDS * 2 ** min(watched.failures - 1, 10), RESTART_SECONDS_MAX)
        watched.starts_at = now + pause
        words = f": {watched.process.last_words}" if code > 0 and watched.process.last_words else ""
        logger.error(
            "node %d %s with %s%s; it is started again in %.0f s",
            watched.process.node_id, "did not start again, and ended" if since is None else "ended", how_it_ended(code),
            words, pause,
        )  # fmt: skip

    def _stop(self) -> int:
        """All of them, from the last to the first. Returns the first exit code that is not 0."""
        first = 0
        for watched in reversed(self._watched):
            if not watched.runs:
                continue
            process = watched.process
            process.stop()
            deadline, killed = self._monotonic() + STOP_SECONDS_MAX, False
            while (code := process.ended()) is None:
                if not killed and (self.stops_wanted > 1 or self._monotonic() >= deadline):
                    logger.error("node %d is killed: it did not stop in time", process.node_id)
                    process.kill()
                    killed = True
                self._sleep(POLL_SECONDS)
            if code:
                logger.error("node %d stopped with %s: %s", process.node_id, how_it_ended(code), process.last_words)
            first = first or _exit_code(code)
        return first


def _exit_code(code: int) -> int:
    return SIGNALLED - code if code < 0 else code
