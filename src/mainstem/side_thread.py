"""One thread beside the event loop for work that releases the interpreter: inflating batches, walking their
records.

One, so that such work takes one processor at the most, in the order of the requests. Callers bound the waiting work:
a connection has one such request at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class SideThread:
    """Implements `ports.SideWork` with a thread, which is started on first use."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Returns or raises what `work` does."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def close(self) -> None:
        """Wait for running work; work that has not begun is cancelled."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)


class AtOnce:
    """`ports.SideWork` without a thread: for simulations, in which nothing happens beside the loop."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()
