"""Finds files behind the tier's position that the tier lacks: those of topics that did not ask when their turn came,
and do now (`remote.log.copy.disable=false` again, or `remote.storage.enable=true` late).

The files of the tier have other blocks than those of disk 2: these are merged further, and each replica cuts its spans
by itself. So a span of disk 2 is compared with all spans of the tier that have some of its blocks. A file whose facts
are those of one there is an upload of it; of any other the live extents of topics that ask are looked for among those
of the tier's files, by the indexes of both. Each span is looked at once, until its files or the topics' settings are
others.

A file that lacks there goes under the blocks of its own span, with all others of the span that may have some of its
queues. The tier's spans are searched in the order of their last blocks (`file_search.py`), and each has of a queue all
that its blocks have. Of two that share a queue and overlap, the order is right unless the one lies inside the other,
behind its beginning, and ends before it: the search would step over what the larger one has before. A smaller one whose
live extents are all in files that go is therefore replaced by them, in the same command, for which further files of the
span are taken along; so is any other, to have nothing twice. So it is with a file of the very same blocks, for the
files of a span do not overlap. If one of these has what the span has no more, the span stays on disk 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import numpy

from mainstem.ports import Clock
from mainstem.storage.extents.coverage import covered
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.queue_store.manifest.in_memory.span_lists import Chunk, ListedSpan, SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.split.copying import CopyRule
from mainstem.storage.split.tier_choice import MovingFiles, MovingRows, TierUnit
from mainstem.storage.store_files.store_file import StoreFile

log = logging.getLogger(__name__)

LiveExtents = Callable[[str, int], Awaitable[Rows | None]]
"""The live extents that a file has of a write group; None: it is gone, or cannot be read now."""

SPANS_PER_TURN = 128
"""Spans that are compared by facts alone in one turn of the event loop: some milliseconds."""

AGAIN_SECONDS = 600.0
"""After so long a span is compared again of which an index could not be read: of a damaged file, or while the store is
out, for minutes or for hours."""

Blocks = tuple[int, int, int, int]
"""A span as it was looked at: (after, upto, number of its files, the last one's sequence)."""


class GapSources(NamedTuple):
    """The indexes of files, those of disk 2 and those in the store."""

    local: LiveExtents
    remote: LiveExtents


class SuspectSpan(NamedTuple):
    """A span that may have something that the tier lacks."""

    place: int
    """The number of the span."""
    files: tuple[StoreFile, ...]
    """Those that are no uploads of files there."""


class TierGap(NamedTuple):
    """Files of one span that the tier lacks."""

    unit: TierUnit
    gone: tuple[str, ...]
    """The tier's files whose place they take."""


class _Compared(NamedTuple):
    """A file of disk 2 that the tier lacks something of."""

    entry: FileRange
    file: StoreFile
    rows: Rows


class _There(NamedTuple):
    """A file of the tier."""

    span: ListedSpan
    entry: FileRange
    file: StoreFile


class _Needed(NamedTuple):
    files: list[_Compared]
    gone: tuple[str, ...]


class _Unknown(Exception):
    """A span cannot be compared now."""


class TierGaps:
    """Searches span by span, and remembers how far it has come."""

    def __init__(
        self, store: Manifest, remote: Manifest, sources: GapSources, is_damaged: Callable[[str], bool], clock: Clock
    ) -> None:
        self._store = store
        self._remote = remote
        self._sources = sources
        self._is_damaged = is_damaged
        self._clock = clock
        self._rules: dict[int, CopyRule] = {}
        """By write group, the rule by which it was looked at."""
        self._done: dict[int, dict[int, Chunk]] = {}
        """By write group and identity, chunks of spans of which the tier lacks nothing. A chunk never changes."""
        self._seen: dict[int, set[Blocks]] = {}
        """Spans of other chunks of which it lacks nothing."""
        self._later: dict[Blocks, float] = {}
        """Spans that could not be compared, and when that is tried again."""
        self.compared = 0
        """Files whose indexes were compared, since the start."""

    def forget(self, group: int) -> None:
        """Forget a write group of which nothing is asked any more."""
        for known in (self._rules, self._done, self._seen):
            known.pop(group, None)

    def leave(self, group: int, unit: TierUnit) -> None:
        """Pass over a span whose files cannot be recorded, as long as they and the settings are the same."""
        self._seen.setdefault(group, set()).add(_blocks_of(unit.spans[unit.first]))

    async def suspects(
        self, group: int, spans: SpanList, rows: MovingRows, upto: int, rule: CopyRule
    ) -> list[SuspectSpan]:
        """The spans up to the tier's position of which it may lack something, by what is known of files without their
        indexes. `rows`: of these spans, by this rule."""
        if self._rules.get(group) != rule:
            self.forget(group)
            self._rules[group] = rule
        before, earlier = self._done.get(group, {}), self._seen.get(group, set())
        done, seen = dict[int, Chunk](), set[Blocks]()
        now = self._clock.monotonic()
        self._later = {blocks: at for blocks, at in self._later.items() if at > now}
        found: list[SuspectSpan] = []
        end = looked_at = 0
        for chunk in spans.chunks:
            first, end = end, end + len(chunk)
            if id(chunk) in before:
                done[id(chunk)] = chunk
                continue
            is_done, here = int(chunk.uptos[-1]) <= upto, set[Blocks]()
            for place in (first + numpy.flatnonzero(rows["asked"][first:end])).tolist():
                if spans[place].upto > upto:
                    break
                looked_at += 1
                if looked_at % SPANS_PER_TURN == 0:
                    await asyncio.sleep(0)
                blocks = _blocks_of(spans[place])
                suspect = SuspectSpan(place, ())
                if blocks not in earlier:
                    suspect = self._suspect(group, spans, place, upto, rule)
                if not suspect.files:
                    here.add(blocks)
                elif blocks in self._later:
                    is_done = False
                else:
                    is_done = False
                    found.append(suspect)
            if is_done:
                done[id(chunk)] = chunk
            else:
                seen |= here
        self._done[group], self._seen[group] = done, seen
        return found

    async def find(
        self, group: int, spans: SpanList, suspects: Iterable[SuspectSpan], upto: int, rule: CopyRule, compared_max: int
    ) -> TierGap | None:
        """Files of one of these spans that the tier lacks, by indexes, after so many files at the most. None: nothing
        was found among them."""
        last = self.compared + compared_max
        for suspect in suspects:
            if self.compared >= last:
                break
            blocks = _blocks_of(spans[suspect.place])
            try:
                gap = await self._compare(group, spans, suspect.place, upto, rule)
            except _Unknown:
                self._later[blocks] = self._clock.monotonic() + AGAIN_SECONDS
                continue
            if gap is not None:
                return gap
            self._seen.setdefault(group, set()).add(blocks)
        return None

    def _suspect(self, group: int, spans: SpanList, place: int, upto: int, rule: CopyRule) -> SuspectSpan:
        """The files of a span that may have something that the tier lacks, and are no uploads of files there."""
        span = spans[place]
        contents = {
            file.content
            for one in self._remote.spans(group).overlapping(span.after, span.upto)
            if one.upto <= upto  # else a part of what a leader has not finished
            for other in one
            if (file := self._remote.files.get(other.name)) is not None
        }
        files = (self._store.files.get(entry.name) for entry in span)
        return SuspectSpan(
            place,
            tuple(file for file in files if file and rule.may_fill(file) and file.content not in contents),
        )

    async def _compare(self, group: int, spans: SpanList, place: int, upto: int, rule: CopyRule) -> TierGap | None:
        """Compare one span. Raises `_Unknown`."""
        span = spans[place]
        files = [(entry, self._file(entry.name)) for entry in span]
        there = [
            _There(one, other, file)
            for one in self._remote.spans(group).overlapping(span.after, span.upto)
            if one.upto <= upto
            for other in one
            if (file := self._remote.files.get(other.name)) is not None
        ]
        contents = {file.content for _span, _entry, file in there}
        lacking: list[_Compared] = []
        for entry, file in files:
            if rule.may_fill(file) and file.content not in contents:
                found = await self._lacking(entry, file, there, rule)
                if found is not None:
                    lacking.append(found)
        needed = await self._without_obstacles(lacking, files, there, span, rule)
        if needed is None:
            log.info(
                "write group %d: files of blocks (%d, %d] stay on disk 2, since the remote tier has parts of their "
                "queues that are no longer in them", group, span.after, span.upto,
            )  # fmt: skip
            return None
        if not needed.files:
            return None
        moving = MovingFiles(span.after, span.upto, tuple(one.file for one in needed.files))
        entries = tuple(one.entry for one in needed.files)
        return TierGap(TierUnit(spans, place, place + 1, (moving,), entries, (span.upto,)), needed.gone)

    async def _without_obstacles(
        self, lacking: list[_Compared], files: list[tuple[FileRange, StoreFile]], there: list[_There], span: ListedSpan,
        rule: CopyRule,
    ) -> _Needed | None:  # fmt: skip
        """These files, with those of the span that may have more of their queues, and those that it takes to replace
        what is in their way. None: something cannot be replaced. Raises `_Unknown`."""
        needed, obstacles = list(lacking), list[StoreFile]()
        while needed:
            names, keys = {one.file.name for one in needed}, [*(one.file for one in needed), *obstacles]
            more = [
                (entry, file)
                for entry, file in files
                if file.name not in names and rule.may_fill(file) and any(_share(file, one) for one in keys)
            ]
            if more:
                needed += [_Compared(*one, await self._rows(self._sources.local, one[0])) for one in more]
                continue
            mine = numpy.concatenate([one.rows for one in needed])
            gone: list[str] = []
            found: list[StoreFile] = []
            for one, other, file in there:
                if not any(_share(file, each.file) for each in needed):
                    continue
                rows = await self._rows(self._sources.remote, other)
                if (await asyncio.to_thread(covered, rows, mine)).all():  # or nothing in it is live
                    gone.append(other.name)
                elif (one.after, one.upto) == (span.after, span.upto):
                    found.append(file)
                elif span.after < one.after and one.upto < span.upto:
                    found += [file] * bool(numpy.isin(rows["queue_id"], mine["queue_id"]).any())
            if not found:
                return _Needed(needed, tuple(gone))
            if found == obstacles:
                return None
            obstacles = found
        return _Needed([], ())

    async def _lacking(
        self, entry: FileRange, file: StoreFile, there: list[_There], rule: CopyRule
    ) -> _Compared | None:
        """The file, if it has live extents of topics that ask which the tier has not. Raises `_Unknown`."""
        self.compared += 1
        rows = await self._rows(self._sources.local, entry)
        asking = rows[rule.are_asking(numpy.ascontiguousarray(rows["queue_id"]))]
        if not len(asking):
            return None
        first, last = int(asking["queue_id"][0]), int(asking["queue_id"][-1])
        found: list[Rows] = []
        for _span, other, remote in there:
            if remote.first_queue <= last and remote.last_queue >= first:
                found.append(await self._rows(self._sources.remote, other))
        if found and (await asyncio.to_thread(covered, asking, numpy.concatenate(found))).all():
            return None
        return _Compared(entry, file, rows)

    def _file(self, name: str) -> StoreFile:
        file = self._store.files.get(name)
        if file is None or self._is_damaged(name):
            raise _Unknown
        return file

    @staticmethod
    async def _rows(extents: LiveExtents, entry: FileRange) -> Rows:
        rows = await extents(entry.name, entry.group)
        if rows is None:
            raise _Unknown
        return rows


def _share(one: StoreFile, other: StoreFile) -> bool:
    """Whether two files may have a queue in common."""
    return one.first_queue <= other.last_queue and other.first_queue <= one.last_queue


def _blocks_of(span: ListedSpan) -> Blocks:
    sequences = [entry.sequence for entry in span]
    return span.after, span.upto, len(sequences), max(sequences)
