"""Local copies of remote files go when `local.retention.ms` and `local.retention.bytes` say so, on each replica by
itself.

A file of disk 2 goes as a whole, when of each batch in it that is live

    its topic goes to the remote tier, and one of the topic's local limits lets the batch go: it is older than
    `local.retention.ms`, or the queue has `local.retention.bytes` on this node behind it
    the remote tier has it: its index, read from the store, has the batch's offsets, and no file that has some of the
    blocks there is known to be damaged: an index outlives the batches, in memory or as an object of its own

and when the file's blocks begin before those that the leader is not done with (`upto`). The file's retention class and
`upto` alone would not do: the leader passed over what was merged under another class, and a later merge, here or on
another replica, may have given it this one. So the last copy on a disk goes only while the store shows what replaces
it; during an outage all stays. Nor need the file's last block lie up to `upto`: each replica cuts its spans by itself,
and behind the last batches of an idle topic one may have blocks of other topics, or without a batch (the no-op of a new
leader, a change of members), which no upload ever takes.

The agreed clock gives the time, and a batch is as old as its timestamp says, or as long as this node has seen its file.
Readers are given from the remote tier what this node has not, so copies need not go from the oldest on. Files of which
nothing may go for a while are not read: what is known of them takes 13 bytes each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import QueueTable
from mainstem.model import PARTITION_BITS, Sample, Topic
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.extents.coverage import covered
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.journal.journal import Journal
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queue_store.changes.file_retention import DroppedFiles
from mainstem.storage.queue_store.changes.row_facts import RowFacts
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.state.queue_scan import live_queues
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.upkeep.remote_files import RemoteFiles
from mainstem.storage.upkeep.retention import UNLIMITED, LiveBytes, LogStarts
from mainstem.storage.upkeep.retention_memory import NEVER_MS, LimitedQueues, TopicLimits
from mainstem.storage.upkeep.retention_sources import FOREVER_MS, FirstSeen, RetentionSources, beside_if_large

log = logging.getLogger(__name__)

Numbers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]

AS_WHOLE = -2
"""A local limit that is the same as the whole topic's: nothing goes for it before its log start has moved."""

TOPICS_PER_TURN = 5_000
"""Topics looked at in one turn of the event loop: about a millisecond."""

FILES_PER_TURN = 100
"""Files passed over in one turn of the event loop: some milliseconds."""

DROPPED_AT_ONCE_MAX = 64
"""Local files that one change of the manifest forgets: some milliseconds, for which splits wait."""

LOOK_AGAIN_MS = 24 * 3_600_000
"""Until a file is looked at again that no limit lets go as it is, or that the remote tier does not have: batches of it
may die meanwhile, and a merge may put it elsewhere."""

COPY_FACTS = numpy.dtype([("due_ms", "<i8"), ("limits", "<u4"), ("goes_by_size", "u1")])
"""Of a local file: before when age lets not all of it go, the limits by which that was found, and whether size may."""


class LocalLimits(NamedTuple):
    """The local limits of the topics that have one, ascending by number; UNLIMITED where a limit lets nothing go."""

    numbers: Numbers
    retention_ms: Numbers
    retention_bytes: Numbers

    def may_have(self, file: StoreFile) -> bool:
        """Whether a file is a merged one, and one of these topics lies between its first and its last."""
        first, last = file.first_queue >> PARTITION_BITS, file.last_queue >> PARTITION_BITS
        at = int(self.numbers.searchsorted(first))
        return file.is_merged and at < len(self.numbers) and int(self.numbers[at]) <= last

    def of_queues(self, queue_ids: QueueIds) -> tuple[Numbers, Numbers]:
        """Per queue `local.retention.ms` and `local.retention.bytes`."""
        topics = (queue_ids >> numpy.uint64(PARTITION_BITS)).astype(numpy.int64)
        places = numpy.minimum(self.numbers.searchsorted(topics), len(self.numbers) - 1)
        known = self.numbers[places] == topics
        return (
            numpy.where(known, self.retention_ms[places], UNLIMITED),
            numpy.where(known, self.retention_bytes[places], UNLIMITED),
        )


