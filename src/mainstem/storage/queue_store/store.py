"""The queue store of a node: runs on disk 2, found through the manifest, read through the read cache.

A run may cover several write groups; it counts for a group once that group's commit is in the manifest, and a
group whose commit was refused never sees it. Where a queue lies in the runs of its group is `run_search`'s
matter; here it is read, with read-ahead for readers that come back.

Changes (commit, drop, removal of orphans) are made one at a time, manifest first. A file is deleted only when
the manifest, known to be this store's own, does not name it.

A run that cannot be read costs what is in that run: who comes upon it notes it (`damage.py`), and goes on with the
others where that makes sense.
"""

from __future__ import annotations

import asyncio
import bisect
import enum
import logging
from collections import Counter, OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from operator import attrgetter
from typing import NamedTuple, cast

import numpy
import numpy.typing

from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.rpc.split import RunFile
from mainstem.storage.chunk_loads import load_chunks
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.damage import DamagedRuns
from mainstem.storage.queue_store.extent_index import ExtentIndex, QueueIds, Rows
from mainstem.storage.queue_store.manifest import Entries, GroupCommit, Manifest
from mainstem.storage.queue_store.mending import Mending
from mainstem.storage.queue_store.orphans import Orphans
from mainstem.storage.queue_store.run_copy import ExtentChecks, check_content, check_name, copy_run
from mainstem.storage.queue_store.run_reader import RUNS_DIRECTORY, Run, RunFiles, RunGone, RunSource
from mainstem.storage.queue_store.run_search import Place, Ranges, RunSearch
from mainstem.storage.queue_store.store_mark import StoreMark, pair, write_mark
from mainstem.storage.queue_store.stored_slice import SliceBuilder, StoredSlice
from mainstem.storage.read_cache import Extent, ReadCache

log = logging.getLogger(__name__)

READERS_MAX = 4096
"""Sequential readers remembered. One that is forgotten pays a bisection and starts read-ahead anew."""

NEAR_BYTES = 256 << 10
NEAR_RUNS_MAX = 16
"""How many runs are looked at for many queues at once: a reader that gets less than this of a queue comes back for
every few runs, and their indexes fit into memory."""

QUEUES_PER_TURN = 16_384
"""Whose log starts are looked up between two turns of the event loop: some milliseconds if all their topics went."""

LogStartsOf = Callable[[QueueIds], numpy.typing.NDArray[numpy.int64]]
GroupsOf = Callable[[QueueIds], numpy.typing.NDArray[numpy.int64]]


class CommitOutcome(enum.Enum):
    COMMITTED = "committed"
    REPLAY = "replay"
    """The range is behind the group's position: it was committed before. Nothing changed."""
    GAP = "gap"
    """The range does not start at the group's position. Nothing changed."""


class Verdict(enum.Enum):
    """What retention finds about a run."""

    LIVE = "live"
    DEAD = "dead"
    """Nothing in it is live, of any group."""
    DEAD_HERE = "dead here"
    """Nothing in it is live of the groups it counts for. It may hold more, of groups that are not here or that have
    the same in runs of their own."""


class _Reader(NamedTuple):
    """Where a reader of a queue goes on, and how far ahead of it to read."""

    sequence: int
    chunks_ahead: int


class QueueFile(NamedTuple):
    """A run, and what of it belongs to one queue."""

    name: str
    file_bytes: int
    queue_bytes: int
    first_offset: int
    last_offset: int


class NearRun(NamedTuple):
    """A run that is read for many queues at once."""

    source: RunSource
    extents: ExtentIndex
    groups: bytes
    """Those it counts for: a byte for each write group, 1 or 0."""


