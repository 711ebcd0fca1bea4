"""How transactions end in queues, who may write to them, and how coordinators ask each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from mainstem.model import (
    AbortedRange,
    ActiveProducer,
    AppendTransaction,
    Outcome,
    TransactionMarker,
)

if TYPE_CHECKING:
    pass


class TransactionMarkers(Protocol):
    """Ends transactions in queues, wherever these are led. A coordinator holds one, on any node."""

    async def write(self, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        """Write markers, each of any queue, behind everything that was appended; one outcome each, when all are
        committed. It does no harm to write a marker again.

        Raises nothing for a single marker; each may be: `OK`; `STALE_PRODUCER_EPOCH` where the queue knows a newer
        epoch of the producer; `TRANSACTION_COORDINATOR_FENCED` where a newer coordinator has ended a transaction of it;
        `UNKNOWN_QUEUE` where the queue is gone; `INVALID_TXN_STATE` while the cluster's feature level has no
        transactions; any other outcome of an append, after which the marker should be written again."""
        ...

    async def producers(self, queue_ids: Sequence[int]) -> list[list[ActiveProducer] | Outcome]:
        """The active producers of each queue, by their ids; or why they cannot be told: `UNKNOWN_QUEUE`, `NOT_LEADER`,
        `STORAGE_BUSY`."""
        ...


class TransactionVerification(Protocol):
    """Asks the coordinator of a transaction whether a producer may write to queues. The leader of a queue asks once for
    each producer, epoch and transaction, before it appends the first batch."""

    async def verify(
        self, transaction: AppendTransaction, producer_id: int, producer_epoch: int, queue_ids: Sequence[int]
    ) -> Mapping[int, Outcome]:
        """The outcome for each queue. `OK`: the transaction is open and the queue is part of it; with `adds_queues` the
        coordinator has taken it in. `INVALID_TXN_STATE`: it is not; `STALE_PRODUCER_EPOCH`: the producer is fenced;
        `CONCURRENT_TRANSACTIONS`: the last transaction is not finished; `STORAGE_BUSY`: the coordinator cannot be
        reached now. A queue that is missing is `STORAGE_BUSY`."""
        ...


class StoredTransactions(Protocol):
    """The aborted transactions of what the split has moved from the journal to files."""

    def aborted_at_once(
        self, queue_id: int, group: int, from_offset: int, to_offset: int
    ) -> Sequence[AbortedRange] | None:
        """The same as `aborted` of offsets that are all in one write group, in any order, if they are known from the
        queue's last search; None: they are not."""
        ...

    async def aborted(self, queue_id: int, from_offset: int, to_offset: int) -> list[AbortedRange]:
        """The aborted transactions that have offsets in [`from_offset`, `to_offset`): they begin before `to_offset`,
        and their marker is at or behind `from_offset`. By their first offsets."""
        ...


class BrokerCalls(Protocol):
    """Requests of Kafka's APIs to the brokers of other nodes, and to this one's, made by the node itself."""

    async def ask(self, node_id: int, api_key: int, version: int, body: bytes) -> bytes:
        """The body of the response. Raises `MainstemError` where there is none."""
        ...
