"""Merges of one store, from the choice of their inputs to the step that puts outputs in their place.

What is worth merging is judged by summaries of spans (`merge_plan`); each file is looked at once for its summary, and
again now and then, as batches die. A merge is under way from its choice until its outputs are recorded, or until the
lease ends under which it was asked for: meanwhile nothing drops or replaces its inputs but damage, which makes it fail.
Two merges under way have no input of a write group in common.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy
import numpy.typing

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.rpc.messages.split import MergeWaits
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds
from mainstem.storage.merging.merge_check import QueueSums, compare
from mainstem.storage.merging.merge_plan import (
    NEVER,
    Fullness,
    LineOf,
    MergeLines,
    SpanSummary,
    choose,
    fullness_of,
    summarize,
)
from mainstem.storage.queue_store.changes.being_copied import BeingCopied
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.manifest.spans import FileRange, Span
from mainstem.storage.queue_store.reading.open_files import FileGone, KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import NEVER_COMPACTED, NO_HORIZON, FileKind, StoreFile, kind_of

log = logging.getLogger(__name__)

Integers = numpy.typing.NDArray[numpy.int64]

LOOK_SECONDS_MAX = 5.0
"""For one answer: a splitter waits for it, and asks again."""

SUMMARY_SECONDS = 3600.0
"""A summary of a merged file is made again after this long: retention works in hours."""

QUEUES_PER_TURN = 16_384
"""Queues whose bounds are looked up in one turn of the event loop: some milliseconds if all their topics were
deleted."""

SPANS_PER_TURN = 256
"""Spans whose summaries are looked up in one turn of the event loop: some milliseconds."""

DONE_REMEMBERED = 64
"""Merges that were recorded: whoever lost the answer asks again at once."""


class LiveBounds(NamedTuple):
    """Per queue, the offsets that a write group has of it: from `starts` up to `ends`, not included; `ends` is 0 for a
    queue of which the group has none and never had."""

    starts: Integers
    ends: Integers


BoundsOf = Callable[[int, QueueIds], LiveBounds]
"""Gives the bounds of queues in a write group."""


class Merge(NamedTuple):
    """A merge under way."""

    group: int
    level: int
    entries: tuple[FileRange, ...]
    inputs: tuple[StoreFile, ...]
    in_force: Callable[[], bool]
    since: float
    """By the monotonic clock."""
    compacts: bool = False
    """It is a compaction: each input has outputs of its own in its place (`compactions.py`)."""


class DoneMerge(NamedTuple):
    """A merge that was recorded."""

    group: int
    level: int
    inputs: int
    outputs: int
    bytes: int
    """Of the outputs' batches."""
    at: float
    """By the monotonic clock."""


class _Chosen(NamedTuple):
    """Neighbouring spans of a write group that are to be merged, and the summary of each."""

    group: int
    level: int
    spans: Sequence[Span]
    summaries: Sequence[SpanSummary]


class _Told(NamedTuple):
    """What the choice is told."""

    groups: int
    lines: MergeLines
    line_of: LineOf
    bounds: BoundsOf


class _Summary(NamedTuple):
    made_at: float
    span: SpanSummary


