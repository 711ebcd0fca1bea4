"""The line on stderr that tells how a measurement goes: in place on a terminal, else a new one every second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from mainstem.cli.bench.summary import speeds
from mainstem.cli.terminal.progress_line import StatusLine

_PIPE_SECONDS = 1.0

progress_option = click.option(
    "--progress/--no-progress", default=None, help="Show how it goes. Default: on a terminal."
)


class LiveLine(StatusLine):
    """Tells of records and their bytes how fast they grow."""

    def __init__(self, shown: bool | None, **others: Any) -> None:
        """As `StatusLine`."""
        super().__init__(shown, pipe_seconds=_PIPE_SECONDS, **others)
        self._records = self._bytes = 0

    def offer(self, records: int, record_bytes: int, rest: Callable[[], str]) -> None:
        """`records` and `record_bytes` so far; `rest` makes what follows the speeds."""

        def line(passed: float) -> str:
            speed = speeds(record_bytes - self._bytes, records - self._records, passed)
            self._records, self._bytes = records, record_bytes
            return f"{speed}, {rest()}"

        self.due(line)