def local_limits(topic: Topic) -> tuple[int, int] | None:
    """`local.retention.ms` and `local.retention.bytes` where they let local copies go before the whole topic's limits
    do; None: none does."""
    settings = topic.settings
    if not settings.remote_storage_enable or settings.remote_log_copy_disable or topic.internal:
        return None
    limits = (
        UNLIMITED if settings.local_retention_ms == AS_WHOLE else settings.local_retention_ms,
        UNLIMITED if settings.local_retention_bytes == AS_WHOLE else settings.local_retention_bytes,
    )
    return None if limits == (UNLIMITED, UNLIMITED) else limits


class _KeptBehind(NamedTuple):
    """Queues with `local.retention.bytes`, ascending by id, and the offset of each from which on its bytes are kept."""

    queue_ids: QueueIds
    starts: Numbers

    def of_queues(self, queue_ids: QueueIds) -> Numbers:
        """Per queue that offset; 0 where nothing goes for its size."""
        if not len(self.queue_ids):
            return numpy.zeros(len(queue_ids), numpy.int64)
        places = numpy.minimum(self.queue_ids.searchsorted(queue_ids), len(self.queue_ids) - 1)
        starts: Numbers = numpy.where(self.queue_ids[places] == queue_ids, self.starts[places], 0)
        return starts


class _Going(NamedTuple):
    """The verdict of local limits on a file."""

    now: bool
    """All of it may go."""
    due_ms: int
    """Before that time age lets not all of it go."""
    by_size: bool
    """Size may let it go before."""


