"""Reads and writes of a disk without the interpreter; see the twin."""

import os

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport errno
from libc.stdlib cimport free, malloc

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "disk_writer.h" nogil:
    struct ms_write:
        ms_write *next
        int descriptor
        int whole_file
        long long position
        size_t zeros
        int error
        iovec *vectors
    struct ms_writer:
        int wake
        int runs
    ms_write *ms_write_new(size_t count)
    ms_writer *ms_writer_new(const char *name, int nice)
    int ms_writer_start(ms_writer *writer)
    void ms_writer_give(ms_writer *writer, ms_write *write)
    ms_write *ms_writer_over(ms_writer *writer)
    void ms_writer_end(ms_writer *writer)
    void ms_writer_free(ms_writer *writer)
    long long ms_writer_zeros_nanoseconds(ms_writer *writer)
    ssize_t ms_write_pieces(
        int descriptor, long long position, iovec *vectors, size_t count, size_t piece, int flags
    )
    ssize_t ms_fill_pieces(int descriptor, char *memory, size_t size, long long position, size_t piece, size_t page)
    int ms_sync_in_pieces(int descriptor)


cdef class _Buffer:
    """A buffer that stays where it is for as long as this lives."""

    cdef Py_buffer view

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


@cython.no_gc_clear  # the buffers stay until the thread is done with them, in a cycle of garbage, too
cdef class DurableWriter:
    """The thread."""

    cdef ms_writer *_writer
    cdef list _held
    """The buffers of each write that was not handed back, in the order in which they were given."""

    def __cinit__(self, str name="disk-commit", int nice=0):
        self._held = []
        self._writer = ms_writer_new(name.encode(), nice)
        if self._writer is NULL:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self._writer is NULL:
            return
        ms_writer_end(self._writer)
        self._take_over(None)
        ms_writer_free(self._writer)

    @property
    def wake(self):
        return self._writer.wake

    @property
    def zeros_seconds(self):
        return ms_writer_zeros_nanoseconds(self._writer) * 1e-9

    def begin(self, int descriptor, long long position, buffers, bint whole_file=False):
        cdef _Buffer buffer
        cdef list held = [_Buffer(one) for one in buffers]
        cdef ms_write *write = self._new(descriptor, position, len(held))
        write.whole_file = whole_file
        cdef Py_ssize_t at = 0
        for buffer in held:
            write.vectors[at].iov_base, write.vectors[at].iov_len = buffer.view.buf, buffer.view.len
            at += 1
        self._held.append(held)
        ms_writer_give(self._writer, write)

    def begin_zeros(self, int descriptor, long long position, size_t count):
        cdef ms_write *write = self._new(descriptor, position, 0)
        write.whole_file, write.zeros = 0, count
        self._held.append(None)
        ms_writer_give(self._writer, write)

    cdef ms_write *_new(self, int descriptor, long long position, size_t vectors) except NULL:
        cdef int error = ms_writer_start(self._writer)
        if error:
            raise OSError(error, os.strerror(error))
        cdef ms_write *write = ms_write_new(vectors)
        if write is NULL:
            raise MemoryError
        write.descriptor, write.position = descriptor, position
        return write

    def over(self):
        cdef list errors = []
        self._take_over(errors)
        return errors

    cdef _take_over(self, list errors):
        cdef ms_write *write = ms_writer_over(self._writer)
        cdef ms_write *following
        cdef Py_ssize_t count = 0
        while write is not NULL:
            if errors is not None:
                errors.append(write.error)
            following = write.next
            free(write)
            write = following
            count += 1
        del self._held[:count]

    def close(self):
        with nogil:
            ms_writer_end(self._writer)


def write_pieces(int descriptor, long long position, buffers, size_t piece_bytes, int flags=0):
    """The writes, with the interpreter let go of once."""
    cdef _Buffer buffer
    cdef list held = [_Buffer(one) for one in buffers]
    cdef size_t count = len(held)
    cdef ssize_t written
    cdef int error = 0
    cdef Py_ssize_t at = 0
    if not piece_bytes:
        raise ValueError("pieces of no bytes")
    cdef iovec *vectors = <iovec *> malloc((count + 1) * sizeof(iovec))
    if vectors is NULL:
        raise MemoryError
    for buffer in held:
        vectors[at].iov_base, vectors[at].iov_len = buffer.view.buf, buffer.view.len
        at += 1
    with nogil:
        written = ms_write_pieces(descriptor, position, vectors, count, piece_bytes, flags)
        if written < 0:
            error = errno
    free(vectors)
    if error:
        raise OSError(error, os.strerror(error))
    return written


def fill_pieces(int descriptor, memory, long long position, size_t piece_bytes, size_t page_bytes):
    """The reads, with the interpreter let go of once."""
    cdef Py_buffer view
    cdef ssize_t filled
    cdef int error = 0
    PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
    try:
        with nogil:
            filled = ms_fill_pieces(descriptor, <char *> view.buf, view.len, position, piece_bytes, page_bytes)
            if filled < 0:
                error = errno
    finally:
        PyBuffer_Release(&view)
    if error:
        raise OSError(error, os.strerror(error))
    return filled


def sync_file(int descriptor):
    """The sync, a piece of the file at a time."""
    cdef int error
    with nogil:
        error = ms_sync_in_pieces(descriptor)
    if error:
        raise OSError(error, os.strerror(error))
