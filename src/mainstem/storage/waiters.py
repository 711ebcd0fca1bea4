"""Long polls: readers at the end of their queues, woken when enough bytes have been committed to them.

Costs nothing per queue that nobody waits for, and one dictionary entry per queue and waiting fetch. The queue table
counts the watchers of each queue, so that applying a block tells only of the batches somebody waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mainstem.kernel import NO_SLOT, WATCHED, QueueTable
from mainstem.model import topic_number_of


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

    def __init__(self, table: QueueTable) -> None:
        self._table = table
        self._by_queue: dict[int, set[Waiter]] = {}

    async def wait(self, queue_ids: Iterable[int], bytes_min: int, timeout_seconds: float) -> None:
        """Until `bytes_min` bytes (at least one batch) have been committed to these queues, or a timeout."""
        waiter = Waiter(bytes_min)
        queue_ids = list(queue_ids)
        for queue_id in queue_ids:
            self._by_queue.setdefault(queue_id, set()).add(waiter)
            self._watch(queue_id, True)
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
                    self._watch(queue_id, False)

    def _watch(self, queue_id: int, watched: bool) -> None:
        slot = self._table.find(queue_id)
        if slot != NO_SLOT:
            self._table.set(slot, WATCHED, int(watched))

    def committed(self, batches: Iterable[tuple[int, int]]) -> None:
        """(queue id, bytes) of batches of watched queues that have just been applied."""
        for queue_id, size in batches:
            for waiter in self._by_queue.get(queue_id, ()):
                waiter.committed(size)

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
