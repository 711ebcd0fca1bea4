"""The hot half of a write group: it appends every batch, and applies the rows of committed blocks.

`append` gives a batch its offset and copies it into the group's open block, or says why not; `apply` makes the rows
of a committed block part of the queue table and the producers' states. Blocks themselves (when they are opened,
closed, written, answered) are the write group's business: it hands in `open_block`, called for each new one.

Everything runs to its end on one turn of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mainstem.kernel.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from mainstem.kernel.layout import (
    COMMITTED_END,
    ENTRIES,
    FIRST_UNSTABLE,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    ROW,
    ROW_BYTES,
    UNSTABLE_DISTANCE_MAX,
    WATCHED,
    Verdict,
)
from mainstem.kernel.pure.block import BlockBuilder
from mainstem.kernel.pure.produce import ProduceScan
from mainstem.kernel.pure.producer_states import ProducerStates
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.model import SLOTS_OF_ALL, AppendResult, BatchAppend, Buffer, Outcome, slot_of

VERDICT_OF_OUTCOME = {
    Outcome.OK: Verdict.OK,
    Outcome.UNKNOWN_QUEUE: Verdict.UNKNOWN_QUEUE,
    Outcome.FENCED: Verdict.FENCED,
    Outcome.NOT_LEADER: Verdict.NOT_LEADER,
    Outcome.OUT_OF_ORDER_SEQUENCE: Verdict.OUT_OF_ORDER_SEQUENCE,
    Outcome.UNKNOWN_PRODUCER: Verdict.UNKNOWN_PRODUCER,
    Outcome.STALE_PRODUCER_EPOCH: Verdict.STALE_PRODUCER_EPOCH,
    Outcome.SKIPPED_SEQUENCE: Verdict.SKIPPED_SEQUENCE,
    Outcome.TOO_LARGE: Verdict.TOO_LARGE,
    Outcome.STORAGE_BUSY: Verdict.STORAGE_BUSY,
    Outcome.STORAGE_FAILED: Verdict.STORAGE_FAILED,
    Outcome.UNDECIDED: Verdict.UNDECIDED,
    Outcome.COLD_PRODUCER: Verdict.COLD_PRODUCER,
    Outcome.INVALID_TXN_STATE: Verdict.INVALID_TXN_STATE,
    Outcome.CONCURRENT_TRANSACTIONS: Verdict.CONCURRENT_TRANSACTIONS,
}
OUTCOME_OF_VERDICT = {verdict: outcome for outcome, verdict in VERDICT_OF_OUTCOME.items()}


class OpenBlock(Protocol):
    """An empty block that the write group provides."""

    @property
    def index(self) -> int: ...

    @property
    def builder(self) -> BlockBuilder: ...


class Transactions(Protocol):
    """The transactions of a write group's queues, as the write group knows them."""

    def judge(self, queue_id: int, producer_id: int, producer_epoch: int, transactional: bool) -> int:
        """The verdict on a producer's next batch, as far as transactions go: OK, COLD_PRODUCER where somebody has to be
        asked first, or what refuses it."""
        ...

    def appended(
        self,
        queue_id: int,
        producer_id: int,
        producer_epoch: int,
        base_offset: int,
        block_index: int,
        is_marker: bool,
    ) -> None:
        """A batch of a transaction, or a marker, went into a block."""
        ...


