"""The history of each queue on disk 2, read from the files of its write group.

`file_search` finds a queue in the files; the history reads it through the read cache, with read-ahead for readers that
come back. A reader that meets an unreadable file notes it (`damaged_files`), and goes on with the others where
possible, so that the file costs only its own batches.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import weakref
from collections.abc import AsyncGenerator, Callable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy

from mainstem.lru import Lru
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_format import EXTENT_BYTES, EXTENT_ROW, FRAME_BYTES
from mainstem.storage.extents.extent_index import ExtentIndex, Rows
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import SeenSpans
from mainstem.storage.queue_store.reading.file_search import ExtentPlace, Spans
from mainstem.storage.queue_store.reading.known_beginnings import (
    MOST_SHARE,
    BeginningsTogether,
    first_file_with,
    is_begun_with,
)
from mainstem.storage.queue_store.reading.open_files import FileGone, FileSource, KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.queue_store.reading.stored_slice import SliceBuilder, StoredSlice
from mainstem.storage.read_cache.cached_chunk import CachedChunk
from mainstem.storage.read_cache.extent import Extent
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)

READERS_MAX = 4096
"""Sequential readers remembered. A forgotten reader pays a bisection and starts read-ahead anew."""

INDEX_SPANS_MAX = 64
"""How far ahead of a reader its next files are looked for."""

INDEX_LOADS_MAX = 32
"""Indexes that are read ahead at once, for all readers."""


TURNS_TO_SEND = 2
"""Of the event loop, in which what is read ahead is asked for: one for the errand and one for its requests. A reader
that has all in memory would otherwise come back, again and again, before any of them is sent."""

TURNS_TO_MEET = 2
"""Of the event loop, within which readers go on that waited for one index: whoever asked for it before the others."""

PAST_SHARE = 0.5
"""Of a chunk: who takes less of it at a time comes back for the rest, and is better off with the chunk in memory."""

PAST_EXTENTS_MAX = 4096
"""Of one stretch: more than it has bytes for, unless they are smaller than is usual."""


_BASE_OFFSET, _LAST_OFFSET, _POSITION, _LENGTH, _BATCH_COUNT, _CRC = map(
    (EXTENT_ROW.names or ()).index, ("base_offset", "last_offset", "position", "length", "batch_count", "crc")
)
"""The positions of the fields of an index row once it is a tuple: to ask numpy for them one by one takes as long as all
else that an extent takes here."""


class _Reader(NamedTuple):
    """The place where a reader of a queue goes on, and how far ahead of it to read. Spans and index are remembered as
    long as others hold them."""

    upto: int
    """The last block of the span."""
    chunks_ahead: int
    spans: weakref.ref[SpanList]
    extents: weakref.ref[ExtentIndex]
    at: int
    """The place of the span among the spans."""
    file: KnownFile
    row: int
    """The extent in which it goes on, or which it has just left."""
    end: int
    """Behind the queue's last row in this file."""
    indexes_at: int
    """The span behind which the indexes are read ahead already; -1: of none."""


