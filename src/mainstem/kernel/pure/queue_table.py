"""The table of all queues: one 64-byte slot each in plain buffers, no Python object per queue.

Queues are created in partition ranges, so the map from queue id to slot is one small entry per range, not per
queue. Slots live in chunks of fixed size: growing never copies, and a slot's number stays valid for the life
of its topic. All changes happen on the event loop; vectorised readers in other threads see monotone values.

A queue id is an unsigned number of 64 bits. Cells are signed, so that of a topic numbered 2^31 or above reads as
a negative number; `find` and `column` take either.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator

import numpy
import numpy.typing

from mainstem.kernel.layout import (
    CELLS,
    CHUNK_MASK,
    CHUNK_SHIFT,
    CHUNK_SLOTS,
    COMMITTED_END,
    ENTRIES,
    FIRST_UNSTABLE,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    QUEUE_ID,
    SKIP_LINK,
    TAIL_LINK,
    Range,
)
from mainstem.model import PARTITION_BITS, queue_id_of

Rows = numpy.typing.NDArray[numpy.int64]
"""Neighbouring slots, one row of `CELLS` cells each; writing to it writes to the table."""

NUMBERS_MAX = 0xFFFFFFFF
"""Topic numbers and partitions have 32 bits."""
QUEUE_ID_MASK = (1 << 64) - 1


class QueueTable:
    """Slots of all queues of a node, found by queue id."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[Range]] = {}
        """Per topic at least one, by partition."""
        self._chunks: list[memoryview] = []
        self._free: list[tuple[int, int]] = []
        """(first slot, slots) that dropped topics left free, by slot; neighbours are joined."""
        self._slots_used = 0

    # --- ranges -----------------------------------------------------------------------------------------

    def create(self, topic_number: int, first_partition: int, count: int) -> None:
        """Add the partitions of a range that do not exist yet, with all offsets at 0."""
        assert 0 <= topic_number <= NUMBERS_MAX, topic_number
        assert 0 <= first_partition <= NUMBERS_MAX - max(count, 0), (first_partition, count)
        ranges = self._ranges.get(topic_number, [])
        known = ranges[-1].first_partition + ranges[-1].count if ranges else 0
        first = max(first_partition, known)
        missing = first_partition + count - first
        if missing <= 0:
            return
        slot = self._allocate(missing)
        ranges.append(Range(first, missing, slot))
        self._ranges[topic_number] = ranges
        queue_id = queue_id_of(topic_number, first)
        for rows in self._rows(slot, missing):
            ids = numpy.uint64(queue_id) + numpy.arange(len(rows), dtype=numpy.uint64)
            rows[:, QUEUE_ID] = ids.view(numpy.int64)
            queue_id += len(rows)

    def drop(self, topic_number: int) -> None:
        """Remove a topic's queues; their slots are zeroed and used again."""
        assert 0 <= topic_number <= NUMBERS_MAX, topic_number
        for entry in self._ranges.pop(topic_number, ()):
            for rows in self._rows(entry.first_slot, entry.count):
                rows[:] = 0
            self._release(entry.first_slot, entry.count)

    def _release(self, slot: int, count: int) -> None:
        """Give slots back, joined with free neighbours, so that topics of any size find room in what others
        left."""
        place = bisect(self._free, (slot, 0))
        if place < len(self._free) and self._free[place][0] == slot + count:
            count += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == slot:
            place -= 1
            slot, before = self._free.pop(place)
            count += before
        self._free.insert(place, (slot, count))

    def _allocate(self, count: int) -> int:
        for place, (slot, free) in enumerate(self._free):
            if free >= count:
                if free == count:
                    del self._free[place]
                else:
                    self._free[place] = (slot + count, free - count)
                return slot
        slot = self._slots_used
        while len(self._chunks) * CHUNK_SLOTS < slot + count:
            self._chunks.append(memoryview(bytearray(CHUNK_SLOTS * CELLS * 8)).cast("q"))
        self._slots_used += count
        return slot

    def _rows(self, slot: int, count: int) -> Iterator[Rows]:
        """Neighbouring slots in place, chunk by chunk."""
        end = slot + count
        while slot < end:
            upto = min(end, (slot >> CHUNK_SHIFT) + 1 << CHUNK_SHIFT)
            table = numpy.frombuffer(self._chunks[slot >> CHUNK_SHIFT], numpy.int64).reshape(-1, CELLS)
            yield table[slot & CHUNK_MASK : (slot & CHUNK_MASK) + upto - slot]
            slot = upto

    def topics(self) -> list[int]:
        """Numbers of all topics that have queues, ascending."""
        return sorted(self._ranges)

    def ranges(self, topic_number: int) -> list[Range]:
        """A topic's ranges by partition; none of an unknown topic."""
        assert 0 <= topic_number <= NUMBERS_MAX, topic_number
        return list(self._ranges.get(topic_number, ()))

    def __len__(self) -> int:
        return sum(entry.count for ranges in self._ranges.values() for entry in ranges)

    # --- one queue --------------------------------------------------------------------------------------

    def find(self, queue_id: int) -> int:
        """The queue's slot, or `NO_SLOT`. Queue ids may come as the signed numbers that cells are read as."""
        queue_id &= QUEUE_ID_MASK
        partition = queue_id & 0xFFFFFFFF
        for first, count, slot in self._ranges.get(queue_id >> PARTITION_BITS, ()):
            if first <= partition < first + count:
                return slot + partition - first
        return NO_SLOT

    def cells(self, slot: int) -> tuple[memoryview, int]:
        """The chunk (as signed 64-bit cells) that holds a slot, and the slot's first cell in it. Raises
        `IndexError` for a slot that does not exist."""
        if slot < 0:
            raise IndexError(f"slot {slot}: there is no such")
        return self._chunks[slot >> CHUNK_SHIFT], (slot & CHUNK_MASK) * CELLS

    def get(self, slot: int, cell: int) -> int:
        """A cell of a slot. Raises `IndexError` where there is none."""
        value: int = self._chunk_of(slot, cell)[(slot & CHUNK_MASK) * CELLS + cell]
        return value

    def set(self, slot: int, cell: int, value: int) -> None:
        """Raises `IndexError` where there is no such cell."""
        self._chunk_of(slot, cell)[(slot & CHUNK_MASK) * CELLS + cell] = value

    def last_stable(self, slot: int) -> int:
        """The last stable offset: the high watermark, or where the oldest open transaction begins if that is before;
        never before the log start. Raises `IndexError` for a slot that does not exist."""
        high_watermark, unstable = self.get(slot, COMMITTED_END), self.get(slot, FIRST_UNSTABLE)
        if 0 < unstable <= high_watermark:
            return max(unstable - 1, self.get(slot, LOG_START))
        return high_watermark

    def set_first_unstable(self, slot: int, offset: int) -> None:
        """Note where the oldest open transaction begins; -1: none is open. Raises `IndexError` for a slot that does
        not exist."""
        assert offset >= -1, offset
        self.set(slot, FIRST_UNSTABLE, offset + 1)

    def _chunk_of(self, slot: int, cell: int) -> memoryview:
        if slot < 0 or not 0 <= cell < CELLS:
            raise IndexError(f"slot {slot}, cell {cell}: there is no such")
        return self._chunks[slot >> CHUNK_SHIFT]

    # --- many queues ------------------------------------------------------------------------------------

    def column(self, queue_ids: numpy.ndarray, cell: int, missing: int) -> numpy.ndarray:
        """One cell for each of many queue ids (uint64, any order): int64, `missing` where there is no such
        queue. Cost: a few numpy calls per topic, nothing per queue."""
        if not 0 <= cell < CELLS:
            raise IndexError(f"cell {cell}: there is no such")
        queue_ids = queue_ids.astype(numpy.uint64, copy=False)
        values = numpy.full(len(queue_ids), missing, numpy.int64)
        topics = (queue_ids >> numpy.uint64(PARTITION_BITS)).astype(numpy.int64)
        partitions = (queue_ids & numpy.uint64(0xFFFFFFFF)).astype(numpy.int64)
        order = numpy.argsort(topics, kind="stable")
        bounds = numpy.flatnonzero(numpy.diff(topics[order])) + 1
        for rows in numpy.split(order, bounds) if len(order) else ():
            for first, count, slot in self._ranges.get(int(topics[rows[0]]), ()):
                inside = rows[(partitions[rows] >= first) & (partitions[rows] < first + count)]
                values[inside] = self._gather(partitions[inside] + (slot - first), cell)
        return values

    def _gather(self, slots: numpy.ndarray, cell: int) -> numpy.ndarray:
        values = numpy.empty(len(slots), numpy.int64)
        chunks = slots >> CHUNK_SHIFT
        for chunk in numpy.unique(chunks):
            rows = chunks == chunk
            table = numpy.frombuffer(self._chunks[int(chunk)], numpy.int64)
            values[rows] = table[(slots[rows] & CHUNK_MASK) * CELLS + cell]
        return values

    # --- checkpoint -------------------------------------------------------------------------------------

    def dump(self) -> tuple[dict[int, list[Range]], list[bytes]]:
        """Ranges by topic number, ascending, and the slots of all of them, as of now: what `load` takes. Links
        and watchers are not part of it."""
        ranges = {topic: self.ranges(topic) for topic in self.topics()}
        images = []
        for entries in ranges.values():
            for entry in entries:
                rows = numpy.concatenate(list(self._rows(entry.first_slot, entry.count)))
                rows[:, NEXT_OFFSET] = rows[:, COMMITTED_END]
                rows[:, [TAIL_LINK, SKIP_LINK, ENTRIES]] = 0
                images.append(rows.tobytes())
        return ranges, images

    def load(self, ranges: dict[int, list[Range]], images: list[bytes]) -> None:
        """Fill an empty table from a dump. Raises `ValueError` when ranges and images do not belong together."""
        assert not self._ranges, "load into an empty table"
        remaining = iter(images)
        for topic_number, entries in ranges.items():
            for first_partition, count, _slot in entries:
                image = next(remaining, b"")
                if len(image) != count * CELLS * 8:
                    raise ValueError(f"topic {topic_number}: {count} queues, and {len(image)} bytes of slots")
                self.create(topic_number, first_partition, count)
                placed = self._ranges[topic_number][-1]
                if (placed.first_partition, placed.count) != (first_partition, count):
                    raise ValueError(f"topic {topic_number}: ranges that overlap")
                saved, row = numpy.frombuffer(image, numpy.int64).reshape(-1, CELLS), 0
                for rows in self._rows(placed.first_slot, count):
                    rows[:] = saved[row : row + len(rows)]
                    row += len(rows)
