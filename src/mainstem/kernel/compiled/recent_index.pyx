"""Where the newest batches are; see the twin.

Blocks are Python objects, one each, found by their serial in a ring of pointers; everything per batch is arrays: the
block's directory, read in place, and one link per row.
"""

from collections import deque

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mainstem.kernel.compiled.block cimport Chunk
from mainstem.kernel.compiled.bytes_io cimport ms_give, ms_take
from mainstem.kernel.compiled.layout cimport ONE_ENTRY, ROW_BITS, ROW_MASK, SKIP_EVERY, Row, Slot
from mainstem.kernel.compiled.queue_table cimport QueueTable
from mainstem.kernel.pure.recent_index import IndexedBatch

cdef extern from "Python.h":
    PyObject **_PyObject_GetDictPtr(object instance)
    PyObject *PyMemoryView_GET_BASE(object view)
    void PyObject_GC_UnTrack(void *instance)
    PyObject *PyTuple_GET_ITEM(object values, Py_ssize_t number)

cdef enum:
    RING_START = 64
    WALK_START = 160
    AHEAD = 8                # rows whose slots are asked for before they are needed: a power of two


@cython.no_gc    # here, as a declaration in the .pxd file has no effect
cdef class IndexedBlock:
    """A committed data block: header, directory, links, and the payload while it is cached.

    There is one for each of some thousand commits a second, and none is ever part of a cycle: neither the block, nor
    its header, which is numbers, nor its directory, nor its payload in a chunk is visited by the garbage collector."""

    def __init__(self, serial, header, directory, payload):
        cdef Py_ssize_t rows
        self.serial = serial
        self.header = header
        self.end = header.end
        rows = header.batch_count
        if not 0 <= rows <= ROW_MASK:
            raise ValueError(f"a block of {rows} batches")
        hold(directory, &self.directory)
        if self.directory.len < rows * <Py_ssize_t> sizeof(Row):
            raise ValueError(f"a directory of {self.directory.len} bytes, and {rows} batches")
        self.rows = <Row *> self.directory.buf
        untrack_numbers(header)
        self.row_count = rows
        self.links = <uint64_t *> ms_take(rows * sizeof(uint64_t))
        if self.links == NULL:
            raise MemoryError(f"no memory for the links of {rows} batches")
        if payload is not None:
            self.hold_payload(memoryview(payload))

    def __dealloc__(self):
        PyBuffer_Release(&self.directory)
        ms_give(self.links, self.row_count * sizeof(uint64_t))
        PyMem_RawFree(self.skip_rows)
        PyMem_RawFree(self.skip_links)

    cdef int hold_payload(self, object view) except -1:
        """Hold what the view lies in where that stays in its place; else the view, which sees to it."""
        cdef Py_buffer *payload = PyMemoryView_GET_BUFFER(view)
        cdef PyObject *base = PyMemoryView_GET_BASE(view)
        self.cached = view
        self.payload_bytes = payload.len
        self.bytes = <const uint8_t *> payload.buf
        if base != NULL and payload.itemsize == 1 and PyBuffer_IsContiguous(payload, b"C"):
            if type(<object> base) is Chunk or PyBytes_CheckExact(<object> base):
                self.cached = <object> base
        return 0

    cdef object view(self, Py_ssize_t position, Py_ssize_t length):
        """A view of part of the cached payload."""
        whole = memoryview(self.cached)
        position += self.bytes - <const uint8_t *> PyMemoryView_GET_BUFFER(whole).buf
        return whole[position : position + length]

    cdef void release_payload(self):
        self.cached = None
        self.bytes = NULL

    cdef int add_skip(self, uint32_t row, uint64_t link) except -1:
        cdef uint32_t *rows
        cdef uint64_t *links
        cdef Py_ssize_t capacity
        if self.skip_count & (self.skip_count - 1) == 0:     # full at powers of two
            capacity = 2 * self.skip_count if self.skip_count else 1
            rows = <uint32_t *> PyMem_RawRealloc(self.skip_rows, capacity * sizeof(uint32_t))
            if rows == NULL:
                raise MemoryError("no memory for skip links")
            self.skip_rows = rows
            links = <uint64_t *> PyMem_RawRealloc(self.skip_links, capacity * sizeof(uint64_t))
            if links == NULL:
                raise MemoryError("no memory for skip links")
            self.skip_links = links
        self.skip_rows[self.skip_count] = row
        self.skip_links[self.skip_count] = link
        self.skip_count += 1
        return 0

    cdef uint64_t skip_at(self, uint32_t row) noexcept nogil:
        """The skip link of a row that carries one: rows were added in ascending order."""
        cdef Py_ssize_t low = 0, high = self.skip_count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.skip_rows[middle] < row:
                low = middle + 1
            else:
                high = middle
        return self.skip_links[low] if low < self.skip_count and self.skip_rows[low] == row else 0

    @property
    def payload(self):
        """A view of its own while the payload is cached, else None: nobody else can release the one `bytes` needs."""
        return self.view(0, self.payload_bytes) if self.bytes != NULL else None

    @property
    def cells(self):
        """The directory as signed 64-bit cells."""
        return memoryview(<object> self.directory.obj).cast("B")[: self.row_count * sizeof(Row)].cast("q")

    def rows_copied(self):
        """The directory's bytes, one `DIRECTORY_ROW` per batch: without an object that the garbage collector visits."""
        return PyBytes_FromStringAndSize(<const char *> self.rows, self.row_count * sizeof(Row))

    def entry(self, Py_ssize_t row):
        """The entry of one row."""
        cdef Row *found
        if not 0 <= row < self.row_count:
            raise IndexError(row)
        found = &self.rows[row]
        return IndexedBatch(
            self,
            found.base_offset,
            found.base_offset + found.last_offset_delta,
            found.position,
            found.length,
            found.max_timestamp,
            found.leader_epoch,
        )


