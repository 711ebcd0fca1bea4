cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mainstem.kernel.compiled.layout cimport Row, Slot
from mainstem.kernel.compiled.queue_table cimport QueueTable


@cython.final
cdef class IndexedBlock:
    cdef readonly uint64_t serial
    cdef readonly object header
    cdef object cached           # what the payload lies in while it is cached: a chunk, bytes, or a memoryview; else None
    cdef Py_buffer directory     # held, so that `rows` stays where it is
    cdef Py_ssize_t payload_bytes
    cdef Row *rows
    cdef Py_ssize_t row_count
    cdef const uint8_t *bytes    # the payload while it is cached, else NULL
    cdef uint64_t *links
    cdef uint32_t *skip_rows
    cdef uint64_t *skip_links
    cdef Py_ssize_t skip_count
    cdef int64_t end

    cdef int add_skip(self, uint32_t row, uint64_t link) except -1
    cdef uint64_t skip_at(self, uint32_t row) noexcept nogil
    cdef int hold_payload(self, object view) except -1
    cdef object view(self, Py_ssize_t position, Py_ssize_t length)
    cdef void release_payload(self)


cdef struct Stretch:
    # Neighbouring batches of one queue in one block's payload. The block is borrowed from the index: take a reference
    # to its payload before anything is added to the index.
    PyObject *block
    uint32_t position
    uint32_t length


cdef struct Stretches:
    Stretch *items
    Py_ssize_t count
    Py_ssize_t capacity


cdef enum:
    PASSED = 64      # skip links remembered: a read of this many windows walks the chain once


cdef enum:
    # What `collect` found.
    CACHED = 0       # stretches were added (none: nothing fits the budget)
    NOT_CACHED = 1   # the write cache does not hold the offset


@cython.final
cdef class RecentIndex:
    cdef QueueTable _table
    cdef object _order           # deque of IndexedBlock, oldest first: owns them
    cdef object _cached
    cdef PyObject **_ring        # the same blocks by serial
    cdef uint64_t _ring_mask
    cdef uint64_t _first_serial
    cdef uint64_t _serial
    cdef int64_t _cache_bytes_max
    cdef int64_t _released_to
    cdef readonly int64_t cached_bytes
    cdef uint64_t *_walk         # links of the window found last
    cdef Py_ssize_t _walk_capacity
    cdef uint64_t _passed[PASSED]     # the last skip links on the way there, going round
    cdef int64_t _passed_count

    cdef IndexedBlock block_of(self, uint64_t link)
    cdef int grow_ring(self) except -1
    cdef Py_ssize_t walk(self, const Slot *slot, int64_t offset) except -1
    cdef Py_ssize_t walk_back(self, uint64_t link, int64_t offset) except -1
    cdef int collect(
        self, const Slot *slot, int64_t offset, int64_t budget, bint whole_first, Stretches *found, int64_t *next_offset
    ) except -1
    """Cached batches of a queue from `offset` up to its committed end; `found` is added to. See `read` of the twin."""
