"""The scan of a Fetch body; see the twin.

One pass writes the partitions straight into the rows of a plan. A Python object is made per topic, none per partition.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from mainstem.kernel.compiled.bytes_io cimport ms_read_u32, ms_read_u64
from mainstem.kernel.compiled.fetch_plan cimport FetchPlan
from mainstem.kernel.compiled.request_body cimport (
    ENDS_EARLY,
    SOUND,
    Reader,
    failed,
    fault_message,
    read_count,
    read_i32,
    read_text_length,
    skip_tags,
)

from mainstem.kernel.errors import MalformedFetch
from mainstem.kernel.pure import fetch as twin

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *data, Py_ssize_t size, const char *errors)

cdef enum:
    SESSIONS_FROM = 7
    LEADER_EPOCHS_FROM = 9
    RACKS_FROM = 11
    FLEXIBLE_FROM = 12
    IDS_FROM = 13
    REPLICA_STATE_FROM = 15
    TOPIC_ID_BYTES = 16
    TOPIC_BYTES_MIN = 3
    PARTITION_BYTES_MIN = 16
    ENTRIES_MAX = 125000

assert twin.ENTRIES_MAX == ENTRIES_MAX


@cython.final
cdef class FetchScan:
    """A Fetch request. Fields that its version lacks have their defaults."""

    cdef readonly int32_t max_wait_ms
    cdef readonly int32_t min_bytes
    cdef readonly int32_t max_bytes
    cdef readonly int isolation_level
    cdef readonly int32_t session_id
    cdef readonly int32_t session_epoch
    cdef readonly FetchPlan plan
    cdef readonly list forgotten


def scan_fetch(frame, Py_ssize_t position, int version):
    """Scan the Fetch body of a version from 4 to 18 that stands at `position` of `frame`.

    Raises MalformedFetch. The result holds no part of the frame.
    """
    cdef FetchScan scan = FetchScan.__new__(FetchScan)
    cdef Reader reader
    cdef Py_buffer view
    scan.plan = FetchPlan.__new__(FetchPlan)
    scan.session_epoch = -1
    scan.forgotten = []
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        reader.data = <const uint8_t *> view.buf
        reader.size = view.len
        reader.position = position
        reader.fault = SOUND
        if position < 0 or position > view.len:
            failed(&reader, ENDS_EARLY, 0)
        else:
            read_request(scan, &reader, version)
        if reader.fault == ENDS_EARLY:
            raise MalformedFetch(f"a Fetch v{version} request of {view.len} bytes ends early")
        if reader.fault:
            raise MalformedFetch(fault_message(&reader))
    finally:
        PyBuffer_Release(&view)
    return scan


cdef int read_request(FetchScan scan, Reader *reader, int version) except -1:
    """Fill in the scan, or leave a fault in the reader."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int32_t replica_id
    cdef int64_t entries = 0, size
    if version < REPLICA_STATE_FROM and read_i32(reader, &replica_id):
        return 0
    if read_i32(reader, &scan.max_wait_ms) or read_i32(reader, &scan.min_bytes) or read_i32(reader, &scan.max_bytes):
        return 0
    if reader.position >= reader.size:
        failed(reader, ENDS_EARLY, 0)
        return 0
    scan.isolation_level = <signed char> reader.data[reader.position]
    reader.position += 1
    if version >= SESSIONS_FROM:
        if read_i32(reader, &scan.session_id) or read_i32(reader, &scan.session_epoch):
            return 0
    read_topics(scan.plan, reader, version, &entries)
    if reader.fault:
        return 0
    if version >= SESSIONS_FROM:
        read_forgotten(scan.forgotten, reader, version, entries)
        if reader.fault:
            return 0
    if version >= RACKS_FROM:
        if read_text(reader, flexible, &size):
            return 0
        reader.position += size
    if flexible:
        skip_tags(reader)
    return 0


