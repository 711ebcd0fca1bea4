"""Markers of transactions for the queues that this node leads, and what these queues know of their producers.

A marker is a control batch like Kafka's, appended as any other batch and answered when it is committed. It is written
again without harm: one that ends nothing that is open says in its row that it has no transaction, and one that repeats
the producer's last marker is not written at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy

from mainstem.errors import MainstemError
from mainstem.kernel import NEXT_OFFSET, NO_SLOT, QueueTable
from mainstem.kernel.pure.producer_states import COLD_EPOCH
from mainstem.model import ActiveProducer, AppendResult, BatchAppend, Outcome, TransactionMarker
from mainstem.ports import Clock
from mainstem.prompt_future import PromptFuture
from mainstem.protocol.records import ControlType, build_control_batch
from mainstem.storage.journal.encoding.transaction_rows import DISTANCE_MAX, marker_row
from mainstem.storage.state.producers.awaited_producers import AwaitedProducers
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.write_groups.write_group import WriteGroup

ACKS_ALL = -1

READS_MAX = 3
"""Times a producer is read into memory for a marker before it is given up: it is let go of again only while thousands
of others come."""


class AppendsMarkers(Protocol):
    """The part of the node's own `MessageStore` that markers take."""

    def append(self, batches: Sequence[BatchAppend], acks: int) -> PromptFuture[list[AppendResult]]: ...


