from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from mainstem.kernel.compiled.layout cimport Batch


cdef class ProduceTopic:
    """What the broker tells the scan about a topic; see the twin."""
    cdef readonly object topic
    cdef readonly uint32_t number
    cdef readonly int32_t partitions
    cdef readonly int32_t message_bytes_max
    cdef readonly bint log_append_time
    cdef readonly bint compacted
    cdef readonly int32_t refusal
    cdef readonly int32_t refusal_acks_all


cdef class ProduceScan:
    cdef Batch *batches
    cdef readonly Py_ssize_t batch_count
    cdef readonly Py_ssize_t accepted_count   # batches whose verdict was OK after the scan

    cdef const uint8_t *frame_bytes(self) except NULL
    """The frame the batches lie in; only while it is held (before `release`)."""
    # further fields: the owner's choice
