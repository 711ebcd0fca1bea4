"""The spans of a write group in the order of their blocks, as they were at one moment.

They lie in chunks of columns: where a span begins and ends, and the rows of its files in the file table. A change makes
another list that has new chunks where something changed and shares all others, so it costs what changes and a list of
the chunks. A chunk never changes, nor does a list.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, overload

import numpy

from mainstem.storage.queue_store.manifest.in_memory.file_pages import Integers
from mainstem.storage.queue_store.manifest.in_memory.file_table import Page
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange, Span
from mainstem.storage.store_files.store_file import NO_OFFSET, StoreFile

CHUNK_FILES = 512
"""Files of a chunk, unless one span has more: making one takes some tenths of a millisecond."""

Blocks = tuple[int, int]
"""(upto, after), so that they sort by their ends."""
SpanFiles = list[tuple[int, int]]
"""(sequence, row) of the files of a span, in their order."""


class Chunk:
    """Spans that follow each other."""

    __slots__ = ("afters", "last", "rows", "sequences", "starts", "uptos")

    def __init__(self, uptos: Integers, afters: Integers, starts: Integers, rows: Integers, sequences: Integers):
        """`starts`: where the files of each span begin, and where those of the last one end."""
        self.uptos = uptos
        self.afters = afters
        self.starts = starts.astype(numpy.uint32)
        self.rows = rows.astype(numpy.uint32)
        self.sequences = sequences
        self.last: Blocks = int(uptos[-1]), int(afters[-1])
        """The blocks of the last span."""

    @classmethod
    def of(cls, spans: Sequence[tuple[Blocks, SpanFiles]]) -> Chunk:
        files = numpy.array([file for _blocks, span in spans for file in span], numpy.int64).reshape(-1, 2)
        blocks = numpy.array([blocks for blocks, _span in spans], numpy.int64)
        starts = numpy.array([0, *accumulate(len(span) for _blocks, span in spans)], numpy.int64)
        return cls(blocks[:, 0].copy(), blocks[:, 1].copy(), starts, files[:, 1], files[:, 0].copy())

    def __len__(self) -> int:
        return len(self.uptos)

    def spans(self) -> dict[Blocks, SpanFiles]:
        starts = self.starts.tolist()
        files = list(zip(self.sequences.tolist(), self.rows.tolist(), strict=True))
        return {
            (upto, after): files[start:end]
            for upto, after, start, end in zip(
                self.uptos.tolist(), self.afters.tolist(), starts[:-1], starts[1:], strict=True
            )
        }


class Pages(NamedTuple):
    """The files that rows stand for."""

    pages: Mapping[int, Page]
    size: int
    """Rows of a page."""

    def name(self, row: int) -> str:
        return self.pages[row // self.size].rows.name(row % self.size)

    def file(self, row: int) -> StoreFile:
        return self.pages[row // self.size].rows.file(row % self.size)

    def is_merged(self, row: int) -> bool:
        return self.pages[row // self.size].rows.is_merged(row % self.size)

    def key(self, row: int) -> tuple[int, int]:
        return self.pages[row // self.size].rows.key(row % self.size)

    def last_queue(self, row: int) -> int:
        return self.pages[row // self.size].rows.last_queue(row % self.size)

    def in_order(self, files: SpanFiles) -> SpanFiles:
        """The files of a span: runs as they were recorded, then merged files by their keys."""
        runs = [file for file in files if not self.is_merged(file[1])]
        if len(runs) == len(files):
            return sorted(files)
        merged = [file for file in files if self.is_merged(file[1])]
        merged.sort(key=lambda file: (self.key(file[1]), self.last_queue(file[1]), file))
        return sorted(runs) + merged


class ListedSpan(Span):
    """A span of a list: its files are looked up in the table when they are asked for."""

    __slots__ = ("_chunk", "_end", "_first", "_group", "_pages")

    def __init__(self, group: int, pages: Pages, chunk: Chunk, at: int) -> None:
        self._group = group
        self._pages = pages
        self._chunk = chunk
        self.after, self.upto = int(chunk.afters[at]), int(chunk.uptos[at])
        self._first, self._end = int(chunk.starts[at]), int(chunk.starts[at + 1])

    @property
    def runs(self) -> tuple[FileRange, ...]:
        return tuple(map(self._entry, range(self._first, self._keyed_from())))

    def __len__(self) -> int:
        return self._end - self._first

    def __iter__(self) -> Iterator[FileRange]:
        return map(self._entry, range(self._first, self._end))

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, FileRange) and entry in self.of_sequence(entry.sequence)

    def of_sequence(self, sequence: int) -> list[FileRange]:
        places = numpy.flatnonzero(self._chunk.sequences[self._first : self._end] == sequence)
        return [self._entry(self._first + at) for at in places.tolist()]

    def of_row(self, row: int) -> list[FileRange]:
        places = numpy.flatnonzero(self._chunk.rows[self._first : self._end] == row)
        return [self._entry(self._first + at) for at in places.tolist()]

    def rows(self) -> list[int]:
        """The rows of its files in the file table."""
        rows: list[int] = self._chunk.rows[self._first : self._end].tolist()
        return rows

    def begins_at(self, queue_id: int) -> int | None:
        pages, rows = self._pages, self._chunk.rows
        places = range(self._keyed_from(), self._end)
        at = bisect.bisect_left(places, (queue_id, NO_OFFSET), key=lambda at: pages.key(int(rows[at])))
        if at == len(places):
            return None
        first_queue, first_offset = pages.key(int(rows[places[at]]))
        return first_offset if first_queue == queue_id else None

    def keyed(self, queue_id: int, offset: int) -> Iterator[FileRange]:
        pages, rows, first = self._pages, self._chunk.rows, self._keyed_from()
        places = range(first, self._end)
        behind = bisect.bisect_right(places, (queue_id, offset), key=lambda at: pages.key(int(rows[at])))
        for at in range(max(first + behind - 1, first), self._end):
            row = int(rows[at])
            if pages.key(row)[0] > queue_id:
                return
            if pages.last_queue(row) >= queue_id:
                yield self._entry(at)

    def _keyed_from(self) -> int:
        pages, rows = self._pages, self._chunk.rows
        if pages.is_merged(int(rows[self._first])):  # all of them, as nearly always where one is
            return self._first
        places = range(self._first, self._end)
        return self._first + bisect.bisect_left(places, True, key=lambda at: pages.is_merged(int(rows[at])))

    def _entry(self, at: int) -> FileRange:
        name = self._pages.name(int(self._chunk.rows[at]))
        return FileRange(int(self._chunk.sequences[at]), self._group, self.after, self.upto, name)


class Chunks(NamedTuple):
    """Chunks that follow each other, and their sums."""

    all: tuple[Chunk, ...]
    firsts: list[int]
    """The place of the first span of each chunk, and behind them the number of spans."""
    lasts: list[Blocks]
    files: int

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Chunks:
        return cls((), [0], [], 0).exchanged(0, chunks)

    def exchanged(self, at: int, chunks: Sequence[Chunk]) -> Chunks:
        """With these in place of all chunks from `at` on; it costs what is there."""
        firsts, lasts = self.firsts[:at], self.lasts[:at]
        firsts += accumulate(map(len, chunks), initial=self.firsts[at])
        lasts += [chunk.last for chunk in chunks]
        files = self.files - sum(len(chunk.rows) for chunk in self.all[at:])
        return Chunks(self.all[:at] + tuple(chunks), firsts, lasts, files + sum(len(chunk.rows) for chunk in chunks))


class SpanList(Sequence[ListedSpan]):
    """The spans of one write group; equal to any sequence of the same spans."""

    __slots__ = ("__weakref__", "_chunks", "_firsts", "_group", "_lasts", "_pages", "_sums", "file_count")

    def __init__(self, group: int, pages: Pages, chunks: Chunks) -> None:
        self._group = group
        self._pages = pages
        self._sums = chunks
        self._chunks, self._firsts, self._lasts, self.file_count = chunks
        """The last: files of all spans; one that lies in several counts in each."""

    @classmethod
    def of_columns(
        cls, group: int, pages: Pages, uptos: Integers, afters: Integers, sequences: Integers, rows: Integers
    ) -> SpanList:
        """Of columns with a place per file, in the order of spans and of the files in each."""
        if not len(uptos):
            return cls(group, pages, Chunks.of(()))
        begins = numpy.ones(len(uptos), numpy.bool_)
        begins[1:] = (uptos[1:] != uptos[:-1]) | (afters[1:] != afters[:-1])
        firsts = numpy.flatnonzero(begins)
        chunks: list[Chunk] = []
        place = 0
        while place < len(firsts):
            end = max(int(firsts.searchsorted(firsts[place] + CHUNK_FILES, "right")) - 1, place + 1)
            if firsts[place] + CHUNK_FILES >= len(uptos):
                end = len(firsts)
            start, stop = int(firsts[place]), int(firsts[end]) if end < len(firsts) else len(uptos)
            mine = firsts[place:end]
            chunks.append(
                Chunk(
                    uptos[mine], afters[mine], numpy.append(mine, stop) - start, rows[start:stop],
                    sequences[start:stop].copy(),
                )
            )  # fmt: skip
            place = end
        return cls(group, pages, Chunks.of(chunks))

    def __len__(self) -> int:
        return self._firsts[-1]

    @overload
    def __getitem__(self, place: int) -> ListedSpan: ...

    @overload
    def __getitem__(self, place: slice) -> list[ListedSpan]: ...

    def __getitem__(self, place: int | slice) -> ListedSpan | list[ListedSpan]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(f"span {place} of {len(self)}")
        chunk = bisect.bisect_right(self._firsts, place) - 1
        return ListedSpan(self._group, self._pages, self._chunks[chunk], place - self._firsts[chunk])

    def __iter__(self) -> Iterator[ListedSpan]:
        for chunk in self._chunks:
            for at in range(len(chunk)):
                yield ListedSpan(self._group, self._pages, chunk, at)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self._chunks

    @property
    def pages(self) -> Pages:
        return self._pages

    def has(self, other: SpanList, first: int, end: int) -> bool:
        """Whether this list has spans number `first` to `end` - 1 of another one side by side, with all their files."""
        if self is other or first == end:
            return True
        place = self.behind(other[first].after)
        return self._files(place, place + end - first) == other._files(first, end)

    def _files(self, first: int, end: int) -> list[bytes]:
        """The key that tells spans number `first` to `end` - 1 from others."""
        found: list[tuple[Integers, ...]] = []
        number = max(bisect.bisect_right(self._firsts, first) - 1, 0)
        while number < len(self._chunks) and self._firsts[number] < end:
            chunk, begins = self._chunks[number], self._firsts[number]
            low, high = max(first - begins, 0), min(end - begins, len(chunk))
            counts = numpy.diff(chunk.starts[low : high + 1]).astype(numpy.int64)
            files = chunk.sequences[int(chunk.starts[low]) : int(chunk.starts[high])]
            found.append((chunk.uptos[low:high], chunk.afters[low:high], counts, files))
            number += 1
        return [numpy.concatenate(column).tobytes() for column in zip(*found, strict=True)]

    def described(self) -> Iterator[tuple[int, int, StoreFile]]:
        """(after, upto, file) of all files, in order, as they were when this list was made."""
        for span in self:
            for row in span.rows():
                yield span.after, span.upto, self._pages.file(row)

    def behind(self, block: int) -> int:
        """The place of the first span that ends behind a block."""
        return self._place((block + 1, -1))

    def overlapping(self, after: int, upto: int) -> Iterator[ListedSpan]:
        """The spans that have some of the blocks (after, upto], in their order: those that end behind them, too."""
        place = self.behind(after)
        number = max(bisect.bisect_right(self._firsts, place) - 1, 0)
        for at in range(number, len(self._chunks)):
            chunk, begins = self._chunks[at], self._firsts[at]
            for found in numpy.flatnonzero(chunk.afters < upto).tolist():
                if begins + found >= place:
                    yield self[begins + found]

    def with_blocks(self, upto: int, after: int | None) -> list[ListedSpan]:
        """The spans with blocks (after, upto]; `after` None: wherever they begin."""
        found: list[ListedSpan] = []
        place = self._place((upto, -1 if after is None else after))
        while place < len(self):
            span = self[place]
            if span.upto != upto or (after is not None and span.after != after):
                break
            found.append(span)
            place += 1
        return found

    def _place(self, blocks: Blocks) -> int:
        number = bisect.bisect_left(self._lasts, blocks)
        if number == len(self._chunks):
            return len(self)
        chunk = self._chunks[number]
        upto, after = blocks
        at = int(chunk.uptos.searchsorted(upto))
        while (int(chunk.uptos[at]), int(chunk.afters[at])) < (upto, after):
            at += 1
        return self._firsts[number] + at

    def edited(
        self,
        pages: Pages,
        gone: Mapping[Blocks, set[tuple[int, int]]],
        added: Mapping[Blocks, SpanFiles],
    ) -> SpanList:
        """Another list, without some (sequence, row) and with others, by the blocks of their spans."""
        touched: dict[int, set[Blocks]] = {}
        for blocks in {**gone, **added}:
            number = min(bisect.bisect_left(self._lasts, blocks), max(len(self._chunks) - 1, 0))
            touched.setdefault(number, set()).add(blocks)
        chunks: list[Chunk] = []
        shared = done = max(0, min(touched, default=0) - 1)
        for number in sorted(touched):
            chunks += self._chunks[done:number]
            spans = self._chunks[number].spans() if self._chunks else {}
            for blocks in touched[number]:
                without = gone.get(blocks, ())
                rest = [file for file in spans.pop(blocks, []) if file not in without] + added.get(blocks, [])
                if rest:
                    spans[blocks] = pages.in_order(rest)
            if chunks and len(chunks[-1].rows) + sum(map(len, spans.values())) <= CHUNK_FILES // 2:
                spans.update(chunks.pop().spans())  # what has become small joins its neighbour
            chunks += _cut(sorted(spans.items()))
            done = number + 1
        chunks += self._chunks[done:]
        return SpanList(self._group, pages, self._sums.exchanged(shared, chunks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(map(tuple, self)) == list(map(tuple, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"SpanList({[(span.after, span.upto, len(span)) for span in self]})"


def _cut(spans: Iterable[tuple[Blocks, SpanFiles]]) -> Iterator[Chunk]:
    together: list[tuple[Blocks, SpanFiles]] = []
    size = 0
    for span in spans:
        if together and size + len(span[1]) > CHUNK_FILES:
            yield Chunk.of(together)
            together, size = [], 0
        together.append(span)
        size += len(span[1])
    if together:
        yield Chunk.of(together)
