"""The hot half of a write group; see the twin. One call appends all batches of a request, another applies a block.

Both touch one slot of the queue table per batch, which is a cache miss when many queues are active: they ask for the
slots of the batches to come a few ahead.

What most batches are (no producer, room in the open block) goes in runs of one group. Each is copied first and has its
checksum computed then, while the copy still makes its way to memory; where the block ends moves only if the checksum
is right.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from mainstem.kernel.compiled.batch_header cimport CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT
from mainstem.kernel.compiled.block cimport BlockBuilder, Tail, fill_batch, put_copied
from mainstem.kernel.compiled.bytes_io cimport ms_crc_prepare
from mainstem.kernel.compiled.layout cimport (
    BAD_CHECKSUM,
    COLD_PRODUCER,
    NOT_LEADER,
    OK,
    STORAGE_BUSY,
    TOO_LARGE,
    UNCHECKED,
    UNKNOWN_QUEUE,
    UNSTABLE_DISTANCE_MAX,
    WATCHED,
    CLASSED_BIT,
    CLASS_MASK,
    SLOT_SHIFT,
    Batch,
    Row,
    Slot,
    group_slot,
)
from mainstem.kernel.compiled.produce cimport ProduceScan, refuse_batch, sum_is_right
from mainstem.kernel.compiled.producer_states cimport DUPLICATE, FRESH, ProducerStates, Seen
from mainstem.kernel.compiled.queue_table cimport QueueTable
from mainstem.kernel.pure import group_log as twin
from mainstem.model import CLASSED, CLASSES_MAX, SLOTS, SLOTS_OF_ALL, AppendResult, Outcome

cdef enum:
    AHEAD = 8                    # batches whose slots are asked for before they are needed: a power of two

assert SLOTS == 1 << (64 - SLOT_SHIFT)
assert CLASSED == 1 << (CLASSED_BIT - 32)
assert CLASSES_MAX == CLASS_MASK + 1

ms_crc_prepare()     # every module has tables of its own

cdef dict OUTCOME_OF_VERDICT = {int(verdict): outcome for verdict, outcome in twin.OUTCOME_OF_VERDICT.items()}
cdef QueueTable NO_QUEUES = QueueTable()
cdef int64_t requests = 0


cdef class WriteGroupLog:
    """Appends to and applies the log of one write group."""

    def __init__(
        self, group, QueueTable table, ProducerStates producers, open_block, *, block_bytes_max, batch_bytes_max
    ):
        self.group = group
        self.table = table
        self.producers = producers
        self.open_block = open_block
        self.transactions = None
        self.marked = []
        self.block_bytes_max = block_bytes_max
        self.batch_bytes_max = batch_bytes_max

    cdef Py_ssize_t put_run(
        self, ProduceScan scan, Py_ssize_t place, const uint8_t *frame, const uint16_t *groups, Slot **ahead
    ) noexcept:
        """`put` batches of this group from `place` on, up to the first that is not like most; how many. `ahead` has the
        slots of this batch and the next ones, going round, and is kept up."""
        cdef QueueTable table = self.table
        cdef Batch *batch = scan.batches + place
        cdef Batch *stop = scan.batches + scan.batch_count
        cdef Slot *slot
        cdef Py_ssize_t first = place, size, sums = 0, largest = self.batch_bytes_max
        cdef int64_t base_offset, index = self.open_index
        cdef int32_t epoch = self.term
        cdef uint16_t group = self.group
        cdef Tail tail
        if self.builder is None or not self.builder.open_tail(&tail, self.block_bytes_max):
            return 0
        while batch < stop:
            slot = ahead[place & AHEAD - 1]
            size = batch.length
            if (
                batch.verdict > OK or slot == NULL or batch.producer_id >= 0 or batch.log_append_time
                or slot.first_unstable or size > largest or size > tail.room or tail.row == tail.rows_end
                or size + <Py_ssize_t> sizeof(Row) > tail.budget
                or groups[group_slot(batch.queue_id)] != group
            ):
                break
            memcpy(tail.next, frame + batch.start, size)
            if batch.verdict == UNCHECKED:
                if not sum_is_right(batch, frame):
                    break
                sums += 1
                batch.verdict = OK
            base_offset = slot.next_offset
            slot.next_offset = base_offset + batch.last_offset_delta + 1
            put_copied(&tail, batch, base_offset, epoch)
            batch.base_offset = base_offset     # after its row was copied from it: the load would wait for the store
            batch.log_start_offset = slot.log_start
            batch.block_index = index
            batch.group = group
            if stop - batch > AHEAD:
                ahead[place & AHEAD - 1] = table.ask_for(batch[AHEAD].queue_id)
            batch += 1
            place += 1
        size = self.builder.close_tail(&tail)
        self.appended_bytes += size
        self.appended_batches += place - first
        self.pending_bytes += size
        scan.unchecked -= sums
        scan.accepted += sums
        return place - first

    cdef int64_t put(self, Batch *batch, Slot *slot, const uint8_t *data, int64_t now_ms) except -1:
        """Append the batch at `data` to the queue of `slot` (NULL: there is none), filling in what came of it; the
        index of the block to wait for, 0 for none. A duplicate's may be applied already."""
        cdef Seen seen
        cdef int verdict
        cdef int64_t base_offset, index
        cdef Py_ssize_t size = batch.length
        if size > self.batch_bytes_max:
            batch.verdict = TOO_LARGE
            return 0
        if slot == NULL:
            batch.verdict = UNKNOWN_QUEUE
            return 0
        if slot.first_unstable and (
            slot.next_offset + batch.last_offset_delta - slot.first_unstable >= UNSTABLE_DISTANCE_MAX
            and not batch.attributes & CONTROL_BIT
        ):
            batch.verdict = STORAGE_BUSY
            return 0
        if batch.producer_id >= 0 and not batch.attributes & CONTROL_BIT:
            if (slot.first_unstable or batch.attributes & TRANSACTIONAL_BIT) and self.transactions is not None:
                verdict = self.transactions.judge(
                    batch.queue_id, batch.producer_id, batch.producer_epoch, batch.attributes & TRANSACTIONAL_BIT != 0
                )
                if verdict != OK:
                    batch.verdict = verdict
                    return 0
            verdict = self.producers.check(
                batch.queue_id, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count, &seen
            )
            if verdict == DUPLICATE:
                batch.base_offset = seen.base_offset
                batch.log_start_offset = slot.log_start
                return seen.block_index
            if verdict != FRESH:
                batch.verdict = verdict
                if verdict == COLD_PRODUCER:
                    self.producers.asked.append((self.group, batch.queue_id, batch.producer_id))
                return 0
        if (
            self.builder is None
            or self.builder.rows.count * <Py_ssize_t> sizeof(Row) + self.builder.payload_bytes + size
            + <Py_ssize_t> sizeof(Row) > self.block_bytes_max
            or not self.builder.has_room(size)
        ):
            self.open = self.open_block()
            self.builder = self.open.builder
            self.open_index = self.open.index
        base_offset = slot.next_offset
        index = self.open_index
        if batch.log_append_time:
            batch.log_append_time_ms = now_ms
        self.builder.put(data, batch, base_offset, self.term, now_ms if batch.log_append_time else -1)
        # whatever fails from here on: it is in the block
        slot.next_offset = base_offset + batch.last_offset_delta + 1
        self.appended_bytes += size
        self.appended_batches += 1
        self.pending_bytes += size
        if batch.producer_id >= 0:
            if batch.attributes & CONTROL_BIT:
                self.producers.appended(
                    batch.queue_id, batch.producer_id, batch.producer_epoch, -1, 1, base_offset, index, now_ms
                )
            else:
                self.producers.appended(
                    batch.queue_id, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count,
                    base_offset, index, now_ms,
                )
            if batch.attributes & TRANSACTIONAL_BIT and self.transactions is not None:
                self.transactions.appended(
                    batch.queue_id, batch.producer_id, batch.producer_epoch, base_offset, index,
                    batch.attributes & CONTROL_BIT != 0,
                )
        batch.base_offset = base_offset
        batch.log_start_offset = slot.log_start
        return index

    cdef int tell(self, int64_t index, int64_t request, list waiting) except -1:
        """Note a block to wait for among those of a request, once."""
        if self.told_request != request or self.told_index != index:
            self.told_request = request
            self.told_index = index
            if (self.group, index) not in waiting:     # a duplicate may lead back to an older block
                waiting.append((self.group, index))
        return 0

    def append(self, batch, now_ms):
        """Put a batch into the open block. The result is final; the number is the index of the block that must be
        applied, and as safe as was asked for, before it may be told (0: none)."""
        cdef Batch fields
        cdef Py_buffer view
        cdef int64_t index
        PyObject_GetBuffer(batch.data, &view, PyBUF_SIMPLE)
        try:
            if view.len < HEADER_BYTES:
                raise ValueError(f"{view.len} bytes are no batch")
            fill_batch(&fields, batch, view.len)
            fields.verdict = OK
            fields.base_offset = fields.log_append_time_ms = fields.log_start_offset = -1
            index = self.put(
                &fields, self.table.find_slot(fields.queue_id), <const uint8_t *> view.buf, now_ms
            )
        finally:
            PyBuffer_Release(&view)
        return (
            AppendResult(
                OUTCOME_OF_VERDICT[fields.verdict], fields.base_offset, fields.log_append_time_ms,
                fields.log_start_offset,
            ),
            index,
        )

    def close(self):
        """What is appended from now on goes into another block."""
        self.open = None
        self.builder = None

    def apply(self, directory, index, created_ms):
        """Make the rows of block `index` part of the state: ends of queues, producers. Rows of queues that do not exist
        any more are left out. Returns (queue id, bytes) of the rows of watched queues; `marked` has the numbers of the
        rows of transactions."""
        cdef Py_buffer view
        cdef Row *rows
        cdef Row *row
        cdef Slot *slot
        cdef Slot *ahead[AHEAD]
        cdef Py_ssize_t place, count
        cdef int64_t end, block_index = index, made_ms = created_ms
        cdef QueueTable table = self.table
        cdef list watched = []
        self.applied_index = block_index
        if self.marked:
            self.marked = []
        PyObject_GetBuffer(directory, &view, PyBUF_SIMPLE)
        try:
            rows = <Row *> view.buf
            count = view.len // <Py_ssize_t> sizeof(Row)
            for place in range(min(count, <Py_ssize_t> AHEAD)):
                ahead[place] = table.ask_for(rows[place].queue_id)
            for place in range(count):
                slot = ahead[place & AHEAD - 1]
                if place < count - AHEAD:
                    ahead[place & AHEAD - 1] = table.ask_for(rows[place + AHEAD].queue_id)
                if slot == NULL:
                    continue
                row = &rows[place]
                end = row.base_offset + row.last_offset_delta + 1
                if slot.committed_end < end:     # a snapshot may have told a later one
                    slot.committed_end = end
                if slot.next_offset < end:
                    slot.next_offset = end
                if slot.entries & WATCHED:
                    watched.append((row.queue_id, row.length))
                if row.producer_id >= 0:
                    if row.attributes & TRANSACTIONAL_BIT:
                        self.marked.append(place)
                    if row.attributes & CONTROL_BIT:
                        self.producers.applied(
                            row.queue_id, row.producer_id, row.producer_epoch, -1, 1, row.base_offset, block_index,
                            made_ms,
                        )
                    else:
                        self.producers.applied(
                            row.queue_id, row.producer_id, row.producer_epoch, row.base_sequence, row.record_count,
                            row.base_offset, block_index, made_ms,
                        )
        finally:
            PyBuffer_Release(&view)
        return watched

    def applied_bytes(self, size):
        """Of what was appended, `size` bytes are applied."""
        self.pending_bytes -= size