class Merges:
    """The merges of one store."""

    def __init__(
        self, stored: StoredFiles, changes: StoreChanges, being_copied: BeingCopied, orphans: Orphans, clock: Clock
    ) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._changes = changes
        self._being_copied = being_copied
        self._orphans = orphans
        self._clock = clock
        self._under_way: dict[str, Merge] = {}
        self._done: dict[str, frozenset[str]] = {}
        """Names of the outputs of merges that were recorded."""
        self._summaries: dict[tuple[int, str], _Summary] = {}
        """By write group and file."""
        self._next_group = 0
        self.merged_files = 0
        self.merged_bytes = 0
        self._looks: SingleFlight[None, MergeWaits] = SingleFlight()
        self.last: DoneMerge | None = None
        """The last one that was recorded since the start."""
        orphans.merging_since = self._since

    # --- choosing -------------------------------------------------------------------------------------------

    async def begin(
        self,
        merge_id: str,
        groups: int,
        lines: MergeLines,
        line_of: LineOf,
        bounds: BoundsOf,
        in_force: Callable[[], bool],
        *,
        drain: bool = False,
    ) -> tuple[Merge | None, bool]:
        """Choose what to merge next, one write group after the other, and hold it while `in_force`. Returns None where
        nothing is worth it, and whether some files were not looked at yet."""
        found, more = await self._chosen(groups, lines, line_of, bounds, drain=drain)
        if found is None:
            return None, more
        self._next_group = found.group + 1
        return self._started(merge_id, found, in_force), more

    async def waits(self, groups: int, lines: MergeLines, line_of: LineOf, bounds: BoundsOf) -> MergeWaits:
        """The work that the next merge would take, were it begun now. Nothing is begun. Callers at the same time get
        one answer."""

        async def look() -> MergeWaits:
            found, more = await self._chosen(groups, lines, line_of, bounds, drain=False)
            return MergeWaits(sum(summary.bytes for summary in found.summaries) if found is not None else 0, more)

        return await self._looks.run(None, look)

    async def _chosen(
        self, groups: int, lines: MergeLines, line_of: LineOf, bounds: BoundsOf, *, drain: bool
    ) -> tuple[_Chosen | None, bool]:
        """Choose what to merge next, and tell whether some files were not looked at yet."""
        told = _Told(groups, lines, line_of, bounds)
        give_up = self._clock.monotonic() + LOOK_SECONDS_MAX
        more = False
        for step in range(groups):
            group = (self._next_group + step) % groups
            if any(merge.group == group for merge in self.current()):
                continue
            spans = self._manifest.spans(group)
            summaries: list[SpanSummary] = []
            for number, span in enumerate(spans, 1):
                if number % SPANS_PER_TURN == 0:
                    await asyncio.sleep(0)
                found = await self._summary(group, span, told, give_up)
                if found is None:
                    break
                summaries.append(found)
            if len(summaries) < len(spans):
                more = True
                continue
            choice = choose(summaries, lines, line_of, drain=drain)
            # the spans may have changed at their end, or been merged, or lost files, while they were looked at
            if choice is not None and self._stand(group, spans[choice.first : choice.end]):
                chosen = slice(choice.first, choice.end)
                return _Chosen(group, choice.level, spans[chosen], summaries[chosen]), more
        return None, more

    def _stand(self, group: int, chosen: Sequence[Span]) -> bool:
        return all(
            self._manifest.files.get(entry.name) is not None
            and entry in self._manifest.entries(entry.name)
            and entry.name not in self._stored.damaged
            for span in chosen
            for entry in span
        )

    def _started(self, merge_id: str, found: _Chosen, in_force: Callable[[], bool]) -> Merge:
        entries = tuple(entry for span in found.spans for entry in span)
        files = tuple(self._manifest.files[entry.name] for entry in entries)
        merge = Merge(found.group, found.level, entries, files, in_force, self._clock.monotonic())
        self.hold(merge_id, merge)
        return merge

    def hold(self, merge_id: str, merge: Merge) -> None:
        """Begin a merge: its files stay until it ends."""
        self._under_way[merge_id] = merge
        for entry in merge.entries:
            self._orphans.hold(entry.name)

    def end(self, merge_id: str) -> None:
        """End a merge, if it is under way still."""
        if merge_id in self._under_way:
            self._end(merge_id)

    async def _summary(self, group: int, span: Span, told: _Told, give_up: float) -> SpanSummary | None:
        """A span's summary; None when the time is over. A file that cannot be read counts as empty: nothing that has it
        is begun until it is mended."""
        parts: list[SpanSummary] = []
        for entry in span:
            known = self._summaries.get((group, entry.name))
            if known is None or known.span.level > 0:
                now = self._clock.monotonic()
                if known is None and now >= give_up:
                    return None
                if known is None or (now - known.made_at > SUMMARY_SECONDS and now < give_up):
                    await self._look_at(entry.name, told)
                    known = self._summaries.get((group, entry.name))
            if known is not None:
                parts.append(known.span)
        if not parts:
            return SpanSummary(
                span.after, span.upto, 0, 0, 0, 0, 0, numpy.zeros(0, numpy.uint64), numpy.zeros(0, numpy.int64)
            )
        return _together(span, parts)

    async def _look_at(self, name: str, told: _Told) -> None:
        """Make the summaries of a file, for all write groups that it counts for."""
        try:
            file = self._stored.file(name)
            index = await self._stored.open_files.index(self._stored.search.known(name), keep=False)
        except FileGone:
            return
        except (StorageError, OSError):  # noted there
            return
        now = self._clock.monotonic()
        for group in self._manifest.counts_for(name):
            if group < told.groups:
                live = await _all_bounds(told.bounds, group, index.queues()[0])
                found = await asyncio.to_thread(_summary_of, index, file, live)
                if file.is_merged:
                    found = found._replace(fullness=_fullness(file, found.live_bytes, told))
                self._summaries[group, name] = _Summary(now, found)
        if len(self._summaries) > 2 * told.groups * (len(self._manifest.files) + 1):
            self._summaries = {key: value for key, value in self._summaries.items() if key[1] in self._manifest.files}

    # --- under way ------------------------------------------------------------------------------------------

    def under_way(self, merge_id: str) -> Merge | None:
        """A merge that may still be recorded."""
        self.current()
        return self._under_way.get(merge_id)

    def is_busy(self) -> bool:
        """Whether a merge is under way."""
        return bool(self.current())

    def give_up(self, but: Collection[str] = ()) -> None:
        """End the merges under way, all but these."""
        for merge_id in [merge_id for merge_id in self._under_way if merge_id not in but]:
            self._end(merge_id)

    def current(self) -> list[Merge]:
        """The merges under way whose lease is in force; the others end."""
        for merge_id in [merge_id for merge_id, merge in self._under_way.items() if not merge.in_force()]:
            self._end(merge_id)
        return list(self._under_way.values())

    def _end(self, merge_id: str) -> None:
        for entry in self._under_way.pop(merge_id).entries:
            self._orphans.let_go(entry.name)

    def _since(self) -> float | None:
        """Since when the oldest merge has been under way; None: there is none."""
        return min((merge.since for merge in self.current()), default=None)

    # --- recording ------------------------------------------------------------------------------------------

    async def record(self, merge_id: str, outputs: Sequence[StoreFile], bounds: BoundsOf) -> None:
        """Put the outputs of a merge in the place of its inputs. Durable when it returns; nothing happens when this was
        done before. Raises `StorageError`, OSError, nothing being changed."""
        names = frozenset(file.name for file in outputs)
        if self._done.get(merge_id) == names:
            return
        merge = self.under_way(merge_id)
        if merge is None or merge.compacts:
            raise StorageError("this merge is not under way: its lease has ended, or it was given up")
        outputs = [as_clean_as(merge.inputs, file) for file in outputs]
        # also when the lease ends meanwhile
        held = [*(file.name for file in outputs), *(entry.name for entry in merge.entries)]
        for name in held:
            self._orphans.hold(name)
        try:
            await self._check(merge, outputs, bounds)
            await self._changes.merge(merge.group, merge.entries, outputs, self._being_copied.is_kept)
        finally:
            for name in held:
                self._orphans.let_go(name)
        self.end(merge_id)
        self._done[merge_id] = names
        while len(self._done) > DONE_REMEMBERED:
            del self._done[next(iter(self._done))]
        size = sum(file.batch_bytes for file in outputs)
        self.merged_files += len(merge.entries)
        self.merged_bytes += size
        self.last = DoneMerge(merge.group, merge.level, len(merge.entries), len(outputs), size, self._clock.monotonic())
        log.info(
            "write group %d: %d files are merged into %d of %d bytes, on level %d", merge.group, len(merge.entries),
            len(outputs), sum(file.bytes for file in outputs), merge.level,
        )  # fmt: skip

    async def _check(self, merge: Merge, outputs: Sequence[StoreFile], bounds: BoundsOf) -> None:
        """Raises `StorageError` unless the outputs have what is live in the inputs."""
        before, after = QueueSums(), QueueSums()
        open_files, search = self._stored.open_files, self._stored.search
        for file in outputs:
            if file.group != merge.group or file.level != merge.level:
                raise StorageError(f"{file.name}: it is not of write group {merge.group} and level {merge.level}")
            await self._stored.verify(file)
        for names, sums, partly in (
            ([entry.name for entry in merge.entries], before, False),
            ([file.name for file in outputs], after, True),
        ):
            for name in names:
                index = await open_files.index(search.known(name) if not partly else KnownFile(name), keep=False)
                live = await _all_bounds(bounds, merge.group, index.queues()[0])
                await asyncio.to_thread(sums.add, index, live.starts, live.ends, partly=partly)
        await asyncio.to_thread(compare, before, after)

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample("mainstem_queue_store_merged_files_total", "counter", "Files that were merged.", self.merged_files)
        yield Sample(
            "mainstem_queue_store_merged_bytes_total", "counter", "Bytes of batches that merges wrote.",
            self.merged_bytes)  # fmt: skip
        levels: Mapping[int, list[int]] = {level: [0, 0] for level in range(3)}
        for (level, _kind), sums in self._manifest.files.levels.copy().items():  # metrics are read in any thread
            counts = levels[min(level, 2)]
            counts[0] += sums.files
            counts[1] += sums.bytes
        for level, (count, size) in levels.items():
            label = (("level", str(level)),)
            yield Sample("mainstem_queue_store_level_files", "gauge", "Files on disk 2, by level.", count, label)
            yield Sample(
                "mainstem_queue_store_level_bytes", "gauge", "Bytes of files on disk 2, by level.", size, label
            )


