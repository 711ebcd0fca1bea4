from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t

cdef struct Seen:
    int32_t base_sequence
    int32_t last_sequence
    int64_t base_offset
    int64_t block_index

cdef enum:
    FRESH = -1            # append it
    DUPLICATE = -2        # `seen` says which batch it repeats
    # everything else `check` returns is a verdict of `layout.pxd`


cdef class ProducerStates:
    # fields: the owner's choice

    cdef int check(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        Seen *seen,
    ) noexcept nogil
    """May this batch be appended? FRESH, DUPLICATE (then `seen` is filled), or a verdict."""

    cdef int appended(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ) except -1 nogil
    """Remember a batch that went into a block, in the overlay. Raises MemoryError."""

    cdef int applied(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ) except -1 nogil
    """Remember a batch of an applied block for good, and drop what the overlay had waiting up to it."""
