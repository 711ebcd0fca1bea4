"""Are these bytes the batches that belong here? See the twin. The interpreter is let go of where it is much to read."""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from mainstem.kernel.compiled.batch_header cimport CHECKED_FROM, CHECKSUM_AT, LEADER_EPOCH_AT, LENGTH_AT, LENGTH_EXCLUDES, MAGIC, MAGIC_AT
from mainstem.kernel.compiled.bytes_io cimport ms_crc32c, ms_crc_prepare, ms_read_u32, ms_read_u64

ms_crc_prepare()

cdef Py_ssize_t LARGE_BYTES = 4 * 1024 * 1024
"""Some hundreds of microseconds of work. With less, an event loop that lets go would wait longer to get back."""


cdef Py_ssize_t damaged(
    const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *lengths, const int64_t *base_offsets,
    const int64_t *leader_epochs, Py_ssize_t count,
) noexcept nogil:
    cdef Py_ssize_t number
    cdef int64_t start, length
    cdef const uint8_t *batch
    for number in range(count):
        start, length = starts[number], lengths[number]
        if start < 0 or length < CHECKED_FROM or length > size or start > size - length:
            return number
        batch = data + start
        if <int64_t> ms_read_u64(batch) != base_offsets[number]:
            return number
        if <int64_t> ms_read_u32(batch + LENGTH_AT) + LENGTH_EXCLUDES != length:  # as unsigned: a negative one is no match
            return number
        if <int32_t> ms_read_u32(batch + LEADER_EPOCH_AT) != leader_epochs[number] or batch[MAGIC_AT] != MAGIC:
            return number
        if ms_crc32c(0, batch + CHECKED_FROM, length - CHECKED_FROM) != ms_read_u32(batch + CHECKSUM_AT):
            return number
    return -1


def first_damaged(buffer, starts, lengths, base_offsets, leader_epochs):
    """The number of the first batch that is not what it should be, or lies outside the buffer; -1: all are whole."""
    cdef Py_buffer data
    cdef Py_buffer columns[4]
    cdef int taken = 0, column
    cdef Py_ssize_t count, found
    PyObject_GetBuffer(buffer, &data, PyBUF_SIMPLE)
    try:
        for column in range(4):
            PyObject_GetBuffer((starts, lengths, base_offsets, leader_epochs)[column], &columns[column], PyBUF_SIMPLE)
            taken += 1
        for column in range(1, 4):
            if columns[0].len != columns[column].len or columns[0].len % 8:
                raise ValueError("starts, lengths, base offsets and leader epochs are of one length, 8 bytes each")
        count = columns[0].len // 8
        if data.len < LARGE_BYTES:
            found = damaged(
                <const uint8_t *> data.buf, data.len, <const int64_t *> columns[0].buf,
                <const int64_t *> columns[1].buf, <const int64_t *> columns[2].buf,
                <const int64_t *> columns[3].buf, count)
        else:
            with nogil:
                found = damaged(
                    <const uint8_t *> data.buf, data.len, <const int64_t *> columns[0].buf,
                    <const int64_t *> columns[1].buf, <const int64_t *> columns[2].buf,
                    <const int64_t *> columns[3].buf, count)
        return found
    finally:
        for column in range(taken):
            PyBuffer_Release(&columns[column])
        PyBuffer_Release(&data)
