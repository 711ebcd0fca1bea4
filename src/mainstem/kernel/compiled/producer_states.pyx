"""Idempotent producers; see the twin for the rules.

States lie in slabs and never move. Two maps lead to them by (queue, producer): what is committed, and the overlay.
A map is 256 small hash tables, chosen by the first byte of the hash: each grows on its own, by its entries alone,
so that growing never takes longer than a 256th of the whole. The keys come from clients, so the hash is keyed with
a secret of the process; nothing that can be seen from outside depends on the order in the tables.

All changes happen on the event loop's thread. Pointers to states are good until something is forgotten.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsUnsignedLongLongMask
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memset

from array import array

from mainstem.kernel.compiled.layout cimport (
    COLD_PRODUCER,
    OUT_OF_ORDER_SEQUENCE,
    REMEMBERED_BATCHES,
    SKIPPED_SEQUENCE,
    STALE_PRODUCER_EPOCH,
    STORAGE_BUSY,
)
from mainstem.kernel.errors import MalformedImage
from mainstem.kernel.pure import producer_states as twin

cdef extern from *:
    """
    static inline uint64_t ms_folded_product(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    """
    uint64_t ms_folded_product(uint64_t a, uint64_t b) noexcept nogil

cdef enum:
    SLAB_BITS = 10        # 152 KiB a slab: of it only the pages that are used become memory
    SLAB_STATES = 1024
    SLAB_MASK = 1023
    PLACE_BITS_MIN = 3    # a cache line
    SEQUENCE_MASK = 0x7FFFFFFF
    COUNT_MASK = 0x7F
    FREE = 0
    COMMITTED = 1
    OVERLAY = 2

cdef Py_ssize_t EXPIRE_LIMIT = twin.EXPIRE_LIMIT
cdef int64_t INDEX_MAX = twin.INDEX_MAX
cdef uint32_t PATIENCE = twin.PATIENCE
cdef uint32_t UNKNOWN_PATIENCE = twin.UNKNOWN_PATIENCE
cdef uint64_t SPREAD = twin.SPREAD
cdef object Outcome = twin.Outcome
cdef object SeenBatch = twin.SeenBatch
cdef object SequenceVerdict = twin.SequenceVerdict

assert COLD_FILES_MAX == twin.COLD_FILES_MAX and sizeof(Name) == twin.KEY.size
assert COUNTERS == twin.COUNTERS and COUNT_MASK == twin.COUNT_MASK and PATIENCE <= COUNT_MASK

# What Python keys its own dictionaries with.
cdef uint64_t QUEUE_SECRET = PyLong_AsUnsignedLongLongMask(hash("mainstem: queues of producers"))
cdef uint64_t PRODUCER_SECRET = PyLong_AsUnsignedLongLongMask(hash("mainstem: producers of queues"))


cdef inline uint64_t hash_of(uint64_t queue_id, int64_t producer_id) noexcept nogil:
    return ms_folded_product(
        ms_folded_product(queue_id ^ QUEUE_SECRET, <uint64_t> producer_id ^ PRODUCER_SECRET) ^ QUEUE_SECRET,
        <uint64_t> 0x9E3779B97F4A7C15,
    )


cdef inline Shard *shard_of(Shard *map, uint64_t hash) noexcept nogil:
    return map + (hash >> 56)


cdef inline uint32_t tag_of(uint64_t hash) noexcept nogil:
    return <uint32_t> (hash >> 24)


cdef inline uint64_t spread_of(uint64_t queue_id, int64_t producer_id) noexcept nogil:
    """Says where refusals are counted. Without the secret: the twin counts at the same place."""
    return (queue_id * SPREAD + <uint64_t> producer_id) * SPREAD


cdef inline uint32_t mark_of(uint64_t spread) noexcept nogil:
    return <uint32_t> (spread >> 22) & ~<uint32_t> COUNT_MASK


cdef inline int in_order(uint32_t *refusals, uint32_t mark) noexcept nogil:
    if refusals[0] and (refusals[0] ^ mark) <= COUNT_MASK:
        refusals[0] = 0
    return FRESH


cdef inline int32_t last_sequence_of(int32_t base_sequence, int32_t record_count) noexcept nogil:
    return <int32_t> ((<int64_t> base_sequence + record_count - 1) & SEQUENCE_MASK)


cdef inline Seen *batch_at(State *state, int position) noexcept nogil:
    """The batch at a position, the oldest being at 0."""
    cdef int place = state.oldest + position
    return &state.batches[place - REMEMBERED_BATCHES if place >= REMEMBERED_BATCHES else place]


cdef void grow(
    State *state, int16_t epoch, int32_t base_sequence, int32_t record_count, int64_t base_offset, int64_t block_index,
    int64_t now_ms,
) noexcept nogil:
    """A producer's state after one more batch."""
    cdef Seen *seen
    if state.epoch != epoch:
        state.epoch = epoch
        state.count = state.oldest = 0
    if state.count < REMEMBERED_BATCHES:
        state.count += 1
    else:
        state.oldest = 0 if state.oldest == REMEMBERED_BATCHES - 1 else state.oldest + 1
    seen = batch_at(state, state.count - 1)
    seen.base_sequence = base_sequence
    seen.last_sequence = last_sequence_of(base_sequence, record_count)
    seen.base_offset = base_offset
    seen.block_index = block_index
    state.last_timestamp_ms = now_ms


cdef void as_row(State *row, State *state) noexcept nogil:
    """A copy with the oldest batch first and everything unused zero."""
    cdef int position
    memset(row, 0, sizeof(State))
    row.queue_id = state.queue_id
    row.producer_id = state.producer_id
    row.last_timestamp_ms = state.last_timestamp_ms
    row.epoch = state.epoch
    row.count = state.count
    for position in range(state.count):
        row.batches[position] = batch_at(state, position)[0]


cdef void join(State *older, const State *newer) noexcept nogil:
    """Put what is newer of the same producer to what is older; both begin with their oldest batch."""
    cdef int kept = 0, gone, position, first = 0, added
    if older.epoch == newer.epoch:
        if older.count and newer.count and newer.batches[0].base_sequence < 0:
            first = 1     # a marker, which begins nothing where the epoch has batches
        while kept < older.count and (
            first == newer.count or older.batches[kept].base_offset < newer.batches[first].base_offset
        ):
            kept += 1
    added = newer.count - first
    gone = max(0, kept + added - REMEMBERED_BATCHES)
    for position in range(gone, kept):
        older.batches[position - gone] = older.batches[position]
    kept -= min(gone, kept)
    for position in range(added):
        older.batches[kept + position] = newer.batches[first + position]
    older.epoch = newer.epoch
    older.count = kept + added
    older.last_timestamp_ms = newer.last_timestamp_ms
    for position in range(older.count, REMEMBERED_BATCHES):
        memset(&older.batches[position], 0, sizeof(Seen))


cdef bint is_among(const uint64_t *topics, Py_ssize_t count, uint64_t topic) noexcept nogil:
    """Is it one of these, which ascend?"""
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if topics[middle] < topic:
            low = middle + 1
        else:
            high = middle
    return low < count and topics[low] == topic


cdef int by_queue_and_producer(const void *left, const void *right) noexcept nogil:
    cdef const Key *a = <const Key *> left
    cdef const Key *b = <const Key *> right
    if a.queue_id != b.queue_id:
        return -1 if a.queue_id < b.queue_id else 1
    return -1 if a.producer_id < b.producer_id else 1


cdef class ProducerStates:
    """The producers of all queues of one write group, for callers in C. Python calls its subclass `Producers`:
    a class cannot have methods of the same name for both."""

    def __cinit__(self):
        self.asked = []
        self._cold_held = []

    def __dealloc__(self):
        cdef Py_ssize_t place
        for place in range(SHARDS):
            PyMem_RawFree(self._committed[place].places)
            PyMem_RawFree(self._overlay[place].places)
        for place in range(self._slab_count):
            PyMem_RawFree(self._slabs[place])
        PyMem_RawFree(self._slabs)

    # --- the rules ------------------------------------------------------------------------------------------

    cdef int check(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        Seen *seen,
    ) noexcept nogil:
        cdef uint64_t hash = hash_of(queue_id, producer_id)
        cdef State *state = self.find(self._overlay, hash, queue_id, producer_id)
        cdef uint64_t spread = spread_of(queue_id, producer_id)
        cdef uint32_t *refusals = self._refusals + (spread >> 54)
        cdef uint32_t mark = mark_of(spread)
        cdef int32_t last_sequence, expected = 0
        cdef int position
        cdef Seen *batch
        if state == NULL:
            state = self.find(self._committed, hash, queue_id, producer_id)
            if not self.settled:
                if state != NULL:
                    if state.partial:
                        return COLD_PRODUCER
                elif self._cold_files and self.in_file(queue_id, producer_id):
                    return COLD_PRODUCER
        if state == NULL:
            if self.count_max and self._committed_count + self._overlay_count >= self.count_max:
                return STORAGE_BUSY
            refusals += COUNTERS
            if base_sequence == 0:
                return in_order(refusals, mark)
            return self.refused(refusals, mark, UNKNOWN_PATIENCE, FRESH)
        if epoch < state.epoch:
            return STALE_PRODUCER_EPOCH
        if epoch > state.epoch:
            if base_sequence == 0:
                return in_order(refusals, mark)
            return self.refused(refusals, mark, PATIENCE, OUT_OF_ORDER_SEQUENCE)
        last_sequence = last_sequence_of(base_sequence, record_count)
        for position in range(state.count):
            batch = batch_at(state, position)
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                seen[0] = batch[0]
                return DUPLICATE
            expected = <int32_t> ((<int64_t> batch.last_sequence + 1) & SEQUENCE_MASK)
        if base_sequence == expected:
            return in_order(refusals, mark)
        if ((<int64_t> base_sequence - expected) & SEQUENCE_MASK) <= SEQUENCE_MASK >> 1:
            return self.refused(refusals, mark, PATIENCE, OUT_OF_ORDER_SEQUENCE)
        return OUT_OF_ORDER_SEQUENCE

    cdef int refused(self, uint32_t *refusals, uint32_t mark, uint32_t patience, int at_last) noexcept nogil:
        """Once more; after as many times as there is patience for, `at_last`, and counting begins anew."""
        cdef uint32_t count = refusals[0] & COUNT_MASK
        if count >= patience:
            refusals[0] = 0
            return at_last
        refusals[0] = mark | (count + 1)
        return SKIPPED_SEQUENCE

    cdef int appended(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ) except -1 nogil:
        cdef uint64_t hash = hash_of(queue_id, producer_id)
        cdef State *waiting = self.find(self._overlay, hash, queue_id, producer_id)
        cdef State *state
        if base_sequence < 0 and waiting != NULL and waiting.epoch == epoch:
            return 0
        if waiting == NULL:
            state = self.find(self._committed, hash, queue_id, producer_id)
            if base_sequence < 0 and state != NULL and state.epoch == epoch:
                return 0
            waiting = self.enter(self._overlay, OVERLAY, hash, queue_id, producer_id)
            self._overlay_count += 1
            if state != NULL:
                waiting.epoch = state.epoch
                waiting.count = state.count
                waiting.oldest = state.oldest
                memcpy(waiting.batches, state.batches, sizeof(state.batches))
        grow(waiting, epoch, base_sequence, record_count, base_offset, block_index, now_ms)
        return 0

    cdef int applied(
        self, uint64_t queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ) except -1 nogil:
        cdef uint64_t hash = hash_of(queue_id, producer_id)
        cdef State *state = self.find(self._committed, hash, queue_id, producer_id)
        cdef State *waiting = self.find(self._overlay, hash, queue_id, producer_id)
        cdef bint grows = True
        if state == NULL:
            state = self.enter(self._committed, COMMITTED, hash, queue_id, producer_id)
            self._committed_count += 1
            state.partial = self._cold_files and self.in_file(queue_id, producer_id)
        else:
            state.used = 1
            if base_sequence < 0 and state.epoch == epoch:
                state.last_timestamp_ms = now_ms
                state.changed = 1
                grows = False
        if grows and (not state.count or batch_at(state, state.count - 1).base_offset < base_offset):
            grow(state, epoch, base_sequence, record_count, base_offset, block_index, now_ms)
            state.changed = 1
        if waiting != NULL and batch_at(waiting, waiting.count - 1).block_index <= block_index:
            self.remove(self._overlay, hash, waiting)
        return 0

    # --- the maps -------------------------------------------------------------------------------------------

    cdef State *state_at(self, uint32_t number) noexcept nogil:
        return self._slabs[(number - 1) >> SLAB_BITS] + ((number - 1) & SLAB_MASK)

    cdef State *find(self, Shard *map, uint64_t hash, uint64_t queue_id, int64_t producer_id) noexcept nogil:
        """The state of a producer in a map, NULL when there is none."""
        cdef Shard *shard = shard_of(map, hash)
        cdef uint32_t tag = tag_of(hash), place, mask
        cdef State *state
        if not shard.count:
            return NULL
        mask = (<uint32_t> 1 << shard.bits) - 1
        place = tag >> (32 - shard.bits)
        while shard.places[place].number:
            if shard.places[place].tag == tag:
                state = self.state_at(shard.places[place].number)
                if state.queue_id == queue_id and state.producer_id == producer_id:
                    return state
            place = (place + 1) & mask
        return NULL

    cdef State *enter(
        self, Shard *map, uint8_t home, uint64_t hash, uint64_t queue_id, int64_t producer_id
    ) except NULL nogil:
        """A new state without batches, in a map that has none for this producer."""
        cdef Shard *shard = shard_of(map, hash)
        cdef uint32_t tag = tag_of(hash), number, place, mask
        cdef State *state
        if not shard.bits or 4 * (<uint64_t> shard.count + 1) > 3 * (<uint64_t> 1 << shard.bits):
            self.grow_shard(shard)
        if not self._free and self._taken == self._slab_count * SLAB_STATES:
            self.add_slab()
        if self._free:
            number = self._free
            state = self.state_at(number)
            self._free = <uint32_t> state.producer_id
        else:
            self._taken += 1
            number = self._taken
            state = self.state_at(number)
        memset(state, 0, sizeof(State))
        state.queue_id = queue_id
        state.producer_id = producer_id
        state.home = home
        mask = (<uint32_t> 1 << shard.bits) - 1
        place = tag >> (32 - shard.bits)
        while shard.places[place].number:
            place = (place + 1) & mask
        shard.places[place].tag = tag
        shard.places[place].number = number
        shard.count += 1
        return state

    cdef int grow_shard(self, Shard *shard) except -1 nogil:
        """Twice the places. What is in them is put anew by its tag: no state is looked at."""
        cdef uint32_t bits = shard.bits + 1 if shard.bits else PLACE_BITS_MIN
        cdef size_t size = <size_t> 1 << bits, old_size = <size_t> 1 << shard.bits if shard.bits else 0, old, place
        cdef Place *places = NULL
        if bits < 32:
            places = <Place *> PyMem_RawCalloc(size, sizeof(Place))
        if places == NULL:
            with gil:
                raise MemoryError(f"no memory for {size} places of producers")
        for old in range(old_size):
            if shard.places[old].number:
                place = shard.places[old].tag >> (32 - bits)
                while places[place].number:
                    place = (place + 1) & (size - 1)
                places[place] = shard.places[old]
        PyMem_RawFree(shard.places)
        shard.places = places
        shard.bits = bits
        return 0

    cdef int add_slab(self) except -1 nogil:
        cdef State **slabs
        cdef State *slab
        if self._slab_count < (<Py_ssize_t> 1 << (32 - SLAB_BITS)) - 1:  # numbers have 32 bits
            slabs = <State **> PyMem_RawRealloc(self._slabs, (self._slab_count + 1) * sizeof(State *))
            if slabs != NULL:
                self._slabs = slabs
                slab = <State *> PyMem_RawMalloc(SLAB_STATES * sizeof(State))
                if slab != NULL:
                    slabs[self._slab_count] = slab
                    self._slab_count += 1
                    return 0
        with gil:
            raise MemoryError(f"no memory for more than {self._slab_count * SLAB_STATES} states of producers")

    cdef void remove(self, Shard *map, uint64_t hash, State *state) noexcept nogil:
        """Take a state out of its map and free it. Whoever stands behind its place only because it was taken moves
        back, so that no marks of what was are left."""
        cdef Shard *shard = shard_of(map, hash)
        cdef uint32_t mask = (<uint32_t> 1 << shard.bits) - 1, home_shift = 32 - shard.bits
        cdef uint32_t hole = tag_of(hash) >> home_shift, place, home
        while not (shard.places[hole].number and self.state_at(shard.places[hole].number) == state):
            hole = (hole + 1) & mask
        self.release(shard.places[hole].number)
        shard.count -= 1
        place = hole
        while True:
            place = (place + 1) & mask
            if not shard.places[place].number:
                break
            home = shard.places[place].tag >> home_shift
            if ((place - home) & mask) >= ((place - hole) & mask):
                shard.places[hole] = shard.places[place]
                hole = place
        shard.places[hole].number = 0

    cdef void release(self, uint32_t number) noexcept nogil:
        cdef State *state = self.state_at(number)
        if state.home == COMMITTED:
            self._committed_count -= 1
        else:
            self._overlay_count -= 1
        state.home = FREE
        state.producer_id = self._free
        self._free = number

    # --- forgetting -----------------------------------------------------------------------------------------

    def discard_overlay(self):
        """Forget everything appended and not applied, and what was refused."""
        cdef Shard *shard
        cdef Py_ssize_t position, place
        memset(self._refusals, 0, sizeof(self._refusals))
        for position in range(SHARDS):
            shard = self._overlay + position
            if shard.count:
                for place in range((<Py_ssize_t> 1) << shard.bits):
                    if shard.places[place].number:
                        self.release(shard.places[place].number)
                memset(shard.places, 0, ((<size_t> 1) << shard.bits) * sizeof(Place))
                shard.count = 0

    def forget_topics(self, topic_numbers):
        """Forget the producers of all queues of these topics, in one look at all of them."""
        gone = array("Q", sorted(topic_numbers))
        cdef const uint64_t[::1] topics = gone
        cdef uint32_t number
        cdef uint64_t hash
        cdef State *state
        if not len(gone):
            return
        for number in range(1, self._taken + 1):
            state = self.state_at(number)
            if state.home != FREE and is_among(&topics[0], topics.shape[0], state.queue_id >> 32):
                hash = hash_of(state.queue_id, state.producer_id)
                if state.home == COMMITTED:
                    self.remove(self._committed, hash, state)
                else:
                    self.remove(self._overlay, hash, state)

    def expire(self, int64_t before_ms, Py_ssize_t limit=EXPIRE_LIMIT, int64_t up_to_index=INDEX_MAX):
        """Look at `limit` producers, going on where the last call ended, and forget those last seen before a time
        (ms) and in no block after this one; how many. A limit of `len` or more is a look at all."""
        cdef Py_ssize_t gone = 0, _step
        cdef State *state
        if limit >= self._committed_count:
            limit = self._taken
        for _step in range(min(limit, <Py_ssize_t> self._taken)):
            self._swept = 1 if self._swept >= self._taken else self._swept + 1
            state = self.state_at(self._swept)
            if state.home != COMMITTED or state.last_timestamp_ms >= before_ms:
                continue
            if not state.count or batch_at(state, state.count - 1).block_index <= up_to_index:
                self.remove(self._committed, hash_of(state.queue_id, state.producer_id), state)
                gone += 1
        return gone

    # --- the cold ones --------------------------------------------------------------------------------------

    def set_cold(self, names):
        """These files have states of the producers named, each sorted, one `KEY` of the twin behind the other."""
        cdef Py_buffer view
        cdef int count = 0
        if len(names) > COLD_FILES_MAX:
            raise ValueError(f"{len(names)} files of producers; at most {COLD_FILES_MAX} can be looked at")
        held = [bytes(one) for one in names]
        for one in held:
            self._cold[count] = <const Name *> PyBytes_AS_STRING(one)
            self._cold_counts[count] = len(one) // <Py_ssize_t> sizeof(Name)
            count += 1
        self._cold_files = count
        self._cold_held = held

    cdef bint in_file(self, uint64_t queue_id, int64_t producer_id) noexcept nogil:
        cdef int number
        cdef Py_ssize_t low, high, middle
        cdef const Name *name
        for number in range(self._cold_files):
            low = 0
            high = self._cold_counts[number]
            while low < high:
                middle = (low + high) >> 1
                name = self._cold[number] + middle
                if name.queue_id < queue_id or name.queue_id == queue_id and name.producer_id < producer_id:
                    low = middle + 1
                else:
                    high = middle
            if low < self._cold_counts[number]:
                name = self._cold[number] + low
                if name.queue_id == queue_id and name.producer_id == producer_id:
                    return True
        return False

    def epoch_of(self, queue_id, int64_t producer_id):
        """The newest epoch that a queue has seen of a producer; `UNKNOWN_EPOCH` and `COLD_EPOCH` of the twin where there is
        none, or it lies in a file."""
        cdef uint64_t queue = PyLong_AsUnsignedLongLongMask(queue_id)
        cdef uint64_t hash = hash_of(queue, producer_id)
        cdef State *state = self.find(self._overlay, hash, queue, producer_id)
        if state == NULL:
            state = self.find(self._committed, hash, queue, producer_id)
            if not self.settled and (state.partial if state != NULL else self.in_file(queue, producer_id)):
                return twin.COLD_EPOCH
        return twin.UNKNOWN_EPOCH if state == NULL else state.epoch

    def is_cold(self, queue_id, int64_t producer_id):
        """Does a file have a state of this producer?"""
        return bool(self.in_file(PyLong_AsUnsignedLongLongMask(queue_id), producer_id))

    def changed(self, bint begin, Py_ssize_t limit):
        """Rows of committed states that have changed since they were handed out, from up to `limit` of them; None at the
        end of a round. With `begin` a round begins: what changes while it lasts may be left for the next."""
        cdef uint32_t end, number
        cdef Py_ssize_t count = 0
        cdef State *state
        cdef bytes rows
        if begin:
            self._listed = 0
            self._listed_end = self._taken
        if self._listed >= self._listed_end:
            return None
        end = <uint32_t> min(<Py_ssize_t> self._listed + limit, <Py_ssize_t> self._listed_end)
        for number in range(self._listed + 1, end + 1):
            state = self.state_at(number)
            count += state.home == COMMITTED and state.changed
        rows = PyBytes_FromStringAndSize(NULL, count * <Py_ssize_t> sizeof(State))
        count = 0
        for number in range(self._listed + 1, end + 1):
            state = self.state_at(number)
            if state.home == COMMITTED and state.changed:
                as_row(<State *> PyBytes_AS_STRING(rows) + count, state)
                (<State *> PyBytes_AS_STRING(rows) + count).partial = state.partial
                state.changed = 0
                count += 1
        self._listed = end
        return rows

    def all_changed(self):
        """What was handed out as changed came to nothing."""
        cdef uint32_t number
        cdef State *state
        for number in range(1, self._taken + 1):
            state = self.state_at(number)
            state.changed = state.home == COMMITTED

    def evict(self, Py_ssize_t target, Py_ssize_t limit):
        """Look at `limit` states, going on where the last call ended, and let go of those that are in a file as they are
        here and were not used since they were last looked at, until `target` are left; how many went."""
        cdef Py_ssize_t gone = 0, _step
        cdef uint64_t hash
        cdef State *state
        for _step in range(min(limit, <Py_ssize_t> self._taken)):
            if self._committed_count <= target:
                break
            self._passing = 1 if self._passing >= self._taken else self._passing + 1
            state = self.state_at(self._passing)
            if state.home != COMMITTED:
                continue
            if state.used:
                state.used = 0
                continue
            if state.changed:
                continue
            hash = hash_of(state.queue_id, state.producer_id)
            if self.find(self._overlay, hash, state.queue_id, state.producer_id) == NULL:
                self.remove(self._committed, hash, state)
                gone += 1
        return gone

    def warm(self, queue_id, int64_t producer_id, rows):
        """Take in what the files have of a producer, oldest first; nothing: it is not there, or too old."""
        cdef uint64_t queue = PyLong_AsUnsignedLongLongMask(queue_id)
        cdef uint64_t hash = hash_of(queue, producer_id)
        cdef State *own = self.find(self._committed, hash, queue, producer_id)
        cdef bint partial = own != NULL and own.partial
        cdef Py_ssize_t place, count
        cdef uint8_t used = 0, changed = 0
        cdef State state, newer
        cdef bytes held = bytes(rows)
        if len(held) % <Py_ssize_t> sizeof(State):
            raise MalformedImage(f"{len(held)} bytes are not a number of rows of {sizeof(State)}")
        count = len(held) // <Py_ssize_t> sizeof(State)
        for place in range(count):
            memcpy(&newer, PyBytes_AS_STRING(held) + place * <Py_ssize_t> sizeof(State), sizeof(State))
            if newer.count > REMEMBERED_BATCHES:
                raise MalformedImage(f"row {place} has {newer.count} batches")
            if place:
                join(&state, &newer)
            else:
                state = newer
        if partial:
            own.partial = 0
        if not count or own != NULL and not partial:
            return
        if own != NULL:
            as_row(&newer, own)
            used, changed = own.used, own.changed
            join(&state, &newer)
        state.queue_id = queue
        state.producer_id = producer_id
        self.put(&state)
        own = self.find(self._committed, hash, queue, producer_id)
        own.used = used
        own.changed = changed

    def held(self, names):
        """Rows of those of these producers, `KEY`s of the twin one behind the other, whose committed states are here, in
        that order; partial ones are marked. Raises `MalformedImage` for names that are cut short."""
        cdef bytes wanted = bytes(names)
        cdef const Name *name = <const Name *> PyBytes_AS_STRING(wanted)
        cdef Py_ssize_t count = len(wanted) // <Py_ssize_t> sizeof(Name), place, found = 0
        cdef State *state
        cdef bytes rows
        if len(wanted) % <Py_ssize_t> sizeof(Name):
            raise MalformedImage(f"{len(wanted)} bytes are not a number of names of {sizeof(Name)}")
        for place in range(count):
            found += self.find(
                self._committed, hash_of(name[place].queue_id, name[place].producer_id), name[place].queue_id,
                name[place].producer_id,
            ) != NULL
        rows = PyBytes_FromStringAndSize(NULL, found * <Py_ssize_t> sizeof(State))
        found = 0
        for place in range(count):
            state = self.find(
                self._committed, hash_of(name[place].queue_id, name[place].producer_id), name[place].queue_id,
                name[place].producer_id,
            )
            if state != NULL:
                as_row(<State *> PyBytes_AS_STRING(rows) + found, state)
                (<State *> PyBytes_AS_STRING(rows) + found).partial = state.partial
                found += 1
        return rows

    # --- checkpoint -----------------------------------------------------------------------------------------

    cdef Key *sorted(self) except NULL:
        """The committed states by queue and producer. The caller frees the array."""
        cdef Key *keys = <Key *> PyMem_RawMalloc((self._committed_count + 1) * sizeof(Key))
        cdef Py_ssize_t count = 0
        cdef uint32_t number
        cdef State *state
        if keys == NULL:
            raise MemoryError(f"no memory to sort {self._committed_count} states of producers")
        for number in range(1, self._taken + 1):
            state = self.state_at(number)
            if state.home == COMMITTED:
                keys[count].queue_id = state.queue_id
                keys[count].producer_id = state.producer_id
                keys[count].state = state
                count += 1
        qsort(keys, count, sizeof(Key), by_queue_and_producer)
        return keys

    cdef int put(self, const State *state) except -1:
        """Take over a committed state, given as a row."""
        cdef uint64_t hash = hash_of(state.queue_id, state.producer_id)
        cdef State *own = self.find(self._committed, hash, state.queue_id, state.producer_id)
        if own == NULL:
            own = self.enter(self._committed, COMMITTED, hash, state.queue_id, state.producer_id)
            self._committed_count += 1
        memcpy(own, state, sizeof(State))
        own.oldest = 0
        own.home = COMMITTED
        own.changed = 1
        own.partial = own.used = 0
        return 0

    def dump(self):
        """(queue id, producer id, state) of all that was applied, by queue and producer."""
        cdef Key *keys = self.sorted()
        cdef Py_ssize_t place
        cdef int position
        cdef State *state
        cdef Seen *seen
        dumped = []
        try:
            for place in range(self._committed_count):
                state = keys[place].state
                batches = []
                for position in range(state.count):
                    seen = batch_at(state, position)
                    batches.append(
                        SeenBatch(seen.base_sequence, seen.last_sequence, seen.base_offset, seen.block_index)
                    )
                dumped.append(
                    (
                        state.queue_id,
                        state.producer_id,
                        twin.ProducerState(state.epoch, tuple(batches), state.last_timestamp_ms),
                    )
                )
        finally:
            PyMem_RawFree(keys)
        return dumped

    def load(self, states):
        """Take over what `dump` gave."""
        cdef State row
        cdef int position
        for queue_id, producer_id, (epoch, batches, last_timestamp_ms) in states:
            memset(&row, 0, sizeof(State))
            row.queue_id = PyLong_AsUnsignedLongLongMask(queue_id)
            row.producer_id = producer_id
            row.last_timestamp_ms = last_timestamp_ms
            row.epoch = epoch
            batches = batches[-REMEMBERED_BATCHES:]
            row.count = len(batches)
            for position in range(row.count):
                (
                    row.batches[position].base_sequence,
                    row.batches[position].last_sequence,
                    row.batches[position].base_offset,
                    row.batches[position].block_index,
                ) = batches[position]
            self.put(&row)

    def image(self):
        """What `dump` gives, as rows of bytes; see the twin for the format."""
        cdef Key *keys = self.sorted()
        cdef bytes image
        cdef Py_ssize_t place
        try:
            image = PyBytes_FromStringAndSize(NULL, self._committed_count * <Py_ssize_t> sizeof(State))
            for place in range(self._committed_count):
                as_row(<State *> PyBytes_AS_STRING(image) + place, keys[place].state)
        finally:
            PyMem_RawFree(keys)
        return image

    def load_image(self, image):
        """Take over what `image` gave. Raises `MalformedImage`, and nothing was taken over."""
        cdef Py_buffer view
        cdef Py_ssize_t place, position, count
        cdef State row
        PyObject_GetBuffer(image, &view, PyBUF_SIMPLE)
        try:
            if view.len % <Py_ssize_t> sizeof(State):
                raise MalformedImage(f"{view.len} bytes are not a number of rows of {sizeof(State)}")
            count = view.len // <Py_ssize_t> sizeof(State)
            for place in range(count):
                memcpy(&row, <uint8_t *> view.buf + place * <Py_ssize_t> sizeof(State), sizeof(State))
                if row.count > REMEMBERED_BATCHES:
                    raise MalformedImage(f"row {place} has {row.count} batches")
            for place in range(count):
                memcpy(&row, <uint8_t *> view.buf + place * <Py_ssize_t> sizeof(State), sizeof(State))
                for position in range(row.count, REMEMBERED_BATCHES):
                    memset(&row.batches[position], 0, sizeof(Seen))
                self.put(&row)
        finally:
            PyBuffer_Release(&view)

    def __len__(self):
        return self._committed_count


class Producers(ProducerStates):
    """The producers of all queues of one write group."""

    __slots__ = ()

    def check(self, queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count):
        """May this batch be appended?"""
        cdef Seen seen
        cdef int verdict = (<ProducerStates> self).check(
            PyLong_AsUnsignedLongLongMask(queue_id), producer_id, epoch, base_sequence, record_count, &seen
        )
        if verdict == FRESH:
            return twin.FRESH
        if verdict == DUPLICATE:
            return SequenceVerdict(
                Outcome.OK, SeenBatch(seen.base_sequence, seen.last_sequence, seen.base_offset, seen.block_index)
            )
        if verdict == SKIPPED_SEQUENCE:
            return twin.SKIPPED
        if verdict == COLD_PRODUCER:
            return twin.COLD
        if verdict == STORAGE_BUSY:
            return twin.FULL
        return twin.STALE_EPOCH if verdict == STALE_PRODUCER_EPOCH else twin.OUT_OF_ORDER

    def appended(
        self, queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ):
        """Remember a batch that went into block `block_index`, in the overlay."""
        (<ProducerStates> self).appended(
            PyLong_AsUnsignedLongLongMask(queue_id), producer_id, epoch, base_sequence, record_count, base_offset,
            block_index, now_ms,
        )

    def applied(
        self, queue_id, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
        int64_t base_offset, int64_t block_index, int64_t now_ms,
    ):
        """Remember a batch of an applied block for good."""
        (<ProducerStates> self).applied(
            PyLong_AsUnsignedLongLongMask(queue_id), producer_id, epoch, base_sequence, record_count, base_offset,
            block_index, now_ms,
        )
