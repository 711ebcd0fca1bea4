"""The manifest keeps which files count, which blocks they cover, and how far each write group is split.

sqlite (WAL, synchronous=FULL) holds it; one thread of its own makes every call, one transaction per change. All
questions during serving are answered from a mirror in memory, which changes only after the transaction did. A change
that was begun is carried through even when its caller is cancelled, so mirror and database never differ; the caller
still gets its cancellation, whatever the outcome of the change.

`dropped` remembers the names of files that retention deleted because they had no live batch of any write group: a
commit of another write group that was decided before the drop may still name one, and goes on without it. A snapshot
may not: it knows which batches of its write group are live, so a file that it names is no longer counted as dropped.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.manifest_database import (
    FIRST_SCHEMA_VERSION,
    Contents,
    Database,
    Entries,
    GroupCommit,
    GroupPosition,
)
from mainstem.storage.queue_store.manifest.manifest_rows import (
    DroppedRow,
    GoneRow,
    PositionRow,
    RecalledRow,
    Row,
    SeenRow,
    new_rows,
)
from mainstem.storage.queue_store.manifest.prefix import Prefix
from mainstem.storage.queue_store.manifest.spans import FileRange, Span, spans_of
from mainstem.storage.store_files.store_file import StoreFile

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_NO_SPANS: Prefix[Span] = Prefix()


class Manifest:
    """The mirror, and the changes to it. Make it with `open`."""

    def __init__(self, database: Database, contents: Contents, executor: ThreadPoolExecutor) -> None:
        self._database = database
        self._executor = executor
        self.identity = contents.identity
        """The store's identity; None: the manifest is new."""
        self.commits = contents.commits
        """Changes to the set of files since the store was made."""
        self.files: dict[str, StoreFile] = {file.name: file for file in contents.files}
        """Files that count, in the order of their first commit."""
        self.dropped = contents.dropped
        self.seen = contents.seen
        """When retention first saw a file, by the agreed time (ms): all its batches were appended before."""
        self.on_change: Callable[[list[Row]], None] = lambda rows: None
        """Called with what a change changed, once it is made."""
        self._positions = contents.positions
        self._entries: dict[str, tuple[FileRange, ...]] = {}
        """The ranges that name a file, of all write groups."""
        by_group: dict[int, list[FileRange]] = {}
        by_name: dict[str, list[FileRange]] = {name: [] for name in self.files}
        for entry in contents.ranges:
            by_group.setdefault(entry.group, []).append(entry)
            by_name[entry.name].append(entry)
        self._entries.update((name, tuple(entries)) for name, entries in by_name.items() if entries)
        self._spans = {group: Prefix(spans_of(entries, self.files)) for group, entries in by_group.items()}

    @classmethod
    async def open(cls, path: str) -> Manifest:
        """Open or make the database. Raises `StorageError` when it cannot be used."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        database = Database(path)
        try:
            contents = await _carried_through(executor, database.open)
        except BaseException:  # it may be open: a cancelled caller's call is carried through
            await _carried_through(executor, database.close)
            executor.shutdown()
            raise
        return cls(database, contents, executor)

    def position(self, group: int) -> GroupPosition:
        return self._positions.get(group, GroupPosition(0, 0))

    @property
    def schema_version(self) -> int:
        return self._database.version

    def groups(self) -> list[int]:
        """The write groups that it says anything of."""
        return sorted({*self._positions, *self._spans})

    def spans(self, group: int) -> Prefix[Span]:
        """The files of a write group by the blocks they cover, oldest first. It stays as it is: later changes make
        another one."""
        return self._spans.get(group, _NO_SPANS)

    def ranges(self, group: int) -> list[FileRange]:
        """The files of all spans of a write group, in their order."""
        return list(chain.from_iterable(self.spans(group)))

    def entries(self, name: str) -> tuple[FileRange, ...]:
        """The blocks that a file holds, of all write groups that it counts for."""
        return self._entries.get(name, ())

    def groups_of(self, name: str) -> bytes:
        """The groups a file counts for: a byte for each up to the largest, 1 or 0."""
        groups = self.counts_for(name)
        return bytes(group in groups for group in range(max(groups, default=-1) + 1))

    def counts_for(self, name: str) -> frozenset[int]:
        """The groups a file counts for."""
        return frozenset(entry.group for entry in self.entries(name))

    def blocks_of(self, name: str, group: int) -> tuple[int, int]:
        """The blocks (after, upto] of a group that the file was made of; it counts for the group."""
        mine = [entry for entry in self.entries(name) if entry.group == group]
        return min(entry.after for entry in mine), max(entry.upto for entry in mine)

    def in_order(self) -> Iterator[tuple[str, list[int]]]:
        """Yield (file, groups it counts for), such that the files of every group come oldest first. A file comes more
        than once if it was committed for one group early and for another one late. The manifest may change between two
        steps: what was merged meanwhile comes as a whole, also if parts of it have come before."""
        walks = {group: _Walk(self, group) for group in sorted(self._spans)}
        while heads := [walk for walk in walks.values() if walk.look()]:
            # files of several write groups were recorded in an order that suits all of them
            first = min(heads, key=lambda walk: (len(self.entries(walk.head.name)) > 1, walk.head.sequence))
            name = first.head.name
            others = self.counts_for(name) - {first.group}
            together = [first, *(walks[group] for group in sorted(others) if walks[group].has(name))]
            yield name, [walk.group for walk in together]
            for walk in together:  # of a span that is replaced meanwhile, all of its successor comes
                walk.passed.add(name)

    async def adopt(self, identity: uuid.UUID, commits: int) -> None:
        """Give an empty manifest the identity of its store."""
        await _carried_through(self._executor, lambda: self._database.adopt(identity, commits))
        self.identity, self.commits = identity, commits

    async def commit(self, commits: Sequence[GroupCommit]) -> None:
        """Move the positions of groups, with these runs, all in one transaction. The caller has checked that each may
        move; of one group several may follow each other."""
        positions: dict[int, int] = {}
        for commit in commits:
            assert positions.get(commit.group, self.position(commit.group).position) == commit.after < commit.upto
            positions[commit.group] = commit.upto

        def done(ranges: list[FileRange]) -> None:
            self.commits += 1
            for commit in commits:
                self.files.update((file.name, file) for file in commit.files)
                self._positions[commit.group] = GroupPosition(commit.upto, commit.applied_index)
            self._exchanged((), ranges)
            rows = new_rows(ranges, {file.name: file for commit in commits for file in commit.files}.values())
            self.on_change([*rows, *(PositionRow(one, *self.position(one)) for one in positions)])

        await _carried_through(self._executor, lambda: self._database.commit(commits), done)

    async def drop(self, names: Collection[str], now_ms: int, remembered: Collection[str] | None = None) -> None:
        """Forget files, in one transaction, before they are deleted. `remembered` are the files to keep under
        `dropped`; None: all."""
        kept = names if remembered is None else remembered

        def done(forgotten: list[str]) -> None:
            self.commits += 1
            gone = [entry for name in names for entry in self.entries(name)]
            self._exchanged(gone, ())
            for name in names:
                del self.files[name]
            self.dropped.difference_update(forgotten)
            self.dropped.update(kept)
            rows: list[Row] = [*map(RecalledRow, forgotten), *map(DroppedRow, kept)]
            self.on_change([*(GoneRow(entry.sequence) for entry in gone), *rows])

        await _carried_through(self._executor, lambda: self._database.drop(names, kept, now_ms), done)

    async def see(self, now_ms: int, there: Collection[str] | None = None) -> None:
        """Note that files not seen before exist at `now_ms`, and forget the times of files that are gone. `there`: the
        files that existed at that time; None: all."""
        new = [name for name in self.files if name not in self.seen and (there is None or name in there)]
        gone = [name for name in self.seen if name not in self.files]
        if not new and not gone:
            return

        def done(_result: None) -> None:
            for name in gone:
                self.seen.pop(name, None)
            for name in new:
                self.seen.setdefault(name, now_ms)
            self.on_change([SeenRow(name, now_ms) for name in new])

        await _carried_through(self._executor, lambda: self._database.see(new, gone, now_ms), done)

    async def supersede(
        self, group: int, position: int, applied_index: int, entries: Entries, kept_upto: int = 0
    ) -> list[str]:
        """Replace a write group's files by these, but for those with blocks up to `kept_upto`, behind which these lie;
        none of these counts as dropped any more. Returns the files that no write group needs any more: they are
        forgotten, but not kept under `dropped`."""
        assert all(after >= kept_upto for after, _upto, _file in entries), "they lie behind what is kept"
        moved = group, GroupPosition(position, applied_index)
        gone = [entry for entry in self.ranges(group) if entry.upto > kept_upto]
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
        no write group needs any more. The caller has checked that all inputs count. What retention knows of when the
        inputs were there holds for the outputs."""
        assert all(entry in self.entries(entry.name) and entry.group == group for entry in inputs)
        after, upto = min(entry.after for entry in inputs), max(entry.upto for entry in inputs)
        times = [self.seen.get(entry.name) for entry in inputs]
        known = [time for time in times if time is not None]
        seen = {file.name: max(known) for file in outputs} if len(known) == len(times) else {}
        return await self._exchange({group: (inputs, [(after, upto, file) for file in outputs])}, None, seen)

    async def rewrite(self, group: int, outputs: Mapping[FileRange, Sequence[StoreFile]]) -> list[str]:
        """Put other files, or none, in the place of some merged files of a write group, each within the blocks of its
        input, all in one transaction. Returns the files that no write group needs any more. The caller has checked that
        all inputs count. What retention knows of when an input was there holds for its outputs."""
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
        moved: tuple[int, GroupPosition] | None,
        seen: Mapping[str, int] | None = None,
    ) -> list[str]:
        left: list[str] = []
        named = {file.name: file for _gone, new in changes.values() for _after, _upto, file in new}

        def done(ranges: list[FileRange]) -> None:
            self.commits += 1
            self.files.update(named)
            recalled = sorted(self.dropped.intersection(named))
            self.dropped.difference_update(named)
            self.seen.update(seen or {})
            gone = [entry for entries, _new in changes.values() for entry in entries]
            self._exchanged(gone, ranges)
            for name in sorted({entry.name for entry in gone}):
                if name not in self._entries:
                    del self.files[name]
                    left.append(name)
            rows: list[Row] = [GoneRow(entry.sequence) for entry in gone]
            rows += [*new_rows(ranges, named.values()), *map(RecalledRow, recalled)]
            rows += [SeenRow(name, seen_ms) for name, seen_ms in (seen or {}).items()]
            if moved is not None:
                self._positions[moved[0]] = moved[1]
                rows.append(PositionRow(moved[0], *moved[1]))
            self.on_change(rows)

        await _carried_through(self._executor, lambda: self._database.exchange(changes, moved, seen or {}), done)
        return left

    def _exchanged(self, gone: Iterable[FileRange], new: Iterable[FileRange]) -> None:
        """Take ranges out of the mirror, and add others; `files` describes all of them. Costs what changes, and where
        that is not only at the end, a copy of the list of spans."""
        changed: dict[int, tuple[set[FileRange], list[FileRange]]] = {}
        for entry in gone:
            changed.setdefault(entry.group, (set(), []))[0].add(entry)
            rest = tuple(other for other in self._entries.get(entry.name, ()) if other != entry)
            if rest:
                self._entries[entry.name] = rest
            else:
                self._entries.pop(entry.name, None)
        for entry in new:
            changed.setdefault(entry.group, (set(), []))[1].append(entry)
            self._entries[entry.name] = (*self._entries.get(entry.name, ()), entry)
        for group, (without, added) in changed.items():
            spans = self.spans(group)
            if without or (spans and added[0].after < spans[-1].upto):
                self._spans[group] = _edited(spans, without, added, self.files)
            else:
                self._spans[group] = spans.extended(spans_of(added, self.files))

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


