"""CRC32C (Castagnoli, RFC 3720 appendix B.4) of any contiguous buffer."""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

from mainstem.kernel.compiled.bytes_io cimport ms_crc32c, ms_crc_prepare

ms_crc_prepare()

cdef Py_ssize_t LARGE_BYTES = 64 * 1024
"""From here on the interpreter is let go of meanwhile: some ten microseconds of work."""


def crc32c(buffer, crc=0):
    """The checksum of a buffer, or of what `crc` is the checksum of with the buffer behind it."""
    cdef Py_buffer view
    cdef uint32_t checksum = crc
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len < LARGE_BYTES:
            checksum = ms_crc32c(checksum, <const uint8_t *> view.buf, view.len)
        else:
            with nogil:
                checksum = ms_crc32c(checksum, <const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return checksum
