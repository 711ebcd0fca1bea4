"""A `ports.MessageStore` whose calls cross a wire: what goes in and what comes back is plain data, and nothing else.

Each call is encoded, decoded, made at the store behind, and its answer comes back the same way, batches attached as
bytes of their own. A store that a broker reaches over rpc could do no more: what works here needs no object of the
other side. A plan stays with the broker. Its wishes cross, many queues in one message, and the answers are put into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from mainstem.model import (
    AppendResult,
    AppendTransaction,
    BatchAppend,
    Outcome,
    QueueOffsets,
    QueueRead,
    QueueSlice,
    Tier,
    TimestampOffset,
    WantedReads,
)
from mainstem.ports import MessageStore, ReadPlan
from mainstem.prompt_future import PromptFuture

T = TypeVar("T")

READS_PER_MESSAGE = 500
"""Reads of a plan that cross together."""


class WiredBatch(msgspec.Struct, frozen=True):
    """`BatchAppend`, its data attached."""

    queue_id: int
    record_count: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    crc: int
    log_append_time: bool


class WiredSlice(msgspec.Struct, frozen=True):
    """`QueueSlice`, its batches attached."""

    queue_id: int
    outcome: Outcome
    sizes: list[int]
    offsets: QueueOffsets
    tier: Tier | None
    next_offset: int


class WiredStore:
    """The store `behind`, from the other end of a wire. `crossed` counts the bytes of messages, without attachments."""

    def __init__(self, behind: MessageStore) -> None:
        self._behind = behind
        self.crossed = 0

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        owner_epoch: int | None = None,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        attached = b"".join(bytes(batch.data) for batch in batches)
        fields = [(len(batch.data), WiredBatch(batch.queue_id, *batch[2:])) for batch in batches]
        copies = dict(copies_min) if isinstance(copies_min, Mapping) else copies_min
        arrived, acks, copies, owner = self._over(
            (fields, acks, copies, owner_epoch),
            tuple[list[tuple[int, WiredBatch]], int, int | dict[int, int], int | None],
        )
        there, start = [], 0
        for size, batch in arrived:
            queue_id, *rest = msgspec.structs.astuple(batch)
            there.append(BatchAppend(queue_id, memoryview(attached)[start : start + size], *rest))
            start += size
        appended = self._behind.append(there, acks, copies_min=copies, owner_epoch=owner)
        return self._back(appended, list[AppendResult])

    def read_at_once(self, plan: ReadPlan) -> None:
        """Memory at the other end of a wire answers nothing at once."""

    async def read(
        self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int, *, whole_first: bool = True
    ) -> list[QueueSlice]:
        if isinstance(reads, Sequence):
            return await self._read(WantedReads(tuple(reads), bytes_max, whole_first))
        begun = reads.round
        while reads.round == begun and (wanted := reads.wanted(READS_PER_MESSAGE, bytes_max)).reads:
            for found in await self._read(wanted):
                if reads.round == begun:
                    reads.put(found)
        return []

    async def _read(self, wanted: WantedReads) -> list[QueueSlice]:
        asked = self._over(wanted, WantedReads)
        found = await self._behind.read(asked.reads, asked.bytes_max, whole_first=asked.whole_first)
        attached = b"".join(bytes(batch) for one in found for batch in one.batches)
        answers = [
            WiredSlice(one.queue_id, one.outcome, list(map(len, one.batches)), one.offsets, one.tier, one.next_offset)
            for one in found
        ]
        slices, start = [], 0
        for answer in self._over(answers, list[WiredSlice]):
            batches = []
            for size in answer.sizes:
                batches.append(attached[start : start + size])
                start += size
            slices.append(
                QueueSlice(
                    answer.queue_id, answer.outcome, list(batches), answer.offsets, answer.tier, answer.next_offset
                )
            )
        return slices

    def offsets(self, queue_ids: Sequence[int], *, lately: bool = False) -> PromptFuture[list[QueueOffsets | None]]:
        return self._back(
            self._behind.offsets(self._over(list(queue_ids), list[int]), lately=lately), list[QueueOffsets | None]
        )

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        asked = self._over((queue_id, timestamp), tuple[int, int])
        found: TimestampOffset | None = self._over(
            await self._behind.offset_for_timestamp(*asked), TimestampOffset | None
        )
        return found

    def wait(self, queues: ReadPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float) -> PromptFuture[None]:
        ends = queues if isinstance(queues, Mapping) else queues.ends()
        asked = self._over((dict(ends), bytes_min, timeout_seconds), tuple[dict[int, int], int, float])
        waiting = self._behind.wait(*asked)
        answered = self._back(waiting, None)
        answered.add_done_callback(lambda answer: waiting.cancel() if answer.cancelled() else None)
        return answered

    # --- the wire -----------------------------------------------------------------------------------------

    def _over(self, content: object, shape: Any) -> Any:
        """The message that arrives at the other end."""
        encoded = msgspec.msgpack.encode(content)
        self.crossed += len(encoded)
        return msgspec.msgpack.decode(encoded, type=shape)

    def _back(self, there: PromptFuture[T], shape: Any) -> PromptFuture[T]:
        """The answer, once it has come back."""
        here: PromptFuture[T] = PromptFuture()

        def answered(there: PromptFuture[T]) -> None:
            if here.done() or there.cancelled():
                here.cancel()
            elif (error := there.exception()) is not None:
                here.set_exception(error)
            else:
                here.set_result(self._over(there.result(), shape))

        there.add_done_callback(answered)
        return here
