"""The manifest keeps which files count, which blocks they cover, and how far each write group is split.

sqlite (WAL, synchronous=FULL) holds it; one thread of its own makes every call, one transaction per change. All
questions during serving are answered from a mirror in memory, which changes only after the transaction did. A change
that was begun is carried through even when its caller is cancelled, so mirror and database never differ; the caller
still gets its cancellation, whatever the outcome of the change.

`dropped` remembers the names of files that retention deleted because they had no live batch of any write group: a
split of another write group that was decided before the drop may still name one, and goes on without it. A snapshot
may not: it knows which batches of its write group are live, so a file that it names is no longer counted as dropped.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.database import page_format
from mainstem.storage.queue_store.manifest.database.manifest_database import (
    FIRST_SCHEMA_VERSION,
    Contents,
    Database,
    Entries,
    Schemas,
    Statement,
    WriteGroupPosition,
    WriteGroupSplit,
)
from mainstem.storage.queue_store.manifest.database.page_format import PageState
from mainstem.storage.queue_store.manifest.file_walk import walk
from mainstem.storage.queue_store.manifest.in_memory.file_pages import PackedRows
from mainstem.storage.queue_store.manifest.in_memory.file_table import PAGE_FILES, FileTable, SeenTimes
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest_rows import (
    DroppedRow,
    GoneRow,
    PositionRow,
    RecalledRow,
    Row,
    SeenRow,
    new_rows,
)
from mainstem.storage.queue_store.manifest.mirror import MOVED_AT_ONCE_MAX, Mirror
from mainstem.storage.store_files.store_file import StoreFile

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FOLDED_PER_TURN = 64
"""Files whose ranges are gathered for a page in one turn of the event loop: some milliseconds."""

SEEN_AT_ONCE_MAX = 2_000
"""Files that one transaction notes as seen: some ten milliseconds, for which splits wait."""


class Manifest:
    """The mirror, and the changes to it. Make it with `open`."""

    def __init__(
        self, database: Database, contents: Contents, executor: ThreadPoolExecutor, page_files: int = PAGE_FILES
    ) -> None:
        self._database = database
        self._executor = executor
        self.identity = contents.identity
        """The store's identity; None: the manifest is new."""
        self.changes = contents.changes
        """Changes to the set of files since the store was made."""
        self.files = FileTable(max([page_files, *(len(page.rows) for page in contents.pages)]))
        """Files that count, in the order in which they were first recorded; some were moved behind others."""
        self.dropped = contents.dropped
        self.seen = SeenTimes(self.files)
        """When retention first saw a file, by the agreed time (ms): all its batches were appended before."""
        self.on_change: Callable[[list[Row]], None] = lambda rows: None
        """Called with what a change changed, once it is made."""
        self._positions = contents.positions
        self._mirror = Mirror(self.files)
        self._mirror.load(contents)
        self._gone_but_seen = {name for name in contents.seen if name not in self.files}
        """Files that an earlier version forgot without what retention knew of them."""

    @classmethod
    async def open(cls, path: str, page_files: int = PAGE_FILES, besides: Schemas | None = None) -> Manifest:
        """Open or make the database; one that has tables `besides` is made with its first change. Raises `StorageError`
        when it cannot be used."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        database = Database(path, besides=besides)
        try:
            contents = await _carried_through(executor, database.open)
        except BaseException:  # it may be open: a cancelled caller's call is carried through
            await _carried_through(executor, database.close)
            executor.shutdown()
            raise
        return cls(database, contents, executor, page_files)

    def position(self, group: int) -> WriteGroupPosition:
        return self._positions.get(group, WriteGroupPosition(0, 0))

    @property
    def schema_version(self) -> int:
        return self._database.version

    def groups(self) -> list[int]:
        """The write groups that it says anything of."""
        return sorted({*self._positions, *self._mirror.groups()})

    def spans(self, group: int) -> SpanList:
        """The files of a write group by the blocks they cover, oldest first. It stays as it is: later changes make
        another one."""
        return self._mirror.spans(group)

    def ranges(self, group: int) -> list[FileRange]:
        """The files of all spans of a write group, in their order."""
        return list(chain.from_iterable(self.spans(group)))

    def entries(self, name: str) -> tuple[FileRange, ...]:
        """The blocks that a file holds, of all write groups that it counts for."""
        return self._mirror.entries(name)

    def groups_of(self, name: str) -> bytes:
        """The groups a file counts for: a byte for each up to the largest, 1 or 0."""
        groups = self.counts_for(name)
        return bytes(group in groups for group in range(max(groups, default=-1) + 1))

    def counts_for(self, name: str) -> frozenset[int]:
        """The groups a file counts for."""
        return self._mirror.counts_for(name)

    def blocks_of(self, name: str, group: int) -> tuple[int, int]:
        """The blocks (after, upto] of a group that the file was made of; it counts for the group."""
        mine = [entry for entry in self.entries(name) if entry.group == group]
        return min(entry.after for entry in mine), max(entry.upto for entry in mine)

    def in_order(self) -> Iterator[tuple[str, list[int]]]:
        """Yield (file, write groups it counts for), such that the files of every write group come oldest first. A file
        comes more than once if it was recorded for one write group early and for another one late. The manifest may
        change between two steps: what was merged meanwhile comes as a whole, also if parts of it have come before."""
        return walk(self._mirror)

    async def adopt(self, identity: uuid.UUID, changes: int) -> None:
        """Give an empty manifest the identity of its store."""
        await _carried_through(self._executor, lambda: self._database.adopt(identity, changes))
        self.identity, self.changes = identity, changes

    async def record_splits(self, splits: Sequence[WriteGroupSplit]) -> None:
        """Move the positions of groups, with these runs, all in one transaction. The caller has checked that each may
        move; of one group several may follow each other."""
        positions: dict[int, int] = {}
        for split in splits:
            assert positions.get(split.group, self.position(split.group).position) == split.after < split.upto
            positions[split.group] = split.upto
        await self._unfold(row for split in splits for row in self._in_pages(file.name for file in split.files))

        def done(ranges: list[FileRange]) -> None:
            self.changes += 1
            for split in splits:
                for file in split.files:
                    self.files.add(file)
                self._positions[split.group] = WriteGroupPosition(split.upto, split.applied_index)
            self._mirror.exchange((), ranges)
            rows = new_rows(ranges, {file.name: file for split in splits for file in split.files}.values())
            self.on_change([*rows, *(PositionRow(one, *self.position(one)) for one in positions)])

        await _carried_through(self._executor, lambda: self._database.record_splits(splits), done)

    async def drop(self, names: Collection[str], now_ms: int, remembered: Collection[str] | None = None) -> None:
        """Forget files, in one transaction, before they are deleted. `remembered` are the files to keep under
        `dropped`; None: all."""
        kept = names if remembered is None else remembered
        states = self._states_without(self._in_pages(names))

        def done(forgotten: list[str]) -> None:
            self.changes += 1
            gone = [entry for name in names for entry in self.entries(name)]
            self._mirror.exchange(gone, ())
            for name in names:
                row = self.files.row_of(name)
                if row is not None:  # it held no blocks
                    self.files.remove(row)
            self.dropped.difference_update(forgotten)
            self.dropped.update(kept)
            rows: list[Row] = [*map(RecalledRow, forgotten), *map(DroppedRow, kept)]
            self.on_change([*(GoneRow(entry.sequence) for entry in gone), *rows])

        await _carried_through(self._executor, lambda: self._database.drop(names, kept, now_ms, states), done)

    async def see(self, now_ms: int, before_row: int | None = None) -> None:
        """Note that files not seen before exist at `now_ms`: those whose rows are below `before_row`, None: all. They
        are noted a few at a time: what was noted stays when the caller is cancelled."""
        rows = self.files.unseen(self.files.next_row if before_row is None else before_row)
        gone, self._gone_but_seen = sorted(self._gone_but_seen), set()
        for first in range(0, max(len(rows), 1), SEEN_AT_ONCE_MAX):
            part = [row for row in rows[first : first + SEEN_AT_ONCE_MAX] if self.files.has_row(row)]
            if part or gone:
                await self._see(part, gone, now_ms)
                gone = []

    async def _see(self, rows: Sequence[int], gone: Sequence[str], now_ms: int) -> None:
        pages: dict[int, PageState] = {}
        names: list[str] = []
        for row in rows:
            page, at = self.files.page_of(row)
            if page.is_stored:
                number = row // self.files.page_files
                if number not in pages:
                    pages[number] = self._state(number)
                pages[number].seen[at] = now_ms
            else:
                names.append(page.rows.name(at))

        seen_names = [self.files.name(row) for row in rows]

        def done(_result: None) -> None:
            for row in rows:
                self.files.see(row, now_ms)
            self.on_change([SeenRow(name, now_ms) for name in seen_names])

        await _carried_through(self._executor, lambda: self._database.see(names, gone, now_ms, pages), done)

    async def change(
        self,
        group: int,
        gone: Sequence[FileRange],
        entries: Entries,
        position: WriteGroupPosition,
        besides: Sequence[Statement],
    ) -> list[str]:
        """Take files of a write group out and put others in, wherever their blocks lie, and move its position, with
        statements `besides`, all in one transaction. Returns the files that no write group needs any more. The caller
        has checked that those that go count, and that the others are new."""
        assert all(entry.group == group for entry in gone)
        return await self._exchange({group: (gone, entries)}, (group, position), besides=besides)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query of tables `besides`."""
        return await _carried_through(self._executor, lambda: self._database.rows(query))

    async def supersede(
        self, group: int, position: int, applied_index: int, entries: Entries, kept_upto: int = 0
    ) -> list[str]:
        """Replace a write group's files by these, but for those with blocks up to `kept_upto`, behind which these lie;
        none of these counts as dropped any more. Returns the files that no write group needs any more: they are
        forgotten, but not kept under `dropped`."""
        assert all(after >= kept_upto for after, _upto, _file in entries), "they lie behind what is kept"
        moved = group, WriteGroupPosition(position, applied_index)
        spans = self.spans(group)
        gone = [entry for span in spans[spans.behind(kept_upto) :] for entry in span]
        return await self._exchange({group: (gone, entries)}, moved)

    async def replace(self, name: str, by: Mapping[int, Entries]) -> list[str]:
        """Put other runs in this file's place, for each write group it counts for, as (after, upto, run), in one
        transaction; those before and behind keep their order. Returns the files that no write group needs any
        more."""
        assert set(by) == self.counts_for(name), f"{name} counts for {self.counts_for(name)}"
        changes: dict[int, tuple[Sequence[FileRange], Entries]] = {}
        for group, new in by.items():
            gone = [entry for entry in self.entries(name) if entry.group == group]
            if self._database.version == FIRST_SCHEMA_VERSION:  # what goes by sequences alone: those behind are moved
                ranges = self.ranges(group)
                gone = ranges[ranges.index(gone[0]) :]
                rest = [(entry.after, entry.upto, self.files[entry.name]) for entry in gone if entry.name != name]
                new = [*new, *rest]
            changes[group] = gone, new
        return await self._exchange(changes, None)

    async def merge(self, group: int, inputs: Sequence[FileRange], outputs: Sequence[StoreFile]) -> list[str]:
        """Put merged files in the place of whole spans of a write group, neighbours all of them. Returns the files that
        no write group needs any more. The caller has checked that all inputs count. Retention's knowledge of the time
        of the inputs holds for the outputs."""
        assert all(entry in self.entries(entry.name) and entry.group == group for entry in inputs)
        after, upto = min(entry.after for entry in inputs), max(entry.upto for entry in inputs)
        times = [self.seen.get(entry.name) for entry in inputs]
        known = [time for time in times if time is not None]
        seen = {file.name: max(known) for file in outputs} if len(known) == len(times) else {}
        return await self._exchange({group: (inputs, [(after, upto, file) for file in outputs])}, None, seen)

    async def rewrite(self, group: int, outputs: Mapping[FileRange, Sequence[StoreFile]]) -> list[str]:
        """Put other files, or none, in the place of some merged files of a write group, each within the blocks of its
        input, all in one transaction. Returns the files that no write group needs any more. The caller has checked that
        all inputs count. Retention's knowledge of the time of an input holds for its outputs."""
        assert all(entry in self.entries(entry.name) and entry.group == group for entry in outputs)
        new = [(entry.after, entry.upto, file) for entry, files in outputs.items() for file in files]
        seen = {
            file.name: self.seen[entry.name]
            for entry, files in outputs.items()
            for file in files
            if entry.name in self.seen
        }
        return await self._exchange({group: (list(outputs), new)}, None, seen)

    async def _exchange(
        self,
        changes: Mapping[int, tuple[Sequence[FileRange], Entries]],
        moved: tuple[int, WriteGroupPosition] | None,
        seen: Mapping[str, int] | None = None,
        besides: Sequence[Statement] = (),
    ) -> list[str]:
        left: list[str] = []
        named = {file.name: file for _gone, new in changes.values() for _after, _upto, file in new}
        taken = Counter(entry.name for gone, _new in changes.values() for entry in gone)
        whole = {name for name, count in taken.items() if name not in named and count == self._mirror.entry_count(name)}
        await self._unfold(self._in_pages(name for name in {**named, **taken} if name not in whole))
        states = self._states_without(self._in_pages(whole))

        def done(ranges: list[FileRange]) -> None:
            self.changes += 1
            placed = {name: self.files.add(file) for name, file in named.items()}
            recalled = sorted(self.dropped.intersection(named))
            self.dropped.difference_update(named)
            for name, seen_ms in (seen or {}).items():
                self.files.see(placed[name], seen_ms)
            gone = [entry for entries, _new in changes.values() for entry in entries]
            left.extend(sorted(self._mirror.exchange(gone, ranges)))
            rows: list[Row] = [GoneRow(entry.sequence) for entry in gone]
            rows += [*new_rows(ranges, named.values()), *map(RecalledRow, recalled)]
            rows += [SeenRow(name, seen_ms) for name, seen_ms in (seen or {}).items()]
            if moved is not None:
                self._positions[moved[0]] = moved[1]
                rows.append(PositionRow(moved[0], *moved[1]))
            self.on_change(rows)

        await _carried_through(
            self._executor, lambda: self._database.exchange(changes, moved, seen or {}, states, besides), done
        )
        return left

    # --- pages ----------------------------------------------------------------------------------------------

    async def fold(self) -> bool:
        """Put the oldest files that fill a page into one; or take some out of a page that has few left. The caller sees
        to it that no change is made meanwhile, and that all who may read the manifest know of pages. Returns whether
        something was done."""
        files = self.files
        if files.thin:
            rows = list(files.pages[min(files.thin)].live_rows())
            await self._unfold(rows[:MOVED_AT_ONCE_MAX])
            return True
        if not files.unstored:
            return False
        number = min(files.unstored)
        page = files.pages[number]
        assert isinstance(page.rows, PackedRows), "it is full"
        packed, places = page.rows, page.places().tolist()
        ranges: list[tuple[int, FileRange]] = []
        for gathered, at in enumerate(places, 1):
            ranges += ((at, entry) for entry in self._mirror.entries_of(page.first_row + at))
            if gathered % FOLDED_PER_TURN == 0:
                await asyncio.sleep(0)
        names, state = [packed.name(at) for at in places], self._state(number)

        def write() -> None:
            self._database.fold(number, page_format.pack(packed, ranges), state, names)

        await _carried_through(self._executor, write, lambda _result: files.stored(number))
        return True

    async def _unfold(self, rows: Iterable[int]) -> None:
        """Take files out of pages, so that they can be changed as rows. The content of the manifest stays the same."""
        moving = list(dict.fromkeys(rows))
        if not moving:
            return
        files = [self.files.file(row) for row in moving]
        ranges = [entry for row in moving for entry in self._mirror.entries_of(row)]
        times = ((file.name, self.files.seen(row)) for file, row in zip(files, moving, strict=True))
        seen = {name: time for name, time in times if time is not None}
        states = self._states_without(moving)

        def done(_result: None) -> None:
            self._mirror.move(moving)
            self._mirror.tidy()

        await _carried_through(self._executor, lambda: self._database.unfold(states, files, ranges, seen), done)

    def _in_pages(self, names: Iterable[str]) -> Iterator[int]:
        """The rows of those of the files that the database has in pages."""
        for name in names:
            row = self.files.row_of(name)
            if row is not None and self.files.page_of(row)[0].is_stored:
                yield row

    def _state(self, number: int) -> PageState:
        page = self.files.pages[number]
        count = len(page.rows)
        return PageState(page.alive[:count].copy(), page.seen[:count].copy())

    def _states_without(self, rows: Iterable[int]) -> dict[int, PageState]:
        """The states of pages when these rows do not count any more."""
        states: dict[int, PageState] = {}
        for row in rows:
            number, at = divmod(row, self.files.page_files)
            if number not in states:
                states[number] = self._state(number)
            states[number].alive[at] = False
        return states

    async def close(self) -> None:
        """Close the database, if it is open, and ignore errors of sqlite."""
        try:
            await _carried_through(self._executor, self._database.close)
        finally:
            self._executor.shutdown()


async def _carried_through(
    executor: ThreadPoolExecutor, call: Callable[[], Result], done: Callable[[Result], None] | None = None
) -> Result:
    """Run a call in the manifest's thread and then `done` with its result, cancelled or not. A cancelled caller gets
    its cancellation even if the call failed: a cancelled task must end."""
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    failure = future.exception()
    if failure is None and done is not None:
        done(future.result())
    if cancelled is not None:
        if failure is not None:
            log.warning("a change of the manifest failed after its caller was cancelled: %s", failure)
        raise cancelled
    if isinstance(failure, sqlite3.Error):
        raise StorageError(f"manifest: {failure}") from failure
    return future.result()