cdef int hold(object memory, Py_buffer *held) except -1:
    """Hold the bytes of `memory`; of a view of the whole of something, without keeping the view."""
    cdef PyObject *base = PyMemoryView_GET_BASE(memory) if PyMemoryView_Check(memory) else NULL
    cdef Py_buffer *view
    if base != NULL:
        PyObject_GetBuffer(<object> base, held, PyBUF_SIMPLE)
        view = PyMemoryView_GET_BUFFER(memory)
        if held.buf == view.buf and held.len == view.len:
            return 0
        PyBuffer_Release(held)
    PyObject_GetBuffer(memory, held, PyBUF_SIMPLE)
    return 0


cdef int untrack_numbers(object header) except -1:
    """Take a tuple of nothing but numbers from the garbage collector, which untracks plain tuples only."""
    cdef Py_ssize_t number
    if not PyTuple_Check(header) or _PyObject_GetDictPtr(header) != NULL:
        return 0
    for number in range(PyTuple_GET_SIZE(header)):
        if not PyLong_CheckExact(<object> PyTuple_GET_ITEM(header, number)):
            return 0
    PyObject_GC_UnTrack(<void *> header)
    return 0


cdef class RecentIndex:
    """Entries of all queues over the newest committed blocks."""

    def __cinit__(self, QueueTable table, cache_bytes_max):
        self._table = table
        self._order = deque()
        self._cached = deque()
        self._cache_bytes_max = cache_bytes_max
        self._first_serial = 1
        self._ring = <PyObject **> PyMem_RawCalloc(RING_START, sizeof(PyObject *))
        self._walk = <uint64_t *> PyMem_RawMalloc(WALK_START * sizeof(uint64_t))
        if self._ring == NULL or self._walk == NULL:
            raise MemoryError("no memory for the index of blocks")
        self._ring_mask = RING_START - 1
        self._walk_capacity = WALK_START

    def __dealloc__(self):
        PyMem_RawFree(self._ring)
        PyMem_RawFree(self._walk)

    # --- filling ----------------------------------------------------------------------------------------

    cdef int grow_ring(self) except -1:
        cdef uint64_t size = 2 * (self._ring_mask + 1), serial
        cdef PyObject **ring = <PyObject **> PyMem_RawCalloc(size, sizeof(PyObject *))
        if ring == NULL:
            raise MemoryError("no memory for the index of blocks")
        for serial in range(self._first_serial, self._serial + 1):
            ring[serial & (size - 1)] = self._ring[serial & self._ring_mask]
        PyMem_RawFree(self._ring)
        self._ring = ring
        self._ring_mask = size - 1
        return 0

    def add(self, header, directory, payload):
        """Index a data block; `payload` None when only the journal has it. Rows of queues that do not exist (deleted
        since) are left out."""
        cdef IndexedBlock block, oldest
        cdef QueueTable table = self._table
        cdef Row *rows
        cdef Slot *slot
        cdef Slot *ahead[AHEAD]
        cdef Py_ssize_t row, count
        cdef uint64_t *links
        cdef uint64_t serial, own
        if self._serial + 1 - self._first_serial > self._ring_mask:
            self.grow_ring()
        block = IndexedBlock(self._serial + 1, header, directory, payload)
        self._serial += 1
        self._order.append(block)
        self._ring[self._serial & self._ring_mask] = <PyObject *> block
        rows, count, links = block.rows, block.row_count, block.links
        serial = block.serial << ROW_BITS
        for row in range(min(count, <Py_ssize_t> AHEAD)):
            ahead[row] = table.ask_for(rows[row].queue_id)
        for row in range(count):
            slot = ahead[row & AHEAD - 1]
            if row < count - AHEAD:
                ahead[row & AHEAD - 1] = table.ask_for(rows[row + AHEAD].queue_id)
            if slot == NULL:
                links[row] = 0
                continue
            links[row] = slot.tail_link
            own = serial | <uint64_t> row
            slot.tail_link = own
            if <uint64_t> slot.entries // ONE_ENTRY % SKIP_EVERY == 0:
                block.add_skip(row, slot.skip_link)
                slot.skip_link = own
            slot.entries += ONE_ENTRY
        if payload is not None and self._cache_bytes_max:
            self._cached.append(block)
            self.cached_bytes += block.payload_bytes
            while self.cached_bytes > self._cache_bytes_max:
                oldest = self._cached.popleft()
                self.cached_bytes -= oldest.payload_bytes
                oldest.release_payload()
        else:
            block.release_payload()
        self._release()

    def release(self, journal_position):
        """Blocks that end at or before a journal position are found by other means: free them, those still cached as
        soon as they leave the cache."""
        self._released_to = max(self._released_to, <int64_t> journal_position)
        self._release()

    def _release(self):
        cdef IndexedBlock block
        while self._order:
            block = self._order[0]
            if block.bytes != NULL or block.end > self._released_to:
                return
            self._ring[block.serial & self._ring_mask] = NULL
            self._first_serial = block.serial + 1
            self._order.popleft()

    def first_position(self):
        """Journal position of the oldest indexed block; None when there is none."""
        return self._order[0].header.position if self._order else None

    def blocks(self):
        """All indexed blocks, oldest first."""
        return iter(tuple(self._order))

    def blocks_between(self, int64_t start, int64_t stop):
        """The indexed blocks that end behind journal position `start` and not behind `stop`, oldest first."""
        cdef IndexedBlock block
        found = []
        for block in self._order:
            if start < block.end <= stop:
                found.append(block)
        return found

    def __len__(self):
        return len(self._order)

    # --- looking up -------------------------------------------------------------------------------------

    cdef IndexedBlock block_of(self, uint64_t link):
        """The block a link leads to, None when it was freed."""
        cdef uint64_t serial = link >> ROW_BITS
        if serial < self._first_serial or serial > self._serial:
            return None
        return <IndexedBlock> self._ring[serial & self._ring_mask]

    cdef Py_ssize_t walk(self, const Slot *slot, int64_t offset) except -1:
        """Fill `_walk` with links from newest to oldest, down to the entry that holds `offset`; how many."""
        cdef uint64_t link = slot.tail_link, skip = slot.skip_link
        cdef IndexedBlock block
        self._passed_count = 0
        while skip:
            block = self.block_of(skip)
            if block is None or block.rows[skip & ROW_MASK].base_offset <= offset:
                break
            link = skip
            self._passed[self._passed_count % PASSED] = skip
            self._passed_count += 1
            skip = block.skip_at(skip & ROW_MASK)
        return self.walk_back(link, offset)

    cdef Py_ssize_t walk_back(self, uint64_t link, int64_t offset) except -1:
        """The same from an entry behind `offset` that is known."""
        cdef uint64_t *grown
        cdef Py_ssize_t count = 0
        cdef IndexedBlock block
        cdef Row *row
        while link:
            block = self.block_of(link)
            if block is None:
                break
            row = &block.rows[link & ROW_MASK]
            if row.base_offset + row.last_offset_delta < offset:
                break
            if count == self._walk_capacity:
                grown = <uint64_t *> PyMem_RawRealloc(self._walk, 2 * count * sizeof(uint64_t))
                if grown == NULL:
                    raise MemoryError("no memory for a lookup")
                self._walk = grown
                self._walk_capacity = 2 * count
            self._walk[count] = link
            count += 1
            if row.base_offset <= offset:
                break
            link = block.links[link & ROW_MASK]
        return count

    def window(self, slot, offset):
        """Entries of a queue in offset order, from the one that holds `offset` or, failing that, the oldest entry
        known behind it, up to a gap; at most about `SKIP_EVERY` of them. Empty when nothing at or behind `offset` is
        indexed. The caller checks that the first entry does not start behind a gap it cares about; see the twin."""
        cdef Py_ssize_t count = self.walk(self._table.slot_at(slot), offset), place
        cdef list entries = []
        cdef IndexedBlock block
        cdef Row *row
        cdef int64_t position = 0
        for place in range(count - 1, -1, -1):
            block = self.block_of(self._walk[place])
            row = &block.rows[self._walk[place] & ROW_MASK]
            if entries and row.base_offset != position:
                break
            position = row.base_offset + row.last_offset_delta + 1
            entries.append(block.entry(self._walk[place] & ROW_MASK))
        return entries

    cdef int collect(
        self, const Slot *slot, int64_t offset, int64_t budget, bint whole_first, Stretches *found, int64_t *next_offset
    ) except -1:
        cdef Py_ssize_t count, place
        cdef uint64_t link
        cdef IndexedBlock block
        cdef Row *row
        cdef Stretch *last = NULL
        cdef Stretch *grown
        cdef bint first = True, full = True
        cdef int64_t position = offset, end = slot.committed_end
        cdef int64_t from_passed = -1     # of the skip links passed, the one this window begins with; -1: the tail
        while position < end and full:
            from_passed -= 1
            if from_passed < -1 or self._passed_count - from_passed > PASSED:
                count = self.walk(slot, position)
                from_passed = self._passed_count - 1
            else:     # windows go from old to new, the way there went from new to old
                count = self.walk_back(
                    self._passed[from_passed % PASSED] if from_passed >= 0 else slot.tail_link, position
                )
            if not count:
                break
            link = self._walk[count - 1]
            if self.block_of(link).rows[link & ROW_MASK].base_offset > position:
                break
            full = False
            for place in range(count - 1, -1, -1):
                link = self._walk[place]
                block = self.block_of(link)
                row = &block.rows[link & ROW_MASK]
                if row.base_offset > position:     # a gap, which a snapshot has left
                    break
                if block.bytes == NULL:
                    if first:
                        return NOT_CACHED
                    break
                if <int64_t> row.length > budget and not (first and whole_first):
                    break
                if last != NULL and last.block == <PyObject *> block and last.position + last.length == row.position:
                    last.length += row.length
                else:
                    if found.count == found.capacity:
                        grown = <Stretch *> PyMem_RawRealloc(
                            found.items, (2 * found.capacity if found.capacity else 16) * sizeof(Stretch)
                        )
                        if grown == NULL:
                            raise MemoryError("no memory for a read")
                        found.items = grown
                        found.capacity = 2 * found.capacity if found.capacity else 16
                    last = &found.items[found.count]
                    last.block = <PyObject *> block
                    last.position = row.position
                    last.length = row.length
                    found.count += 1
                budget -= row.length
                position = row.base_offset + row.last_offset_delta + 1
                first = False
            else:
                full = True
        if first and full:
            return NOT_CACHED
        next_offset[0] = position
        return CACHED

    def read(self, slot, offset, budget, whole_first):
        """Cached batches of a queue up to its committed end, from the one that holds `offset` on: views of their
        payloads (neighbours in one view), about `budget` bytes in all, and the offset behind the last. With
        `whole_first` the first batch comes back even when it is larger. None when the cache does not hold `offset`;
        no views when nothing fits."""
        cdef Stretches found
        cdef int64_t next_offset = offset
        cdef Py_ssize_t place
        cdef list views = []
        found.items = NULL
        found.count = found.capacity = 0
        try:
            if self.collect(
                self._table.slot_at(slot), offset, budget, whole_first, &found, &next_offset
            ) == NOT_CACHED:
                return None
            for place in range(found.count):
                views.append(
                    (<IndexedBlock> found.items[place].block).view(
                        found.items[place].position, found.items[place].length
                    )
                )
        finally:
            PyMem_RawFree(found.items)
        return views, next_offset

    def oldest(self, slot):
        """The oldest indexed entry of a queue."""
        window = self.window(slot, -1)
        return window[0] if window else None
