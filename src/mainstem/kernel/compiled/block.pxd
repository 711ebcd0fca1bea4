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

    cdef int grow(self) except -1


@cython.final
cdef class Arena:
    cdef readonly Py_ssize_t chunk_bytes
    cdef readonly Py_ssize_t room      # bytes left in the chunk
    cdef Chunk chunk
    cdef uint8_t *next                 # where they begin

    cdef int take_chunk(self, Py_ssize_t size) except -1


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
        if self.rows.count == self.rows.capacity or size > self.arena.room or self.rows.exports:
            self.make_room(size)
        memcpy(self.arena.next, data, size)
        self.put_copied(batch, base_offset, leader_epoch)
        if log_append_time_ms >= 0:
            restamp(self.arena.next - size, &self.rows.rows[self.rows.count - 1], log_append_time_ms)
        return 0

    cdef inline bint takes(self, Py_ssize_t size) noexcept:
        """Can a batch be copied to where the next one goes, as things are?"""
        return size <= self.arena.room and 0 < self.rows.count < self.rows.capacity and not self.rows.exports

    cdef inline void put_copied(self, const Batch *batch, int64_t base_offset, int32_t leader_epoch) noexcept:
        """Take in the batch whose bytes have been copied to where the next one goes; `takes` said there is room."""
        cdef uint8_t *place = self.arena.next
        cdef Row *row = &self.rows.rows[self.rows.count]
        self.arena.next = place + batch.length
        self.arena.room -= batch.length
        ms_write_u64(place, <uint64_t> base_offset)
        ms_write_u32(place + 12, <uint32_t> leader_epoch)
        memcpy(row, batch, sizeof(Row))     # a batch begins like a row
        row.base_offset = base_offset
        row.position = <uint32_t> self.payload_bytes
        row.leader_epoch = leader_epoch
        self.rows.count += 1
        self.payload_bytes += batch.length

    cdef int make_room(self, Py_ssize_t size) except -1


cdef void restamp(uint8_t *batch, Row *row, int64_t log_append_time_ms) noexcept nogil

cdef int fill_batch(Batch *fields, batch, Py_ssize_t size) except -1
