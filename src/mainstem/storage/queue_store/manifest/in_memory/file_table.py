"""The files that count, as the manifest holds them in memory: rows in pages, found by name.

A row is a file's for good: it is never given to another one, and what its page says of it stays readable for those who
hold an older picture. Beside what describes a file, a row has what may change: when retention first saw it, which
blocks of which write groups it holds, and the extent that was live at retention's last look.

A file costs some hundred bytes in its page and 8 to be found by name. Questions about all files go by sums that are
kept up to date (`levels`), or by columns, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.queue_store.manifest.in_memory.file_pages import (
    KIND_LETTERS,
    FileRows,
    Integers,
    OpenRows,
    PackedRows,
)
from mainstem.storage.queue_store.manifest.in_memory.name_index import NameIndex
from mainstem.storage.store_files.store_file import FileKind, StoreFile, kind_of

PAGE_FILES = 512
"""Files of a page: packing one takes some milliseconds, and a million files are two thousand pages."""

NOT_SEEN = -1

_NO_BLOCKS, _MANY_BLOCKS = -1, -2
"""In place of a write group: a file holds blocks of none, or more than one stretch of blocks."""

PAGES_PER_TURN = 2
"""Pages that are looked at in one turn of the event loop: some milliseconds where each file of them is."""

SPARSE_PART = 4
"""A page is given up when less than this part of its files is left."""

Level = tuple[int, FileKind]
Blocks = tuple[int, int, int]
"""(write group, upto, after): blocks (after, upto] of a write group."""


class LevelSums(NamedTuple):
    """The files on one level, of one kind."""

    files: int
    bytes: int
    """Of whole files, without what lies beside queue segments."""
    batch_bytes: int


class Page:
    """Rows that follow each other."""

    __slots__ = (
        "alive", "first_row", "group", "is_stored", "live", "rows", "seen", "unseen", "upto", "witness", "witness_last",
    )  # fmt: skip

    def __init__(self, first_row: int, rows: FileRows, size: int) -> None:
        self.first_row = first_row
        self.rows = rows
        self.alive = numpy.zeros(size, numpy.bool_)
        self.live = 0
        self.is_stored = False
        """Whether the database has it as a page; else it has its files as rows."""
        self.unseen = 0
        """Live rows that retention has not seen."""
        self.seen = numpy.full(size, NOT_SEEN, numpy.int64)
        self.group = numpy.full(size, _NO_BLOCKS, numpy.int32)
        self.upto = numpy.zeros(size, numpy.int64)
        self.witness: numpy.typing.NDArray[numpy.uint64] | None = None
        """Per row the queue whose extent was live at the last look, and in `witness_last` the extent's last offset; -1:
        there is none. None: no row of the page has one."""
        self.witness_last: Integers | None = None

    def witnesses(self) -> tuple[numpy.typing.NDArray[numpy.intp], numpy.typing.NDArray[numpy.uint64], Integers]:
        """The places of the rows that count, and of each the queue and the last offset of its witness; -1: it has
        none."""
        places = self.places()
        if self.witness is None or self.witness_last is None:
            return places, numpy.zeros(len(places), numpy.uint64), numpy.full(len(places), -1, numpy.int64)
        return places, self.witness[places], self.witness_last[places]

    def places(self) -> numpy.typing.NDArray[numpy.intp]:
        """The places of the rows that count."""
        return numpy.flatnonzero(self.alive)

    def live_rows(self) -> Iterator[int]:
        return (self.first_row + at for at in self.places().tolist())


class FileTable(Mapping[str, StoreFile]):
    """Files by name, in the order in which they came."""

    def __init__(self, page_files: int = PAGE_FILES) -> None:
        self.page_files = page_files
        self.pages: dict[int, Page] = {}
        """By number, that of the oldest rows first. A page that is given up is left out of a copy: who holds an older
        picture keeps this one."""
        self.sparse: set[int] = set()
        """Numbers of full pages of whose files few are left, or none."""
        self.thin: set[int] = set()
        """Numbers of stored pages of whose files few are left."""
        self.unstored: set[int] = set()
        """Numbers of the other full pages that are not stored."""
        self.levels: dict[Level, LevelSums] = {}
        self._index = NameIndex()
        self._count = 0
        self._many: dict[int, tuple[tuple[int, int, int | None], ...]] = {}
        """Of rows with more than one stretch of blocks."""
        self._open: OpenRows = OpenRows()
        self._next_page = 0

    # --- as a mapping ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.row_of(name) is not None

    def __getitem__(self, name: str) -> StoreFile:
        row = self.row_of(name)
        if row is None:
            raise KeyError(name)
        return self.file(row)

    def __iter__(self) -> Iterator[str]:
        return (self.name(row) for row in self.rows())

    def values(self) -> ValuesView[StoreFile]:
        return _Values(self)

    def items(self) -> ItemsView[str, StoreFile]:
        return _Items(self)

    # --- rows -----------------------------------------------------------------------------------------------

    @property
    def next_row(self) -> int:
        """Rows of files that come later are not below it."""
        return (self._next_page - 1) * self.page_files + len(self._open) if self._next_page else 0

    def rows(self) -> Iterator[int]:
        """All rows that count at the call; those that go while the caller walks are left out."""
        end = self.next_row
        for page in list(self.pages.values()):
            for row in page.live_rows():
                if row < end and page.alive[row - page.first_row]:
                    yield row

    async def each_page(self) -> AsyncIterator[Page]:
        """Yield the pages there are at the call, some in each turn of the event loop. A page that was given up
        meanwhile has no rows that count."""
        for number, page in enumerate(list(self.pages.values()), 1):
            yield page
            if number % PAGES_PER_TURN == 0:
                await asyncio.sleep(0)

    def row_of(self, name: str) -> int | None:
        for row in self._index.find(name.encode()):
            if self.name(row) == name:
                return row
        return None

    def has_row(self, row: int) -> bool:
        """Whether a row counts."""
        page = self.pages.get(row // self.page_files)
        return page is not None and bool(page.alive[row % self.page_files])

    def page_of(self, row: int) -> tuple[Page, int]:
        """The page of a row, and its place there."""
        number, at = divmod(row, self.page_files)
        return self.pages[number], at

    def name(self, row: int) -> str:
        page, at = self.page_of(row)
        return page.rows.name(at)

    def file(self, row: int) -> StoreFile:
        page, at = self.page_of(row)
        return page.rows.file(at)

    def add(self, file: StoreFile) -> int:
        """The row of a file, a new one if it has none."""
        found = self.row_of(file.name)
        if found is not None:
            return found
        if not self._next_page or len(self._open) == self.page_files:
            self._begin_page()
        number, at = self._next_page - 1, len(self._open)
        page, row = self.pages[number], number * self.page_files + at
        self._open.append(file)
        page.alive[at] = True
        page.live += 1
        page.unseen += 1
        self._index.add(file.name.encode(), row)
        self._counted((file.level, kind_of(file.name)), 1, file.bytes, file.batch_bytes)
        if len(self._open) == self.page_files:
            page.rows = self._open.packed()
            self._note(number)
        return row

    def remove(self, row: int) -> str:
        """Have a row count no more. Returns the name of its file."""
        page, at = self.page_of(row)
        name, rows = page.rows.name(at), page.rows
        page.alive[at] = False
        page.live -= 1
        page.unseen -= int(page.seen[at] == NOT_SEEN)
        self._many.pop(row, None)
        self._index.discard(name.encode(), row)
        level = rows.value("level", at), kind_of(name)
        self._counted(level, -1, rows.value("bytes", at), rows.value("batch_bytes", at))
        self._note(row // self.page_files)
        return name

    def move(self, row: int) -> int:
        """Give a file another row, with all that is known of it but its blocks."""
        page, at = self.page_of(row)
        file, seen_ms = page.rows.file(at), int(page.seen[at])
        witness = None
        if page.witness is not None and page.witness_last is not None and page.witness_last[at] >= 0:
            witness = int(page.witness[at]), int(page.witness_last[at])
        self.remove(row)
        moved = self.add(file)
        if seen_ms != NOT_SEEN:
            self.see(moved, seen_ms)
        if witness is not None:
            self._set_witness(moved, witness)
        return moved

    def values_of(self, field: str, rows: Integers) -> Integers:
        """The values of a field of many files."""
        numbers = numpy.fromiter(self.pages, numpy.int64, len(self.pages))
        columns = [page.rows.column(field) for page in self.pages.values()]
        firsts = numpy.cumsum([0, *map(len, columns)])
        places = firsts[numbers.searchsorted(rows // self.page_files)] + rows % self.page_files
        values: Integers = numpy.concatenate(columns)[places]
        return values

    def give_up(self, number: int) -> None:
        """Leave out a page without rows that count."""
        assert not self.pages[number].live
        for numbers in (self.sparse, self.thin, self.unstored):
            numbers.discard(number)
        self.pages = {other: page for other, page in self.pages.items() if other != number}

    def load(self, pages: Sequence[tuple[int, PackedRows, numpy.typing.NDArray[numpy.bool_], Integers]]) -> None:
        """Fill an empty table with stored pages, as (number, files, which of them count, when they were seen)."""
        assert not self.pages, "rows are never given twice"
        names: list[tuple[list[bytes], Integers]] = []
        for number, rows, alive, seen in pages:
            page = self.pages[number] = Page(number * self.page_files, rows, self.page_files)
            page.is_stored = True
            page.alive[: len(rows)] = alive
            page.seen[: len(rows)] = seen
            page.live = int(alive.sum())
            page.unseen = int((alive & (seen == NOT_SEEN)).sum())
            places = page.places()
            every = rows.encoded_names()
            names.append(([every[at] for at in places.tolist()], page.first_row + places))
            self._count_page(rows, places)
            self._next_page = number + 1
            self._note(number)
        if names:
            self._index.load(names)
            self._begin_page()

    def _count_page(self, rows: PackedRows, places: numpy.typing.NDArray[numpy.intp]) -> None:
        self._count += len(places)
        kinds, levels = rows.kinds()[places], rows.column("level")[places]
        sizes, batch_bytes = rows.column("bytes")[places], rows.column("batch_bytes")[places]
        for level in numpy.unique(levels).tolist():
            for kind, letter in KIND_LETTERS.items():
                mine = (levels == level) & (kinds == letter)
                count = int(mine.sum())
                if count:
                    before = self.levels.get((level, kind), LevelSums(0, 0, 0))
                    more = count, int(sizes[mine].sum()), int(batch_bytes[mine].sum())
                    self.levels[level, kind] = LevelSums(
                        *(one + other for one, other in zip(before, more, strict=True))
                    )

    def _begin_page(self) -> None:
        self._open = OpenRows()
        first_row = self._next_page * self.page_files
        self.pages[self._next_page] = Page(first_row, self._open, self.page_files)
        self._next_page += 1

    def stored(self, number: int) -> None:
        """Note that the database has a page."""
        self.pages[number].is_stored = True
        self._note(number)

    def _note(self, number: int) -> None:
        page = self.pages[number]
        if not isinstance(page.rows, PackedRows):
            return
        few = page.live * SPARSE_PART < len(page.rows)
        for numbers, is_in in (
            (self.sparse, not page.live or (few and not page.is_stored)),
            (self.thin, page.live and few and page.is_stored),
            (self.unstored, not few and not page.is_stored),
        ):
            if is_in:
                numbers.add(number)
            else:
                numbers.discard(number)

    def _counted(self, level: Level, sign: int, file_bytes: int, batch_bytes: int) -> None:
        before = self.levels.get(level, LevelSums(0, 0, 0))
        sums = LevelSums(before.files + sign, before.bytes + sign * file_bytes, before.batch_bytes + sign * batch_bytes)
        self._count += sign
        if sums.files:
            self.levels[level] = sums
        else:
            self.levels.pop(level, None)

    # --- which blocks ---------------------------------------------------------------------------------------

    def blocks(self, row: int) -> tuple[tuple[int, int, int | None], ...]:
        """The stretches of blocks that a file holds, as (write group, upto, after); of a single one it is not said
        where it begins: the span knows."""
        page, at = self.page_of(row)
        group = int(page.group[at])
        if group == _NO_BLOCKS:
            return ()
        return self._many[row] if group == _MANY_BLOCKS else ((group, int(page.upto[at]), None),)

    def set_blocks(self, row: int, blocks: Sequence[tuple[int, int, int | None]]) -> None:
        """Of more than one stretch, all must be whole."""
        page, at = self.page_of(row)
        if len(blocks) > 1:
            self._many[row] = tuple(blocks)
            page.group[at] = _MANY_BLOCKS
            return
        self._many.pop(row, None)
        page.group[at], page.upto[at] = blocks[0][:2] if blocks else (_NO_BLOCKS, 0)

    def load_blocks(self, rows: Integers, groups: Integers, uptos: Integers) -> None:
        """Set the single stretch of blocks of many files; the rows rise."""
        for number, start, end in self._parts(rows):
            page, at = self.pages[number], rows[start:end] % self.page_files
            page.group[at], page.upto[at] = groups[start:end], uptos[start:end]

    def _parts(self, rows: Integers) -> Iterator[tuple[int, int, int]]:
        """Of rows that rise, the pages, and from where to where those of each are."""
        numbers = rows // self.page_files
        firsts = numpy.flatnonzero(numpy.diff(numbers, prepend=-1)).tolist()
        for start, end in zip(firsts, [*firsts, len(rows)][1:], strict=True):
            yield int(numbers[start]), start, end

    # --- what retention knows -------------------------------------------------------------------------------

    def seen(self, row: int) -> int | None:
        """When retention first saw a file."""
        page, at = self.page_of(row)
        return None if page.seen[at] == NOT_SEEN else int(page.seen[at])

    def see(self, row: int, now_ms: int) -> None:
        page, at = self.page_of(row)
        page.unseen -= int(page.seen[at] == NOT_SEEN)
        page.seen[at] = now_ms

    def unseen(self, before_row: int) -> list[int]:
        """The rows below this one that retention has not seen."""
        found: list[int] = []
        for page in self.pages.values():
            if page.unseen and page.first_row < before_row:
                rows = page.first_row + numpy.flatnonzero(page.alive & (page.seen == NOT_SEEN))
                found += rows[rows < before_row].tolist()
        return found

    def witness(self, name: str, witness: tuple[int, int] | None) -> None:
        """Note the queue and the last offset of an extent of a file that was live at retention's last look: while it is
        live, the file is. None: none is known."""
        row = self.row_of(name)
        if row is not None:
            self._set_witness(row, witness)

    def _set_witness(self, row: int, witness: tuple[int, int] | None) -> None:
        page, at = self.page_of(row)
        if page.witness is None or page.witness_last is None:
            page.witness = numpy.zeros(self.page_files, numpy.uint64)
            page.witness_last = numpy.full(self.page_files, -1, numpy.int64)
        page.witness[at], page.witness_last[at] = witness or (0, -1)


class _Values(ValuesView[StoreFile]):
    def __init__(self, table: FileTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[StoreFile]:
        return map(self._table.file, self._table.rows())


class _Items(ItemsView[str, StoreFile]):
    def __init__(self, table: FileTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[str, StoreFile]]:
        return ((file.name, file) for file in self._table.values())


class SeenTimes(Mapping[str, int]):
    """When retention first saw files, by name: a view."""

    def __init__(self, table: FileTable) -> None:
        self._table = table

    def __getitem__(self, name: str) -> int:
        row = self._table.row_of(name)
        time = None if row is None else self._table.seen(row)
        if time is None:
            raise KeyError(name)
        return time

    def __iter__(self) -> Iterator[str]:
        return (self._table.name(row) for row in self._seen_rows())

    def __len__(self) -> int:
        return sum(page.live - page.unseen for page in self._table.pages.values())

    def _seen_rows(self) -> Iterable[int]:
        return (row for row in self._table.rows() if self._table.seen(row) is not None)
