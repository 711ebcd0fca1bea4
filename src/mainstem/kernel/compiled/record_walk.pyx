"""Walking the records of a batch in place. See the twin. The interpreter is let go of where it is much to read."""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

from mainstem.kernel.compiled.record cimport Record, read_record
from mainstem.kernel.pure.record_walk import TimestampWalk

cdef Py_ssize_t LARGE_BYTES = 64 * 1024
"""Some tens of microseconds of work. With less, an event loop that lets go would wait longer to get back."""

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
        if record.key_size < 0:
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
