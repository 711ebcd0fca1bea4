"""The files around the place where many queues are read together, and their chunks.

Queues that are read together mostly lie together, so that whoever has found the files of one of them looks for the
others in the same files. Chunks come whole; their batches are the caller's to check. A reader that goes on where a read
ended is read ahead of.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from mainstem.lru import Lru
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.reading.file_search import ExtentPlace, Spans
from mainstem.storage.queue_store.reading.open_files import FileGone, FileSource, KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.read_cache.whole_chunks import load_chunks

NEAR_BYTES = 256 << 10
NEAR_RUNS_MAX = 16
"""How many files are looked at for many queues at once: a reader that gets less than this of a queue comes back for
every few files, and their indexes fit into memory."""


SPANS_ON = 16
"""Spans in which a reader is looked for from the one on where it was: as many as it may have read of at once. To search
all of them takes a millisecond where a thousand have none of the queue."""

NEARS_MAX = 64
"""Readers of many queues of which it is remembered in which files they are. Each keeps a snapshot of the spans."""

ENDS_MAX = 4096
"""Chunks in which reads ended that are remembered. A forgotten reader's read-ahead starts anew."""


class _Near(NamedTuple):
    """The files from that of a queue's reader on, as long as these spans count."""

    spans: Spans
    upto: int
    """The last block of the first one's span."""
    files: tuple[tuple[KnownFile, bytes], ...]
    """With the write groups that each counts for."""


class NearFile(NamedTuple):
    """A file that is read for many queues at once."""

    source: FileSource
    extents: ExtentIndex
    groups: bytes
    """The write groups it counts for: a byte for each, 1 or 0."""

    @property
    def has_several_queues(self) -> bool:
        queue_ids = self.extents.rows["queue_id"]
        return len(queue_ids) > 0 and queue_ids[0] != queue_ids[-1]


def _near(spans: Spans, place: ExtentPlace, queue_id: int, offset: int) -> Iterator[FileRange]:
    """Yield the file of a place, and those behind it in which the queue may go on; of spans of runs all of them, which
    may have other queues of the same topics."""
    for at in range(place.at, len(spans)):
        span = spans[at]
        runs = [entry for entry in span.runs if at > place.at or entry.name != place.file.name]
        keyed = [*islice(span.keyed(queue_id, offset), 1)]
        if at == place.at:
            runs[:0] = [entry for entry in span if entry.name == place.file.name]
            keyed = [entry for entry in span.keyed(queue_id, offset) if entry.name != place.file.name][:1]
        yield from (*runs, *keyed)


