from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from mainstem.kernel.compiled.layout cimport REMEMBERED_BATCHES


cdef struct Seen:
    int32_t base_sequence
    int32_t last_sequence
    int64_t base_offset
    int64_t block_index

cdef enum:
    FRESH = -1            # append it
    DUPLICATE = -2        # `seen` says which batch it repeats
    # everything else `check` returns is a verdict of `layout.pxd`

cdef struct State:
    # What one queue knows of one producer: 152 bytes, and a row of an image once `oldest` and `home` are 0.
    uint64_t queue_id
    int64_t producer_id           # of a free one: the number of the next free one
    int64_t last_timestamp_ms
    int16_t epoch
    uint8_t count                 # of batches
    uint8_t oldest                # they go round: the place of the first of them
    uint8_t home                  # which map it is in
    # of a committed one, and 0 in a row:
    uint8_t changed               # since it was handed out to be written to a file
    uint8_t partial               # without what a file has of it
    uint8_t used                  # since `evict` looked at it
    Seen batches[REMEMBERED_BATCHES]

cdef struct Key:
    # What states are sorted by, beside each other.
    uint64_t queue_id
    int64_t producer_id
    State *state

cdef struct Name:
    # Of a producer that a file has a state of.
    uint64_t queue_id
    int64_t producer_id

cdef struct Place:
    uint32_t tag                  # 32 bits of the hash; the highest of them say where the place should be
    uint32_t number               # of the state, from 1; 0: nobody is here

cdef struct Shard:
    Place *places                 # 2^bits of them, at most three quarters taken; NULL while there are none
    uint32_t count
    uint32_t bits

cdef enum:
    SHARDS = 256
    COUNTERS = 1024
    COLD_FILES_MAX = 32


cdef class ProducerStates:
    cdef Shard _committed[SHARDS]
    cdef Shard _overlay[SHARDS]
    cdef State **_slabs
    cdef Py_ssize_t _slab_count
    cdef uint32_t _taken          # states ever taken from the slabs: the highest number
    cdef uint32_t _free           # the number of the first free state, 0 for none
    cdef uint32_t _swept          # where `expire` goes on
    cdef Py_ssize_t _committed_count
    cdef uint32_t _refusals[2 * COUNTERS]     # see the twin: a count and a mark each; 0: nobody
    cdef public list asked                    # for these, see the twin
    cdef public bint settled
    cdef public Py_ssize_t count_max
    cdef Py_ssize_t _overlay_count
    cdef list _cold_held                      # what the names lie in
    cdef const Name *_cold[COLD_FILES_MAX]
    cdef Py_ssize_t _cold_counts[COLD_FILES_MAX]
    cdef int _cold_files
    cdef uint32_t _listed, _listed_end        # where `changed` goes on, and ends
    cdef uint32_t _passing                    # where `evict` goes on

    cdef int check(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        Seen *seen,
    ) noexcept nogil
    """May this batch be appended? FRESH, DUPLICATE (then `seen` is filled), or a verdict."""

    cdef int appended(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ) except -1 nogil
    """Remember a batch that went into a block, in the overlay. Raises MemoryError, and nothing has changed."""

    cdef int applied(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ) except -1 nogil
    """Remember a batch of an applied block for good, and drop what the overlay had waiting up to it. Raises
    MemoryError, and nothing has changed."""

    cdef bint in_file(self, uint64_t queue_id, int64_t producer_id) noexcept nogil
    """Does a file have a state of this producer?"""

    cdef int refused(self, uint32_t *refusals, uint32_t mark, uint32_t patience, int at_last) noexcept nogil
    cdef State *state_at(self, uint32_t number) noexcept nogil
    cdef State *find(self, Shard *map, uint64_t hash, uint64_t queue_id, int64_t producer_id) noexcept nogil
    cdef State *enter(
        self, Shard *map, uint8_t home, uint64_t hash, uint64_t queue_id, int64_t producer_id
    ) except NULL nogil
    cdef int grow_shard(self, Shard *shard) except -1 nogil
    cdef int add_slab(self) except -1 nogil
    cdef void remove(self, Shard *map, uint64_t hash, State *state) noexcept nogil
    cdef void release(self, uint32_t number) noexcept nogil
    cdef int put(self, const State *state) except -1
    cdef Key *sorted(self) except NULL
