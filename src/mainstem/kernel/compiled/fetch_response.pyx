"""A Fetch response, from the rows of a plan to the buffers of a frame; see the twin.

One bytes object is made for all that is copied, of the size that was measured before: the allocator reuses large
memory of sizes it has seen, and maps what is made larger and cut anew each time, page by page. Parts that are not
copied stand between pieces of it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.bytes_io cimport ms_write_u16, ms_write_u32, ms_write_u64
from mainstem.kernel.compiled.fetch_rows cimport (
    JOINED_BYTES_MAX,
    NOBODY,
    SCATTERED_BYTES_FROM,
    SCATTERED_FROM,
    SPARED_BYTES_MIN,
    UNCOPIED_BYTES_MIN,
    Aborted,
    Answer,
    Part,
    PlanRow,
    PlanTopic,
)
from mainstem.kernel.compiled.layout cimport OK
from mainstem.kernel.compiled.scattered_bytes cimport ScatteredBytes

from mainstem.kernel.pure import fetch_response as twin

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

assert twin.UNCOPIED_BYTES_MIN == UNCOPIED_BYTES_MIN
assert (twin.SCATTERED_FROM, twin.SCATTERED_BYTES_FROM) == (SCATTERED_FROM, SCATTERED_BYTES_FROM)
assert (twin.SPARED_BYTES_MIN, twin.JOINED_BYTES_MAX) == (SPARED_BYTES_MIN, JOINED_BYTES_MAX)

cdef enum:
    FLEXIBLE_FROM = 12
    LOG_START_FROM = 5
    SESSIONS_FROM = 7
    REPLICAS_FROM = 11
    ID_BYTES = 16
    DIVERGING_BYTES = 15     # of the tagged field, its count aside
    ABORTED_BYTES = 16       # of an aborted transaction, its tags aside

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


cdef inline int length_bytes(int64_t length, bint flexible) noexcept nogil:
    """What `put_length` writes."""
    cdef uint64_t value = <uint64_t> (length + 1)
    cdef int size = 1
    if not flexible:
        return 4
    while value > 0x7F:
        size += 1
        value >>= 7
    return size


cdef inline uint8_t *put_tags(uint8_t *place) noexcept nogil:
    """No tagged fields."""
    place[0] = 0
    return place + 1


cdef inline uint8_t *put_diverging(uint8_t *place, const PlanRow *row) noexcept nogil:
    """One tagged field, number 0, of 13 bytes; tagged fields of its own it has none."""
    place[0], place[1], place[2] = 1, 0, 13
    return put_tags(put_i64(put_i32(place + 3, row.diverging_epoch), row.diverging_end))


cdef uint8_t *put_aborted(uint8_t *place, const Answer *answer, int32_t list_place, bint flexible) noexcept nogil:
    """A list of aborted transactions; an empty one at place 0."""
    cdef int64_t number
    cdef const Aborted *told
    if not list_place:
        return put_length(place, 0, flexible)
    told = &answer.aborted[list_place - 1]
    place = put_length(place, told.count, flexible)
    for number in range(told.count):
        place = put_i64(put_i64(place, told.pairs[2 * number]), told.pairs[2 * number + 1])
        if flexible:
            place = put_tags(place)
    return place


cdef int64_t key_bytes(object key, int version) except -1:
    """What `put_key` writes."""
    cdef Py_ssize_t size
    if isinstance(key, bytes):
        return ID_BYTES
    PyUnicode_AsUTF8AndSize(key, &size)
    return size + (length_bytes(size, True) if version >= FLEXIBLE_FROM else 2)


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


cdef int64_t head_bytes(int version, const Answer *answer) noexcept nogil:
    """Everything of a frame but its topics."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t size = 4 + 4 + 4 + flexible + length_bytes(answer.topic_count, flexible) + flexible
    return size + 2 + 4 if version >= SESSIONS_FROM else size


