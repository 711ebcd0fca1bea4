"""The newest batches of the queues that a broker serves, as the leaders of their write groups told them.

Nothing here lies beyond a high watermark that a leader told together with it, so nothing can be taken back. A queue's
tail begins where its leader began to tell of it, and has no gap; a reader behind it is answered by the leader.

Readers that wait for more wait here, and are woken in a turn of their own.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping

from mainstem.model import Buffer, Outcome, QueueOffsets, QueueRead, QueueSlice, Tier
from mainstem.prompt_future import PromptFuture

CACHE_BYTES_MAX = 128 * 1024 * 1024
"""Batches of all tails; the queues that were read least lately lose theirs first."""

TRANSACTIONAL_AT, TRANSACTIONAL_BIT = 22, 0x10
"""The byte of a batch that says whether it is part of a transaction, or ends one."""

QUEUE_BYTES_MAX = 8 * 1024 * 1024
"""Batches of one tail: what one consumer of a fast queue takes with a few fetches."""


class TailWaiter:
    """A reader at the ends of some queues."""

    __slots__ = ("bytes_left", "ends", "future")

    def __init__(self, ends: Mapping[int, int], bytes_min: int, future: PromptFuture[None]) -> None:
        self.ends = dict(ends)
        self.bytes_left = bytes_min
        self.future = future


class QueueTail:
    """The tail of one queue. `offsets` None: its leader has not told of it yet."""

    __slots__ = ("batches", "bytes", "nexts", "node_id", "offsets", "plain_from", "start", "used_at", "waiters")

    def __init__(self, used_at: float) -> None:
        self.node_id = -1
        """The node that tells of it."""
        self.offsets: QueueOffsets | None = None
        self.start = 0
        """The first offset that it has, or will have."""
        self.plain_from = 0
        """From this offset on, no batch of it is part of a transaction."""
        self.batches: list[Buffer] = []
        self.nexts: list[int] = []
        """Of each batch, the offset behind it."""
        self.bytes = 0
        self.waiters: dict[TailWaiter, None] = {}
        self.used_at = used_at

    @property
    def end(self) -> int:
        return self.nexts[-1] if self.nexts else self.start

    def trim(self, bytes_max: int) -> int:
        """Let the oldest batches go; returns their bytes."""
        dropped, freed = 0, 0
        while dropped < len(self.batches) and self.bytes - freed > bytes_max:
            freed += len(self.batches[dropped])
            dropped += 1
        if dropped:
            self.start = self.nexts[dropped - 1]
            del self.batches[:dropped], self.nexts[:dropped]
            self.bytes -= freed
        return freed


class TailCache:
    """The tails of all queues, in the order in which they were used, the newest last."""

    def __init__(self) -> None:
        self.tails: OrderedDict[int, QueueTail] = OrderedDict()
        self.bytes = 0
        self.hits = 0
        """Reads that were answered here."""
        self._ready: list[PromptFuture[None]] = []

    def begin(self, queue_id: int) -> QueueTail:
        """The tail of a queue, which its leader is to be asked for if it is new."""
        tail = self.tails.get(queue_id)
        if tail is None:
            tail = self.tails[queue_id] = QueueTail(_now())
        return tail

    def told(self, found: QueueSlice) -> None:
        """Take in what a leader tells of a queue."""
        tail = self.tails.get(found.queue_id)
        if tail is None:
            return
        if found.outcome is not Outcome.OK:
            self.drop(found.queue_id)
            return
        before, tail.offsets = tail.offsets, found.offsets
        first = int.from_bytes(bytes(found.batches[0][:8]), "big") if found.batches else found.next_offset
        if before is None or first != tail.end:  # it begins, or its leader left something out
            self.bytes -= tail.bytes
            tail.batches, tail.nexts, tail.bytes, tail.start, tail.plain_from = [], [], 0, first, first
        size = 0
        for batch in found.batches:
            tail.batches.append(batch)
            tail.nexts.append(_next_offset(batch))
            size += len(batch)
            if memoryview(batch)[TRANSACTIONAL_AT] & TRANSACTIONAL_BIT:
                tail.plain_from = tail.end
        tail.bytes += size
        self.bytes += size - tail.trim(QUEUE_BYTES_MAX)
        self._make_room()
        moved = before is not None and before.log_start != found.offsets.log_start
        for waiter in list(tail.waiters):
            if moved:
                self._wake(waiter)
            elif found.offsets.high_watermark > waiter.ends[found.queue_id]:
                waiter.bytes_left -= size
                # what came before it waited was not counted, and is there all the same
                if waiter.bytes_left <= 0 or before is None:
                    self._wake(waiter)

    def drop(self, queue_id: int) -> None:
        """The queue's leader tells of it no more: whoever waits for it looks for itself."""
        tail = self.tails.pop(queue_id, None)
        if tail is None:
            return
        self.bytes -= tail.bytes
        for waiter in list(tail.waiters):
            self._wake(waiter)

    def read(self, read: QueueRead, bytes_max: int, *, whole_first: bool) -> QueueSlice | None:
        """The records that the tail has from an offset on; None: its leader must be asked."""
        tail = self.tails.get(read.queue_id)
        if tail is None or tail.offsets is None or not tail.start <= read.offset <= tail.end:
            return None
        offsets = tail.offsets
        if read.offset == tail.end != offsets.high_watermark or read.offset < offsets.log_start:
            return None
        self.hits += 1
        tail.used_at = _now()
        self.tails.move_to_end(read.queue_id)
        room = min(bytes_max, read.bytes_max)
        place = bisect_right(tail.nexts, read.offset)
        stop, size = place, 0
        while stop < len(tail.batches):
            length = len(tail.batches[stop])
            if size + length > room and (size or not whole_first):
                break
            size += length
            stop += 1
        if stop == place:
            return QueueSlice(read.queue_id, Outcome.OK, [], offsets, None, read.offset)
        batches = tail.batches[place:stop]
        return QueueSlice(read.queue_id, Outcome.OK, batches, offsets, Tier.WRITE_CACHE, tail.nexts[stop - 1])

    def told_offsets(self, queue_id: int) -> QueueOffsets | None:
        """The offsets that the queue's leader has told last; None: it tells nothing of it."""
        tail = self.tails.get(queue_id)
        return None if tail is None else tail.offsets

    def is_plain(self, queue_id: int, first: int, end: int) -> bool:
        """Whether the tail has all batches between these offsets, and none of them is part of a transaction."""
        tail = self.tails.get(queue_id)
        return tail is not None and max(tail.start, tail.plain_from) <= first and end <= tail.end

    # --- waiting ------------------------------------------------------------------------------------------

    def wait(self, waiter: TailWaiter) -> None:
        """Have a reader wait for queues whose tails have begun."""
        for queue_id in waiter.ends:
            self.tails[queue_id].waiters[waiter] = None

        def ended(_: PromptFuture[None]) -> None:
            for queue_id in waiter.ends:
                if (tail := self.tails.get(queue_id)) is not None:
                    tail.waiters.pop(waiter, None)
                    tail.used_at = _now()

        waiter.future.add_done_callback(ended)

    def is_beyond(self, queue_id: int, end: int) -> bool:
        """Whether the high watermark that is known of a queue is beyond `end`."""
        tail = self.tails.get(queue_id)
        return tail is not None and tail.offsets is not None and tail.offsets.high_watermark > end

    def _wake(self, waiter: TailWaiter) -> None:
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._tell)
        self._ready.append(waiter.future)

    def _tell(self) -> None:
        ready, self._ready = self._ready, []
        for future in ready:
            if not future.done():
                future.set_result(None)

    # --- room ---------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        for tail in self.tails.values():
            if self.bytes <= CACHE_BYTES_MAX:
                return
            self.bytes -= tail.trim(0)

    def idle(self, seconds: float) -> list[int]:
        """The queues that nobody waits for, and nobody has read for so long."""
        before = _now() - seconds
        return [queue_id for queue_id, tail in self.tails.items() if not tail.waiters and tail.used_at < before]


def _next_offset(batch: Buffer) -> int:
    view = memoryview(batch)
    return int.from_bytes(view[:8], "big") + int.from_bytes(view[23:27], "big") + 1


def _now() -> float:
    return asyncio.get_running_loop().time()
