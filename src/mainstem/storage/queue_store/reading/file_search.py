"""Finds the file and the extent in which an offset of a queue lies.

A queue's history is spread over the spans of its write group in the order of their blocks. Blocks are split in log
order, so a queue's offsets rise from span to span: an offset is found by bisection over the spans, then over the files
of the span, then over the file's index. A span need not have the queue at all; most of those are stepped over by the
filters of their runs and the keys of their merged files alone.

A run may also have what a queue had in another write group, before a move or since. For this one that counts at another
place, or not at all, so it says nothing of where an offset is: a search goes by the extents of one stay.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange, Span
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.reading.open_files import FileGone, KnownFile, OpenFiles
from mainstem.storage.store_files.store_file import NO_OFFSET

SPANS_PER_TURN = 128
"""Spans stepped over in one turn of the event loop: a quarter of a millisecond."""

FILES_TOGETHER = 32
"""Files of which a queue's rows are read in one go. A write group has its older data in so few spans, mostly: to read a
page of each takes less than to open one file after the other in a bisection."""

SPANS_AHEAD_MAX = 4
"""Spans that are looked at for what follows in memory. A busy queue is in each span; a look takes ten microseconds,
which a reader of a queue that is seldom in them should not pay for many."""

ENDLESS = (1 << 63) - 1
"""The end of a stay that goes on."""

Spans = Sequence[Span]
"""The spans of one write group, oldest first: a snapshot, unmoved by later changes."""


StayBounds = tuple[int, int, int]
"""(write group, first offset, end) of offsets of a queue that follow each other in one log; `ENDLESS`: it goes on."""
StayOf = Callable[[int, int], StayBounds | None]
"""Gives the stay of a queue in which an offset lies; None: all that files have of the queue is of one write group."""


class ExtentPlace(NamedTuple):
    """An extent of a queue; `at` is the place of its span among those searched."""

    at: int
    file: KnownFile
    extents: ExtentIndex
    row: int
    end: int
    """Behind the queue's last row in this file, of the stay that is looked through."""


class SpanLook(NamedTuple):
    """The result of a look at one span for a queue."""

    has_queue: bool
    """Whether it has an offset of the queue at all, as far as was looked."""
    place: ExtentPlace | None
    """The extent that holds the offset looked for, or the queue's next one in the span."""


_NOTHING = SpanLook(False, None)


