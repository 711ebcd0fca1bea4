"""The Produce response, encoded from what became of the batches of a request; see the twin.

What is small and repeats, the errors, is looked up once for each verdict that occurs. The size of the frame is
counted first and written into one `bytes` then, by functions that stand side by side below.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from mainstem.kernel.compiled.bytes_io cimport ms_write_u16, ms_write_u32, ms_write_u64
from mainstem.kernel.compiled.layout cimport OK, Batch

cdef enum:
    LOG_START_FROM = 5
    MESSAGES_FROM = 8
    FLEXIBLE_FROM = 9
    IDS_FROM = 13
    VERDICTS_MAX = 64
    MESSAGE_BYTES_MAX = 32767
    LENGTH_BYTES = 4
    CORRELATION_ID_BYTES = 4

cdef struct Failure:
    # The entry of an error table.
    bint known
    int16_t code
    const char *message     # NULL: none
    int64_t message_bytes


cdef bytes encode_responses(
    int version, list requests, list topics, const Batch *batches, Py_ssize_t batch_count, object errors,
    int32_t throttle_ms
):
    cdef Failure failures[VERDICTS_MAX]
    cdef Py_ssize_t topic_first = 0, topic_count
    cdef int64_t size, whole = 0
    cdef int32_t correlation_id
    cdef const Batch *batch = batches
    cdef uint8_t *p
    cdef uint8_t *start
    held = _look_up(batches, batch_count, errors, failures)
    for _, topic_count in requests:
        size = _counted(version, topics, topic_first, topic_count, &batch, failures)
        if size > INT32_MAX:
            raise OverflowError(f"a response of {size} bytes")
        whole += LENGTH_BYTES + size
        topic_first += topic_count
    frames = PyBytes_FromStringAndSize(NULL, whole)
    p = <uint8_t *> PyBytes_AS_STRING(frames)
    topic_first = 0
    batch = batches
    for correlation_id, topic_count in requests:
        start = p
        ms_write_u32(p + LENGTH_BYTES, <uint32_t> correlation_id)
        p = _written(
            p + LENGTH_BYTES + CORRELATION_ID_BYTES, version, topics, topic_first, topic_count, &batch, failures,
            throttle_ms,
        )
        ms_write_u32(start, <uint32_t> (p - start - LENGTH_BYTES))
        topic_first += topic_count
    assert p - <uint8_t *> PyBytes_AS_STRING(frames) == whole, "the responses have another size than was counted"
    del held  # until here, what the messages point into
    return frames


cdef object codes_of(const Batch *batches, Py_ssize_t batch_count, object errors):
    cdef Failure failures[VERDICTS_MAX]
    cdef int64_t counts[VERDICTS_MAX]
    cdef int32_t seen[VERDICTS_MAX]
    cdef Py_ssize_t number, seen_count = 0
    cdef int32_t verdict
    cdef dict codes = {}
    if _look_up(batches, batch_count, errors, failures) is None:
        return codes
    memset(counts, 0, VERDICTS_MAX * sizeof(int64_t))
    for number in range(batch_count):
        verdict = batches[number].verdict
        if not counts[verdict]:
            seen[seen_count] = verdict
            seen_count += 1
        counts[verdict] += 1
    for number in range(seen_count):
        verdict = seen[number]
        if failures[verdict].code:
            codes[failures[verdict].code] = codes.get(failures[verdict].code, 0) + counts[verdict]
    return codes


cdef list _look_up(const Batch *batches, Py_ssize_t batch_count, object errors, Failure *failures):
    """Fill in the failures that occur, each once. Every verdict is inside the table then. Returns what keeps the
    messages alive; None when all is well."""
    cdef Py_ssize_t number
    cdef int32_t verdict
    cdef list held = None
    memset(failures, 0, VERDICTS_MAX * sizeof(Failure))
    for number in range(batch_count):
        verdict = batches[number].verdict
        if verdict == OK:
            continue
        if verdict < 0 or verdict >= VERDICTS_MAX or verdict >= len(errors):
            raise IndexError(f"no error for verdict {verdict}")
        if failures[verdict].known:
            continue
        code, message = errors[verdict]
        failures[verdict].known = True
        failures[verdict].code = code
        if message is not None:
            failures[verdict].message_bytes = PyBytes_GET_SIZE(<bytes?> message)
            failures[verdict].message = PyBytes_AS_STRING(<bytes> message)
            if failures[verdict].message_bytes > MESSAGE_BYTES_MAX:
                size = failures[verdict].message_bytes
                raise ValueError(f"an error message of {size} bytes, more than a string may have")
        if held is None:
            held = []
        held.append(message)
    return held


cdef int64_t _counted(
    int version, list topics, Py_ssize_t topic_first, Py_ssize_t topic_count, const Batch **batch,
    const Failure *failures,
) except -1:
    """Bytes of one response without its length; `batch` is moved behind its batches."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t size = CORRELATION_ID_BYTES + flexible + _count_bytes(topic_count, flexible) + 4 + flexible
    cdef int64_t fixed = 4 + 2 + 8 + 8  # partition, error code, base offset, log append time
    cdef Py_ssize_t at, number, count, key_bytes
    if version >= LOG_START_FROM:
        fixed += 8
    if version >= MESSAGES_FROM:
        fixed += 3 if flexible else 4 + 2  # no record errors, a null message, no tags
    for at in range(topic_first, topic_first + topic_count):
        key, count, _ = <tuple> topics[at]
        key_bytes = len(<bytes> key)
        if version < IDS_FROM:
            size += _varint_bytes(key_bytes + 1) if flexible else 2
        size += key_bytes + _count_bytes(count, flexible) + flexible + fixed * count
        if version >= MESSAGES_FROM:
            for number in range(count):
                size += _message_bytes(&failures[batch[0][number].verdict], flexible)
        batch[0] += count
    return size


