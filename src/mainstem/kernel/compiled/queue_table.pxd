from libc.stdint cimport int64_t, uint32_t, uint64_t

from mainstem.kernel.compiled.layout cimport Slot


cdef class QueueTable:
    cdef Slot **_chunks
    cdef Py_ssize_t _chunk_count
    cdef list _memory            # the bytearrays the chunks are, as memoryviews of cells
    # further fields: the owner's choice

    cdef int64_t find_number(self, uint64_t queue_id) noexcept nogil
    """The slot number of a queue, -1 when there is none. Touches no slot."""

    cdef Slot *slot_at(self, int64_t number) noexcept nogil
    """A slot that exists, by its number."""

    cdef Slot *find_slot(self, uint64_t queue_id) noexcept nogil
    """The slot of a queue, NULL when there is none. Touches no slot."""
