"""One round of retention: log starts move by age and size, in the queue store and on unsplit data alike.

A record is as old as its timestamp says, or as it has been seen here, whichever is older: a timestamp of the year 9999
keeps nothing. What time it is a majority's clocks say (`agreed_clock`), and while they do not, nothing goes by age.

It reads indexes only: those of the runs, then those of the sealed segments, oldest first. The open segment is
left alone, as Kafka leaves its active one; it is sealed by size or age soon enough. Queues that hold nothing have
nothing to lose, and are not even looked up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import QueueTable
from mainstem.model import PARTITION_BITS, Topic
from mainstem.storage.agreed_clock import AgreedClock
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

FOREVER_MS = (1 << 63) - 1


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
        clock: AgreedClock,
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
        self._segments_seen: dict[int, int] = {}
        """By sequence: when each sealed segment was first looked at since the start, in ms."""

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
        """Apply retention as of now; durable when it returns. How many queues lost something. While nobody knows what
        time it is, size alone counts."""
        time = self._clock.now()
        if time is not None:
            runs_seen = await self._store.first_seen(time.latest)
            sealed = {segment.sequence for segment in self._journal.segments() if segment.sealed}
            self._segments_seen = {one: self._segments_seen.get(one, time.latest) for one in sealed}
        queue_ids, starts, retention_ms, retention_bytes = await self._limited_queues()
        if time is None:
            runs_seen = {}
            retention_ms = numpy.full_like(retention_ms, UNLIMITED)
        if not len(queue_ids):
            return 0
        live = LiveBytes(queue_ids, starts)
        if (retention_bytes != UNLIMITED).any():
            async for rows, *_ in self._sources(runs_seen):
                live.feed(rows)
        moved = await asyncio.to_thread(
            LogStarts,
            queue_ids,
            starts,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            live_bytes=live.bytes,
            now_ms=time.earliest if time is not None else 0,
        )
        async for rows, undated_ms, seen_ms in self._sources(runs_seen):
            moved.feed(rows, undated_ms, seen_ms)
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

    async def _sources(self, runs_seen: Mapping[str, int]) -> AsyncIterator[tuple[Rows, int, int]]:
        """(extent rows, the time of those without one, when the source was first seen; in ms), oldest first. What has
        not been seen yet is as young as it says."""
        for file, groups in self._store.in_order():
            rows = await self._store.rows_of(file.name, groups, self._placement.groups_of)
            if rows is not None:
                seen_ms = runs_seen.get(file.name, FOREVER_MS)
                undated_ms = int(rows["max_timestamp"].max(initial=-1))
                yield rows, undated_ms if undated_ms >= 0 else seen_ms, seen_ms
                await asyncio.sleep(0)
        for segment in self._journal.segments():
            if segment.index_ready:
                try:
                    rows = (await self._journal.index(segment.sequence)).rows
                except SegmentGone:  # recycled meanwhile: what it held is split, or dead
                    continue
                except (StorageError, OSError) as error:
                    log.error("retention leaves segment %d out: %s", segment.sequence, error)
                else:
                    seen_ms = self._segments_seen.get(segment.sequence, FOREVER_MS)
                    yield rows, seen_ms, seen_ms
                    await asyncio.sleep(0)  # what memory has comes without waiting
