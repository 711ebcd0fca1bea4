"""The keys of records: what they hash to. See the twin. The interpreter is let go of meanwhile."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from mainstem.kernel.compiled.record cimport RECORD_BYTES_MIN, Record, read_record

cdef extern from "siphash.h" nogil:
    void ms_siphash(const uint8_t *key, const uint8_t *p, size_t size, uint64_t *low, uint64_t *high) noexcept

cdef enum:
    PLACE_FIELDS = 6
    ROW_BYTES = 25
    HASH_KEY_BYTES = 16

cdef enum Kind:
    VALUE = 0
    TOMBSTONE = 1
    NO_KEY = 2
    CONTROL = 3


cdef int64_t rows_of(
    const uint8_t *data, int64_t size, int64_t records, int64_t base_offset, int64_t last_delta, bint control,
    const uint8_t *key, uint8_t *row,
) noexcept nogil:
    """Rows for the records of one batch; -1 when they cannot be read, whatever was written then."""
    cdef int64_t position = 0, number, offset, previous = -1
    cdef uint64_t low, high
    cdef uint8_t kind
    cdef Record record
    for number in range(records):
        if not read_record(data, size, position, &record):
            return -1
        if record.offset_delta <= previous or record.offset_delta > last_delta:
            return -1
        previous = record.offset_delta
        position = record.stop
        offset = <int64_t> (<uint64_t> base_offset + <uint64_t> record.offset_delta)
        memcpy(row, &offset, 8)
        if control or record.key_size < 0:
            kind = CONTROL if control else NO_KEY
            memset(row + 8, 0, 16)
        else:
            kind = TOMBSTONE if record.valueless else VALUE
            ms_siphash(key, data + record.key_at, record.key_size, &low, &high)
            memcpy(row + 8, &high, 8)
            memcpy(row + 16, &low, 8)
        row[24] = kind
        row += ROW_BYTES
    return records if position == size else -1


cdef int64_t all_rows(
    const uint8_t *data, int64_t size, const int64_t *place, Py_ssize_t batches, const uint8_t *key, uint8_t *rows,
    int64_t room, int64_t *counts,
) noexcept nogil:
    """The number of rows; -1: there is no room for more, or a batch lies outside of the data."""
    cdef Py_ssize_t number
    cdef int64_t done = 0
    for number in range(batches):
        counts[number] = -1
        if place[1] >= 0:
            if place[0] < 0 or place[0] > size or place[1] > size - place[0]:
                return -1
            if 0 <= place[2] <= place[1] // RECORD_BYTES_MIN:
                if place[2] > room - done:
                    return -1
                counts[number] = rows_of(
                    data + place[0], place[1], place[2], place[3], place[4], place[5] != 0, key, rows + done * ROW_BYTES)
                if counts[number] > 0:
                    done += counts[number]
        place += PLACE_FIELDS
    return done


def key_rows(data, places, key, rows, counts):
    """See the twin."""
    cdef Py_buffer views[5]
    cdef int taken = 0
    cdef int64_t found
    try:
        for view in (data, places, key):
            PyObject_GetBuffer(view, &views[taken], PyBUF_SIMPLE)
            taken += 1
        for view in (rows, counts):
            PyObject_GetBuffer(view, &views[taken], PyBUF_WRITABLE)
            taken += 1
        if views[1].len % (8 * PLACE_FIELDS) or views[1].len // PLACE_FIELDS != views[4].len:
            raise ValueError("as many counts as places, which have six fields")
        if views[2].len != HASH_KEY_BYTES or views[3].len % ROW_BYTES:
            raise ValueError("the key has 16 bytes, and each row 25")
        with nogil:
            found = all_rows(
                <const uint8_t *> views[0].buf, views[0].len, <const int64_t *> views[1].buf,
                views[1].len // (8 * PLACE_FIELDS), <const uint8_t *> views[2].buf, <uint8_t *> views[3].buf,
                views[3].len // ROW_BYTES, <int64_t *> views[4].buf)
        if found < 0:
            raise ValueError("a batch lies outside of the data, or there is no room for the rows of its records")
        return found
    finally:
        for number in range(taken):
            PyBuffer_Release(&views[number])


def keyed_hash(key, data):
    """See the twin."""
    cdef Py_buffer views[2]
    cdef int taken = 0
    cdef uint64_t low, high
    try:
        for view in (key, data):
            PyObject_GetBuffer(view, &views[taken], PyBUF_SIMPLE)
            taken += 1
        if views[0].len != HASH_KEY_BYTES:
            raise ValueError("the key has 16 bytes")
        ms_siphash(<const uint8_t *> views[0].buf, <const uint8_t *> views[1].buf, views[1].len, &low, &high)
        return high, low
    finally:
        for number in range(taken):
            PyBuffer_Release(&views[number])
