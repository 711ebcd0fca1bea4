"""Finds batches that only the journal's sealed segments still hold, through the segments' indexes.

A queue's rows lie in some of the segments, in offset order over them. Segments are searched by bisection on the last
offset a queue has in each; a segment without rows of the queue is stepped over. Once its index has been read, the
filter kept in memory tells that, so that reads of split data ask no index in vain.

Batches of one queue lie scattered in a segment, among those of other queues that are most likely read as well. So once
readers have asked for enough of a chunk of a segment, it is read whole into the read cache, and the chunks behind it
ahead of the reader; until then, neighbours within `GAP_BYTES` are read in one go. Chunks of the open segment are cached
once they lie before its end: bytes before the end do not change.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import PICK_SOURCES_MAX, RecentIndex, first_damaged
from mainstem.lru import Lru
from mainstem.model import Buffer
from mainstem.storage.errors import CorruptJournal, SegmentGone
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.journal.encoding.format import offset_of, position_of, segment_name, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.read_cache.extent import CachedFile, Extent
from mainstem.storage.read_cache.read_cache import ReadCache
from mainstem.storage.read_cache.whole_chunks import load_chunks
from mainstem.storage.reading.unsealed_rows import UnsealedRows

GAP_BYTES = 64 * 1024
"""Reading this much in vain is cheaper than another trip to the reading thread."""

SPAN_BYTES_MAX = 4 << 20
"""The most bytes of one read of the journal."""

WHOLE_BYTES = 32 * 1024
"""Bytes that readers ask for within a chunk before it is read whole: where one queue among many is read, a chunk for
each of its batches would cost the disk a hundredfold."""

ASKED_CHUNKS_MAX = 4096
"""Chunks remembered for that: 4 GiB of the journal, a few hundred KiB of memory."""

AHEAD_CHUNKS_MAX = 12
"""Bytes read ahead of readers that go from one chunk to the next: those of one response, so that the disk works while
they receive it."""

READERS_MAX = 4096
"""Readers remembered. A forgotten reader pays a bisection."""

DENSE_SHARE = 8
"""A read of many queues that wants an eighth of the bytes it goes through is one of several that want all of them: the
bytes behind are wanted next."""

ROWS_MAX = 4096
"""Rows of an index in one search."""

SEGMENTS_PER_TURN = 64
"""Segments searched for a queue in one turn of the event loop: a millisecond when all indexes are in memory."""

SEGMENTS_AHEAD = 2
"""Following segments searched first for a reader at the end of a segment."""


class BatchPlace(NamedTuple):
    """A batch in the journal: position, length in bytes, offsets of its first and last record, leader epoch."""

    position: int
    length: int
    base_offset: int
    last_offset: int
    leader_epoch: int


class SegmentSource:
    """A segment as the read cache sees it."""

    def __init__(self, journal: Journal, sequence: int) -> None:
        self._journal = journal
        self.sequence = sequence
        self.name = segment_name(sequence)

    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer:
        return await self._journal.read(position_of(self.sequence, position), length, at_once=at_once)


class NearSegment(NamedTuple):
    """A segment that is read for many queues at once."""

    source: SegmentSource
    extents: ExtentIndex
    groups: None = None
    """True when it counts for all write groups."""


class SealedSegments:
    """Look-ups over the sealed, indexed segments of a journal."""

    def __init__(self, journal: Journal, cache: ReadCache, index: RecentIndex) -> None:
        self._journal = journal
        self._cache = cache
        self._unsealed = UnsealedRows(journal, index)
        self._readers: Lru[tuple[int, int], int] = Lru(READERS_MAX)
        """The segment in which a reader goes on, by queue and offset."""
        self._asked: Lru[tuple[int, int], int] = Lru(ASKED_CHUNKS_MAX)
        """Bytes asked for lately, by sequence and number of the chunk."""
        self._newest: tuple[int, int] | None = None
        """The chunk that was read last: sequence and number."""
        self._nearest = 0
        """The segment that many queues were read from last."""

    @property
    def segment_bytes(self) -> int:
        return self._journal.segment_bytes

    def distance(self, start: int, end: int) -> int:
        """Bytes of the journal between two of its positions, about."""
        whole = (sequence_of(end) - sequence_of(start)) * self._journal.segment_bytes
        return whole + offset_of(end) - offset_of(start)

    def may_hold(self, queue_id: int) -> bool:
        """Whether one of the segments with an index may have batches of a queue; False is certain, True is not. Of very
        many segments it is not asked."""
        known = self._sequences()
        return len(known) > SEGMENTS_PER_TURN or any(self._journal.may_hold(one, queue_id) for one in known)

    def goes_on(self, queue_id: int, offset: int, position: int) -> None:
        """A reader will come back for `offset`, in or behind the segment of this journal position."""
        self._readers.put((queue_id, offset), sequence_of(position))

    async def places_of_reader(self, queue_id: int, offset: int, bytes_max: int) -> list[BatchPlace]:
        """As `places`, for a reader that `goes_on` announced; empty when it did not, or when the offset must be
        searched. Raises `CorruptJournal`, `OSError`."""
        sequence = self._readers.pop((queue_id, offset))
        if sequence is None:
            return []
        known = self._sequences()
        at = bisect_left(known, sequence)
        for candidate in known[at : at + SEGMENTS_AHEAD]:
            try:
                index = await self._journal.rows_with(candidate, queue_id)
            except SegmentGone:
                return []
            row = index.find(queue_id, offset)
            if row is not None:
                found = places_from(candidate, index, queue_id, row, bytes_max)
                return found if found[0].base_offset <= offset else []
        return []

    async def places(self, queue_id: int, offset: int, bytes_max: int) -> list[BatchPlace]:
        """The queue's batches from the one that holds `offset`, or the next behind it, on: those of one
        segment, about `bytes_max` bytes of them, at least one. Empty when there is none. Segments that are
        recycled under the search count as not there.

        Raises `SegmentGone` when a file has vanished, `CorruptJournal` when an index cannot be made, `OSError`."""
        while True:
            sequences = self._sequences()
            try:
                return await self._search(sequences, queue_id, offset, bytes_max)
            except SegmentGone:
                if self._sequences()[:1] == sequences[:1]:
                    raise

    async def near(
        self, queue_id: int, offset: int, window_bytes: int, position: int | None, *, few: bool = False
    ) -> tuple[list[NearSegment], int]:
        """The segments from the one that holds this offset of the queue on, sealed or not, as far as a window of so
        many bytes may reach and the kernel picks from, and the byte of the first at which the batch lies. No segments
        when none holds it, or when `few` queues are wanted and its index is read in pages. `position`: the batch's
        journal position, if memory knows it. Raises as `places`."""
        if position is None:
            position = await self._position_of(queue_id, offset)
            if position is None:
                return [], 0
        candidate, found = sequence_of(position), offset_of(position)
        self._nearest = candidate
        reach = min((found + window_bytes) // self.segment_bytes, PICK_SOURCES_MAX - 1)
        segments: list[NearSegment] = []
        for segment in self._journal.segments():
            sequence = segment.sequence
            if sequence != candidate + len(segments) or len(segments) > reach:
                continue
            if segment.index_ready:
                if few and self._journal.reads_pages(sequence):
                    break
                self._unsealed.forget(sequence)
                extents = await self._journal.index(sequence)
            else:
                extents = await self._unsealed.extents(sequence)
            segments.append(NearSegment(SegmentSource(self._journal, sequence), extents))
        return segments, found

    async def _position_of(self, queue_id: int, offset: int) -> int | None:
        """Journal position of the batch that holds the offset, in the sealed segments."""
        known = self._sequences()
        reader = self._readers.peek((queue_id, offset))
        at = bisect_left(known, self._nearest if reader is None else reader)
        for candidate in known[at : at + SEGMENTS_AHEAD]:
            found = await self._holding(candidate, queue_id, offset)
            if found is not None:
                return position_of(candidate, found)
        places = await self.places(queue_id, offset, 1)
        return places[0].position if places and places[0].base_offset <= offset else None

    async def _holding(self, sequence: int, queue_id: int, offset: int) -> int | None:
        """The byte offset in a segment of the batch that holds the offset."""
        try:
            index = await self._journal.rows_with(sequence, queue_id)
        except SegmentGone:
            return None
        row = index.find(queue_id, offset)
        if row is None or int(index.rows["base_offset"][row]) > offset:
            return None
        return int(index.rows["position"][row])

    async def chunks(self, wanted: Sequence[tuple[SegmentSource, int, int]]) -> tuple[list[memoryview | None], bool]:
        """Chunks by number, of which so many bytes are wanted, and whether memory had all of them. None for a chunk of
        which too few bytes are wanted, or which is gone."""
        asked = self._asked
        worth: list[tuple[CachedFile, int, int]] = []
        for source, number, length in wanted:
            key = source.sequence, number
            asked_bytes = (asked.peek(key) or 0) + length
            asked.put(key, asked_bytes)
            much = asked_bytes >= WHOLE_BYTES or self._cache.holds(source, number)
            much = much and self._is_written(source, number)
            worth.append((source, number, length if much else 0))
        found = await load_chunks(self._cache, worth)
        self._go_ahead(*max(wanted, key=_place_of)[:2], dense=self._is_dense(wanted))
        return found

    def _is_dense(self, wanted: Sequence[tuple[SegmentSource, int, int]]) -> bool:
        """Whether readers want most of the bytes between these chunks, as far as one read shows."""
        start, end = (
            position_of(sequence, number * self._cache.chunk_bytes)
            for sequence, number in (min(map(_place_of, wanted)), max(map(_place_of, wanted)))
        )
        span = self.distance(start, end) + self._cache.chunk_bytes
        return sum(length for _source, _number, length in wanted) * DENSE_SHARE >= span

    def _sequences(self) -> list[int]:
        return [segment.sequence for segment in self._journal.segments() if segment.index_ready]

    async def _search(self, sequences: Sequence[int], queue_id: int, offset: int, bytes_max: int) -> list[BatchPlace]:
        low, high = 0, len(sequences)
        asked = 0
        best: tuple[int, ExtentIndex, int] | None = None
        while low < high:
            probe = (low + high) // 2
            index: ExtentIndex | None = None
            first = end = 0
            while probe >= low:
                asked += 1
                if asked % SEGMENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
                if self._journal.may_hold(sequences[probe], queue_id):
                    index = await self._journal.rows_with(sequences[probe], queue_id)
                    first, end = index.queue_rows(queue_id)
                    if end > first:
                        break
                probe -= 1
            if probe < low or index is None:
                low = (low + high) // 2 + 1
            elif int(index.rows["last_offset"][end - 1]) >= offset:
                row = index.find(queue_id, offset)
                assert row is not None
                best = (sequences[probe], index, row)
                high = probe
            else:
                low = (low + high) // 2 + 1
        if best is None:
            return []
        sequence, index, row = best
        return places_from(sequence, index, queue_id, row, bytes_max)

    async def read(self, places: Sequence[BatchPlace]) -> list[Buffer]:
        """The batches at these places, checked against their CRC.

        Raises `SegmentGone` when a segment was recycled meanwhile, `CorruptJournal` on a bad CRC."""
        batches: list[Buffer] = []
        self._ask(places)
        for span in spans(places):
            source = SegmentSource(self._journal, sequence_of(span[0].position))
            if self._worth_caching(source, span):
                await self._from_cache(source, span, batches)
                self._read_ahead(source, span)
            else:
                start = span[0].position
                length = span[-1].position + span[-1].length - start
                view = memoryview(await self._cache.past(source, offset_of(start), length))
                batches += checked(view, span, start)
        return batches

    def _ask(self, places: Sequence[BatchPlace]) -> None:
        """Count the bytes that readers ask for, by chunk."""
        asked, chunk_bytes = self._asked, self._cache.chunk_bytes
        for place in places:
            key = sequence_of(place.position), offset_of(place.position) // chunk_bytes
            asked.put(key, (asked.peek(key) or 0) + place.length)

    async def _from_cache(self, source: SegmentSource, span: Sequence[BatchPlace], batches: list[Buffer]) -> None:
        chunk_bytes = self._cache.chunk_bytes
        start = 0
        while start < len(span):
            first = offset_of(span[start].position)
            number = first // chunk_bytes
            end_of_chunk = (number + 1) * chunk_bytes
            stop = start
            while stop < len(span) and offset_of(span[stop].position) + span[stop].length <= end_of_chunk:
                stop += 1
            if stop > start:
                view, _hit = await self._cache.span(source, number * chunk_bytes, chunk_bytes)
                batches += checked(view, span[start:stop], position_of(source.sequence, number * chunk_bytes))
            else:  # the batch reaches into the next chunk
                stop = start + 1
                view, _hit = await self._cache.span(source, first, span[start].length)
                batches += checked(view, span[start:stop], span[start].position)
            start = stop

    def _worth_caching(self, source: SegmentSource, span: Sequence[BatchPlace]) -> bool:
        if not self._cache.enabled:
            return False
        chunk_bytes = self._cache.chunk_bytes
        if not self._is_written(source, (offset_of(span[-1].position) + span[-1].length - 1) // chunk_bytes):
            return False
        number = offset_of(span[0].position) // chunk_bytes
        return (self._asked.peek((source.sequence, number)) or 0) >= WHOLE_BYTES or self._cache.holds(source, number)

    def _is_written(self, source: SegmentSource, number: int) -> bool:
        """Whether a chunk will stay as it is: the journal ends behind it."""
        end = self._journal.end
        return source.sequence < sequence_of(end) or (number + 1) * self._cache.chunk_bytes <= offset_of(end)

    def _read_ahead(self, source: SegmentSource, span: Sequence[BatchPlace]) -> None:
        """Read ahead for all readers when one goes on: readers of a journal's queues move through it together."""
        last = span[-1]
        self._go_ahead(source, (offset_of(last.position) + last.length - 1) // self._cache.chunk_bytes)

    def _go_ahead(self, source: SegmentSource, number: int, *, dense: bool = False) -> None:
        """Read ahead if the read that ended in this chunk goes on from the one before: in the next chunk, or where
        a read is `dense` anywhere behind it."""
        before, self._newest = self._newest, (source.sequence, number)
        if before is None:
            return
        forward = before[0] != source.sequence or before[1] == number - 1 or (dense and before < self._newest)
        if forward and not self._cache.holds(source, number + AHEAD_CHUNKS_MAX // 2):
            self._cache.read_ahead(self._upcoming(source, number + 1), AHEAD_CHUNKS_MAX)

    async def _upcoming(self, source: SegmentSource, number: int) -> AsyncGenerator[Extent, None]:
        """The chunks from this one on, those of the next segment behind it."""
        chunk_bytes = self._cache.chunk_bytes
        while source.sequence <= sequence_of(self._journal.end):
            for position in range(number * chunk_bytes, self._journal.segment_bytes, chunk_bytes):
                if not self._is_written(source, position // chunk_bytes):
                    return
                yield Extent(source, position, chunk_bytes, 0)
            source, number = SegmentSource(self._journal, source.sequence + 1), 0


def _place_of(wanted: tuple[SegmentSource, int, int]) -> tuple[int, int]:
    return wanted[0].sequence, wanted[1]


def places_from(sequence: int, index: ExtentIndex, queue_id: int, row: int, bytes_max: int) -> list[BatchPlace]:
    """Rows of one queue in a segment's index, from `row` on, up to about `bytes_max` bytes or a gap, as places."""
    _first, end = index.queue_rows(queue_id)
    rows = index.rows[row : min(end, row + ROWS_MAX)]
    gaps = numpy.flatnonzero(rows["base_offset"][1:] != rows["last_offset"][:-1] + 1)
    if len(gaps):  # other tiers may have what lies between
        rows = rows[: int(gaps[0]) + 1]
    sizes = numpy.cumsum(rows["length"], dtype=numpy.int64)
    rows = rows[: max(1, int(numpy.searchsorted(sizes, bytes_max, side="right")))]
    start = position_of(sequence, 0)
    columns = (rows[name].tolist() for name in ("position", "length", "base_offset", "last_offset", "leader_epoch"))
    return [BatchPlace(start + position, *rest) for position, *rest in zip(*columns, strict=True)]


def spans(places: Sequence[BatchPlace]) -> list[list[BatchPlace]]:
    """Places grouped into stretches worth one read each."""
    result: list[list[BatchPlace]] = []
    for place in places:
        if result:
            start, last = result[-1][0], result[-1][-1]
            if (
                sequence_of(last.position) == sequence_of(place.position)
                and 0 <= place.position - (last.position + last.length) <= GAP_BYTES
                and place.position + place.length - start.position <= SPAN_BYTES_MAX
            ):
                result[-1].append(place)
                continue
        result.append([place])
    return result


def checked(view: memoryview, span: Sequence[BatchPlace], start: int) -> list[Buffer]:
    """The batches at these places, of which `view` has the bytes from journal position `start` on. A batch's CRC does
    not cover the fields stamped by the broker, so these are compared with the index. Raises `SegmentGone` when one is
    cut short, `CorruptJournal`."""
    stated = ((place.position - start, place.length, place.base_offset, place.leader_epoch) for place in span)
    starts, lengths, base_offsets, leader_epochs = (
        memoryview(array("q", column)) for column in zip(*stated, strict=True)
    )
    damaged = first_damaged(view, starts, lengths, base_offsets, leader_epochs)
    if damaged >= 0:
        place = span[damaged]
        where = segment_name(sequence_of(place.position))
        if starts[damaged] + place.length > len(view):
            raise SegmentGone(f"{where}: ends before {offset_of(place.position) + place.length}")
        raise CorruptJournal(
            f"{where}: batch at byte {offset_of(place.position)} (offsets "
            f"{place.base_offset} to {place.last_offset}) is not what was written; restore the segment or read a "
            "replica",
            position=place.position,
        )
    return [view[first : first + length] for first, length in zip(starts, lengths, strict=True)]
