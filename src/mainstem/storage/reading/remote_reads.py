"""Reads of the remote tier under way, apart from the fetches that want them.

An object store takes long, and may be out. So a fetch does not wait for it: the reads of all partitions that need it
begin at once and go on by themselves; the fetch answers what is there, and looks again when one of them is done, as it
does when something is published. A reader that wants what another one is waiting for waits for the same read. The
result of a read, or its failure, is kept until somebody asks again, within bounds."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from mainstem.lru import Lru
from mainstem.storage.errors import OutOfReach, SegmentGone, StorageError
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.reading.stored_slice import StoredSlice
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)

BASE_OFFSET = struct.Struct(">q")
"""Of a record batch, at its beginning."""

READS_AT_ONCE_MAX = 64
"""Reads that may have requests under way: as many as the requests of `object_store.requests_in_flight_max`."""

READ_BYTES_MAX = 8 << 20
"""Of one read: what is found waits in memory for the fetch that comes back for it."""

KEPT_BYTES_MAX = 64 << 20
"""Of reads that are done and that nobody has asked for again."""

KEPT_SECONDS = 10.0
"""How long a read that is done waits for somebody who asks again."""

KEPT_READ_BYTES = 1 << 10
"""The memory that a kept read takes besides its batches."""

ReadKey = tuple[int, int]
"""A queue, and the offset from which on it is read."""


class RemoteOutcome(NamedTuple):
    """The outcome of a read. Neither: the tier is not what has the next batches of the queue."""

    found: StoredSlice | None
    error: Exception | None


NOT_REMOTE = RemoteOutcome(None, None)


class RemoteRead:
    """One read under way, or done."""

    __slots__ = ("done", "key", "outcome")

    def __init__(self, key: ReadKey) -> None:
        self.key = key
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Settled when `outcome` is there."""
        self.outcome: RemoteOutcome | None = None

    @property
    def held_bytes(self) -> int:
        found = self.outcome.found if self.outcome is not None else None
        return KEPT_READ_BYTES + (sum(map(len, found.batches)) if found is not None else 0)


