"""TLS records, from what has come to what they carry. See the twin. OpenSSL is called by way of Python's `ssl`."""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t

import ssl

from mainstem.kernel.pure import tls_records as twin

cdef object WANT_READ = ssl.SSLWantReadError
cdef object FAILURE = ssl.SSLError

cdef enum:
    HEADER_BYTES = 5

assert twin.HEADER_BYTES == HEADER_BYTES


cdef class TlsRecords:
    cdef object _incoming, _write
    cdef int64_t _piece_bytes, _barren_piece_bytes, _barren
    cdef int64_t _left
    cdef uint8_t _header[HEADER_BYTES]
    cdef int _header_bytes
    cdef public bint unread
    cdef readonly int64_t barren_bytes
    cdef readonly int64_t at
    cdef readonly bint turn_over
    cdef readonly bint over
    cdef readonly bint ended
    cdef readonly object failure

    def __init__(self, incoming, int64_t piece_bytes, int64_t barren_piece_bytes, int64_t barren):
        self._incoming = incoming
        self._write = incoming.write
        self._piece_bytes = piece_bytes
        self._barren_piece_bytes = barren_piece_bytes
        self._barren = barren
        self._left = self._header_bytes = self.barren_bytes = self.at = 0
        self.unread = self.turn_over = self.over = self.ended = False
        self.failure = None

    @property
    def whole(self):
        return not self._left and not self._header_bytes

    def pass_over(self, received):
        cdef Py_buffer view
        cdef int64_t at = 0
        PyObject_GetBuffer(received, &view, PyBUF_SIMPLE)
        try:
            while at < view.len:
                at = self._end_of(<const uint8_t *>view.buf, view.len, at, self._piece_bytes)
        finally:
            PyBuffer_Release(&view)

    def begin_turn(self):
        self.at = 0
        self.turn_over = self.over = False

    def read(self, decrypting, received, buffer):
        cdef Py_buffer view
        cdef int64_t room = len(buffer)
        PyObject_GetBuffer(received, &view, PyBUF_SIMPLE)
        try:
            return self._read(decrypting, received, <const uint8_t *>view.buf, view.len, buffer, room)
        finally:
            PyBuffer_Release(&view)

    def end_of(self, received, int64_t at, int64_t bytes_max):
        cdef Py_buffer view
        PyObject_GetBuffer(received, &view, PyBUF_SIMPLE)
        try:
            return self._end_of(<const uint8_t *>view.buf, view.len, at, bytes_max)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _read(self, object decrypting, object received, const uint8_t *come, int64_t size, object buffer,
                       int64_t room) except -1:
        cdef object decrypt = decrypting.read
        cdef int64_t filled = 0, end, wanted, count
        while filled < room:
            if not self.unread:
                if self.at == size or self.turn_over:
                    self.over = True
                    break
                self.turn_over = self.barren_bytes > self._piece_bytes
                end = self._end_of(come, size, self.at,
                                   self._barren_piece_bytes if self.turn_over else self._piece_bytes)
                self._write(received[self.at:end])
                self.barren_bytes += end - self.at
                self.at = end
                if self._left or self._header_bytes:
                    continue
            wanted = room - filled
            try:
                count = decrypt(wanted, buffer[filled:] if filled else buffer)
            except WANT_READ:
                self.unread = False
                continue
            except FAILURE as error:
                self.failure = error.with_traceback(None)
                break
            if not count:
                self.ended = True
                break
            filled += count
            self.barren_bytes = max(<int64_t>0, self.barren_bytes - self._barren * count)
            self.unread = self._incoming.pending > 0 or (count == wanted and decrypting.pending() > 0)
        return filled

    cdef int64_t _end_of(self, const uint8_t *received, int64_t size, int64_t at, int64_t bytes_max) noexcept:
        cdef int64_t come = size - at, missing, taken
        if not self._left:
            missing = HEADER_BYTES - self._header_bytes
            for taken in range(min(missing, come, bytes_max)):
                self._header[self._header_bytes] = received[at + taken]
                self._header_bytes += 1
            if self._header_bytes < HEADER_BYTES:
                return at + min(come, missing, bytes_max)
            self._left = missing + (self._header[3] << 8 | self._header[4])
            self._header_bytes = 0
        taken = min(self._left, come, bytes_max)
        self._left -= taken
        return at + taken
