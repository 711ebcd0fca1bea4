"""The sources that retention reads to find out which records may go: indexes of files and of sealed segments, those of
every queue oldest first.

Remote and local files of a write group come in the order of their blocks, remote ones before the local one with which
they share blocks; then come the sealed segments. A file that was copied to the remote tier comes twice while its local
copy is there, and its offsets are taken from the one that comes first (`QueueExtents`). A local file of blocks that the
leader merged otherwise, or passed over, may have what lies before a remote one: where a queue goes on behind a gap in a
remote file, what the local file of these blocks has of the gap comes first.

Skipped are files that have nothing to lose (`retention_memory.py`). Of a remote queue segment that is asked for its
size alone the index is read once, and four numbers stand for it from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

import numpy

from mainstem.storage.errors import SegmentGone, StorageError
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.journal.journal import Journal
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.changes.row_facts import RowFacts
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.upkeep.remote_files import RemoteFiles
from mainstem.storage.upkeep.retention import Gaps, QueueExtents
from mainstem.storage.upkeep.retention_memory import LimitedQueues, RunMemory, TopicLimits

log = logging.getLogger(__name__)

FOREVER_MS = (1 << 63) - 1

ROWS_AT_ONCE_MAX = 4_096
"""Up to this many extents of a run are looked up in one turn of the event loop: some tenths of a millisecond."""

RUNS_PER_TURN = 100
"""Runs skipped in one turn of the event loop: some milliseconds."""

SEGMENT_END = numpy.dtype([("end", "<i8")])
"""Of a remote queue segment: the offset behind its last one."""


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def beside_if_large(
    rows: Rows,
    work: Callable[Arguments, Result],
    *given: Arguments.args,
    **named: Arguments.kwargs,
) -> Result:
    """The result of some work on extents, done beside the event loop where there are many."""
    if len(rows) > ROWS_AT_ONCE_MAX:
        return await asyncio.to_thread(work, *given, **named)
    return work(*given, **named)


class RetentionUnit(NamedTuple):
    """A file, or a sealed segment. Times in ms."""

    rows: Rows | None
    """Its extents that count; None: the source is skipped, or cannot be read."""
    undated_ms: int
    """The time taken for extents without a time of their own."""
    seen_ms: int
    """The time by which this node had the source; of an unreadable source, the time that nothing in it is newer
    than."""
    skipped: bool = False
    """It was not worth reading."""


class FirstSeen(NamedTuple):
    """The times (ms) by which this node had its sources: sealed segments by sequence, local and remote files by
    name."""

    segments: Mapping[int, int]
    local: Mapping[str, int]
    remote: Mapping[str, int]


class _Listed(NamedTuple):
    """A file that is to be looked at."""

    file: StoreFile
    groups: Sequence[int]
    is_remote: bool
    after: int = 0
    """The block behind which a remote file begins."""


class RetentionSources:
    """The sources of one node, and what is remembered of them from round to round."""

    def __init__(
        self,
        journal: Journal,
        store: QueueStore,
        placement: Placement,
        remote: RemoteFiles | None,
        has_applied_files: Callable[[int], bool] = lambda group: True,
    ) -> None:
        """`has_applied_files`: whether the node has applied all that its files have of a write group; before that it
        may not know of queues in them, and remembers nothing of what it saw."""
        self._has_applied_files = has_applied_files
        self._journal = journal
        self._store = store
        self._placement = placement
        self._remote = remote
        self._local_memory = RunMemory(store.manifest.files, store.retention_facts_bytes_max)
        self._remote_memory: RunMemory | None = None
        self._segment_ends: RowFacts | None = None
        if remote is not None:
            files, bytes_max = remote.manifest.files, store.retention_facts_bytes_max
            self._remote_memory = RunMemory(files, bytes_max // 2)
            self._segment_ends = RowFacts(SEGMENT_END, files.page_files, bytes_max // 2)

    def begin(self, limits: TopicLimits) -> None:
        """Begin a round with these limits; call it in a thread beside the event loop."""
        self._local_memory.begin(limits)
        if self._remote is not None and self._remote_memory is not None and self._segment_ends is not None:
            self._remote_memory.begin(limits)
            self._segment_ends.keep(self._remote.manifest.files.pages)

    async def units(
        self, limited: LimitedQueues, seen: FirstSeen, now_ms: int | None, *, sized: bool, counted: bool = False
    ) -> AsyncIterator[RetentionUnit]:
        """Yield the sources, oldest first. A source not seen before is as young as it says. Skipped are files in which
        no record is too old (`now_ms` None: in any file), no queue has a limited size, if sizes are asked for, and none
        a limited number of records, if these are (`counted`), and none is compacted. While a local file cannot be read
        none is skipped, as it could not be told from those."""
        all_of_them = len(self._store.damaged) > 0
        reached = None
        if self._remote is not None and len(self._remote.manifest.files):
            reached = QueueExtents(limited.queue_ids, limited.log_starts)
        for place, listed in enumerate(self._files()):
            if place % RUNS_PER_TURN == 0:
                await asyncio.sleep(0)
            file, groups, is_remote, _after = listed
            memory = self._memory_of(listed)
            times = seen.remote if is_remote else seen.local
            seen_ms = times.get(file.name, FOREVER_MS)
            wanted = all_of_them and not is_remote
            wanted = wanted or (counted and memory.has_counted(file, groups))
            if not wanted and now_ms is not None:
                wanted = memory.has_compacted(file, groups)
                wanted = wanted or memory.has_expired(file, groups, now_ms, seen_ms)
            if not wanted and sized and memory.has_sized(file, groups):
                rows = self._as_one_row(listed)
                if rows is not None:
                    if reached is not None:
                        async for unit in self._of_gaps(listed, rows, reached, seen):
                            yield unit
                    yield RetentionUnit(rows, seen_ms, seen_ms)
                    continue
                wanted = True
            if not wanted:
                if now_ms is not None:
                    yield RetentionUnit(None, FOREVER_MS, _newest(file, seen_ms, is_remote), skipped=True)
                continue
            rows = await self._rows_of(listed)
            if rows is None:
                is_known = is_remote or len(self._store.damaged) > 0
                yield RetentionUnit(None, FOREVER_MS, _newest(file, seen_ms, is_known))
                continue
            newest_ms = int(rows["max_timestamp"].max(initial=-1))
            undated_ms = newest_ms if newest_ms >= 0 else seen_ms
            if file.name in times and all(map(self._has_applied_files, groups)):
                await beside_if_large(rows, memory.learn, file, groups, rows, undated_ms, seen_ms, limited)
            if reached is not None:
                async for unit in self._of_gaps(listed, rows, reached, seen):
                    yield unit
            yield RetentionUnit(rows, undated_ms, seen_ms)
            await asyncio.sleep(0)
        async for unit in self._sealed(seen.segments):
            yield unit

    async def _sealed(self, seen: Mapping[int, int]) -> AsyncIterator[RetentionUnit]:
        for segment in self._journal.segments():
            if segment.index_ready:
                try:
                    rows = (await self._journal.index(segment.sequence)).rows
                except SegmentGone:  # recycled meanwhile: its batches are split, or dead
                    continue
                except (StorageError, OSError) as error:
                    log.error("retention leaves segment %d out: %s", segment.sequence, error)
                    yield RetentionUnit(None, FOREVER_MS, FOREVER_MS)
                else:
                    seen_ms = seen.get(segment.sequence, FOREVER_MS)
                    yield RetentionUnit(rows, seen_ms, seen_ms)
                    await asyncio.sleep(0)  # rows in memory come without a wait

    # --- which files, in which order ------------------------------------------------------------------------

    def _files(self) -> Iterator[_Listed]:
        """All files, those of every write group in the order of their blocks. The manifests may change between two
        steps."""
        walks: dict[int, _RemoteWalk] = {}
        if self._remote is not None:
            manifest = self._remote.manifest
            walks = {group: _RemoteWalk(manifest, group, self._remote.upto(group)) for group in manifest.groups()}
        for file, groups in self._store.stored.in_order():
            for group in groups:
                walk = walks.get(group)
                if walk is not None and not walk.is_over:
                    yield from walk.before(self._end_of(file.name, group))
            yield _Listed(file, groups, False)
        for walk in walks.values():
            yield from walk.before(None)

    def _end_of(self, name: str, group: int) -> int:
        """The last block of a local file; -1 when it has gone meanwhile."""
        return max((one.upto for one in self._store.manifest.entries(name) if one.group == group), default=-1)

    # --- what is in them ------------------------------------------------------------------------------------

    async def _of_gaps(
        self, listed: _Listed, rows: Rows, reached: QueueExtents, seen: FirstSeen
    ) -> AsyncIterator[RetentionUnit]:
        """Yield what lies between what has come of queues and where a remote file goes on with them, as far as a local
        file that is still to come has it; then count the file itself as having come. Of a queue that has moved only
        the oldest stay comes in the order of offsets."""
        rows = self._placement.of_first_stays(rows)
        if listed.is_remote:
            gaps = await beside_if_large(rows, reached.gaps, rows)
            if len(gaps.queue_ids):
                async for unit in self._local_rows(listed.groups[0], listed.after, gaps, seen):
                    assert unit.rows is not None, "it was read"
                    reached.take(unit.rows)
                    yield unit
        await beside_if_large(rows, reached.take, rows)

    async def _local_rows(self, group: int, after: int, gaps: Gaps, seen: FirstSeen) -> AsyncIterator[RetentionUnit]:
        """Yield what the local span that began before a block, and has more than it, has of these gaps."""
        spans = self._store.manifest.spans(group)
        place = spans.behind(after)
        if place == len(spans) or spans[place].after >= after:
            return
        for entry in spans[place]:
            file = self._store.manifest.files.get(entry.name)
            if file is None or not file.is_merged:
                continue
            if file.first_queue > int(gaps.queue_ids[-1]) or file.last_queue < int(gaps.queue_ids[0]):
                continue
            rows = await self._store.stored.rows_of(file.name, (group,), self._placement.groups_at)
            found = gaps.within(rows) if rows is not None else None
            if found is not None and len(found):
                seen_ms = seen.local.get(file.name, FOREVER_MS)
                newest_ms = int(found["max_timestamp"].max())
                yield RetentionUnit(found, newest_ms if newest_ms >= 0 else seen_ms, seen_ms)

    def _memory_of(self, listed: _Listed) -> RunMemory:
        if not listed.is_remote:
            return self._local_memory
        assert self._remote_memory is not None, "there is no remote file without a remote tier"
        return self._remote_memory

    async def _rows_of(self, listed: _Listed) -> Rows | None:
        file, groups = listed.file, listed.groups
        if not listed.is_remote:
            return await self._store.stored.rows_of(file.name, groups, self._placement.groups_at)
        assert self._remote is not None
        assert self._segment_ends is not None
        rows = await self._remote.rows_of(file.name, groups, self._placement.groups_at)
        row = self._remote.manifest.files.row_of(file.name)
        if rows is not None and len(rows) and row is not None and _has_one_queue(file):
            self._segment_ends.put(row, (int(rows["last_offset"][-1]) + 1,))
        return rows

    def _as_one_row(self, listed: _Listed) -> Rows | None:
        """A remote file that has one queue as one extent, which is what Kafka's retention sees of a remote segment.
        None: its index has to be read, also where it may have parts of several stays."""
        file = listed.file
        if not listed.is_remote or not _has_one_queue(file) or file.first_queue in self._placement.moved:
            return None
        assert self._remote is not None
        assert self._segment_ends is not None
        row = self._remote.manifest.files.row_of(file.name)
        known = self._segment_ends.get(row) if row is not None else None
        if known is None:
            return None
        rows = numpy.zeros(1, EXTENT_ROW)
        rows["queue_id"], rows["base_offset"], rows["last_offset"] = file.first_queue, file.first_offset, known[0] - 1
        rows["max_timestamp"], rows["length"] = file.max_timestamp, file.batch_bytes
        return rows


def _has_one_queue(file: StoreFile) -> bool:
    return file.is_merged and file.first_queue == file.last_queue


def _newest(file: StoreFile, seen_ms: int, is_known: bool) -> int:
    """The time (ms) that nothing in a file which is left out is newer than. `is_known`: the file is where it was
    listed."""
    return min(file.max_timestamp, seen_ms) if is_known and file.min_timestamp >= 0 else FOREVER_MS


class _RemoteWalk:
    """How far the remote files of one write group have come. Those of a span that its leader is not done with are left
    out: the next leader may give them up."""

    def __init__(self, manifest: Manifest, group: int, upto: int) -> None:
        self._files = manifest.files
        self._group = group
        self._spans = manifest.spans(group)
        self._end = self._spans.behind(upto)
        self._place = 0

    @property
    def is_over(self) -> bool:
        return self._place == self._end

    def before(self, end: int | None) -> Iterator[_Listed]:
        """Yield the files of the next spans that begin before the end of block `end`; None: of all that are left."""
        while not self.is_over:
            span = self._spans[self._place]
            if end is not None and span.after >= end:
                return
            self._place += 1
            for entry in span:
                file = self._files.get(entry.name)
                if file is not None:  # else it counts no more since the walk began
                    yield _Listed(file, (self._group,), True, span.after)
