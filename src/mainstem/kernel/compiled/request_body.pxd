"""Reading the fields of a request's body in place, for every scan: C inline functions only. See the twin.

Every function leaves what it read where it is told, moves the position, and returns 0; or it returns the fault, which
it also leaves in the reader. Nothing is read that is not known to be inside the body, and `position` never passes
`size`, so `size - position` is what remains. Numbers are 64 bits wide: nothing read from 32 bits overflows them.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t

from mainstem.kernel.compiled.bytes_io cimport ms_read_u16, ms_read_u32

cdef enum:
    TEXT_BYTES_MAX = 32767

cdef enum Fault:
    SOUND = 0
    ENDS_EARLY
    VARINT_TOO_LONG
    BAD_LENGTH_FIELD
    TEXT_TOO_LONG_FOR_BODY
    TEXT_TOO_LONG
    RECORDS_TOO_LONG
    COUNT_TOO_LARGE
    TAG_TOO_LONG

cdef struct Reader:
    const uint8_t *data
    int64_t size
    int64_t position
    int fault
    int64_t claimed      # the number that is at fault


cdef inline int failed(Reader *reader, int fault, int64_t claimed) noexcept nogil:
    reader.fault = fault
    reader.claimed = claimed
    return fault


cdef inline int read_i16(Reader *reader, int32_t *value) noexcept nogil:
    if reader.size - reader.position < 2:
        return failed(reader, ENDS_EARLY, 0)
    value[0] = <int16_t> ms_read_u16(reader.data + reader.position)
    reader.position += 2
    return SOUND


cdef inline int read_i32(Reader *reader, int32_t *value) noexcept nogil:
    if reader.size - reader.position < 4:
        return failed(reader, ENDS_EARLY, 0)
    value[0] = <int32_t> ms_read_u32(reader.data + reader.position)
    reader.position += 4
    return SOUND


cdef inline int read_unsigned_varint(Reader *reader, int64_t *value) noexcept nogil:
    cdef int64_t number = 0
    cdef uint8_t byte
    cdef int shift = 0
    while shift < 35:
        if reader.position >= reader.size:
            return failed(reader, ENDS_EARLY, 0)
        byte = reader.data[reader.position]
        reader.position += 1
        number |= <int64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = number
            return SOUND
        shift += 7
    return failed(reader, VARINT_TOO_LONG, 0)


cdef inline int read_length(Reader *reader, bint flexible, int64_t *length) noexcept nogil:
    cdef int32_t narrow
    if flexible:
        if read_unsigned_varint(reader, length):
            return reader.fault
        length[0] -= 1
        return SOUND
    if read_i32(reader, &narrow):
        return reader.fault
    if narrow < -1:
        return failed(reader, BAD_LENGTH_FIELD, narrow)
    length[0] = narrow
    return SOUND


cdef inline int read_text_length(Reader *reader, bint flexible, int64_t *length) noexcept nogil:
    cdef int32_t narrow
    if flexible:
        if read_unsigned_varint(reader, length):
            return reader.fault
        length[0] -= 1
    else:
        if read_i16(reader, &narrow):
            return reader.fault
        length[0] = narrow
    if length[0] < -1 or length[0] > reader.size - reader.position:
        return failed(reader, TEXT_TOO_LONG_FOR_BODY, length[0])
    if length[0] > TEXT_BYTES_MAX:
        return failed(reader, TEXT_TOO_LONG, length[0])
    return SOUND


cdef inline int read_records_length(Reader *reader, bint flexible, int64_t *length) noexcept nogil:
    if read_length(reader, flexible, length):
        return reader.fault
    if length[0] > reader.size - reader.position:
        return failed(reader, RECORDS_TOO_LONG, length[0])
    if length[0] < 0:
        length[0] = 0
    return SOUND


cdef inline int read_count(Reader *reader, bint flexible, int64_t bytes_min, int64_t *count) noexcept nogil:
    if read_length(reader, flexible, count):
        return reader.fault
    if count[0] < 0 or count[0] * bytes_min > reader.size - reader.position:
        return failed(reader, COUNT_TOO_LARGE, count[0])
    return SOUND


cdef inline int skip_tags(Reader *reader) noexcept nogil:
    cdef int64_t count, size
    if reader.position < reader.size and reader.data[reader.position] == 0:
        reader.position += 1
        return SOUND
    if read_unsigned_varint(reader, &count):
        return reader.fault
    while count > 0:
        if read_unsigned_varint(reader, &size) or read_unsigned_varint(reader, &size):
            return reader.fault
        if size > reader.size - reader.position:
            return failed(reader, TAG_TOO_LONG, size)
        reader.position += size
        count -= 1
    return SOUND


cdef inline str fault_message(Reader *reader):
    """The text of a fault other than ENDS_EARLY, as the twin has it."""
    cdef int64_t remain = reader.size - reader.position
    if reader.fault == VARINT_TOO_LONG:
        return "a variable-length number exceeds 32 bits"
    if reader.fault == BAD_LENGTH_FIELD:
        return f"a length is {reader.claimed}"
    if reader.fault == TEXT_TOO_LONG_FOR_BODY:
        return f"a string claims {reader.claimed} bytes, {remain} remain"
    if reader.fault == TEXT_TOO_LONG:
        return f"a string has {reader.claimed} bytes, more than a string may have"
    if reader.fault == RECORDS_TOO_LONG:
        return f"records claim {reader.claimed} bytes, {remain} remain"
    if reader.fault == COUNT_TOO_LARGE:
        return f"an array claims {reader.claimed} elements in {remain} bytes"
    return f"a tagged field claims {reader.claimed} bytes, {remain} remain"