class QueueHistory:
    """Reads queues, and remembers where their sequential readers are."""

    def __init__(
        self,
        stored: StoredFiles,
        read_ahead_chunks_max: int,
        *,
        read_ahead_chunks_least: int = 1,
        read_ahead_chunks_at_once: int = 0,
        indexes_ahead: int = 0,
        supervision: Supervision | None = None,
    ) -> None:
        """`read_ahead_chunks_least`: how far ahead of a reader is read that comes back for the first time.
        `read_ahead_chunks_at_once`: how far, in stretches, ahead of one that was never here. `indexes_ahead`: of how
        many files ahead of a reader the indexes are read, all at once. If each takes long to come, one after the other
        they would hold up a queue that has little in each file."""
        self._stored = stored
        self._read_ahead_chunks_least = min(read_ahead_chunks_least, read_ahead_chunks_max)
        self._ahead_at_first = self._read_ahead_chunks_least if stored.cache.loads_stretches else 0
        """How far ahead of a reader is read that comes back, and found all in memory."""
        self._ahead_at_once = (
            min(read_ahead_chunks_at_once, read_ahead_chunks_max) if stored.cache.loads_stretches else 0
        )
        self._ahead_beside_index = min(2 * self._ahead_at_once, read_ahead_chunks_max)
        self._indexes_ahead = indexes_ahead
        self._index_loads = Errands(supervision, "index ahead")
        self._manifest = stored.manifest
        self._search = stored.search
        self._cache = stored.cache
        self._read_ahead_chunks_max = read_ahead_chunks_max
        self._readers: Lru[tuple[int, int, int], _Reader] = Lru(READERS_MAX)
        """By queue, write group and next offset."""
        self._beginnings = BeginningsTogether()
        self.begins_at: Callable[[int], int] = lambda queue_id: 0
        """Tells the log start of a queue, for what is brought ahead; wrong, it costs time and nothing else."""

    async def read(self, queue_id: int, group: int, offset: int, bytes_max: int) -> StoredSlice | None:
        """Batches from the one that holds `offset`, or the next there is, up to `bytes_max` bytes but at least
        one; they follow each other without a gap. None when the store has nothing from there on.

        Raises `StorageError` naming file and position when what should be there cannot be read."""
        while True:
            spans = self._manifest.spans(group)
            try:
                return await self._read(queue_id, group, spans, offset, bytes_max)
            except FileGone:  # at most once per file that retention drops or a merge replaces meanwhile
                if self._manifest.spans(group) is spans:
                    raise

    async def first_offset(self, queue_id: int, group: int, offset: int) -> int | None:
        """The offset itself if the store has it, else the next that it has; None: there is none. Raises as `read`."""
        while True:
            spans = self._manifest.spans(group)
            try:
                place = await self._search.find(queue_id, spans, offset)
            except FileGone:
                if self._manifest.spans(group) is spans:
                    raise
            else:
                return None if place is None else max(offset, int(place.extents.rows["base_offset"][place.row]))

    async def extents(self, queue_id: int, group: int, offset: int) -> AsyncGenerator[tuple[int, int, int], None]:
        """(first offset, last offset, largest timestamp) of the queue's extents, from the one that holds
        `offset`, or the next there is, on."""
        next_offset = offset
        while True:
            spans = self._manifest.spans(group)
            try:
                place = await self._search.find(queue_id, spans, next_offset)
                while place is not None:
                    row = place.extents.rows[place.row]
                    yield int(row["base_offset"]), int(row["last_offset"]), int(row["max_timestamp"])
                    next_offset = int(row["last_offset"]) + 1
                    place = await self._search.following(queue_id, spans, place)
            except FileGone:
                if self._manifest.spans(group) is spans:
                    raise
            else:
                return

    async def _read(
        self, queue_id: int, group: int, all_spans: SpanList, offset: int, bytes_max: int
    ) -> StoredSlice | None:
        spans = SeenSpans(all_spans, queue_id)
        reader = self._readers.pop((queue_id, group, offset))
        is_read_ahead_of = False
        if reader is None:
            is_read_ahead_of, place = await self._begin(queue_id, spans, offset, bytes_max)
        else:
            place = self._remembered(reader, queue_id, all_spans, offset)
            if place is None:
                at = bisect.bisect_left(spans, reader.upto, key=attrgetter("upto"))
                place = await self._search.forward(queue_id, spans, at, offset)
        if place is None:
            return None
        if reader is not None and self._waits_in_vain(queue_id, place, bytes_max, reader):
            self._go_on_ahead(queue_id, spans, place, max(reader.chunks_ahead, self._ahead_at_first))
        if reader is None and not is_read_ahead_of:
            is_read_ahead_of = self._go_ahead_at_once(queue_id, spans, place, bytes_max)
        begun, builder = place, SliceBuilder(offset, bytes_max)
        before = reader if reader is not None and reader.spans() is all_spans else None
        indexes_at = -1 if before is None else before.indexes_at
        place, indexes_at = await self._fill(
            builder,
            queue_id,
            spans,
            place,
            indexes_at,
            comes_back=reader is not None,
            is_read_ahead_of=is_read_ahead_of,
        )
        stored = builder.build()
        chunks, goes_on = self._chunks_ahead(queue_id, begun, place, reader, stored, past=builder.past is not None)
        if goes_on and self._go_on_ahead(queue_id, spans, place, chunks) and self._cache.loads_stretches:
            for _ in range(TURNS_TO_SEND):
                await asyncio.sleep(0)
        upto = before.upto if before is not None and before.at == place.at else spans[place.at].upto
        self._readers.put(
            (queue_id, group, stored.next_offset),
            _Reader(
                upto, chunks, weakref.ref(all_spans), weakref.ref(place.extents), place.at, place.file, place.row,
                place.end, indexes_at,
            ),
        )  # fmt: skip
        if builder.past is not None:
            self._keep_rest(builder.past, place, stored.next_offset)
        return stored

    async def _begin(self, queue_id: int, spans: Spans, offset: int, bytes_max: int) -> tuple[bool, ExtentPlace | None]:
        """Whether a reader that was never here is read ahead of, and the place where it begins. It waits for an index,
        and what it will read comes beside that, as far as it is known without."""
        first = None
        if self._ahead_at_once and bytes_max >= self._cache.chunk_bytes:
            first = first_file_with(self._manifest, spans, queue_id, offset)
        if first is None:
            return False, await self._search.find(queue_id, spans, offset)
        is_read_ahead_of = self._go_ahead_beside_index(queue_id, first.file, offset, bytes_max)
        if offset > self.begins_at(queue_id):  # its place may be in a later file
            place = await self._search.find(queue_id, spans, offset)
            if place is not None and not is_read_ahead_of:
                await self._begin_within(queue_id, place)
            return is_read_ahead_of, place
        with self._beginnings.begins(first.file, queue_id) as most:
            if most and not is_read_ahead_of:
                self._bring_whole(queue_id, first.file)
            if not offset:
                return is_read_ahead_of, await self._search.forward(queue_id, spans, first.at, offset)
            try:
                place = await self._search.forward(queue_id, spans, first.at, offset, spans_max=1)
            except (StorageError, OSError):  # the search decides whether the offset may be in a file that is not read
                place = None
        if place is None:  # records were deleted up to a later file
            place = await self._search.find(queue_id, spans, offset)
        return is_read_ahead_of, place

    async def _begin_within(self, queue_id: int, place: ExtentPlace) -> None:
        """Have a file brought as a whole if most of its queues are begun together, each with most of what it has there.
        All readers that waited for the same index come here within `TURNS_TO_MEET`."""
        file, rows = self._manifest.files.get(place.file.name), place.extents.queue_rows(queue_id)
        if file is None or file.queue_count < 2 or place.end - place.row < MOST_SHARE * (rows[1] - rows[0]):
            return
        with self._beginnings.begins(file, queue_id) as most:
            if most:
                source = FileSource(self._stored.open_files, place.file)
                self._cache.bring_whole(source, FRAME_BYTES + file.batch_bytes)
            for _ in range(TURNS_TO_MEET):
                await asyncio.sleep(0)

    def _remembered(self, reader: _Reader, queue_id: int, spans: SpanList, offset: int) -> ExtentPlace | None:
        """The place where a reader goes on, if that is what a search would find. None: search for it."""
        if reader.spans() is not spans:
            return None
        extents = self._stored.open_files.held_rows(reader.file, queue_id)
        if extents is None or reader.extents() is not extents:
            return None
        for row in range(reader.row, min(reader.row + 2, reader.end)):
            fields = extents.rows[row].item()
            if fields[_BASE_OFFSET] <= offset <= fields[_LAST_OFFSET]:
                return ExtentPlace(reader.at, reader.file, extents, row, reader.end)
        return None

    async def _fill(
        self,
        builder: SliceBuilder,
        queue_id: int,
        spans: Spans,
        place: ExtentPlace,
        indexes_at: int,
        *,
        comes_back: bool,
        is_read_ahead_of: bool,
    ) -> tuple[ExtentPlace, int]:
        """Give the builder extents from a place on, as long as it has room, and return the place where that ends, and
        behind which span the indexes are read ahead then. `comes_back`: the reader is known. `is_read_ahead_of`:
        what follows is on its way already. Raises as `read`, while the builder has nothing."""
        begun_at, brings = place.at, True
        while True:
            if self._indexes_ahead and place.at != indexes_at and (comes_back or place.at != begun_at):
                indexes_at = place.at if self._load_indexes(queue_id, spans, place.at) else -1
            source = FileSource(self._stored.open_files, place.file)
            is_brought = self._is_brought(queue_id, place)
            end = min(place.end, place.row + max(builder.bytes_left, 0) // EXTENT_BYTES + 2)
            rows = place.extents.rows[place.row : end]
            fields, row, waited = rows[0].item(), place.row, False
            past: CachedChunk | None = None
            behind = place.extents.rows[place.row : place.end]
            while True:
                if not builder.has_room(fields[_BASE_OFFSET], fields[_BATCH_COUNT], fields[_LENGTH]):
                    return place._replace(row=row), indexes_at
                extent = Extent(source, fields[_POSITION], fields[_LENGTH], fields[_CRC])
                if is_brought and brings and self._cache.takes_alone(extent):
                    await self._bring(queue_id, spans, place._replace(row=row), builder.bytes_left)
                    brings = not self._cache.takes_alone(extent)
                try:
                    if self._cache.loads_stretches and not is_brought:
                        if self._is_left_to_next(builder, extent):
                            return place._replace(row=row), indexes_at
                        if not self._is_on_its_way(extent, builder, place, row):
                            waited = await self._cache.comes_in_whole(extent)
                            past = await self._stretch_past(extent, behind[row - place.row :], builder)
                            if past is None and row == place.row:
                                upto = 0 if is_read_ahead_of else _queue_end(place)
                                waited = await self._load_stretch(extent, rows, builder.bytes_left, upto) or waited
                        if past is None:
                            waited = await self._cache.arrives(extent) or waited
                    if waited:
                        builder.waited()
                    taken = self._take_held(builder, source, rows[row - place.row :], past)
                    if taken:
                        row += taken - 1
                        view = None
                    elif past is None:
                        view, hit = await self._cache.read(extent)
                    else:
                        view, hit = self._cache.checked(past, extent), True
                except FileGone:
                    raise
                except (StorageError, OSError) as error:
                    self._stored.damaged.note(extent.source.name, error)
                    if len(builder):
                        return place._replace(row=row), indexes_at  # a reader that goes on there meets the error again
                    raise
                if view is not None:
                    if not builder.add(view, hit, f"{extent.source.name}: extent at {extent.position}"):
                        return place._replace(row=row), indexes_at
                    row += self._take_held(builder, source, rows[row + 1 - place.row :], past)
                if row + 1 == end:
                    break
                next_offset, fields = int(rows["last_offset"][row - place.row]) + 1, rows[row + 1 - place.row].item()
                if fields[_BASE_OFFSET] != next_offset:
                    break  # another file of the span may have what lies between
                row += 1
            taken = row
            place = place._replace(row=taken)
            try:
                following = await self._search.following(queue_id, spans, place)
            except FileGone:
                raise
            except (StorageError, OSError):  # noted there; what was found so far is whole
                return place, indexes_at
            if following is None:
                return place, indexes_at
            place = following

    def _is_on_its_way(self, extent: Extent, builder: SliceBuilder, place: ExtentPlace, row: int) -> bool:
        """Whether all that a read takes of a file from an extent on is in memory, or on its way there, or if it is not
        the first of them that extent."""
        length = extent.length
        if row == place.row:
            end = min(extent.position + builder.bytes_left + EXTENT_BYTES, _queue_end(place))
            length = max(length, end - extent.position)
        return builder.past is None and self._cache.has(extent._replace(length=length))

    async def _load_stretch(self, extent: Extent, rows: Rows, bytes_max: int, upto: int) -> bool:
        """Load what a read takes of a file, from an extent on; whether it waited. One that takes a chunk or more is
        likely to go on in what follows, `upto` a place in the file."""
        upto = upto if bytes_max >= self._cache.chunk_bytes else 0
        return await self._cache.load_stretch(extent, _stretch_bytes(rows, bytes_max), upto)

    def _is_left_to_next(self, builder: SliceBuilder, extent: Extent) -> bool:
        """Whether a read ends before an extent of which it has room for a part: where each read takes long to come, it
        waits for none that it does not take whole. Nor does one that takes a chunk or more take a part of what memory
        has: to find the place within the extent, in this read and in the next, takes longer than the part is worth."""
        if builder.takes_whole(extent.length):
            return False
        return builder.bytes_max >= self._cache.chunk_bytes or not self._cache.has(extent)

    async def _stretch_past(self, extent: Extent, rows: Rows, builder: SliceBuilder) -> CachedChunk | None:
        """A stretch of this reader alone that has an extent, the first of these rows, all there are of the queue in the
        file. None: the extent is to be had by way of the chunks."""
        if builder.past is not None:
            name, past = builder.past
            if name == extent.source.name and past.has(extent.position, extent.length):
                return past
        found = self._cache.take_rest(extent)
        if found is None:
            if not self._cache.is_crowded or builder.bytes_max < self._cache.chunk_bytes * PAST_SHARE:
                return None
            found = await self._cache.stretch_past(
                extent, builder.bytes_left, partial(_whole_bytes, rows[:PAST_EXTENTS_MAX])
            )
            if found is not None:
                builder.waited()
        if found is None or not found.has(extent.position, extent.length):
            return None
        builder.past = extent.source.name, found
        return found

    def _keep_rest(self, past: tuple[str, CachedChunk], place: ExtentPlace, next_offset: int) -> None:
        """Keep the rest of a reader's own stretch, if it goes on in it."""
        name, stretch = past
        row = place.extents.rows[place.row]
        if place.file.name == name and int(row["last_offset"]) >= next_offset:
            self._cache.keep_rest(_extent(FileSource(self._stored.open_files, place.file), row), stretch)

    def _take_held(self, builder: SliceBuilder, source: FileSource, rows: Rows, past: CachedChunk | None) -> int:
        """Give the builder the first of these extents, as many as came in one read and can be taken as they are, from
        `past` or from memory; how many those are."""
        if not len(rows) or not builder.goes_on_at(int(rows["base_offset"][0])):
            return 0
        if past is not None:
            return builder.add_plain(past, rows.view(numpy.uint8).data)
        chunk = self._cache.held(source, int(rows["position"][0]))
        count = 0 if chunk is None else builder.add_plain(chunk, rows.view(numpy.uint8).data)
        if chunk is not None and count:
            self._cache.passed(source, chunk, count, int(rows["position"][count - 1]))
        return count

    async def _bring(self, queue_id: int, spans: Spans, place: ExtentPlace, bytes_max: int) -> None:
        """Bring into memory what a read will ask for from a place on, about `bytes_max` bytes: all pages in one go,
        then all extents. The queue has a little in each of many files, and to go from one to the next costs more."""
        offset = int(place.extents.rows["base_offset"][place.row])
        files = await self._search.bring_pages(queue_id, spans, place.at, offset)
        extents: list[Extent] = []
        for known, index in files:
            if bytes_max <= 0:
                break
            if index is None:
                continue
            source = FileSource(self._stored.open_files, known)
            rows = index.queue_rows(queue_id)
            row = index.find_among(rows, offset)
            while row is not None and row < rows[1] and bytes_max > 0:
                extents.append(_extent(source, index.rows[row]))
                bytes_max -= extents[-1].length
                row += 1
        await self._cache.bring(extents, self._stored.open_files.read_together)

    def _waits_in_vain(self, queue_id: int, place: ExtentPlace, bytes_max: int, reader: _Reader) -> bool:
        """Whether a reader will wait, where it waits for stretches, while less than could be is on its way for it: it
        comes back for the first time, or takes something of which nothing is."""
        if not self._cache.loads_stretches or self._cache.is_crowded or self._is_brought(queue_id, place):
            return False  # of a crowd nothing is read ahead
        if not reader.chunks_ahead:
            return True
        position = int(place.extents.rows["position"][place.row])
        end = min(position + bytes_max + EXTENT_BYTES, _queue_end(place))
        source, chunk_bytes = FileSource(self._stored.open_files, place.file), self._cache.chunk_bytes
        numbers = range(position // chunk_bytes, (end - 1) // chunk_bytes + 1)
        return not all(self._cache.holds(source, number) for number in numbers)

    def _chunks_ahead(
        self,
        queue_id: int,
        begun: ExtentPlace,
        place: ExtentPlace,
        reader: _Reader | None,
        stored: StoredSlice,
        *,
        past: bool,
    ) -> tuple[int, bool]:
        """How many chunks to read ahead of a reader, and whether to begin with that now: further each time it had to
        wait for the disk, no further once it finds everything in memory. Bytes that a reader brings are not read
        ahead: that would be whole chunks, of which it wants little; nor is read ahead of one that was read for past
        the memory: its next read begins in a chunk that memory does not have."""
        if reader is None or self._is_brought(queue_id, place):
            return 0, False
        least = self._read_ahead_chunks_least
        chunks = reader.chunks_ahead if stored.from_cache else max(least, reader.chunks_ahead * 2)
        chunks = min(max(chunks, self._ahead_at_first), self._read_ahead_chunks_max)
        goes_on = not stored.from_cache or not reader.chunks_ahead
        return chunks, not past and (goes_on or not self._is_in_one_stretch(begun, place))

    def _go_on_ahead(self, queue_id: int, spans: Spans, place: ExtentPlace, chunks: int) -> bool:
        # the one it is in, too
        return self._cache.read_ahead(self._upcoming(queue_id, spans, place), chunks + 1)

    def _go_ahead_at_once(self, queue_id: int, spans: Spans, place: ExtentPlace, bytes_max: int) -> bool:
        """Read ahead of a reader that was never here, behind what it asks for now, if it asks for a chunk or more and
        no other reader is read ahead of: the first that it waits for then is no more than what it takes, and the rest
        is on its way meanwhile. Whether that was begun."""
        cache = self._cache
        if not self._ahead_at_once or bytes_max < cache.chunk_bytes or cache.is_reading_ahead:
            return False
        if self._is_brought(queue_id, place):
            return False
        rows = place.extents.rows[place.row : place.end]
        taken = int(rows["position"][0]) + _stretch_bytes(rows, bytes_max)
        behind = -(-taken // cache.chunk_bytes) * cache.chunk_bytes
        return cache.read_ahead(self._upcoming(queue_id, spans, place, behind), self._ahead_at_once)

    def _waits_for_index(self, queue_id: int, file: StoreFile) -> bool:
        return self._stored.open_files.held_rows(self._search.known(file.name), queue_id) is None

    def _bring_whole(self, queue_id: int, file: StoreFile) -> None:
        """Have a file brought beside its index for the readers who begin with most of its queues, this one the last of
        them."""
        if self._waits_for_index(queue_id, file):
            source = FileSource(self._stored.open_files, self._search.known(file.name))
            self._cache.bring_whole(source, FRAME_BYTES + file.batch_bytes)

    def _go_ahead_beside_index(self, queue_id: int, file: StoreFile, offset: int, bytes_max: int) -> bool:
        """As `_go_ahead_at_once`, of a reader that begins with the first batch of a file of its queue alone: what it
        asks for now, and what is behind that, is on its way as soon as the index, which it waits for first."""
        cache = self._cache
        if not is_begun_with(file, offset) or cache.is_reading_ahead or not self._waits_for_index(queue_id, file):
            return False
        taken = min(-(-(bytes_max + EXTENT_BYTES) // cache.chunk_bytes) * cache.chunk_bytes, file.batch_bytes)

        async def beginning() -> AsyncGenerator[Extent, None]:
            source = FileSource(self._stored.open_files, self._search.known(file.name))
            yield Extent(source, 0, taken, 0)
            if taken < file.batch_bytes:
                yield Extent(source, taken, file.batch_bytes - taken, 0)

        return cache.read_ahead(beginning(), taken // cache.chunk_bytes + self._ahead_beside_index)

    def _is_in_one_stretch(self, begun: ExtentPlace, place: ExtentPlace) -> bool:
        """Whether a read ends where there is no more to be read ahead than where it began: what is loaded in one read
        has not been used up."""
        if not self._cache.loads_stretches or begun.file is not place.file:
            return False
        first, last = (int(one.extents.rows["position"][one.row]) for one in (begun, place))
        return first // self._cache.stretch_bytes == last // self._cache.stretch_bytes

    def _is_brought(self, queue_id: int, place: ExtentPlace) -> bool:
        """Whether a queue has so little in a file with many queues, a chunk at most, that a reader brings that by
        itself. A file has many queues or a large one if its index is too large to be kept: of the latter one goes on
        in chunk after chunk."""
        if not self._stored.open_files.has_small_queues(place.file):
            return False
        rows = place.extents.rows
        first, end = rows[place.extents.queue_rows(queue_id)[0]].item(), rows[place.end - 1].item()
        return bool(end[_POSITION] + end[_LENGTH] - first[_POSITION] <= self._cache.chunk_bytes)

    def _load_indexes(self, queue_id: int, spans: Spans, at: int) -> bool:
        """Begin to read the indexes of the next files that may have a queue. False: there was no room for all."""
        left = self._indexes_ahead
        for position in range(at + 1, min(len(spans), at + 1 + INDEX_SPANS_MAX)):
            for entry in spans[position].keyed(queue_id, 0):
                known = self._search.known(entry.name)
                if not self._stored.open_files.has_rows(known, queue_id):
                    if len(self._index_loads) >= INDEX_LOADS_MAX:
                        return False
                    self._index_loads.start(self._load_index(known, queue_id))
                left -= 1
                if not left:
                    return True
        return True

    async def _load_index(self, known: KnownFile, queue_id: int) -> None:
        try:
            await self._stored.open_files.rows_with(known, queue_id)
        except (StorageError, OSError) as error:  # the reader meets it again, and reports it
            log.debug("the index of %s cannot be read ahead: %s", known.name, error)

    async def close(self) -> None:
        """Stop reading indexes ahead."""
        self._index_loads.cancel()
        await self._index_loads.ended()

    async def _upcoming(
        self, queue_id: int, spans: Spans, place: ExtentPlace, behind: int = 0
    ) -> AsyncGenerator[Extent, None]:
        """Yield the rest of the queue, from a place on, as stretches of files: its extents in a file follow each other,
        so that no more is asked of each than where the last one ends. `behind`: where in the first file to begin."""
        following: ExtentPlace | None = place
        while following is not None:
            last = following._replace(row=following.end - 1)
            begins, end = following.extents.rows[following.row], following.extents.rows[last.row]
            position, upto = max(int(begins["position"]), behind), int(end["position"]) + int(end["length"])
            behind = 0
            if position < upto:
                yield Extent(FileSource(self._stored.open_files, following.file), position, upto - position, 0)
            following = await self._search.following(queue_id, spans, last)


def _stretch_bytes(rows: Rows, bytes_max: int) -> int:
    """How many bytes the extents of these rows have, which follow each other in their file, up to the one in which
    `bytes_max` is reached."""
    positions = rows["position"]
    begins = int(positions[0])
    behind = int(positions.searchsorted(numpy.uint64(begins + bytes_max)))  # of any other type it would copy the column
    last = rows[max(1, behind) - 1].item()
    return int(last[_POSITION] + last[_LENGTH]) - begins


def _whole_bytes(rows: Rows, bytes_max: int) -> int:
    """How many bytes the first extents of these rows have, as many as `bytes_max` has room for, but at least one."""
    ends = rows["position"] + rows["length"] - rows["position"][0]
    return int(ends[max(0, int(ends.searchsorted(bytes_max, side="right")) - 1)])


def _queue_end(place: ExtentPlace) -> int:
    """The end of the queue of a place in its file."""
    last = place.extents.rows[place.end - 1]
    return int(last["position"]) + int(last["length"])


def _extent(source: FileSource, row: numpy.void) -> Extent:
    return Extent(source, int(row["position"]), int(row["length"]), int(row["crc"]))