class NearFiles:
    """Finds the files around a place, and remembers where those who read many queues are."""

    def __init__(self, stored: StoredFiles, read_ahead_chunks_max: int) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._search = stored.search
        self._cache = stored.cache
        self._read_ahead_chunks_max = read_ahead_chunks_max
        self._nears: Lru[tuple[int, int], _Near] = Lru(NEARS_MAX)
        """By queue and write group."""
        self._ends: Lru[tuple[str, int], int] = Lru(ENDS_MAX)
        """Chunks in which reads of many queues ended, by file and number: how many to read ahead of who goes on."""

    async def around(self, queue_id: int, group: int, offset: int, *, few: bool = False) -> list[NearFile]:
        """The files from the one that holds this offset of the queue on, as many as have `NEAR_BYTES` of an average
        queue; empty when none holds it, or when `few` queues are wanted and an index is read in pages. Raises as
        `QueueHistory.read`."""
        spans = self._manifest.spans(group)
        found: list[NearFile] = []
        try:
            remembered = self._nears.get((queue_id, group))
            if remembered is not None and remembered.spans is spans and await self._holds(remembered, queue_id, offset):
                for known, groups in remembered.files:
                    if few and self._stored.open_files.reads_pages(known):
                        return found
                    found.append(await self._near_file(known, groups))
                return found
            near_bytes = 0
            place = await self._place(queue_id, spans, offset, remembered)
            if place is None or int(place.extents.rows["base_offset"][place.row]) > offset:
                return []
            for entry in islice(_near(spans, place, queue_id, offset), NEAR_RUNS_MAX):
                known, file = self._search.known(entry.name), self._manifest.files[entry.name]
                if few and self._stored.open_files.reads_pages(known):
                    return found
                found.append(await self._near_file(known, self._manifest.groups_of(entry.name)))
                near_bytes += file.batch_bytes // max(1, file.queue_count)
                if near_bytes >= NEAR_BYTES:
                    break
        except (FileGone, KeyError):  # dropped meanwhile
            return found
        files = tuple((file.source.known, file.groups) for file in found)
        self._nears.put((queue_id, group), _Near(spans, spans[place.at].upto, files))
        return found

    async def _place(self, queue_id: int, spans: Spans, offset: int, before: _Near | None) -> ExtentPlace | None:
        """The extent that holds an offset of a queue, or the queue's next one behind it. A reader mostly goes on near
        the place where it was `before`, whatever was split or merged since."""
        if before is not None:
            at = bisect.bisect_left(spans, before.upto, key=attrgetter("upto"))
            with contextlib.suppress(StorageError, OSError):  # the search meets it again, if it has a part in it
                place = await self._search.forward(queue_id, spans, at, offset, SPANS_ON)
                if place is not None and int(place.extents.rows["base_offset"][place.row]) <= offset:
                    return place
        return await self._search.find(queue_id, spans, offset)

    def held_around(self, queue_id: int, group: int, offset: int) -> list[NearFile] | None:
        """As `around`, of few queues, for a reader that goes on where it was and if memory has the indexes. None: it is
        another."""
        remembered = self._nears.get((queue_id, group))
        if remembered is None or remembered.spans is not self._manifest.spans(group):
            return None
        found: list[NearFile] = []
        for known, groups in remembered.files:
            index = self._stored.open_files.held_index(known)
            if index is None:
                return None
            found.append(NearFile(FileSource(self._stored.open_files, known), index, groups))
        return found if found and _holds(found[0].extents, queue_id, offset) else None

    async def _holds(self, near: _Near, queue_id: int, offset: int) -> bool:
        """Whether the first of these files has the offset. If its index is read in pages, that is not asked."""
        open_files = self._stored.open_files
        if not near.files or open_files.reads_pages(near.files[0][0]):
            return False
        return _holds(await open_files.index(near.files[0][0]), queue_id, offset)

    async def _near_file(self, known: KnownFile, groups: bytes) -> NearFile:
        index = await self._stored.open_files.index(known)
        return NearFile(FileSource(self._stored.open_files, known), index, groups)

    async def chunks(
        self, wanted: Sequence[tuple[FileSource, int, int]], queue_id_max: int
    ) -> tuple[list[memoryview | None], bool]:
        """Chunks of files by number, of which so many bytes are wanted, and whether memory had all of them. None for
        one that is gone. Their batches are the caller's to check. `queue_id_max`: of the queues that the reader asks
        for."""
        found = await load_chunks(self._cache, wanted)
        self._go_ahead(wanted, queue_id_max, waited=not found[1])
        return found

    def held_chunks(self, wanted: Sequence[tuple[FileSource, int, int]], queue_id_max: int) -> list[memoryview] | None:
        """As `chunks`, if memory has all of them."""
        found: list[memoryview] = []
        for source, number, _length in wanted:
            chunk = self._cache.held_chunk(source, number)
            if chunk is None:
                return None
            found.append(chunk)
        self._go_ahead(wanted, queue_id_max, waited=False)
        return found

    def _go_ahead(self, wanted: Sequence[tuple[FileSource, int, int]], queue_id_max: int, *, waited: bool) -> None:
        """Read ahead of a reader that goes on in the chunk where a read before ended, or beside it (what it got may end
        within an extent): further each time it had to wait for the disk, and no further than its queues. A reader that
        comes once is not read ahead of."""
        (source, first, _length), (last, *_rest) = wanted[0], wanted[-1]
        ends = (self._ends.pop((source.name, number)) for number in (first, first + 1, first - 1))
        before = next((chunks for chunks in ends if chunks is not None), None)
        ahead = 0
        if before is not None:
            ahead = min(max(1, 2 * before) if waited else before, self._read_ahead_chunks_max)
        end = max(number for one, number, _length in wanted if one.name == last.name)
        self._ends.put((last.name, end), ahead)
        file = self._manifest.files.get(last.name)
        if ahead and file is not None:
            size = min(file.bytes, self._end_of(last, queue_id_max, file.bytes))
            upto = min(end + 1 + ahead, -(-size // self._cache.chunk_bytes))
            self._cache.read_on(last, range(end + 1, upto))

    def _end_of(self, source: FileSource, queue_id: int, size: int) -> int:
        """Return the place where the queues up to this one end in a file, if memory has its index; else `size`."""
        index = self._stored.open_files.held_index(source.known)
        return size if index is None else index.end_of(queue_id)


def _holds(index: ExtentIndex, queue_id: int, offset: int) -> bool:
    row = index.find(queue_id, offset)
    return row is not None and int(index.rows["base_offset"][row]) <= offset
