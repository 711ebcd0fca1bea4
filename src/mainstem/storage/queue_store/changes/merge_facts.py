"""The knowledge that the choice of merges has of files: sums of all spans, and summaries of those that it looks into.

Of a merged file a few bytes are remembered: how much of it is dead, and when that was looked at. With what the manifest
says that makes the sums of a span, which are added up a chunk of spans at a time (`span_lists`), and again only when
the chunk is another one or something in it was looked at since. The content of a span, queue by queue, is known of runs
and of packed files that may be merged soon; the rest, for which memory has no room, is read again from indexes. All of
it is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy

from mainstem.lru import Lru
from mainstem.ports import Clock
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds
from mainstem.storage.extents.offset_gaps import NO_GAPS, OffsetGaps, joined_gaps
from mainstem.storage.merging.merge_lines import NEVER, Flags, Integers, MergeLines
from mainstem.storage.merging.merge_spans import RUNS, SPAN_ROW, SpanRows, SpanSummary, file_fullness, summarize
from mainstem.storage.merging.segment_lines import SegmentLines
from mainstem.storage.queue_store.changes.aged_runs import AgedOf, none_aged
from mainstem.storage.queue_store.changes.file_changes import every_group
from mainstem.storage.queue_store.changes.row_facts import Places, RowFacts
from mainstem.storage.queue_store.manifest.in_memory.file_pages import KIND_LETTERS
from mainstem.storage.queue_store.manifest.in_memory.file_table import Page
from mainstem.storage.queue_store.manifest.in_memory.span_lists import Chunk, ListedSpan, Pages, SpanList
from mainstem.storage.queue_store.reading.open_files import FileGone
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import MANY_GROUPS, FileKind, StoreFile

SUMMARY_SECONDS = 3600.0
"""The dead part of a merged file is looked at again after this long: retention works in hours."""

QUEUES_PER_TURN = 16_384
"""Queues whose bounds are looked up in one turn of the event loop: some milliseconds if all their topics were
deleted."""

FILES_PER_TURN = 32
"""Files whose summaries are put together in one turn of the event loop: half a millisecond."""

CHUNKS_PER_TURN = 2
"""Chunks of spans that are added up in one turn of the event loop: a millisecond or less."""

KNOWN_CHUNKS_PER_TURN = 512
"""…and of which memory has the sums."""

PAGES_PER_TURN = 32
"""Pages of files that are asked for what is to be looked at in one turn of the event loop."""

FACTS_PART, SUMS_PART, SUMMARIES_PART = 4, 4, 2
"""One part in so many of the memory is for what is dead of merged files, for sums of spans, and for summaries."""

SHARES = 255
"""The dead part of a file is remembered as so many of these parts."""

LOOKED_AT = numpy.dtype([("at", "<u4"), ("dead", "u1")])
"""Of a merged file: when it was looked at, in seconds of the monotonic clock and 1; and what was dead then."""

ENDLESS = int(numpy.iinfo(numpy.int64).max)


class LiveBounds(NamedTuple):
    """Per queue, the offsets that a write group has of it: from `starts` up to `ends`, not included; `ends` is 0 for a
    queue of which the group has none and never had."""

    starts: Integers
    ends: Integers
    gaps: OffsetGaps = NO_GAPS
    """Offsets between these that other write groups have."""


BoundsOf = Callable[[int, QueueIds], LiveBounds]
"""Gives the bounds of queues in a write group."""


BordersOf = Callable[[int], Sequence[int]]
"""Gives the blocks of a write group, ascending, that end spans which are not merged with those behind them."""


def no_borders(group: int) -> Sequence[int]:
    """The borders where no remote tier is."""
    return ()


class Told(NamedTuple):
    """The report to the choice."""

    groups: int
    lines: MergeLines
    segment_lines: SegmentLines
    bounds: BoundsOf
    borders: BordersOf = no_borders
    works_on: Callable[[int], bool] = every_group
    aged: AgedOf = none_aged


class _Summary(NamedTuple):
    made_at: float
    span: SpanSummary


class _ChunkSums(NamedTuple):
    chunk: Chunk
    pages: tuple[int, ...]
    stamp: tuple[int, ...]
    rows: SpanRows


class MergeFacts:
    """Of one store."""

    def __init__(self, stored: StoredFiles, clock: Clock, bytes_max: int) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._clock = clock
        self._looked = RowFacts(LOOKED_AT, self._manifest.files.page_files, bytes_max // FACTS_PART)
        self._sums: dict[int, dict[int, _ChunkSums]] = {}
        """By write group and the identity of the chunk."""
        self._sums_bytes_max = bytes_max // SUMS_PART
        self._summaries: Lru[tuple[int, int], _Summary] = Lru(bytes_max // SUMMARIES_PART, _weight)
        """By write group and row."""
        self._next_page = 0
        self.added_up = 0
        """Chunks, since the start."""

    @property
    def held_bytes(self) -> int:
        sums = sum(known.rows.nbytes for chunks in self._sums.values() for known in chunks.values())
        return self._looked.held_bytes + sums + self._summaries.held

    # --- all spans ------------------------------------------------------------------------------------------

    async def sums(self, group: int, spans: SpanList, told: Told) -> SpanRows:
        """The sums of all spans of a write group. Of runs they have all that is in their files, also what other write
        groups have there."""
        before, known = self._sums.get(group, {}), dict[int, _ChunkSums]()
        room = self._sums_bytes_max // max(1, told.groups)
        rows = [numpy.zeros(0, SPAN_ROW)]
        work = 0.0
        for chunk in spans.chunks:
            found = before.get(id(chunk))
            work += 1 / KNOWN_CHUNKS_PER_TURN
            if found is None or found.stamp != self._stamp(found.pages):
                found = self._add_up(chunk, spans.pages, told)
                work += 1 / CHUNKS_PER_TURN
            rows.append(found.rows)
            room -= found.rows.nbytes
            if room >= 0:
                known[id(chunk)] = found
            if work >= 1:
                work = 0.0
                await asyncio.sleep(0)
        self._sums[group] = known
        return numpy.concatenate(rows)

    def _stamp(self, pages: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(self._looked.changed, pages))

    def _add_up(self, chunk: Chunk, pages: Pages, told: Told) -> _ChunkSums:
        self.added_up += 1
        rows = chunk.rows.astype(numpy.int64)
        levels, sizes, records, first_queues, dead = (numpy.zeros(len(rows), numpy.int64) for _ in range(5))
        segments = numpy.zeros(len(rows), numpy.bool_)
        numbers = numpy.unique(rows // pages.size).tolist()
        for number in numbers:
            mine = rows // pages.size == number
            at, page = rows[mine] % pages.size, pages.pages[number].rows
            levels[mine], sizes[mine] = page.column("level")[at], page.column("batch_bytes")[at]
            records[mine], first_queues[mine] = page.column("record_count")[at], page.column("first_queue")[at]
            segments[mine] = page.kinds()[at] == KIND_LETTERS[FileKind.SEGMENT]
            looked = self._looked.page(number)
            if looked is not None:
                dead[mine] = looked["dead"][at]
        dead = sizes * dead // SHARES
        lines = numpy.full(len(rows), NEVER, numpy.int64)
        if segments.any():
            queue_ids = first_queues[segments].astype(numpy.uint64)
            lines[segments] = told.segment_lines.of_files(queue_ids, sizes[segments], records[segments])
        starts = chunk.starts[:-1].astype(numpy.intp)
        found = numpy.zeros(len(chunk), SPAN_ROW)
        found["level"] = numpy.minimum.reduceat(levels, starts)
        found["file_count"] = numpy.diff(chunk.starts)
        columns = sizes, dead, *file_fullness(sizes - dead, lines, told.lines)
        names = "bytes", "dead_bytes", "full_bytes", "tiny_bytes", "tiny_files", "large_files"
        for name, column in zip(names, columns, strict=True):
            found[name] = numpy.add.reduceat(column, starts)
        return _ChunkSums(chunk, tuple(numbers), self._stamp(numbers), found)

    # --- some spans -----------------------------------------------------------------------------------------

    async def summaries(
        self, group: int, spans: Sequence[ListedSpan], told: Told, give_up: float
    ) -> list[SpanSummary] | None:
        """The summaries of some spans; None when the time is over. A file that cannot be read counts as empty: nothing
        that has it is begun until it is mended."""
        found: list[SpanSummary] = []
        files = 0
        for span in spans:
            parts: list[SpanSummary] = []
            for row in span.rows():
                known = self._summaries.get((group, row))
                if known is None or known.span.level > RUNS:
                    now = self._clock.monotonic()
                    if known is None and now >= give_up:
                        return None
                    stale = known is None or (now - known.made_at > SUMMARY_SECONDS and now < give_up)
                    if stale and self._manifest.files.has_row(row):
                        known = (await self._look_at(row, told)).get(group, known)
                if known is not None:
                    parts.append(known.span)
                files += 1
                if files % FILES_PER_TURN == 0:
                    await asyncio.sleep(0)
            found.append(_together(span, parts))
        return found

    async def _look_at(self, row: int, told: Told) -> dict[int, _Summary]:
        """Make the summaries of a file, for all write groups that it counts for; none if it cannot be read."""
        made: dict[int, _Summary] = {}
        files, now = self._manifest.files, self._clock.monotonic()
        file = files.file(row)
        if file.is_merged:
            self._looked.put(row, (int(now) + 1, 0))  # should it not be readable
        try:
            index = await self._stored.open_files.index(self._stored.search.known(file.name), keep=False)
        except (FileGone, StorageError, OSError):  # noted there
            return made
        for group in self._manifest.counts_for(file.name):
            if group < told.groups:
                live = await all_bounds(told.bounds, group, index.queues()[0])
                found = await asyncio.to_thread(_summary_of, index, file, live)
                made[group] = _Summary(now, found)
                self._summaries.put((group, row), made[group])
                if file.is_merged:
                    self._looked.put(row, (int(now) + 1, SHARES * found.dead_bytes // max(1, found.bytes)))
        return made

    # --- merged files ---------------------------------------------------------------------------------------

    async def look_round(self, told: Told, give_up: float) -> tuple[bool, bool]:
        """Look at what is dead of merged files that were not looked at for a while. Tells whether any was looked at,
        and whether there are more."""
        files = self._manifest.files
        self._looked.keep(files.pages)
        worked_on = numpy.array([told.works_on(group) for group in range(told.groups)], numpy.bool_)
        numbers = list(files.pages)
        first = next((place for place, number in enumerate(numbers) if number >= self._next_page), 0)
        looked = False
        for passed, number in enumerate([*numbers[first:], *numbers[:first]], 1):
            if passed % PAGES_PER_TURN == 0:
                await asyncio.sleep(0)
            page = files.pages.get(number)
            if page is None or not self._looked.has_room(number):
                continue
            due = self._due(page, number, worked_on)
            left = self._not_whole(page, number, due, told)
            looked = looked or len(left) < len(due)
            for at in left.tolist():
                if self._clock.monotonic() >= give_up:
                    self._next_page = number
                    return looked, True
                if page.alive[at]:
                    await self._look_at(page.first_row + at, told)
                    looked = True
        return looked, False

    def _due(self, page: Page, number: int, worked_on: Flags) -> Places:
        """The places of merged files that were not looked at for a while."""
        count = len(page.rows)
        owners = page.rows.column("group")
        due = page.alive[:count] & (owners != MANY_GROUPS) & (owners < len(worked_on))
        due[due] = worked_on[owners[due]]
        known = self._looked.page(number)
        if known is not None:
            at = known["at"][:count].astype(numpy.int64)
            due &= (at == 0) | (at < self._clock.monotonic() - SUMMARY_SECONDS)
        return numpy.flatnonzero(due)

    def _not_whole(self, page: Page, number: int, places: Places, told: Told) -> Places:
        """Those of these files that may have something dead. A queue segment that begins at the log start of its queue,
        or behind it, is live as a whole; that is noted without a look at its index."""
        rows = page.rows
        segments = places[rows.kinds()[places] == KIND_LETTERS[FileKind.SEGMENT]]
        if not len(segments):
            return places
        owners, queue_ids = rows.column("group")[segments], rows.column("first_queue")[segments].astype(numpy.uint64)
        whole = numpy.zeros(len(segments), numpy.bool_)
        for group in numpy.unique(owners).tolist():
            mine = owners == group
            bounds = told.bounds(group, queue_ids[mine])
            begins = bounds.starts <= rows.column("first_offset")[segments[mine]]
            whole[mine] = begins & (bounds.ends == ENDLESS)
        self._looked.note(number, segments[whole], (int(self._clock.monotonic()) + 1, 0))
        return numpy.setdiff1d(places, segments[whole])


def _weight(summary: _Summary) -> int:
    return 700 + summary.span.heavy_queues.nbytes + summary.span.heavy_bytes.nbytes


async def all_bounds(bounds: BoundsOf, group: int, queue_ids: QueueIds) -> LiveBounds:
    """The bounds of any number of queues, some of them in each turn of the event loop."""
    parts = [LiveBounds(numpy.zeros(0, numpy.int64), numpy.zeros(0, numpy.int64))]
    for first in range(0, len(queue_ids), QUEUES_PER_TURN):
        parts.append(bounds(group, queue_ids[first : first + QUEUES_PER_TURN]))
        await asyncio.sleep(0)
    return LiveBounds(
        numpy.concatenate([part.starts for part in parts]),
        numpy.concatenate([part.ends for part in parts]),
        joined_gaps([part.gaps for part in parts]),
    )


def _summary_of(index: ExtentIndex, file: StoreFile, live_of: LiveBounds) -> SpanSummary:
    """Add up what a write group has in a file, given the bounds of all queues in it. The blocks are the caller's to
    say."""
    rows = index.rows
    if not len(rows):
        return summarize(0, 0, file.level, numpy.zeros(0, numpy.uint64), numpy.zeros(0, numpy.int64))
    queue_ids, firsts = index.queues()
    counts = numpy.diff(numpy.append(firsts, len(rows)))
    starts, ends = numpy.repeat(live_of.starts, counts), numpy.repeat(live_of.ends, counts)
    elsewhere = live_of.gaps.cover(rows)
    lengths = rows["length"].astype(numpy.int64)
    live = (rows["last_offset"] >= starts) & (rows["base_offset"] < ends) & ~elsewhere
    sizes = numpy.add.reduceat(numpy.where(live, lengths, 0), firsts)
    there = sizes > 0
    of_others = elsewhere | (ends <= 0)  # in a run, and not dead
    dead = int(lengths[~live & (~of_others | file.is_merged)].sum())
    summary = summarize(0, 0, file.level, queue_ids[there], sizes[there], rows=int(live.sum()), dead_bytes=dead)
    return summary._replace(bytes=summary.bytes + dead)


def _together(span: ListedSpan, parts: Sequence[SpanSummary]) -> SpanSummary:
    """The summary of a span from those of its files."""
    if not parts:
        none = numpy.zeros(0, numpy.int64)
        return SpanSummary(span.after, span.upto, 0, 0, 0, 0, 0, none.astype(numpy.uint64), none)
    queue_ids = numpy.concatenate([part.heavy_queues for part in parts])
    heavy, places = numpy.unique(queue_ids, return_inverse=True)
    sizes = numpy.zeros(len(heavy), numpy.int64)
    numpy.add.at(sizes, places, numpy.concatenate([part.heavy_bytes for part in parts]))
    return SpanSummary(
        span.after,
        span.upto,
        min(part.level for part in parts),
        sum(part.bytes for part in parts),
        sum(part.dead_bytes for part in parts),
        sum(part.queue_count for part in parts),
        sum(part.row_count for part in parts),
        heavy,
        sizes,
        len(parts),
    )
