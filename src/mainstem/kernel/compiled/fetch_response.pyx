"""A Fetch response, from the rows of a plan to the buffers of a frame; see the twin.

One bytes object is made for all that is copied, large enough for whatever the numbers turn out to be, and cut to size
at the end. Parts that are not copied stand between slices of it.
"""

from cpython.buffer cimport Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.bytes_io cimport ms_write_u16, ms_write_u32, ms_write_u64
from mainstem.kernel.compiled.fetch_rows cimport (
    NOBODY,
    UNCOPIED_BYTES_MIN,
    Answer,
    Part,
    PlanRow,
    PlanTopic,
)
from mainstem.kernel.compiled.layout cimport OK

from mainstem.kernel.pure import fetch_response as twin

cdef extern from "Python.h":
    # bytes that are made longer than needed and cut must be held by a plain pointer
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size) except NULL
    char *bytes_of "PyBytes_AS_STRING"(PyObject *data)
    int cut_bytes "_PyBytes_Resize"(PyObject **data, Py_ssize_t size) except -1
    void drop "Py_XDECREF"(PyObject *data)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

assert twin.UNCOPIED_BYTES_MIN == UNCOPIED_BYTES_MIN

cdef enum:
    FLEXIBLE_FROM = 12
    LOG_START_FROM = 5
    SESSIONS_FROM = 7
    REPLICAS_FROM = 11
    HEAD_BYTES_MAX = 64
    TOPIC_BYTES_MAX = 16     # lengths and tags, the key aside
    ROW_BYTES_MAX = 80       # numbers and tags, the batches aside
    ID_BYTES = 16

cdef int64_t FRAME_BYTES_MAX = 0x7FFFFFFF


cdef inline uint8_t *put_i16(uint8_t *place, int16_t value) noexcept nogil:
    ms_write_u16(place, <uint16_t> value)
    return place + 2


cdef inline uint8_t *put_i32(uint8_t *place, int32_t value) noexcept nogil:
    ms_write_u32(place, <uint32_t> value)
    return place + 4


cdef inline uint8_t *put_i64(uint8_t *place, int64_t value) noexcept nogil:
    ms_write_u64(place, <uint64_t> value)
    return place + 8


cdef inline uint8_t *put_length(uint8_t *place, int64_t length, bint flexible) noexcept nogil:
    """The length of an array or of records; -1: null."""
    cdef uint64_t value
    if not flexible:
        return put_i32(place, <int32_t> length)
    value = <uint64_t> (length + 1)
    while value > 0x7F:
        place[0] = <uint8_t> (value & 0x7F | 0x80)
        place += 1
        value >>= 7
    place[0] = <uint8_t> value
    return place + 1


cdef int64_t key_bytes(object key) except -1:
    """The bytes of a topic's name or id, its length aside."""
    cdef Py_ssize_t size
    if isinstance(key, bytes):
        return ID_BYTES
    PyUnicode_AsUTF8AndSize(key, &size)
    return size


cdef uint8_t *put_key(uint8_t *place, object key, int version) except NULL:
    cdef Py_ssize_t size
    cdef const char *data
    if isinstance(key, bytes):
        memcpy(place, PyBytes_AS_STRING(key), ID_BYTES)
        return place + ID_BYTES
    data = PyUnicode_AsUTF8AndSize(key, &size)
    if version >= FLEXIBLE_FROM:
        place = put_length(place, size, True)
    else:
        place = put_i16(place, <int16_t> size)
    memcpy(place, data, size)
    return place + size


cdef list write_fetch_response(
    int version, int32_t correlation_id, int32_t session_id, const Answer *answer, list keys, object codes,
    bint read_committed,
):
    """The frame of a Fetch response without an error of its own. Raises OverflowError beyond 2 GiB."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t bound = (
        HEAD_BYTES_MAX + TOPIC_BYTES_MAX * <int64_t> answer.topic_count + answer.key_bytes
        + ROW_BYTES_MAX * answer.row_count + answer.copied_bytes
    )
    cdef int64_t uncopied = 0, size
    cdef PyObject *memory = new_bytes(NULL, bound)
    cdef uint8_t *start = <uint8_t *> bytes_of(memory)
    cdef uint8_t *place
    cdef const PlanTopic *topic
    cdef const PlanRow *row
    cdef const Part *part
    cdef int32_t topic_number = answer.first_topic, row_number
    cdef Py_ssize_t part_number
    cdef bint served
    cdef list cuts = None
    cdef object head
    try:
        place = put_i32(start + 4, correlation_id)
        if flexible:
            place[0] = 0
            place += 1
        place = put_i32(place, 0)
        if version >= SESSIONS_FROM:
            place = put_i32(put_i16(place, 0), session_id)
        place = put_length(place, answer.topic_count, flexible)
        while topic_number != NOBODY:
            topic = &answer.topics[topic_number]
            place = put_key(place, keys[topic_number], version)
            place = put_length(place, topic.answered_count, flexible)
            row_number = topic.first_answered
            while row_number != NOBODY:
                row = &answer.rows[row_number]
                served = row.high_watermark >= 0
                place = put_i32(place, row.partition)
                place = put_i16(place, 0 if row.verdict == OK else <int16_t> codes[row.verdict])
                place = put_i64(place, row.high_watermark)
                place = put_i64(place, row.high_watermark)
                if version >= LOG_START_FROM:
                    place = put_i64(place, row.log_start)
                place = put_length(place, 0 if read_committed and served else -1, flexible)
                if version >= REPLICAS_FROM:
                    place = put_i32(place, -1)
                place = put_length(place, row.size, flexible)
                for part_number in range(row.first_part, row.first_part + row.part_count):
                    part = &answer.parts[part_number]
                    if part.length < UNCOPIED_BYTES_MIN:
                        memcpy(place, part.bytes, part.length)
                        place += part.length
                    else:
                        if cuts is None:
                            cuts = []
                        cuts.append((place - start, view_of(part)))
                        uncopied += part.length
                if flexible:
                    if row.diverged:     # one tagged field: number 0, 13 bytes
                        place[0], place[1], place[2] = 1, 0, 13
                        place = put_i64(put_i32(place + 3, row.diverging_epoch), row.diverging_end)
                    place[0] = 0
                    place += 1
                row_number = row.answered
            if flexible:
                place[0] = 0
                place += 1
            topic_number = topic.next_answered
        if flexible:
            place[0] = 0
            place += 1
        size = place - start
        assert size <= bound, "a Fetch response is larger than its parts"
        if size + uncopied - 4 > FRAME_BYTES_MAX:
            raise OverflowError(f"a Fetch response of {size + uncopied - 4} bytes")
        ms_write_u32(start, <uint32_t> (size + uncopied - 4))
        cut_bytes(&memory, size)
        head = <object> memory
    finally:
        drop(memory)
    return [head] if cuts is None else between(memoryview(head), cuts)


cdef object view_of(const Part *part):
    """The bytes of a part, uncopied."""
    cdef object owner = <object> part.owner
    cdef Py_ssize_t start = part.bytes - <const uint8_t *> PyMemoryView_GET_BUFFER(owner).buf
    return owner[start : start + part.length]


cdef list between(object copied, list cuts):
    """Slices of what was copied, and what was not where it was left out."""
    cdef list buffers = []
    cdef Py_ssize_t position = 0, cut
    for cut, view in cuts:
        if cut > position:
            buffers.append(copied[position:cut])
        buffers.append(view)
        position = cut
    if len(copied) > position:
        buffers.append(copied[position:])
    return buffers
