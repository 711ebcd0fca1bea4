cimport cython
from cpython.buffer cimport Py_buffer
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mainstem.kernel.compiled.layout cimport Slot
from mainstem.kernel.compiled.fetch_rows cimport Aborted, Answer, Part, PlanRow, PlanTopic
from mainstem.kernel.compiled.queue_table cimport QueueTable
from mainstem.kernel.compiled.recent_index cimport Stretches, RecentIndex

cdef enum:
    # What `answer_from_memory` made of a row.
    UNKNOWN_TO_MEMORY = 0    # nothing
    ANSWERED = 1             # settled without batches
    ANSWERED_WITH_BATCHES = 2

cdef int check_groups(const Py_buffer *groups) except -1


@cython.final
cdef class PlannedTopic:
    """What the broker tells a plan about a topic; see the twin."""
    cdef readonly uint32_t number
    cdef readonly int32_t partitions
    cdef readonly int32_t refusal
    cdef readonly bint spread


@cython.final
cdef class FetchPlan:
    cdef PlanRow *rows
    cdef int32_t row_count           # rows in the order of the plan
    cdef int32_t row_end             # rows ever used; those not in the order are free
    cdef int32_t row_capacity
    cdef int32_t first_row
    cdef int32_t last_row
    cdef int32_t free_row
    cdef PlanTopic *topics
    cdef int32_t topic_count
    cdef int32_t topic_capacity
    cdef int32_t topics_followed     # topics that have rows
    cdef list keys                   # of the topics
    cdef dict topic_of               # the number of each key, in the plan of a session; else None
    cdef int32_t *buckets            # rows of a session by topic and partition
    cdef uint32_t bucket_mask
    cdef Part *parts                 # of this round
    cdef Py_ssize_t part_count
    cdef Py_ssize_t part_capacity
    cdef Stretches stretches         # memory for reads
    cdef int32_t cursor
    cdef int64_t bytes_max
    cdef readonly int64_t round
    cdef int64_t found_bytes
    cdef readonly bint final
    cdef bint released               # the parts of this round are gone
    cdef readonly int64_t wanted_bytes
    cdef readonly bint asks_epochs
    cdef public bint read_committed  # the reader gets what is before the last stable offset
    cdef Aborted *aborted            # lists that rows have
    cdef Py_ssize_t aborted_count
    cdef Py_ssize_t aborted_capacity
    cdef public int from_followers   # `FollowersRead`: whether replicas of write groups that others lead may be read
    cdef public int64_t reader       # the connection of the reader, 0 where that is nobody's
    cdef public dict nearer          # write group: the node the reader is sent to for its queues that are led here
    cdef public dict share           # the same for topics whose readers are spread
    cdef public int32_t share_to     # the broker the reader is sent to for these, where brokers hold nothing; or -1
    cdef public dict for_history     # the same for reads that memory alone cannot answer
    cdef readonly bint has_spread    # the readers of a topic of this round are spread

    # for the scan
    cdef int32_t new_topic(self, object key) except -1
    cdef int reserve_rows(self, int64_t count) except -1
    cdef int32_t new_row(self, int32_t topic, int32_t partition) except -1
    cdef void ask(
        self, PlanRow *row, int64_t fetch_offset, int32_t bytes_max, int32_t leader_epoch, int32_t fetched_epoch
    ) noexcept nogil

    # a round
    cdef int32_t next_row(self) noexcept nogil
    cdef int64_t budget(self, const PlanRow *row, int64_t reserved) noexcept nogil
    cdef int answer_from_memory(
        self, int32_t number, QueueTable table, RecentIndex index, list logs, const uint16_t *groups, int64_t reserved
    ) except -1
    cdef bint send_by(
        self, PlanRow *row, const Slot *slot, Py_ssize_t first_part, Py_ssize_t group, dict nodes
    ) except -1
    cdef void send(
        self, PlanRow *row, int64_t high_watermark, int64_t log_start, int64_t last_stable, Py_ssize_t first_part,
        int32_t node,
    ) noexcept nogil
    cdef void reject(self, PlanRow *row, int verdict) noexcept nogil
    cdef void found(
        self, PlanRow *row, int64_t high_watermark, int64_t log_start, int64_t last_stable, Py_ssize_t first_part,
        int64_t next_offset,
    ) noexcept nogil
    cdef Py_ssize_t parts_before(self, int64_t end, Py_ssize_t first_part) noexcept nogil
    cdef int64_t end_for(self, const Slot *slot) noexcept nogil
    cdef int hold(self, object owner, const uint8_t *data, int64_t length) except -1
    cdef void let_go(self)

    # the answer
    cdef int gather(self, Answer *answer, bint incremental, int version) except -1
    cdef void tell(self) noexcept nogil

    # sessions
    cdef int follow(self, FetchPlan asked) except -1
    cdef uint32_t bucket_of(self, int32_t topic, int32_t partition) noexcept nogil
    cdef int32_t find_row(self, int32_t topic, int32_t partition) noexcept nogil
    cdef int spread(self) except -1
    cdef int32_t *new_buckets(self, int64_t row_count, int64_t *size) except NULL
    cdef void use_buckets(self, int32_t *buckets, int64_t size) noexcept nogil
    cdef void leave_out(self, int32_t row_number) noexcept nogil
    cdef int compact(self) except -1
    cdef void unlink(self, int32_t row_number) noexcept nogil
    cdef void append(self, int32_t row_number) noexcept nogil
