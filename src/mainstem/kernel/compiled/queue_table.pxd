"""Finding a queue's slot: inline in whoever asks. The rest of the table is in the .pyx."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from mainstem.kernel.compiled.bytes_io cimport ms_prefetch
from mainstem.kernel.compiled.layout cimport CHUNK_MASK, CHUNK_SHIFT, Slot


cdef struct Span:
    # `layout.Range`
    uint32_t first_partition
    uint32_t count
    int64_t first_slot


cdef struct TopicEntry:
    # One place of the hash table, half a cache line. Partitions of one range are found without looking elsewhere.
    uint32_t topic_number
    uint32_t span_count          # 0: nobody is here
    Span only                    # when there is one
    Span *spans                  # when there are several: all of them, by first partition; NULL otherwise


cdef struct FreeSlots:
    int64_t first_slot
    int64_t count


cdef inline int64_t stable_end(const Slot *slot) noexcept nogil:
    """The last stable offset."""
    if 0 < slot.first_unstable <= slot.committed_end:
        return max(slot.first_unstable - 1, slot.log_start)
    return slot.committed_end


@cython.final
cdef class QueueTable:
    cdef Slot **_chunks
    cdef Py_ssize_t _chunk_count
    cdef list _memory            # what the chunks are, as memoryviews of cells
    cdef TopicEntry *_entries    # open addressing, linear probing, at most half full
    cdef void *_entries_memory   # what to free: the entries lie in it from the next cache line on
    cdef uint32_t _entry_shift   # 32 - log2(places)
    cdef uint32_t _near          # the place found last: batches of one topic come one after the other
    cdef Py_ssize_t _topic_count
    cdef Py_ssize_t _span_count
    cdef int64_t _queue_count
    cdef int64_t _slots_used
    cdef FreeSlots *_free        # by first slot; neighbours are joined
    cdef Py_ssize_t _free_count
    cdef Py_ssize_t _free_capacity

    cdef inline int64_t find_number(self, uint64_t queue_id) noexcept nogil:
        """The slot number of a queue, -1 when there is none. Touches no slot."""
        cdef uint32_t partition = <uint32_t> queue_id
        cdef TopicEntry *entry = self.place_of(<uint32_t> (queue_id >> 32))
        if partition - entry.only.first_partition < entry.only.count:
            return entry.only.first_slot + (partition - entry.only.first_partition)
        return self.find_in_spans(entry, partition) if entry.spans != NULL else -1

    cdef inline TopicEntry *place_of(self, uint32_t topic_number) noexcept nogil:
        """The entry of a topic, or the empty one where it would be."""
        # Topic numbers are handed out in sequence, and multiples of the golden ratio spread sequences evenly.
        cdef uint32_t place = self._near
        cdef uint32_t mask = (<uint32_t> 0xFFFFFFFF) >> self._entry_shift
        if self._entries[place].topic_number == topic_number and self._entries[place].span_count:
            return self._entries + place
        place = (topic_number * <uint32_t> 2654435769) >> self._entry_shift
        while self._entries[place].span_count and self._entries[place].topic_number != topic_number:
            place = (place + 1) & mask
        self._near = place
        return self._entries + place

    cdef inline Slot *slot_at(self, int64_t number) noexcept nogil:
        """A slot that exists, by its number."""
        return self._chunks[number >> CHUNK_SHIFT] + (number & CHUNK_MASK)

    cdef inline Slot *find_slot(self, uint64_t queue_id) noexcept nogil:
        """The slot of a queue, NULL when there is none. Touches no slot."""
        cdef int64_t number = self.find_number(queue_id)
        return self.slot_at(number) if number >= 0 else NULL

    cdef inline Slot *ask_for(self, uint64_t queue_id) noexcept nogil:
        """The same, and on its way into the caches: who has many to look at asks a few ahead."""
        cdef Slot *slot = self.find_slot(queue_id)
        ms_prefetch(slot)     # of NULL: nothing
        return slot

    cdef int64_t find_in_spans(self, TopicEntry *entry, uint32_t partition) noexcept nogil
    cdef int use_entries(self, uint32_t place_bits) except -1
    cdef int add_span(self, uint32_t topic_number, Span span) except -1
    cdef void remove_entry(self, TopicEntry *entry) noexcept nogil
    cdef int reserve_free(self) except -1
    cdef void release(self, int64_t first_slot, int64_t count) noexcept nogil
    cdef int64_t allocate(self, int64_t count) except -1
    cdef int64_t stretch(self, int64_t slot, int64_t end) noexcept nogil
    cdef int64_t *cell_at(self, int64_t slot, int64_t cell) except NULL
    cdef list spans_of(self, TopicEntry *entry)
    cdef bytes image(self, Span span)
