"""Bytes that lie in many places, which leave in their order without being joined; see the twin.

A piece is a pointer, a length and a reference to what it lies in, not a Python object of its own: a
response has a hundred of them per megabyte, and to make, pass on and free a view of each cost a fifth of what it cost
to send it.

The pieces of a response lie all over the write cache, and in none of the processor's caches. The kernel copies one
after the other, and waits for memory at the beginning of each, and of each page. So memory is asked for all of them
before the kernel is called: that saved a sixth of what it costs to send them (docs/decisions/0180).
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_IsContiguous
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.ref cimport Py_INCREF, PyObject
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from mainstem.kernel.compiled.fetch_rows cimport Part

from mainstem.kernel.pure import scattered_bytes as twin

cdef extern from *:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif

    #define MS_BROUGHT_EVERY_BYTES 256 /* each line costs as much to ask for as it saves, one in a page saves two thirds */
    #define MS_BROUGHT_BYTES_MAX 65536 /* of a longer piece the rest comes as fast as it is copied */

    /* Ask memory for a piece: for every fourth of its lines, which neighbours come with. */
    static inline void ms_bring(const void *piece, size_t size) {
        const char *data = (const char *)piece;
        if (size > MS_BROUGHT_BYTES_MAX) size = MS_BROUGHT_BYTES_MAX;
        for (size_t at = 0; at < size; at += MS_BROUGHT_EVERY_BYTES) __builtin_prefetch(data + at, 0, 3);
    }
    """
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    ssize_t sendmsg(int descriptor, const msghdr *message, int flags) nogil
    void ms_bring(const void *piece, size_t size) noexcept nogil

cdef extern from "Python.h":
    void drop "Py_XDECREF"(PyObject *data)
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef enum:
    PIECES_PER_CALL_MAX = 256    # 4 KiB of the stack

assert twin.PIECES_PER_CALL_MAX == PIECES_PER_CALL_MAX


@cython.final
cdef class ScatteredBytes:
    def __init__(self, buffers=()):
        for buffer in buffers:
            view = memoryview(buffer)
            if PyMemoryView_GET_BUFFER(view).itemsize != 1 or not PyBuffer_IsContiguous(
                PyMemoryView_GET_BUFFER(view), b"C"
            ):
                raise ValueError("a piece is contiguous bytes")
            self.add(view, <const uint8_t *> PyMemoryView_GET_BUFFER(view).buf, PyMemoryView_GET_BUFFER(view).len)

    def __dealloc__(self):
        cdef Py_ssize_t number
        for number in range(self.first, self.piece_count):
            drop(self.pieces[number].owner)
        PyMem_RawFree(self.pieces)

    def __len__(self):
        """Bytes that have not left."""
        return self.size

    cdef int reserve(self, Py_ssize_t capacity) except -1:
        """Make room for so many pieces in all."""
        cdef Part *grown
        if capacity <= self.piece_capacity:
            return 0
        grown = <Part *> PyMem_RawRealloc(self.pieces, capacity * sizeof(Part))
        if grown == NULL:
            raise MemoryError(f"no memory for {capacity} pieces")
        self.pieces = grown
        self.piece_capacity = capacity
        return 0

    cdef int add(self, object owner, const uint8_t *data, int64_t length) except -1:
        """Add bytes that lie in `owner`: a memoryview of bytes, or what always gives the same bytes."""
        if length == 0:
            return 0
        if self.piece_count == self.piece_capacity:
            self.reserve(2 * self.piece_capacity if self.piece_capacity else 4)
        Py_INCREF(owner)
        self.pieces[self.piece_count].owner = <PyObject *> owner
        self.pieces[self.piece_count].bytes = data
        self.pieces[self.piece_count].length = length
        self.piece_count += 1
        self.size += length
        return 0

    def take(self, int64_t size):
        """Views of the next `size` bytes, or of all that are left; they have left then."""
        cdef list views = []
        cdef Py_ssize_t start, number = self.first
        cdef int64_t length, taken = 0
        cdef Part *piece
        while number < self.piece_count and taken < size:
            piece = &self.pieces[number]
            length = min(piece.length, size - taken)
            owner = memoryview(<object> piece.owner)
            start = piece.bytes - <const uint8_t *> PyMemoryView_GET_BUFFER(owner).buf
            views.append(owner[start : start + length])
            taken += length
            number += 1
        self.leave(taken)
        return views

    def send(self, int descriptor, int64_t size):
        """Write the next `size` bytes, or all that are left, to a socket, as far as it takes them without waiting; how
        many these were. A socket that fails takes none: whoever else writes to it is told why."""
        cdef iovec vectors[PIECES_PER_CALL_MAX]
        cdef msghdr message
        cdef Py_ssize_t count
        cdef int64_t asked, taken, sent = 0
        cdef Part *piece
        memset(&message, 0, sizeof(message))
        message.msg_iov = vectors
        while sent < size and self.size:
            count = 0
            asked = 0
            while (
                count < PIECES_PER_CALL_MAX and self.first + count < self.piece_count and asked < size - sent
            ):
                piece = &self.pieces[self.first + count]
                vectors[count].iov_base = <void *> piece.bytes
                vectors[count].iov_len = min(piece.length, size - sent - asked)
                ms_bring(vectors[count].iov_base, vectors[count].iov_len)
                asked += vectors[count].iov_len
                count += 1
            message.msg_iovlen = count
            taken = sendmsg(descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if taken < 0 and errno == EINTR:
                continue
            if taken > 0:
                self.leave(taken)
                sent += taken
            if taken < asked:
                break
        return sent

    cdef void leave(self, int64_t size):
        """Let go of the first `size` bytes."""
        cdef Part *piece
        self.size -= size
        while size > 0:
            piece = &self.pieces[self.first]
            if size < piece.length:
                piece.bytes += size
                piece.length -= size
                return
            size -= piece.length
            self.first += 1
            drop(piece.owner)
