"""One round of retention moves log starts by age, size and number of records, in the remote tier, in the queue store
and on unsplit data alike.

A record is as old as its timestamp says, or as long as this node has seen it, whichever is older: a timestamp of the
year 9999 keeps nothing. A majority's clocks give the time (`agreed_clock`); while they do not, no record expires by
age.

It reads indexes only, of local and remote files and of sealed segments (`retention_sources.py`). It skips the open
segment, as Kafka skips its active one; that is sealed by size or age soon enough. It does not look up empty queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

import numpy
import numpy.typing

from mainstem.kernel import QueueTable
from mainstem.model import PARTITION_BITS, Topic
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.errors import StorageError, StorageFailed
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.journal.journal import Journal
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.queues.queue_admin import LocalQueueAdmin
from mainstem.storage.state.queue_scan import live_queues, topics_with_data
from mainstem.storage.upkeep.remote_files import RemoteFiles
from mainstem.storage.upkeep.retention import UNLIMITED, LiveBytes, LogStarts, keeps_all, retention_class
from mainstem.storage.upkeep.retention_memory import LimitedQueues, TopicLimits
from mainstem.storage.upkeep.retention_sources import FirstSeen, RetentionSources

log = logging.getLogger(__name__)

Numbers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]

DELETE = "delete"
COMPACT = "compact"

TOPICS_PER_TURN = 5_000
"""Queues checked in one turn of the event loop: about a millisecond."""


MOVES_PER_TURN = 5_000
"""New log starts collected in one turn of the event loop: some milliseconds."""


def _topics_of(queue_ids: QueueIds) -> tuple[QueueIds, numpy.typing.NDArray[numpy.intp]]:
    """The numbers of the queues' topics, and for each queue the place of its topic among them. Call it in a thread
    beside the event loop: for a million queues it takes a tenth of a second."""
    return numpy.unique(queue_ids >> numpy.uint64(PARTITION_BITS), return_inverse=True)


def may_lose(topic: Topic) -> bool:
    """Whether records of a topic leave by age, size or number."""
    settings = topic.settings
    unlimited = settings.retention_ms < 0 and settings.retention_bytes < 0 and settings.retention_records < 0
    return DELETE in settings.cleanup_policy and not unlimited and not keeps_all(topic)


class StayBytes:
    """The bytes of queues, summed up by stays: within one, sources come in the order of offsets."""

    def __init__(self, placement: Placement, queue_ids: QueueIds, log_starts: Numbers) -> None:
        self._placement = placement
        self._stays = [
            LiveBytes(queue_ids, numpy.maximum(log_starts, placement.stay_starts(queue_ids, number)))
            for number in range(placement.stays_most)
        ]

    def feed(self, rows: Rows) -> None:
        if len(self._stays) == 1:
            self._stays[0].feed(rows)
            return
        numbers = self._placement.stays_at(rows["queue_id"], rows["base_offset"])
        for number, stay in enumerate(self._stays):
            stay.feed(rows[numbers == number])

    @property
    def bytes(self) -> Numbers:
        found = self._stays[0].bytes.copy()
        for stay in self._stays[1:]:
            found += stay.bytes
        return found

    @property
    def missing(self) -> Numbers:
        """How many offsets of the oldest stay no source had, before its last one."""
        return self._stays[0].missing


class RetentionPass:
    """Moves log starts by the topics' `retention.ms`, `retention.bytes` and `retention.records`."""

    def __init__(
        self,
        table: QueueTable,
        journal: Journal,
        store: QueueStore,
        queues: LocalQueueAdmin,
        placement: Placement,
        topics: Callable[[], Iterable[Topic]],
        clock: AgreedClock,
        liveness: QueueLiveness,
        remote: RemoteFiles | None = None,
        has_applied_files: Callable[[int], bool] = lambda group: True,
    ) -> None:
        """`remote`: the remote tier, if there is one. `has_applied_files`: whether the node has applied all that its
        files have of a write group; it does not know before then which queues came to the write group with that."""
        self._table = table
        self._journal = journal
        self._store = store
        self._queues = queues
        self._placement = placement
        self._topics = topics
        self._clock = clock
        self._liveness = liveness
        self._remote = remote
        self._has_applied_files = has_applied_files
        self._sources = RetentionSources(journal, store, placement, remote, has_applied_files)
        self._segments_seen: dict[int, int] = {}
        """By sequence, the time (ms) when retention first saw each sealed segment since the start."""

    async def run(self) -> None:
        """Move log starts, then drop the runs without a live record. A failure of the first does not prevent the
        second."""
        try:
            await self.move_log_starts()
        except StorageFailed:
            raise
        except (StorageError, OSError):
            log.exception("retention could not move log starts; it is tried again")
        await self._store.copy.renew()
        await self._store.retention.retain(self._liveness.log_starts, self._queues.confirm, self._may_be_in)

    def _may_be_in(self, queue_ids: QueueIds, groups: Collection[int]) -> numpy.typing.NDArray[numpy.bool_]:
        """Which of these queues are in one of the write groups, or have been, or may have been."""
        if all(map(self._has_applied_files, groups)):
            return self._placement.ever_in(queue_ids, groups)
        return numpy.ones(len(queue_ids), numpy.bool_)

    async def move_log_starts(self) -> int:
        """Apply retention as of now; durable when it returns. Returns how many queues lost records. While the agreed
        time is unknown, only sizes and numbers count."""
        time = self._clock.now()
        if time is not None:
            sealed = {segment.sequence for segment in self._journal.segments() if segment.sealed}
            self._segments_seen = {one: self._segments_seen.get(one, time.latest) for one in sealed}
            # a run that is written meanwhile was not there yet
            seen = FirstSeen(
                self._segments_seen,
                await self._store.retention.first_seen(time.latest),
                await self._remote.first_seen(time.latest) if self._remote is not None else {},
            )
        limited = await self._limited_queues()
        queue_ids, starts, ends, retention_ms, retention_bytes, retention_records, compacted = limited
        if time is None:
            seen = FirstSeen({}, {}, {})
            retention_ms = numpy.full_like(retention_ms, UNLIMITED)
        if not len(queue_ids):
            return 0
        compactions = self._store.compactions.passes
        histories = dict(self._placement.moved)
        live = StayBytes(self._placement, queue_ids, starts)
        if (retention_bytes != UNLIMITED).any():
            async for source in self._sources.units(limited, seen, None, sized=True):
                if source.rows is not None:
                    live.feed(source.rows)
        surplus = (retention_bytes >= 0) & (live.bytes > retention_bytes)
        outnumbered = (retention_records >= 0) & (ends - starts > retention_records)
        now_ms = time.earliest if time is not None else 0
        moved = await asyncio.to_thread(
            LogStarts,
            queue_ids,
            starts,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            retention_records=retention_records,
            high_watermarks=ends,
            live_bytes=live.bytes,
            missing=live.missing,
            now_ms=now_ms,
            compacted=compacted,
        )
        sized, counted = bool(surplus.any()), bool(outnumbered.any())
        async for source in self._sources.units(limited, seen, now_ms, sized=sized, counted=counted):
            if source.rows is None:
                moved.left_out(source.seen_ms, skipped=source.skipped)
            else:
                # sources are in the order of each write group alone: a queue that has moved loses what it has in the
                # first one, and that of the next one once the first is forgotten
                moved.feed(self._placement.of_first_stays(source.rows), source.undated_ms, source.seen_ms)
        moves: dict[int, list[tuple[int, int]]] = {}
        ahead = moved.log_starts > starts
        if self._store.compactions.passes != compactions:  # some of the bytes that were counted are gone
            ahead &= (compacted == 0) | (retention_bytes == UNLIMITED)
        ahead &= await self._have_limits_still(limited, ahead)
        changed = numpy.flatnonzero(ahead)
        for first in range(0, len(changed), MOVES_PER_TURN):
            part = changed[first : first + MOVES_PER_TURN]
            for queue_id, start in zip(queue_ids[part].tolist(), moved.log_starts[part].tolist(), strict=True):
                # with another history, what was fed may have been out of order, or counted twice
                if self._placement.moved.get(queue_id) is histories.get(queue_id):
                    moves.setdefault(self._placement.group_of(queue_id), []).append((queue_id, start))
            await asyncio.sleep(0)
        await self._queues.move_log_starts(moves)
        return len(changed)

    async def _have_limits_still(self, limited: LimitedQueues, chosen: Flags) -> Flags:
        """Whether the topics of these queues have the limits that the round began with: to read all files takes a
        while, and what is lost by a limit that somebody has raised meanwhile does not come back."""
        if not chosen.any():
            return chosen
        numbers, which = await asyncio.to_thread(_topics_of, limited.queue_ids)
        places = {number: place for place, number in enumerate(numbers.tolist())}
        limits = numpy.zeros((len(numbers), 3), numpy.int64)
        loses = numpy.zeros(len(numbers), numpy.bool_)
        for looked_at, topic in enumerate(self._topics(), 1):
            place = places.get(topic.number)
            if place is not None and may_lose(topic):
                settings = topic.settings
                limits[place] = settings.retention_ms, settings.retention_bytes, settings.retention_records
                loses[place] = True
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)

        def are_same() -> Flags:
            before = numpy.stack([limited.retention_ms, limited.retention_bytes, limited.retention_records], axis=1)
            same: Flags = loses[which] & (limits[which] == before).all(axis=1)
            return same

        return await asyncio.to_thread(are_same)

    async def _limited_queues(self) -> LimitedQueues:
        live = await live_queues(self._table)
        numbers, which = await asyncio.to_thread(_topics_of, live.queue_ids)
        places = {number: place for place, number in enumerate(numbers.tolist())}
        limited = numpy.zeros(len(numbers), numpy.bool_)
        retention_ms, retention_bytes, retention_records = (
            numpy.full(len(numbers), UNLIMITED, numpy.int64) for _ in range(3)
        )
        compacted = numpy.zeros(len(numbers), numpy.int64)
        for looked_at, topic in enumerate(self._topics(), 1):
            place = places.get(topic.number)
            if place is not None and may_lose(topic):
                limited[place] = True
                retention_ms[place] = topic.settings.retention_ms
                retention_bytes[place] = topic.settings.retention_bytes
                retention_records[place] = topic.settings.retention_records
                compacted[place] = COMPACT in topic.settings.cleanup_policy
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)

        limits = TopicLimits(numbers.astype(numpy.int64), retention_ms, retention_bytes, retention_records, compacted)
        await asyncio.to_thread(self._sources.begin, limits)

        def chosen() -> LimitedQueues:
            kept = limited[which]
            topics = which[kept]
            return LimitedQueues(
                live.queue_ids[kept],
                live.log_starts[kept],
                live.high_watermarks[kept],
                retention_ms[topics],
                retention_bytes[topics],
                retention_records[topics],
                compacted[topics],
            )

        return await asyncio.to_thread(chosen)


class TopicClasses:
    """Says which topics share runs, to splitters."""

    def __init__(
        self, table: QueueTable, topics: Callable[[], Iterable[Topic]], was_deleted: Callable[[int], bool]
    ) -> None:
        self._table = table
        self._topics = topics
        self._was_deleted = was_deleted

    async def of_held(self) -> dict[int, str]:
        """Topic number → retention class, of every topic that has data here at the time of the call. A topic that the
        metadata has no record of, neither as existing nor as deleted, is kept for good."""
        held = await topics_with_data(self._table)
        classes: dict[int, str] = {}
        for looked_at, topic in enumerate(self._topics(), 1):
            if topic.number in held:
                classes[topic.number] = retention_class(topic)
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        for looked_at, number in enumerate(held - classes.keys(), 1):
            if not self._was_deleted(number):
                classes[number] = "forever"
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return classes
