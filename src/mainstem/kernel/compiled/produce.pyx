"""The Produce request: from the bytes of its body to checked batches, and from what became of them to the response.

What is checked and why is told in the twin. How: one pass walks the body and judges each batch by its header; where
the checksum still has a say, the batch carries the complement of its verdict, which is negative. Batches that only a
wrong checksum can refuse stay like that (UNCHECKED) until somebody asks, or until `append_all` reads their bytes anyway
to copy them: the checksum is nearly free then. For large requests it is computed by the scan, without the interpreter.
A Python object is made per topic, none per batch.

Memory: one array of `Batch`, grown by topics whose partitions are counted and known to be in the body, six bytes or
more each. What is read from the frame after the scan lies where the scan has checked it, and its buffer is held.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from mainstem.kernel.compiled.batch_header cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, CHECKSUM_AT, COMPRESSION_MASK, CONTROL_BIT, HEADER_BYTES,
    LAST_OFFSET_DELTA_AT, LENGTH_AT, LENGTH_EXCLUDES, LOG_APPEND_TIME_BIT, MAGIC_AT, MAX_TIMESTAMP_AT, NO_TIMESTAMP,
    PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORD_COUNT_AT, TRANSACTIONAL_BIT,
)
from mainstem.kernel.compiled.bytes_io cimport (
    ms_crc_prepare,
    ms_prefetch,
    ms_give,
    ms_read_u16,
    ms_read_u32,
    ms_read_u64,
    ms_take,
)
from mainstem.kernel.compiled.layout cimport (
    BAD_CHECKSUM,
    BAD_COMPRESSION,
    BAD_COUNT,
    BAD_FIELD,
    BAD_LENGTH,
    COLD_PRODUCER,
    CONTROL,
    INVALID_ACKS,
    INVALID_TIMESTAMP,
    LARGER_THAN_TOPIC_ALLOWS,
    MANY_BATCHES,
    NOT_LEADER,
    NO_BATCH,
    OK,
    OLD_FORMAT,
    STORAGE_BUSY,
    TIMESTAMP_OUT_OF_RANGE,
    TRANSACTIONAL,
    UNCHECKED,
    UNKNOWN_PARTITION,
    ZSTD_TOO_OLD,
    Batch,
)
from mainstem.kernel.compiled.produce_response cimport codes_of, encode_responses
from mainstem.kernel.compiled.request_body cimport (
    ENDS_EARLY,
    Reader,
    fault_message,
    read_count,
    read_i16,
    read_i32,
    read_records_length,
    read_text_length,
    skip_tags,
)

from collections.abc import Sequence

from mainstem.kernel.errors import MalformedProduce, ManyTopics
from mainstem.kernel.layout import Verdict
from mainstem.kernel.pure import produce as twin
from mainstem.kernel.pure.produce import VERDICT_OF_OUTCOME, ScannedBatch, ScannedTopic
from mainstem.model import BatchAppend

ms_crc_prepare()

cdef enum:
    VERSION_FIRST = 3
    VERSION_LAST = 13
    ZSTD_FROM = 7
    FLEXIBLE_FROM = 9
    IDS_FROM = 13
    TOPIC_ID_BYTES = 16
    TOPIC_BYTES_MIN = 3
    PARTITION_BYTES_MIN = 6
    AHEAD = 8                # batches whose headers are asked for in advance, were they all of one size
    LENGTH_BYTES = 8         # partition and length, in front of a batch
    ENTRIES_MAX = 100000
    TOPICS_AT_ONCE_MAX = 10000   # five milliseconds: a Python object is made per topic, and the broker asked

    PRODUCE_KEY = 0
    FRAME_LENGTH_BYTES = 4
    HEAD_BYTES = 10              # API key, version, correlation id, length of the client id
    PLAIN_BYTES = 4              # tags of the header if there are any, a null transactional id, acks

    ZSTD = 4

TOPIC_IDS_FROM = IDS_FROM

assert twin.TOPICS_AT_ONCE_MAX == TOPICS_AT_ONCE_MAX and twin.ENTRIES_MAX == ENTRIES_MAX

cdef Py_ssize_t LARGE_BYTES = 4 * 1024 * 1024
"""From here on the interpreter is let go of while checksums are computed: some hundred microseconds of work. With
less, a thread beside the event loop that takes it keeps it for longer: let go of at 1 MB, the scan's 99th percentile
beside a busy thread was 2 ms instead of 0.07 (measured)."""

cdef struct Rules:
    # What one topic's batches are judged by.
    int32_t refusal
    int32_t partitions
    int64_t message_bytes_max
    uint64_t queue_base
    int64_t earliest        # of the timestamps that are taken
    int64_t latest
    bint log_append_time
    bint zstd
    bint transactional      # the request names a transactional id

cdef struct Doubts:
    # Batches whose checksum has a say: those that are UNCHECKED, and those that are refused already.
    Py_ssize_t unchecked
    Py_ssize_t refused

cdef struct Head:
    # What stands in front of a plain request's topics.
    int32_t version
    int32_t correlation_id
    int32_t acks
    int64_t body
    int64_t stop            # of the frame

cdef struct Topic:
    # The name, or id, of a topic in the body.
    const uint8_t *key
    int64_t key_bytes

@cython.final
cdef class ProduceTopic:
    def __cinit__(
        self, *, number=0, partitions=0, message_bytes_max=0, log_append_time=False, compacted=False,
        timestamp_before_ms_max=INT64_MAX, timestamp_after_ms_max=INT64_MAX,
        refusal=OK, refusal_acks_all=OK,
    ):
        self.number = number
        self.partitions = partitions
        self.message_bytes_max = message_bytes_max
        self.log_append_time = log_append_time
        self.compacted = compacted
        self.timestamp_before_ms_max = timestamp_before_ms_max
        self.timestamp_after_ms_max = timestamp_after_ms_max
        self.refusal = Verdict(refusal)
        self.refusal_acks_all = Verdict(refusal_acks_all)


@cython.final
cdef class ProduceScan:
    """A Produce request, taken apart. As a sequence: its accepted batches, whose bytes are those of the frame."""

    def __cinit__(self):
        self._topics = []
        self._requests = []

    def __dealloc__(self):
        if self._data != NULL:
            PyBuffer_Release(&self._view)
        ms_give(self.batches, <size_t> self._capacity * sizeof(Batch))

    @property
    def topics(self):
        return [ScannedTopic(key, count) for key, count, _ in self._topics]

    @property
    def request_count(self):
        return len(self._requests)

    def scanned(self):
        """Copies of all batches, for those who want to look at them."""
        self.check()
        return [_scanned(&self.batches[number]) for number in range(self.batch_count)]

    # --- the accepted batches, for a store ------------------------------------------------------------------

    @property
    def accepted_count(self):
        self.check()
        return self.accepted

    @property
    def accepted_count_max(self):
        """The same, but no checksum is looked at for it: those not looked at yet may be right."""
        return self.accepted + self.unchecked

    def __len__(self):
        self.check()
        return self.accepted

    def __getitem__(self, index):
        """Raises ValueError once the frame is released."""
        self.check()
        if isinstance(index, slice):
            return [self._append_at(at) for at in range(*index.indices(self.accepted))]
        cdef Py_ssize_t at = index
        if at < 0:
            at += self.accepted
        return self._append_at(at)

    def __iter__(self):
        cdef Py_ssize_t index
        self.check()
        for index in range(self.accepted):
            yield self._append_at(index)

    cdef object _append_at(self, Py_ssize_t index):
        if index < 0 or index >= self.accepted:
            raise IndexError(f"no accepted batch {index} of {self.accepted}")
        if index < self._cursor:
            self._cursor = self._cursor_number = 0
        while True:  # ends: there are `accepted` of them
            if self.batches[self._cursor_number].record_count > 0:
                if self._cursor == index:
                    break
                self._cursor += 1
            self._cursor_number += 1
        cdef Batch *batch = &self.batches[self._cursor_number]
        return BatchAppend(
            batch.queue_id, self._data_of(batch), batch.record_count, batch.last_offset_delta, batch.max_timestamp,
            batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.attributes, batch.crc,
            batch.log_append_time != 0,
        )

    cdef const uint8_t *frame_bytes(self) except NULL:
        if self._data == NULL:
            raise ValueError("the frame of this request is released")
        return self._data

    cdef object _data_of(self, Batch *batch):
        self.frame_bytes()
        return self._frame[<Py_ssize_t> batch.start : <Py_ssize_t> batch.start + <Py_ssize_t> batch.length]

    cdef int _hold(self, object frame) except -1:
        if not PyMemoryView_Check(frame):
            raise TypeError("a frame is a memoryview")
        PyObject_GetBuffer(frame, &self._view, PyBUF_SIMPLE)
        if self._view.buf == NULL or self._view.len != len(frame) or self._view.len > <Py_ssize_t> 0xFFFFFFFF:
            PyBuffer_Release(&self._view)
            raise ValueError("a frame is bytes, less than 4 GiB of them")
        self._data = <const uint8_t *> self._view.buf
        self._frame = frame
        return 0

    def release(self):
        """Let go of the frame."""
        if self._data != NULL:
            self.check()
            self._data = NULL
            self._frame = None
            PyBuffer_Release(&self._view)

    cdef int check(self) except -1:
        if self.unchecked:
            self.accepted += _check_sums(self.batches, self.batch_count, self.frame_bytes())
            self.unchecked = 0
        return 0

    cdef int _reserve(self, Py_ssize_t count) except -1:
        """Make room for so many more batches: at most `ENTRIES_MAX` in all, which the caller has checked."""
        cdef Py_ssize_t capacity = self.batch_count + count
        cdef Batch *batches
        if self.batches != NULL and capacity <= self._capacity:
            return 0
        # exactly what one topic needs, as most requests have; by doubling for more of them
        capacity = max(capacity, 2 * self._capacity, 1)
        batches = <Batch *> ms_take(<size_t> capacity * sizeof(Batch))
        if batches == NULL:
            raise MemoryError(f"no memory for {capacity} batches")
        if self.batch_count:
            memcpy(batches, self.batches, <size_t> self.batch_count * sizeof(Batch))
        ms_give(self.batches, <size_t> self._capacity * sizeof(Batch))
        self.batches = batches
        self._capacity = capacity
        return 0

    # --- what became of them --------------------------------------------------------------------------------

    def compacted(self):
        """The accepted batches of compacted topics: their numbers among all batches, and their bytes."""
        cdef Py_ssize_t first = 0, count, number
        cdef ProduceTopic topic
        found = []
        if not self._compacted:
            return found
        self.check()
        for _, count, topic in self._topics:
            if topic.compacted:
                for number in range(first, first + count):
                    if self.batches[number].record_count > 0:
                        found.append((number, self._data_of(&self.batches[number])))
            first += count
        return found

    def refuse(self, Py_ssize_t number, verdict):
        """Give an accepted batch, by its number among all, another verdict: it is accepted no longer. Raises
        ValueError for one that is not accepted, IndexError for one that is not there."""
        if number < 0 or number >= self.batch_count:
            raise IndexError(f"no batch {number}")
        self.check()
        cdef Batch *batch = &self.batches[number]
        cdef int32_t refusal = Verdict(verdict)
        if batch.record_count <= 0 or refusal == OK:
            raise ValueError(f"batch {number} is not accepted, or not refused by verdict {verdict}")
        refuse_batch(batch, refusal)
        self.accepted -= 1
        self._cursor = self._cursor_number = 0

    def settle(self, results):
        """Take what a store made of the accepted batches, in their order. Raises ValueError unless there is one
        result for each."""
        cdef Py_ssize_t number = 0
        cdef Batch *batch
        self.check()
        if len(results) != self.accepted:
            raise ValueError(f"{len(results)} results for {self.accepted} batches")
        for result in results:
            while number < self.batch_count and self.batches[number].record_count <= 0:
                number += 1
            if number >= self.batch_count:
                break
            batch = &self.batches[number]
            batch.verdict = VERDICT_OF_OUTCOME[result.outcome]
            batch.base_offset = result.base_offset
            batch.log_append_time_ms = result.log_append_time_ms
            batch.log_start_offset = result.log_start_offset
            number += 1

    def late(self, int verdict):
        """The batches with a verdict that is not the last one, COLD_PRODUCER or NOT_LEADER: their numbers among all,
        and copies of them, which outlive the frame."""
        cdef Py_ssize_t number
        if verdict != COLD_PRODUCER and verdict != NOT_LEADER:
            raise ValueError(f"verdict {verdict} is the last one")
        cdef Batch *batch
        found = []
        for number in range(self.batch_count):
            batch = &self.batches[number]
            if batch.verdict == verdict:
                found.append((number, BatchAppend(
                    batch.queue_id, memoryview(bytes(self._data_of(batch))), batch.record_count, batch.last_offset_delta,
                    batch.max_timestamp, batch.producer_id, batch.producer_epoch, batch.base_sequence,
                    batch.attributes, batch.crc, batch.log_append_time != 0,
                )))
        return found

    def resettle(self, Py_ssize_t number, result, int group, int64_t block_index):
        """What became of a batch that was `late`, and the block it waits for."""
        if number < 0 or number >= self.batch_count:
            raise IndexError(f"no late batch {number}")
        if self.batches[number].verdict != COLD_PRODUCER and self.batches[number].verdict != NOT_LEADER:
            raise IndexError(f"no late batch {number}")
        cdef Batch *batch = &self.batches[number]
        batch.verdict = VERDICT_OF_OUTCOME[result.outcome]
        batch.base_offset = result.base_offset
        batch.log_append_time_ms = result.log_append_time_ms
        batch.log_start_offset = result.log_start_offset
        batch.group = group
        batch.block_index = block_index

    def fail(self, verdict, int group=0, int64_t block_index=0):
        """What was appended is lost: every accepted batch that is well so far gets this verdict; with a block's group
        and index, only those that wait for that block."""
        cdef int32_t failure = Verdict(verdict)
        cdef Py_ssize_t number
        cdef Batch *batch
        self.check()
        for number in range(self.batch_count):
            batch = &self.batches[number]
            if batch.verdict == OK and (not block_index or batch.block_index == block_index and batch.group == group):
                batch.verdict = failure
                batch.base_offset = batch.log_append_time_ms = batch.log_start_offset = -1

    # --- the response ---------------------------------------------------------------------------------------

    def response(self, int32_t correlation_id, errors, int32_t throttle_ms=0):
        """The frame of the response, in the version of the request, its length in front. `errors` has Kafka's error
        code and message (UTF-8) of each verdict, by its number; `throttle_ms` is the time for which the client is
        throttled. Raises OverflowError beyond 2 GiB."""
        self.check()
        requests = [(correlation_id, len(self._topics))]
        return encode_responses(self.version, requests, self._topics, self.batches, self.batch_count, errors, throttle_ms)

    def responses(self, errors, int32_t throttle_ms=0):
        """The same for a burst: the frames of the responses to all its requests, one behind the other."""
        self.check()
        return encode_responses(
            self.version, self._requests, self._topics, self.batches, self.batch_count, errors, throttle_ms
        )

    def errors(self, errors):
        """How often each code of the response occurs that is not 0, in the order in which they occur first."""
        self.check()
        return codes_of(self.batches, self.batch_count, errors)

    @property
    def has_unnumbered(self):
        """Some accepted batch is of a producer that numbers nothing."""
        cdef Py_ssize_t number
        self.check()
        for number in range(self.batch_count):
            if self.batches[number].record_count > 0 and self.batches[number].producer_id < 0:
                return True
        return False

    @property
    def lacks_room(self):
        """The store had no room for some accepted batch of a producer that numbers nothing."""
        cdef Py_ssize_t number
        cdef Batch *batch
        self.check()
        for number in range(self.batch_count):
            batch = &self.batches[number]
            if batch.record_count > 0 and batch.producer_id < 0 and batch.verdict == STORAGE_BUSY:
                return True
        return False

    @property
    def topic_count(self):
        return len(self._topics)


Sequence.register(ProduceScan)


def scan_produce(
    frame, Py_ssize_t position, int version, resolve, int64_t now_ms=0, int64_t topics_max=ENTRIES_MAX
):
    """Scan the Produce body of a version from 3 to 13 that fills `frame` from `position`.

    `resolve` is called for each topic of the request, unless it is the one before it again, with its name, or from
    version 13 its id. What it raises goes through. `now_ms`: timestamps are judged by it. Raises MalformedProduce, and
    ManyTopics before anything of more than `topics_max` topics is looked at.
    """
    cdef ProduceScan scan = ProduceScan.__new__(ProduceScan)
    cdef Reader reader
    cdef Doubts doubts
    scan._hold(frame)
    if version < VERSION_FIRST or version > VERSION_LAST or position < 0 or position > scan._view.len:
        raise ValueError(f"no Produce body: version {version}, position {position} of {scan._view.len} bytes")
    scan.version = version
    scan._now_ms = now_ms
    reader.data = scan._data
    reader.size = scan._view.len
    reader.position = position
    doubts.unchecked = doubts.refused = 0
    _walk(scan, &reader, resolve, &doubts, topics_max)
    _end_scan(scan, &doubts, scan._view.len - position)
    return scan


def scan_burst(
    frames, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t requests_max, int64_t frame_bytes_max, by_name, by_id,
    int64_t now_ms=0,
):
    """Scan the Produce requests that lie whole at the front of `frames[start:stop]`, lengths in front, as many as are
    plain, `requests_max` at the most. None: the first is not, it is to be looked at by itself.

    Plain are sound requests of the versions from 3 to 13 and of up to `frame_bytes_max` bytes, whose header has an
    ASCII client id or none, and neither tagged fields nor a transactional id; they agree in version and acks, and have
    no more than 10,000 topics together.
    `by_name` and `by_id` resolve topics as for `scan_produce`.
    """
    cdef ProduceScan scan
    cdef Reader reader
    cdef Doubts doubts, before
    cdef Head head
    cdef Py_ssize_t topic_count, batch_count
    cdef bint compacted
    scan = ProduceScan.__new__(ProduceScan)
    scan._hold(frames)
    if start < 0 or stop < start or stop > scan._view.len:
        raise ValueError(f"no frames: {start} to {stop} of {scan._view.len} bytes")
    if requests_max < 1 or not plain_head(scan._data, start, stop, frame_bytes_max, &head):
        return None
    scan.version = head.version
    scan._now_ms = now_ms
    scan.acks = head.acks
    doubts.unchecked = doubts.refused = 0
    reader.data = scan._data
    while head.version == scan.version and head.acks == scan.acks:
        before, topic_count, batch_count, compacted = doubts, len(scan._topics), scan.batch_count, scan._compacted
        reader.size = head.stop
        reader.position = head.body
        try:
            _walk(scan, &reader, by_id if head.version >= IDS_FROM else by_name, &doubts, TOPICS_AT_ONCE_MAX)
        except MalformedProduce:
            if not scan._requests:
                return None
            doubts = before
            del scan._topics[topic_count:]
            scan.batch_count = batch_count
            scan._compacted = compacted
            break
        scan._requests.append((head.correlation_id, len(scan._topics) - topic_count))
        scan.bytes_taken = head.stop - start
        if len(scan._requests) == requests_max:
            break
        if not plain_head(scan._data, head.stop, stop, frame_bytes_max, &head):
            break
    _end_scan(scan, &doubts, scan.bytes_taken)
    return scan


cdef int _end_scan(ProduceScan scan, const Doubts *doubts, Py_ssize_t bytes_scanned) except -1:
    """Look at checksums now where that is due."""
    scan.unchecked = doubts.unchecked + doubts.refused
    if bytes_scanned >= LARGE_BYTES:
        with nogil:
            scan.accepted = _check_sums(scan.batches, scan.batch_count, scan._data)
        scan.unchecked = 0
    elif doubts.refused:
        scan.check()
    return 0


# --- the walk -----------------------------------------------------------------------------------------------


cdef int _walk(
    ProduceScan scan, Reader *reader, object resolve, Doubts *doubts, int64_t topics_max
) except -1:
    """Add one request, from its body on, to the scan."""
    cdef Rules rules
    cdef Topic named
    cdef ProduceTopic topic
    cdef bint flexible = scan.version >= FLEXIBLE_FROM
    cdef int64_t size, topic_count, partition_count, number
    if read_text_length(reader, flexible, &size):
        raise _malformed(scan, reader)
    scan.transactional = size >= 0
    scan.transactional_id = None
    if size >= 0:
        scan.transactional_id = PyBytes_FromStringAndSize(<const char *> reader.data + reader.position, size)
        reader.position += size
    if read_i16(reader, &scan.acks) or read_i32(reader, &scan.timeout_ms):
        raise _malformed(scan, reader)
    if read_count(reader, flexible, TOPIC_BYTES_MIN, &topic_count):
        raise _malformed(scan, reader)
    if topic_count > ENTRIES_MAX:
        raise MalformedProduce(f"{topic_count} topics, more than the {ENTRIES_MAX} a request may have")
    if topic_count + len(scan._topics) > topics_max:
        raise ManyTopics(f"{topic_count} topics, more than are scanned at once")
    for number in range(topic_count):
        _read_topic(scan, reader, flexible, &named)
        if read_count(reader, flexible, PARTITION_BYTES_MIN, &partition_count):
            raise _malformed(scan, reader)
        if topic_count + scan.batch_count + partition_count > ENTRIES_MAX:
            raise MalformedProduce(f"more than {ENTRIES_MAX} topics and partitions in a request")
        scan._reserve(partition_count)
        topic = _resolved(scan, &named, partition_count, resolve)
        _set_rules(scan, topic, &rules)
        if _walk_partitions(
            reader, &rules, flexible, scan.batches + scan.batch_count, partition_count, &doubts.unchecked,
            &doubts.refused,
        ):
            raise _malformed(scan, reader)
        scan.batch_count += partition_count
        if flexible and skip_tags(reader):
            raise _malformed(scan, reader)
    if flexible and skip_tags(reader):
        raise _malformed(scan, reader)
    if reader.position != reader.size:
        excess = reader.size - reader.position
        raise MalformedProduce(f"a Produce v{scan.version} request has {excess} bytes too many")
    return 0


cdef bint plain_head(
    const uint8_t *data, int64_t start, int64_t stop, int64_t frame_bytes_max, Head *head
) noexcept nogil:
    """Whether a whole frame with the header of a plain request stands at `start`; then what it says."""
    cdef int64_t end, position, size, number
    cdef uint8_t letters = 0
    if stop - start < FRAME_LENGTH_BYTES + HEAD_BYTES:
        return False
    size = <int32_t> ms_read_u32(data + start)
    position = start + FRAME_LENGTH_BYTES
    if size < HEAD_BYTES or size > frame_bytes_max or size > stop - position:
        return False
    end = position + size
    if ms_read_u16(data + position) != PRODUCE_KEY:
        return False
    head.version = <int16_t> ms_read_u16(data + position + 2)
    head.correlation_id = <int32_t> ms_read_u32(data + position + 4)
    size = <int16_t> ms_read_u16(data + position + 8)
    position += HEAD_BYTES
    if head.version < VERSION_FIRST or head.version > VERSION_LAST or size < -1 or size > end - position:
        return False
    for number in range(size):
        letters |= data[position + number]
    if letters & 0x80:
        return False
    if size > 0:
        position += size
    if end - position < PLAIN_BYTES:
        return False
    if head.version >= FLEXIBLE_FROM:
        if data[position] != 0 or data[position + 1] != 0:
            return False
        position += 1
        head.acks = <int16_t> ms_read_u16(data + position + 1)
    else:
        if ms_read_u16(data + position) != 0xFFFF:
            return False
        head.acks = <int16_t> ms_read_u16(data + position + 2)
    head.body = position
    head.stop = end
    return -1 <= head.acks <= 1


cdef int _read_topic(ProduceScan scan, Reader *reader, bint flexible, Topic *topic) except -1:
    """Where the key of the next topic lies."""
    topic.key_bytes = TOPIC_ID_BYTES
    if scan.version < IDS_FROM:
        if read_text_length(reader, flexible, &topic.key_bytes):
            raise _malformed(scan, reader)
        if topic.key_bytes < 0:
            raise MalformedProduce("a topic name is null")
    elif reader.size - reader.position < topic.key_bytes:
        reader.fault = ENDS_EARLY
        raise _malformed(scan, reader)
    topic.key = reader.data + reader.position
    reader.position += topic.key_bytes
    return 0


cdef ProduceTopic _resolved(ProduceScan scan, const Topic *named, Py_ssize_t batch_count, object resolve):
    """Note a topic of the request. It is asked for unless the one before it is the same."""
    cdef bytes key
    cdef ProduceTopic topic
    if scan._topics:
        last = <tuple> scan._topics[len(scan._topics) - 1]
        key = <bytes> last[0]
        if PyBytes_GET_SIZE(key) == named.key_bytes and memcmp(PyBytes_AS_STRING(key), named.key, named.key_bytes) == 0:
            topic = <ProduceTopic> last[2]
            scan._topics.append((key, batch_count, topic))
            return topic
    key = PyBytes_FromStringAndSize(<const char *> named.key, named.key_bytes)
    topic = <ProduceTopic?> resolve(key)
    scan._topics.append((key, batch_count, topic))
    scan._compacted = scan._compacted or topic.compacted
    return topic


cdef object _malformed(ProduceScan scan, Reader *reader):
    if reader.fault == ENDS_EARLY:
        return MalformedProduce(f"a Produce v{scan.version} request of {reader.size} bytes ends early")
    return MalformedProduce(fault_message(reader))


cdef void _set_rules(ProduceScan scan, ProduceTopic topic, Rules *rules) noexcept:
    if scan.acks < -1 or scan.acks > 1:
        rules.refusal = INVALID_ACKS
    elif topic.refusal == OK and scan.acks == -1:
        rules.refusal = topic.refusal_acks_all
    else:
        rules.refusal = topic.refusal
    rules.partitions = topic.partitions
    rules.message_bytes_max = topic.message_bytes_max
    rules.queue_base = <uint64_t> topic.number << 32
    rules.log_append_time = topic.log_append_time
    rules.earliest = INT64_MIN
    rules.latest = INT64_MAX
    if not topic.log_append_time:
        if scan._now_ms >= INT64_MIN + topic.timestamp_before_ms_max and topic.timestamp_before_ms_max != INT64_MAX:
            rules.earliest = scan._now_ms - topic.timestamp_before_ms_max
        if scan._now_ms <= INT64_MAX - topic.timestamp_after_ms_max:
            rules.latest = scan._now_ms + topic.timestamp_after_ms_max
    rules.zstd = scan.version >= ZSTD_FROM
    rules.transactional = scan.transactional


cdef int _walk_partitions(
    Reader *reader, const Rules *rules, bint flexible, Batch *batch, int64_t count, Py_ssize_t *unchecked,
    Py_ssize_t *doubtful,
) noexcept nogil:
    """Fill `count` batches from the body, and count those whose checksum has a say: UNCHECKED, and refused already.
    Returns 0, or the fault that ended it."""
    cdef Reader here = reader[0]     # copies, which nothing that is written to can change
    cdef Rules by = rules[0]
    cdef Batch *stop = batch + count
    cdef Py_ssize_t sound = 0, refused = 0
    cdef int32_t partition, verdict
    cdef int64_t size, start
    cdef size_t ahead
    while batch < stop:
        if read_i32(&here, &partition) or read_records_length(&here, flexible, &size):
            reader[0] = here
            return here.fault
        start = here.position
        ahead = <size_t> here.data + <size_t> (start + AHEAD * (size + LENGTH_BYTES))
        ms_prefetch(<const void *> (ahead - LENGTH_BYTES))     # a header stands in two lines
        ms_prefetch(<const void *> (ahead + HEADER_BYTES))
        if by.refusal != OK:
            verdict = by.refusal
        elif partition < 0 or partition >= by.partitions:
            verdict = UNKNOWN_PARTITION
        elif size > by.message_bytes_max:
            verdict = LARGER_THAN_TOPIC_ALLOWS
        else:
            verdict = _judge(here.data + start, size, partition, &by, batch)
        batch.partition = partition
        batch.start = <uint32_t> start
        batch.length = <uint32_t> size
        batch.base_offset = batch.log_append_time_ms = batch.log_start_offset = -1
        batch.block_index = batch.group = 0
        if verdict == UNCHECKED:
            batch.verdict = UNCHECKED
            sound += 1
        elif verdict < 0:
            batch.verdict = verdict
            refused += 1
        else:
            refuse_batch(batch, verdict)
        here.position = start + size
        if flexible and skip_tags(&here):
            reader[0] = here
            return here.fault
        batch += 1
    reader[0] = here
    unchecked[0] += sound
    doubtful[0] += refused
    return 0


cdef inline int32_t _judge(
    const uint8_t *data, int64_t size, int32_t partition, const Rules *rules, Batch *batch
) noexcept nogil:
    """The verdict on a batch by its header. It is negative, ~verdict, if it holds only with a right checksum; then the
    batch has all of its header, and its fields are filled."""
    cdef int64_t batch_size, producer_id, base_timestamp
    cdef int32_t record_count, last_offset_delta, base_sequence
    cdef int16_t attributes, producer_epoch
    if size <= MAGIC_AT:
        return NO_BATCH if size == 0 else BAD_LENGTH
    if data[MAGIC_AT] < 2:
        return OLD_FORMAT
    if size < HEADER_BYTES:
        return BAD_LENGTH
    batch_size = <int64_t> <int32_t> ms_read_u32(data + LENGTH_AT) + LENGTH_EXCLUDES
    if batch_size > size or batch_size < HEADER_BYTES or data[MAGIC_AT] != 2:
        return BAD_LENGTH
    if batch_size < size:
        return MANY_BATCHES
    record_count = <int32_t> ms_read_u32(data + RECORD_COUNT_AT)
    last_offset_delta = <int32_t> ms_read_u32(data + LAST_OFFSET_DELTA_AT)
    base_timestamp = <int64_t> ms_read_u64(data + BASE_TIMESTAMP_AT)
    producer_id = <int64_t> ms_read_u64(data + PRODUCER_ID_AT)
    base_sequence = <int32_t> ms_read_u32(data + BASE_SEQUENCE_AT)
    producer_epoch = <int16_t> ms_read_u16(data + PRODUCER_EPOCH_AT)
    attributes = <int16_t> ms_read_u16(data + ATTRIBUTES_AT)
    batch.queue_id = rules.queue_base | <uint32_t> partition
    batch.record_count = record_count
    batch.last_offset_delta = last_offset_delta
    batch.max_timestamp = <int64_t> ms_read_u64(data + MAX_TIMESTAMP_AT)
    batch.producer_id = producer_id
    batch.base_sequence = base_sequence
    batch.producer_epoch = producer_epoch
    batch.attributes = attributes
    batch.crc = ms_read_u32(data + CHECKSUM_AT)
    batch.log_append_time = rules.log_append_time
    if (
        record_count > 0 and record_count == <int64_t> last_offset_delta + 1
        and ms_read_u64(data) == 0
        and producer_id == -1
        and <uint16_t> attributes < ZSTD
        and base_timestamp >= rules.earliest and batch.max_timestamp <= rules.latest
    ):
        return UNCHECKED     # as most are: no producer, no bit set but for an old compression
    if record_count < 1 or record_count != <int64_t> last_offset_delta + 1:
        return ~BAD_COUNT
    if (
        ms_read_u64(data) != 0
        or producer_id < -1
        or (producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0))
    ):
        return ~BAD_FIELD
    if attributes & COMPRESSION_MASK > ZSTD:
        return ~BAD_COMPRESSION
    if attributes & CONTROL_BIT:
        return ~CONTROL
    if attributes & TRANSACTIONAL_BIT:
        if not rules.transactional:
            return ~TRANSACTIONAL
        if producer_id < 0:
            return ~BAD_FIELD
    if attributes & COMPRESSION_MASK == ZSTD and not rules.zstd:
        return ~ZSTD_TOO_OLD
    if attributes & LOG_APPEND_TIME_BIT and not rules.log_append_time:
        return ~INVALID_TIMESTAMP
    if base_timestamp < rules.earliest and base_timestamp != NO_TIMESTAMP or batch.max_timestamp > rules.latest:
        return ~TIMESTAMP_OUT_OF_RANGE
    return UNCHECKED


cdef Py_ssize_t _check_sums(Batch *batches, Py_ssize_t count, const uint8_t *frame) noexcept nogil:
    """Make the verdicts final that are not. Returns how many of them are OK."""
    cdef Py_ssize_t number, accepted = 0
    cdef Batch *batch
    for number in range(count):
        batch = &batches[number]
        if batch.verdict >= 0:
            continue
        if not sum_is_right(batch, frame):
            refuse_batch(batch, BAD_CHECKSUM)
        elif batch.verdict == UNCHECKED:
            batch.verdict = OK
            accepted += 1
        else:
            refuse_batch(batch, ~batch.verdict)
    return accepted


cdef object _scanned(Batch *batch):
    return ScannedBatch(
        batch.partition, batch.verdict, batch.start, batch.length, batch.queue_id, batch.record_count,
        batch.last_offset_delta, batch.max_timestamp, batch.producer_id, batch.base_sequence, batch.producer_epoch,
        batch.attributes, batch.crc, batch.log_append_time != 0,
        batch.base_offset, batch.log_append_time_ms, batch.log_start_offset, batch.group, batch.block_index,
    )
