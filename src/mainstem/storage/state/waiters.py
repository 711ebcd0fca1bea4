"""Holds long polls: readers at the end of their queues, woken when enough bytes have been committed to these.

The kernel's `Watches` knows which reader watches which queue; this module has the futures and the timeouts. It settles
the futures that became ready in one turn of the event loop in the next turn: the readers then read, answer and begin
other requests, which must not happen while a block is being applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from mainstem.kernel import FetchPlan, QueueTable, Watches
from mainstem.prompt_future import PromptFuture


class Waiters:
    """The readers that wait, and the futures that wake them."""

    def __init__(self, table: QueueTable) -> None:
        self._watches: Watches[PromptFuture[None]] = Watches(table)
        self._ready: list[PromptFuture[None]] = []
        self._waiting: dict[PromptFuture[None], None] = {}
        """The waiting readers, in the order in which they came."""

    def wait(self, queues: FetchPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float) -> PromptFuture[None]:
        """Return a future that is settled when `bytes_min` bytes (at least one batch) have been committed to these
        queues, when one of them changed otherwise, or after a timeout; at once when one of them is gone or beyond the
        high watermark given for it."""
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
        """Count batches of watched queues, as (queue id, bytes), that have just been applied."""
        self._tell_soon(self._watches.committed(batches))

    def wake(self, queue_ids: Iterable[int]) -> None:
        """Wake the readers of these queues, because the queues changed in another way."""
        self._tell_soon(self._watches.changed(queue_ids))

    def wake_topic(self, topic_number: int) -> None:
        """Wake the readers of the queues of a topic that is gone."""
        self._tell_soon(self._watches.topic_gone(topic_number))

    def wake_all(self) -> None:
        """Wake all readers, because this node may give other answers now."""
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
        """How many (reader, queue) pairs wait."""
        return len(self._watches)
