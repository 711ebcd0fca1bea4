"""The actions of clients on a simulated node, each action checked against the oracles."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.node import SimulatedNode
from tests.simulation.oracle import PATIENCE, UNKNOWN_PATIENCE, QueueOracle, require

from mainstem.errors import MainstemError
from mainstem.model import AppendResult, BatchAppend, Outcome, QueueRead, TimestampType
from mainstem.protocol.records import NewRecord, build_batch, find_timestamp, read_records
from mainstem.protocol.records import StoredBatch as Stored

PATIENCE_SECONDS = 300.0
"""An answer that has not come by then never will."""

READ_BYTES = (0, 1, 500, 5000, 1 << 20)


class Clients:
    """Producers, readers and administrators of one run."""

    def __init__(self, node: SimulatedNode, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self._values = 0

    def _queue(self) -> QueueOracle | None:
        return self.rng.choice(list(self.node.queues.values())) if self.node.queues else None

    # --- produce ------------------------------------------------------------------------------------------

    async def produce(self) -> None:
        """One request of a few batches; fresh ones, repeated ones, and some that must be refused."""
        rng, node = self.rng, self.node
        batches = [self._batch() for _ in range(rng.choice([1, 1, 2, 5, 12]))]
        if rng.random() < 0.05:  # one that must be refused is, until patience with it has run out
            batches += [self._batch(skips=True)] * rng.choice([UNKNOWN_PATIENCE, PATIENCE, PATIENCE + 1])
        acks = rng.choice([0, 1, -1, -1])
        future = node.storage.messages.append(batches, acks)
        expected = [self.expected(batch) for batch in batches]
        async with asyncio.timeout(PATIENCE_SECONDS):
            results = await future
        for batch, result, right in zip(batches, results, expected, strict=True):
            queue = node.queues.get(batch.queue_id)
            require(
                result._replace(log_start_offset=-1) == right,
                f"queue {batch.queue_id:#x}: append answered {result}, not {right}",
                self.broken_by(result, right),
            )
            if result.outcome is Outcome.OK and acks and queue is not None and node.settings.synced:
                queue.promised_end = max(queue.promised_end, result.base_offset + batch.record_count)

    def broken_by(self, result: AppendResult, right: AppendResult) -> str:
        """The letter of the invariant that another answer than the right one breaks; empty: none for certain."""
        return ""

    def expected(self, batch: BatchAppend) -> AppendResult:
        node = self.node
        if len(batch.data) > node.settings.journal.block_bytes_max - 152:
            return AppendResult(Outcome.TOO_LARGE)
        queue = node.queues.get(batch.queue_id)
        if queue is None:
            return AppendResult(Outcome.UNKNOWN_QUEUE)
        return self.taken(queue, batch)

    def taken(self, queue: QueueOracle, batch: BatchAppend) -> AppendResult:
        """The answer to a batch for a queue that exists."""
        node = self.node
        group = node.storage.groups[node.storage.group_of(batch.queue_id)]
        return queue.append(batch, group.term, node.loop.now_ms())

    def _batch(self, *, skips: bool = False) -> BatchAppend:
        """`skips`: of a producer, with sequence numbers left out before it."""
        rng = self.rng
        queue = self._queue()
        if queue is None or rng.random() < 0.02:
            return self._new_batch(999 << 32, TimestampType.CREATE_TIME, (-1, -1, -1), 1)
        kind = queue.settings.message_timestamp_type
        if not skips and rng.random() < 0.5:
            return self._new_batch(queue.queue_id, kind, (-1, -1, -1), rng.randint(1, 4))
        producer_id = rng.randint(1, 3)
        seen = [kept for kept in queue.batches if kept.producer is not None and kept.producer[0] == producer_id]
        count = rng.randint(1, 4)
        if not seen:
            first = 3 if skips or rng.random() < 0.1 else 0
            return self._new_batch(queue.queue_id, kind, (producer_id, 0, first), count)
        choice = 0.38 if skips else rng.random()
        if choice < 0.3:
            again = rng.choice(seen[-7:])
            assert again.producer is not None
            return self._new_batch(queue.queue_id, kind, again.producer, again.end - again.base_offset)
        newest = seen[-1].producer
        assert newest is not None
        following = newest[2] + seen[-1].end - seen[-1].base_offset
        if choice < 0.35:
            bumped = (producer_id, newest[1] + 1, rng.choice([0, 0, 1]))
            return self._new_batch(queue.queue_id, kind, bumped, count)
        gap = 1 if choice < 0.4 else 0
        return self._new_batch(queue.queue_id, kind, (producer_id, newest[1], following + gap), count)

    def _new_batch(self, queue_id: int, kind: TimestampType, producer: tuple[int, int, int], count: int) -> BatchAppend:
        rng, now_ms = self.rng, self.node.loop.now_ms()
        records = []
        for _ in range(count):
            self._values += 1
            size = rng.choice([0, 10, 100, 1000, 3000])
            if rng.random() < 0.003:
                size = self.node.settings.journal.segment_bytes
            timestamp = max(0, now_ms - rng.choice([0, 0, 1000, 30_000]))
            records.append(NewRecord(timestamp, None, b"%d " % self._values + bytes(size)))
        new = build_batch(records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])
        return new.to_append(queue_id, log_append_time=kind is TimestampType.LOG_APPEND_TIME)

    # --- read ---------------------------------------------------------------------------------------------

    async def fetch(self) -> None:
        """One request for a few queues, anywhere in them."""
        rng, node = self.rng, self.node
        chosen = rng.sample(list(node.queues.values()), min(len(node.queues), rng.randint(1, 3)))
        before = [node.offsets(queue) for queue in chosen]
        reads = []
        for queue, offsets in zip(chosen, before, strict=True):
            offset = rng.randint(max(0, offsets.log_start - 2), offsets.end + 2)
            reads.append(QueueRead(queue.queue_id, offset, rng.choice(READ_BYTES)))
        bytes_max = rng.choice([1, 2000, 1 << 20])
        slices = await node.storage.messages.read(reads, bytes_max)
        whole_first = True
        for queue, read, found, offsets in zip(chosen, reads, slices, before, strict=True):
            if queue.queue_id not in node.queues:
                whole_first = whole_first and not found.batches
                continue
            queue.check_read(read, found, log_start=offsets.log_start, end=offsets.end)
            limit = min(read.bytes_max, bytes_max)
            if found.batches:
                size = sum(map(len, found.batches))
                require(size <= limit or (whole_first and len(found.batches) == 1), f"{size} bytes, not {limit}")
                whole_first = False
            elif found.outcome is Outcome.OK and whole_first:
                high_watermark = found.offsets.high_watermark
                require(read.offset >= high_watermark, f"nothing at {read.offset} of {high_watermark}")
            if node.settings.synced and found.batches:
                queue.promised_end = max(queue.promised_end, found.next_offset)

    async def follow(self) -> None:
        """Read a queue from its log start to its end, as a consumer does."""
        queue = self._queue()
        if queue is not None:
            await self.read_all(queue)

    async def read_all(self, queue: QueueOracle) -> None:
        """Every record from the log start to the high watermark, each once."""
        node, rng = self.node, self.rng
        offset = node.offsets(queue).log_start
        while queue.queue_id in node.queues:
            before = node.offsets(queue)
            if offset >= before.high_watermark:
                return
            read = QueueRead(queue.queue_id, offset, rng.choice(READ_BYTES))
            (found,) = await node.storage.messages.read([read], 1 << 20)
            if queue.queue_id not in node.queues:
                return
            queue.check_read(read, found, log_start=before.log_start, end=before.end)
            if found.outcome is Outcome.OFFSET_OUT_OF_RANGE:
                offset = found.offsets.log_start
            else:
                require(bool(found.batches), f"nothing at {offset} of {before}")
                offset = found.next_offset

    async def poll(self) -> None:
        """Wait at the end of a queue, or somewhere before it."""
        queue = self._queue()
        if queue is None:
            return
        node, rng = self.node, self.rng
        offsets = node.offsets(queue)
        end = max(0, offsets.high_watermark - rng.choice([0, 0, 1]))
        timeout = rng.choice([0.0, 0.1, 3.0])
        began = node.loop.time()
        await node.storage.messages.wait({queue.queue_id: end}, rng.choice([0, 1, 2000]), timeout)
        waited = node.loop.time() - began
        require(waited <= timeout + 0.001, f"waited {waited} s instead of {timeout}")
        if queue.queue_id in node.queues and waited < timeout - 0.001:
            after = node.offsets(queue)
            require(
                after.high_watermark > end or after.log_start > offsets.log_start,
                f"woken at {waited} of {timeout} s without a reason: {after}",
            )

    # --- look up ------------------------------------------------------------------------------------------

    async def look_up(self) -> None:
        """Offsets by timestamp and by leader epoch."""
        queue = self._queue()
        if queue is None:
            return
        node = self.node
        before = node.offsets(queue)
        within = [kept for kept in queue.batches if before.log_start < kept.end <= before.high_watermark]
        if not within:
            return
        timestamp = self.rng.choice(within).max_timestamp + self.rng.choice([-1, 0, 1])
        right = find_timestamp([stored(kept.data) for kept in within], timestamp, before.log_start)
        found = await node.storage.messages.offset_for_timestamp(queue.queue_id, timestamp)
        if queue.queue_id not in node.queues:
            return
        if node.offsets(queue).log_start == before.log_start:
            what = f"queue {queue.queue_id:#x}: {timestamp} is at {right}, not {found}"
            if right is None:
                require(found is None or found.offset >= before.high_watermark, what)
            else:
                require(found is not None and found[:2] == right, what)
        elif found is not None:
            require(found.timestamp >= timestamp, f"{found} is older than {timestamp}")
        await self._look_up_epoch(queue)

    async def _look_up_epoch(self, queue: QueueOracle) -> None:
        node = self.node
        group = node.storage.groups[node.storage.group_of(queue.queue_id)]
        epoch = self.rng.randint(0, group.term)
        before = node.offsets(queue)
        found = await node.storage.queues.epoch_end(queue.queue_id, epoch)
        if queue.queue_id not in node.queues or node.offsets(queue).log_start != before.log_start:
            return
        if epoch < group.term:
            right = queue.epoch_end(epoch, before.log_start, before.high_watermark)
            require(found == right, f"queue {queue.queue_id:#x}: epoch {epoch} ends at {found}, not {right}")
        else:
            require(found is not None and found[1] >= before.end, f"the current epoch ends at {found}")

    # --- administration -----------------------------------------------------------------------------------

    async def truncate(self) -> None:
        """DeleteRecords."""
        queue = self._queue()
        if queue is None:
            return
        node, rng = self.node, self.rng
        before = node.offsets(queue)
        offset = rng.choice([-1, rng.randint(0, before.high_watermark + 1), rng.randint(0, before.high_watermark)])
        wanted = before.high_watermark if offset == -1 else offset
        if wanted <= before.high_watermark:
            queue.truncated_to = max(queue.truncated_to, wanted)
        answer = await self.truncated(queue.queue_id, offset)
        if queue.queue_id not in node.queues:
            return
        if wanted > before.high_watermark:
            require(answer is None, f"truncated to {offset} of {before}: {answer}")
        else:
            require(answer == max(wanted, before.log_start), f"truncated to {offset} of {before}: {answer}")
            require(node.offsets(queue).log_start >= wanted, f"log start is not {wanted}")
            queue.log_start = max(queue.log_start, wanted)
            queue.promised_end = max(queue.promised_end, wanted)

    async def truncated(self, queue_id: int, offset: int) -> int | MainstemError | None:
        return (await self.node.storage.queues.truncate({queue_id: offset}))[queue_id]

    async def create_topic(self) -> None:
        if len(self.node.metadata.topics) < 4:
            await self.node.create(self.node.metadata.create())

    async def delete_topic(self) -> None:
        node = self.node
        if len(node.metadata.topics) > 1 and not node.metadata.hidden:
            number = self.rng.choice(list(node.metadata.topics))
            node.forget(number)
            await self.deleted(number)

    async def deleted(self, number: int) -> None:
        await self.node.storage.queues.delete([number])

    async def usage(self) -> None:
        node = self.node
        queue_ids = list(node.queues)
        answers = await node.storage.queues.usage([*queue_ids, 999 << 32])
        require(answers[-1] is None, "an unknown queue has no bytes")
        for queue_id, answer in zip(queue_ids, answers, strict=False):
            queue = node.queues.get(queue_id)
            if queue is not None and answer is not None:
                size = sum(len(kept.data) for kept in queue.batches)
                require(0 <= answer.unsplit_bytes <= size, f"{answer} of {size} bytes ever appended")


def stored(data: bytes) -> Stored:
    batch = Stored.parse(data)
    assert list(read_records(batch)), "a batch of the oracle can be decoded"
    return batch
