cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

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
    cdef readonly Py_ssize_t room
    cdef Chunk chunk

    cdef uint8_t *take(self, Py_ssize_t size) except NULL


@cython.final
cdef class BlockBuilder:
    cdef Arena arena
    cdef Chunk chunk             # the one the payload lies in, None while there is none
    cdef Py_ssize_t start
    cdef readonly Py_ssize_t payload_bytes
    cdef Directory rows

    cdef bint has_room(self, Py_ssize_t size) noexcept

    cdef int put(
        self, const uint8_t *data, const Batch *batch, int64_t base_offset, int32_t leader_epoch,
        int64_t log_append_time_ms,
    ) except -1


cdef int fill_batch(Batch *fields, batch, Py_ssize_t size) except -1
