"""Walking the records of a batch in place. See the twin. The interpreter is let go of where it is much to read."""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from mainstem.kernel.pure.record_walk import TimestampWalk

cdef Py_ssize_t LARGE_BYTES = 64 * 1024
"""Some tens of microseconds of work. With less, an event loop that lets go would wait longer to get back."""

cdef struct Record:
    int64_t stop
    int64_t timestamp_delta
    int64_t offset_delta
    bint keyless

cdef struct Walk:
    bint found
    int64_t found_offset
    int64_t found_timestamp
    bint any
    int64_t greatest_offset
    int64_t greatest_timestamp
    Py_ssize_t rising_count
    bint all_rising
    int64_t damaged_at


cdef inline bint read_signed(const uint8_t *data, int64_t end, int64_t *position, int64_t *value) noexcept nogil:
    """False at the end of the data, or beyond 64 bits."""
    cdef uint64_t bits = 0
    cdef uint64_t byte
    cdef int shift = 0
    cdef int64_t at = position[0]
    while shift < 70:
        if at >= end:
            return False
        byte = data[at]
        at += 1
        if shift == 63 and (byte & 0x7F) > 1:
            return False
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            position[0] = at
            value[0] = <int64_t> ((bits >> 1) ^ (~(bits & 1) + 1))
            return True
        shift += 7
    return False


cdef inline bint skip_bytes(
    const uint8_t *data, int64_t end, int64_t stop, int64_t *position, bint *null
) noexcept nogil:
    cdef int64_t size
    if not read_signed(data, end, position, &size):
        return False
    null[0] = size == -1
    if size == -1:
        return True
    if size < 0 or position[0] > stop or size > stop - position[0]:
        return False
    position[0] += size
    return True


cdef bint read_record(const uint8_t *data, int64_t end, int64_t start, Record *record) noexcept nogil:
    cdef int64_t position = start
    cdef int64_t size, header_count, number
    cdef bint null
    if not read_signed(data, end, &position, &size):
        return False
    if size < 0 or size > end - position:
        return False
    record.stop = position + size
    position += 1  # attributes, which say nothing so far
    if not read_signed(data, end, &position, &record.timestamp_delta):
        return False
    if not read_signed(data, end, &position, &record.offset_delta):
        return False
    if not skip_bytes(data, end, record.stop, &position, &record.keyless):
        return False
    if not skip_bytes(data, end, record.stop, &position, &null):
        return False
    if not read_signed(data, end, &position, &header_count):
        return False
    if header_count < 0 or header_count > record.stop - position:
        return False
    for number in range(header_count):
        if not skip_bytes(data, end, record.stop, &position, &null) or null:
            return False
        if not skip_bytes(data, end, record.stop, &position, &null):
            return False
    return position == record.stop


cdef void timestamps(
    const uint8_t *data, int64_t end, int64_t record_count, int64_t timestamp_delta_min, int64_t offset_delta_min,
    int64_t *rising, Py_ssize_t rising_max, Walk *walk
) noexcept nogil:
    cdef int64_t position = 0
    cdef int64_t number
    cdef Record record
    for number in range(record_count):
        if not read_record(data, end, position, &record):
            walk.damaged_at = position
            return
        position = record.stop
        if record.offset_delta < offset_delta_min:
            continue
        if not walk.found and record.timestamp_delta >= timestamp_delta_min:
            walk.found = True
            walk.found_offset = record.offset_delta
            walk.found_timestamp = record.timestamp_delta
        if not walk.any or record.timestamp_delta > walk.greatest_timestamp:
            walk.any = True
            walk.greatest_offset = record.offset_delta
            walk.greatest_timestamp = record.timestamp_delta
            if walk.rising_count < rising_max:
                rising[2 * walk.rising_count] = record.offset_delta
                rising[2 * walk.rising_count + 1] = record.timestamp_delta
                walk.rising_count += 1
            else:
                walk.all_rising = False
    walk.damaged_at = -1 if position == end else position


cdef void keys(
    const uint8_t *data, int64_t end, int64_t record_count, int64_t *keyless, int64_t *damaged_at
) noexcept nogil:
    cdef int64_t position = 0
    cdef int64_t number
    cdef Record record
    keyless[0] = damaged_at[0] = -1
    for number in range(record_count):
        if not read_record(data, end, position, &record):
            damaged_at[0] = position
            return
        if record.keyless:
            keyless[0] = number
            return
        position = record.stop
    if position != end:
        damaged_at[0] = position


def walk_timestamps(body, int64_t record_count, timestamp_delta_min, int64_t offset_delta_min, Py_ssize_t rising_max):
    """See the twin."""
    cdef Py_buffer data
    cdef Walk walk
    cdef int64_t timestamp_min = max(-(1 << 63), min(timestamp_delta_min, (1 << 63) - 1))
    cdef bint beyond = timestamp_delta_min > (1 << 63) - 1
    cdef int64_t *rising
    if rising_max < 0:
        raise ValueError("less than no rising timestamps")
    rising = <int64_t *> malloc(max(rising_max, 1) * 2 * sizeof(int64_t))
    if rising == NULL:
        raise MemoryError
    try:
        PyObject_GetBuffer(body, &data, PyBUF_SIMPLE)
        walk.found = walk.any = False
        walk.all_rising = True
        walk.rising_count = 0
        try:
            if data.len < LARGE_BYTES:
                timestamps(<const uint8_t *> data.buf, data.len, record_count, timestamp_min, offset_delta_min, rising,
                           rising_max, &walk)
            else:
                with nogil:
                    timestamps(<const uint8_t *> data.buf, data.len, record_count, timestamp_min, offset_delta_min,
                               rising, rising_max, &walk)
        finally:
            PyBuffer_Release(&data)
        return TimestampWalk(
            (walk.found_offset, walk.found_timestamp) if walk.found and not beyond else None,
            (walk.greatest_offset, walk.greatest_timestamp) if walk.any else None,
            tuple([(rising[2 * number], rising[2 * number + 1]) for number in range(walk.rising_count)]),
            walk.all_rising,
            walk.damaged_at,
        )
    finally:
        free(rising)


def first_keyless(body, int64_t record_count):
    """See the twin."""
    cdef Py_buffer data
    cdef int64_t keyless, damaged_at
    PyObject_GetBuffer(body, &data, PyBUF_SIMPLE)
    try:
        if data.len < LARGE_BYTES:
            keys(<const uint8_t *> data.buf, data.len, record_count, &keyless, &damaged_at)
        else:
            with nogil:
                keys(<const uint8_t *> data.buf, data.len, record_count, &keyless, &damaged_at)
        return keyless, damaged_at
    finally:
        PyBuffer_Release(&data)