class LocalCopies:
    """Drops local copies of one node."""

    def __init__(
        self,
        table: QueueTable,
        journal: Journal,
        store: QueueStore,
        remote: RemoteFiles,
        placement: Placement,
        topics: Callable[[], Iterable[Topic]],
        clock: AgreedClock,
        liveness: QueueLiveness,
    ) -> None:
        self._table = table
        self._store = store
        self._remote = remote
        self._placement = placement
        self._topics = topics
        self._clock = clock
        self._liveness = liveness
        files = store.manifest.files
        self._facts = RowFacts(COPY_FACTS, files.page_files, store.retention_facts_bytes_max // 2)
        self._sources = RetentionSources(journal, store, placement, None)
        """For sizes: what this node has, whether it can go or not."""
        self._limits = LocalLimits(*(numpy.zeros(0, numpy.int64) for _ in range(3)))
        self._signature = 0
        """Of the limits: another one for each change of them."""
        self._not_there: dict[str, int] = {}
        """Files that reach beyond the tier's position, and that position when the tier lacked something of them. One
        span of each write group has such files."""
        self._dropped_files = 0
        self._dropped_bytes = 0

    @property
    def dropped(self) -> DroppedFiles:
        """Those that the remote tier has."""
        return DroppedFiles(self._dropped_files, self._dropped_bytes)

    async def run(self) -> None:
        """One round over all local files of the remote tier's topics."""
        await self._learn_limits()
        if not len(self._limits.numbers):
            return
        self._facts.keep(self._store.manifest.files.pages)
        time = self._clock.now()
        kept = await self._kept_by_size()
        self._forget_those_reached()
        dead: list[FileRange] = []
        async for entry in self._candidates(time.earliest if time is not None else None):
            if await self._may_go(entry, time.earliest if time is not None else None, kept):
                dead.append(entry)
            if len(dead) == DROPPED_AT_ONCE_MAX:
                await self._drop(dead)
                dead = []
        if dead:
            await self._drop(dead)

    async def _drop(self, entries: Sequence[FileRange]) -> None:
        dropped = await self._store.retention.drop_copies({entry.name: entry.group for entry in entries})
        self._dropped_files += len(dropped)
        self._dropped_bytes += sum(file.bytes for file in dropped)
        log.info("%d local copies of remote files went, of %d bytes", len(dropped), sum(file.bytes for file in dropped))

    # --- limits ---------------------------------------------------------------------------------------------

    async def _learn_limits(self) -> None:
        rows: list[tuple[int, int, int]] = []
        for looked_at, topic in enumerate(self._topics(), 1):
            limits = local_limits(topic)
            if limits is not None:
                rows.append((topic.number, *limits))
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        found = numpy.array(sorted(rows), numpy.int64).reshape(-1, 3)
        limits_now = LocalLimits(*(numpy.ascontiguousarray(found[:, column]) for column in range(3)))
        if not all(numpy.array_equal(new, old) for new, old in zip(limits_now, self._limits, strict=True)):
            self._limits = limits_now
            self._signature = (self._signature + 1) & 0xFFFF_FFFF

    async def _kept_by_size(self) -> _KeptBehind:
        """The offset at which each queue with `local.retention.bytes` has those behind it, by what this node has of
        it."""
        none = _KeptBehind(numpy.zeros(0, numpy.uint64), numpy.zeros(0, numpy.int64))
        if not (self._limits.retention_bytes != UNLIMITED).any():
            return none
        live = await live_queues(self._table)
        _ms, bytes_max = await asyncio.to_thread(self._limits.of_queues, live.queue_ids)
        chosen = bytes_max != UNLIMITED
        queue_ids, starts, kept = live.queue_ids[chosen], live.log_starts[chosen], bytes_max[chosen]
        if not len(queue_ids):
            return none
        unlimited = numpy.full(len(queue_ids), UNLIMITED, numpy.int64)
        not_compacted = numpy.zeros(len(queue_ids), numpy.int64)
        limited = LimitedQueues(
            queue_ids, starts, live.high_watermarks[chosen], unlimited, kept, unlimited, not_compacted
        )
        numbers, _ms, bytes_of_topics = self._limits
        none_of_topics = numpy.full(len(numbers), UNLIMITED, numpy.int64)
        limits = TopicLimits(numbers, none_of_topics, bytes_of_topics, none_of_topics, numpy.zeros_like(numbers))
        await asyncio.to_thread(self._sources.begin, limits)
        seen = FirstSeen({}, self._store.manifest.seen, {})
        measured = LiveBytes(queue_ids, starts)
        async for unit in self._sources.units(limited, seen, None, sized=True):
            if unit.rows is not None:
                measured.feed(unit.rows)
        moved = LogStarts(
            queue_ids,
            starts,
            retention_ms=unlimited,
            retention_bytes=kept,
            retention_records=unlimited,
            high_watermarks=limited.high_watermarks,
            live_bytes=measured.bytes,
            missing=measured.missing,
            now_ms=0,
        )
        async for unit in self._sources.units(limited, seen, None, sized=True):
            if unit.rows is not None:
                moved.feed(unit.rows, unit.undated_ms, unit.seen_ms)
        return _KeptBehind(queue_ids, moved.log_starts)

    # --- which files may go ---------------------------------------------------------------------------------

    async def _candidates(self, now_ms: int | None) -> AsyncIterator[FileRange]:
        """The local files that may have nothing but batches that may go. Of those that reach beyond the tier's position
        none is looked at again before that has moved, if the tier lacked something of it."""
        looked_at = 0
        for group in self._remote.manifest.groups():
            upto = self._remote.upto(group)
            for span in self._store.manifest.spans(group):
                if span.after >= upto:
                    break
                for entry in span:
                    looked_at += 1
                    if looked_at % FILES_PER_TURN == 0:
                        await asyncio.sleep(0)
                    if self._not_there.get(entry.name) == upto:
                        continue
                    file = self._store.manifest.files.get(entry.name)
                    if file is not None and self._limits.may_have(file) and self._is_due(file, now_ms):
                        yield entry

    def _forget_those_reached(self) -> None:
        """Forget files that are gone, or that the tier's position has come to since they were looked at."""
        uptos = dict[str, int]()
        for name, upto in self._not_there.items():
            entries = self._store.manifest.entries(name)
            if any(self._remote.upto(entry.group) == upto for entry in entries):
                uptos[name] = upto
        self._not_there = uptos

    def _is_due(self, file: StoreFile, now_ms: int | None) -> bool:
        known = self._known(file)
        if known is not None:
            return bool(known[2]) or (now_ms is not None and known[0] < now_ms)
        if (self._limits.retention_bytes != UNLIMITED).any():
            return True
        if now_ms is None:
            return False
        newest_ms = min(file.max_timestamp, self._store.manifest.seen.get(file.name, FOREVER_MS))
        shortest_ms = int(self._limits.retention_ms[self._limits.retention_ms != UNLIMITED].min())
        return newest_ms < now_ms - shortest_ms

    def _known(self, file: StoreFile) -> tuple[int, ...] | None:
        """The findings of a file by the present limits (`COPY_FACTS`)."""
        row = self._store.manifest.files.row_of(file.name)
        known = self._facts.get(row) if row is not None else None
        return known if known is not None and known[1] == self._signature else None

    async def _may_go(self, entry: FileRange, now_ms: int | None, kept: _KeptBehind) -> bool:
        """Whether every live batch of a file may go, and is in the remote tier."""
        rows = await self._store.stored.rows_of(entry.name, [entry.group], self._placement.groups_at)
        if rows is None:
            return False
        rows = rows[await self._liveness.margins(rows) >= 0]
        if not len(rows):
            return False  # retention of the whole drops it
        seen_ms = self._store.manifest.seen.get(entry.name)
        going = await beside_if_large(rows, self._going, rows, now_ms, seen_ms, kept)
        if now_ms is not None and seen_ms is not None:
            self._learn(entry.name, going.due_ms, goes_by_size=going.by_size)
        if not going.now:
            return False
        upto = self._remote.upto(entry.group)
        are_remote = await self._are_remote(entry, rows)
        if are_remote is False and entry.upto > upto:
            self._not_there[entry.name] = upto
        elif are_remote is False and now_ms is not None:
            self._learn(entry.name, now_ms + LOOK_AGAIN_MS, goes_by_size=False)
        return bool(are_remote)

    def _going(self, rows: Rows, now_ms: int | None, seen_ms: int | None, kept: _KeptBehind) -> _Going:
        """The verdict of the limits on a file with these live extents. It only reads what does not change during a
        round."""
        seen_ms = FOREVER_MS if seen_ms is None else seen_ms
        queue_ids = numpy.ascontiguousarray(rows["queue_id"])
        keep_ms, keep_bytes = self._limits.of_queues(queue_ids)
        sized, aged = keep_bytes != UNLIMITED, keep_ms != UNLIMITED
        newest_ms = int(rows["max_timestamp"].max())
        undated_ms = newest_ms if newest_ms >= 0 else seen_ms
        times = numpy.minimum(numpy.where(rows["max_timestamp"] < 0, undated_ms, rows["max_timestamp"]), seen_ms)
        keeps = numpy.minimum(keep_ms, NEVER_MS - numpy.maximum(times, 0))
        dues = numpy.where(aged, times + keeps, NEVER_MS)
        by_age = dues < now_ms if now_ms is not None else numpy.zeros(len(rows), numpy.bool_)
        by_size = rows["last_offset"] < kept.of_queues(queue_ids)
        return _Going(
            bool((by_age | by_size).all()),
            int(dues.max()) if aged.all() else (now_ms or 0) + LOOK_AGAIN_MS,
            bool(sized.any() and (sized | aged).all()),
        )

    def _learn(self, name: str, due_ms: int, *, goes_by_size: bool) -> None:
        row = self._store.manifest.files.row_of(name)
        if row is not None:
            self._facts.put(row, (due_ms, self._signature, int(goes_by_size)))

    async def _are_remote(self, entry: FileRange, rows: Rows) -> bool | None:
        """Whether the remote files of the same blocks have all offsets of these extents; None: that is not known now,
        as the store is out, one of the files is damaged, or the leader is not done with some of the blocks."""
        first, last = int(rows["queue_id"][0]), int(rows["queue_id"][-1])
        found: list[Rows] = []
        for name in self._remote_files(entry, first, last):
            remote = await self._remote.rows_of(name, [entry.group], self._placement.groups_at)
            if remote is None or self._remote.is_damaged(name):
                return None
            found.append(remote[(remote["queue_id"] >= first) & (remote["queue_id"] <= last)])
        if found and (await beside_if_large(rows, covered, rows, numpy.concatenate(found))).all():
            return True
        spans = self._remote.manifest.spans(entry.group)
        return None if spans.behind(self._remote.upto(entry.group)) < len(spans) else False

    def _remote_files(self, entry: FileRange, first: int, last: int) -> Iterator[str]:
        """The remote files that have some of the blocks, and may have some of the queues from `first` to `last`. Those
        of a span that the leader is not done with are left out: the next leader may give them up."""
        manifest, upto = self._remote.manifest, self._remote.upto(entry.group)
        spans = manifest.spans(entry.group)
        for span in spans.overlapping(entry.after, min(entry.upto, upto)):
            if span.upto > upto:
                break
            for remote in span:
                file = manifest.files.get(remote.name)
                if file is not None and file.first_queue <= last and file.last_queue >= first:
                    yield remote.name

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        for what, text, value in (
            ("files", "Files of disk 2 that went since the remote tier has them", self._dropped_files),
            ("bytes", "Bytes of files of disk 2 that went since the remote tier has them", self._dropped_bytes),
        ):
            yield Sample(f"mainstem_local_retention_dropped_{what}_total", "counter", text, value)
