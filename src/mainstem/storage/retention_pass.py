"""One round of retention: log starts move by age and size, in the queue store and on unsplit data alike.

It reads indexes only: those of the runs, then those of the sealed segments, oldest first. The open segment is
left alone, as Kafka leaves its active one; it is sealed by size or age soon enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import LOG_START, QueueTable
from mainstem.model import Topic
from mainstem.ports import Clock
from mainstem.storage.journal.journal import Journal
from mainstem.storage.liveness import Liveness
from mainstem.storage.placement import Placement
from mainstem.storage.queue_admin import LocalQueueAdmin
from mainstem.storage.queue_store.extent_index import QueueIds, Rows
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.retention import UNLIMITED, LiveBytes, LogStarts

Numbers = numpy.typing.NDArray[numpy.int64]

DELETE = "delete"


class Limits(NamedTuple):
    """The queues retention applies to, ascending by id, and the limits of each."""

    queue_ids: QueueIds
    retention_ms: Numbers
    retention_bytes: Numbers


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
        """Move log starts, then drop the runs without a live record."""
        await self.move_log_starts()
        await self._store.retain(self._liveness.log_starts, self._queues.confirm)

    async def move_log_starts(self) -> int:
        """Apply retention as of now; durable when it returns. How many queues lost something."""
        queue_ids, retention_ms, retention_bytes = self._limits()
        if not len(queue_ids):
            return 0
        starts = self._table.column(queue_ids, LOG_START, 0)
        live = LiveBytes(queue_ids, starts)
        if (retention_bytes != UNLIMITED).any():
            async for rows, _written_ms in self._sources():
                live.feed(rows)
        now_ms = self._clock.now_ms()
        moved = LogStarts(
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
        for queue_id, start in zip(
            queue_ids[changed].tolist(), moved.log_starts[changed].tolist(), strict=True
        ):
            moves.setdefault(self._placement.group_of(queue_id), []).append((queue_id, start))
        await self._queues.move_log_starts(moves)
        return len(changed)

    def _limits(self) -> Limits:
        parts: list[tuple[QueueIds, int, int]] = []
        for topic in sorted(self._topics(), key=lambda topic: topic.number):
            settings = topic.settings
            unlimited = settings.retention_ms < 0 and settings.retention_bytes < 0
            if DELETE in settings.cleanup_policy and not unlimited and not topic.internal:
                first = numpy.uint64(topic.queue_id(0))
                queue_ids = first + numpy.arange(topic.partitions, dtype=numpy.uint64)
                parts.append((queue_ids, settings.retention_ms, settings.retention_bytes))
        sizes = [len(queue_ids) for queue_ids, _ms, _bytes in parts]
        return Limits(
            numpy.concatenate([part[0] for part in parts] or [numpy.zeros(0, numpy.uint64)]),
            numpy.repeat(numpy.array([part[1] for part in parts], numpy.int64), sizes),
            numpy.repeat(numpy.array([part[2] for part in parts], numpy.int64), sizes),
        )

    async def _sources(self) -> AsyncIterator[tuple[Rows, int]]:
        """(extent rows, when they were written in ms), oldest first."""
        async for rows in self._store.all_rows(self._placement.groups_of):
            yield rows, int(rows["max_timestamp"].max(initial=-1))
        for segment in self._journal.segments():
            if segment.index_ready:
                yield (await self._journal.index(segment.sequence)).rows, segment.created_ms
