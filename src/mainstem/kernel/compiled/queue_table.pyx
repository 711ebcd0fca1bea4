"""The table of all queues; see the twin for what it promises.

    queue id -> topic's entry (one probe of a hash table) -> range -> slot number -> chunk + place

The hash table knows topics, not queues: it is as large as there are topics, and growing it visits no slot. Its
entries hold the range itself where there is only one. Empty entries have count 0, so that a lookup that ends
there fails without a check of its own.

Chunks are anonymous maps: zeroed page by page as slots are used, each slot one cache line. From the second on they
are of large pages where the machine has some, for with so many queues most batches would have to look for their
slot's page as well. They never move, because the memoryviews of cells that are handed out hold them. C pointers to entries are good until the next `create` or
`drop`, pointers to slots for the life of their topic. All changes happen on the event loop's thread; whoever lets go
of the interpreter while holding pointers does so on that thread.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsUnsignedLongLongMask
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

import contextlib
import mmap

import numpy

from mainstem.kernel.compiled.layout cimport CELLS, CHUNK_MASK, CHUNK_SHIFT, CHUNK_SLOTS, Slot
from mainstem.kernel.layout import Range

cdef enum:
    LINE_BYTES = 64      # entries start at a cache line
    PLACE_BITS_MIN = 6   # 2 KiB for a node of up to 32 topics


def use_large_pages(memory):
    """Ask for them; without is as good but for time."""
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)


@cython.final
cdef class QueueTable:
    """Slots of all queues of a node, found by queue id."""

    def __cinit__(self):
        self._memory = []
        self.use_entries(PLACE_BITS_MIN)
        self.reserve_free()

    def __dealloc__(self):
        cdef Py_ssize_t place
        if self._entries != NULL:
            for place in range((<Py_ssize_t> 1) << (32 - self._entry_shift)):
                PyMem_RawFree(self._entries[place].spans)
        PyMem_RawFree(self._entries_memory)
        PyMem_RawFree(self._free)
        PyMem_RawFree(self._chunks)

    # --- topics ---------------------------------------------------------------------------------------------

    cdef int64_t find_in_spans(self, TopicEntry *entry, uint32_t partition) noexcept nogil:
        """The slot number of a partition of a topic with several ranges."""
        cdef Py_ssize_t low = 0, high = entry.span_count, middle
        while low < high:
            middle = (low + high) >> 1
            if entry.spans[middle].first_partition <= partition:
                low = middle + 1
            else:
                high = middle
        if low and partition - entry.spans[low - 1].first_partition < entry.spans[low - 1].count:
            return entry.spans[low - 1].first_slot + (partition - entry.spans[low - 1].first_partition)
        return -1

    cdef int use_entries(self, uint32_t place_bits) except -1:
        """Move all entries to a table of 2^`place_bits` places."""
        cdef TopicEntry *old = self._entries
        cdef void *old_memory = self._entries_memory
        cdef Py_ssize_t old_places = (<Py_ssize_t> 1) << (32 - self._entry_shift) if old != NULL else 0, place
        cdef void *memory = PyMem_RawCalloc(((<size_t> 1) << place_bits) * sizeof(TopicEntry) + LINE_BYTES, 1)
        if memory == NULL:
            raise MemoryError(f"no memory for a table of {1 << place_bits} topics")
        self._entries_memory = memory
        self._entries = <TopicEntry *> ((<size_t> memory + LINE_BYTES) & ~(<size_t> LINE_BYTES - 1))
        self._entry_shift = 32 - place_bits
        for place in range(old_places):
            if old[place].span_count:
                self.place_of(old[place].topic_number)[0] = old[place]
        PyMem_RawFree(old_memory)
        return 0

    cdef int add_span(self, uint32_t topic_number, Span span) except -1:
        """Enter a range, the last of its topic. Either all of it happens or nothing."""
        cdef TopicEntry *entry
        cdef Span *spans
        if 2 * (self._topic_count + 1) > (<Py_ssize_t> 1) << (32 - self._entry_shift):
            self.use_entries(32 - self._entry_shift + 1)
        entry = self.place_of(topic_number)
        if not entry.span_count:
            entry.topic_number = topic_number
            entry.only = span
            self._topic_count += 1
        else:
            spans = <Span *> PyMem_RawRealloc(entry.spans, (entry.span_count + 1) * sizeof(Span))
            if spans == NULL:
                raise MemoryError(f"no memory for range {entry.span_count} of topic {topic_number}")
            if entry.spans == NULL:
                spans[0] = entry.only
                memset(&entry.only, 0, sizeof(Span))
            spans[entry.span_count] = span
            entry.spans = spans
        entry.span_count += 1
        self._span_count += 1
        return 0

    cdef void remove_entry(self, TopicEntry *entry) noexcept nogil:
        """Empty a place, and move back whoever stands behind it only because it was taken."""
        cdef uint32_t mask = (<uint32_t> 0xFFFFFFFF) >> self._entry_shift
        cdef uint32_t hole = <uint32_t> (entry - self._entries), place = hole, home
        self._topic_count -= 1
        self._span_count -= entry.span_count
        PyMem_RawFree(entry.spans)
        while True:
            place = (place + 1) & mask
            if not self._entries[place].span_count:
                break
            home = (self._entries[place].topic_number * <uint32_t> 2654435769) >> self._entry_shift
            if ((place - home) & mask) >= ((place - hole) & mask):
                self._entries[hole] = self._entries[place]
                hole = place
        memset(self._entries + hole, 0, sizeof(TopicEntry))

    # --- slots ----------------------------------------------------------------------------------------------

    cdef int reserve_free(self) except -1:
        """Room for the free ranges there can be once one more range is in use: one before, between and behind
        each. With it giving back cannot fail."""
        cdef Py_ssize_t capacity
        cdef FreeSlots *free
        if self._span_count + 2 > self._free_capacity:
            capacity = max(16, 2 * (self._span_count + 2))
            free = <FreeSlots *> PyMem_RawRealloc(self._free, capacity * sizeof(FreeSlots))
            if free == NULL:
                raise MemoryError(f"no memory for {capacity} free ranges")
            self._free = free
            self._free_capacity = capacity
        return 0

    cdef void release(self, int64_t first_slot, int64_t count) noexcept nogil:
        """Zero slots and give them back, joined with free neighbours."""
        cdef Py_ssize_t low = 0, high = self._free_count, middle
        cdef int64_t slot = first_slot, end = first_slot + count, run
        cdef FreeSlots *free = self._free
        cdef bint joins_before, joins_behind
        while slot < end:
            run = self.stretch(slot, end)
            memset(self.slot_at(slot), 0, run * sizeof(Slot))
            slot += run
        while low < high:
            middle = (low + high) >> 1
            if free[middle].first_slot < first_slot:
                low = middle + 1
            else:
                high = middle
        joins_before = low > 0 and free[low - 1].first_slot + free[low - 1].count == first_slot
        joins_behind = low < self._free_count and free[low].first_slot == end
        if joins_before and joins_behind:
            free[low - 1].count += count + free[low].count
            self._free_count -= 1
            memmove(free + low, free + low + 1, (self._free_count - low) * sizeof(FreeSlots))
        elif joins_before:
            free[low - 1].count += count
        elif joins_behind:
            free[low].first_slot = first_slot
            free[low].count += count
        else:
            memmove(free + low + 1, free + low, (self._free_count - low) * sizeof(FreeSlots))
            free[low].first_slot = first_slot
            free[low].count = count
            self._free_count += 1

    cdef int64_t allocate(self, int64_t count) except -1:
        """The first of `count` neighbouring zeroed slots: where they fit among the free ones, else behind all."""
        cdef Py_ssize_t place
        cdef int64_t slot
        cdef Slot **chunks
        cdef Py_buffer view
        for place in range(self._free_count):
            if self._free[place].count >= count:
                slot = self._free[place].first_slot
                self._free[place].first_slot += count
                self._free[place].count -= count
                if not self._free[place].count:
                    self._free_count -= 1
                    memmove(self._free + place, self._free + place + 1, (self._free_count - place) * sizeof(FreeSlots))
                return slot
        while (<int64_t> self._chunk_count) * CHUNK_SLOTS < self._slots_used + count:
            try:
                memory = mmap.mmap(-1, CHUNK_SLOTS * sizeof(Slot), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise MemoryError(f"no memory for chunk {self._chunk_count} of slots: {error}") from error
            if self._chunk_count:
                use_large_pages(memory)
            PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
            PyBuffer_Release(&view)
            chunks = <Slot **> PyMem_RawRealloc(self._chunks, (self._chunk_count + 1) * sizeof(Slot *))
            if chunks == NULL:
                raise MemoryError(f"no memory for {self._chunk_count + 1} chunks of slots")
            self._chunks = chunks
            self._memory.append(memoryview(memory).cast("q"))
            chunks[self._chunk_count] = <Slot *> view.buf
            self._chunk_count += 1
        slot = self._slots_used
        self._slots_used += count
        return slot

    cdef int64_t stretch(self, int64_t slot, int64_t end) noexcept nogil:
        """How many of the slots from `slot` up to `end` lie side by side, in one chunk."""
        return min(end, ((slot >> CHUNK_SHIFT) + 1) << CHUNK_SHIFT) - slot

    # --- ranges ---------------------------------------------------------------------------------------------

    def create(self, int64_t topic_number, int64_t first_partition, int64_t count):
        """Add the partitions of a range that do not exist yet, with all offsets at 0."""
        cdef TopicEntry *entry
        cdef Span span
        cdef Span last
        cdef int64_t first = first_partition, place
        cdef uint64_t queue_id
        assert 0 <= topic_number <= 0xFFFFFFFF, topic_number
        assert 0 <= first_partition <= <int64_t> 0xFFFFFFFF - max(count, 0), (first_partition, count)
        entry = self.place_of(<uint32_t> topic_number)
        if entry.span_count:
            last = entry.only if entry.spans == NULL else entry.spans[entry.span_count - 1]
            first = max(first, <int64_t> last.first_partition + last.count)
        count = first_partition + count - first
        if count <= 0:
            return
        self.reserve_free()
        span.first_partition = <uint32_t> first
        span.count = <uint32_t> count
        span.first_slot = self.allocate(count)
        try:
            self.add_span(<uint32_t> topic_number, span)
        except MemoryError:
            self.release(span.first_slot, count)
            raise
        self._queue_count += count
        queue_id = (<uint64_t> topic_number) << 32 | <uint64_t> first
        for place in range(count):
            self.slot_at(span.first_slot + place).queue_id = queue_id + <uint64_t> place

    def drop(self, int64_t topic_number):
        """Remove a topic's queues; their slots are zeroed and used again."""
        cdef TopicEntry *entry
        cdef Span *spans
        cdef Py_ssize_t place
        assert 0 <= topic_number <= 0xFFFFFFFF, topic_number
        entry = self.place_of(<uint32_t> topic_number)
        if not entry.span_count:
            return
        spans = entry.spans if entry.spans != NULL else &entry.only
        for place in range(entry.span_count):
            self._queue_count -= spans[place].count
            self.release(spans[place].first_slot, spans[place].count)
        self.remove_entry(entry)

    def topics(self):
        """Numbers of all topics that have queues, ascending."""
        cdef Py_ssize_t place
        numbers = []
        for place in range((<Py_ssize_t> 1) << (32 - self._entry_shift)):
            if self._entries[place].span_count:
                numbers.append(self._entries[place].topic_number)
        numbers.sort()
        return numbers

    def ranges(self, int64_t topic_number):
        """A topic's ranges by partition; none of an unknown topic."""
        assert 0 <= topic_number <= 0xFFFFFFFF, topic_number
        return self.spans_of(self.place_of(<uint32_t> topic_number))

    cdef list spans_of(self, TopicEntry *entry):
        cdef Span *spans = entry.spans if entry.spans != NULL else &entry.only
        cdef Py_ssize_t place
        return [
            Range(spans[place].first_partition, spans[place].count, spans[place].first_slot)
            for place in range(entry.span_count)
        ]

    def __len__(self):
        return self._queue_count

    # --- one queue ------------------------------------------------------------------------------------------

    def find(self, queue_id):
        """The queue's slot, or `NO_SLOT`. Queue ids may come as the signed numbers that cells are read as."""
        return self.find_number(PyLong_AsUnsignedLongLongMask(queue_id))

    def cells(self, int64_t slot):
        """The chunk (as signed 64-bit cells) that holds a slot, and the slot's first cell in it. Raises
        `IndexError` for a slot that does not exist."""
        self.cell_at(slot, 0)
        return self._memory[slot >> CHUNK_SHIFT], (slot & CHUNK_MASK) * CELLS

    def get(self, int64_t slot, int64_t cell):
        return self.cell_at(slot, cell)[0]

    def set(self, int64_t slot, int64_t cell, int64_t value):
        self.cell_at(slot, cell)[0] = value

    def last_stable(self, int64_t slot):
        """The last stable offset: the high watermark, or where the oldest open transaction begins if that is before; never
        before the log start."""
        self.cell_at(slot, 0)
        return stable_end(self.slot_at(slot))

    def set_first_unstable(self, int64_t slot, int64_t offset):
        """Note where the oldest open transaction begins; -1: none is open."""
        assert offset >= -1, offset
        self.cell_at(slot, 0)
        self.slot_at(slot).first_unstable = offset + 1

    cdef int64_t *cell_at(self, int64_t slot, int64_t cell) except NULL:
        if not 0 <= slot < (<int64_t> self._chunk_count) << CHUNK_SHIFT or not 0 <= cell < CELLS:
            raise IndexError(f"slot {slot}, cell {cell}: there is no such")
        return <int64_t *> self.slot_at(slot) + cell

    # --- many queues ----------------------------------------------------------------------------------------

    def column(self, queue_ids, int64_t cell, int64_t missing):
        """One cell for each of many queue ids (uint64, any order): int64, `missing` where there is no such
        queue."""
        cdef Py_buffer wanted, found
        cdef const uint64_t *numbers
        cdef int64_t *cells
        cdef Slot *slot
        cdef Py_ssize_t place
        if not 0 <= cell < CELLS:
            raise IndexError(f"cell {cell}: there is no such")
        contiguous = numpy.ascontiguousarray(queue_ids, numpy.uint64)
        values = numpy.empty(len(contiguous), numpy.int64)
        PyObject_GetBuffer(contiguous, &wanted, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(values, &found, PyBUF_WRITABLE)
            try:
                numbers = <const uint64_t *> wanted.buf
                cells = <int64_t *> found.buf
                for place in range(found.len // <Py_ssize_t> sizeof(int64_t)):
                    slot = self.find_slot(numbers[place])
                    cells[place] = (<int64_t *> slot)[cell] if slot != NULL else missing
            finally:
                PyBuffer_Release(&found)
        finally:
            PyBuffer_Release(&wanted)
        return values

    # --- checkpoint -----------------------------------------------------------------------------------------

    def dump(self):
        """Ranges by topic number, ascending, and the slots of all of them, as of now: what `load` takes. Links
        and watchers are not part of it."""
        cdef TopicEntry *entry
        cdef Span *spans
        cdef Py_ssize_t place
        ranges, images = {}, []
        for topic_number in self.topics():
            entry = self.place_of(topic_number)
            spans = entry.spans if entry.spans != NULL else &entry.only
            ranges[topic_number] = self.spans_of(entry)
            for place in range(entry.span_count):
                images.append(self.image(spans[place]))
        return ranges, images

    cdef bytes image(self, Span span):
        cdef bytes image = PyBytes_FromStringAndSize(NULL, span.count * <Py_ssize_t> sizeof(Slot))
        cdef Slot *copies = <Slot *> PyBytes_AS_STRING(image)
        cdef int64_t slot = span.first_slot, end = span.first_slot + span.count, run
        cdef Py_ssize_t row
        while slot < end:
            run = self.stretch(slot, end)
            memcpy(copies + (slot - span.first_slot), self.slot_at(slot), run * sizeof(Slot))
            slot += run
        for row in range(span.count):
            copies[row].next_offset = copies[row].committed_end
            copies[row].tail_link = copies[row].skip_link = 0
            copies[row].entries = 0
        return image

    def load(self, ranges, images):
        """Fill an empty table from a dump. Raises `ValueError` when ranges and images do not belong together."""
        cdef Span span
        cdef TopicEntry *entry
        cdef int64_t slot, end, run
        cdef const Slot *rows
        assert not self._topic_count, "load into an empty table"
        remaining = iter(images)
        for topic_number, entries in ranges.items():
            for first_partition, count, _slot in entries:
                image = next(remaining, b"")
                if not isinstance(image, bytes) or len(image) != count * <Py_ssize_t> sizeof(Slot):
                    raise ValueError(f"topic {topic_number}: {count} queues, and {len(image)} bytes of slots")
                self.create(topic_number, first_partition, count)
                entry = self.place_of(topic_number)
                span = entry.only if entry.spans == NULL else entry.spans[entry.span_count - 1]
                if span.first_partition != first_partition or span.count != count:
                    raise ValueError(f"topic {topic_number}: ranges that overlap")
                rows = <const Slot *> PyBytes_AS_STRING(image)
                slot, end = span.first_slot, span.first_slot + span.count
                while slot < end:
                    run = self.stretch(slot, end)
                    memcpy(self.slot_at(slot), rows + (slot - span.first_slot), run * sizeof(Slot))
                    slot += run
