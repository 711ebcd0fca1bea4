"""Answers what brokers without storage ask of the write groups that this node leads, by the node's own store.

Each answer is that of the local store. A node that does not lead refuses, before anything is done, so that the broker
may ask the leader without harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from mainstem.errors import LeaderMissing
from mainstem.model import AppendResult, BatchAppend, Buffer, Outcome, QueueOffsets, QueueRead, QueueSlice
from mainstem.ports import ForwardedClients, MessageStore, QueueAdmin, QueueLeadership, UnknownClients
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.brokers import (
    APPEND,
    EPOCH_END,
    MEMORY,
    OFFSETS,
    OWN,
    READ,
    TIMESTAMP,
    TRUNCATE,
    USAGE,
    AppendBatches,
    AppendPart,
    AskEpochEnd,
    AskOffsets,
    AskOwnership,
    AskTimestamp,
    AskTruncation,
    BatchesAppended,
    EpochEndTold,
    OffsetsTold,
    Owned,
    OwnershipRefused,
    QueuesRead,
    ReadQueues,
    SliceRead,
    TimestampTold,
    Truncated,
    UsageTold,
)
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
from mainstem.rpc.messages.forwarded import client_of
from mainstem.rpc.wire.method import DONE, Nothing, Reply
from mainstem.storage.errors import StorageError

READ_BYTES_MAX = 8 * 1024 * 1024
"""Batches in one answer, unless a single one is larger: half of a frame."""

MEMORY_CHECK_SECONDS = 0.002
"""Between two looks whether the journal still lacks memory, as often as the node looks for its own producers
(`turns_at_the_door.py`)."""

NO_OFFSETS = QueueOffsets(-1, -1, -1, -1, -1)


class AppendLeadership(QueueLeadership, Protocol):
    """The leaders of write groups, as one of them knows whether it takes batches."""

    def takes(self, group: int) -> bool: ...

    async def elected(self, group: int) -> None: ...


class _Turn:
    """The appends to one write group that wait, in the order in which they came."""

    __slots__ = ("lock", "waiting")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


class _Appending(PromptFuture[Reply[BatchesAppended]]):
    """The answer to an append: settled when the last of its parts is."""

    __slots__ = ("_lacks_memory", "_left", "_parts", "waits")

    def __init__(self, count: int, lacks_memory: Callable[[], bool]) -> None:
        super().__init__()
        self._parts: list[list[AppendResult]] = [[]] * count
        self._left = count + 1
        """Parts that are not settled; one more until all have begun."""
        self._lacks_memory = lacks_memory
        self.waits: list[tuple[int, int]] = []
        """Parts whose clients are to wait, and for how many ms."""

    def appended(self, number: int, appended: PromptFuture[list[AppendResult]]) -> None:
        if self.done():  # the broker waits no longer, or another part has failed
            return
        if appended.cancelled():
            self.cancel()
        elif (error := appended.exception()) is not None:
            self.set_exception(error)
        else:
            self.settle(number, list(appended.result()))

    def settle(self, number: int, results: list[AppendResult]) -> None:
        self._parts[number] = results
        self.one_settled()

    def one_settled(self) -> None:
        self._left -= 1
        if not self._left and not self.done():
            self.set_result(Reply(BatchesAppended(self._parts, self._lacks_memory(), self.waits)))


class BrokerService:
    """The handlers of all calls but those about tails (`tail_sessions.py`)."""

    def __init__(
        self,
        messages: MessageStore,
        queues: QueueAdmin,
        leadership: AppendLeadership,
        clients: ForwardedClients | None = None,
        *,
        lacks_memory: Callable[[], bool],
        metadata_index: Callable[[], int] = lambda: 0,
    ) -> None:
        """`clients`: what is done about those for whom brokers ask; None: nothing. `lacks_memory`: whether producers
        that can wait had better do so (`Journal.lacks_memory`). `metadata_index`: the last entry of the metadata that
        this node has applied; 0: brokers need not wait for it."""
        self._metadata_index = metadata_index
        self._messages = messages
        self._queues = queues
        self._leadership = leadership
        self._clients = clients or UnknownClients()
        self._lacks_memory = lacks_memory
        self._turns: dict[int, _Turn] = {}
        """Write groups that this node was elected to lead just now, while appends wait for it."""

    def register(self, handlers: Handlers) -> None:
        handlers.unary(APPEND, self._append, self._begin_append)
        handlers.unary(MEMORY, self._memory)
        handlers.unary(READ, self._read)
        handlers.unary(OFFSETS, self._offsets)
        handlers.unary(TIMESTAMP, self._timestamp)
        handlers.unary(TRUNCATE, self._truncate)
        handlers.unary(OWN, self._own)
        handlers.unary(EPOCH_END, self._epoch_end)
        handlers.unary(USAGE, self._usage)

    # --- append -------------------------------------------------------------------------------------------

    def _begin_append(self, call: RpcCall[AppendBatches]) -> PromptFuture[Reply[BatchesAppended]] | None:
        """Append all parts within one turn of the event loop, in the order in which the broker's messages come, and
        answer when the last of them is as durable as it asks for. None: appends to the write group wait here."""
        group = call.request.group
        if group in self._turns or not self._leadership.takes(group):
            return None
        return self._begun(call)

    async def _append(self, call: RpcCall[AppendBatches]) -> Reply[BatchesAppended]:
        """Append all parts when this node leads the write group and what came before is appended."""
        group = call.request.group
        turn = self._turns.setdefault(group, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                await self._leadership.elected(group)
                begun = self._begun(call)
        finally:
            turn.waiting -= 1
            if not turn.waiting and self._turns.get(group) is turn:
                del self._turns[group]
        return await begun

    def _begun(self, call: RpcCall[AppendBatches]) -> PromptFuture[Reply[BatchesAppended]]:
        """Append all parts. Raises `WriteGroupsNotLed` before anything is appended."""
        request, attachment = call.request, memoryview(call.attachment)
        if not self._leadership.takes(request.group):
            raise WriteGroupsNotLed(f"write group {request.group} is not led here")
        in_sync = len(self._leadership.replicas(request.group).in_sync)
        answer = _Appending(len(request.parts), self._lacks_memory)
        position = 0
        for number, part in enumerate(request.parts):
            start = position
            batches, position = _batches_of(part, attachment, position)
            client = client_of(part.client)
            if client is not None and (refusal := self._clients.refusal(client)) is not None:
                answer.settle(number, [AppendResult(Outcome.STORAGE_BUSY, message=refusal)] * len(batches))
                continue
            if part.copies_min > in_sync:
                answer.settle(number, [AppendResult(Outcome.STORAGE_BUSY)] * len(batches))
                continue
            if client is not None and (seconds := self._clients.brought(client, position - start)):
                answer.waits.append((number, max(1, round(1000 * seconds))))
            appended = self._messages.append(
                batches,
                part.acks,
                copies_min=part.copies_min,
                owner_epoch=part.owner_epoch,
                transaction=part.transaction,
            )
            appended.add_done_callback(partial(answer.appended, number))
        answer.one_settled()
        return answer

    async def _memory(self, call: RpcCall[Nothing]) -> Reply[Nothing]:
        while self._lacks_memory():  # noqa: ASYNC110  # the journal tells nobody
            await asyncio.sleep(MEMORY_CHECK_SECONDS)
        return DONE

    # --- read ---------------------------------------------------------------------------------------------

    async def _read(self, call: RpcCall[ReadQueues]) -> Reply[QueuesRead]:
        request, client = call.request, client_of(call.request.client)
        if client is not None and self._clients.refusal(client) is not None:
            # as where another node leads: a client looks for brokers anew, and tries again
            return told([_not_led(read) for read in request.reads])
        led = [read for read in request.reads if self._leads(read.queue_id)]
        bytes_max = min(request.bytes_max, READ_BYTES_MAX)
        found = iter(await self._messages.read(led, bytes_max, whole_first=request.whole_first))
        here = set(led)
        slices = [next(found) if read in here else _not_led(read) for read in request.reads]
        if client is not None:
            self._clients.took(client, sum(len(batch) for one in slices for batch in one.batches))
        return told(slices)

    async def _offsets(self, call: RpcCall[AskOffsets]) -> Reply[OffsetsTold]:
        self._check(call.request.queue_ids)
        return Reply(OffsetsTold(await self._messages.offsets(call.request.queue_ids)))

    async def _timestamp(self, call: RpcCall[AskTimestamp]) -> Reply[TimestampTold]:
        queue_id, timestamp = call.request.queue_id, call.request.timestamp
        self._check([queue_id])
        return Reply(TimestampTold(await self._messages.offset_for_timestamp(queue_id, timestamp)))

    # --- queues -------------------------------------------------------------------------------------------

    async def _truncate(self, call: RpcCall[AskTruncation]) -> Reply[Truncated]:
        self._check(call.request.before)
        client = client_of(call.request.client)
        if client is not None:
            refusal = self._clients.refusal(client)
            assert call.node is not None, "the method is for nodes only"
            self._clients.changed(client, call.node.node_id, "DeleteRecords", refusal)
            if refusal is not None:
                return Reply(Truncated({}, dict.fromkeys(call.request.before, refusal)))
        answers = await self._queues.truncate(call.request.before)
        return Reply(
            Truncated(
                {queue_id: start for queue_id, start in answers.items() if start is None or isinstance(start, int)},
                {queue_id: str(error) for queue_id, error in answers.items() if isinstance(error, Exception)},
            )
        )

    async def _own(self, call: RpcCall[AskOwnership]) -> Reply[Owned]:
        try:
            epoch = await self._queues.own(call.request.queue_id, held=call.request.held)
            return Reply(Owned(epoch, self._metadata_index()))
        except LeaderMissing as error:
            raise WriteGroupsNotLed(str(error)) from error
        except StorageError as error:
            raise OwnershipRefused(str(error)) from error

    async def _epoch_end(self, call: RpcCall[AskEpochEnd]) -> Reply[EpochEndTold]:
        self._check([call.request.queue_id])
        return Reply(EpochEndTold(await self._queues.epoch_end(call.request.queue_id, call.request.leader_epoch)))

    async def _usage(self, call: RpcCall[AskOffsets]) -> Reply[UsageTold]:
        self._check(call.request.queue_ids)
        return Reply(UsageTold(await self._queues.usage(call.request.queue_ids)))

    # --- who leads ----------------------------------------------------------------------------------------

    def _leads(self, queue_id: int) -> bool:
        return self._leadership.serves_here(queue_id)

    def _check(self, queue_ids: Iterable[int]) -> None:
        """Raises `WriteGroupsNotLed`."""
        for queue_id in queue_ids:
            if not self._leads(queue_id):
                group = self._leadership.group_of(queue_id)
                raise WriteGroupsNotLed(f"write group {group} of queue {queue_id:#x} is not led here")


def _batches_of(part: AppendPart, attachment: memoryview, position: int) -> tuple[list[BatchAppend], int]:
    """The batches of a part, whose bytes stand in the attachment from `position` on; and where they end."""
    batches = []
    for batch in part.batches:
        data = attachment[position : position + batch.size]
        position += batch.size
        batches.append(
            BatchAppend(
                batch.queue_id, data, batch.record_count, batch.last_offset_delta, batch.max_timestamp,
                batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.attributes, batch.crc,
                batch.log_append_time,
            )
        )  # fmt: skip
    return batches, position


def _not_led(read: QueueRead) -> QueueSlice:
    return QueueSlice(read.queue_id, Outcome.NOT_LEADER, [], NO_OFFSETS)


def told(slices: Sequence[QueueSlice]) -> Reply[QueuesRead]:
    """An answer with slices: what is said of them, and their batches attached."""
    attached: list[Buffer] = [batch for found in slices for batch in found.batches]
    return Reply(QueuesRead(list(map(slice_read, slices))), attached)


def slice_read(found: QueueSlice) -> SliceRead:
    sizes = list(map(len, found.batches))
    return SliceRead(found.queue_id, found.outcome, sizes, found.offsets, found.tier, found.next_offset)
