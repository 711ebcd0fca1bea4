"""The line on stderr that tells how far something is: in place on a terminal, else a new one now and then.

The line is made when it is due, not when it is offered, so that a loop may offer one per turn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from mainstem.cli.terminal.output import size, stderr

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_TERMINAL_SECONDS = 0.25
"""Often enough to look alive; the speeds shown are those of this time."""
PIPE_SECONDS = 5.0
BAR_CELLS = 20
"""One of ten write groups is seen, and there is room for words behind it on a line of 80."""

progress_option = click.option(
    "--progress/--no-progress", default=None, help="Show how far it is. Default: on a terminal."
)


def bar(done: int, total: int) -> str:
    """`[########------------]`: so much of it is done."""
    full = BAR_CELLS * done // total if total else BAR_CELLS
    return f"[{'#' * full}{'-' * (BAR_CELLS - full)}]"


class StatusLine(contextlib.AbstractContextManager["StatusLine"]):
    """`shown` as the option --progress/--no-progress has it: None is yes on a terminal."""

    def __init__(
        self,
        shown: bool | None,
        *,
        pipe_seconds: float | None = None,
        console: Console | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or stderr()
        self._shown = self._console.is_terminal if shown is None else shown
        self._seconds = _TERMINAL_SECONDS if self._console.is_terminal else pipe_seconds or PIPE_SECONDS
        self._monotonic = monotonic
        self._live: Live | None = None
        self._told_at = monotonic()

    def __enter__(self) -> Self:
        if self._shown and self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, auto_refresh=False, redirect_stdout=False)
            self._live.start()
        self._told_at = self._monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def due(self, make: Callable[[float], str]) -> None:
        """Show another line if it is time for one; `make` gets the seconds since the last."""
        now = self._monotonic()
        passed = now - self._told_at
        if not self._shown or passed < self._seconds:
            return
        line = make(passed)
        self._told_at = now
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._console.print(line, soft_wrap=True)


class ProgressLine(StatusLine):
    """Tells of a number of bytes how fast it grows."""

    _bytes = 0

    def offer(self, done_bytes: int, rest: Callable[[], str]) -> None:
        """`done_bytes` so far; `rest` makes what follows the speed."""

        def line(passed: float) -> str:
            speed, self._bytes = (done_bytes - self._bytes) / passed, done_bytes
            return f"{size(int(speed))}/s, {rest()}"

        self.due(line)