cdef inline int64_t _message_bytes(const Failure *failure, bint flexible) noexcept:
    """What a message takes more than none."""
    if failure.message == NULL:
        return 0
    if flexible:
        return _varint_bytes(failure.message_bytes + 1) - 1 + failure.message_bytes
    return failure.message_bytes


cdef uint8_t *_written(
    uint8_t *p, int version, list topics, Py_ssize_t topic_first, Py_ssize_t topic_count, const Batch **batch,
    const Failure *failures, int32_t throttle_ms,
) except NULL:
    """Write what was counted, from behind the correlation id on."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef Py_ssize_t at, number, count
    if flexible:
        p = _put_varint(p, 0)
    p = _put_count(p, topic_count, flexible)
    for at in range(topic_first, topic_first + topic_count):
        key, count, _ = <tuple> topics[at]
        if version < IDS_FROM:
            p = _put_text_length(p, len(<bytes> key), flexible)
        p = _put(p, PyBytes_AS_STRING(<bytes> key), len(<bytes> key))
        p = _put_count(p, count, flexible)
        for number in range(count):
            p = _put_partition(p, version, &batch[0][number], &failures[batch[0][number].verdict])
        batch[0] += count
        if flexible:
            p = _put_varint(p, 0)
    ms_write_u32(p, <uint32_t> throttle_ms)
    p += 4
    return _put_varint(p, 0) if flexible else p


cdef inline uint8_t *_put_partition(uint8_t *p, int version, const Batch *batch, const Failure *failure) noexcept nogil:
    ms_write_u32(p, <uint32_t> batch.partition)
    ms_write_u16(p + 4, <uint16_t> failure.code)
    ms_write_u64(p + 6, <uint64_t> batch.base_offset)
    ms_write_u64(p + 14, <uint64_t> batch.log_append_time_ms)
    p += 22
    if version >= LOG_START_FROM:
        ms_write_u64(p, <uint64_t> batch.log_start_offset)
        p += 8
    if version < MESSAGES_FROM:
        return p
    p = _put_count(p, 0, version >= FLEXIBLE_FROM)  # no record errors
    if failure.message == NULL:
        p = _put_text_length(p, -1, version >= FLEXIBLE_FROM)
    else:
        p = _put_text_length(p, failure.message_bytes, version >= FLEXIBLE_FROM)
        p = _put(p, failure.message, failure.message_bytes)
    return _put_varint(p, 0) if version >= FLEXIBLE_FROM else p


cdef inline uint8_t *_put(uint8_t *p, const char *data, int64_t size) noexcept nogil:
    memcpy(p, data, <size_t> size)
    return p + size


cdef inline uint8_t *_put_text_length(uint8_t *p, int64_t length, bint flexible) noexcept nogil:
    if flexible:
        return _put_varint(p, length + 1)
    ms_write_u16(p, <uint16_t> length)
    return p + 2


cdef inline uint8_t *_put_count(uint8_t *p, int64_t count, bint flexible) noexcept nogil:
    if flexible:
        return _put_varint(p, count + 1)
    ms_write_u32(p, <uint32_t> count)
    return p + 4


cdef inline uint8_t *_put_varint(uint8_t *p, int64_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t> (value & 0x7F | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t> value
    return p + 1


cdef inline int64_t _count_bytes(int64_t count, bint flexible) noexcept nogil:
    return _varint_bytes(count + 1) if flexible else 4


cdef inline int64_t _varint_bytes(int64_t value) noexcept nogil:
    cdef int64_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size
