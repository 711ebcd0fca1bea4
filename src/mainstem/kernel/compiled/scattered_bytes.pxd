cimport cython
from libc.stdint cimport int64_t, uint8_t

from mainstem.kernel.compiled.fetch_rows cimport Part


@cython.final
cdef class ScatteredBytes:
    cdef Part *pieces                # in order; those before `first` have left
    cdef Py_ssize_t piece_count
    cdef Py_ssize_t piece_capacity
    cdef Py_ssize_t first
    cdef int64_t size                # of what has not left, bytes

    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef int add(self, object owner, const uint8_t *data, int64_t length) except -1
    cdef void leave(self, int64_t size)