class QueueStore:
    """Make it with `open`."""

    def __init__(
        self, files: Files, manifest: Manifest, config: QueueStoreConfig, clock: Clock,
        pace: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._config = config
        self._clock = clock
        self.damaged = DamagedRuns(clock, manifest.files.__contains__)
        self._run_files = RunFiles(
            files, index_bytes_max=config.index_cache_bytes, open_files_max=config.open_files_max,
            check=self._check, damaged=self.damaged.note)
        self._search = RunSearch(manifest, self._run_files)
        self.mending = Mending(files, manifest, self._search, self._run_files, self)
        self.cache = ReadCache(
            clock, bytes_max=config.read_cache_bytes, chunk_bytes=config.read_chunk_bytes,
            bytes_per_second=config.read_bytes_per_second, pace=pace)
        """Also of the journal's sealed segments: one bound for all memory of catch-up readers."""
        self._orphans = Orphans(files, clock, config.orphan_grace_seconds)
        self._readers: OrderedDict[tuple[int, int], _Reader] = OrderedDict()
        self._changes = asyncio.Lock()
        self._going: frozenset[str] = frozenset()
        """Runs that are being dropped."""
        self._rewritten = 0
        """How often runs of a group were put in place of others."""
        self._kept: Counter[int] = Counter()
        """Groups whose runs are being copied to other nodes."""
        self._copying = asyncio.Lock()
        self._copied_bytes = 0
        self._dropped_runs = 0
        self._dropped_bytes = 0

    @classmethod
    async def open(
        cls, files: Files, database_path: str, config: QueueStoreConfig, clock: Clock,
        pace: Callable[[int], Awaitable[bool]] | None = None,
    ) -> QueueStore:
        """Open the store in the root of `files` with the manifest at `database_path`; make both when neither
        is there. `pace` is the read cache's. Raises `StorageError` when they do not belong together; nothing is changed
        then."""
        config.validate()
        manifest = await Manifest.open(database_path)
        try:
            await pair(files, manifest, database_path)
        except BaseException:
            await manifest.close()
            raise
        return cls(files, manifest, config, clock, pace)

    async def close(self) -> None:
        await self.cache.close()
        async with self._changes:
            await self._run_files.close()
            await self._manifest.close()

    # --- commits ------------------------------------------------------------------------------------------

    def split_position(self, group: int) -> int:
        """The index of the group's last block that is split; 0 at first."""
        return self._manifest.position(group).position

    def applied_index(self, group: int) -> int:
        """The index of the control block whose commit was the group's last; 0 at first."""
        return self._manifest.position(group).applied_index

    def file(self, name: str) -> RunFile:
        """A run as its commit described it. Raises `RunGone`."""
        file = self._manifest.files.get(name)
        if file is None:
            raise RunGone(f"{name}: the manifest of this node does not name it")
        return file

    def counts(self, name: str, group: int) -> bool:
        """Whether a run counts for a group."""
        return group in self._manifest.counts_for(name)

    def file_count(self, group: int) -> int:
        """Runs that hold blocks of the group."""
        return len(self._manifest.ranges(group))

    async def verify(self, files: Sequence[RunFile]) -> None:
        """Check that the files of a commit are there, whole, and as described: to be asked before the commit
        is decided, by someone who holds them. Raises `StorageError`."""
        for file in files:
            if file.name in self._going:
                raise StorageError(f"{file.name}: retention drops it, since nothing of it counted; split again")
            if file.name not in self._manifest.dropped:
                self._orphans.spare(file.name)
                await self._verified(file)

    def hold(self, name: str) -> None:
        """A commit that names this run is decided: until `let_go` it is no orphan, however late the commit."""
        self._orphans.hold(name)

    def let_go(self, name: str) -> None:
        """The commit that the run was held for is in the manifest."""
        self._orphans.let_go(name)

    async def commit(
        self, group: int, after: int, upto: int, files: Sequence[RunFile], *, applied_index: int
    ) -> CommitOutcome:
        """Blocks (after, upto] of a group are in these runs: compare-and-set on the group's split position.

        Durable when it returns. Raises `StorageError`, nothing being changed, when a file is missing or not
        what it is described as; a file that retention dropped since another group's commit is left out."""
        (outcome,) = await self.commit_all([GroupCommit(group, after, upto, tuple(files), applied_index)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def commit_all(self, commits: Sequence[GroupCommit]) -> list[CommitOutcome | StorageError]:
        """The same for many, in order, in one durable step. What came of each: an error keeps the commits of its own
        group from taking place, not those of others. Raises `StorageError`, nothing being changed, when none can."""
        async with self._changes:
            outcomes: list[CommitOutcome | StorageError] = []
            accepted: list[GroupCommit] = []
            positions: dict[int, int] = {}
            failed: dict[int, StorageError] = {}
            for commit in commits:
                position = positions.get(commit.group, self.split_position(commit.group))
                if commit.group in failed:
                    outcomes.append(failed[commit.group])
                elif commit.upto <= position:
                    outcomes.append(CommitOutcome.REPLAY)
                elif commit.after != position:
                    outcomes.append(CommitOutcome.GAP)
                else:
                    try:
                        accepted.append(await self._acceptable(commit))
                    except (StorageError, OSError) as error:
                        failed[commit.group] = refused = StorageError(str(error))
                        refused.__cause__ = error
                        outcomes.append(refused)
                    else:
                        positions[commit.group] = commit.upto
                        outcomes.append(CommitOutcome.COMMITTED)
            if accepted:
                await self._manifest.commit(accepted)
                await self._mark()
        return outcomes

    async def _acceptable(self, commit: GroupCommit) -> GroupCommit:
        """The commit without what retention dropped, every file looked at. Raises `StorageError`, OSError."""
        assert commit.after <= commit.upto
        kept = tuple(file for file in commit.files if file.name not in self._manifest.dropped)
        for file in kept:
            await self._verified(file)
        return commit._replace(files=kept)

    def _check(self, name: str, index: ExtentIndex) -> None:
        """Raises `StorageError` when a run has not what the manifest says of it."""
        file = self._manifest.files.get(name)
        if file is not None:
            check_content(index, file)

    async def _verified(self, file: RunFile) -> None:
        check_name(file.name)
        known = self._manifest.files.get(file.name)
        if known is None:
            check_content(await self._run_files.index(Run(file.name)), file)
        elif known != file:
            raise StorageError(f"{file.name}: committed before as {known}, now as {file}")

    # --- copies of other nodes' runs ------------------------------------------------------------------------

    def ranges_of(self, group: int) -> list[tuple[int, int, RunFile]]:
        """A group's runs as (after, upto, run), oldest first."""
        return [(entry.after, entry.upto, self._manifest.files[entry.name]) for entry in self._manifest.ranges(group)]

    def journal_index(self, group: int) -> int:
        """What of the group was split here: the journal had at least this block."""
        return min(self._manifest.position(group))

    @contextmanager
    def kept(self, group: int) -> Iterator[None]:
        """Retention drops no run of the group meanwhile: they are being copied."""
        self._kept[group] += 1
        try:
            yield
        finally:
            self._kept[group] -= 1
            if not self._kept[group]:
                del self._kept[group]

    def is_kept(self, group: int) -> bool:
        """Whether somebody copies runs of the group."""
        return group in self._kept

    async def pieces(self, name: str, length: int) -> AsyncIterator[bytes]:
        """A run from its first to its last byte, `length` at a time, every extent checked. Raises `StorageError`
        naming the place that is damaged, and when the manifest does not name the run."""
        file = self._manifest.files.get(name)
        if file is None:
            raise RunGone(f"{name}: the manifest of this node does not name it")
        run = self._search.run(name)
        checks = ExtentChecks(await self._run_files.index(run), f"{RUNS_DIRECTORY}/{name}")
        async with self._run_files.opened(run) as opened:
            for position in range(0, file.bytes, length):
                piece = await opened.read(position, min(length, file.bytes - position))
                checks.feed(position, piece)
                yield piece

    async def copy(self, file: RunFile, fetch: Callable[[str], AsyncIterator[bytes]]) -> bool:
        """Have the run here, whole and durable, though the manifest may not name it, or may know it as dropped:
        `fetch` gives its bytes, and is not asked when it is here already. Whoever asks holds the run. One run at a
        time. Whether it was fetched. Raises `StorageError`, and what `fetch` raises."""
        check_name(file.name)
        async with self._copying:
            async with self._changes:  # one that is being dropped now is not here
                if await self._is_here(file):
                    return False
            async with aclosing(cast(AsyncGenerator[bytes, None], fetch(file.name))) as pieces:
                await copy_run(self._files, file, pieces)
            self._copied_bytes += file.bytes
            await self.renewed(file.name, "it was copied from another node")
            return True

    async def _is_here(self, file: RunFile) -> bool:
        self._orphans.spare(file.name)
        if file.name in self.damaged:
            return False
        try:
            await self._verified(file)
        except (StorageError, OSError):
            return False
        return True

    def met(self, name: str, error: Exception) -> None:
        self.damaged.note(name, error)

    async def renewed(self, name: str, how: str) -> None:
        """A run is whole again; nothing that memory has of its file holds any more."""
        self.cache.forget(name)
        await self._run_files.renewed(name)
        self.damaged.whole_again(name, how)

    async def supersede(self, group: int, position: int, ranges: Entries) -> None:
        """Let a group be split up to `position`, into these runs, as (after, upto, run), in place of those it had.
        All are here: what was remembered as dropped is so no more. Durable when it returns. Raises `StorageError`,
        nothing being changed."""
        async with self._changes:
            for file in {file.name: file for _after, _upto, file in ranges}.values():
                await self._verified(file)
            before = [entry.name for entry in self._manifest.ranges(group)]
            gone = await self._manifest.supersede(group, position, self.journal_index(group), ranges)
            await self._rearranged(before, gone)

    async def replaced(self, name: str, by: Mapping[int, Sequence[RunFile]]) -> None:
        """Let other runs, which are here, stand in a run's place, for each group it counts for. Durable when it
        returns. Raises `StorageError`, nothing being changed."""
        async with self._changes:
            if self._manifest.counts_for(name) != set(by):
                raise StorageError(f"{name}: it counts for other write groups than when it was looked at")
            for file in {file.name: file for files in by.values() for file in files}.values():
                await self._verified(file)
            entries = {}
            for group, files in by.items():
                after, upto = self.mending.ranges(name)[group]
                entries[group] = [(after, upto, file) for file in files]
            gone = await self._manifest.replace(name, entries)
            await self._rearranged([name], gone)

    async def _rearranged(self, names: Iterable[str], gone: Iterable[str]) -> None:
        """The manifest has other runs where these stood, and forgot some of them."""
        self._rewritten += 1
        await self._mark()
        for name in names:
            self._search.run(name).witness = None  # it may be of a group that the run does not count for any more
        for name in gone:  # orphans now: a commit that is decided may still name them
            self._search.forget(self._search.run(name))

    async def _mark(self) -> None:
        identity = self._manifest.identity
        assert identity is not None
        try:
            await write_mark(self._files, StoreMark(identity, self._manifest.commits))
        except OSError as error:  # it only guards against old manifests, and does so a change later
            log.error("the mark of the queue store could not be written: %s", error)

    # --- reading ------------------------------------------------------------------------------------------

    async def read(self, queue_id: int, group: int, offset: int, bytes_max: int) -> StoredSlice | None:
        """Batches from the one that holds `offset`, or the next there is, up to `bytes_max` bytes but at least
        one; they follow each other without a gap. None when the store has nothing from there on.

        Raises `StorageError` naming file and position when what should be there cannot be read."""
        while True:
            runs = self._manifest.ranges(group)
            try:
                return await self._read(queue_id, runs, offset, bytes_max)
            except RunGone:  # once per run that retention drops meanwhile, at most
                if self._manifest.ranges(group) is runs:
                    raise

    async def near(self, queue_id: int, group: int, offset: int) -> list[NearRun]:
        """The runs from the one that holds this offset of the queue on, as many as have `NEAR_BYTES` of an average
        queue; empty when none holds it. Raises as `read`."""
        runs = self._manifest.ranges(group)
        found: list[NearRun] = []
        near_bytes = 0
        try:
            place = await self._search.find(queue_id, runs, offset)
            if place is None or int(place.extents.rows["base_offset"][place.row]) > offset:
                return []
            for entry in runs[place.at : place.at + NEAR_RUNS_MAX]:
                run, file = self._search.run(entry.name), self._manifest.files[entry.name]
                index = await self._run_files.index(run)
                found.append(NearRun(RunSource(self._run_files, run), index, self._manifest.groups_of(entry.name)))
                near_bytes += file.batch_bytes // max(1, file.queue_count)
                if near_bytes >= NEAR_BYTES:
                    break
        except (RunGone, KeyError):  # dropped meanwhile
            pass
        return found

    async def chunks(self, wanted: Sequence[tuple[RunSource, int, int]]) -> tuple[list[memoryview | None], bool]:
        """Chunks of runs by number, of which so many bytes are wanted, and whether memory had all of them. None for
        one that is gone. Their batches are the caller's to check."""
        found = await load_chunks(self.cache, wanted)
        last, number, _length = wanted[-1]
        if not found[1]:
            self.cache.read_ahead(self._upcoming_chunks(last, number + 1), self._config.read_ahead_chunks_max)
        return found

    async def _upcoming_chunks(self, source: RunSource, number: int) -> AsyncGenerator[Extent, None]:
        end = self._manifest.files[source.name].bytes if source.name in self._manifest.files else 0
        for position in range(number * self.cache.chunk_bytes, end, self.cache.chunk_bytes):
            yield Extent(source, position, self.cache.chunk_bytes, 0)

    async def extents(
        self, queue_id: int, group: int, offset: int
    ) -> AsyncIterator[tuple[int, int, int]]:
        """(first offset, last offset, largest timestamp) of the queue's extents, from the one that holds
        `offset`, or the next there is, on. Ends early if retention drops a run meanwhile."""
        runs = self._manifest.ranges(group)
        try:
            place = await self._search.find(queue_id, runs, offset)
            while place is not None:
                for row in place.extents.rows[place.row:place.end]:
                    yield int(row["base_offset"]), int(row["last_offset"]), int(row["max_timestamp"])
                last_offset = int(place.extents.rows["last_offset"][place.end - 1])
                place = await self._search.forward(queue_id, runs, place.at + 1, last_offset + 1)
        except RunGone:
            return

    async def all_rows(self, groups_of: GroupsOf, *, whole: bool = False) -> AsyncIterator[Rows]:
        """The extents of every run, those of each queue oldest first, including those that are no longer live.
        Extents of a group that the run does not count for are left out; `groups_of` gives the group per queue
        id. So are runs that cannot be read; `whole`: what keeps one from being read is raised instead."""
        for name, groups in self._manifest.in_order():
            rows = await self.rows_of(name, groups, groups_of)
            if rows is not None:
                yield rows
            elif whole and name in self._manifest.files:
                await self._run_files.index(self._search.run(name))
                raise StorageError(f"{name}: it could not be read, and now it can; try again")

    def in_order(self) -> list[tuple[RunFile, list[int]]]:
        """Every run and the groups it counts for, such that the runs of every group come oldest first; a run may come
        more than once."""
        return [(self._manifest.files[name], groups) for name, groups in self._manifest.in_order()]

    async def rows_of(self, name: str, groups: Sequence[int], groups_of: GroupsOf) -> Rows | None:
        """The extents of one run that are of these groups; None when it is gone or cannot be read. Readers' indexes
        stay in memory."""
        try:
            rows = (await self._run_files.index(self._search.run(name), keep=False)).rows
        except (StorageError, OSError):  # noted there
            return None
        counts = numpy.isin(groups_of(rows["queue_id"]), groups)
        return rows if counts.all() else rows[counts]

    async def first_seen(self, now_ms: int) -> Mapping[str, int]:
        """When each run was first looked at, by name; those that were not are as of now. Durable when it returns."""
        async with self._changes:
            await self._manifest.see(now_ms)
        return dict(self._manifest.seen)

    async def files_of(self, queue_id: int, group: int) -> list[QueueFile]:
        """The runs that hold batches of a queue, in offset order, without those that cannot be read."""
        found: list[QueueFile] = []
        for name in dict.fromkeys(entry.name for entry in self._manifest.ranges(group)):
            try:
                index = await self._run_files.index(self._search.run(name))
            except (StorageError, OSError):  # noted there
                continue
            first, end = index.queue_rows(queue_id)
            rows = index.rows[first:end]
            if len(rows) and name in self._manifest.files:
                found.append(QueueFile(
                    name, self._manifest.files[name].bytes, int(rows["length"].sum(dtype=numpy.int64)),
                    int(rows["base_offset"][0]), int(rows["last_offset"][-1]),
                ))
        return found

    def file_bytes(self) -> int:
        """Bytes of all runs on disk 2."""
        return sum(file.bytes for file in self._manifest.files.values())

    async def _read(self, queue_id: int, runs: Ranges, offset: int, bytes_max: int) -> StoredSlice | None:
        reader = self._readers.pop((queue_id, offset), None)
        if reader is None:
            place = await self._search.find(queue_id, runs, offset)
        else:
            at = bisect.bisect_left(runs, reader.sequence, key=attrgetter("sequence"))
            place = await self._search.forward(queue_id, runs, at, offset)
        if place is None:
            return None
        builder = SliceBuilder(offset, bytes_max)
        while builder.has_room(place.extents.rows[place.row]):
            extent = self._extent(place)
            try:
                view, hit = await self.cache.read(extent)
            except RunGone:
                raise
            except (StorageError, OSError) as error:
                self.damaged.note(extent.source.name, error)
                if len(builder):
                    break  # whoever goes on there meets it again
                raise
            if not builder.add(view, hit, f"{extent.source.name}: extent at {extent.position}"):
                break
            try:
                following = await self._search.following(queue_id, runs, place)
            except RunGone:
                raise
            except (StorageError, OSError):  # noted there; what was found so far is whole
                break
            if following is None:
                break
            place = following
        stored = builder.build()
        self._read_ahead(queue_id, runs, place, reader, stored)
        return stored

    def _read_ahead(
        self, queue_id: int, runs: Ranges, place: Place, reader: _Reader | None, stored: StoredSlice
    ) -> None:
        """Remember the reader, and read ahead of one that came back: further each time it had to wait for the
        disk, no further once it finds everything in memory."""
        chunks = 0
        if reader is not None:
            chunks = reader.chunks_ahead if stored.from_cache else max(1, reader.chunks_ahead * 2)
            chunks = min(chunks, self._config.read_ahead_chunks_max)
            self.cache.read_ahead(self._upcoming(queue_id, runs, place), chunks + 1)  # the one it is in, too
        self._readers[queue_id, stored.next_offset] = _Reader(runs[place.at].sequence, chunks)
        if len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)

    async def _upcoming(self, queue_id: int, runs: Ranges, place: Place) -> AsyncGenerator[Extent, None]:
        following: Place | None = place
        while following is not None:
            yield self._extent(following)
            following = await self._search.following(queue_id, runs, following)

    def _extent(self, place: Place) -> Extent:
        row = place.extents.rows[place.row]
        source = RunSource(self._run_files, place.run)
        return Extent(source, int(row["position"]), int(row["length"]), int(row["crc"]))

    # --- retention ----------------------------------------------------------------------------------------

    async def retain(
        self, log_starts: LogStartsOf, confirmed: Callable[[], Awaitable[None]] | None = None,
        groups_of: GroupsOf | None = None,
    ) -> list[RunFile]:
        """Drop the runs in which no extent is live of the groups they count for, and remove files that no commit ever
        named. A run that cannot be read stays.

        `log_starts` gives the log start per queue id, the largest i64 for a queue that is known to be deleted:
        an answer that is larger than the truth deletes data. `confirmed` is awaited before anything is dropped:
        when it returns, what `log_starts` said can no longer be taken back. `groups_of` gives the group per queue id;
        without it all extents count. Returns what was dropped."""
        rewritten = self._rewritten
        dead: dict[str, tuple[Verdict, frozenset[int]]] = {}
        for name in await self._without_witness(log_starts):
            counts_for = self._manifest.counts_for(name)
            if not self._has_kept(name):
                verdict = await self._verdict(name, counts_for, log_starts, groups_of)
                if verdict is not Verdict.LIVE:
                    dead[name] = verdict, counts_for
        dropped: list[RunFile] = []
        if dead:
            if confirmed is not None:
                await confirmed()
            async with self._changes:
                if self._rewritten == rewritten:  # else a group is not what it was when it was looked at
                    dropped = await self._drop(dead)
            log.info("retention dropped %d runs of %d bytes", len(dropped), sum(file.bytes for file in dropped))
        await self._remove_orphans()
        return dropped

    async def _drop(self, dead: Mapping[str, tuple[Verdict, frozenset[int]]]) -> list[RunFile]:
        """Drop those of these runs that are still what they were found to be, for the groups they were found so for."""
        names = frozenset(
            name for name, (_verdict, counts_for) in dead.items()
            if name in self._manifest.files and not self._has_kept(name)
            and self._manifest.counts_for(name) == counts_for
        )
        if not names:
            return []
        dropped = [self._manifest.files[name] for name in names]
        runs = [self._search.run(name) for name in names]
        remembered = [name for name in names if dead[name][0] is Verdict.DEAD]
        self._going = names
        try:
            await self._manifest.drop(names, self._clock.now_ms(), remembered)
        finally:
            self._going = frozenset()
        await self._mark()
        for run in runs:
            self._search.forget(run)
            await self._remove(run)
        self._dropped_runs += len(dropped)
        self._dropped_bytes += sum(file.bytes for file in dropped)
        return dropped

    def _has_kept(self, name: str) -> bool:
        groups = self._manifest.counts_for(name)
        return self._orphans.is_held(name) or any(group in groups for group in self._kept)

    async def _without_witness(self, log_starts: LogStartsOf) -> list[str]:
        """The runs that are not known to be live by what was live in them the last time."""
        runs = [self._search.run(name) for name in self._manifest.files]
        witnesses = [run.witness or (0, -1) for run in runs]
        starts = log_starts(numpy.array([queue_id for queue_id, _last in witnesses], numpy.uint64))
        return [
            run.name for run, (_queue_id, last), start in zip(runs, witnesses, starts.tolist(), strict=True)
            if last < start or run.witness is None
        ]

    async def _verdict(
        self, name: str, counts_for: frozenset[int], log_starts: LogStartsOf, groups_of: GroupsOf | None
    ) -> Verdict:
        run = self._search.run(name)
        try:
            index = await self._run_files.index(run, keep=False)
        except (StorageError, OSError):  # noted there: nobody can tell what is in it
            return Verdict.LIVE
        all_ids, all_last = index.last_offsets()
        longest, others_live = -1, False
        run.witness = None
        for first in range(0, len(all_ids), QUEUES_PER_TURN):
            queue_ids = all_ids[first : first + QUEUES_PER_TURN]
            last_offsets = all_last[first : first + QUEUES_PER_TURN]
            margins = last_offsets - numpy.minimum(log_starts(queue_ids), last_offsets + 1)
            if groups_of is not None:
                counts = numpy.isin(groups_of(queue_ids), list(counts_for))
                others_live = others_live or bool((margins[~counts] >= 0).any())
                margins[~counts] = -1
            at = int(margins.argmax())
            if int(margins[at]) > longest:
                longest = int(margins[at])
                run.witness = (int(queue_ids[at]), int(last_offsets[at]))
            if first + QUEUES_PER_TURN < len(all_ids):
                await asyncio.sleep(0)
        if longest >= 0:
            return Verdict.LIVE
        return Verdict.DEAD_HERE if others_live else Verdict.DEAD

    async def _remove_orphans(self) -> None:
        for name in await self._orphans.due(self._manifest.files):
            async with self._changes:
                if name not in self._manifest.files and self._orphans.is_due(name):
                    log.info("removing %s/%s, which no commit names", RUNS_DIRECTORY, name)
                    await self._remove(Run(name))

    async def _remove(self, run: Run) -> None:
        self.cache.forget(run.name)
        try:
            await self._run_files.remove(run)
        except OSError as error:  # it is an orphan now, and tried again as one
            log.warning("%s/%s could not be removed: %s", RUNS_DIRECTORY, run.name, error)

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        files = list(self._manifest.files.values())
        yield Sample("mainstem_queue_store_runs", "gauge", "Runs on disk 2.", len(files))
        yield Sample(
            "mainstem_queue_store_bytes", "gauge", "Bytes of runs on disk 2.", sum(file.bytes for file in files))
        yield Sample(
            "mainstem_queue_store_dropped_runs_total", "counter", "Runs deleted by retention.", self._dropped_runs)
        yield Sample(
            "mainstem_queue_store_dropped_bytes_total", "counter", "Bytes of runs deleted by retention.",
            self._dropped_bytes)
        yield Sample(
            "mainstem_queue_store_copied_bytes_total", "counter", "Bytes of runs copied from other nodes.",
            self._copied_bytes)
        yield Sample(
            "mainstem_queue_store_index_bytes", "gauge", "Memory held by indexes of runs.",
            self._run_files.index_bytes)
        yield Sample(
            "mainstem_queue_store_index_loads_total", "counter", "Indexes of runs read from disk 2.",
            self._run_files.index_loads)
        yield Sample("mainstem_queue_store_open_files", "gauge", "Runs held open.", self._run_files.open_files)
        yield from self.damaged.samples()
        yield from self.cache.samples()
