"""Bugs of transactions to plant, by `cluster.planted`, each found by a message of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy
from tests.simulation.cluster.planted import Plant

from mainstem.broker.consumer_groups.events.offset_events import OffsetEvents
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.transactions import transitions
from mainstem.broker.transactions.markers import NodeMarkers
from mainstem.broker.transactions.transaction import TopicPartition, Transaction
from mainstem.broker.transactions.transitions import Producer
from mainstem.kernel import NO_SLOT
from mainstem.model import TransactionMarker
from mainstem.protocol.error_codes import ErrorCode
from mainstem.storage.extents.aborted import ABORTED_ROW, AbortedRows
from mainstem.storage.merging import merge_files
from mainstem.storage.merging.merge_inputs import InputFile, InputReader
from mainstem.storage.merging.merge_measure import MergeTask
from mainstem.storage.write_groups.write_group_transactions import WriteGroupTransactions


def _marker_lost() -> tuple[type, str, Any]:
    """Of the markers of a transaction one is taken for written that nobody writes."""
    write = NodeMarkers._write_queues

    async def losing(
        node: NodeMarkers, transaction: Transaction, epoch: int, markers: Mapping[TopicPartition, TransactionMarker]
    ) -> set[TopicPartition]:
        return await write(node, transaction, epoch, dict([*markers.items()][1:]))

    return NodeMarkers, "_write_queues", losing


def _stable_past_an_open_transaction() -> tuple[type, str, Any]:
    """Of several open transactions of a queue the last to begin bounds what is stable."""

    def settle(transactions: WriteGroupTransactions, queue_id: int) -> None:
        table = transactions._table
        slot = table.find(queue_id)
        if slot != NO_SLOT:
            table.set_first_unstable(slot, max((first for first, _ in transactions._firsts(queue_id)), default=-1))

    return WriteGroupTransactions, "_settle_cell", settle


def _aborted_dropped_at_a_merge() -> tuple[ModuleType, str, Any]:
    """A merged file has no index of aborted transactions."""

    def nothing(task: MergeTask, inputs: Sequence[InputFile], reader: InputReader) -> AbortedRows:
        return numpy.zeros(0, ABORTED_ROW)

    return merge_files, "aborted_of", nothing


def _epoch_not_raised() -> tuple[ModuleType, str, Any]:
    """A producer that takes over a transactional id with nothing open gets the epoch of the one before."""
    emptied = transitions._emptied

    def same_epoch(
        current: Transaction, asked: Any, now_ms: int, producer_id: int, epoch: int, *rest: int
    ) -> Transaction:
        return emptied(current, asked, now_ms, producer_id, min(epoch, current.producer_epoch), *rest)

    return transitions, "_emptied", same_epoch


def _offsets_of_an_aborted_transaction() -> tuple[type, str, Any]:
    """A marker brings the offsets of its transaction into force, whatever it says."""
    end = OffsetEvents.end_transaction

    def committing(
        events: OffsetEvents,
        ticket: Ticket,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        commit: bool,
        now: Moment,
    ) -> Result:
        return end(events, ticket, producer_id, epoch, coordinator_epoch, True, now)

    return OffsetEvents, "end_transaction", committing


def _zombies_not_fenced() -> tuple[ModuleType, str, Any]:
    """A coordinator looks at a producer's id, and not at its epoch."""
    refusal = transitions.refusal

    def forgiving(current: Transaction | None, producer: Producer) -> ErrorCode:
        if current is not None and producer.producer_id == current.producer_id:
            return refusal(current, Producer(current.producer_id, current.producer_epoch))
        return refusal(current, producer)

    return transitions, "refusal", forgiving


TRANSACTION_PLANTS: dict[str, Plant] = {
    "marker-lost": _marker_lost,
    "stable-past-an-open-transaction": _stable_past_an_open_transaction,
    "aborted-dropped-at-a-merge": _aborted_dropped_at_a_merge,
    "epoch-not-raised": _epoch_not_raised,
    "offsets-of-an-aborted-transaction": _offsets_of_an_aborted_transaction,
    "zombies-not-fenced": _zombies_not_fenced,
}

TRANSACTION_BREAKS = dict.fromkeys(TRANSACTION_PLANTS, "E")
"""As `cluster.planted.BREAKS`."""

FOUND_BY = {
    "marker-lost": (" hangs: ", "no marker stands between"),
    "stable-past-an-open-transaction": ("is past a transaction that is open",),
    "aborted-dropped-at-a-merge": ("is shown", "by its files these transactions were not aborted"),
    "epoch-not-raised": ("its epoch was not raised",),
    "offsets-of-an-aborted-transaction": ("by offset",),
    "zombies-not-fenced": ("a zombie was not fenced",),
}
"""Per planted bug what the message that finds it says, one of these."""
