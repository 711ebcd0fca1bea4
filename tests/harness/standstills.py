"""Tells where a test stands when one of its steps takes long, while it still does: by the time that the step fails,
what it waited for is gone."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

STANDSTILL_SECONDS = float(os.environ.get("STANDSTILL_SECONDS", "45"))
"""After which it is told, again and again. It fails nothing."""
TICK_SECONDS = 0.2
LINES_KEPT = 1_000
LINES_TOLD = 200


class ClientLog(logging.Handler):
    """The last lines that a client has logged; librdkafka's `logger` may be one with this handler."""

    def __init__(self, lines: int = LINES_KEPT) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=lines)
        self._newest = ""
        self._repeats = 0

    def emit(self, record: logging.LogRecord) -> None:
        """A line that repeats the one before is counted. Threads of librdkafka that end say so in a loop: that says
        nothing."""
        message = record.getMessage()
        if "Handle is terminating in state" in message:
            return
        if message == self._newest:
            self._repeats += 1
            return
        if self._repeats:
            self._lines.append(f"  and {self._repeats} times more")
        self._newest, self._repeats = message, 0
        self._lines.append(f"{record.created:.3f} {message}")

    def logger(self, name: str) -> logging.Logger:
        """A logger of its own that writes here and nowhere else."""
        logger = logging.Logger(name, logging.DEBUG)
        logger.addHandler(self)
        return logger

    def last(self, lines: int = LINES_TOLD) -> list[str]:
        return list(self._lines)[-lines:]


class Standstills:
    """`tell` says what is to be known of the world; it is asked in a thread of its own while the step still waits.
    `tick` is called there several times a second: logs of clients come out, at their time, when somebody polls."""

    def __init__(
        self,
        tell: Callable[[], str],
        tick: Callable[[], object] = lambda: None,
        seconds: float = STANDSTILL_SECONDS,
        output: TextIO | None = None,
    ) -> None:
        self._tell = tell
        self._tick = tick
        self._seconds = seconds
        self._output = output
        self.told: list[str] = []
        """The steps that took long."""

    @contextmanager
    def watched(self, step: str) -> Iterator[None]:
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(step, over), daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _watch(self, step: str, over: threading.Event) -> None:
        began = time.monotonic()
        due = began + self._seconds
        while not over.wait(TICK_SECONDS):
            self._tick()
            if time.monotonic() < due:
                continue
            due += self._seconds
            self.told.append(step)
            told = [f"{step} has taken {time.monotonic() - began:.0f} s so far.", self._world(), stacks()]
            print(*told, sep="\n", file=self._output or sys.stderr, flush=True)

    def _world(self) -> str:
        try:
            return self._tell()
        except Exception as failure:  # whatever fails, the stacks are still to be told
            return f"more is not known: {failure!r}"


def stacks() -> str:
    """Of all threads of this process."""
    with tempfile.TemporaryFile("w+") as written:
        faulthandler.dump_traceback(written, all_threads=True)
        written.seek(0)
        return written.read()
