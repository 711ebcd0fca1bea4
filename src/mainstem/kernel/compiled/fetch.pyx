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
    ENTRIES_MAX = 2000000
    ENTRIES_AT_ONCE = 125000

assert twin.ENTRIES_MAX == ENTRIES_MAX and twin.ENTRIES_AT_ONCE == ENTRIES_AT_ONCE


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
    cdef readonly object rest
    cdef readonly str rack


def scan_fetch(frame, Py_ssize_t position, int version, int64_t most=ENTRIES_AT_ONCE):
    """Scan the Fetch body of a version from 4 to 18 that stands at `position` of `frame`, or its first `most` topics
    and partitions; `rest` then says where `scan_more` goes on.

    Raises MalformedFetch. The result holds no part of the frame.
    """
    cdef FetchScan scan = FetchScan.__new__(FetchScan)
    scan.session_epoch = -1
    return scan_part(scan, frame, position, version, None, most)


def scan_more(frame, Py_ssize_t position, int version, FetchScan before not None, int64_t most):
    """Scan what the scan before left, at most so many topics and partitions of it: it stands at `position`. The fields
    of the request are those of the scan before. Raises as `scan_fetch`."""
    cdef FetchScan scan = FetchScan.__new__(FetchScan)
    if before.rest is None or most < 1:
        raise ValueError("nothing is left to scan")
    scan.max_wait_ms, scan.min_bytes, scan.max_bytes = before.max_wait_ms, before.min_bytes, before.max_bytes
    scan.isolation_level = before.isolation_level
    scan.session_id, scan.session_epoch = before.session_id, before.session_epoch
    return scan_part(scan, frame, position, version, before.rest, most)


cdef FetchScan scan_part(
    FetchScan scan, object frame, Py_ssize_t position, int version, object rest, int64_t most
):
    cdef Reader reader
    cdef Py_buffer view
    scan.plan = FetchPlan.__new__(FetchPlan)
    scan.forgotten = []
    scan.rack = ""
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        reader.data = <const uint8_t *> view.buf
        reader.size = view.len
        reader.position = position
        reader.fault = SOUND
        if position < 0 or position > view.len:
            failed(&reader, ENDS_EARLY, 0)
        else:
            if rest is None:
                read_head(scan, &reader, version)
            if not reader.fault:
                read_body(scan, &reader, version, rest, most)
        if reader.fault == ENDS_EARLY:
            raise MalformedFetch(f"a Fetch v{version} request of {view.len} bytes ends early")
        if reader.fault:
            raise MalformedFetch(fault_message(&reader))
    finally:
        PyBuffer_Release(&view)
    return scan


cdef int read_head(FetchScan scan, Reader *reader, int version) except -1:
    """What stands before the topics. As all that reads, it may leave a fault in the reader."""
    cdef int32_t replica_id
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
    return 0


cdef int read_body(FetchScan scan, Reader *reader, int version, object rest, int64_t most) except -1:
    """The topics, and what stands behind them if there are no more."""
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t taken = 0, size
    read_topics(scan, reader, version, rest, most, &taken)
    if reader.fault or scan.rest is not None:
        return 0
    if version >= SESSIONS_FROM:
        read_forgotten(scan.forgotten, reader, version, taken)
        if reader.fault:
            return 0
    if version >= RACKS_FROM:
        if read_text(reader, flexible, &size):
            return 0
        scan.rack = take_text(reader, size, "a rack")
    if flexible:
        skip_tags(reader)
    return 0


cdef str take_text(Reader *reader, int64_t size, str what):
    """The string of so many bytes that stands next."""
    cdef const char *data = <const char *> reader.data + reader.position
    reader.position += size
    try:
        return PyUnicode_DecodeUTF8(data, size, NULL)
    except UnicodeDecodeError:
        raise MalformedFetch(f"{what} is not UTF-8") from None


cdef int read_text(Reader *reader, bint flexible, int64_t *size) except -1:
    """The length of a string that may not be null. A fault is left in the reader and returned."""
    if read_text_length(reader, flexible, size):
        return reader.fault
    if size[0] < 0:
        raise MalformedFetch("a string is null that may not be")
    return 0


cdef int count_entries(int64_t *entries, int64_t count, int64_t most) except -1:
    entries[0] += count
    if entries[0] > most:
        raise MalformedFetch(f"more than {most} topics and partitions in a request")
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
    if version < IDS_FROM:
        return take_text(reader, size, "a topic name")
    data = <const char *> reader.data + reader.position
    reader.position += size
    return PyBytes_FromStringAndSize(data, size)


cdef int read_topics(
    FetchScan scan, Reader *reader, int version, object rest, int64_t most, int64_t *taken
) except -1:
    """Put topics and partitions into the plan, `most` of them; leaves in the scan where it stopped."""
    cdef FetchPlan plan = scan.plan
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t entries = 0, topic_count, partition_count = 0, some, fixed_bytes = PARTITION_BYTES_MIN
    cdef int64_t offset
    cdef int32_t topic, number, partition, leader_epoch = -1, fetched_epoch = -1
    cdef const uint8_t *data
    key = None
    if version >= 5:
        fixed_bytes += 8     # log start
    if version >= LEADER_EPOCHS_FROM:
        fixed_bytes += 4
    if flexible:
        fixed_bytes += 4     # last fetched epoch
    if rest is None:
        if read_count(reader, flexible, TOPIC_BYTES_MIN, &topic_count):
            return 0
        count_entries(&entries, topic_count, ENTRIES_MAX)
    else:
        topic_count, key, partition_count, entries = rest.topics, rest.key, rest.partitions, rest.entries
    while key is not None or topic_count > 0:
        if key is None:
            if taken[0] >= most:
                break
            topic_count -= 1
            key = read_key(reader, version)
            if key is None or read_count(reader, flexible, PARTITION_BYTES_MIN, &partition_count):
                return 0
            count_entries(&entries, partition_count, ENTRIES_MAX)
            taken[0] += 1
        topic = plan.new_topic(key)
        some = min(partition_count, most - taken[0])
        partition_count -= some
        taken[0] += some
        plan.reserve_rows(some)
        while some > 0:
            some -= 1
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
        if partition_count > 0:
            break
        if flexible and skip_tags(reader):
            return 0
        key = None
    if key is not None or topic_count > 0:
        scan.rest = twin.FetchRest(reader.position, topic_count, key, partition_count, entries)
    return 0


cdef int read_forgotten(list forgotten, Reader *reader, int version, int64_t entries) except -1:
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int64_t topic_count, count
    cdef int32_t partition
    cdef list partitions
    if read_count(reader, flexible, TOPIC_BYTES_MIN, &topic_count):
        return 0
    count_entries(&entries, topic_count, ENTRIES_AT_ONCE)
    while topic_count > 0:
        topic_count -= 1
        key = read_key(reader, version)
        if key is None or read_count(reader, flexible, 4, &count):
            return 0
        count_entries(&entries, count, ENTRIES_AT_ONCE)
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
