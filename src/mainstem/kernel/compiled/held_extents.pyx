"""Takes extents out of bytes that memory has. See the twin. The interpreter is let go of where it is much to check."""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from mainstem.kernel.compiled.batch_header cimport HEADER_BYTES, LAST_OFFSET_DELTA_AT, LENGTH_AT, LENGTH_EXCLUDES
from mainstem.kernel.compiled.bytes_io cimport ms_crc32c, ms_crc_prepare, ms_read_u32, ms_read_u64

from mainstem.kernel.pure import held_extents as twin

ms_crc_prepare()

cdef int64_t OFFSET_MAX = twin.OFFSET_MAX
cdef int64_t LARGE_BYTES = 512 * 1024
"""Some fifty microseconds of work, in which threads that have something for the event loop would wait with what else
they have to do: the object store's client has two, and each reads from many connections."""

cdef packed struct ExtentRow:
    # `extent_format.EXTENT_ROW`
    uint64_t queue_id
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp
    uint64_t position
    uint32_t length
    uint32_t batch_count
    uint32_t record_count
    uint32_t crc
    int32_t leader_epoch
    uint32_t flags

assert twin.EXTENT_ROW.size == sizeof(ExtentRow)


cdef inline int64_t batch_end(const uint8_t *extent, int64_t position, int64_t size) noexcept nogil:
    """Where the batch at a position ends; -1: there is no whole one."""
    cdef int64_t length
    if size - position < HEADER_BYTES:
        return -1
    length = <int64_t> <int32_t> ms_read_u32(extent + position + LENGTH_AT) + LENGTH_EXCLUDES
    if length < HEADER_BYTES or length > size - position:
        return -1
    return position + length


cdef bint is_whole(const uint8_t *extent, int64_t size, int64_t offset, int64_t last_offset) noexcept nogil:
    """Whether an extent is made of batches that follow each other, from one offset to the other."""
    cdef int64_t position = 0, last_delta
    if size == 0:
        return False
    while position < size:
        if size - position < HEADER_BYTES or <int64_t> ms_read_u64(extent + position) != offset:
            return False
        last_delta = <int32_t> ms_read_u32(extent + position + LAST_OFFSET_DELTA_AT)
        if last_delta < 0 or last_delta > last_offset - offset:
            return False
        offset += last_delta + 1
        position = batch_end(extent, position, size)
        if position < 0:
            return False
    return offset == last_offset + 1


cdef Py_ssize_t plain(
    const uint8_t *data, int64_t size, uint64_t start, const ExtentRow *rows, const uint8_t *known, Py_ssize_t count,
    int64_t offset, int64_t room,
) noexcept nogil:
    """How many of the first extents are plain. `known`: 1 for each whose checksum is known to hold."""
    cdef Py_ssize_t number
    cdef const ExtentRow *row
    cdef const uint8_t *extent
    for number in range(count):
        row = rows + number
        if row.base_offset != offset or row.last_offset < offset or row.last_offset >= OFFSET_MAX or row.length > room:
            return number
        if row.position < start or row.position - start > <uint64_t> size:
            return number
        if <int64_t> row.length > size - <int64_t> (row.position - start):
            return number
        extent = data + (row.position - start)
        if not is_whole(extent, row.length, offset, row.last_offset):
            return number
        if not known[number] and ms_crc32c(0, extent, row.length) != row.crc:
            return number
        room -= row.length
        offset = row.last_offset + 1
    return count


def take_extents(data, int64_t start, rows, set checked, int64_t offset, int64_t bytes_max, list batches):
    """How many extents were taken, their bytes, and the offset behind them; see the twin."""
    cdef Py_buffer chunk, table
    cdef const ExtentRow *row
    cdef Py_ssize_t number, count, taken
    cdef int64_t size = 0, inside, position, end
    cdef uint8_t *known = NULL
    PyObject_GetBuffer(data, &chunk, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(rows, &table, PyBUF_SIMPLE)
        try:
            if table.len % <Py_ssize_t> sizeof(ExtentRow):
                raise ValueError("index rows are of 64 bytes")
            row = <const ExtentRow *> table.buf
            count = table.len // <Py_ssize_t> sizeof(ExtentRow)
            known = <uint8_t *> PyMem_Calloc(count + 1, 1)
            if known == NULL:
                raise MemoryError
            if checked:
                for number in range(count):
                    known[number] = row[number].position in checked
            if min(chunk.len, bytes_max) < LARGE_BYTES:
                taken = plain(<const uint8_t *> chunk.buf, chunk.len, start, row, known, count, offset, bytes_max)
            else:
                with nogil:
                    taken = plain(<const uint8_t *> chunk.buf, chunk.len, start, row, known, count, offset, bytes_max)
            for number in range(taken):
                if not known[number]:
                    checked.add(row[number].position)
                inside = <int64_t> (row[number].position - <uint64_t> start)
                position = 0
                while position < row[number].length:
                    end = batch_end(<const uint8_t *> chunk.buf + inside, position, row[number].length)
                    batches.append(data[inside + position : inside + end])
                    position = end
                size += row[number].length
            if taken:
                offset = row[taken - 1].last_offset + 1
        finally:
            PyMem_Free(known)
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&chunk)
    return taken, size, offset
