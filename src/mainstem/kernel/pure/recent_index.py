"""The recent index finds the newest batches: it indexes committed blocks in memory, and holds the write cache of their
payloads.

Each block brings its own directory; indexing it adds one 64-bit link per row to the queue's entry before, and to every
64th entry of a queue one more link to the entry 64 before, so that an old offset is found in few steps without any
object per queue. Freeing a block frees its part of the index: links into a freed block are dead ends, and batches
behind them are found in the journal's segment indexes or the queue store.

The write cache is the payloads of these blocks, oldest given up first. A view handed to a reader keeps its
payload alive on its own, so giving up never waits for a reader. A block whose payload is given up stays
indexed (reads go to its place in the journal) until its segment has an index of its own.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from mainstem.kernel.layout import (
    COMMITTED_END,
    ENTRIES,
    NO_SLOT,
    ONE_ENTRY,
    ROW_BITS,
    ROW_MASK,
    SKIP_EVERY,
    SKIP_LINK,
    TAIL_LINK,
)
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.model import Buffer


class IndexedBatch(NamedTuple):
    """One batch: its offsets, and its place in its block's payload."""

    block: IndexedBlock
    base_offset: int
    last_offset: int
    position: int
    length: int
    max_timestamp: int
    leader_epoch: int


class IndexedBlock:
    """A committed data block: header, directory, links, and the payload while it is cached."""

    __slots__ = ("cells", "header", "links", "payload", "serial", "skips")

    def __init__(self, serial: int, header: Any, directory: Buffer, payload: memoryview | None):
        self.serial = serial
        self.header = header
        self.cells = memoryview(directory).cast("q")
        self.payload = payload
        self.links = array("Q", bytes(8 * header.batch_count))
        self.skips: dict[int, int] = {}

    def rows_copied(self) -> bytes:
        """The directory's bytes, one `DIRECTORY_ROW` per batch."""
        return bytes(self.cells[: 8 * self.header.batch_count])

    def entry(self, row: int) -> IndexedBatch:
        cells, cell = self.cells, row * 8
        base_offset = cells[cell + 1]
        place = cells[cell + 4]
        return IndexedBatch(
            self,
            base_offset,
            base_offset + (cells[cell + 5] & 0xFFFFFFFF),
            place & 0xFFFFFFFF,
            place >> 32 & 0xFFFFFFFF,
            cells[cell + 2],
            cells[cell + 7] & 0xFFFFFFFF,
        )


