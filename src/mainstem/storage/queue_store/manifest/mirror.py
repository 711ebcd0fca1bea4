"""The content of the manifest's database, as the manifest holds it in memory: files, and the blocks that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy

from mainstem.storage.queue_store.manifest.database.manifest_database import Contents
from mainstem.storage.queue_store.manifest.in_memory.file_pages import Integers
from mainstem.storage.queue_store.manifest.in_memory.file_table import Blocks, FileTable
from mainstem.storage.queue_store.manifest.in_memory.span_lists import Chunks, Pages, SpanFiles, SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.store_files.store_file import MANY_GROUPS

MOVED_AT_ONCE_MAX = 32
"""Files that one change moves out of sparse pages: some milliseconds where each lies in another chunk of spans. No
change makes more than this many times as many sparse pages as it removes files."""

_Edits = dict[int, dict[tuple[int, int], SpanFiles]]
"""(sequence, row) of files, by write group and by the blocks of their spans."""


class RangeColumns(NamedTuple):
    """Blocks (after, upto] of write groups that the files of some rows hold."""

    groups: Integers
    uptos: Integers
    afters: Integers
    sequences: Integers
    rows: Integers


class Mirror:
    """Only the manifest changes it."""

    def __init__(self, files: FileTable) -> None:
        self.files = files
        self._spans: dict[int, SpanList] = {}

    @property
    def _pages(self) -> Pages:
        return Pages(self.files.pages, self.files.page_files)

    # --- questions ------------------------------------------------------------------------------------------

    def groups(self) -> list[int]:
        """The write groups that have files."""
        return sorted(group for group, spans in self._spans.items() if len(spans))

    def spans(self, group: int) -> SpanList:
        spans = self._spans.get(group)
        if spans is None:
            spans = self._spans[group] = SpanList(group, self._pages, Chunks.of(()))
        return spans

    def counts_for(self, name: str) -> frozenset[int]:
        """The write groups that a file counts for."""
        row = self.files.row_of(name)
        return frozenset() if row is None else frozenset(group for group, *_blocks in self.files.blocks(row))

    def entry_count(self, name: str) -> int:
        """How many stretches of blocks a file holds."""
        row = self.files.row_of(name)
        return 0 if row is None else len(self.files.blocks(row))

    def is_shared(self, name: str) -> bool:
        """Whether a file holds more than one stretch of blocks."""
        return self.entry_count(name) > 1

    def entries(self, name: str) -> tuple[FileRange, ...]:
        """The blocks that a file holds, of all write groups that it counts for."""
        row = self.files.row_of(name)
        return () if row is None else tuple(self.entries_of(row))

    def entries_of(self, row: int) -> list[FileRange]:
        """The blocks that the file of a row holds."""
        return [
            entry
            for group, upto, after in dict.fromkeys(self.files.blocks(row))
            for span in self.spans(group).with_blocks(upto, after)
            for entry in span.of_row(row)
        ]

    # --- changes --------------------------------------------------------------------------------------------

    def exchange(self, gone: Iterable[FileRange], new: Iterable[FileRange]) -> list[str]:
        """Take ranges out, and add others; the file table has all their files, and loses those that hold no blocks any
        more. Returns their names."""
        files, without, added = self.files, _Edits(), _Edits()
        held: dict[int, list[tuple[int, int, int | None]]] = {}
        for entry in gone:
            row = self._row_of(entry)
            _edit(without, entry, row)
            mine = held.setdefault(row, list(files.blocks(row)))
            mine.remove((entry.group, entry.upto, entry.after if len(mine) > 1 or mine[0][2] is not None else None))
        for entry in new:
            row = self._row_of(entry)
            _edit(added, entry, row)
            mine = held.setdefault(row, list(files.blocks(row)))
            if mine and mine[0][2] is None:
                mine[:] = [(other.group, other.upto, other.after) for other in self.entries_of(row)]
            mine.append((entry.group, entry.upto, entry.after))
        for row, blocks in held.items():
            files.set_blocks(row, blocks)
        self._change(without, added)
        left = [files.remove(row) for row, blocks in held.items() if not blocks]
        self.tidy()
        return left

    def tidy(self) -> None:
        """Move some files of pages that have few left to new rows, so that memory grows with the files there are."""
        files = self.files
        moved = 0
        while files.sparse and moved < MOVED_AT_ONCE_MAX:
            number = min(files.sparse)
            rows = list(files.pages[number].live_rows())[: MOVED_AT_ONCE_MAX - moved]
            self.move(rows)
            moved += len(rows)
            if not files.pages[number].live:
                files.give_up(number)

    def move(self, rows: Sequence[int]) -> None:
        """Give files new rows."""
        files, without, added = self.files, _Edits(), _Edits()
        entries = [(row, self.entries_of(row)) for row in rows]
        for row, ranges in entries:
            blocks = tuple((entry.group, entry.upto, entry.after) for entry in ranges)
            moved = files.move(row)
            files.set_blocks(moved, blocks)
            for entry in ranges:
                _edit(without, entry, row)
                _edit(added, entry, moved)
        self._change(without, added)

    def _change(self, without: _Edits, added: _Edits) -> None:
        for group in {**without, **added}:
            gone = {blocks: set(files) for blocks, files in without.get(group, {}).items()}
            self._spans[group] = self.spans(group).edited(self._pages, gone, added.get(group, {}))

    def _row_of(self, entry: FileRange) -> int:
        row = self.files.row_of(entry.name)
        assert row is not None, entry
        return row

    # --- a start --------------------------------------------------------------------------------------------

    def load(self, contents: Contents) -> None:
        """Fill an empty mirror."""
        files = self.files
        files.load([(page.number, page.rows, *page.state) for page in contents.pages])
        rows = {file.name: files.add(file) for file in contents.files}
        for name, seen_ms in contents.seen.items():
            if name in rows:
                files.see(rows[name], seen_ms)
        parts = [columns_of(contents.ranges, rows)]
        for page in contents.pages:
            ranges = page.ranges
            counts = page.state.alive[ranges.places]
            rows_of_page = ranges.places + page.number * files.page_files
            columns = ranges.groups, ranges.uptos, ranges.afters, ranges.sequences, rows_of_page
            parts.append(RangeColumns(*(column[counts] for column in columns)))
        self.load_ranges(RangeColumns(*(numpy.concatenate(columns) for columns in zip(*parts, strict=True))))

    def load_ranges(self, ranges: RangeColumns) -> None:
        """Add all ranges there are, in any order, of files that the table has."""
        files, rows = self.files, ranges.rows
        if not len(rows):
            return
        keyed = files.values_of("group", rows) != MANY_GROUPS
        first_queues = numpy.where(keyed, files.values_of("first_queue", rows), 0)
        first_offsets = numpy.where(keyed, files.values_of("first_offset", rows), 0)
        order = numpy.lexsort(
            (ranges.sequences, first_offsets, first_queues, keyed, ranges.afters, ranges.uptos, ranges.groups)
        )
        sorted_ranges = RangeColumns(*(column[order] for column in ranges))
        firsts = numpy.flatnonzero(numpy.diff(sorted_ranges.groups, prepend=-1))
        for start, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(rows)], strict=True):
            group, (_groups, *columns) = int(sorted_ranges.groups[start]), (part[start:end] for part in sorted_ranges)
            self._spans[group] = SpanList.of_columns(group, self._pages, *columns)
        self._load_blocks(ranges)

    def _load_blocks(self, ranges: RangeColumns) -> None:
        files = self.files
        order = numpy.argsort(ranges.rows, kind="stable")
        rows, groups, uptos, afters = (
            column[order] for column in (ranges.rows, ranges.groups, ranges.uptos, ranges.afters)
        )
        edges = numpy.flatnonzero(numpy.diff(rows, prepend=-1))
        counts = numpy.diff(numpy.append(edges, len(rows)))
        single = edges[counts == 1]
        files.load_blocks(rows[single], groups[single], uptos[single])
        for start, count in zip(edges[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
            part = slice(start, start + count)
            blocks: list[Blocks] = list(
                zip(groups[part].tolist(), uptos[part].tolist(), afters[part].tolist(), strict=True)
            )
            files.set_blocks(int(rows[start]), blocks)


def _edit(edits: _Edits, entry: FileRange, row: int) -> None:
    edits.setdefault(entry.group, {}).setdefault((entry.upto, entry.after), []).append((entry.sequence, row))


def columns_of(ranges: Sequence[FileRange], rows: Mapping[str, int]) -> RangeColumns:
    """The columns of some ranges, given the rows of their files."""
    sequences, groups, afters, uptos = (
        numpy.array([entry[place] for entry in ranges], numpy.int64) for place in range(4)
    )
    return RangeColumns(
        groups, uptos, afters, sequences, numpy.array([rows[entry.name] for entry in ranges], numpy.int64)
    )
