"""The shapes of `mainstem.kernel.layout` as C structs."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    CHUNK_SHIFT = 16
    CHUNK_SLOTS = 65536
    CHUNK_MASK = 65535
    CELLS = 8
    ROW_BITS = 24
    ROW_MASK = 16777215
    SKIP_EVERY = 64
    WATCHED = 1
    ONE_ENTRY = 2
    REMEMBERED_BATCHES = 5

cdef enum:
    # `model.slot_of`
    SLOT_SHIFT = 52
    CLASSED_BIT = 62             # of a queue id
    CLASS_MASK = 7

cdef inline Py_ssize_t group_slot(uint64_t queue_id) noexcept nogil:
    """`model.slot_of`: behind the slots of the classes before its own."""
    cdef uint64_t before = (queue_id >> 32 & CLASS_MASK) << (64 - SLOT_SHIFT) if queue_id >> CLASSED_BIT & 1 else 0
    return <Py_ssize_t> (before + (queue_id * <uint64_t> 0x9E3779B97F4A7C15 >> SLOT_SHIFT))

cdef enum:
    UNSTABLE_DISTANCE_MAX = 4293918720

cdef struct Slot:
    # One queue: 64 bytes, one cache line.
    uint64_t queue_id
    int64_t next_offset
    int64_t committed_end
    int64_t log_start
    uint64_t tail_link
    uint64_t skip_link
    int64_t first_unstable
    int64_t entries

cdef struct Row:
    # One batch in a block's directory: 64 bytes, little-endian, the journal's format.
    uint64_t queue_id
    int64_t base_offset
    int64_t max_timestamp
    int64_t producer_id
    uint32_t position
    uint32_t length
    int32_t last_offset_delta
    int32_t record_count
    int32_t base_sequence
    int16_t producer_epoch
    int16_t attributes
    int32_t leader_epoch
    uint32_t crc

cdef enum:
    # `layout.Verdict`
    OK = 0
    NO_BATCH = 1
    OLD_FORMAT = 2
    MANY_BATCHES = 3
    BAD_LENGTH = 4
    BAD_CHECKSUM = 5
    BAD_COUNT = 6
    BAD_FIELD = 7
    BAD_COMPRESSION = 8
    CONTROL = 9
    TRANSACTIONAL = 10
    UNKNOWN_TOPIC = 16
    UNKNOWN_TOPIC_ID = 17
    UNKNOWN_PARTITION = 18
    INTERNAL_TOPIC = 19
    NOT_ENOUGH_REPLICAS = 20
    LARGER_THAN_TOPIC_ALLOWS = 21
    ZSTD_TOO_OLD = 22
    INVALID_TIMESTAMP = 23
    KEYLESS = 24
    UNREADABLE = 25
    INVALID_ACKS = 26
    TRANSACTIONAL_ID = 27
    TIMESTAMP_OUT_OF_RANGE = 28
    UNKNOWN_QUEUE = 32
    FENCED = 33
    NOT_LEADER = 34
    OUT_OF_ORDER_SEQUENCE = 35
    UNKNOWN_PRODUCER = 36
    STALE_PRODUCER_EPOCH = 37
    SKIPPED_SEQUENCE = 38
    TOO_LARGE = 39
    STORAGE_BUSY = 40
    STORAGE_FAILED = 41
    UNDECIDED = 42
    COLD_PRODUCER = 43
    INVALID_TXN_STATE = 45
    CONCURRENT_TRANSACTIONS = 46
    OFFSET_OUT_OF_RANGE = 48
    FENCED_LEADER_EPOCH = 49
    UNKNOWN_LEADER_EPOCH = 50
    OFFSET_NOT_AVAILABLE = 51

cdef enum:
    # A verdict that is not out yet: all is well but for the checksum, which nobody has looked at.
    UNCHECKED = -1

cdef struct Batch:
    # One partition of a Produce request: what the scan found, then what the store made of it. It begins like a `Row`,
    # so that its row is copied from it in one go.
    uint64_t queue_id
    int64_t base_offset          # -1 unless appended
    int64_t max_timestamp
    int64_t producer_id
    uint32_t start               # of the records, in the frame
    uint32_t length              # of the records, bytes
    int32_t last_offset_delta
    int32_t record_count
    int32_t base_sequence
    int16_t producer_epoch
    int16_t attributes
    int32_t partition
    uint32_t crc
    int64_t log_append_time_ms   # -1 unless stamped
    int64_t log_start_offset     # -1 unless appended
    int64_t block_index          # of the block that must be applied before it may be told; 0: none
    int32_t verdict
    uint16_t group               # that block's
    uint16_t log_append_time     # 1: the store stamps its own time