def append_all(batches, list logs, const uint16_t[::1] slots, now_ms):
    """Append batches of any queues, in order. `slots` has the group of each slot of all classes as u16; `logs` the log
    of each group, None where another node leads it. Returns one result per batch (for a `ProduceScan`: the scan itself,
    settled) and the blocks to wait for, as (group, index), each once."""
    assert slots.shape[0] == SLOTS_OF_ALL
    if isinstance(batches, ProduceScan):
        return batches, append_scan(batches, logs, slots, now_ms)
    results = []
    waiting = {}
    for batch in batches:
        group = slots[group_slot(batch.queue_id)]
        if group >= len(logs):
            raise IndexError(f"no write group {group}")
        log = logs[group]
        if log is None:
            results.append(AppendResult(Outcome.NOT_LEADER))
            continue
        result, index = log.append(batch, now_ms)
        results.append(result)
        if index:
            waiting[group, index] = None
    return results, list(waiting)


cdef list append_scan(ProduceScan scan, list logs, const uint16_t[::1] slots, int64_t now_ms):
    global requests
    cdef Py_ssize_t place, count = scan.batch_count
    cdef Batch *batches = scan.batches
    cdef Batch *batch
    cdef const uint8_t *frame = scan.frame_bytes()
    cdef const uint16_t *groups = &slots[0]
    cdef WriteGroupLog log = None
    cdef int32_t log_group = -1
    cdef QueueTable table = None
    cdef Slot *slot
    cdef Slot *ahead[AHEAD]
    cdef int64_t index
    cdef uint16_t group
    cdef Py_ssize_t run
    cdef list waiting = []
    requests += 1
    for entry in logs:
        if entry is not None:
            table = (<WriteGroupLog?> entry).table
            break
    if table is None:     # nothing is led here
        table = NO_QUEUES
        scan.check()
    for place in range(min(count, <Py_ssize_t> AHEAD)):
        ahead[place] = table.ask_for(batches[place].queue_id)
    place = 0
    while place < count:
        batch = &batches[place]
        if batch.verdict <= OK:
            group = groups[group_slot(batch.queue_id)]
            if group != log_group:
                if group >= len(logs):
                    raise IndexError(f"no write group {group}")
                log = <WriteGroupLog?> logs[group] if logs[group] is not None else None
                log_group = group
            if log is not None and batch.producer_id < 0:
                run = log.put_run(scan, place, frame, groups, ahead)
                if run:
                    place += run
                    log.tell(log.open_index, requests, waiting)
                    continue
            slot = ahead[place & AHEAD - 1]
            if batch.verdict == UNCHECKED and not checked(scan, batch, frame):
                pass
            elif log is None:
                batch.verdict = NOT_LEADER
            else:
                index = log.put(batch, slot, frame + batch.start, now_ms)
                if index:
                    batch.block_index = index
                    batch.group = group
                    log.tell(index, requests, waiting)
        if place < count - AHEAD:
            ahead[place & AHEAD - 1] = table.ask_for(batch[AHEAD].queue_id)
        place += 1
    return waiting


cdef inline bint checked(ProduceScan scan, Batch *batch, const uint8_t *frame) noexcept:
    """Look at the checksum of a batch that needs nothing else to be accepted: is it?"""
    scan.unchecked -= 1
    if not sum_is_right(batch, frame):
        refuse_batch(batch, BAD_CHECKSUM)
        return False
    batch.verdict = OK
    scan.accepted += 1
    return True
