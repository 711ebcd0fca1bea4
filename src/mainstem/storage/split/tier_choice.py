"""Which files of a write group go to the remote tier next.

Merged spans go in the order of their blocks, from where the tier has come to up to the first span with runs: what is in
the tier is a prefix of the log, so that one number says how far it goes. A span goes as a whole, for whoever reads the
tier goes by the keys of its files; of each span those files go that are to move by what their topics ask for
(`copying.py`). A span without any is passed, with the next that has some; if a topic asks later for what stayed then,
it goes afterwards (`tier_gaps.py`).

A *unit* is some neighbouring spans, uploaded in several pieces of work, and recorded together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import PARTITION_BITS
from mainstem.storage.merging.merge_outputs import STAYING
from mainstem.storage.queue_store.manifest.in_memory.span_lists import Chunk, Pages, SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.split.copying import CopyRule
from mainstem.storage.store_files.store_file import MANY_GROUPS, StoreFile, moves

UNIT_BYTES = 4 << 30
"""Of batches. Spans below it go together, so that small ones do not take a change of the log each."""

FILES_PER_TURN = 256
"""Files that are gathered in one turn of the event loop: some milliseconds."""

CHUNKS_PER_TURN = 8
"""Chunks of spans that are added up in one turn of the event loop: some milliseconds."""

MOVING_ROW = numpy.dtype([("upto", "<i8"), ("bytes", "<i8"), ("files", "<i8"), ("runs", "?"), ("asked", "?")])
"""Of a span: its last block, the batches and the files in it that move, whether it has runs, and whether it has merged
files between whose topics one asks."""

MovingRows = numpy.typing.NDArray[numpy.void]


class CopyLag(NamedTuple):
    """The files that may move and have not."""

    bytes: int = 0
    """Of batches."""
    files: int = 0


class MovingFiles(NamedTuple):
    """A span, and the files of it that move."""

    after: int
    upto: int
    files: tuple[StoreFile, ...]


class TierUnit(NamedTuple):
    """Neighbouring spans of a write group, those without a moving file between them included."""

    spans: SpanList
    """All of the write group, when this was chosen."""
    first: int
    end: int
    """They are spans number `first` to `end` - 1."""
    moving: tuple[MovingFiles, ...]
    entries: tuple[FileRange, ...]
    """Of the moving files, in their order."""
    uptos: tuple[int, ...]
    """The last blocks of all its spans."""

    @property
    def upto(self) -> int:
        return self.moving[-1].upto

    @property
    def batch_bytes(self) -> int:
        return sum(file.batch_bytes for file in self.files())

    def files(self) -> list[StoreFile]:
        return [file for span in self.moving for file in span.files]


class _ChunkSums(NamedTuple):
    chunk: Chunk
    rows: MovingRows
    first_topic: int
    """The topics of its files have numbers from this one…"""
    last_topic: int
    """…to this one."""


class MovingSums:
    """Adds up what may move of each span, and remembers it by chunks of spans, which never change. Of those that may
    have a topic which asks for something else now, it forgets it."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, _ChunkSums]] = {}
        """By write group and the identity of the chunk."""
        self._rule = CopyRule()
        self.added_up = 0
        """Chunks, since the start."""

    async def of(self, group: int, spans: SpanList, rule: CopyRule) -> MovingRows:
        """A row of `MOVING_ROW` per span."""
        self._go_by(rule)
        before, known = self._known.get(group, {}), dict[int, _ChunkSums]()
        added = 0
        for chunk in spans.chunks:
            found = before.get(id(chunk))
            if found is None:
                found = _added_up(chunk, spans.pages, rule)
                self.added_up += 1
                added += 1
                if added % CHUNKS_PER_TURN == 0:
                    await asyncio.sleep(0)
            known[id(chunk)] = found
        if rule == self._rule:
            self._known[group] = known
        return numpy.concatenate([numpy.zeros(0, MOVING_ROW), *(sums.rows for sums in known.values())])

    def _go_by(self, rule: CopyRule) -> None:
        if rule == self._rule:
            return
        changed = rule.changed_since(self._rule)
        self._rule = rule
        for group, known in self._known.items():
            self._known[group] = {
                key: sums
                for key, sums in known.items()
                if changed.searchsorted(sums.first_topic) == changed.searchsorted(sums.last_topic, side="right")
            }

    def forget(self, group: int) -> None:
        """Forget a write group of which nothing is asked any more."""
        self._known.pop(group, None)


