"""The journal: one append-only sequence of segments on disk 1 that holds the blocks of all write groups.

`write` takes blocks through four steps: place each in the chain (with a new segment where it does not fit), frame it,
write all of them page-aligned, sync. Under `sync` durability write and sync are one job of the disk's thread; under
`async` a task of the journal's own syncs once per interval. Only one write runs at a time.

Invariants:
- The journal takes the segments of a write before it writes any byte: a full disk is `StorageBusy` and changes nothing.
- A write or a sync that fails ends the journal: the content of the disk is unknown then, and a second sync could report
  success falsely. Every later write is refused with `StorageFailed`.
- `durable_end` only moves behind a sync that succeeded, and every block states it as of when it was written.
- Only segments older than a segment with a durable block are recycled, so the journal always has a segment to go on
  from, and never uses a sequence twice for blocks that were durable.
- An indexed segment is durable: its index file vouches for it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import asynccontextmanager

from mainstem.model import Buffer, Durability, HistogramSample, Sample
from mainstem.ports import Clock, File, Files
from mainstem.storage.errors import CorruptJournal, SegmentGone, StorageError, StorageFailed
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.blocks import Rows, extent_rows, sorted_rows
from mainstem.storage.journal.encoding.format import (
    FIRST_BLOCK,
    KIND_DATA,
    PAGE_BYTES,
    BlockHeader,
    SegmentHeader,
    aligned,
    offset_of,
    position_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.encoding.framing import BlockToWrite, content_length, frame
from mainstem.storage.journal.measures import Measures
from mainstem.storage.journal.recovery import (
    BeforeCut,
    Hole,
    JournalRecovery,
    RecoveryReport,
    StepOver,
    Visit,
)
from mainstem.storage.journal.segments.index_files import IndexFiles, identity_of
from mainstem.storage.journal.segments.inventory import Inventory, SegmentInfo, take_inventory
from mainstem.storage.journal.segments.next_segments import NextSegments
from mainstem.storage.journal.segments.open_segment import OpenSegment, SegmentWrite
from mainstem.storage.journal.segments.pool import SegmentPool
from mainstem.storage.journal.segments.resident_segments import ResidentSegments
from mainstem.storage.journal.segments.segment_files import DIRECTORY, SegmentFiles, segment_path
from mainstem.storage.journal.segments.segment_walk import SegmentWalk
from mainstem.supervised import Supervision

__all__ = ["BlockToWrite", "Journal", "RecoveryReport", "SegmentInfo"]

log = logging.getLogger(__name__)

LOCK_FILE = f"{DIRECTORY}/lock"

TAKEN_AHEAD_PART = 0.5
"""The journal takes the next segment's file once a segment is so full: 32 MiB before it is needed, which a flood brings
in thirty milliseconds at the most, and a sync of the disk rarely takes longer."""


WAITS_FROM_PART = 0.25
"""A flood waits for memory once the open segment is so full and no other is at hand: before the next is taken ahead,
which would be a fresh file."""

WAITS_SECONDS_MAX = 0.3
"""…for no longer than this for each segment: where memory is slow to come, 64 MiB of it take half as long. On a busy
machine a thread that lets all others go first may never get there."""


class Journal:
    """Writes blocks to the segments of disk 1, reads, indexes and recycles these. Make one with `open`, call `recover`
    once, then the rest. `Journal` is a `ports.Statistics`."""

    end: int
    """Journal position behind the last block written; 0 in an empty journal."""
    durable_end: int
    """Journal position behind the last block known to be on the disk."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        config: JournalConfig,
        lock: File,
        pool: SegmentPool,
        found: Inventory,
        supervision: Supervision,
        dead: Container[int],
        sync_failed: Callable[[StorageFailed], object],
    ) -> None:
        self._files = files
        self._clock = clock
        self._config = config
        self._lock = lock
        self._pool = pool
        self._found = found
        self._segments = found.infos()
        """The sealed segments, oldest first; the segment being written to is not among them."""
        self._open: OpenSegment | None = None
        self._next_sequence = found.highest_sequence + 1
        self._supervision = supervision
        self._next = NextSegments(pool, supervision)
        self._chain = 0
        """Header CRC of the last block."""
        self._handles = SegmentFiles(files)
        self._indexes = IndexFiles(files, config.index_cache_bytes)
        self._unsynced: dict[int, File] = {}
        """Segments with bytes that are written but not synced."""
        self._syncing = asyncio.Lock()
        self._resident = ResidentSegments(clock.monotonic, supervision, self._syncing)
        self._recycling = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._recovered = False
        self._writing = False
        self._failure: str | None = None
        self._lacked_since: float | None = None
        """Since when `lacks_memory` has found so; None: it has not."""
        self._measures = Measures()
        self._sync_failed = sync_failed
        self.dead = dead
        self.end = 0
        self.durable_end = 0

    # --- opening and recovery -----------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        files: Files,
        clock: Clock,
        config: JournalConfig,
        *,
        supervision: Supervision | None = None,
        dead: Container[int] = (),
        sync_failed: Callable[[StorageFailed], object] = lambda failure: None,
    ) -> Journal:
        """List the segments and read their headers; no block is read and none changed yet. `dead`: journal positions of
        blocks that are not part of their write group's log any more. `sync_failed` is called when the journal fails
        outside a write; under `async` durability this is the only sign of it.

        Raises `StorageError` when another process has this journal open, `OSError` when the directory cannot
        be used."""
        config.validate()
        supervision = supervision or Supervision()
        lock = await files.open(LOCK_FILE, create=True)
        try:
            if not await lock.lock(exclusive=True):
                raise StorageError(
                    f"{LOCK_FILE}: another process has this journal open; stop it, or name another write directory"
                )
            pool = SegmentPool(files, config, supervision)
            found = await take_inventory(files, pool)
        except BaseException:
            await lock.close()
            raise
        return cls(files, clock, config, lock, pool, found, supervision, dead, sync_failed)

    async def recover(
        self,
        start: int,
        visit: Visit,
        *,
        durable: int = 0,
        step_over: StepOver | None = None,
        before_cut: BeforeCut | None = None,
    ) -> RecoveryReport:
        """Walk the blocks from journal position `start` on (the start of a block or the journal's end; 0: the oldest)
        and call `visit(header, directory, payload)` for each that is sound, in order; `payload` is empty for data
        blocks. A torn tail is cut off, once recovery has awaited `before_cut`. Blocks below `start`, below `durable`
        (another position known to be durable, a checkpoint's) or in an indexed segment cannot be torn, only corrupt.

        Raises `CorruptJournal`, having changed nothing, when a durable block cannot be read. With `step_over`, recovery
        calls it for each such hole, in its place among the blocks, and goes on; the journal then continues in a new
        segment, so that every hole lies in a sealed one."""
        assert not self._recovered, "recover runs once"
        vouched = max([durable, *(info.end for info in self._segments if info.index_ready)])
        recovery = JournalRecovery(self._files, self._handles, self._found.segments, vouched)
        holes: list[Hole] = []

        def stepped_over(hole: Hole) -> None:
            holes.append(hole)
            assert step_over is not None, "a hole needs a caller that hears of it"
            step_over(hole)

        report, self._chain, ends = await recovery.run(
            start, visit, stepped_over if step_over is not None else None, before_cut
        )
        self._segments = [
            info._replace(sealed=True, end=position_of(info.sequence, ends[info.sequence]))
            if info.sequence in ends
            else info._replace(sealed=True)
            for info in self._segments
            if info.sequence <= sequence_of(report.end)
        ]
        if holes:
            self._next_sequence = self._segments[-1].sequence + 1
        elif ends:
            await self._continue(self._segments.pop(), offset_of(report.end))
        else:
            self._segments = []
        self.end = self.durable_end = report.end
        self._recovered = True
        self._pool.start()
        self._next.start()
        if self._config.durability is Durability.ASYNC:
            self._flusher = self._supervision.start(self._flush, "journal flush")
            self._resident.start()
        return report

    async def _continue(self, info: SegmentInfo, offset: int) -> None:
        """Go on writing in the last segment. A file that was cut behind its blocks gets its size back."""
        file = await self._files.open(segment_path(info.sequence))
        if await file.size() < info.bytes:
            await file.size(truncate_to=info.bytes)
        page = await file.read(offset // PAGE_BYTES * PAGE_BYTES, offset % PAGE_BYTES)
        self._open = OpenSegment(info.sequence, file, info.bytes, info.created_ms, offset, page)
        self._next_sequence = info.sequence + 1

    # --- writing ------------------------------------------------------------------------------------------

    async def write(self, blocks: Sequence[BlockToWrite]) -> list[BlockHeader]:
        """Append blocks, in order, and return their headers. Durable when this returns under `sync`
        durability. One call at a time. A block is at most `JournalConfig.block_bytes_max` long, all told.

        Raises `StorageBusy` when the disk has no room for a segment that is needed (nothing was written, a
        retry may succeed), `StorageFailed` when the disk failed, now or before."""
        assert self._recovered, "recover comes first"
        assert not self._writing, "one write at a time"
        self._refuse_if_failed()
        self._writing = True
        try:
            headers, stretches = await self._place(blocks)
            await self._issue(stretches)
        finally:
            self._writing = False
        if headers:
            self._chain = headers[-1].crc
        self._measures.writes += 1
        self._measures.blocks_written += len(headers)
        return headers

    async def _place(self, blocks: Sequence[BlockToWrite]) -> tuple[list[BlockHeader], list[SegmentWrite]]:
        """Give each block its place in the chain. Takes segments, writes nothing."""
        if self._aged():
            await self._seal()
        headers: list[BlockHeader] = []
        stretches: list[SegmentWrite] = []
        segment, sequence, end, chain = self._open, self._next_sequence, self.end, self._chain
        for block in blocks:
            content = content_length(block)
            length = aligned(content)
            assert length <= self._config.block_bytes_max, f"a block of {length} bytes fits into no segment"
            if segment is None or offset_of(end) + length > segment.size:
                segment = await self._take(sequence, end, chain)
                sequence, end = sequence + 1, segment.end
            if not stretches or stretches[-1].segment is not segment:
                stretches.append(SegmentWrite(segment))
            header, buffers = frame(block, end, self.durable_end, chain, content)
            stretches[-1].buffers += buffers
            stretches[-1].length += length
            headers.append(header)
            end, chain = end + length, header.crc
        return headers, stretches

    async def _take(self, sequence: int, end: int, chain: int) -> OpenSegment:
        """The next segment, for blocks that continue the chain at `end`."""
        try:
            file = await self._next.take(sequence)
        except OSError as error:
            raise self._fail(f"{segment_path(sequence)}: a new segment cannot be made", error) from error
        header = SegmentHeader(sequence, self._config.segment_bytes, end, chain, self._clock.now_ms())
        return OpenSegment.begin(header, file)

    async def _issue(self, stretches: Sequence[SegmentWrite]) -> None:
        """Write, and sync under `sync` durability. Every error here ends the journal, and so does a cancellation: the
        job may still be running."""
        sync = self._config.durability is Durability.SYNC
        for stretch in stretches:
            segment = stretch.segment
            if segment is not self._open:
                if self._open is not None:
                    await self._seal()
                self._open = segment
                self._next_sequence = segment.sequence + 1
                self._next.begun(segment.sequence)
            start, length, pages = segment.pages(stretch.buffers, stretch.length)
            began = self._clock.monotonic()
            try:
                await segment.file.write(start, pages, sync=sync)
            except OSError as error:
                raise self._fail(f"{segment_path(segment.sequence)}: a write failed", error) from error
            except BaseException as error:
                self._fail(f"{segment_path(segment.sequence)}: a write was abandoned", error)
                raise
            if sync:
                self._measures.synced(self._clock.monotonic() - began)
            else:
                self._unsynced[segment.sequence] = segment.file
                self._resident.wrote(length, self._clock.monotonic() - began)
            self._measures.bytes_written += length
            segment.advance(pages, stretch.length)
            if segment.offset >= segment.size * TAKEN_AHEAD_PART:
                self._next.expect(self._next_sequence)
            self.end = segment.end
            if sync:
                self.durable_end = self.end

    def lacks_memory(self) -> bool:
        """Whether a writer that can wait had better do so until the next segment's file is filled: a write to one that
        is not has to wait for memory, and everybody else with it."""
        segment = self._open
        lasts = segment is None or segment.offset < segment.size * WAITS_FROM_PART
        if lasts or self._next.at_hand or not self._pool.lacks_files:
            self._lacked_since = None
            return False
        now = self._clock.monotonic()
        if self._lacked_since is None:
            self._lacked_since = now
        return now - self._lacked_since < WAITS_SECONDS_MAX

    # --- sealing ------------------------------------------------------------------------------------------

    async def roll_if_due(self) -> bool:
        """Seal the segment being written to if it has grown old; the next block starts a new one. Returns whether it
        was sealed. (A write does this too, and also where a block does not fit.)"""
        if self._writing or not self._aged():
            return False
        await self._seal()
        return True

    def _aged(self) -> bool:
        segment = self._open
        return (
            segment is not None
            and segment.offset > FIRST_BLOCK
            and self._clock.now_ms() - segment.created_ms >= self._config.segment_age_seconds * 1000
        )

    async def _seal(self) -> None:
        segment = self._open
        assert segment is not None
        self._open = None
        self._segments.append(_info(segment)._replace(sealed=True))
        if segment.sequence not in self._unsynced:
            await segment.file.close()

    # --- durability ---------------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Make everything durable that was written before the call. Raises `StorageFailed`."""
        async with self._syncing:
            self._refuse_if_failed()
            target = self.end
            for sequence, file in list(self._unsynced.items()):
                complete = self._open is None or sequence != self._open.sequence
                began = self._clock.monotonic()
                try:
                    await file.sync()
                except OSError as error:
                    raise self._fail(f"{segment_path(sequence)}: a sync failed", error) from error
                self._measures.synced(self._clock.monotonic() - began)
                if complete:
                    del self._unsynced[sequence]
                    self._resident.add(sequence, file)
            self._refuse_if_failed()
            self.durable_end = max(self.durable_end, target)

    async def _flush(self) -> None:
        """Sync once per interval, until the journal fails or closes."""
        while True:
            await asyncio.sleep(self._config.flush_interval_seconds)
            if self.durable_end < self.end:
                try:
                    await self.sync()
                except StorageFailed as failure:
                    self._sync_failed(failure)
                    return

    def _fail(self, what: str, error: BaseException) -> StorageFailed:
        self._failure = f"{what}: {error or type(error).__name__}"
        log.critical("the journal is closed to writes until the next start: %s", self._failure)
        return StorageFailed(self._failure)

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)

    # --- segments and their indexes -----------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first; the last is being written to, unless it was sealed by age."""
        return [*self._segments, _info(self._open)] if self._open is not None else list(self._segments)

    def previous_end(self, sequence: int) -> int:
        """Journal position behind the last block of the segment before this one, as this one's header says; 0:
        unknown."""
        headers = (found.header for found in self._found.segments if found.sequence == sequence)
        return next((header.previous_end for header in headers if header is not None), 0)

    @property
    def durability(self) -> Durability:
        """Whether a write returns before (`async`) or after (`sync`) it is on the disk."""
        return self._config.durability

    @property
    def oldest_sequence(self) -> int:
        """Sequence of the oldest segment; all before it were recycled."""
        return self._segments[0].sequence if self._segments else sequence_of(self.end)

    @property
    def segment_bytes(self) -> int:
        """Size of a new segment."""
        return self._config.segment_bytes

    def sync_seconds(self) -> float:
        """How long syncs have taken since the start, in all."""
        return self._measures.sync_seconds.total_seconds

    def bytes_used(self) -> int:
        """Bytes of the segments' files, without the pool's."""
        sealed = sum(info.bytes for info in self._segments)
        return sealed + (self._open.size if self._open is not None else 0)

    async def read(self, position: int, length: int, *, at_once: bool = False) -> Buffer:
        """Bytes of one segment from a journal position on, fewer at the file's end; `at_once` as `ports.File` has it.

        Raises `SegmentGone` when it was recycled, even while being read; `StorageError` when it cannot be
        read."""
        sequence = sequence_of(position)
        self._require(sequence)
        async with self._handles.reading(sequence) as file:
            try:
                content = await file.read(offset_of(position), length, at_once=at_once)
            except OSError as error:
                raise StorageError(f"{segment_path(sequence)} at byte {offset_of(position)}: {error}") from error
        self._require(sequence)
        return content

    async def seal_index(self, sequence: int, rows: Rows) -> None:
        """Write a sealed segment's index: `EXTENT_ROW` rows, one per batch, sorted by (queue, offset),
        positions being byte offsets in the segment. Durable when this returns; so is the segment then.

        Raises `SegmentGone`, `StorageFailed`, or `OSError` when the index cannot be written (try again)."""
        identity = await self._to_index(sequence)
        await self._indexes.write(sequence, rows, identity)
        await self._index_is_ready(sequence)

    async def index(self, sequence: int) -> ExtentIndex:
        """A sealed segment's index, from memory or its file; made from the segment's directories and written
        where the file is missing or damaged.

        Raises `SegmentGone`, `CorruptJournal` when it cannot be made, `OSError`."""
        identity = await self._to_index(sequence)
        index = await self._indexes.get(sequence, identity, lambda: self.scan_directory(sequence))
        await self._index_is_ready(sequence)
        return index

    async def rows_with(self, sequence: int, queue_id: int) -> ExtentIndex:
        """As `index`, but perhaps only some rows of it: all those of this queue, and neighbours."""
        identity = await self._to_index(sequence)
        index = await self._indexes.rows_with(sequence, identity, queue_id, lambda: self.scan_directory(sequence))
        await self._index_is_ready(sequence)
        return index

    async def _to_index(self, sequence: int) -> int:
        """See that a sealed segment is durable, since its index will be; returns its identity."""
        info = self._require(sequence)
        assert info.sealed, "only sealed segments are indexed"
        if self.durable_end < info.end:
            await self.sync()
        return identity_of(info)

    def reads_pages(self, sequence: int) -> bool:
        """Whether a look-up reads pages of a segment's index, which memory has not as a whole."""
        return self._indexes.reads_pages(sequence)

    def may_hold(self, sequence: int, queue_id: int) -> bool:
        """Whether a sealed segment may have batches of a queue; False is certain, True is not."""
        return self._indexes.may_hold(sequence, queue_id)

    async def index_anew(self, sequences: Iterable[int]) -> None:
        """Drop the indexes of these segments, because some of their blocks have died since. Raises `OSError`."""
        for sequence in sequences:
            if self._find(sequence) is not None:
                await self._indexes.discard(sequence)

    async def scan_directory(self, sequence: int) -> Rows:
        """`EXTENT_ROW` rows of all data blocks of a sealed segment that are not dead, sorted by (queue, offset).

        Raises `SegmentGone`, `CorruptJournal`."""
        info = self._require(sequence)
        assert info.sealed, "only sealed segments are scanned"
        parts: list[Rows] = []
        async with self._handles.reading(sequence) as file:
            walk = SegmentWalk(file, sequence, info.bytes, FIRST_BLOCK, None, offset_of(info.end))
            while (block := await walk.next()) is not None:
                if block.header.kind == KIND_DATA and block.header.position not in self.dead:
                    parts.append(extent_rows(block.header, block.directory))
        self._require(sequence)
        if walk.offset != offset_of(info.end):
            raise CorruptJournal(
                f"{segment_path(sequence)} at byte {walk.offset}: {walk.fault}, but blocks follow up to byte "
                f"{offset_of(info.end)}; restore the file, or fetch its groups from a replica"
            )
        return sorted_rows(parts)

    def segment(self, sequence: int) -> SegmentInfo:
        """Raises `SegmentGone`."""
        return self._require(sequence)

    @asynccontextmanager
    async def kept(self, sequence: int) -> AsyncIterator[SegmentInfo]:
        """Keep every segment from being recycled inside the `async with`. Afterwards readers open this segment's file
        anew. Raises `SegmentGone`."""
        async with self._recycling:
            try:
                yield self._require(sequence)
            finally:
                await self._handles.forget(sequence)

    async def recycle(self, before: int) -> list[int]:
        """Give up the sealed segments with sequences below `before`; their files go back to the pool. Returns the
        sequences given up. The newest segments are kept until a segment behind them has a durable block.

        Raises `OSError` when the disk refuses; the remaining segments can be given up later."""
        recycled: list[int] = []
        async with self._recycling:
            limit = min(before, sequence_of(self.durable_end))
            while self._segments and self._segments[0].sequence < limit:
                info = self._segments.pop(0)
                try:
                    await self._indexes.remove(info.sequence)
                    await self._handles.forget(info.sequence)
                    await self._resident.leave(info.sequence)
                    await self._pool.put(info.sequence)
                except OSError:
                    self._segments.insert(0, info._replace(index_ready=False))
                    raise
                recycled.append(info.sequence)
        return recycled

    async def trim_pool(self) -> None:
        """Delete recycled files beyond those that are filled in advance anyway: the disk needs the room."""
        await self._pool.trim()

    def _find(self, sequence: int) -> int | None:
        """Index of a sealed segment in `_segments`; None: there is no such segment."""
        number = bisect_left(self._segments, sequence, key=lambda info: info.sequence)
        found = number < len(self._segments) and self._segments[number].sequence == sequence
        return number if found else None

    def _require(self, sequence: int) -> SegmentInfo:
        number = self._find(sequence)
        if number is not None:
            return self._segments[number]
        if self._open is None or self._open.sequence != sequence:
            raise SegmentGone(f"{segment_path(sequence)} was recycled")
        return _info(self._open)

    async def _index_is_ready(self, sequence: int) -> None:
        number = self._find(sequence)
        if number is None:  # recycled meanwhile
            await self._indexes.remove(sequence)
            raise SegmentGone(f"{segment_path(sequence)} was recycled")
        self._segments[number] = self._segments[number]._replace(index_ready=True)

    # --- the rest -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Make durable what was written, unless the journal has failed, and close all files. The writer must have
        stopped."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait([self._flusher])
        try:
            if self._failure is None:
                await self.sync()
        finally:
            await self._next.close()
            await self._pool.close()
            await self._handles.close()
            await self._resident.close()
            held = set(self._unsynced.values())
            if self._open is not None:
                held.add(self._open.file)
            for file in held:
                await file.close()
            await self._lock.close()

    def samples(self) -> Iterable[Sample | HistogramSample]:
        measures, pool = self._measures, self._pool
        for name, text, value in (
            ("written_bytes", "Bytes written to the journal, padding included", measures.bytes_written),
            ("blocks", "Blocks written to the journal", measures.blocks_written),
            ("writes", "Writes to the journal", measures.writes),
            ("syncs", "Successful syncs of the journal", measures.syncs),
            ("segments_taken", "Files taken for segments", pool.taken),
            ("segments_fresh", "Segments on a new file: none of the pool was ready, or memory was there", pool.fresh),
            ("segments_recycled", "Segments whose file went back to the pool", pool.recycled),
            ("segments_leased", "Segments given up while a reader had them leased", pool.leased),
            ("segments_filled", "Files filled with zeros in advance", pool.filled),
            ("segments_forgotten", "Segments whose pages were given back as memory was slow", self._resident.forgotten),
            ("index_loads", "Segment indexes read from disk", self._indexes.loads),
            ("index_hits", "Segment indexes found in memory", self._indexes.hits),
        ):
            yield Sample(f"mainstem_journal_{name}_total", "counter", text, value)
        for name, text, value in (
            ("segments", "Segments of the journal", len(self._segments) + (self._open is not None)),
            ("bytes", "Bytes of the journal's segments on disk 1", self.bytes_used()),
            ("pool_segments", "Files ready to become segments", pool.ready()),
            ("segments_ahead", "Segments taken ahead of the first write to them", len(self._next)),
            ("unsynced_bytes", "Bytes written and not yet durable", self._unsynced_bytes()),
            ("index_cache_bytes", "Memory held by segment indexes", self._indexes.held_bytes()),
            ("failed", "1 when the disk has failed and the journal refuses writes", self._failure is not None),
        ):
            yield Sample(f"mainstem_journal_{name}", "gauge", text, value)
        yield measures.sync_seconds.sample(
            "mainstem_journal_sync_seconds", "Time of a write with its sync, or of a flush under async durability"
        )

    def _unsynced_bytes(self) -> int:
        """Bytes between the durable end and the end, about: segments in between count whole."""
        end, durable = self.end, self.durable_end
        whole = (sequence_of(end) - sequence_of(durable)) * self._config.segment_bytes
        return max(0, whole + offset_of(end) - offset_of(durable)) if durable else 0


def _info(segment: OpenSegment) -> SegmentInfo:
    """The description of the segment that is being written to."""
    return SegmentInfo(
        segment.sequence,
        segment_name(segment.sequence),
        position_of(segment.sequence, FIRST_BLOCK),
        segment.end,
        False,
        segment.created_ms,
        False,
        segment.size,
    )
