"""The partitions a reader asks for, and what one round of reading made of each; see the twin.

Rows lie in one array and are linked in the plan's order; a plan that no session keeps has them in both orders alike.
A session's rows are found by topic and partition in a chained hash table. Rows that are left out are used again, and
when most are free the arrays are made anew, so that what a plan holds is bounded by what it follows.

Invariants: what `parts` point to is kept alive by the reference each part owns; between rounds there are none. Links
are numbers of rows, never pointers, for the array moves as it grows.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from mainstem.kernel.compiled.batch_header cimport HEADER_BYTES, LENGTH_AT, LENGTH_EXCLUDES
from mainstem.kernel.compiled.bytes_io cimport ms_prefetch, ms_read_u32, ms_read_u64
from mainstem.kernel.compiled.fetch_response cimport key_bytes, write_fetch_response, write_fetch_topics
from mainstem.kernel.compiled.fetch_rows cimport (
    Aborted,
    JOINED_BYTES_MAX,
    NOBODY,
    SPARED_BYTES_MIN,
    UNCOPIED_BYTES_MIN,
    Answer,
    Part,
    PlanRow,
    PlanTopic,
)
from mainstem.kernel.compiled.group_log cimport WriteGroupLog
from mainstem.kernel.compiled.layout cimport (
    FENCED_LEADER_EPOCH,
    NOT_LEADER,
    OFFSET_NOT_AVAILABLE,
    OFFSET_OUT_OF_RANGE,
    OK,
    STORAGE_FAILED,
    Slot,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_PARTITION,
    UNKNOWN_QUEUE,
    group_slot,
)
from mainstem.kernel.compiled.queue_table cimport QueueTable, stable_end
from mainstem.kernel.compiled.recent_index cimport (
    NOT_CACHED,
    IndexedBlock,
    Stretch,
    RecentIndex,
)

from array import array

from mainstem.kernel.layout import FollowedLog, FollowersRead, Verdict
from mainstem.kernel.pure.fetch_plan import VERDICT_OF_OUTCOME, EpochCheck, PlannedPartition
from mainstem.model import SLOTS_OF_ALL, QueueRead, WantedReads

cdef extern from "Python.h":
    void drop "Py_XDECREF"(PyObject *data)
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef enum:
    AHEAD = 6                # rows whose slots are asked for before they are needed
    SPARE = 64               # rows or topics that may lie idle before the arrays are made anew
    ROWS_MAX = 0x7FFFFFF0
    VERDICTS_MAX = 64
    OF_SPREAD_TOPICS = 2     # `FollowersRead.SPREAD`

cdef uint64_t SPREAD = 0x9E3779B97F4A7C15

assert max(Verdict) < VERDICTS_MAX
assert FollowersRead.SPREAD == OF_SPREAD_TOPICS


cdef inline int epoch_verdict(int32_t known_to_reader, int32_t present) noexcept nogil:
    if known_to_reader == -1 or known_to_reader == present:
        return OK
    return FENCED_LEADER_EPOCH if known_to_reader < present else UNKNOWN_LEADER_EPOCH


@cython.final
cdef class PlannedTopic:
    """What the broker tells a plan about a topic: its `number` and how many `partitions` it has, or the verdict on all
    of its partitions; and whether its readers are `spread` over replicas."""

    def __cinit__(self, number, partitions, refusal=OK, spread=False):
        self.number = number
        self.partitions = partitions
        self.refusal = Verdict(refusal)
        self.spread = spread


@cython.final
cdef class FetchPlan:
    """Made by `scan_fetch`, with the partitions of the request in their order."""

    def __cinit__(self):
        self.first_row = self.last_row = self.free_row = self.cursor = NOBODY
        self.keys = []
        self.released = True
        self.share_to = -1

    def __dealloc__(self):
        self.let_go()
        PyMem_RawFree(self.rows)
        PyMem_RawFree(self.topics)
        PyMem_RawFree(self.buckets)
        PyMem_RawFree(self.parts)
        PyMem_RawFree(self.aborted)
        PyMem_RawFree(self.stretches.items)

    def __len__(self):
        return self.row_count

    # --- for the scan -----------------------------------------------------------------------------------

    def add_topic(self, key):
        """The topic of the partitions added next."""
        self.new_topic(key)

    def add_partition(self, partition, offset, bytes_max, leader_epoch, fetched_epoch):
        if not self.topic_count:
            raise IndexError("a partition without a topic")
        cdef int32_t number = self.new_row(self.topic_count - 1, partition)
        self.ask(&self.rows[number], offset, bytes_max, leader_epoch, fetched_epoch)

    cdef int32_t new_topic(self, object key) except -1:
        cdef PlanTopic *grown
        cdef int64_t capacity
        if self.topic_count == self.topic_capacity:
            capacity = 2 * <int64_t> self.topic_capacity if self.topic_capacity else 1
            if capacity > ROWS_MAX:
                raise MemoryError("no room for another topic")
            grown = <PlanTopic *> PyMem_RawRealloc(self.topics, capacity * sizeof(PlanTopic))
            if grown == NULL:
                raise MemoryError(f"no memory for {capacity} topics")
            self.topics = grown
            self.topic_capacity = <int32_t> capacity
        self.keys.append(key)
        memset(&self.topics[self.topic_count], 0, sizeof(PlanTopic))
        self.topic_count += 1
        return self.topic_count - 1

    cdef int reserve_rows(self, int64_t count) except -1:
        """Make room for so many rows more."""
        cdef PlanRow *grown
        cdef int64_t capacity = self.row_capacity
        if self.row_end + count <= capacity:
            return 0
        capacity = max(2 * capacity, self.row_end + count)
        if capacity > ROWS_MAX:
            raise MemoryError(f"no room for {count} partitions more")
        grown = <PlanRow *> PyMem_RawRealloc(self.rows, capacity * sizeof(PlanRow))
        if grown == NULL:
            raise MemoryError(f"no memory for {capacity} partitions")
        self.rows = grown
        self.row_capacity = <int32_t> capacity
        return 0

    cdef int32_t new_row(self, int32_t topic, int32_t partition) except -1:
        """A row that nothing is asked of yet, last in the order."""
        cdef int32_t number = self.free_row
        cdef PlanRow *row
        if number != NOBODY:
            self.free_row = self.rows[number].chained
        else:
            self.reserve_rows(1)
            number = self.row_end
            self.row_end += 1
        row = &self.rows[number]
        memset(row, 0, sizeof(PlanRow))
        row.topic = topic
        row.partition = partition
        row.last_fetched_epoch = -1
        row.high_watermark = row.log_start = row.last_stable = -1
        row.told_high_watermark = row.told_log_start = -1
        row.chained = NOBODY
        row.nearer = NOBODY
        self.append(number)
        if not self.topics[topic].rows:
            self.topics_followed += 1
        self.topics[topic].rows += 1
        self.row_count += 1
        return number

    cdef void ask(
        self, PlanRow *row, int64_t fetch_offset, int32_t bytes_max, int32_t leader_epoch, int32_t fetched_epoch
    ) noexcept nogil:
        if bytes_max < 0:
            bytes_max = 0
        self.wanted_bytes += bytes_max - row.bytes_max
        if fetched_epoch >= 0:
            self.asks_epochs = True
        row.fetch_offset = fetch_offset
        row.bytes_max = bytes_max
        row.current_leader_epoch = leader_epoch
        row.last_fetched_epoch = fetched_epoch

    cdef void append(self, int32_t row_number) noexcept nogil:
        """Put a row at the end of the order."""
        cdef PlanRow *row = &self.rows[row_number]
        row.previous = self.last_row
        row.next = NOBODY
        if self.last_row == NOBODY:
            self.first_row = row_number
        else:
            self.rows[self.last_row].next = row_number
        self.last_row = row_number

    cdef void unlink(self, int32_t row_number) noexcept nogil:
        """Take a row out of the order."""
        cdef PlanRow *row = &self.rows[row_number]
        if row.previous == NOBODY:
            self.first_row = row.next
        else:
            self.rows[row.previous].next = row.next
        if row.next == NOBODY:
            self.last_row = row.previous
        else:
            self.rows[row.next].previous = row.previous

    # --- a round ----------------------------------------------------------------------------------------

    @property
    def bytes(self):
        """Found in this round, by the plans before included."""
        return self.found_bytes

    @property
    def whole_first(self):
        """Nothing was found yet: the next batch comes back whole, whatever its size."""
        return self.found_bytes == 0

    @property
    def queue_id_max(self):
        """The largest of the ids of the queues that are asked for in this round."""
        cdef int32_t number = self.first_row
        cdef uint64_t most = 0
        while number != NOBODY:
            most = max(most, self.rows[number].queue_id)
            number = self.rows[number].next
        return most

    @property
    def topics_named(self):
        """Topics that were asked for, those without partitions included."""
        return self.topic_count

    def topic_keys(self):
        """Of the topics that `begin` may ask about, perhaps more than once."""
        return list(self.keys)

    def begin(self, resolve, bytes_max, found_before=0):
        """Start a round of at most about `bytes_max` bytes, of which other plans of the same request have found
        `found_before`. `resolve` is asked once per topic."""
        cdef int64_t most = bytes_max, already = found_before
        cdef int32_t number
        cdef PlanTopic *topic
        cdef PlanRow *row
        cdef PlannedTopic facts
        self.let_go()
        self.has_spread = False
        for number in range(self.topic_count):
            if not self.topics[number].rows:
                continue
            facts = <PlannedTopic?> resolve(self.keys[number])
            topic = &self.topics[number]
            topic.number = facts.number
            topic.partitions = facts.partitions
            topic.refusal = facts.refusal
            topic.spread = facts.spread
            self.has_spread = self.has_spread or topic.spread
        self.round += 1
        self.cursor = self.first_row
        self.bytes_max = most
        self.found_bytes = already
        self.final = self.row_count == 0
        self.released = False
        number = self.first_row
        while number != NOBODY:
            row = &self.rows[number]
            topic = &self.topics[row.topic]
            row.high_watermark = row.log_start = row.last_stable = -1
            row.aborted = 0
            row.size = 0
            row.part_count = 0
            row.diverged = row.ahead = False
            row.nearer = NOBODY
            row.queue_id = 0
            row.verdict = <uint8_t> topic.refusal
            if topic.refusal == OK:
                if 0 <= row.partition < topic.partitions:
                    row.queue_id = <uint64_t> topic.number << 32 | <uint32_t> row.partition
                else:
                    row.verdict = UNKNOWN_PARTITION
            row.settled = row.verdict != OK
            if row.settled:
                self.final = True
            number = row.next

    def widen(self, bytes_max):
        """Let the round go on to about `bytes_max` bytes; what is settled stays as it is."""
        self.bytes_max = bytes_max

    @property
    def settled(self):
        """Nothing is pending in this round."""
        return self.next_row() == NOBODY

    def partitions(self):
        """All partitions, in order."""
        cdef int32_t number = self.first_row
        cdef PlanRow *row
        cdef list found = []
        while number != NOBODY:
            row = &self.rows[number]
            found.append(
                PlannedPartition(
                    self.keys[row.topic], row.partition, row.fetch_offset, row.bytes_max, row.current_leader_epoch,
                    row.last_fetched_epoch, bool(row.settled), row.verdict, row.queue_id, row.high_watermark,
                    row.log_start, row.size, (row.diverging_epoch, row.diverging_end) if row.diverged else None,
                )
            )
            number = row.next
        return found

    def epoch_checks(self, after=NOBODY, most=ROWS_MAX):
        """The partitions whose readers' histories are to be compared with the queues' before they are read, `most` of
        them, from behind the row `after` on."""
        cdef int32_t number = after, count_max = most
        cdef PlanRow *row
        cdef list found = []
        if number >= self.row_end or number < NOBODY:
            raise IndexError(f"no partition {number}")
        number = self.first_row if number == NOBODY else self.rows[number].next
        while number != NOBODY and len(found) < count_max:
            row = &self.rows[number]
            if row.last_fetched_epoch >= 0 and not row.settled:
                found.append(
                    EpochCheck(
                        number, row.queue_id, row.fetch_offset, row.current_leader_epoch, row.last_fetched_epoch
                    )
                )
            number = row.next
        return found

    def diverge(self, row, epoch, end_offset):
        """Settle a partition with the place where its reader's history left the queue's."""
        cdef int32_t number = row
        if not 0 <= number < self.row_end:
            raise IndexError(f"no partition {number}")
        self.rows[number].diverging_end = end_offset
        self.rows[number].diverging_epoch = epoch
        self.rows[number].diverged = self.rows[number].settled = True
        self.final = True

    def fail(self, row):
        """Settle a partition of which something could not be read."""
        cdef int32_t number = row
        if not 0 <= number < self.row_end:
            raise IndexError(f"no partition {number}")
        self.rows[number].size = self.rows[number].part_count = 0
        self.rows[number].high_watermark = self.rows[number].log_start = self.rows[number].last_stable = -1
        self.reject(&self.rows[number], STORAGE_FAILED)

    cdef void reject(self, PlanRow *row, int verdict) noexcept nogil:
        row.settled = True
        row.verdict = <uint8_t> verdict
        self.final = True

    cdef int32_t next_row(self) noexcept nogil:
        """The pending row, or NOBODY."""
        while self.cursor != NOBODY and self.rows[self.cursor].settled:
            self.cursor = self.rows[self.cursor].next
        return self.cursor

    cdef int64_t budget(self, const PlanRow *row, int64_t reserved) noexcept nogil:
        """What the round still has for a row when so much is promised to others."""
        cdef int64_t left = self.bytes_max - self.found_bytes - reserved
        if row.bytes_max < left:
            left = row.bytes_max
        return left if left > 0 else 0

    def pending(self):
        """The next partition to be read; its `bytes_max` is what the round still has for it. None: all are settled."""
        cdef int32_t number = self.next_row()
        if number == NOBODY:
            return None
        return QueueRead(
            self.rows[number].queue_id, self.rows[number].fetch_offset, self.budget(&self.rows[number], 0)
        )

    def wanted(self, int64_t reads_max, int64_t bytes_max):
        """The next partitions to be read, and what the round still has for all of them."""
        cdef int32_t number = self.next_row()
        cdef int64_t left = min(self.bytes_max, bytes_max) - self.found_bytes
        cdef PlanRow *row
        cdef list reads = []
        if left < 0:
            left = 0
        while number != NOBODY and len(reads) < reads_max:
            row = &self.rows[number]
            if not row.settled:
                reads.append(QueueRead(row.queue_id, row.fetch_offset, min(<int64_t> row.bytes_max, left)))
            number = row.next
        return WantedReads(tuple(reads), left, self.found_bytes == 0)

    @property
    def is_spread(self):
        """Whether the readers of the pending partition's topic are spread."""
        cdef int32_t number = self.next_row()
        return number != NOBODY and self.topics[self.rows[number].topic].spread

    def put(self, found, int32_t sent_to=-1):
        """Settle the pending partition with what was read; or, with the node that its reader is sent to, with the
        offsets alone."""
        cdef int32_t number = self.next_row()
        cdef PlanRow *row
        cdef int verdict
        cdef int64_t high_watermark, log_start, next_offset
        cdef int32_t leader_epoch
        cdef Py_ssize_t first_part = self.part_count
        cdef Py_buffer *view
        if number == NOBODY:
            raise ValueError("nothing is pending")
        offsets = found.offsets
        verdict = VERDICT_OF_OUTCOME[found.outcome]
        high_watermark, log_start = offsets.high_watermark, offsets.log_start
        leader_epoch, next_offset = offsets.leader_epoch, found.next_offset
        row = &self.rows[number]
        if leader_epoch >= 0 and epoch_verdict(row.current_leader_epoch, leader_epoch) != OK:
            verdict = epoch_verdict(row.current_leader_epoch, leader_epoch)
        if verdict != OK:
            self.reject(row, verdict)
            return
        if sent_to >= 0:
            self.send(row, high_watermark, log_start, offsets.last_stable, first_part, sent_to)
            return
        for batch in found.batches:
            owner = memoryview(batch)
            view = PyMemoryView_GET_BUFFER(owner)
            if view.ndim != 1 or view.itemsize != 1 or not PyBuffer_IsContiguous(view, b"C"):
                owner = memoryview(bytes(batch))
                view = PyMemoryView_GET_BUFFER(owner)
            self.hold(owner, <const uint8_t *> view.buf, view.len)
        self.found(row, high_watermark, log_start, offsets.last_stable, first_part, next_offset)

    cdef int hold(self, object owner, const uint8_t *data, int64_t length) except -1:
        """Keep batches for the response."""
        cdef Part *grown
        cdef Py_ssize_t capacity
        if self.part_count == self.part_capacity:
            capacity = 2 * self.part_capacity if self.part_capacity else 4
            if capacity > ROWS_MAX:
                raise MemoryError("no room for more batches")
            grown = <Part *> PyMem_RawRealloc(self.parts, capacity * sizeof(Part))
            if grown == NULL:
                raise MemoryError(f"no memory for {capacity} stretches of batches")
            self.parts = grown
            self.part_capacity = capacity
        Py_INCREF(owner)
        self.parts[self.part_count].owner = <PyObject *> owner
        self.parts[self.part_count].bytes = data
        self.parts[self.part_count].length = length
        self.part_count += 1
        return 0

    cdef void found(
        self, PlanRow *row, int64_t high_watermark, int64_t log_start, int64_t last_stable, Py_ssize_t first_part,
        int64_t next_offset,
    ) noexcept nogil:
        """Settle a row with the parts that were held since."""
        cdef Py_ssize_t number
        cdef int64_t end = high_watermark
        row.settled = True
        row.high_watermark = high_watermark
        row.log_start = log_start
        row.last_stable = last_stable
        row.first_part = <int32_t> first_part
        row.part_count = <int32_t> (self.part_count - first_part)
        if self.read_committed and last_stable < high_watermark:
            end = last_stable
            if next_offset > end:
                # a log start in the middle of a batch holds up the end: the batch goes on behind it
                row.part_count = <int32_t> self.parts_before(end, first_part) if row.fetch_offset < end else 0
                next_offset = max(row.fetch_offset, end)
        row.next_offset = next_offset
        row.size = 0
        for number in range(first_part, first_part + row.part_count):
            row.size += self.parts[number].length
        self.found_bytes += row.size
        if next_offset < end:     # what comes while waiting would not get through either
            self.final = True

    cdef Py_ssize_t parts_before(self, int64_t end, Py_ssize_t first_part) noexcept nogil:
        """Cut the parts from one on where a batch begins at `end` or behind; how many are left."""
        cdef Py_ssize_t number
        cdef Part *part
        cdef int64_t position, size
        for number in range(first_part, self.part_count):
            part = &self.parts[number]
            position = 0
            while position + HEADER_BYTES <= part.length:
                if <int64_t> ms_read_u64(part.bytes + position) >= end:
                    part.length = position
                    return number - first_part + (position > 0)
                size = <int64_t> <int32_t> ms_read_u32(part.bytes + position + LENGTH_AT) + LENGTH_EXCLUDES
                if size < HEADER_BYTES:
                    break
                position += size
        return self.part_count - first_part

    cdef int64_t end_for(self, const Slot *slot) noexcept nogil:
        """The end of what the reader gets of a queue."""
        return stable_end(slot) if self.read_committed else slot.committed_end

    def stable_reads(self):
        """(row, queue id, first offset, offset behind the last) of each partition of which batches were found."""
        cdef int32_t number = self.first_row
        cdef PlanRow *row
        cdef list reads = []
        while number != NOBODY:
            row = &self.rows[number]
            if row.verdict == OK and row.size > 0:
                reads.append((number, row.queue_id, row.fetch_offset, row.next_offset))
            number = row.next
        return reads

    def tell_aborted(self, row, transactions):
        """Have the reader of a partition told of aborted transactions, as (producer id, first offset)."""
        cdef int32_t number = row
        cdef bytes pairs
        cdef Aborted *grown
        cdef Py_ssize_t capacity
        if not self.read_committed:
            raise ValueError("the reader wants all, and is told of no aborted transaction")
        if not 0 <= number < self.row_end:
            raise IndexError(f"no partition {number}")
        cells = array("q")
        for producer_id, first_offset in transactions:
            cells.append(producer_id)
            cells.append(first_offset)
        pairs = cells.tobytes()
        if self.aborted_count == self.aborted_capacity:
            capacity = 2 * self.aborted_capacity if self.aborted_capacity else 4
            grown = <Aborted *> PyMem_RawRealloc(self.aborted, capacity * sizeof(Aborted))
            if grown == NULL:
                raise MemoryError(f"no memory for {capacity} lists of aborted transactions")
            self.aborted = grown
            self.aborted_capacity = capacity
        Py_INCREF(pairs)
        self.aborted[self.aborted_count].owner = <PyObject *> pairs
        self.aborted[self.aborted_count].pairs = <const int64_t *> PyBytes_AS_STRING(pairs)
        self.aborted[self.aborted_count].count = len(cells) // 2
        self.aborted_count += 1
        self.rows[number].aborted = <int32_t> self.aborted_count

    def read_cached(self, QueueTable table not None, RecentIndex index not None, list logs not None, slots):
        """Settle partitions, in order, up to the first that memory alone cannot answer. `slots` has the write group of
        each slot of all classes as u16; `logs` the log of each group, None where another node leads it and its replica
        here, if there is one, is not to be read. Returns how many partitions were answered with batches."""
        cdef Py_buffer groups
        cdef Py_ssize_t served = 0
        cdef int32_t number = self.next_row(), ahead = number
        cdef int answered, distance
        if number == NOBODY:
            return 0
        PyObject_GetBuffer(slots, &groups, PyBUF_SIMPLE)
        try:
            check_groups(&groups)
            for distance in range(AHEAD):
                ahead = prefetch(self, table, ahead)
            while number != NOBODY:
                ahead = prefetch(self, table, ahead)
                answered = self.answer_from_memory(number, table, index, logs, <const uint16_t *> groups.buf, 0)
                if answered == UNKNOWN_TO_MEMORY:
                    break
                served += answered == ANSWERED_WITH_BATCHES
                number = self.next_row()
        finally:
            PyBuffer_Release(&groups)
        return served

    cdef int answer_from_memory(
        self, int32_t number, QueueTable table, RecentIndex index, list logs, const uint16_t *groups, int64_t reserved
    ) except -1:
        """Settle a row, when so many bytes of the round are promised to others, if memory alone can."""
        cdef Py_ssize_t first_part = self.part_count, group, stretch_number
        cdef PlanRow *row = &self.rows[number]
        cdef Slot *slot = table.find_slot(row.queue_id)
        cdef Stretch *stretch
        cdef IndexedBlock block
        cdef int64_t next_offset = row.fetch_offset, budget
        cdef int verdict = OK
        cdef bint nothing_yet, followed
        group = groups[group_slot(row.queue_id)]
        if group >= len(logs):
            raise IndexError(f"no write group {group}")
        log = logs[group]
        if log is None:     # first of all: a replica that is behind lacks queues that its leader has
            self.reject(row, NOT_LEADER)
            return ANSWERED
        followed = type(log) is not WriteGroupLog and type(log) is FollowedLog
        if slot == NULL:
            self.reject(row, NOT_LEADER if followed else UNKNOWN_QUEUE)
            return ANSWERED
        if followed and self.from_followers == OF_SPREAD_TOPICS and not self.topics[row.topic].spread:
            self.reject(row, NOT_LEADER)
            return ANSWERED
        if row.current_leader_epoch != -1:
            if type(log) is WriteGroupLog:
                verdict = epoch_verdict(row.current_leader_epoch, (<WriteGroupLog> log).term)
            else:
                verdict = epoch_verdict(row.current_leader_epoch, log.term)
        if followed and verdict == OK and row.fetch_offset > slot.committed_end:
            row.ahead = True
        elif verdict == OK and not slot.log_start <= row.fetch_offset <= slot.next_offset:
            verdict = OFFSET_OUT_OF_RANGE
        if verdict != OK:
            self.reject(row, verdict)
            return ANSWERED
        if not followed:
            if self.nearer is not None and self.send_by(row, slot, first_part, group, self.nearer):
                return ANSWERED
            if (
                self.share is not None and self.topics[row.topic].spread
                and self.send_by(row, slot, first_part, group, self.share)
            ):
                return ANSWERED
        budget = self.budget(row, reserved)
        nothing_yet = self.found_bytes == 0 and reserved == 0
        if row.fetch_offset >= self.end_for(slot) or (budget == 0 and not nothing_yet):
            self.found(row, slot.committed_end, slot.log_start, stable_end(slot), first_part, row.fetch_offset)
            return ANSWERED
        self.stretches.count = 0
        if index.collect(
            slot, row.fetch_offset, budget, nothing_yet, &self.stretches, &next_offset
        ) == NOT_CACHED:
            if (
                self.for_history is not None and not followed
                and self.send_by(row, slot, first_part, group, self.for_history)
            ):
                return ANSWERED
            return UNKNOWN_TO_MEMORY
        for stretch_number in range(self.stretches.count):
            stretch = &self.stretches.items[stretch_number]
            block = <IndexedBlock> stretch.block
            self.hold(block.cached, block.bytes + stretch.position, stretch.length)
        self.found(row, slot.committed_end, slot.log_start, stable_end(slot), first_part, next_offset)
        return ANSWERED_WITH_BATCHES if row.part_count else ANSWERED

    cdef bint send_by(
        self, PlanRow *row, const Slot *slot, Py_ssize_t first_part, Py_ssize_t group, dict nodes
    ) except -1:
        """Settle a row by sending its reader to the node that is named for its write group, if one is."""
        cdef int32_t node = nodes.get(group, NOBODY)
        if node < 0:
            return False
        self.send(row, slot.committed_end, slot.log_start, stable_end(slot), first_part, node)
        return True

    cdef void send(
        self, PlanRow *row, int64_t high_watermark, int64_t log_start, int64_t last_stable, Py_ssize_t first_part,
        int32_t node,
    ) noexcept nogil:
        self.found(row, high_watermark, log_start, last_stable, first_part, row.fetch_offset)
        row.nearer = node
        self.final = True

    def give_up_ahead(self):
        """Refuse the partitions whose readers are beyond what this follower has applied, now that they have waited."""
        cdef int32_t number = self.first_row
        cdef PlanRow *row
        while number != NOBODY:
            row = &self.rows[number]
            if row.ahead and row.verdict == OK:
                row.high_watermark = row.log_start = row.last_stable = -1
                self.reject(row, OFFSET_NOT_AVAILABLE)
            number = row.next

    def ends(self):
        """The high watermark of each queue that was read, by queue id."""
        cdef int32_t number = self.first_row
        cdef PlanRow *row
        cdef dict found = {}
        while number != NOBODY:
            row = &self.rows[number]
            if row.high_watermark >= 0:
                found[row.queue_id] = row.high_watermark
            number = row.next
        return found

    def release(self):
        """Let go of the batches of this round."""
        self.let_go()

    cdef void let_go(self):
        cdef Py_ssize_t number, count = self.part_count
        self.released = True
        self.part_count = 0
        while self.aborted_count:
            self.aborted_count -= 1
            drop(self.aborted[self.aborted_count].owner)
        for number in range(count):
            drop(self.parts[number].owner)

    # --- the answer -------------------------------------------------------------------------------------

    def errors(self, codes):
        """How often each error code occurs in this round, by `codes` of verdicts, in the order in which they occur
        first."""
        cdef int32_t number = self.first_row
        cdef PlanRow *row
        cdef int64_t counts[VERDICTS_MAX]
        cdef int32_t seen[VERDICTS_MAX]
        cdef int32_t verdict
        cdef int place, seen_count = 0
        cdef dict found = {}
        if not self.final:
            return found
        memset(counts, 0, VERDICTS_MAX * sizeof(int64_t))
        while number != NOBODY:
            row = &self.rows[number]
            if row.verdict != OK:
                if not counts[row.verdict]:
                    seen[seen_count] = row.verdict
                    seen_count += 1
                counts[row.verdict] += 1
            number = row.next
        for place in range(seen_count):
            code = codes[seen[place]]
            found[code] = found.get(code, 0) + counts[seen[place]]
        return found

    def response(
        self, version, correlation_id, codes, *, session_id=0, bint read_committed=False, bint incremental=False,
        int32_t throttle_ms=0,
    ):
        """The whole frame, length included, as buffers to be written in order, or as one `ScatteredBytes` where there
        would be many; large stretches of batches are not copied. `codes` has the error code of each verdict.
        `incremental` leaves out what is no news to the session. The plan of a session notes what it tells, and those it
        serves go to the end of its order. `throttle_ms` is the time for which the client is throttled."""
        cdef Answer answer
        cdef list buffers
        if self.released:
            raise ValueError("the batches of this round are gone")
        self.gather(&answer, incremental and self.topic_of is not None, version)
        try:
            buffers = write_fetch_response(
                version, correlation_id, session_id, &answer, self.keys, codes, read_committed, throttle_ms
            )
        finally:
            self.let_go()
        if self.topic_of is not None:
            self.tell()
        return buffers

    def section(self, version, codes, *, bint read_committed=False):
        """How many topics of a response these partitions make, and the topics as buffers, where the partitions are some
        of a request's; the plan is no session's."""
        cdef Answer answer
        if self.released:
            raise ValueError("the batches of this round are gone")
        self.gather(&answer, False, version)
        try:
            return answer.topic_count, write_fetch_topics(version, &answer, self.keys, codes, read_committed)
        finally:
            self.let_go()

    cdef void tell(self) noexcept nogil:
        """Note what the reader was told; those that were served go to the end of the order."""
        cdef int32_t number = self.first_row, following, left
        cdef PlanRow *row
        for left in range(self.row_count):
            row = &self.rows[number]
            following = row.next
            row.told_error = row.verdict != OK
            row.told_high_watermark = row.high_watermark
            row.told_log_start = row.log_start
            if row.size > 0:
                self.unlink(number)
                self.append(number)
            number = following

    cdef int gather(self, Answer *answer, bint incremental, int version) except -1:
        """Chain the rows that go into the answer, topic by topic."""
        cdef int32_t number = self.first_row, last_topic = NOBODY
        cdef PlanRow *row
        cdef PlanTopic *topic
        cdef Py_ssize_t part_number
        cdef int64_t size = 0
        for part_number in range(self.part_count):
            size += self.parts[part_number].length
        memset(answer, 0, sizeof(Answer))
        answer.uncopied_min = UNCOPIED_BYTES_MIN if size <= JOINED_BYTES_MAX else SPARED_BYTES_MIN
        answer.rows = self.rows
        answer.topics = self.topics
        answer.parts = self.parts
        answer.aborted = self.aborted
        answer.first_topic = NOBODY
        for number in range(self.topic_count):
            self.topics[number].answered_count = 0
        number = self.first_row
        while number != NOBODY:
            row = &self.rows[number]
            if not incremental or is_news(row):
                topic = &self.topics[row.topic]
                row.answered = NOBODY
                if topic.answered_count:
                    self.rows[topic.last_answered].answered = number
                else:
                    topic.first_answered = number
                    topic.next_answered = NOBODY
                    if last_topic == NOBODY:
                        answer.first_topic = row.topic
                    else:
                        self.topics[last_topic].next_answered = row.topic
                    last_topic = row.topic
                    answer.topic_count += 1
                    answer.key_bytes += key_bytes(self.keys[row.topic], version)
                topic.last_answered = number
                topic.answered_count += 1
                answer.row_count += 1
                for part_number in range(row.first_part, row.first_part + row.part_count):
                    if self.parts[part_number].length < answer.uncopied_min:
                        answer.small_bytes += self.parts[part_number].length
                    else:
                        answer.large_bytes += self.parts[part_number].length
                        answer.large_count += 1
            number = row.next
        return 0

    # --- sessions ---------------------------------------------------------------------------------------

    def remember(self):
        """Become the plan of a session: each partition once, the newest wish counts."""
        cdef FetchPlan asked = FetchPlan.__new__(FetchPlan)
        cdef int64_t size
        cdef dict topic_of = {}
        if self.topic_of is not None:
            raise ValueError("the plan is a session's already")
        self.let_go()
        asked.keys = []
        cdef int32_t *buckets = self.new_buckets(0, &size)
        # nothing can fail until the two have changed places
        asked.rows, asked.row_count, asked.row_end = self.rows, self.row_count, self.row_end
        asked.first_row, asked.last_row = self.first_row, self.last_row
        asked.topics, asked.topic_count = self.topics, self.topic_count
        asked.keys, self.keys = self.keys, asked.keys
        self.rows = NULL
        self.row_count = self.row_end = self.row_capacity = 0
        self.first_row = self.last_row = self.cursor = NOBODY
        self.topics = NULL
        self.topic_count = self.topic_capacity = self.topics_followed = 0
        self.wanted_bytes = 0
        self.topic_of = topic_of
        self.use_buckets(buckets, size)
        self.follow(asked)

    def additions(self, FetchPlan asked not None):
        """How many partitions of another plan are not in this one (each mention counts)."""
        cdef int32_t number
        cdef int64_t missing = 0
        cdef PlanRow *row
        if self.topic_of is None:
            raise ValueError("the plan is no session's")
        map_topics(asked, self.topic_of)
        number = asked.first_row
        while number != NOBODY:
            row = &asked.rows[number]
            missing += self.find_row(asked.topics[row.topic].elsewhere, row.partition) == NOBODY
            number = row.next
        return missing

    def update(self, FetchPlan asked not None, forgotten):
        """Take over what a later request of the session asks for, then leave out what it forgets."""
        cdef int32_t number
        if self.topic_of is None or asked is self:
            raise ValueError("the plan is no session's")
        self.let_go()
        self.round += 1     # whoever is in the middle of one finds another plan
        self.follow(asked)
        for key, partitions in forgotten:
            topic = self.topic_of.get(key)
            if topic is None:
                continue
            for partition in partitions:
                number = self.find_row(topic, partition)
                if number != NOBODY:
                    self.leave_out(number)
        self.cursor = NOBODY
        if self.row_capacity > 4 * <int64_t> self.row_count + SPARE or (
            self.topic_count > 4 * <int64_t> self.topics_followed + SPARE
        ):
            self.compact()
        self.asks_epochs = False
        number = self.first_row
        while number != NOBODY and not self.asks_epochs:
            self.asks_epochs = self.rows[number].last_fetched_epoch >= 0
            number = self.rows[number].next

    cdef int follow(self, FetchPlan asked) except -1:
        """Ask what another plan asks."""
        cdef int32_t number = asked.first_row, known
        cdef uint32_t bucket
        cdef PlanRow *wish
        cdef PlanTopic *topic
        map_topics(asked, self.topic_of)
        while number != NOBODY:
            wish = &asked.rows[number]
            topic = &asked.topics[wish.topic]
            if topic.elsewhere == NOBODY:
                key = asked.keys[wish.topic]
                topic.elsewhere = self.topic_of.get(key, NOBODY)     # the key may stand twice in the request
                if topic.elsewhere == NOBODY:
                    topic.elsewhere = self.new_topic(key)
                    self.topic_of[key] = topic.elsewhere
            known = self.find_row(topic.elsewhere, wish.partition)
            if known == NOBODY:
                known = self.new_row(topic.elsewhere, wish.partition)
                bucket = self.bucket_of(topic.elsewhere, wish.partition)
                self.rows[known].chained = self.buckets[bucket]
                self.buckets[bucket] = known
                if <uint32_t> self.row_count > self.bucket_mask:
                    self.spread()
            self.ask(
                &self.rows[known], wish.fetch_offset, wish.bytes_max, wish.current_leader_epoch,
                wish.last_fetched_epoch,
            )
            number = wish.next
        return 0

    cdef uint32_t bucket_of(self, int32_t topic, int32_t partition) noexcept nogil:
        cdef uint64_t key = <uint64_t> <uint32_t> topic << 32 | <uint32_t> partition
        return <uint32_t> (key * SPREAD >> 32) & self.bucket_mask

    cdef int32_t find_row(self, int32_t topic, int32_t partition) noexcept nogil:
        cdef int32_t number
        if topic == NOBODY:
            return NOBODY
        number = self.buckets[self.bucket_of(topic, partition)]
        while number != NOBODY and (
            self.rows[number].topic != topic or self.rows[number].partition != partition
        ):
            number = self.rows[number].chained
        return number

    cdef int spread(self) except -1:
        """Give the rows of the order buckets enough."""
        cdef int64_t size
        cdef int32_t *buckets = self.new_buckets(self.row_count, &size)
        self.use_buckets(buckets, size)
        return 0

    cdef int32_t *new_buckets(self, int64_t row_count, int64_t *size) except NULL:
        """Empty buckets enough for so many rows, and how many there are."""
        cdef int32_t *buckets
        size[0] = 16
        while size[0] < 2 * row_count:
            size[0] *= 2
        buckets = <int32_t *> PyMem_RawMalloc(size[0] * sizeof(int32_t))
        if buckets == NULL:
            raise MemoryError(f"no memory to find {row_count} partitions")
        memset(buckets, 0xFF, size[0] * sizeof(int32_t))     # NOBODY everywhere
        return buckets

    cdef void use_buckets(self, int32_t *buckets, int64_t size) noexcept nogil:
        """Put the rows of the order into empty buckets, and keep these."""
        cdef int32_t number = self.first_row
        cdef uint32_t bucket
        PyMem_RawFree(self.buckets)
        self.buckets = buckets
        self.bucket_mask = <uint32_t> (size - 1)
        while number != NOBODY:
            bucket = self.bucket_of(self.rows[number].topic, self.rows[number].partition)
            self.rows[number].chained = buckets[bucket]
            buckets[bucket] = number
            number = self.rows[number].next

    cdef void leave_out(self, int32_t row_number) noexcept nogil:
        """Make a row free."""
        cdef PlanRow *row = &self.rows[row_number]
        cdef int32_t *link = &self.buckets[self.bucket_of(row.topic, row.partition)]
        while link[0] != row_number:
            link = &self.rows[link[0]].chained
        link[0] = row.chained
        self.unlink(row_number)
        self.wanted_bytes -= row.bytes_max
        row.chained = self.free_row
        self.free_row = row_number
        self.row_count -= 1
        self.topics[row.topic].rows -= 1
        if not self.topics[row.topic].rows:
            self.topics_followed -= 1

    cdef int compact(self) except -1:
        """Move what is followed into arrays of its size. Raises MemoryError, and nothing has changed."""
        cdef int32_t capacity = self.row_count if self.row_count else 1, count = 0, number
        cdef PlanTopic *topics
        cdef PlanRow *rows
        cdef int32_t *buckets
        cdef int64_t size
        cdef list keys = [self.keys[number] for number in range(self.topic_count) if self.topics[number].rows]
        cdef dict topic_of = {key: place for place, key in enumerate(keys)}
        buckets = self.new_buckets(self.row_count, &size)
        topics = <PlanTopic *> PyMem_RawCalloc(self.topics_followed if self.topics_followed else 1, sizeof(PlanTopic))
        rows = <PlanRow *> PyMem_RawMalloc(capacity * sizeof(PlanRow))
        if rows == NULL or topics == NULL:
            PyMem_RawFree(buckets)
            PyMem_RawFree(rows)
            PyMem_RawFree(topics)
            raise MemoryError(f"no memory for {self.row_count} partitions")
        for number in range(self.topic_count):
            if self.topics[number].rows:
                self.topics[number].elsewhere = count
                topics[count].rows = self.topics[number].rows
                count += 1
        count = 0
        number = self.first_row
        while number != NOBODY:
            rows[count] = self.rows[number]
            rows[count].topic = self.topics[rows[count].topic].elsewhere
            rows[count].previous = count - 1
            rows[count].next = count + 1
            count += 1
            number = self.rows[number].next
        self.first_row, self.last_row, self.free_row = (0 if count else NOBODY), count - 1, NOBODY
        if count:
            rows[count - 1].next = NOBODY
        PyMem_RawFree(self.rows)
        PyMem_RawFree(self.topics)
        self.rows, self.row_end, self.row_capacity = rows, count, capacity
        self.topics, self.topic_count = topics, self.topics_followed
        self.topic_capacity = self.topics_followed if self.topics_followed else 1
        self.keys, self.topic_of = keys, topic_of
        self.use_buckets(buckets, size)
        return 0


cdef inline bint is_news(const PlanRow *row) noexcept nogil:
    return (
        row.size > 0 or row.verdict != OK or row.told_error or row.diverged or row.nearer != NOBODY
        or row.high_watermark != row.told_high_watermark or row.log_start != row.told_log_start
    )


cdef int check_groups(const Py_buffer *groups) except -1:
    if groups.len != <Py_ssize_t> (SLOTS_OF_ALL * sizeof(uint16_t)):
        raise ValueError(f"groups of {groups.len} bytes")
    return 0


cdef inline int32_t prefetch(FetchPlan plan, QueueTable table, int32_t row_number) noexcept nogil:
    """Ask for the slot of a row; the row behind it."""
    cdef Slot *slot
    if row_number == NOBODY:
        return NOBODY
    slot = table.find_slot(plan.rows[row_number].queue_id)
    if slot != NULL:
        ms_prefetch(slot)
    return plan.rows[row_number].next


cdef int map_topics(FetchPlan asked, dict known) except -1:
    """Note the numbers of a request's topics in the plan of its session."""
    cdef int32_t number
    for number in range(asked.topic_count):
        asked.topics[number].elsewhere = known.get(asked.keys[number], NOBODY)
    return 0
