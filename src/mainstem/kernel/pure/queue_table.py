"""The table of all queues: one 64-byte slot each in plain buffers, no Python object per queue.

Queues are created in partition ranges, so the map from queue id to slot is one small entry per range, not per
queue. Slots live in chunks of fixed size: growing never copies, and a slot's number stays valid for the life
of its topic. All changes happen on the event loop; vectorised readers in other threads see monotone values.
"""

from __future__ import annotations

import numpy

from mainstem.kernel.layout import (
    CELLS,
    CHUNK_MASK,
    CHUNK_SHIFT,
    CHUNK_SLOTS,
    COMMITTED_END,
    ENTRIES,
    NEXT_OFFSET,
    NO_SLOT,
    QUEUE_ID,
    SKIP_LINK,
    TAIL_LINK,
    WATCHED,
    Range,
)
from mainstem.model import PARTITION_BITS, queue_id_of


class QueueTable:
    """Slots of all queues of a node, found by queue id."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[Range]] = {}
        self._chunks: list[memoryview] = []
        self._free: list[tuple[int, int]] = []
        """(slots, first slot) of ranges whose topics are gone."""
        self._slots_used = 0

    # --- ranges -----------------------------------------------------------------------------------------

    def create(self, topic_number: int, first_partition: int, count: int) -> None:
        """Add the partitions of a range that do not exist yet, with all offsets at 0."""
        ranges = self._ranges.setdefault(topic_number, [])
        known = max((entry.first_partition + entry.count for entry in ranges), default=0)
        first = max(first_partition, known)
        missing = first_partition + count - first
        if missing <= 0:
            return
        slot = self._allocate(missing)
        ranges.append(Range(first, missing, slot))
        for partition in range(first, first + missing):
            cells, base = self.cells(slot)
            cells[base + QUEUE_ID] = queue_id_of(topic_number, partition)
            slot += 1

    def drop(self, topic_number: int) -> None:
        """Remove a topic's queues; their slots are zeroed and used again."""
        for entry in self._ranges.pop(topic_number, ()):
            for slot in range(entry.first_slot, entry.first_slot + entry.count):
                cells, base = self.cells(slot)
                for cell in range(CELLS):
                    cells[base + cell] = 0
            self._free.append((entry.count, entry.first_slot))
        self._merge_free()

    def _merge_free(self) -> None:
        """Join neighbouring free ranges, so that topics of any size find room in what others left."""
        merged: list[tuple[int, int]] = []
        for count, slot in sorted(self._free, key=lambda free: free[1]):
            if merged and sum(merged[-1]) == slot:
                merged[-1] = (merged[-1][0] + count, merged[-1][1])
            else:
                merged.append((count, slot))
        self._free = merged

    def _allocate(self, count: int) -> int:
        for position, (free, slot) in enumerate(self._free):
            if free >= count:
                if free == count:
                    del self._free[position]
                else:
                    self._free[position] = (free - count, slot + count)
                return slot
        slot = self._slots_used
        self._slots_used += count
        while len(self._chunks) * CHUNK_SLOTS < self._slots_used:
            self._chunks.append(memoryview(bytearray(CHUNK_SLOTS * CELLS * 8)).cast("q"))
        return slot

    def topics(self) -> list[int]:
        return list(self._ranges)

    def ranges(self, topic_number: int) -> list[Range]:
        return self._ranges.get(topic_number, [])

    def __len__(self) -> int:
        return sum(entry.count for ranges in self._ranges.values() for entry in ranges)

    # --- one queue --------------------------------------------------------------------------------------

    def find(self, queue_id: int) -> int:
        """The queue's slot, or `NO_SLOT`."""
        partition = queue_id & 0xFFFFFFFF
        for first, count, slot in self._ranges.get(queue_id >> PARTITION_BITS, ()):
            if first <= partition < first + count:
                return slot + partition - first
        return NO_SLOT

    def cells(self, slot: int) -> tuple[memoryview, int]:
        """The chunk (as signed 64-bit cells) that holds a slot, and the slot's first cell in it."""
        return self._chunks[slot >> CHUNK_SHIFT], (slot & CHUNK_MASK) * CELLS

    def get(self, slot: int, cell: int) -> int:
        value: int = self._chunks[slot >> CHUNK_SHIFT][(slot & CHUNK_MASK) * CELLS + cell]
        return value

    def set(self, slot: int, cell: int, value: int) -> None:
        self._chunks[slot >> CHUNK_SHIFT][(slot & CHUNK_MASK) * CELLS + cell] = value

    # --- many queues ------------------------------------------------------------------------------------

    def column(self, queue_ids: numpy.ndarray, cell: int, missing: int) -> numpy.ndarray:
        """One cell for each of many queue ids (uint64, any order): int64, `missing` where there is no such
        queue. Cost: a few numpy calls per topic, nothing per queue."""
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
        """Ranges and the slots of all of them, as of now: what `load` takes. Links are not part of it."""
        images = []
        for ranges in self._ranges.values():
            for entry in ranges:
                rows = self._image(entry).copy()
                rows[:, NEXT_OFFSET] = rows[:, COMMITTED_END]
                rows[:, [TAIL_LINK, SKIP_LINK, WATCHED, ENTRIES]] = 0
                images.append(rows.tobytes())
        return {topic: list(ranges) for topic, ranges in self._ranges.items()}, images

    def _image(self, entry: Range) -> numpy.ndarray:
        parts = []
        slot, end = entry.first_slot, entry.first_slot + entry.count
        while slot < end:
            upto = min(end, (slot >> CHUNK_SHIFT) + 1 << CHUNK_SHIFT)
            table = numpy.frombuffer(self._chunks[slot >> CHUNK_SHIFT], numpy.int64).reshape(-1, CELLS)
            parts.append(table[slot & CHUNK_MASK : (slot & CHUNK_MASK) + upto - slot])
            slot = upto
        return numpy.concatenate(parts)

    def load(self, ranges: dict[int, list[Range]], images: list[bytes]) -> None:
        """Fill an empty table from a dump."""
        assert not self._ranges, "load into an empty table"
        remaining = iter(images)
        for topic, entries in ranges.items():
            for entry in entries:
                self.create(topic, entry.first_partition, entry.count)
                placed = self._ranges[topic][-1]
                image = numpy.frombuffer(next(remaining), numpy.int64).reshape(-1, CELLS)
                slot, end, row = placed.first_slot, placed.first_slot + placed.count, 0
                while slot < end:
                    upto = min(end, (slot >> CHUNK_SHIFT) + 1 << CHUNK_SHIFT)
                    table = numpy.frombuffer(self._chunks[slot >> CHUNK_SHIFT], numpy.int64)
                    target = table.reshape(-1, CELLS)
                    target[slot & CHUNK_MASK : (slot & CHUNK_MASK) + upto - slot] = image[
                        row : row + upto - slot
                    ]
                    row += upto - slot
                    slot = upto
