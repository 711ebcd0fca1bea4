cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, uint8_t, uint32_t

from mainstem.kernel.compiled.layout cimport Batch


@cython.final
cdef class ProduceTopic:
    """What the broker tells the scan about a topic; see the twin."""
    cdef readonly uint32_t number
    cdef readonly int32_t partitions
    cdef readonly int32_t message_bytes_max
    cdef readonly bint log_append_time
    cdef readonly bint compacted
    cdef readonly int32_t refusal
    cdef readonly int32_t refusal_acks_all


@cython.final
cdef class ProduceScan:
    cdef Batch *batches
    cdef readonly Py_ssize_t batch_count
    cdef readonly Py_ssize_t accepted_count   # batches whose verdict was OK after the scan: `record_count` > 0
    cdef readonly int version
    cdef readonly bint transactional
    cdef readonly int32_t acks
    cdef readonly int32_t timeout_ms
    cdef Py_ssize_t _capacity                 # batches there is memory for
    cdef list _topics                         # of (key, batch count, ProduceTopic)
    cdef bint _compacted                      # one of them is
    cdef object _frame
    cdef Py_buffer _view                      # of the frame, held while `_data` is not NULL
    cdef const uint8_t *_data
    cdef Py_ssize_t _cursor                   # the accepted batch looked up last, among the accepted
    cdef Py_ssize_t _cursor_number            # and among all

    cdef const uint8_t *frame_bytes(self) except NULL
    """The frame the batches lie in; only while it is held (before `release`)."""

    cdef int _hold(self, object frame) except -1
    cdef int _reserve(self, Py_ssize_t count) except -1
    cdef object _append_at(self, Py_ssize_t index)
    cdef object _data_of(self, Batch *batch)
