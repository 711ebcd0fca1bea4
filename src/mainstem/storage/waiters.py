"""Long polls: readers at the end of their queues, woken when enough bytes have been committed to them.

Costs nothing per queue that nobody waits for, and one dictionary entry per queue and waiting fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mainstem.model import topic_number_of

DIRECTORY_CELLS = 8


class Waiter:
    __slots__ = ("bytes_missing", "future")

    def __init__(self, bytes_min: int) -> None:
        self.bytes_missing = max(bytes_min, 1)
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self, size: int) -> None:
        self.bytes_missing -= size
        if self.bytes_missing <= 0 and not self.future.done():
            self.future.set_result(None)


class Waiters:
    """Who waits for which queue."""

    def __init__(self) -> None:
        self._by_queue: dict[int, set[Waiter]] = {}

    async def wait(self, queue_ids: Iterable[int], bytes_min: int, timeout_seconds: float) -> None:
        """Until `bytes_min` bytes (at least one batch) have been committed to these queues, or a timeout."""
        waiter = Waiter(bytes_min)
        queue_ids = list(queue_ids)
        for queue_id in queue_ids:
            self._by_queue.setdefault(queue_id, set()).add(waiter)
        try:
            async with asyncio.timeout(timeout_seconds):
                await waiter.future
        except TimeoutError:
            pass
        finally:
            for queue_id in queue_ids:
                waiting = self._by_queue[queue_id]
                waiting.discard(waiter)
                if not waiting:
                    del self._by_queue[queue_id]

    def committed(self, rows: memoryview) -> None:
        """Directory rows (as 64-bit cells) of a block that has just been applied."""
        waiting = self._by_queue
        if not waiting:
            return
        for row in range(0, len(rows), DIRECTORY_CELLS):
            for waiter in waiting.get(rows[row], ()):
                waiter.committed(rows[row + 4] >> 32 & 0xFFFFFFFF)

    def wake(self, queue_ids: Iterable[int]) -> None:
        """Wake whoever waits for these queues, because they changed in another way."""
        for queue_id in queue_ids:
            for waiter in self._by_queue.get(queue_id, ()):
                waiter.committed(waiter.bytes_missing)

    def wake_topic(self, topic_number: int) -> None:
        """Wake whoever waits for queues of a topic that is gone."""
        self.wake([queue_id for queue_id in self._by_queue if topic_number_of(queue_id) == topic_number])

    def __len__(self) -> int:
        return len(self._by_queue)
