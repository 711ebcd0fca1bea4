"""One round of retention: log starts move by age and size, in the queue store and on unsplit data alike.

It reads indexes only: those of the runs, then those of the sealed segments, oldest first. The open segment is
left alone, as Kafka leaves its active one; it is sealed by size or age soon enough. Queues that hold nothing have
nothing to lose, and are not even looked up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import QueueTable
from mainstem.model import PARTITION_BITS, Topic
from mainstem.ports import Clock
from mainstem.storage.errors import SegmentGone, StorageError, StorageFailed
from mainstem.storage.journal.journal import Journal
from mainstem.storage.liveness import Liveness
from mainstem.storage.placement import Placement
from mainstem.storage.queue_admin import LocalQueueAdmin
from mainstem.storage.queue_scan import live_queues
from mainstem.storage.queue_store.extent_index import QueueIds, Rows
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.retention import UNLIMITED, LiveBytes, LogStarts

log = logging.getLogger(__name__)

Numbers = numpy.typing.NDArray[numpy.int64]

DELETE = "delete"


TOPICS_PER_TURN = 5_000
"""Looked at between two turns of the event loop: about a millisecond."""


MOVES_PER_TURN = 5_000
"""New log starts put together between two turns: some milliseconds."""


def _topics_of(queue_ids: QueueIds) -> tuple[QueueIds, numpy.typing.NDArray[numpy.intp]]:
    """The numbers of their topics, and for each queue the place of its topic among them. To be asked beside the event
    loop: of a million queues it takes a tenth of a second."""
    return numpy.unique(queue_ids >> numpy.uint64(PARTITION_BITS), return_inverse=True)


class LimitedQueues(NamedTuple):
    """The queues that hold something and that retention applies to, ascending by id, and the limits of each."""

    queue_ids: QueueIds
    log_starts: Numbers
    retention_ms: Numbers
    retention_bytes: Numbers


def may_lose(topic: Topic) -> bool:
    """Whether records of a topic leave by age or size."""
    settings = topic.settings
    unlimited = settings.retention_ms < 0 and settings.retention_bytes < 0
    return DELETE in settings.cleanup_policy and not unlimited and not topic.internal


class RetentionPass:
    """Moves log starts by the topics' `retention.ms` and `retention.bytes`."""

    def __init__(
        self,
        table: QueueTable,
        journal: Journal,
        store: QueueStore,
        queues: LocalQueueAdmin,
        placement: Placement,
        topics: Callable[[], Iterable[Topic]],
        clock: Clock,
        liveness: Liveness,
    ) -> None:
        self._table = table
        self._journal = journal
        self._store = store
        self._queues = queues
        self._placement = placement
        self._topics = topics
        self._clock = clock
        self._liveness = liveness

    async def run(self) -> None:
        """Move log starts, then drop the runs without a live record. What keeps the one from being done does not keep
        the other."""
        try:
            await self.move_log_starts()
        except StorageFailed:
            raise
        except (StorageError, OSError):
            log.exception("retention could not move log starts; it is tried again")
        await self._store.retain(self._liveness.log_starts, self._queues.confirm, self._placement.groups_of)

    async def move_log_starts(self) -> int:
        """Apply retention as of now; durable when it returns. How many queues lost something."""
        queue_ids, starts, retention_ms, retention_bytes = await self._limited_queues()
        if not len(queue_ids):
            return 0
        live = LiveBytes(queue_ids, starts)
        if (retention_bytes != UNLIMITED).any():
            async for rows, _written_ms in self._sources():
                live.feed(rows)
        now_ms = self._clock.now_ms()
        moved = await asyncio.to_thread(
            LogStarts,
            queue_ids,
            starts,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            live_bytes=live.bytes,
            now_ms=now_ms,
        )
        async for rows, written_ms in self._sources():
            moved.feed(rows, written_ms)
        moves: dict[int, list[tuple[int, int]]] = {}
        changed = numpy.flatnonzero(moved.log_starts > starts)
        for first in range(0, len(changed), MOVES_PER_TURN):
            part = changed[first : first + MOVES_PER_TURN]
            for queue_id, start in zip(queue_ids[part].tolist(), moved.log_starts[part].tolist(), strict=True):
                moves.setdefault(self._placement.group_of(queue_id), []).append((queue_id, start))
            await asyncio.sleep(0)
        await self._queues.move_log_starts(moves)
        return len(changed)

    async def _limited_queues(self) -> LimitedQueues:
        live = await live_queues(self._table)
        numbers, which = await asyncio.to_thread(_topics_of, live.queue_ids)
        places = {number: place for place, number in enumerate(numbers.tolist())}
        limited = numpy.zeros(len(numbers), numpy.bool_)
        retention_ms, retention_bytes = (numpy.full(len(numbers), UNLIMITED, numpy.int64) for _ in range(2))
        for looked_at, topic in enumerate(self._topics(), 1):
            place = places.get(topic.number)
            if place is not None and may_lose(topic):
                limited[place] = True
                retention_ms[place] = topic.settings.retention_ms
                retention_bytes[place] = topic.settings.retention_bytes
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)

        def chosen() -> LimitedQueues:
            kept = limited[which]
            topics = which[kept]
            return LimitedQueues(
                live.queue_ids[kept], live.log_starts[kept], retention_ms[topics], retention_bytes[topics]
            )

        return await asyncio.to_thread(chosen)

    async def _sources(self) -> AsyncIterator[tuple[Rows, int]]:
        """(extent rows, when they were written in ms), oldest first."""
        async for rows in self._store.all_rows(self._placement.groups_of):
            yield rows, int(rows["max_timestamp"].max(initial=-1))
        for segment in self._journal.segments():
            if segment.index_ready:
                try:
                    rows = (await self._journal.index(segment.sequence)).rows
                except SegmentGone:  # recycled meanwhile: what it held is split, or dead
                    continue
                except (StorageError, OSError) as error:
                    log.error("retention leaves segment %d out: %s", segment.sequence, error)
                else:
                    yield rows, segment.created_ms
                    await asyncio.sleep(0)  # what memory has comes without waiting