class LocalTransactionMarkers:
    """`ports.TransactionMarkers` for the write groups that this node leads."""

    def __init__(
        self,
        groups: Sequence[WriteGroup],
        group_of: Callable[[int], int],
        table: QueueTable,
        messages: AppendsMarkers,
        awaited: AwaitedProducers,
        producers: ColdProducers,
        clock: Clock,
        enabled: Callable[[], bool],
    ) -> None:
        self._groups = groups
        self._group_of = group_of
        self._table = table
        self._messages = messages
        self._awaited = awaited
        self._producers = producers
        self._clock = clock
        self._enabled = enabled

    # --- markers ------------------------------------------------------------------------------------------

    async def write(self, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        if not self._enabled():
            return [Outcome.INVALID_TXN_STATE] * len(markers)
        outcomes: list[Outcome | PromptFuture[list[AppendResult]]] = []
        cold: list[int] = []
        for place, marker in enumerate(markers):
            outcomes.append(self._begin(marker))
            if outcomes[-1] is Outcome.COLD_PRODUCER:
                cold.append(place)
        for _ in range(READS_MAX):
            if not cold:
                break
            await self._read([markers[place] for place in cold])
            for place in cold:
                outcomes[place] = self._begin(markers[place])
            cold = [place for place in cold if outcomes[place] is Outcome.COLD_PRODUCER]
        for place in cold:
            outcomes[place] = Outcome.STORAGE_BUSY
        return [begun if isinstance(begun, Outcome) else (await begun)[0].outcome for begun in outcomes]

    def _begin(self, marker: TransactionMarker) -> Outcome | PromptFuture[list[AppendResult]]:
        """Append a marker, within this turn of the event loop; or why it is not appended."""
        group = self._groups[self._group_of(marker.queue_id)]
        if not group.serving:
            return Outcome.NOT_LEADER
        slot = self._table.find(marker.queue_id)
        if slot == NO_SLOT:
            return Outcome.UNKNOWN_QUEUE
        queue_id, producer_id = marker.queue_id, marker.producer_id
        epoch = group.producers.epoch_of(queue_id, producer_id)
        if epoch == COLD_EPOCH:
            return Outcome.COLD_PRODUCER
        if marker.producer_epoch < epoch:
            return Outcome.STALE_PRODUCER_EPOCH
        transactions = group.transactions
        coordinator_epoch = transactions.coordinator_epoch(queue_id, producer_id)
        if marker.coordinator_epoch < coordinator_epoch:
            return Outcome.TRANSACTION_COORDINATOR_FENCED
        transactions.void_verification(queue_id, producer_id)  # its answer may be older than this marker
        known = transactions.open_of(queue_id, producer_id)
        repeated = (epoch, coordinator_epoch) == (marker.producer_epoch, marker.coordinator_epoch)
        if known is None and repeated and not transactions.is_ahead(queue_id, producer_id):
            return Outcome.OK
        offset = self._table.get(slot, NEXT_OFFSET)
        first = -1 if known is None else known.first_offset
        if known is not None and offset - first > DISTANCE_MAX:
            raise AssertionError(f"a transaction of queue {queue_id:#x} began at {first}, {offset - first} offsets ago")
        row = marker_row(
            offset,
            first,
            transactions.stable_without(queue_id, producer_id, offset + 1),
            committed=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
        )
        batch = build_control_batch(
            ControlType.COMMIT if marker.commit else ControlType.ABORT,
            timestamp=self._clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
        ).to_append(queue_id)
        return self._messages.append([batch._replace(**row._asdict())], ACKS_ALL)

    async def _read(self, markers: Sequence[TransactionMarker]) -> None:
        """Read the producers of markers into memory."""
        read: asyncio.Future[Mapping[tuple[int, int, int], Outcome]] = asyncio.get_running_loop().create_future()
        self._awaited.asked += [
            (self._group_of(marker.queue_id), marker.queue_id, marker.producer_id) for marker in markers
        ]
        self._awaited.ask(lambda refused: None if read.done() else read.set_result(refused))
        await read

    # --- producers ----------------------------------------------------------------------------------------

    async def producers(self, queue_ids: Sequence[int]) -> list[list[ActiveProducer] | Outcome]:
        answers: dict[int, list[ActiveProducer] | Outcome] = {}
        wanted: dict[int, list[int]] = {}
        for queue_id in queue_ids:
            number = self._group_of(queue_id)
            if not self._groups[number].serving:
                answers[queue_id] = Outcome.NOT_LEADER
            elif self._table.find(queue_id) == NO_SLOT:
                answers[queue_id] = Outcome.UNKNOWN_QUEUE
            else:
                wanted.setdefault(number, []).append(queue_id)
        for number, queues in wanted.items():
            try:
                answers |= await self._producers_in(self._groups[number], queues)
            except (MainstemError, OSError):  # whoever reads them has logged what cannot be read
                answers |= dict.fromkeys(queues, Outcome.STORAGE_BUSY)
        return [answers[queue_id] for queue_id in queue_ids]

    async def _producers_in(
        self, group: WriteGroup, queue_ids: Sequence[int]
    ) -> dict[int, list[ActiveProducer] | Outcome]:
        found: dict[int, dict[int, ActiveProducer]] = {queue_id: {} for queue_id in queue_ids}
        wanted = numpy.array(queue_ids, numpy.uint64)
        async for states in self._producers.all_states(group.group):
            for row in states[numpy.isin(states["queue_id"], wanted)]:
                count = int(row["count"])
                newest = row["batches"][count - 1] if count else None
                is_marker = newest is None or newest["base_sequence"] < 0
                queue_id, producer_id = int(row["queue_id"]), int(row["producer_id"])
                found[queue_id][producer_id] = ActiveProducer(
                    producer_id,
                    int(row["epoch"]),
                    -1 if newest is None or is_marker else int(newest["last_sequence"]),
                    int(row["last_timestamp_ms"]),
                    group.transactions.coordinator_epoch(queue_id, producer_id),
                )
        for queue_id, of_queue in found.items():
            for producer_id, known in group.transactions.open_in(queue_id).items():
                producer = of_queue.get(producer_id) or ActiveProducer(
                    producer_id, known.producer_epoch, -1, known.since_ms
                )
                of_queue[producer_id] = producer._replace(transaction_start=known.first_offset)
        return {queue_id: [of_queue[key] for key in sorted(of_queue)] for queue_id, of_queue in found.items()}
