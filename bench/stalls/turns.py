"""An event loop that measures its turns: the processor time of its own thread between two looks at the network.

Time in which other threads hold the interpreter, or the machine does something else, is not counted: what is measured
is what the code asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any


class MeasuredLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.largest_seconds = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turns += 1
        self.largest_seconds = max(self.largest_seconds, time.thread_time() - began)

    async def measured(self, work: Awaitable[Any]) -> tuple[float, int]:
        """(largest turn in seconds of the thread's own time, how many turns) of some work."""
        await asyncio.sleep(0)
        self.turns, self.largest_seconds = 0, 0.0
        await work
        await asyncio.sleep(0)  # so that the turn in which it ended is over
        return self.largest_seconds, self.turns
