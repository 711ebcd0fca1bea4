cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from mainstem.kernel.compiled.batch_header cimport CHECKED_FROM
from mainstem.kernel.compiled.bytes_io cimport ms_crc32c
from mainstem.kernel.compiled.layout cimport BAD_CHECKSUM, Batch


cdef inline bint sum_is_right(const Batch *batch, const uint8_t *frame) noexcept nogil:
    return ms_crc32c(0, frame + batch.start + CHECKED_FROM, batch.length - CHECKED_FROM) == batch.crc


cdef inline void refuse_batch(Batch *batch, int32_t verdict) noexcept nogil:
    """Nothing is left of it but its place in the request."""
    batch.verdict = verdict
    batch.queue_id = 0
    batch.record_count = 0
    batch.last_offset_delta = 0
    batch.max_timestamp = 0
    batch.producer_id = 0
    batch.base_sequence = 0
    batch.producer_epoch = 0
    batch.attributes = 0
    batch.crc = 0
    batch.log_append_time = 0


@cython.final
cdef class ProduceTopic:
    """What the broker tells the scan about a topic; see the twin."""
    cdef readonly uint32_t number
    cdef readonly int32_t partitions
    cdef readonly int32_t message_bytes_max
    cdef readonly bint log_append_time
    cdef readonly bint compacted
    cdef readonly int64_t timestamp_before_ms_max
    cdef readonly int64_t timestamp_after_ms_max
    cdef readonly int32_t refusal
    cdef readonly int32_t refusal_acks_all


@cython.final
cdef class ProduceScan:
    cdef Batch *batches
    cdef readonly Py_ssize_t batch_count
    cdef Py_ssize_t accepted     # batches accepted so far: verdict OK after the scan, and `record_count` > 0
    cdef Py_ssize_t unchecked    # batches that will be accepted if their checksum is right: UNCHECKED
    cdef readonly int version
    cdef readonly bint transactional
    cdef readonly bytes transactional_id
    cdef public bint taken_elsewhere          # another node took some of its batches
    cdef readonly int32_t acks
    cdef readonly int32_t timeout_ms
    cdef Py_ssize_t _capacity                 # batches there is memory for
    cdef list _topics                         # of (key, batch count, ProduceTopic)
    cdef list _requests                       # of (correlation id, topic count); of a burst
    cdef readonly Py_ssize_t bytes_taken      # of the frames it was made from, their lengths included; of a burst
    cdef int64_t _now_ms                      # timestamps are judged by it
    cdef bint _compacted                      # one of them is
    cdef object _frame
    cdef Py_buffer _view                      # of the frame, held while `_data` is not NULL
    cdef const uint8_t *_data
    cdef Py_ssize_t _cursor                   # the accepted batch looked up last, among the accepted
    cdef Py_ssize_t _cursor_number            # and among all

    cdef const uint8_t *frame_bytes(self) except NULL
    """The frame the batches lie in; only while it is held (before `release`)."""

    cdef int check(self) except -1
    """Look at the checksums nobody has looked at yet: every verdict is out then."""

    cdef int _hold(self, object frame) except -1
    cdef int _reserve(self, Py_ssize_t count) except -1
    cdef object _append_at(self, Py_ssize_t index)
    cdef object _data_of(self, Batch *batch)
