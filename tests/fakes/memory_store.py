"""The compute/storage seam in memory: `MessageStore` and `QueueAdmin` over plain lists of batches.

Kept of the real store: offsets are gapless, batches are copied during `append` and stamped with base offset, leader
epoch and (LogAppendTime) timestamp and CRC, idempotent producers are checked against their last five batches, reads
return whole batches from the one that holds the offset asked for.

Not kept: nothing is durable, everything commits at once unless a test holds it back. While `hold()` is in force
appended batches stay uncommitted (invisible to readers, futures of acks -1 and 1 pending) until `release()`."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import google_crc32c
from tests.fakes.clock import FakeClock

from mainstem.errors import LeaderMissing, MainstemError
from mainstem.kernel import ProduceScan
from mainstem.kernel.pure.producer_states import PATIENCE, UNKNOWN_PATIENCE
from mainstem.model import (
    AppendResult,
    AppendTransaction,
    BatchAppend,
    Buffer,
    Outcome,
    QueueOffsets,
    QueueRange,
    QueueRead,
    QueueSlice,
    QueueUsage,
    Tier,
    TimestampOffset,
    queue_id_of,
    topic_number_of,
)
from mainstem.ports import ANY_BYTES, Clock, ReadPlan
from mainstem.prompt_future import PromptFuture

MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
TIERED_TIMESTAMPS = (-5, -6)
_REMEMBERED_BATCHES = 5  # what an idempotent producer may have in flight, as in Kafka


@dataclass
class StoredBatch:
    base_offset: int
    data: bytes
    last_offset_delta: int
    max_timestamp: int
    leader_epoch: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


@dataclass
class ProducerState:
    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))
    """(base sequence, last sequence, base offset) of the newest batches."""


@dataclass
class MemoryQueue:
    log_start: int = 0
    high_watermark: int = 0
    end: int = 0
    first_unstable: int | None = None
    """The offset at which the oldest open transaction begins, if a test has opened one."""
    batches: list[StoredBatch] = field(default_factory=list)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    skipped: dict[int, int] = field(default_factory=dict)
    """Producer id → how often it was refused for sequence numbers that it skipped."""


class MemoryStore:
    """`ports.MessageStore` and `ports.QueueAdmin`. Tests may set `leader_epoch`, `refuse` (the outcome of
    every append until it is None again), `cold` (queues that cannot be read at once), `led_elsewhere` and `unreadable`
    (queues whose data is damaged), and read `appended_acks`, `appended_copies_min` and `reads`."""

    def __init__(self, clock: Clock | None = None, *, leader_epoch: int = 0) -> None:
        self._clock = clock or FakeClock()
        self.queues: dict[int, MemoryQueue] = {}
        self.leader_epoch = leader_epoch
        self.refuse: Outcome | None = None
        self.cold: set[int] = set()
        self.led_elsewhere: set[int] = set()
        self.unreadable: set[int] = set()
        self.appended_acks: list[int] = []
        self.appended_copies_min: list[int | Mapping[int, int]] = []
        self.reads: list[tuple[tuple[QueueRead, ...], int]] = []
        self._owners: dict[int, int] = {}
        self._grants = 0
        self._held = False
        self._pending: list[tuple[PromptFuture[list[AppendResult]], list[AppendResult]]] = []
        self._waiters: set[_Waiter] = set()

    # MessageStore

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        owner_epoch: int | None = None,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        if self.refuse is None and not self._admits(batches, owner_epoch):
            return PromptFuture.settled([AppendResult(Outcome.FENCED) for _ in batches])
        future: PromptFuture[list[AppendResult]] = PromptFuture()
        self.appended_acks.append(acks)
        self.appended_copies_min.append(copies_min)
        results = [self._append(batch) for batch in batches]
        if self._held and acks != 0:
            self._pending.append((future, results))
        else:
            future.set_result(results)
        if not self._held:
            self._commit()
        return future

    def read_at_once(self, plan: ReadPlan) -> None:
        while (wanted := plan.wanted(1, ANY_BYTES)).reads and wanted.reads[0].queue_id not in self.cold:
            plan.put(self._read(wanted.reads[0], wanted.bytes_max, wanted.whole_first))

    async def read(
        self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int, *, whole_first: bool = True
    ) -> list[QueueSlice]:
        if not isinstance(reads, Sequence):
            await self._settle(reads, bytes_max)
            return []
        self.reads.append((tuple(reads), bytes_max))
        await asyncio.sleep(0)
        slices: list[QueueSlice] = []
        first = whole_first
        for read in reads:
            found = self._read(read, bytes_max, first)
            size = sum(len(batch) for batch in found.batches)
            first = first and size == 0
            bytes_max -= size
            slices.append(found)
        return slices

    async def _settle(self, plan: ReadPlan, bytes_max: int) -> None:
        begun = plan.round
        while plan.round == begun and (wanted := plan.wanted(1, bytes_max)).reads:
            (found,) = await self.read(wanted.reads, wanted.bytes_max, whole_first=wanted.whole_first)
            if plan.round == begun:
                plan.put(found)
                self.read_at_once(plan)

    def offsets(self, queue_ids: Sequence[int], *, lately: bool = False) -> PromptFuture[list[QueueOffsets | None]]:
        return PromptFuture.settled([self._offsets(self.queues.get(queue_id)) for queue_id in queue_ids])

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        queue = self.queues.get(queue_id)
        if queue is None:
            return None
        self._check_readable(queue_id)
        if timestamp == EARLIEST_LOCAL_TIMESTAMP:
            return TimestampOffset(queue.log_start, -1, -1)
        if timestamp in TIERED_TIMESTAMPS:
            return None
        best: TimestampOffset | None = None
        for batch in queue.batches:
            for offset, time in record_timestamps(batch.data):
                if not queue.log_start <= offset < queue.high_watermark:
                    continue
                if timestamp == MAX_TIMESTAMP:
                    if best is None or time > best.timestamp:
                        best = TimestampOffset(offset, time, batch.leader_epoch)
                elif time >= timestamp:
                    return TimestampOffset(offset, time, batch.leader_epoch)
        return best

    def wait(self, queues: ReadPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float) -> PromptFuture[None]:
        ends = queues if isinstance(queues, Mapping) else queues.ends()
        future: PromptFuture[None] = PromptFuture()
        for queue_id, end in ends.items():
            queue = self.queues.get(queue_id)
            if queue is None or queue.high_watermark > end:
                future.set_result(None)
                return future
        if timeout_seconds <= 0:
            future.set_result(None)
            return future
        waiter = _Waiter(dict(ends), bytes_min, future)
        timer = asyncio.get_running_loop().call_later(timeout_seconds, future.set_result, None)
        self._waiters.add(waiter)

        def ended(_: PromptFuture[None]) -> None:
            timer.cancel()
            self._waiters.discard(waiter)

        future.add_done_callback(ended)
        return future

    # QueueAdmin

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        for topic_number, first_partition, count in ranges:
            for partition in range(first_partition, first_partition + count):
                self.queues.setdefault(queue_id_of(topic_number, partition), MemoryQueue())

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        for queue_id in [queue_id for queue_id in self.queues if topic_number_of(queue_id) in topic_numbers]:
            del self.queues[queue_id]
            self._wake(queue_id)

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        starts: dict[int, int | MainstemError | None] = {}
        for queue_id, offset in before.items():
            queue = self.queues.get(queue_id)
            if queue is None or offset > queue.high_watermark or offset < -1:
                starts[queue_id] = None
                continue
            target = queue.high_watermark if offset == -1 else offset
            if target > queue.log_start:
                queue.log_start = target
                self._wake(queue_id)
            queue.batches = [batch for batch in queue.batches if batch.next_offset > queue.log_start]
            starts[queue_id] = queue.log_start
        return starts

    async def own(self, queue_id: int, *, held: int | None = None) -> int:
        if queue_id in self.led_elsewhere:
            raise LeaderMissing(f"queue {queue_id:#x} is led elsewhere")
        if held is not None:
            if self._owner(queue_id) != held:
                raise LeaderMissing(f"another writer owns queue {queue_id:#x}")
            return held
        self._grants += 1
        epoch = self._owners[queue_id] = self.leader_epoch << 32 | self._grants
        return epoch

    def _owner(self, queue_id: int) -> int | None:
        """The newest owner epoch of a queue that its present leader gave."""
        epoch = self._owners.get(queue_id)
        return epoch if epoch is not None and epoch >> 32 == self.leader_epoch else None

    def _admits(self, batches: Sequence[BatchAppend], owner_epoch: int | None) -> bool:
        """Whether this writer may write to the queues, as far as they are led here."""
        return all(
            self._owner(batch.queue_id) == owner_epoch
            for batch in ([] if isinstance(batches, ProduceScan) else batches)
            if batch.queue_id not in self.led_elsewhere
        )

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None:
        queue = self.queues.get(queue_id)
        if queue is None:
            return None
        self._check_readable(queue_id)
        if leader_epoch == self.leader_epoch:
            return self.leader_epoch, queue.end
        if not 0 <= leader_epoch < self.leader_epoch:
            return -1, -1
        found: StoredBatch | None = None
        for batch in queue.batches:
            if batch.leader_epoch > leader_epoch:
                return (found.leader_epoch, batch.base_offset) if found else (leader_epoch, queue.log_start)
            found = batch
        return (found.leader_epoch, queue.end) if found else (leader_epoch, queue.log_start)

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        found: list[QueueUsage | None] = []
        for queue_id in queue_ids:
            queue = self.queues.get(queue_id)
            size = sum(len(batch.data) for batch in queue.batches) if queue else 0
            found.append(QueueUsage(size, 0) if queue else None)
        return found

    def _check_readable(self, queue_id: int) -> None:
        if queue_id in self.unreadable:
            raise MainstemError(f"queue {queue_id:#x}: a run is damaged")

    # under the test's control

    def hold(self) -> None:
        """Leave what is appended from now on uncommitted."""
        self._held = True

    def release(self) -> None:
        """Commit everything and answer everything that was held."""
        self._held = False
        self._commit()
        pending, self._pending = self._pending, []
        for future, results in pending:
            if not future.done():
                future.set_result(results)

    def lose(self, queue_id: int) -> None:
        """Another node leads a queue from now on: whoever waits for more of it is woken."""
        self.led_elsewhere.add(queue_id)
        self._wake(queue_id)

    @property
    def waiting(self) -> int:
        """How many calls of `wait` are pending."""
        return len(self._waiters)

    def wake_all(self) -> None:
        """Have all readers look again, as when a leadership changes."""
        for waiter in self._waiters:
            asyncio.get_running_loop().call_soon(waiter.wake)

    # inside

    def _wake(self, queue_id: int) -> None:
        """A queue has changed in another way than by growing."""
        for waiter in list(self._waiters):
            waiter.changed(queue_id)

    def _append(self, batch: BatchAppend) -> AppendResult:
        queue = self.queues.get(batch.queue_id)
        if queue is None:
            return AppendResult(Outcome.UNKNOWN_QUEUE)
        if self.refuse is not None:
            return AppendResult(self.refuse)
        if batch.queue_id in self.led_elsewhere:
            return AppendResult(Outcome.NOT_LEADER)
        if batch.producer_id >= 0:
            refused = self._check_sequence(queue, batch)
            if refused is not None:
                return refused
        data = bytearray(batch.data)
        struct.pack_into(">q", data, 0, queue.end)
        struct.pack_into(">i", data, 12, self.leader_epoch)
        append_time_ms = -1
        max_timestamp = batch.max_timestamp
        if batch.log_append_time:
            append_time_ms = max_timestamp = self._clock.now_ms()
            struct.pack_into(">h", data, 21, batch.attributes | 0x08)
            struct.pack_into(">q", data, 35, append_time_ms)
            struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
        stored = StoredBatch(queue.end, bytes(data), batch.last_offset_delta, max_timestamp, self.leader_epoch)
        queue.batches.append(stored)
        queue.end = stored.next_offset
        return AppendResult(Outcome.OK, stored.base_offset, append_time_ms, queue.log_start)

    def _check_sequence(self, queue: MemoryQueue, batch: BatchAppend) -> AppendResult | None:
        last_sequence = (batch.base_sequence + batch.last_offset_delta) & 0x7FFFFFFF
        state = queue.producers.get(batch.producer_id)
        if state is None or batch.producer_epoch > state.epoch:
            if batch.base_sequence != 0:
                refused = self._skipped(queue, batch.producer_id, PATIENCE if state else UNKNOWN_PATIENCE)
                if refused or state is not None:
                    return AppendResult(refused or Outcome.OUT_OF_ORDER_SEQUENCE)
            state = queue.producers[batch.producer_id] = ProducerState(batch.producer_epoch)
        elif batch.producer_epoch < state.epoch:
            return AppendResult(Outcome.STALE_PRODUCER_EPOCH)
        else:
            for first, last, offset in state.batches:
                if first == batch.base_sequence and last == last_sequence:
                    return AppendResult(Outcome.OK, offset, -1, queue.log_start)
            ahead = (batch.base_sequence - state.batches[-1][1] - 1) & 0x7FFFFFFF
            if ahead:
                refused = self._skipped(queue, batch.producer_id, PATIENCE) if ahead < 1 << 30 else None
                return AppendResult(refused or Outcome.OUT_OF_ORDER_SEQUENCE)
        state.batches.append((batch.base_sequence, last_sequence, queue.end))
        queue.skipped.pop(batch.producer_id, None)
        return None

    def _skipped(self, queue: MemoryQueue, producer_id: int, patience: int) -> Outcome | None:
        """None: patience has run out."""
        refused = queue.skipped.pop(producer_id, 0)
        if refused >= patience:
            return None
        queue.skipped[producer_id] = refused + 1
        return Outcome.SKIPPED_SEQUENCE

    def _read(self, read: QueueRead, bytes_max: int, first: bool) -> QueueSlice:
        queue = self.queues.get(read.queue_id)
        offsets = self._offsets(queue)
        if queue is None or offsets is None:
            return QueueSlice(read.queue_id, Outcome.UNKNOWN_QUEUE, [], QueueOffsets(-1, -1, -1, -1, -1))
        if read.queue_id in self.led_elsewhere:
            return QueueSlice(read.queue_id, Outcome.NOT_LEADER, [], QueueOffsets(-1, -1, -1, -1, -1))
        if not queue.log_start <= read.offset <= queue.end:
            return QueueSlice(read.queue_id, Outcome.OFFSET_OUT_OF_RANGE, [], offsets)
        room = min(bytes_max, read.bytes_max)
        found: list[StoredBatch] = []
        for batch in queue.batches:
            if batch.next_offset <= read.offset or batch.next_offset > queue.high_watermark:
                continue
            if len(batch.data) > room and not (first and not found):
                break
            found.append(batch)
            room -= len(batch.data)
        if not found:
            return QueueSlice(read.queue_id, Outcome.OK, [], offsets, None, read.offset)
        views: list[Buffer] = [memoryview(batch.data) for batch in found]
        next_offset = found[-1].next_offset
        return QueueSlice(read.queue_id, Outcome.OK, views, offsets, Tier.WRITE_CACHE, next_offset)

    def _offsets(self, queue: MemoryQueue | None) -> QueueOffsets | None:
        if queue is None:
            return None
        return QueueOffsets(
            queue.log_start,
            queue.high_watermark,
            queue.end,
            self.leader_epoch,
            min(queue.high_watermark, queue.end if queue.first_unstable is None else queue.first_unstable),
        )

    def _commit(self) -> None:
        for queue_id, queue in self.queues.items():
            if queue.high_watermark == queue.end:
                continue
            size = sum(len(b.data) for b in queue.batches if b.base_offset >= queue.high_watermark)
            queue.high_watermark = queue.end
            for waiter in self._waiters:
                waiter.committed(queue_id, queue.end, size)


class _Waiter:
    def __init__(self, ends: dict[int, int], bytes_min: int, future: PromptFuture[None]) -> None:
        self._ends = ends
        self._bytes_left = bytes_min
        self._passed = False
        self._future = future

    def committed(self, queue_id: int, high_watermark: int, size: int) -> None:
        end = self._ends.get(queue_id)
        if end is None:
            return
        self._bytes_left -= size
        self._passed = self._passed or high_watermark > end
        if self._passed and self._bytes_left <= 0:
            asyncio.get_running_loop().call_soon(self.wake)

    def changed(self, queue_id: int) -> None:
        if queue_id in self._ends:
            asyncio.get_running_loop().call_soon(self.wake)

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def record_timestamps(data: bytes) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each record of an uncompressed batch; of a compressed one, its last offset
    with the batch's largest timestamp."""
    base_offset, attributes, delta, base_time, max_time, count = _HEAD.unpack_from(data)
    if attributes & 0x08 or attributes & 0x07:
        yield base_offset + (0 if attributes & 0x08 else delta), max_time
        return
    position = 61
    for _ in range(count):
        length, position = _varint(data, position)
        following = position + length
        time_delta, position = _varint(data, position + 1)
        offset_delta, position = _varint(data, position)
        yield base_offset + offset_delta, base_time + time_delta
        position = following


_HEAD = struct.Struct(">q13xhiqq14xi")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return raw >> 1 ^ -(raw & 1), position