class WriteGroupLog:
    """Appends to and applies the log of one write group."""

    def __init__(
        self,
        group: int,
        table: QueueTable,
        producers: ProducerStates,
        open_block: Callable[[], OpenBlock],
        *,
        block_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        """`block_bytes_max`: directory and payload of a block, unless a single batch is larger; batches larger
        than `batch_bytes_max` are refused."""
        self.group = group
        self.term = 0
        """The leader epoch that is stamped into appended batches."""
        self.applied_index = 0
        self.appended_bytes = 0
        """Bytes of batches appended since the start."""
        self.appended_batches = 0
        self.pending_bytes = 0
        """Bytes of these that are not yet applied."""
        self.transactions: Transactions | None = None
        """None: batches of transactions are appended as they come."""
        self.marked: list[int] = []
        """The rows of the block applied last that are part of transactions, or markers."""
        self._table = table
        self._producers = producers
        self._open_block = open_block
        self._block_bytes_max = block_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._open: OpenBlock | None = None

    def append(self, batch: BatchAppend, now_ms: int) -> tuple[AppendResult, int]:
        """Put a batch into the open block. The result is final; the number is the index of the block that must
        be applied, and as safe as was asked for, before it may be told (0: none)."""
        if len(batch.data) > self._batch_bytes_max:
            return AppendResult(Outcome.TOO_LARGE), 0
        slot = self._table.find(batch.queue_id)
        if slot == NO_SLOT:
            return AppendResult(Outcome.UNKNOWN_QUEUE), 0
        log_start = self._table.get(slot, LOG_START)
        idempotent = batch.producer_id >= 0
        is_control = bool(batch.attributes & CONTROL_BIT)
        transactional = bool(batch.attributes & TRANSACTIONAL_BIT)
        unstable = self._table.get(slot, FIRST_UNSTABLE)
        if unstable and not is_control:
            distance = self._table.get(slot, NEXT_OFFSET) + batch.last_offset_delta - unstable
            if distance >= UNSTABLE_DISTANCE_MAX:
                return AppendResult(Outcome.STORAGE_BUSY), 0
        if idempotent and not is_control:
            if (unstable or transactional) and self.transactions is not None:
                judged = self.transactions.judge(batch.queue_id, batch.producer_id, batch.producer_epoch, transactional)
                if judged != Verdict.OK:
                    return AppendResult(OUTCOME_OF_VERDICT[Verdict(judged)]), 0
            verdict = self._producers.check(
                batch.queue_id,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.record_count,
            )
            if verdict.outcome is not Outcome.OK:
                if verdict.outcome is Outcome.COLD_PRODUCER:
                    self._producers.asked.append((self.group, batch.queue_id, batch.producer_id))
                return AppendResult(verdict.outcome), 0
            if verdict.duplicate is not None:
                first = verdict.duplicate
                return AppendResult(Outcome.OK, first.base_offset, -1, log_start), first.block_index
        size = len(batch.data)
        block = self._block_for(size)
        base_offset = self._table.get(slot, NEXT_OFFSET)
        self._table.set(slot, NEXT_OFFSET, base_offset + batch.last_offset_delta + 1)
        append_time_ms = now_ms if batch.log_append_time else -1
        block.builder.add(batch, base_offset, self.term, append_time_ms)
        self.appended_bytes += size
        self.appended_batches += 1
        self.pending_bytes += size
        if idempotent:
            self._producers.appended(
                batch.queue_id,
                batch.producer_id,
                batch.producer_epoch,
                -1 if is_control else batch.base_sequence,
                1 if is_control else batch.record_count,
                base_offset,
                block.index,
                now_ms,
            )
            if transactional and self.transactions is not None:
                self.transactions.appended(
                    batch.queue_id, batch.producer_id, batch.producer_epoch, base_offset, block.index, is_control
                )
        return AppendResult(Outcome.OK, base_offset, append_time_ms, log_start), block.index

    def _block_for(self, size: int) -> OpenBlock:
        """The open block, if a batch of `size` bytes still fits into it; a new one otherwise."""
        block = self._open
        if block is not None:
            builder = block.builder
            if builder.size + size + ROW_BYTES <= self._block_bytes_max and builder.fits(size):
                return block
        block = self._open = self._open_block()
        return block

    def close(self) -> None:
        """Close the open block; the next batch goes into a new one."""
        self._open = None

    def apply(self, directory: Buffer, index: int, created_ms: int) -> list[tuple[int, int]]:
        """Make the rows of block `index` part of the state: ends of queues, producers. Rows of queues that do
        not exist any more are left out. Returns (queue id, bytes) of the rows of watched queues; `marked` has the
        numbers of the rows of transactions."""
        table, producers = self._table, self._producers
        self.applied_index = index
        self.marked = []
        watched: list[tuple[int, int]] = []
        for number, row in enumerate(ROW.iter_unpack(directory)):
            queue_id, base_offset, _, producer_id, _, length, delta, count, sequence, epoch, attributes = row[:11]
            slot = table.find(queue_id)
            if slot == NO_SLOT:
                continue
            cells, base = table.cells(slot)
            end = base_offset + delta + 1
            if cells[base + COMMITTED_END] < end:  # a snapshot may have told a later one
                cells[base + COMMITTED_END] = end
            if cells[base + NEXT_OFFSET] < end:
                cells[base + NEXT_OFFSET] = end
            if cells[base + ENTRIES] & WATCHED:
                watched.append((queue_id, length))
            if producer_id >= 0:
                if attributes & TRANSACTIONAL_BIT:
                    self.marked.append(number)
                if attributes & CONTROL_BIT:
                    sequence, count = -1, 1
                producers.applied(queue_id, producer_id, epoch, sequence, count, base_offset, index, created_ms)
        return watched

    def applied_bytes(self, size: int) -> None:
        """Note that `size` of the appended bytes are applied."""
        self.pending_bytes -= size


def append_all(
    batches: Sequence[BatchAppend], logs: Sequence[WriteGroupLog | None], slots: memoryview, now_ms: int
) -> tuple[list[AppendResult], list[tuple[int, int]]]:
    """Append batches of any queues, in order. `slots` has the group of each slot of all classes as u16; `logs` the
    log of each group, None where another node leads it. Returns one result per batch (for a `ProduceScan`: the scan
    itself, settled) and the blocks to wait for, as (group, index), each once."""
    groups = memoryview(slots)
    assert len(groups) == SLOTS_OF_ALL
    results: list[AppendResult] = []
    blocks: list[tuple[int, int]] = []
    for batch in batches:
        group = groups[slot_of(batch.queue_id)]
        log = logs[group]
        if log is None:
            result, index = AppendResult(Outcome.NOT_LEADER), 0
        else:
            result, index = log.append(batch, now_ms)
        results.append(result)
        blocks.append((group, index) if index else (0, 0))
    waiting = list(dict.fromkeys(block for block in blocks if block[1]))
    if isinstance(batches, ProduceScan):
        batches.settle(results)
        batches.wait_for(blocks)
        return batches, waiting  # type: ignore[return-value]  # a scan stands for its results
    return results, waiting