cdef int64_t topic_bytes(int version, const Answer *answer) noexcept nogil:
    """The topics but the parts that are not copied."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int row_bytes = 4 + 2 + 8 + 8 + length_bytes(-1, flexible) + flexible
    cdef int64_t size, aborted_count
    cdef const PlanTopic *topic
    cdef const PlanRow *row
    cdef int32_t topic_number = answer.first_topic, row_number
    if version >= LOG_START_FROM:
        row_bytes += 8
    if version >= REPLICAS_FROM:
        row_bytes += 4
    size = answer.key_bytes + answer.row_count * row_bytes + answer.small_bytes
    while topic_number != NOBODY:
        topic = &answer.topics[topic_number]
        size += length_bytes(topic.answered_count, flexible) + flexible
        row_number = topic.first_answered
        while row_number != NOBODY:
            row = &answer.rows[row_number]
            size += length_bytes(row.size, flexible)
            if row.aborted:
                aborted_count = answer.aborted[row.aborted - 1].count
                size += length_bytes(aborted_count, flexible) - length_bytes(0, flexible)
                size += aborted_count * (ABORTED_BYTES + flexible)
            if row.diverged and flexible:
                size += DIVERGING_BYTES
            row_number = row.answered
        topic_number = topic.next_answered
    return size


cdef list write_fetch_response(
    int version, int32_t correlation_id, int32_t session_id, const Answer *answer, list keys, object codes,
    bint read_committed, int32_t throttle_ms,
):
    """The frame of a Fetch response without an error of its own: buffers, or one `ScatteredBytes` of many or large
    ones. Raises OverflowError beyond 2 GiB."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t copied = head_bytes(version, answer) + topic_bytes(version, answer), uncopied = answer.large_bytes
    cdef uint8_t *start
    cdef uint8_t *place
    cdef const uint8_t *joined
    cdef ScatteredBytes scattered
    cdef bytes frame
    if copied + uncopied - 4 > FRAME_BYTES_MAX:
        raise OverflowError(f"a Fetch response of {copied + uncopied - 4} bytes")
    frame = PyBytes_FromStringAndSize(NULL, copied)
    start = <uint8_t *> PyBytes_AS_STRING(frame)
    joined = start
    view = memoryview(frame)
    scattered = room_for(answer)
    place = put_i32(put_i32(start, <int32_t> (copied + uncopied - 4)), correlation_id)
    if flexible:
        place = put_tags(place)
    place = put_i32(place, throttle_ms)
    if version >= SESSIONS_FROM:
        place = put_i32(put_i16(place, 0), session_id)
    place = put_length(place, answer.topic_count, flexible)
    place = put_topics(place, version, answer, keys, codes, read_committed, scattered, view, &joined)
    if flexible:
        place = put_tags(place)
    assert place - start == copied, "a Fetch response is not as long as it was measured"
    if scattered is None:
        return [frame]
    scattered.add(view, joined, place - joined)
    if answer.large_count >= SCATTERED_FROM or uncopied >= SCATTERED_BYTES_FROM:
        return [scattered]
    return scattered.take(copied + uncopied)


cdef list write_fetch_topics(int version, const Answer *answer, list keys, object codes, bint read_committed):
    """The topics alone, as buffers. Raises OverflowError beyond 2 GiB."""
    cdef int64_t copied = topic_bytes(version, answer)
    cdef uint8_t *start
    cdef uint8_t *place
    cdef const uint8_t *joined
    cdef ScatteredBytes scattered
    cdef bytes topics
    if copied + answer.large_bytes > FRAME_BYTES_MAX:
        raise OverflowError(f"topics of a Fetch response of {copied + answer.large_bytes} bytes")
    topics = PyBytes_FromStringAndSize(NULL, copied)
    start = <uint8_t *> PyBytes_AS_STRING(topics)
    joined = start
    view = memoryview(topics)
    scattered = room_for(answer)
    place = put_topics(start, version, answer, keys, codes, read_committed, scattered, view, &joined)
    assert place - start == copied, "topics of a Fetch response are not as long as they were measured"
    if scattered is None:
        return [topics]
    scattered.add(view, joined, place - joined)
    return scattered.take(copied + answer.large_bytes)


cdef ScatteredBytes room_for(const Answer *answer):
    """For the parts that are not copied and what stands between them; None when all are copied."""
    cdef ScatteredBytes scattered
    if not answer.large_count:
        return None
    scattered = ScatteredBytes.__new__(ScatteredBytes)
    scattered.reserve(2 * answer.large_count + 1)
    return scattered


cdef uint8_t *put_topics(
    uint8_t *place, int version, const Answer *answer, list keys, object codes, bint read_committed,
    ScatteredBytes scattered, object copied, const uint8_t **joined,
) except NULL:
    """Write the topics. `scattered` gets the parts that are not copied, each behind what was written before it, which
    lies in `copied`; what is behind `joined` is not in there yet."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef const PlanTopic *topic
    cdef const PlanRow *row
    cdef const Part *part
    cdef int32_t topic_number = answer.first_topic, row_number
    cdef Py_ssize_t part_number
    while topic_number != NOBODY:
        topic = &answer.topics[topic_number]
        place = put_key(place, keys[topic_number], version)
        place = put_length(place, topic.answered_count, flexible)
        row_number = topic.first_answered
        while row_number != NOBODY:
            row = &answer.rows[row_number]
            place = put_i32(place, row.partition)
            place = put_i16(place, 0 if row.verdict == OK else <int16_t> codes[row.verdict])
            place = put_i64(place, row.high_watermark)
            place = put_i64(place, row.last_stable)
            if version >= LOG_START_FROM:
                place = put_i64(place, row.log_start)
            # readers of committed data get a list of aborted transactions, others get none
            if read_committed and row.high_watermark >= 0:
                place = put_aborted(place, answer, row.aborted, flexible)
            else:
                place = put_length(place, -1, flexible)
            if version >= REPLICAS_FROM:
                place = put_i32(place, row.nearer)
            place = put_length(place, row.size, flexible)
            for part_number in range(row.first_part, row.first_part + row.part_count):
                part = &answer.parts[part_number]
                if part.length < answer.uncopied_min:
                    memcpy(place, part.bytes, part.length)
                    place += part.length
                else:
                    scattered.add(copied, joined[0], place - joined[0])
                    joined[0] = place
                    scattered.add(<object> part.owner, part.bytes, part.length)
            if flexible:
                if row.diverged:
                    place = put_diverging(place, row)
                else:
                    place = put_tags(place)
            row_number = row.answered
        if flexible:
            place = put_tags(place)
        topic_number = topic.next_answered
    return place
