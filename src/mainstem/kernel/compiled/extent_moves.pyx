"""What is done with the bytes of extents. See the twin. The interpreter is let go of meanwhile."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.batch_header cimport (
    HEADER_BYTES, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT, LENGTH_EXCLUDES, MAX_TIMESTAMP_AT, RECORD_COUNT_AT,
)
from mainstem.kernel.compiled.bytes_io cimport ms_crc32c, ms_crc_prepare, ms_prefetch, ms_read_u32, ms_read_u64

ms_crc_prepare()

cdef enum:
    FIELDS = 7
    AHEAD = 4  # pieces fetched from memory in advance, for they lie all over it


cdef int64_t added_up(const int64_t *starts, const int64_t *lengths, Py_ssize_t count, int64_t size) noexcept nogil:
    """The bytes of all pieces; -1 when one lies outside."""
    cdef Py_ssize_t number
    cdef int64_t total = 0
    for number in range(count):
        if starts[number] < 0 or lengths[number] < 0 or lengths[number] > size - starts[number]:
            return -1
        total += lengths[number]
    return total


cdef Py_ssize_t copied(
    const uint8_t *source, const int64_t *starts, const int64_t *lengths, const int64_t *checksums, Py_ssize_t count,
    uint8_t *target,
) noexcept nogil:
    cdef Py_ssize_t number
    for number in range(count):
        if number + AHEAD < count:
            ms_prefetch(source + starts[number + AHEAD])
        memcpy(target, source + starts[number], lengths[number])
        if <int64_t> ms_crc32c(0, target, lengths[number]) != checksums[number]:
            return number
        target += lengths[number]
    return -1


cdef int64_t walked(const uint8_t *data, int64_t size, int64_t *row, int64_t room) noexcept nogil:
    cdef int64_t position = 0, number = 0, length, last_delta
    cdef const uint8_t *batch
    while position < size:
        if size - position < HEADER_BYTES or number >= room:
            return -1 - position
        batch = data + position
        length = <int64_t> <int32_t> ms_read_u32(batch + LENGTH_AT) + LENGTH_EXCLUDES
        last_delta = <int32_t> ms_read_u32(batch + LAST_OFFSET_DELTA_AT)
        if length < HEADER_BYTES or length > size - position or last_delta < 0:
            return -1 - position
        row[0] = position
        row[1] = length
        row[2] = <int64_t> ms_read_u64(batch)
        row[3] = row[2] + last_delta
        row[4] = <int64_t> ms_read_u64(batch + MAX_TIMESTAMP_AT)
        row[5] = <int32_t> ms_read_u32(batch + RECORD_COUNT_AT)
        row[6] = <int32_t> ms_read_u32(batch + LEADER_EPOCH_AT)
        row += FIELDS
        number += 1
        position += length
    return number


def gather_extents(source, starts, lengths, checksums, target):
    """Copy pieces of `source` into `target`, one after the other. The number of the first whose CRC32C is not the one
    given; -1: all are right."""
    cdef Py_buffer views[5]
    cdef int taken = 0
    cdef Py_ssize_t count, found
    cdef int64_t total
    try:
        for view in (source, starts, lengths, checksums):
            PyObject_GetBuffer(view, &views[taken], PyBUF_SIMPLE)
            taken += 1
        PyObject_GetBuffer(target, &views[taken], PyBUF_WRITABLE)
        taken += 1
        if views[1].len != views[2].len or views[1].len != views[3].len or views[1].len % 8:
            raise ValueError("starts, lengths and checksums are of one length, 8 bytes each")
        count = views[1].len // 8
        total = added_up(<const int64_t *> views[1].buf, <const int64_t *> views[2].buf, count, views[0].len)
        if total < 0:
            raise ValueError("a piece lies outside of the source")
        if total != views[4].len:
            raise ValueError("the pieces do not make up the target")
        with nogil:
            found = copied(
                <const uint8_t *> views[0].buf, <const int64_t *> views[1].buf, <const int64_t *> views[2].buf,
                <const int64_t *> views[3].buf, count, <uint8_t *> views[4].buf)
        return found
    finally:
        for number in range(taken):
            PyBuffer_Release(&views[number])


def walk_batches(buffer, rows):
    """Write a row for each record batch in `buffer`. Their number; minus one, minus the position of what is no batch
    or has no room."""
    cdef Py_buffer data, out
    cdef int64_t found
    PyObject_GetBuffer(buffer, &data, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(rows, &out, PyBUF_WRITABLE)
        try:
            if out.len % (8 * FIELDS):
                raise ValueError("rows are of seven fields, 8 bytes each")
            with nogil:
                found = walked(<const uint8_t *> data.buf, data.len, <int64_t *> out.buf, out.len // (8 * FIELDS))
            return found
        finally:
            PyBuffer_Release(&out)
    finally:
        PyBuffer_Release(&data)


def checksum_pieces(buffer, lengths, checksums, crc=0):
    """The CRC32C of each piece, of pieces that make up the buffer one after the other. The first goes on from `crc`."""
    cdef Py_buffer views[3]
    cdef int taken = 0
    cdef Py_ssize_t number, count
    cdef int64_t total = 0
    cdef uint32_t checksum = crc
    cdef const int64_t *sizes
    cdef int64_t *out
    cdef const uint8_t *data
    try:
        for view in (buffer, lengths):
            PyObject_GetBuffer(view, &views[taken], PyBUF_SIMPLE)
            taken += 1
        PyObject_GetBuffer(checksums, &views[taken], PyBUF_WRITABLE)
        taken += 1
        count = views[1].len // 8
        sizes, out, data = <const int64_t *> views[1].buf, <int64_t *> views[2].buf, <const uint8_t *> views[0].buf
        for number in range(count):
            if sizes[number] < 0 or sizes[number] > views[0].len - total:
                total = -1
                break
            total += sizes[number]
        if views[1].len != views[2].len or views[1].len % 8 or total != views[0].len:
            raise ValueError("as many checksums as lengths, which make up the buffer")
        with nogil:
            for number in range(count):
                out[number] = ms_crc32c(checksum, data, sizes[number])
                data += sizes[number]
                checksum = 0
    finally:
        for number in range(taken):
            PyBuffer_Release(&views[number])
