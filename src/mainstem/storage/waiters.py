"""Long polls: readers at the end of their queues, told when enough bytes have been committed to them.

Who watches what is the kernel's (`Watches`); here are the futures, and time. Futures are settled in the next turn of
the loop, all that became ready in this one: those who listen read, answer and begin other requests, which must not
happen while a block is being applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from mainstem.kernel import FetchPlan, QueueTable, Watches
from mainstem.prompt_future import PromptFuture


class Waiters:
    """Who waits for which queue."""

    def __init__(self, table: QueueTable) -> None:
        self._watches: Watches[PromptFuture[None]] = Watches(table)
        self._ready: list[PromptFuture[None]] = []
        self._waiting: dict[PromptFuture[None], None] = {}
        """In the order of coming."""

    def wait(
        self, queues: FetchPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float
    ) -> PromptFuture[None]:
        """Settled when `bytes_min` bytes (at least one batch) have been committed to these queues, when one of them
        changed otherwise, or after a time; at once when one of them is further than the high watermark given for it
        or gone."""
        future: PromptFuture[None] = PromptFuture()
        watch = self._watches.begin(queues, bytes_min, future) if timeout_seconds > 0 else None
        if watch is None:
            future.set_result(None)
            return future
        timer = asyncio.get_running_loop().call_later(timeout_seconds, future.set_result, None)

        self._waiting[future] = None

        def ended(_: PromptFuture[None]) -> None:
            timer.cancel()
            del self._waiting[future]
            self._watches.end(watch)

        future.add_done_callback(ended)
        return future

    def committed(self, batches: Iterable[tuple[int, int]]) -> None:
        """(queue id, bytes) of batches of watched queues that have just been applied."""
        self._tell_soon(self._watches.committed(batches))

    def wake(self, queue_ids: Iterable[int]) -> None:
        """Wake whoever waits for these queues, because they changed in another way."""
        self._tell_soon(self._watches.changed(queue_ids))

    def wake_topic(self, topic_number: int) -> None:
        """Wake whoever waits for queues of a topic that is gone."""
        self._tell_soon(self._watches.topic_gone(topic_number))

    def wake_all(self) -> None:
        """Wake everybody: what this node may answer has changed."""
        self._tell_soon(list(self._waiting))

    def _tell_soon(self, futures: list[PromptFuture[None]]) -> None:
        if futures:
            if not self._ready:
                asyncio.get_running_loop().call_soon(self._tell)
            self._ready += futures

    def _tell(self) -> None:
        ready, self._ready = self._ready, []
        for future in ready:
            if not future.done():
                future.set_result(None)

    def __len__(self) -> int:
        """Queues that somebody waits for, each as often as somebody does."""
        return len(self._watches)
