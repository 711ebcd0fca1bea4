"""The partitions of a fetch plan as C structs: what `fetch_plan` fills and `fetch_response` writes out."""

from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    NOBODY = -1              # the end of a list of rows or topics
    UNCOPIED_BYTES_MIN = 8192
    SPARED_BYTES_MIN = 512
    JOINED_BYTES_MAX = 262144
    SCATTERED_FROM = 16
    SCATTERED_BYTES_FROM = 131072

cdef struct PlanRow:
    # One partition: what is asked for, what came of it in this round, what the reader was told last.
    int32_t topic
    int32_t partition
    int64_t fetch_offset
    int32_t bytes_max        # 0 or more
    int32_t current_leader_epoch
    int32_t last_fetched_epoch
    int32_t diverging_epoch
    int64_t diverging_end
    uint64_t queue_id
    int64_t high_watermark   # -1 unless the partition was read
    int64_t log_start
    int64_t last_stable
    int64_t next_offset      # where the reader goes on behind the batches found
    int64_t size             # of the batches found, bytes
    int32_t first_part
    int32_t part_count
    int64_t told_high_watermark
    int64_t told_log_start
    int32_t next             # in the order of the plan
    int32_t previous
    int32_t chained          # the next row of the same hash bucket, or the next free row
    int32_t answered         # the next row of the same topic in the answer
    uint8_t verdict
    bint settled
    bint diverged
    bint ahead               # beyond what this follower has applied
    int32_t nearer           # the node that the reader is sent to for it; -1: none
    bint told_error
    int32_t aborted          # place among the answer's lists of aborted transactions, from 1; 0: it has none

cdef struct PlanTopic:
    int32_t rows             # how many rows are this topic's
    uint32_t number
    int32_t partitions
    int32_t refusal
    bint spread              # its readers are spread over replicas
    int32_t elsewhere        # its number in the plan of the session, while that takes this one over
    int32_t first_answered   # rows in the answer
    int32_t last_answered
    int32_t answered_count
    int32_t next_answered    # the next topic in the answer

cdef struct Part:
    # Batches of one partition that lie side by side.
    PyObject *owner          # an owned reference: what they lie in, contiguous bytes that stay in their place
    const uint8_t *bytes
    int64_t length

cdef struct Aborted:
    # The aborted transactions among the batches of one partition: the producer and the first offset of each.
    PyObject *owner          # an owned reference: the bytes
    const int64_t *pairs
    int64_t count

cdef struct Answer:
    # What of a plan goes into a response.
    const PlanRow *rows
    const PlanTopic *topics
    const Part *parts
    const Aborted *aborted
    int32_t first_topic
    int32_t topic_count
    int64_t row_count
    int64_t key_bytes        # of the topics' names or ids
    int64_t uncopied_min     # parts from this size on are not copied
    int64_t small_bytes      # of parts that are copied
    int64_t large_bytes      # of parts that are not
    int64_t large_count
