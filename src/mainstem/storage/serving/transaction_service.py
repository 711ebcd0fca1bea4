"""Answers what other nodes ask about transactions in the write groups that this node leads, by its own storage."""

from __future__ import annotations

from mainstem.model import AbortedRange, Outcome
from mainstem.ports import CommittedReads, MessageStore, QueueLeadership, TransactionMarkers
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
from mainstem.rpc.messages.transactions import (
    ABORTED,
    PRODUCERS,
    WRITE_MARKERS,
    AbortedTold,
    AskAborted,
    AskProducers,
    MarkersWritten,
    ProducersTold,
    QueueProducers,
    RecordsGone,
    WriteMarkers,
)
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import RecordsDeleted


class TransactionService:
    def __init__(
        self,
        markers: TransactionMarkers,
        committed: CommittedReads,
        messages: MessageStore,
        leadership: QueueLeadership,
    ) -> None:
        self._markers = markers
        self._messages = messages
        self._committed = committed
        self._leadership = leadership

    def register(self, handlers: Handlers) -> None:
        handlers.unary(WRITE_MARKERS, self._write)
        handlers.unary(PRODUCERS, self._producers)
        handlers.unary(ABORTED, self._aborted)

    async def _write(self, call: RpcCall[WriteMarkers]) -> Reply[MarkersWritten]:
        return Reply(MarkersWritten(await self._markers.write(call.request.markers)))

    async def _producers(self, call: RpcCall[AskProducers]) -> Reply[ProducersTold]:
        told = await self._markers.producers(call.request.queue_ids)
        return Reply(
            ProducersTold(
                [
                    QueueProducers(found) if isinstance(found, Outcome) else QueueProducers(Outcome.OK, found)
                    for found in told
                ]
            )
        )

    async def _aborted(self, call: RpcCall[AskAborted]) -> Reply[AbortedTold]:
        """Tell which transactions were aborted. A leader that is deposed, and does not know it yet, may have what was
        read of a queue by the next one, and lack how that ended: then it refuses, as one that does not lead."""
        ranges = call.request.ranges
        offsets = await self._messages.offsets([queue_id for queue_id, _, _ in ranges])
        for (queue_id, _, end), known in zip(ranges, offsets, strict=True):
            group = self._leadership.group_of(queue_id)
            if not self._leadership.leads(group):
                raise WriteGroupsNotLed(f"write group {group} of queue {queue_id:#x} is not led here")
            if known is not None and known.last_stable < end:
                raise WriteGroupsNotLed(
                    f"queue {queue_id:#x} is read to {end}, and stable here to {known.last_stable}: "
                    f"another node leads write group {group}"
                )
        told: list[list[AbortedRange]] = []
        untold: list[tuple[int, str]] = []
        for place, found in enumerate(await self._committed.aborted(ranges)):
            if isinstance(found, list):
                told.append(found)
            elif call.request.reads_untold:
                told.append([])
                untold.append((place, str(found)))
            elif isinstance(found, RecordsDeleted):
                raise RecordsGone(str(found)) from found
            else:
                raise found
        return Reply(AbortedTold(told, untold))