class RemoteReads:
    """Begins reads, joins those of the same key, and keeps what they found."""

    def __init__(
        self,
        history: RemoteHistory | None,
        placement: Placement,
        first_here: Callable[[int, int], Awaitable[int | None]],
        wake: Callable[[Iterable[int]], None],
        supervision: Supervision | None,
    ) -> None:
        """`first_here(queue_id, offset)` tells the offset if this node's own disks have it, else the next that they
        have. `wake` is told of queues of which a read is done."""
        self._history = history
        self._placement = placement
        self._first_here = first_here
        self._wake = wake
        self._errands = Errands(supervision, "remote read")
        self._room = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._under_way: dict[ReadKey, RemoteRead] = {}
        self._kept: Lru[ReadKey, RemoteRead] = Lru(KEPT_BYTES_MAX, lambda read: read.held_bytes)
        self._out_of_reach = False
        """Whether the last read failed since the store was out: the log says it once."""

    def concern(self, queue_id: int, offset: int) -> bool:
        """Whether the tier may have this offset of a queue; a "no" is always right."""
        history = self._history
        if history is None:
            return False
        return any(history.has(stay.group) for stay in self._placement.stays_from(queue_id, offset))

    async def are_for(self, queue_id: int, offset: int) -> bool:
        """Whether the tier may have this offset of a queue, and this node's own disks have not."""
        if not self.concern(queue_id, offset):
            return False
        try:
            return await self._first_here(queue_id, offset) != offset
        except (StorageError, OSError):  # the read meets it again, and reports it
            return False

    def begin(self, queue_id: int, offset: int, bytes_max: int) -> RemoteRead:
        """The read of a queue from an offset on: that which is kept or under way, or else a new one."""
        read = self.known(queue_id, offset)
        if read is None:
            read = RemoteRead((queue_id, offset))
            self._under_way[read.key] = read
            self._errands.start(self._go(read, min(max(bytes_max, 1), READ_BYTES_MAX)))
        return read

    def known(self, queue_id: int, offset: int) -> RemoteRead | None:
        """The read of a queue from an offset on, if it is kept or under way."""
        key = (queue_id, offset)
        return self._kept.get(key) or self._under_way.get(key)

    def take(self, read: RemoteRead, bytes_max: int, whole_first: bool) -> StoredSlice | None:
        """The batches of a read that is done, up to `bytes_max` bytes; None: the tier is not what has the next ones.
        The read is not kept any longer. Raises what kept them from being read."""
        assert read.outcome is not None, "it is under way"
        self._let_go(read)
        found, error = read.outcome
        if error is not None:
            raise error
        return None if found is None else _cut(found, read.key[1], bytes_max, whole_first)

    async def in_place_of_disk(
        self, queue_id: int, offset: int, bytes_max: int, whole_first: bool
    ) -> StoredSlice | None:
        """Batches from the tier where disk 2 has the offset and cannot be read; None: the tier has not the offset
        itself, or is out of reach."""
        if not self.concern(queue_id, offset):
            return None
        try:
            found = await self._in_tier(queue_id, offset, bytes_max)
        except (StorageError, OSError) as error:
            log.debug("queue %#x: the remote tier cannot stand in at offset %d: %s", queue_id, offset, error)
            return None
        if found is None or found.base_offset > offset:
            return None
        return _cut(found, offset, bytes_max, whole_first)

    async def close(self) -> None:
        self._errands.cancel()
        await self._errands.ended()
        self._kept.clear()

    # --- the reads ------------------------------------------------------------------------------------------

    async def _go(self, read: RemoteRead, bytes_max: int) -> None:
        try:
            async with self._room:
                read.outcome = RemoteOutcome(await self._next(*read.key, bytes_max), None)
        except (StorageError, OSError) as error:
            read.outcome = RemoteOutcome(None, error)
        finally:
            del self._under_way[read.key]
            if read.outcome is None:  # it was cancelled, or met what nobody foresaw
                read.outcome = RemoteOutcome(None, StorageError("the read of the remote tier was given up"))
            self._report(read.outcome)
            if read.outcome != NOT_REMOTE:
                self._kept.put(read.key, read)
                asyncio.get_running_loop().call_later(KEPT_SECONDS, self._let_go, read)
            read.done.set_result(None)
            self._wake([read.key[0]])

    async def _next(self, queue_id: int, offset: int, bytes_max: int) -> StoredSlice | None:
        """Batches from the tier, unless this node's disks have the offset, or a batch before the next one that the tier
        has. If a file of disk 2 cannot be read, the tier has to have the offset itself."""
        unread: Exception | None = None
        try:
            here = await self._first_here(queue_id, offset)
        except SegmentGone:  # who wants it looks again, and begins anew
            return None
        except (StorageError, OSError) as error:
            unread, here = error, offset + 1
        if here == offset:
            return None
        found = await self._in_tier(queue_id, offset, bytes_max)
        if found is not None and (here is None or found.base_offset < here):
            return found
        if unread is not None:
            raise unread
        return None

    async def _in_tier(self, queue_id: int, offset: int, bytes_max: int) -> StoredSlice | None:
        """Batches from the tier, from the first of the queue's stays that has any there from the offset on."""
        assert self._history is not None
        for group, first_offset, end in self._placement.stretches_from(queue_id, offset):
            found = await self._history.read(queue_id, group, first_offset, bytes_max)
            if found is not None and found.base_offset < end:
                return found
        return None

    def _let_go(self, read: RemoteRead) -> None:
        if self._kept.peek(read.key) is read:
            self._kept.pop(read.key)

    def _report(self, outcome: RemoteOutcome) -> None:
        """Log that the store is out of reach, and that it is not any more, once each."""
        if isinstance(outcome.error, OutOfReach):
            if not self._out_of_reach:
                log.error("the remote tier is out of reach, its readers are told to try again: %s", outcome.error)
            self._out_of_reach = True
        elif outcome.found is not None and self._out_of_reach:
            log.warning("the remote tier is read again")
            self._out_of_reach = False


def _cut(found: StoredSlice, offset: int, bytes_max: int, whole_first: bool) -> StoredSlice:
    """As many of these batches as fit, the first one in any case with `whole_first`. `offset`: where the reader is."""
    size = 0
    for count, batch in enumerate(found.batches):
        size += len(batch)
        if size > bytes_max and (count or not whole_first):
            next_offset = offset if not count else BASE_OFFSET.unpack_from(batch)[0]
            return found._replace(batches=found.batches[:count], next_offset=next_offset)
    return found
