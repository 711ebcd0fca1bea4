"""Batches without the records that go. See the twin. The interpreter is let go of meanwhile."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.batch_header cimport (
    ATTRIBUTES_AT, BASE_TIMESTAMP_AT, CHECKED_FROM, CHECKSUM_AT, CONTROL_BIT, DELETE_HORIZON_BIT, HEADER_BYTES,
    LAST_OFFSET_DELTA_AT, LENGTH_AT, LENGTH_EXCLUDES, LOG_APPEND_TIME_BIT, MAX_TIMESTAMP_AT, RECORD_COUNT_AT,
)
from mainstem.kernel.compiled.bytes_io cimport (
    ms_crc32c, ms_crc_prepare, ms_read_u16, ms_read_u32, ms_read_u64, ms_write_u16, ms_write_u32, ms_write_u64,
)
from mainstem.kernel.compiled.record cimport RECORD_BYTES_MIN, RECORD_GROWTH_MAX, Record, read_record

ms_crc_prepare()

cdef enum:
    BATCH_FIELDS = 7
    RULING_FIELDS = 3
    SIEVED_FIELDS = 8

cdef int64_t BATCH_BYTES_MAX = (1 << 31) - 1
cdef int64_t NO_ROOM = INT64_MIN

cdef enum Outcome:
    AS_IT_IS = 0
    CHANGES
    GOES
    DIFFERS              # it is not what was scanned

cdef struct Sieve:
    const uint8_t *header
    const uint8_t *data      # the records, plain
    int64_t size
    const int64_t *kept
    const int64_t *kept_end
    int64_t horizon
    # of the header:
    int64_t records
    int64_t base_offset
    uint64_t base_timestamp
    uint16_t attributes
    # what is left:
    int64_t left
    int64_t largest_timestamp
    bint marked              # it gets a horizon


cdef int judge(Sieve *sieve) noexcept nogil:
    cdef const uint8_t *header = sieve.header
    cdef const int64_t *kept = sieve.kept
    cdef int64_t last_delta = <int32_t> ms_read_u32(header + LAST_OFFSET_DELTA_AT)
    cdef int64_t position = 0, number, offset, timestamp, previous = -1, tombstones = 0
    cdef bint stays, readable
    cdef Record record
    sieve.records = <int32_t> ms_read_u32(header + RECORD_COUNT_AT)
    sieve.base_offset = <int64_t> ms_read_u64(header)
    sieve.base_timestamp = ms_read_u64(header + BASE_TIMESTAMP_AT)
    sieve.attributes = ms_read_u16(header + ATTRIBUTES_AT)
    sieve.left = 0
    sieve.marked = False
    readable = 0 <= sieve.records <= sieve.size // RECORD_BYTES_MIN
    if readable:
        for number in range(sieve.records):
            readable = read_record(sieve.data, sieve.size, position, &record)
            if not readable or record.offset_delta <= previous or record.offset_delta > last_delta:
                readable = False
                break
            previous = record.offset_delta
            position = record.stop
            offset = <int64_t> (<uint64_t> sieve.base_offset + <uint64_t> record.offset_delta)
            stays = kept < sieve.kept_end and kept[0] == offset
            if stays:
                kept += 1
            if stays or record.key_size < 0:
                timestamp = <int64_t> (sieve.base_timestamp + <uint64_t> record.timestamp_delta)
                if sieve.left == 0 or timestamp > sieve.largest_timestamp:
                    sieve.largest_timestamp = timestamp
                sieve.left += 1
                if record.key_size >= 0 and record.valueless:
                    tombstones += 1
    if not readable or position != sieve.size:
        return AS_IT_IS if sieve.kept == sieve.kept_end else DIFFERS
    if kept != sieve.kept_end:
        return DIFFERS
    sieve.marked = tombstones > 0 and sieve.horizon >= 0 and not sieve.attributes & DELETE_HORIZON_BIT
    if sieve.left == sieve.records and not sieve.marked:
        return AS_IT_IS
    return CHANGES if sieve.left else GOES


cdef inline uint8_t *put_signed(uint8_t *out, int64_t value) noexcept nogil:
    cdef uint64_t bits = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    while bits > 0x7F:
        out[0] = <uint8_t> (bits & 0x7F | 0x80)
        out += 1
        bits >>= 7
    out[0] = <uint8_t> bits
    return out + 1


cdef inline int signed_size(int64_t value) noexcept nogil:
    cdef uint64_t bits = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    cdef int size = 1
    while bits > 0x7F:
        bits >>= 7
        size += 1
    return size


cdef int64_t put(Sieve *sieve, uint8_t *out, int64_t room) noexcept nogil:
    """Write the header, but for length and checksum, and the records that stay, plain. The bytes of both, or NO_ROOM."""
    cdef const int64_t *kept = sieve.kept
    cdef const uint8_t *data = sieve.data
    cdef uint8_t *begin = out
    cdef uint64_t base_timestamp = <uint64_t> sieve.horizon if sieve.marked else sieve.base_timestamp
    cdef int64_t growth = RECORD_GROWTH_MAX if sieve.marked else 0
    cdef int64_t position = 0, run = 0, number, offset, delta, rest
    cdef Record record
    if room < HEADER_BYTES + sieve.size + growth * sieve.left:
        return NO_ROOM
    memcpy(out, sieve.header, HEADER_BYTES)
    if sieve.marked:
        ms_write_u16(out + ATTRIBUTES_AT, sieve.attributes | DELETE_HORIZON_BIT)
        ms_write_u64(out + BASE_TIMESTAMP_AT, base_timestamp)
    if not sieve.attributes & LOG_APPEND_TIME_BIT:
        ms_write_u64(out + MAX_TIMESTAMP_AT, <uint64_t> sieve.largest_timestamp)
    ms_write_u32(out + RECORD_COUNT_AT, <uint32_t> sieve.left)
    out += HEADER_BYTES
    for number in range(sieve.records):
        read_record(data, sieve.size, position, &record)
        offset = <int64_t> (<uint64_t> sieve.base_offset + <uint64_t> record.offset_delta)
        if kept < sieve.kept_end and kept[0] == offset:
            kept += 1
        elif record.key_size >= 0:  # it goes, and ends the bytes that stay as they are
            memcpy(out, data + run, position - run)
            out += position - run
            position = run = record.stop
            continue
        if sieve.marked:
            delta = <int64_t> (sieve.base_timestamp + <uint64_t> record.timestamp_delta - base_timestamp)
            rest = record.stop - record.timestamp_end
            out = put_signed(out, 1 + signed_size(delta) + rest)
            out[0] = data[record.attributes_at]
            out = put_signed(out + 1, delta)
            memcpy(out, data + record.timestamp_end, rest)
            out += rest
            run = record.stop
        position = record.stop
    memcpy(out, data + run, position - run)
    return out + (position - run) - begin


cdef int64_t sieve_all(
    const uint8_t *content, int64_t size, const int64_t *row, const int64_t *ruling, Py_ssize_t batches,
    const int64_t *kept, int64_t kept_count, uint8_t *out, int64_t room, int64_t *result,
) noexcept nogil:
    """The number of batches that stay; minus one, minus the number of one that is not what was scanned; NO_ROOM."""
    cdef Py_ssize_t number
    cdef int64_t done = 0, staying = 0, length, first, end
    cdef const uint8_t *batch
    cdef int outcome
    cdef Sieve sieve
    for number in range(batches):
        first, end = ruling[0], ruling[1]
        if row[0] < 0 or row[0] > size or row[1] < HEADER_BYTES or row[1] > size - row[0]:
            return NO_ROOM
        batch, length = content + row[0], row[1]
        outcome = AS_IT_IS
        if first >= 0 and not ms_read_u16(batch + ATTRIBUTES_AT) & CONTROL_BIT:
            if end < first or end > kept_count:
                return NO_ROOM
            sieve.header, sieve.data, sieve.size = batch, batch + HEADER_BYTES, length - HEADER_BYTES
            sieve.kept, sieve.kept_end, sieve.horizon = kept + first, kept + end, ruling[2]
            outcome = judge(&sieve)
            if outcome == CHANGES or outcome == GOES:
                if ms_crc32c(0, batch + CHECKED_FROM, length - CHECKED_FROM) != ms_read_u32(batch + CHECKSUM_AT):
                    outcome = DIFFERS
            if outcome == DIFFERS:
                return -1 - number
        if outcome == AS_IT_IS:
            if length > room - done:
                return NO_ROOM
            memcpy(out + done, batch, length)
        elif outcome == CHANGES:
            length = put(&sieve, out + done, room - done)
            if length == NO_ROOM:
                return NO_ROOM
            if length > BATCH_BYTES_MAX:
                return -1 - number
            ms_write_u32(out + done + LENGTH_AT, <uint32_t> (length - LENGTH_EXCLUDES))
            ms_write_u32(out + done + CHECKSUM_AT, ms_crc32c(0, out + done + CHECKED_FROM, length - CHECKED_FROM))
        if outcome != GOES:
            result[0] = done
            result[1] = length
            result[2] = <int64_t> ms_read_u64(batch)
            result[3] = result[2] + <int32_t> ms_read_u32(batch + LAST_OFFSET_DELTA_AT)
            result[4] = <int64_t> ms_read_u64(out + done + MAX_TIMESTAMP_AT)
            result[5] = <int32_t> ms_read_u32(out + done + RECORD_COUNT_AT)
            result[6] = row[6]
            result[7] = number
            result += SIEVED_FIELDS
            staying += 1
            done += length
        row += BATCH_FIELDS
        ruling += RULING_FIELDS
    return staying


def sieve_batches(content, batches, rulings, kept, out, results):
    """See the twin."""
    cdef Py_buffer views[6]
    cdef int taken = 0
    cdef int64_t staying
    try:
        for view in (content, batches, rulings, kept):
            PyObject_GetBuffer(view, &views[taken], PyBUF_SIMPLE)
            taken += 1
        for view in (out, results):
            PyObject_GetBuffer(view, &views[taken], PyBUF_WRITABLE)
            taken += 1
        if views[1].len % (8 * BATCH_FIELDS) or views[2].len * BATCH_FIELDS != views[1].len * RULING_FIELDS:
            raise ValueError("batches have seven fields, and rulings three")
        if views[5].len // SIEVED_FIELDS < views[1].len // BATCH_FIELDS or views[3].len % 8:
            raise ValueError("results have eight fields, and offsets 8 bytes")
        with nogil:
            staying = sieve_all(
                <const uint8_t *> views[0].buf, views[0].len, <const int64_t *> views[1].buf,
                <const int64_t *> views[2].buf, views[1].len // (8 * BATCH_FIELDS), <const int64_t *> views[3].buf,
                views[3].len // 8, <uint8_t *> views[4].buf, views[4].len, <int64_t *> views[5].buf)
        if staying == NO_ROOM:
            raise ValueError("a batch or its offsets lie outside of what there is, or there is no room for it")
        return staying
    finally:
        for number in range(taken):
            PyBuffer_Release(&views[number])


def sieve_records(header, records, kept, horizon_ms, out):
    """See the twin."""
    cdef Py_buffer views[4]
    cdef int taken = 0
    cdef int outcome
    cdef int64_t size = 0
    cdef Sieve sieve
    sieve.horizon = horizon_ms
    try:
        for view in (header, records, kept):
            PyObject_GetBuffer(view, &views[taken], PyBUF_SIMPLE)
            taken += 1
        PyObject_GetBuffer(out, &views[taken], PyBUF_WRITABLE)
        taken += 1
        if views[0].len < HEADER_BYTES or views[2].len % 8:
            raise ValueError("a header has 61 bytes, and an offset 8")
        sieve.header, sieve.data, sieve.size = <const uint8_t *> views[0].buf, <const uint8_t *> views[1].buf, views[1].len
        sieve.kept = <const int64_t *> views[2].buf
        sieve.kept_end = sieve.kept + views[2].len // 8
        with nogil:
            outcome = judge(&sieve)
            if outcome == CHANGES:
                size = put(&sieve, <uint8_t *> views[3].buf, views[3].len)
        if size == NO_ROOM:
            raise ValueError("there is no room for the batch")
        if outcome == AS_IT_IS:
            return -1
        return -2 if outcome == DIFFERS else size
    finally:
        for number in range(taken):
            PyBuffer_Release(&views[number])