class RecentIndex:
    """Entries of all queues over the newest committed blocks."""

    def __init__(self, table: QueueTable, cache_bytes_max: int) -> None:
        self._table = table
        self._blocks: dict[int, IndexedBlock] = {}
        self._order: deque[IndexedBlock] = deque()
        self._cached: deque[IndexedBlock] = deque()
        self._serial = 0
        self._cache_bytes_max = cache_bytes_max
        self._released_to = 0
        self.cached_bytes = 0

    # --- filling ----------------------------------------------------------------------------------------

    def add(self, header: Any, directory: Buffer, payload: memoryview | None) -> None:
        """Index a data block; `payload` None when only the journal has it. Rows of queues that do not exist
        (deleted since) are left out."""
        self._serial += 1
        block = IndexedBlock(self._serial, header, directory, payload)
        self._blocks[block.serial] = block
        self._order.append(block)
        table, cells, links = self._table, block.cells, block.links
        prefix = block.serial << ROW_BITS
        for row in range(header.batch_count):
            slot = table.find(cells[row * 8])
            if slot == NO_SLOT:
                continue
            queue, base = table.cells(slot)
            links[row] = queue[base + TAIL_LINK]
            queue[base + TAIL_LINK] = prefix | row
            entries = queue[base + ENTRIES]
            queue[base + ENTRIES] = entries + ONE_ENTRY
            if entries // ONE_ENTRY % SKIP_EVERY == 0:
                block.skips[row] = queue[base + SKIP_LINK]
                queue[base + SKIP_LINK] = prefix | row
        if payload is not None and self._cache_bytes_max:
            self._cached.append(block)
            self.cached_bytes += len(payload)
            while self.cached_bytes > self._cache_bytes_max:
                oldest = self._cached.popleft()
                assert oldest.payload is not None
                self.cached_bytes -= len(oldest.payload)
                oldest.payload = None
        else:
            block.payload = None
        self._release()

    def release(self, journal_position: int) -> None:
        """Blocks that end at or before a journal position are found by other means: free them, those still
        cached as soon as they leave the cache."""
        self._released_to = max(self._released_to, journal_position)
        self._release()

    def _release(self) -> None:
        order = self._order
        while order and order[0].payload is None and order[0].header.end <= self._released_to:
            del self._blocks[order.popleft().serial]

    def first_position(self) -> int | None:
        """Journal position of the oldest indexed block; None when there is none."""
        return self._order[0].header.position if self._order else None

    def blocks(self) -> Iterator[IndexedBlock]:
        """All indexed blocks, oldest first."""
        return iter(tuple(self._order))

    def blocks_between(self, start: int, stop: int) -> list[IndexedBlock]:
        """The indexed blocks that end behind journal position `start` and not behind `stop`, oldest first."""
        return [block for block in self._order if start < block.header.end <= stop]

    def __len__(self) -> int:
        return len(self._blocks)

    # --- looking up -------------------------------------------------------------------------------------

    def window(self, slot: int, offset: int) -> list[IndexedBatch]:
        """Entries of a queue in offset order, from the one that holds `offset` or, failing that, the oldest
        entry known behind it, up to a gap; at most about `SKIP_EVERY` of them. Empty when nothing at or behind
        `offset` is indexed. The caller checks that the first entry does not start behind a gap it cares about: the
        blocks that a snapshot stands for are never indexed, and those before and behind it are."""
        blocks = self._blocks
        link = self._table.get(slot, TAIL_LINK)
        skip = self._table.get(slot, SKIP_LINK)
        while skip:
            block = blocks.get(skip >> ROW_BITS)
            if block is None or block.cells[(skip & ROW_MASK) * 8 + 1] <= offset:
                break
            link = skip
            skip = block.skips[skip & ROW_MASK]
        entries: list[IndexedBatch] = []
        while link:
            block = blocks.get(link >> ROW_BITS)
            if block is None:
                break
            row = link & ROW_MASK
            entry = block.entry(row)
            if entry.last_offset < offset:
                break
            entries.append(entry)
            if entry.base_offset <= offset:
                break
            link = block.links[row]
        entries.reverse()
        for number, (entry, behind) in enumerate(pairwise(entries), 1):
            if behind.base_offset != entry.last_offset + 1:
                return entries[:number]
        return entries

    def read(self, slot: int, offset: int, budget: int, whole_first: bool) -> tuple[list[memoryview], int] | None:
        """Cached batches of a queue up to its committed end, from the one that holds `offset` on: views of their
        payloads (neighbours in one view), about `budget` bytes in all, and the offset behind the last. With
        `whole_first` the first batch comes back even when it is larger. None when the cache does not hold
        `offset`; no views when nothing fits."""
        stretches: list[memoryview] = []
        source: memoryview | None = None
        start = stop = 0
        position = offset
        end = self._table.get(slot, COMMITTED_END)
        first = full = True
        while position < end and full:
            entries = self.window(slot, position)
            if not entries or entries[0].base_offset > position:
                break
            full = False
            for entry in entries:
                payload = entry.block.payload
                if payload is None or (entry.length > budget and not (first and whole_first)):
                    if first and payload is None:
                        return None
                    break
                if payload is not source or entry.position != stop:
                    if source is not None:
                        stretches.append(source[start:stop])
                    source, start = payload, entry.position
                stop = entry.position + entry.length
                budget -= entry.length
                position = entry.last_offset + 1
                first = False
            else:
                full = True
        if first and full:
            return None
        if source is not None:
            stretches.append(source[start:stop])
        return stretches, position

    def oldest(self, slot: int) -> IndexedBatch | None:
        """The oldest indexed entry of a queue."""
        window = self.window(slot, -1)
        return window[0] if window else None
