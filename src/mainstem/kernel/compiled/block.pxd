"""Putting a batch into the open block: inline in whoever appends. The rest is in the .pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.bytes_io cimport ms_write_u32, ms_write_u64
from mainstem.kernel.compiled.layout cimport Batch, Row


@cython.final
cdef class Chunk:
    cdef uint8_t *memory
    cdef readonly Py_ssize_t size


@cython.final
cdef class Directory:
    cdef Row *rows
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int exports

    cdef int grow(self, Py_ssize_t start) except -1


@cython.final
cdef class Arena:
    cdef readonly Py_ssize_t chunk_bytes
    cdef readonly Py_ssize_t room      # bytes left in the chunk
    cdef Chunk chunk
    cdef uint8_t *next                 # where they begin
    cdef Py_ssize_t rows_last          # in the block that was written to last: the next may get as many

    cdef int take_chunk(self, Py_ssize_t size) except -1


cdef struct Tail:
    # Where the next batch of a block goes: a copy, to put many there.
    uint8_t *next
    Py_ssize_t room       # bytes left in the chunk
    Row *row
    Row *rows_end         # of those there is memory for
    uint32_t position     # of the batch in the payload
    Py_ssize_t budget     # bytes the block may still grow by, rows included


cdef inline void put_copied(Tail *tail, const Batch *batch, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
    """Take in the batch whose bytes have been copied to where the next one goes."""
    cdef uint8_t *place = tail.next
    cdef Row *row = tail.row
    cdef uint32_t position = tail.position
    tail.next = place + batch.length
    tail.room -= batch.length
    tail.row = row + 1
    tail.position = position + batch.length
    tail.budget -= batch.length + <Py_ssize_t> sizeof(Row)
    memcpy(row, batch, sizeof(Row))     # a batch begins like a row
    row.base_offset = base_offset
    row.position = position
    row.leader_epoch = leader_epoch
    ms_write_u64(place, <uint64_t> base_offset)
    ms_write_u32(place + 12, <uint32_t> leader_epoch)


@cython.final
cdef class BlockBuilder:
    cdef Arena arena
    cdef Chunk chunk             # the one the payload lies in, None while there is none
    cdef Py_ssize_t start
    cdef readonly Py_ssize_t payload_bytes
    cdef Directory rows

    cdef inline bint has_room(self, Py_ssize_t size) noexcept:
        return size <= self.arena.room or not self.rows.count

    cdef inline int put(
        self, const uint8_t *data, const Batch *batch, int64_t base_offset, int32_t leader_epoch,
        int64_t log_append_time_ms,
    ) except -1:
        """Copy the batch in that starts at `data` and is `batch.length` long; the caller has seen to it that it is
        one. Raises, and nothing has changed, when there is no memory, the block would have to continue in another
        chunk, or somebody looks at its directory."""
        cdef Py_ssize_t size = batch.length
        cdef Tail tail
        if self.rows.count == self.rows.capacity or size > self.arena.room or self.rows.exports:
            self.make_room(size)
        self.open_tail(&tail, 0)
        memcpy(tail.next, data, size)
        put_copied(&tail, batch, base_offset, leader_epoch)
        self.close_tail(&tail)
        if log_append_time_ms >= 0:
            restamp(tail.next - size, tail.row - 1, log_append_time_ms)
        return 0

    cdef inline bint open_tail(self, Tail *tail, Py_ssize_t block_bytes_max) noexcept:
        """Where batches go as long as there is room: false if there is none as things are. What is put there counts
        once `close_tail` is told; nothing else is done to the block meanwhile."""
        tail.next = self.arena.next
        tail.room = self.arena.room
        tail.row = &self.rows.rows[self.rows.count]
        tail.rows_end = &self.rows.rows[self.rows.capacity]
        tail.position = <uint32_t> self.payload_bytes
        tail.budget = block_bytes_max - self.payload_bytes - self.rows.count * <Py_ssize_t> sizeof(Row)
        return self.rows.count > 0 and not self.rows.exports

    cdef inline Py_ssize_t close_tail(self, const Tail *tail) noexcept:
        """Take in what was put there; bytes of batches."""
        cdef Py_ssize_t size = tail.next - self.arena.next
        self.arena.next = tail.next
        self.arena.room -= size
        self.rows.count = self.arena.rows_last = tail.row - self.rows.rows
        self.payload_bytes += size
        return size

    cdef int make_room(self, Py_ssize_t size) except -1


cdef void restamp(uint8_t *batch, Row *row, int64_t log_append_time_ms) noexcept nogil

cdef int fill_batch(Batch *fields, batch, Py_ssize_t size) except -1