cdef int read_text(Reader *reader, bint flexible, int64_t *size) except -1:
    """The length of a string that may not be null. A fault is left in the reader and returned."""
    if read_text_length(reader, flexible, size):
        return reader.fault
    if size[0] < 0:
        raise MalformedFetch("a string is null that may not be")
    return 0


cdef int count_entries(int64_t *entries, int64_t count) except -1:
    entries[0] += count
    if entries[0] > ENTRIES_MAX:
        raise MalformedFetch(f"more than {ENTRIES_MAX} topics and partitions in a request")
    return 0


cdef object read_key(Reader *reader, int version):
    """A topic's name, or the 16 bytes of its id; None with a fault left in the reader."""
    cdef int64_t size = TOPIC_ID_BYTES
    cdef const char *data
    if version >= IDS_FROM:
        if reader.size - reader.position < TOPIC_ID_BYTES:
            failed(reader, ENDS_EARLY, 0)
            return None
    elif read_text(reader, version >= FLEXIBLE_FROM, &size):
        return None
    data = <const char *> reader.data + reader.position
    reader.position += size
    if version >= IDS_FROM:
        return PyBytes_FromStringAndSize(data, size)
    try:
        return PyUnicode_DecodeUTF8(data, size, NULL)
    except UnicodeDecodeError:
        raise MalformedFetch("a topic name is not UTF-8") from None


cdef int read_topics(FetchPlan plan, Reader *reader, int version, int64_t *entries) except -1:
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t topic_count, partition_count, fixed_bytes = PARTITION_BYTES_MIN
    cdef int64_t offset
    cdef int32_t topic, number, partition, leader_epoch = -1, fetched_epoch = -1
    cdef const uint8_t *data
    if version >= 5:
        fixed_bytes += 8     # log start
    if version >= LEADER_EPOCHS_FROM:
        fixed_bytes += 4
    if flexible:
        fixed_bytes += 4     # last fetched epoch
    if read_count(reader, flexible, TOPIC_BYTES_MIN, &topic_count):
        return 0
    count_entries(entries, topic_count)
    while topic_count > 0:
        topic_count -= 1
        key = read_key(reader, version)
        if key is None or read_count(reader, flexible, PARTITION_BYTES_MIN, &partition_count):
            return 0
        count_entries(entries, partition_count)
        topic = plan.new_topic(key)
        plan.reserve_rows(partition_count)
        while partition_count > 0:
            partition_count -= 1
            if reader.size - reader.position < fixed_bytes:
                failed(reader, ENDS_EARLY, 0)
                return 0
            data = reader.data + reader.position
            reader.position += fixed_bytes
            partition = <int32_t> ms_read_u32(data)
            data += 4
            if version >= LEADER_EPOCHS_FROM:
                leader_epoch = <int32_t> ms_read_u32(data)
                data += 4
            offset = <int64_t> ms_read_u64(data)
            data += 8
            if flexible:
                fetched_epoch = <int32_t> ms_read_u32(data)
                data += 4
            if version >= 5:
                data += 8
            number = plan.new_row(topic, partition)
            plan.ask(&plan.rows[number], offset, <int32_t> ms_read_u32(data), leader_epoch, fetched_epoch)
            if flexible and skip_tags(reader):
                return 0
        if flexible and skip_tags(reader):
            return 0
    return 0


cdef int read_forgotten(list forgotten, Reader *reader, int version, int64_t entries) except -1:
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t topic_count, count
    cdef int32_t partition
    cdef list partitions
    if read_count(reader, flexible, TOPIC_BYTES_MIN, &topic_count):
        return 0
    count_entries(&entries, topic_count)
    while topic_count > 0:
        topic_count -= 1
        key = read_key(reader, version)
        if key is None or read_count(reader, flexible, 4, &count):
            return 0
        count_entries(&entries, count)
        partitions = []
        while count > 0:
            count -= 1
            if read_i32(reader, &partition):
                return 0
            partitions.append(partition)
        forgotten.append((key, partitions))
        if flexible and skip_tags(reader):
            return 0
    return 0