class FileSearch:
    """Searches files. Every search raises `FileGone` when it meets a file that was dropped meanwhile. It steps over an
    unreadable file, and raises that file's error only if the offset may be in it: so a damaged file does not block its
    queues' other files."""

    def __init__(self, manifest: Manifest, open_files: OpenFiles) -> None:
        self._manifest = manifest
        self._open_files = open_files
        self._known: dict[str, KnownFile] = {}
        self.stay_of: StayOf = lambda queue_id, offset: None

    async def find(self, queue_id: int, spans: Spans, offset: int) -> ExtentPlace | None:
        """The extent that holds `offset`, or the queue's next one behind it, by bisection over the spans. Those
        without the queue are stepped over, for most by filter or keys alone; and where a merged file begins with the
        queue, its key tells on which side of the offset its span is, and the file is not opened. Nothing is looked for
        behind the stay in which the offset lies."""
        if 1 < len(spans) <= FILES_TOGETHER and self._lacks_pages(queue_id, spans[len(spans) // 2], offset):
            await self.bring_pages(queue_id, spans, 0, offset)
        stay = self._stay(queue_id, spans, offset)
        low, high = 0, len(spans)
        found: ExtentPlace | None = None
        left: dict[int, None] = {}
        """Spans that were told by the keys of their files alone: the answer is in the last one that begins before the
        offset, or in the first one that begins behind it."""
        unread: list[Exception] = []
        while low < high:
            probe = middle = (low + high) // 2
            look, begins = _NOTHING, spans[probe].begins_at(queue_id)
            while begins is None:
                look = await self._look(queue_id, spans, probe, offset, stay, unread)
                if look.has_queue or probe == low:
                    break
                probe -= 1
                if probe % SPANS_PER_TURN == 0:
                    await asyncio.sleep(0)
                begins = spans[probe].begins_at(queue_id)
            if begins is not None and begins > offset:
                left = {**{at: None for at in left if at < probe}, probe: None}
                found, high = None, probe
            elif begins is not None:
                left = {probe: None, **{at: None for at in left if at > probe}}
                low = middle + 1
            elif look.place is not None:
                left = {at: None for at in left if at < probe}
                found, high = look.place, probe
            else:
                if look.has_queue:
                    left = {at: None for at in left if at > probe}
                low = middle + 1
        for at in left:
            look = await self._look(queue_id, spans, at, offset, stay, unread)
            if look.place is not None:
                found = look.place
                break
        return _sure(found, offset, unread)

    async def find_in_any_stay(self, queue_id: int, spans: Spans, group: int, offset: int) -> ExtentPlace | None:
        """Search as `find` does, and go on in the queue's next stay in this write group, of which the spans are."""
        while True:
            stay = self.stay_of(queue_id, offset)
            if stay is None or stay[0] == group:
                found = await self.find(queue_id, spans, offset)
                if found is not None or stay is None:
                    return found
            offset = stay[2]
            if offset == ENDLESS:
                return None

    async def forward(
        self, queue_id: int, spans: Spans, at: int, offset: int, spans_max: int = sys.maxsize
    ) -> ExtentPlace | None:
        """Search as `find` does, but one span after the other from `at` on: for readers that are near it. `spans_max`:
        how many to look at."""
        unread: list[Exception] = []
        stay = self._stay(queue_id, spans, offset)
        for position in range(at, min(len(spans), at + spans_max)):
            if position % SPANS_PER_TURN == 0:
                await asyncio.sleep(0)
            look = await self._look(queue_id, spans, position, offset, stay, unread)
            if look.place is not None:
                return _sure(look.place, offset, unread)
        return _sure(None, offset, unread)

    async def following(self, queue_id: int, spans: Spans, place: ExtentPlace) -> ExtentPlace | None:
        """The queue's next extent."""
        rows = place.extents.rows
        next_offset = int(rows["last_offset"][place.row]) + 1
        if place.row + 1 < place.end and int(rows["base_offset"][place.row + 1]) == next_offset:
            return place._replace(row=place.row + 1)
        alone = place.row + 1 == place.end and spans[place.at].has_in_one_file(queue_id)
        return await self.forward(queue_id, spans, place.at + alone, next_offset)

    def following_held(self, queue_id: int, spans: Spans, place: ExtentPlace) -> ExtentPlace | None:
        """The queue's first extent behind a file that is the only one of its span with this queue, if that is found in
        memory: it is the only one of its span as well, and that is one of the next `SPANS_AHEAD_MAX`."""
        if self._others_with(queue_id, spans[place.at], place.file):
            return None
        stay = self._stay(queue_id, spans, int(place.extents.rows["last_offset"][place.end - 1]) + 1)
        for at in range(place.at + 1, min(len(spans), place.at + 1 + SPANS_AHEAD_MAX)):
            for known in self._files_of(queue_id, spans[at], NO_OFFSET):
                extents = self._open_files.held_rows(known, queue_id)
                if extents is None:
                    return None
                first, end = _rows_of(extents, queue_id, stay)
                if first < end:
                    alone = not self._others_with(queue_id, spans[at], known)
                    return ExtentPlace(at, known, extents, first, end) if alone else None
        return None

    def _others_with(self, queue_id: int, span: Span, known: KnownFile) -> bool:
        """Whether other files of a span may have a queue."""
        return any(other is not known for other in self._files_of(queue_id, span, NO_OFFSET))

    async def bring_pages(
        self, queue_id: int, spans: Spans, at: int, offset: int
    ) -> list[tuple[KnownFile, ExtentIndex | None]]:
        """Read in one go what look-ups of a queue will need of the next `FILES_TOGETHER` files, from one span on, where
        that is pages of their indexes. Returns those files, in order of their spans, with what memory has of each."""
        near = (spans[position] for position in range(at, min(at + FILES_TOGETHER, len(spans))))
        files = islice((known for span in near for known in self._files_of(queue_id, span, offset)), FILES_TOGETHER)
        return await self._open_files.bring_pages(queue_id, files)

    def _files_of(self, queue_id: int, span: Span, offset: int) -> Iterator[KnownFile]:
        """The files of a span that may have an offset of a queue or a later one."""
        for entry in span.runs:
            if self._open_files.summaries.may_hold(entry.name, queue_id):
                yield self.known(entry.name)
        for entry in span.keyed(queue_id, offset):
            yield self.known(entry.name)

    def _lacks_pages(self, queue_id: int, span: Span, offset: int) -> bool:
        """Whether a look at a span would read a page."""
        first = next(self._files_of(queue_id, span, offset), None)
        if first is None or not self._open_files.has_small_queues(first):
            return False
        return self._open_files.held_rows(first, queue_id) is None

    def _stay(self, queue_id: int, spans: Spans, offset: int) -> StayBounds | None:
        """The stay in which an offset of a queue lies, if that is in the write group of these spans, and files may have
        others."""
        stay = self.stay_of(queue_id, offset)
        if stay is None or not len(spans) or next(iter(spans[0])).group != stay[0]:
            return None
        return stay

    async def _look(
        self, queue_id: int, spans: Spans, at: int, offset: int, stay: StayBounds | None, unread: list[Exception]
    ) -> SpanLook:
        """Look for the extent of a queue that holds the offset, or the next, in one span. An error of reading a file
        that may have it is added to `unread`."""
        span = spans[at]
        look = _NOTHING
        for entry in span.runs:
            if self._open_files.summaries.may_hold(entry.name, queue_id):
                look = _nearer(look, await self._look_at(queue_id, entry, at, offset, stay, unread))
        for entry in span.keyed(queue_id, offset):
            one = await self._look_at(queue_id, entry, at, offset, stay, unread)
            look = _nearer(look, one)
            if one.place is not None:
                break
        return look

    async def _look_at(
        self,
        queue_id: int,
        entry: FileRange,
        at: int,
        offset: int,
        stay: StayBounds | None,
        unread: list[Exception],
    ) -> SpanLook:
        known = self.known(entry.name)
        extents = await self._extents_of(queue_id, known, unread)
        if extents is None:
            return _NOTHING
        rows = _rows_of(extents, queue_id, stay)
        if rows[0] == rows[1]:
            return _NOTHING
        row = extents.find_among(rows, offset)
        if row is None:
            return SpanLook(True, None)
        return SpanLook(True, ExtentPlace(at, known, extents, row, rows[1]))

    async def _extents_of(self, queue_id: int, known: KnownFile, unread: list[Exception]) -> ExtentIndex | None:
        """The index of a file if it may have the queue; an error of reading it is added to `unread`."""
        if not self._open_files.summaries.may_hold(known.name, queue_id):
            return None
        try:
            return await self._open_files.rows_with(known, queue_id)
        except FileGone:
            raise
        except (StorageError, OSError) as error:
            unread.append(error)
            return None

    def known(self, name: str) -> KnownFile:
        """The `KnownFile` of a name. A reader with an older snapshot of the ranges may still read a dropped file, but
        it is not kept."""
        known = self._known.get(name)
        if known is None:
            known = KnownFile(name)
            known.dropped = name not in self._manifest.files
            if not known.dropped:
                self._known[name] = known
        return known

    def outdated(self) -> list[KnownFile]:
        """The files it knows that the manifest has dropped."""
        return [known for known in self._known.values() if known.name not in self._manifest.files]

    def forget(self, known: KnownFile) -> None:
        """Forget a file that the manifest dropped."""
        self._known.pop(known.name, None)
        known.dropped = True


def _rows_of(extents: ExtentIndex, queue_id: int, stay: StayBounds | None) -> tuple[int, int]:
    """(first, end) of the rows that a file has of a queue's stay; None: of all its stays."""
    rows = extents.queue_rows(queue_id)
    if stay is None:
        return rows
    _group, first_offset, end_offset = stay
    return extents.rows_within(rows, first_offset, end_offset)


def _sure(found: ExtentPlace | None, offset: int, unread: Sequence[Exception]) -> ExtentPlace | None:
    """Return the place found, unless an unreadable file may hold an offset before it; then raise that file's error."""
    if unread and (found is None or int(found.extents.rows["base_offset"][found.row]) > offset):
        raise unread[0]
    return found


def _nearer(one: SpanLook, other: SpanLook) -> SpanLook:
    """The look with the smaller offset of two."""
    if not other.has_queue:
        return one
    if one.place is None:
        return other
    if other.place is None or _base(one.place) <= _base(other.place):
        return one
    return other


def _base(place: ExtentPlace) -> int:
    return int(place.extents.rows["base_offset"][place.row])
