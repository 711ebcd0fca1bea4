"""One record of a batch, read in place: C inline functions only. See the twin.

Nothing is read that is not known to be inside the data. Lengths are 64 bits wide and compared with what remains, so that
no sum of them overflows.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    RECORD_BYTES_MIN = 7
    RECORD_GROWTH_MAX = 10

cdef struct Record:
    int64_t stop
    int64_t attributes_at
    int64_t timestamp_delta
    int64_t timestamp_end    # the position behind it
    int64_t offset_delta
    int64_t key_at
    int64_t key_size         # -1: it has none
    bint valueless


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
    const uint8_t *data, int64_t end, int64_t stop, int64_t *position, int64_t *size
) noexcept nogil:
    """`size`: of the bytes passed over, -1 for null."""
    if not read_signed(data, end, position, size):
        return False
    if size[0] == -1:
        return True
    if size[0] < 0 or position[0] > stop or size[0] > stop - position[0]:
        return False
    position[0] += size[0]
    return True


cdef inline bint read_record(const uint8_t *data, int64_t end, int64_t start, Record *record) noexcept nogil:
    cdef int64_t position = start
    cdef int64_t size, header_count, number
    if not read_signed(data, end, &position, &size):
        return False
    if size < 0 or size > end - position:
        return False
    record.stop = position + size
    record.attributes_at = position  # which say nothing so far
    position += 1
    if not read_signed(data, end, &position, &record.timestamp_delta):
        return False
    record.timestamp_end = position
    if not read_signed(data, end, &position, &record.offset_delta):
        return False
    if not skip_bytes(data, end, record.stop, &position, &record.key_size):
        return False
    record.key_at = position - record.key_size
    if not skip_bytes(data, end, record.stop, &position, &size):
        return False
    record.valueless = size == -1
    if not read_signed(data, end, &position, &header_count):
        return False
    if header_count < 0 or header_count > record.stop - position:
        return False
    for number in range(header_count):
        if not skip_bytes(data, end, record.stop, &position, &size) or size == -1:
            return False
        if not skip_bytes(data, end, record.stop, &position, &size):
            return False
    return position == record.stop
