"""What the pending partitions of a fetch plan are to be answered with from files of one kind; see the twin.

Picks lie in one array, those of a partition side by side. Positions and lengths come from index rows, which are
bounded when they are picked; nothing of a file is looked at before it is known to lie within a buffer. The checksums
are made without the interpreter where it is much, over buffers that are held meanwhile.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.batch_header cimport (
    CHECKED_FROM, CHECKSUM_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT, LENGTH_EXCLUDES, MAGIC, MAGIC_AT,
)
from mainstem.kernel.compiled.bytes_io cimport ms_crc32c, ms_crc_prepare, ms_read_u32, ms_read_u64
from mainstem.kernel.compiled.fetch_plan cimport (
    ANSWERED_WITH_BATCHES,
    UNKNOWN_TO_MEMORY,
    FetchPlan,
    check_groups,
)
from mainstem.kernel.compiled.fetch_rows cimport NOBODY, Part, PlanRow
from mainstem.kernel.compiled.layout cimport Slot, group_slot
from mainstem.kernel.compiled.queue_table cimport QueueTable, stable_end
from mainstem.kernel.compiled.recent_index cimport RecentIndex

from mainstem.kernel.pure import disk_picks as twin

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

ms_crc_prepare()

cdef enum:
    CHUNKS_MAX = 64
    SOURCES_MAX = 64
    EXTENT_BATCH_BYTES = 27      # what is looked at of a batch within an extent
    PICKS_MAX = 0x7FFFFFF0

cdef int64_t LARGEST = (<int64_t> 1 << 62) - 1
cdef int64_t LARGE_BYTES = 4 * 1024 * 1024
"""Some hundreds of microseconds of checking: from here on the interpreter is let go of meanwhile."""

assert twin.CHUNKS_MAX == CHUNKS_MAX
assert twin.LARGEST == LARGEST
assert twin.EXTENT_BATCH.size == EXTENT_BATCH_BYTES

cdef struct ExtentRow:
    # `format.EXTENT_ROW`
    uint64_t queue_id
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp
    uint64_t position
    uint32_t length
    uint32_t batch_count
    uint32_t record_count
    uint32_t crc
    int32_t leader_epoch
    uint32_t flags

assert twin.ROW.size == sizeof(ExtentRow)

cdef struct Rows:
    const ExtentRow *items
    Py_ssize_t count
    const uint8_t *groups        # NULL: counts for all
    Py_ssize_t group_count

cdef struct Limits:
    # `PickLimits`
    int64_t room
    int64_t bytes_max
    int64_t partitions_max
    int64_t source_bytes
    int64_t start
    int64_t window_bytes
    int64_t sparse_bytes
    int64_t sparse_window_bytes

cdef struct Chunk:
    int64_t number
    int64_t asked
    int32_t source

cdef struct Pick:
    int64_t position
    int64_t length
    int64_t base_offset
    int64_t last_offset
    int32_t source
    int32_t chunk                # where it begins
    uint32_t crc
    int32_t leader_epoch
    bint whole                   # its bytes are there, and pass
    const uint8_t *bytes         # NULL: not there
    PyObject *owner              # borrowed: what they lie in
    int64_t first_length         # how many of them lie there…
    const uint8_t *rest          # …and the others, in the next chunk; NULL: there are none
    PyObject *rest_owner

cdef struct Answer:
    int64_t budget
    int32_t row
    int32_t first_pick
    int32_t pick_count
    bint whole_first

cdef enum:
    # How the picking of one partition ended.
    PICKED = 0                   # whatever was found
    NOTHING_FITS = 1             # its first batch is there and does not fit


@cython.final
cdef class DiskPicks:
    cdef FetchPlan plan
    cdef int64_t round
    cdef int64_t chunk_bytes
    cdef bint extents
    cdef Answer *answers
    cdef Py_ssize_t answer_count
    cdef Py_ssize_t answer_capacity
    cdef Pick *picks
    cdef Py_ssize_t pick_count
    cdef Py_ssize_t pick_capacity
    cdef Chunk chunk_list[CHUNKS_MAX]
    cdef int chunk_count
    cdef int near                # the chunk found last
    cdef readonly int64_t bytes
    cdef readonly int64_t partitions
    cdef readonly int64_t served_from_memory

    def __cinit__(self, FetchPlan plan not None, chunk_bytes, *, extents):
        if not 0 < chunk_bytes <= LARGEST:
            raise ValueError(f"chunks of {chunk_bytes} bytes")
        self.plan = plan
        self.round = plan.round
        self.chunk_bytes = chunk_bytes
        self.extents = extents

    def __dealloc__(self):
        PyMem_RawFree(self.answers)
        PyMem_RawFree(self.picks)

    def __len__(self):
        return self.answer_count

    # --- picking ----------------------------------------------------------------------------------------

    def choose(
        self, QueueTable table not None, RecentIndex index not None, list logs not None, slots, sources, limits
    ):
        cdef Rows rows[SOURCES_MAX]
        cdef Py_buffer views[SOURCES_MAX]
        cdef Py_buffer groups
        cdef Limits bounds
        cdef Py_ssize_t count = len(sources), taken = 0, number
        cdef list masks = []
        if count > SOURCES_MAX:
            raise ValueError(f"{count} sources")
        (
            bounds.room, bounds.bytes_max, bounds.partitions_max, bounds.source_bytes, bounds.start,
            bounds.window_bytes, bounds.sparse_bytes, bounds.sparse_window_bytes,
        ) = limits
        if not 0 <= bounds.source_bytes <= LARGEST // SOURCES_MAX:
            raise ValueError(f"sources of {bounds.source_bytes} bytes")
        PyObject_GetBuffer(slots, &groups, PyBUF_SIMPLE)
        try:
            check_groups(&groups)
            for content, mask in sources:
                PyObject_GetBuffer(content, &views[taken], PyBUF_SIMPLE)
                taken += 1
                if views[taken - 1].len % sizeof(ExtentRow):
                    raise ValueError("index rows are cut short")
                rows[taken - 1].items = <const ExtentRow *> views[taken - 1].buf
                rows[taken - 1].count = views[taken - 1].len // sizeof(ExtentRow)
                rows[taken - 1].groups = NULL
                rows[taken - 1].group_count = 0
                if mask is not None:
                    masks.append(<bytes?> mask)
                    rows[taken - 1].groups = <const uint8_t *> PyBytes_AS_STRING(mask)
                    rows[taken - 1].group_count = len(mask)
            self.choose_from(table, index, logs, <const uint16_t *> groups.buf, rows, count, &bounds)
        finally:
            for number in range(taken):
                PyBuffer_Release(&views[number])
            PyBuffer_Release(&groups)

    cdef int choose_from(
        self, QueueTable table, RecentIndex index, list logs, const uint16_t *groups, const Rows *sources,
        Py_ssize_t source_count, const Limits *limits,
    ) except -1:
        cdef FetchPlan plan = self.plan
        cdef int32_t number = plan.next_row(), next_number
        cdef PlanRow *row
        cdef Slot *slot
        cdef int64_t budget, left
        cdef bint whole_first, nothing_fits
        cdef int answered
        while number != NOBODY:
            row = &plan.rows[number]
            next_number = row.next
            if row.settled:
                number = next_number
                continue
            if self.partitions >= limits.partitions_max or self.bytes >= limits.bytes_max:
                return 0
            answered = plan.answer_from_memory(number, table, index, logs, groups, self.bytes)
            if answered != UNKNOWN_TO_MEMORY:
                self.served_from_memory += answered == ANSWERED_WITH_BATCHES
                number = next_number
                continue
            self.partitions += 1
            slot = table.find_slot(row.queue_id)
            if slot == NULL:
                number = next_number
                continue
            whole_first = plan.found_bytes == 0 and self.bytes == 0
            budget = plan.budget(row, self.bytes)
            left = limits.room - plan.found_bytes - self.bytes
            if left < budget:
                budget = left if left > 0 else 0
            nothing_fits = budget == 0 and not whole_first
            if not nothing_fits:
                nothing_fits = self.pick(
                    number, slot, groups[group_slot(row.queue_id)], sources, source_count, budget, whole_first, limits
                ) == NOTHING_FITS
            if nothing_fits:
                plan.found(
                    row, slot.committed_end, slot.log_start, stable_end(slot), plan.part_count, row.fetch_offset
                )
            number = next_number
        return 0

    cdef int pick(
        self, int32_t row_number, const Slot *slot, uint16_t group, const Rows *sources, Py_ssize_t source_count,
        int64_t budget, bint whole_first, const Limits *limits,
    ) except -1:
        """Pick for one row."""
        cdef const PlanRow *row = &self.plan.rows[row_number]
        cdef const Rows *rows
        cdef const ExtentRow *found
        cdef Py_ssize_t place, first_pick = self.pick_count
        cdef int64_t offset = row.fetch_offset, size = 0, first = 0, at, distance, length
        cdef int32_t number
        cdef bint whole, going = True
        cdef int outcome = PICKED
        cdef int chunk
        cdef Pick *pick
        for number in range(<int32_t> source_count):
            rows = &sources[number]
            if rows.groups != NULL and (group >= rows.group_count or not rows.groups[group]):
                continue
            place = first_row(rows, row.queue_id, offset)
            while place < rows.count and offset < self.plan.end_for(slot):
                found = &rows.items[place]
                if found.queue_id != row.queue_id:
                    break
                going = False
                if self.pick_count > first_pick:
                    if found.base_offset != offset:
                        break
                elif not 0 <= found.base_offset <= offset:
                    break
                if (
                    not found.base_offset <= found.last_offset <= LARGEST or found.position > <uint64_t> LARGEST
                    or not found.length
                ):
                    break
                length = found.length
                at = number * limits.source_bytes + <int64_t> found.position
                if self.pick_count == first_pick:
                    first = at
                distance = at - first
                if at < limits.start or at - limits.start >= limits.sparse_window_bytes:
                    break
                if distance >= (limits.window_bytes if size >= limits.sparse_bytes else limits.sparse_window_bytes):
                    break
                whole = whole_first and self.pick_count == first_pick
                if not whole and length > budget - size and not (
                    self.extents and may_fit(length, found.batch_count, budget - size)
                ):
                    if self.pick_count == first_pick:
                        outcome = NOTHING_FITS
                    break
                chunk = self.take_chunks(number, <int64_t> found.position, length)
                if chunk < 0:
                    break
                self.reserve_picks()
                pick = &self.picks[self.pick_count]
                pick.position = <int64_t> found.position
                pick.length = length
                pick.base_offset = found.base_offset
                pick.last_offset = found.last_offset
                pick.source = number
                pick.chunk = chunk
                pick.crc = found.crc
                pick.leader_epoch = found.leader_epoch
                pick.whole = False
                pick.bytes = NULL
                pick.owner = NULL
                self.pick_count += 1
                size += length if whole or length <= budget - size else budget - size
                offset = found.last_offset + 1
                place += 1
                going = True
            if not going:
                break
        if self.pick_count > first_pick:
            self.add_answer(row_number, first_pick, budget, whole_first)
            self.bytes += size
        return outcome

    cdef int reserve_picks(self) except -1:
        """Make room for one more."""
        cdef Pick *grown
        cdef Py_ssize_t capacity
        if self.pick_count == self.pick_capacity:
            capacity = 2 * self.pick_capacity if self.pick_capacity else 64
            if capacity > PICKS_MAX:
                raise MemoryError("no room for more picks")
            grown = <Pick *> PyMem_RawRealloc(self.picks, capacity * sizeof(Pick))
            if grown == NULL:
                raise MemoryError(f"no memory for {capacity} picks")
            self.picks = grown
            self.pick_capacity = capacity
        return 0

    cdef int add_answer(
        self, int32_t row_number, Py_ssize_t first_pick, int64_t budget, bint whole_first
    ) except -1:
        cdef Answer *grown
        cdef Py_ssize_t capacity
        if self.answer_count == self.answer_capacity:
            capacity = 2 * self.answer_capacity if self.answer_capacity else 64
            grown = <Answer *> PyMem_RawRealloc(self.answers, capacity * sizeof(Answer))
            if grown == NULL:
                raise MemoryError(f"no memory for {capacity} partitions")
            self.answers = grown
            self.answer_capacity = capacity
        self.answers[self.answer_count].row = row_number
        self.answers[self.answer_count].budget = budget
        self.answers[self.answer_count].whole_first = whole_first
        self.answers[self.answer_count].first_pick = <int32_t> first_pick
        self.answers[self.answer_count].pick_count = <int32_t> (self.pick_count - first_pick)
        self.answer_count += 1
        return 0

    # --- chunks -----------------------------------------------------------------------------------------

    cdef int find_chunk(self, int32_t source, int64_t number) noexcept nogil:
        """The place of a chunk in the list, or -1. Most picks ask for that of the one before, or the next."""
        cdef int step, place
        for step in range(self.chunk_count):
            place = self.near + step
            if place >= self.chunk_count:
                place -= self.chunk_count
            if self.chunk_list[place].number == number and self.chunk_list[place].source == source:
                self.near = place
                return place
        return -1

    cdef int take_chunks(self, int32_t source, int64_t position, int64_t length) noexcept nogil:
        """Note the chunks of a pick; where its first one is in the list. -1 when they would be too many."""
        cdef int64_t first = position // self.chunk_bytes, last = (position + length - 1) // self.chunk_bytes
        cdef int64_t number, begin, end
        cdef int missing = 0, place, found = -1
        if last - first >= CHUNKS_MAX:
            return -1
        for number in range(first, last + 1):
            missing += self.find_chunk(source, number) < 0
        if self.chunk_count + missing > CHUNKS_MAX:
            return -1
        for number in range(first, last + 1):
            place = self.find_chunk(source, number)
            if place < 0:
                place = self.near = self.chunk_count
                self.chunk_count += 1
                self.chunk_list[place].source = source
                self.chunk_list[place].number = number
                self.chunk_list[place].asked = 0
            begin, end = max(position, number * self.chunk_bytes), position + length
            if end - number * self.chunk_bytes > self.chunk_bytes:
                end = (number + 1) * self.chunk_bytes
            self.chunk_list[place].asked += end - begin
            if number == first:
                found = place
        return found

    def chunks(self):
        cdef int place
        return [
            (self.chunk_list[place].source, self.chunk_list[place].number, self.chunk_list[place].asked)
            for place in range(self.chunk_count)
        ]

    # --- answering --------------------------------------------------------------------------------------

    def put(self, QueueTable table not None, chunks):
        cdef FetchPlan plan = self.plan
        cdef list owners = []
        cdef list joined = []
        cdef Py_buffer *views[CHUNKS_MAX]
        cdef Py_ssize_t number, served = 0
        cdef int64_t size = 0
        cdef Answer *answer
        cdef Pick *pick
        cdef PlanRow *row
        cdef Slot *slot
        if len(chunks) != self.chunk_count:
            raise ValueError(f"{len(chunks)} chunks where {self.chunk_count} are needed")
        if plan.round != self.round or plan.released:
            return 0
        for number, chunk in enumerate(chunks):
            owner = memoryview(b"" if chunk is None else chunk)
            views[number] = PyMemoryView_GET_BUFFER(owner)
            if views[number].ndim != 1 or views[number].itemsize != 1 or not PyBuffer_IsContiguous(views[number], b"C"):
                owner = memoryview(bytes(chunk))
                views[number] = PyMemoryView_GET_BUFFER(owner)
            owners.append(owner)
        for number in range(self.pick_count):
            pick = &self.picks[number]
            self.locate(pick, views, owners, joined)
            if pick.bytes != NULL:
                size += pick.length
        if size < LARGE_BYTES:
            check_all(self.picks, self.pick_count, self.extents)
        else:
            with nogil:
                check_all(self.picks, self.pick_count, self.extents)
        for number in range(self.answer_count):
            answer = &self.answers[number]
            if answer.row >= plan.row_end:
                continue
            row = &plan.rows[answer.row]
            slot = table.find_slot(row.queue_id)
            if row.settled or slot == NULL or slot.log_start > row.fetch_offset:
                continue
            served += self.put_answer(answer, row, slot)
        return served

    cdef int locate(self, Pick *pick, Py_buffer **views, list owners, list joined) except -1:
        """Find the bytes of a pick. A batch in two chunks stays there in two parts: its copy would be made in new memory,
        for which the event loop may have to wait. Others in several chunks are joined, in memory that `joined` owns."""
        cdef int64_t start = pick.position % self.chunk_bytes, number = pick.position // self.chunk_bytes
        cdef int64_t position = 0, part, first_part = self.chunk_bytes - start
        cdef int place = pick.chunk
        cdef bytes whole
        pick.bytes = pick.rest = NULL
        pick.whole = False
        pick.first_length = pick.length
        if start + pick.length <= self.chunk_bytes:
            if start + pick.length <= views[place].len:
                pick.bytes = <const uint8_t *> views[place].buf + start
                pick.owner = <PyObject *> owners[place]
            return 0
        while position < pick.length:
            part = min(self.chunk_bytes - start, pick.length - position)
            place = self.find_chunk(pick.source, number)
            if place < 0 or start + part > views[place].len:
                return 0
            start, number, position = 0, number + 1, position + part
        if not self.extents and first_part >= CHECKED_FROM and pick.length - first_part <= self.chunk_bytes:
            pick.first_length = first_part
            pick.bytes = <const uint8_t *> views[pick.chunk].buf + self.chunk_bytes - first_part
            pick.owner = <PyObject *> owners[pick.chunk]
            pick.rest = <const uint8_t *> views[place].buf
            pick.rest_owner = <PyObject *> owners[place]
            return 0
        whole = PyBytes_FromStringAndSize(NULL, pick.length)
        start, number, position = pick.position % self.chunk_bytes, pick.position // self.chunk_bytes, 0
        while position < pick.length:
            part = min(self.chunk_bytes - start, pick.length - position)
            place = self.find_chunk(pick.source, number)
            memcpy(PyBytes_AS_STRING(whole) + position, <const uint8_t *> views[place].buf + start, part)
            start, number, position = 0, number + 1, position + part
        owner = memoryview(whole)
        joined.append(owner)
        pick.bytes = <const uint8_t *> PyBytes_AS_STRING(whole)
        pick.owner = <PyObject *> owner
        return 0

    cdef bint put_answer(self, const Answer *answer, PlanRow *row, const Slot *slot) except -1:
        """Settle a row if there is something to tell; whether it got batches."""
        cdef FetchPlan plan = self.plan
        cdef Py_ssize_t first_part = plan.part_count, number
        cdef int64_t offset = row.fetch_offset, left = answer.budget, start, stop
        cdef const Pick *pick
        cdef bint whole, full = False
        for number in range(answer.first_pick, answer.first_pick + answer.pick_count):
            pick = &self.picks[number]
            if not pick.whole:
                break
            whole = answer.whole_first and plan.part_count == first_part
            start, stop = 0, pick.length
            if self.extents:
                full = within(pick, &offset, left, whole, plan.part_count > first_part, &start, &stop)
            else:
                offset = pick.last_offset + 1
            if stop > start:
                if pick.rest == NULL:
                    self.hold(pick.owner, pick.bytes + start, stop - start, first_part)
                else:
                    self.hold(pick.owner, pick.bytes, pick.first_length, first_part)
                    self.hold(pick.rest_owner, pick.rest, pick.length - pick.first_length, first_part)
                left -= stop - start
            if full or offset != pick.last_offset + 1:
                break
        if plan.part_count == first_part and not full:
            return False
        plan.found(row, slot.committed_end, slot.log_start, stable_end(slot), first_part, offset)
        return row.part_count > 0

    cdef int hold(self, PyObject *owner, const uint8_t *data, int64_t length, Py_ssize_t first_part) except -1:
        """Keep bytes for the response, with those before them where they are neighbours."""
        cdef FetchPlan plan = self.plan
        cdef Part *last
        if plan.part_count > first_part:
            last = &plan.parts[plan.part_count - 1]
            if last.owner == owner and last.bytes + last.length == data:
                last.length += length
                return 0
        plan.hold(<object> owner, data, length)
        return 0


cdef inline bint may_fit(int64_t length, int64_t batches, int64_t budget) noexcept nogil:
    """Whether an extent that does not fit is worth reading for its first batches, by their average."""
    return batches > 1 and length // batches <= budget


cdef Py_ssize_t first_row(const Rows *rows, uint64_t queue_id, int64_t offset) noexcept nogil:
    """The first row of the queue that ends at or behind the offset, or where it would be."""
    cdef Py_ssize_t low = 0, high = rows.count, middle
    cdef const ExtentRow *row
    while low < high:
        middle = low + (high - low) // 2
        row = &rows.items[middle]
        if row.queue_id < queue_id or (row.queue_id == queue_id and row.last_offset < offset):
            low = middle + 1
        else:
            high = middle
    return low


cdef void check_all(Pick *picks, Py_ssize_t count, bint extents) noexcept nogil:
    cdef Py_ssize_t number
    cdef Pick *pick
    for number in range(count):
        pick = &picks[number]
        if pick.bytes == NULL:
            continue
        if extents:
            pick.whole = ms_crc32c(0, pick.bytes, pick.length) == pick.crc
        else:
            pick.whole = is_batch(pick)


cdef bint is_batch(const Pick *pick) noexcept nogil:
    cdef uint32_t crc
    if pick.length < CHECKED_FROM or <int64_t> ms_read_u64(pick.bytes) != pick.base_offset:
        return False
    if <int64_t> ms_read_u32(pick.bytes + LENGTH_AT) + LENGTH_EXCLUDES != pick.length:     # unsigned: a negative one is no match
        return False
    if <int32_t> ms_read_u32(pick.bytes + LEADER_EPOCH_AT) != pick.leader_epoch or pick.bytes[MAGIC_AT] != MAGIC:
        return False
    crc = ms_crc32c(0, pick.bytes + CHECKED_FROM, pick.first_length - CHECKED_FROM)
    if pick.rest != NULL:
        crc = ms_crc32c(crc, pick.rest, pick.length - pick.first_length)
    return crc == ms_read_u32(pick.bytes + CHECKSUM_AT)


cdef bint within(
    const Pick *pick, int64_t *offset, int64_t budget, bint whole_first, bint goes_on, int64_t *start, int64_t *stop
) noexcept nogil:
    """Of an extent's batches those from `offset` on that fit: where they begin and end, the offset behind them, and
    whether others do not fit. The first holds the offset, or with `goes_on` begins there; malformed ones end it."""
    cdef int64_t position = 0, base, size, next_offset
    cdef int32_t last_delta
    cdef const uint8_t *batch
    cdef bint taken
    start[0] = stop[0] = 0
    while pick.length - position >= EXTENT_BATCH_BYTES:
        batch = pick.bytes + position
        base = <int64_t> ms_read_u64(batch)
        size = <int64_t> <int32_t> ms_read_u32(batch + LENGTH_AT) + LENGTH_EXCLUDES
        last_delta = <int32_t> ms_read_u32(batch + LAST_OFFSET_DELTA_AT)
        if size < EXTENT_BATCH_BYTES or size > pick.length - position or last_delta < 0 or not 0 <= base <= LARGEST:
            break
        next_offset = base + last_delta + 1
        taken = stop[0] > start[0]
        if next_offset > offset[0]:
            if base != offset[0] if taken or goes_on else base > offset[0]:
                break
            if size > budget - (stop[0] - start[0]) and not (whole_first and not taken):
                return True
            if not taken:
                start[0] = position
            stop[0], offset[0] = position + size, next_offset
        elif taken:
            break
        position += size
    return False
