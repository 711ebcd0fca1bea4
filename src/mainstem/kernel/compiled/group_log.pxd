cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from mainstem.kernel.compiled.block cimport BlockBuilder
from mainstem.kernel.compiled.layout cimport Batch, Slot
from mainstem.kernel.compiled.produce cimport ProduceScan
from mainstem.kernel.compiled.producer_states cimport ProducerStates
from mainstem.kernel.compiled.queue_table cimport QueueTable


@cython.final
cdef class WriteGroupLog:
    cdef readonly int group
    cdef public int32_t term
    cdef public int64_t applied_index
    cdef readonly int64_t appended_bytes
    cdef readonly int64_t appended_batches
    cdef readonly int64_t pending_bytes
    cdef QueueTable table
    cdef ProducerStates producers
    cdef object open_block
    cdef public object transactions
    cdef readonly list marked
    cdef Py_ssize_t block_bytes_max
    cdef Py_ssize_t batch_bytes_max
    cdef object open
    cdef BlockBuilder builder    # of the open block
    cdef int64_t open_index
    cdef int64_t told_index      # the last index `append_all` has listed for this request
    cdef int64_t told_request

    cdef Py_ssize_t put_run(
        self, ProduceScan scan, Py_ssize_t place, const uint8_t *frame, const uint16_t *groups, Slot **ahead
    ) noexcept
    cdef int64_t put(self, Batch *batch, Slot *slot, const uint8_t *data, int64_t now_ms) except -1
    cdef int tell(self, int64_t index, int64_t request, list waiting) except -1