def _added_up(chunk: Chunk, pages: Pages, rule: CopyRule) -> _ChunkSums:
    rows = chunk.rows.astype(numpy.int64)
    sizes, first_queues, last_queues = (numpy.zeros(len(rows), numpy.int64) for _ in range(3))
    remote, staying, runs = (numpy.zeros(len(rows), numpy.bool_) for _ in range(3))
    for number in numpy.unique(rows // pages.size).tolist():
        mine = rows // pages.size == number
        at, page = rows[mine] % pages.size, pages.pages[number].rows
        runs[mine] = page.column("group")[at] == MANY_GROUPS
        first_queues[mine], last_queues[mine] = page.column("first_queue")[at], page.column("last_queue")[at]
        remote[mine] = page.in_classes(moves)[at]
        staying[mine] = page.in_classes(STAYING.__contains__)[at]
        sizes[mine] = page.column("batch_bytes")[at]
    may_move = ~runs & ~staying
    by_topics = rule.asked_by_all(first_queues, last_queues)
    moving = may_move & numpy.where(remote, rule.allows(first_queues, last_queues), by_topics)
    starts = chunk.starts[:-1].astype(numpy.intp)
    found = numpy.zeros(len(chunk), MOVING_ROW)
    found["upto"] = chunk.uptos
    found["bytes"] = numpy.add.reduceat(numpy.where(moving, sizes, 0), starts)
    found["files"] = numpy.add.reduceat(moving.astype(numpy.int64), starts)
    found["runs"] = numpy.logical_or.reduceat(runs, starts)
    found["asked"] = numpy.logical_or.reduceat(may_move & rule.asked(first_queues, last_queues), starts)
    first_topic, last_topic = int(first_queues.min()) >> PARTITION_BITS, int(last_queues.max()) >> PARTITION_BITS
    return _ChunkSums(chunk, found, first_topic, last_topic)


def waiting(rows: MovingRows, upto: int) -> CopyLag:
    """The files that may move behind block `upto`."""
    left = rows[rows["upto"] > upto]
    return CopyLag(int(left["bytes"].sum()), int(left["files"].sum()))


def chosen(rows: MovingRows, upto: int, enough: int = UNIT_BYTES) -> tuple[int, int] | None:
    """The numbers (first, end) of the spans behind block `upto` that go next; None: none can go now."""
    first = int(rows["upto"].searchsorted(upto, side="right"))
    stops = numpy.flatnonzero(rows["runs"][first:])
    ready = rows[first : first + int(stops[0])] if len(stops) else rows[first:]
    there = numpy.flatnonzero(ready["files"])
    if not len(there):
        return None
    reach = min(int(numpy.cumsum(ready["bytes"]).searchsorted(enough)), len(ready) - 1)
    return first, first + int(there[there <= reach][-1]) + 1


async def unit_of(
    manifest: Manifest, spans: SpanList, first: int, end: int, rule: CopyRule, is_damaged: Callable[[str], bool]
) -> TierUnit | None:
    """The unit of these spans. None: one of the files cannot be read, or is gone."""
    moving: list[MovingFiles] = []
    entries: list[FileRange] = []
    gathered = 0
    for number in range(first, end):
        span = spans[number]
        files: list[StoreFile] = []
        for entry in span:
            gathered += 1
            if gathered % FILES_PER_TURN == 0:
                await asyncio.sleep(0)
            file = manifest.files.get(entry.name)
            if file is None or is_damaged(entry.name):
                return None
            if rule.moves(file):
                files.append(file)
                entries.append(entry)
        if files:
            moving.append(MovingFiles(span.after, span.upto, tuple(files)))
    uptos = tuple(spans[number].upto for number in range(first, end))
    return TierUnit(spans, first, end, tuple(moving), tuple(entries), uptos) if moving else None