def _edited(
    spans: Prefix[Span], without: Collection[FileRange], added: Sequence[FileRange], files: Mapping[str, StoreFile]
) -> Prefix[Span]:
    """The spans without some entries and with others, by their blocks."""
    rest: list[Span | None] = list(spans)
    new: dict[tuple[int, int], list[FileRange]] = {}
    for entry in added:
        new.setdefault((entry.upto, entry.after), []).append(entry)
    places = {bisect.bisect_left(spans, entry.upto, key=attrgetter("upto")) for entry in (*without, *added)}
    for place in places:
        if place < len(spans):
            span = spans[place]
            rest[place] = None
            kept = [entry for entry in span if entry not in without]
            if kept:
                new[span.upto, span.after] = kept + new.get((span.upto, span.after), [])
    left = [span for span in rest if span is not None]
    made = [Span(entries, files) for _blocks, entries in sorted(new.items())]
    if made:
        place = bisect.bisect_left(left, made[0].upto, key=attrgetter("upto"))
        if place == len(left) or left[place].upto > made[-1].upto:
            left[place:place] = made
        else:
            left = sorted([*left, *made], key=attrgetter("upto"))
    return Prefix(left)


class _Walk:
    """Follows the files of one write group as they come by (`Manifest.in_order`)."""

    def __init__(self, manifest: Manifest, group: int) -> None:
        self._manifest = manifest
        self.group = group
        self.passed: set[str] = set()
        """The files of the present span that have come."""
        self._done_upto = -1
        self._spans: Prefix[Span] | None = None
        self._span: Span | None = None
        self._rest: Iterator[FileRange] = iter(())
        self._head: FileRange | None = None

    @property
    def head(self) -> FileRange:
        """The next file, after a look that found one."""
        assert self._head is not None
        return self._head

    def look(self) -> bool:
        """Find the next file, by what the manifest says now. False at the end."""
        self._follow()
        while self._span is not None:
            while self._head is not None and self._head.name in self.passed:
                self._head = next(self._rest, None)
            if self._head is not None:
                return True
            self._done_upto = self._span.upto
            self._spans = None
            self._follow()
        return False

    def has(self, name: str) -> bool:
        """Whether a file is still to come of the present span."""
        return self._span is not None and name not in self.passed and any(entry.name == name for entry in self._span)

    def _follow(self) -> None:
        spans = self._manifest.spans(self.group)
        if spans is self._spans:
            return
        self._spans = spans
        place = bisect.bisect_right(spans, self._done_upto, key=attrgetter("upto"))
        span = spans[place] if place < len(spans) else None
        if span is not self._span:
            if span is None or self._span is None or (span.after, span.upto) != (self._span.after, self._span.upto):
                self.passed = set()  # else others of its files went, or came: what has come is not to come again
            self._span = span
            self._rest = iter(span) if span is not None else iter(())
            self._head = next(self._rest, None)