async def _all_bounds(bounds: BoundsOf, group: int, queue_ids: QueueIds) -> LiveBounds:
    """The bounds of any number of queues, some of them in each turn of the event loop."""
    parts = [LiveBounds(numpy.zeros(0, numpy.int64), numpy.zeros(0, numpy.int64))]
    for first in range(0, len(queue_ids), QUEUES_PER_TURN):
        parts.append(bounds(group, queue_ids[first : first + QUEUES_PER_TURN]))
        await asyncio.sleep(0)
    return LiveBounds(
        numpy.concatenate([part.starts for part in parts]), numpy.concatenate([part.ends for part in parts])
    )


def _summary_of(index: ExtentIndex, file: StoreFile, live_of: LiveBounds) -> SpanSummary:
    """Add up what a write group has in a file, given the bounds of all queues in it. The blocks are the caller's to
    say."""
    rows = index.rows
    if not len(rows):
        return summarize(0, 0, file.level, numpy.zeros(0, numpy.uint64), numpy.zeros(0, numpy.int64))
    queue_ids, firsts = index.queues()
    counts = numpy.diff(numpy.append(firsts, len(rows)))
    starts, ends = (numpy.repeat(values, counts) for values in live_of)
    lengths = rows["length"].astype(numpy.int64)
    live = (rows["last_offset"] >= starts) & (rows["base_offset"] < ends)
    sizes = numpy.add.reduceat(numpy.where(live, lengths, 0), firsts)
    there = sizes > 0
    dead = int(lengths[~live & ((ends > 0) | file.is_merged)].sum())  # what other write groups have in a run is not
    summary = summarize(0, 0, file.level, queue_ids[there], sizes[there], rows=int(live.sum()), dead_bytes=dead)
    return summary._replace(bytes=summary.bytes + dead)


def _fullness(file: StoreFile, live_bytes: int, told: _Told) -> Fullness:
    line = numpy.array([NEVER])
    if kind_of(file.name) is FileKind.SEGMENT:
        line = told.line_of(numpy.array([file.first_queue], numpy.uint64))
    return fullness_of(numpy.array([live_bytes]), line, told.lines)


def as_clean_as(inputs: Sequence[StoreFile], output: StoreFile) -> StoreFile:
    """An output of a merge, which is compacted as far as all of its inputs are."""
    horizons = [file.horizon_ms for file in inputs if file.horizon_ms != NO_HORIZON]
    return msgspec.structs.replace(
        output,
        clean_ms=min((file.clean_ms for file in inputs), default=NEVER_COMPACTED),
        horizon_ms=min(horizons, default=NO_HORIZON),
    )


def _together(span: Span, parts: Sequence[SpanSummary]) -> SpanSummary:
    """The summary of a span from those of its files."""
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
        Fullness(*map(sum, zip(*(part.fullness for part in parts if part.fullness is not None), strict=True)))
        if any(part.fullness is not None for part in parts)
        else None,
    )
