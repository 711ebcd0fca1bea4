"""The open block; see the twin. Payloads lie in chunks of memory that are used again (`memory.h`), so that in the
long run a block is written to pages the machine has already given.

A chunk lives as long as anybody holds a view of it: the block that is being written, the write cache, a response.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.batch_header cimport (
    ATTRIBUTES_AT, CHECKED_FROM, CHECKSUM_AT, HEADER_BYTES, LOG_APPEND_TIME_BIT, MAX_TIMESTAMP_AT,
)
from mainstem.kernel.compiled.bytes_io cimport (
    ms_crc32c,
    ms_crc_prepare,
    ms_give,
    ms_take,
    ms_write_u16,
    ms_write_u32,
    ms_write_u64,
)
from mainstem.kernel.compiled.layout cimport Batch, Row
from mainstem.kernel import layout

ms_crc_prepare()

cdef Py_ssize_t CHUNK_BYTES = layout.CHUNK_BYTES
cdef enum:
    ROWS_START = 16


cdef class Chunk:
    """Memory for payloads. Exports are read-only: only the builder writes, behind what was handed out."""

    def __cinit__(self, Py_ssize_t size):
        self.memory = <uint8_t *> ms_take(size)
        if self.memory == NULL:
            raise MemoryError(f"no memory for {size} bytes of batches")
        self.size = size

    def __dealloc__(self):
        ms_give(self.memory, self.size)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.size, 1, flags)


cdef class Directory:
    """Rows in one array that grows until somebody looks at it."""

    def __dealloc__(self):
        ms_give(self.rows, self.capacity * sizeof(Row))

    cdef int grow(self, Py_ssize_t start) except -1:
        """Room for more, from the first time on for `start`."""
        cdef Py_ssize_t capacity = 2 * self.capacity if self.capacity else ROWS_START
        cdef Row *rows
        while capacity < start:
            capacity *= 2
        rows = <Row *> ms_take(capacity * sizeof(Row))
        if rows == NULL:
            raise MemoryError(f"no memory for a directory of {capacity} rows")
        if self.count:
            memcpy(rows, self.rows, self.count * sizeof(Row))
        ms_give(self.rows, self.capacity * sizeof(Row))
        self.rows = rows
        self.capacity = capacity
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.rows if self.count else <void *> b"", self.count * sizeof(Row), 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


cdef class Arena:
    """The chunk that a write group's next payloads go to."""

    def __init__(self, chunk_bytes=CHUNK_BYTES):
        self.chunk_bytes = chunk_bytes
        self.room = 0

    cdef int take_chunk(self, Py_ssize_t size) except -1:
        """Go on in a new chunk, which has room for `size` bytes."""
        self.chunk = Chunk(max(self.chunk_bytes, size))
        self.next = self.chunk.memory
        self.room = self.chunk.size
        return 0


cdef class BlockBuilder:
    """Batches of many queues on their way into one block; see the twin."""

    def __init__(self, Arena arena=None):
        self.arena = arena if arena is not None else Arena()
        self.rows = Directory()
        self.payload_bytes = 0

    def fits(self, Py_ssize_t size):
        """Is there room behind the batches that are in already? A chunk of its own is found for a first one."""
        return self.has_room(size)

    cdef int make_room(self, Py_ssize_t size) except -1:
        """What `put` cannot do without. The rows grow last: as long as there are none, it comes here."""
        if self.rows.exports:
            raise BufferError("the directory is being looked at")
        if self.rows.count:
            if size > self.arena.room:
                raise ValueError("the block does not continue in another chunk")
        else:
            if size > self.arena.room:
                self.arena.take_chunk(size)
            self.chunk = self.arena.chunk
            self.start = self.arena.next - self.chunk.memory
        if self.rows.count == self.rows.capacity:
            self.rows.grow(0 if self.rows.capacity else self.arena.rows_last)
        return 0

    def add(self, batch, base_offset, leader_epoch, log_append_time_ms=-1):
        """Copy a validated batch in, as the one that starts at `base_offset`; with `log_append_time_ms`, as one that
        was made at that time (its timestamps and checksum are renewed)."""
        cdef Batch fields
        cdef Py_buffer view
        PyObject_GetBuffer(batch.data, &view, PyBUF_SIMPLE)
        try:
            if view.len < HEADER_BYTES:
                raise ValueError(f"{view.len} bytes are no batch")
            fill_batch(&fields, batch, view.len)
            self.put(<const uint8_t *> view.buf, &fields, base_offset, leader_epoch, log_append_time_ms)
        finally:
            PyBuffer_Release(&view)

    @property
    def batch_count(self):
        return self.rows.count

    @property
    def payload(self):
        """The batches so far."""
        if self.chunk is None:
            return memoryview(b"")
        return memoryview(self.chunk)[self.start : self.start + self.payload_bytes]

    @property
    def directory(self):
        """The rows so far, `ROW_BYTES` each."""
        return memoryview(self.rows)

    @property
    def size(self):
        """Bytes this block will take in the journal, without header and padding."""
        return self.payload_bytes + self.rows.count * <Py_ssize_t> sizeof(Row)


cdef void restamp(uint8_t *batch, Row *row, int64_t log_append_time_ms) noexcept nogil:
    """Make a batch one that was made at that time."""
    row.attributes |= LOG_APPEND_TIME_BIT
    row.max_timestamp = log_append_time_ms
    ms_write_u16(batch + ATTRIBUTES_AT, <uint16_t> row.attributes)
    ms_write_u64(batch + MAX_TIMESTAMP_AT, <uint64_t> log_append_time_ms)
    row.crc = ms_crc32c(0, batch + CHECKED_FROM, row.length - CHECKED_FROM)
    ms_write_u32(batch + CHECKSUM_AT, row.crc)


cdef int fill_batch(Batch *fields, batch, Py_ssize_t size) except -1:
    """A `BatchAppend` as the scan would have left it."""
    fields.queue_id = batch.queue_id
    fields.length = size
    fields.record_count = batch.record_count
    fields.last_offset_delta = batch.last_offset_delta
    fields.max_timestamp = batch.max_timestamp
    fields.producer_id = batch.producer_id
    fields.producer_epoch = batch.producer_epoch
    fields.base_sequence = batch.base_sequence
    fields.attributes = batch.attributes
    fields.crc = batch.crc
    fields.log_append_time = bool(batch.log_append_time)
    return 0
