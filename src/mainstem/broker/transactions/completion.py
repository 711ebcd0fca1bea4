"""Completes the transactions of a partition of `__transaction_state`: writes their markers, and tells the machine.

One task per partition that this node serves. A transaction is completed beside the others: one with a queue that has no
leader holds up nobody else. Markers are tried until they are written, or this node no longer coordinates; the
next coordinator finds the transaction prepared in its log, and begins anew. Markers may be written twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from mainstem.broker.errors import CoordinatorRefusal, LogUnavailable
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.transactions.transaction import TopicPartition, Transaction
from mainstem.broker.transactions.transaction_machine import Prepared, TransactionMachine
from mainstem.broker.transactions.transaction_partition import TransactionPartition

logger = logging.getLogger(__name__)

COMPLETIONS_MAX = 1_000
"""Transactions whose markers are under way at once: a few hundred bytes each, and many share blocks."""

RETRY_SECONDS = 0.05
"""Before the markers that were not written are written again; doubled each time…"""
RETRY_SECONDS_MAX = 1.0
"""…up to this: leaders are missing for about so long."""

REFUSED_SECONDS = 0.1
"""Before a partition that is being loaded is asked again."""


class MarkerWriting(Protocol):
    async def write(
        self, transaction: Transaction, coordinator_epoch: int, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        """Write the markers of a prepared transaction into these partitions; returns those where that is still to be
        done. Raises `LogUnavailable` where a newer coordinator has written already."""
        ...


class Completion:
    """The completion of one partition's transactions."""

    def __init__(self, partition: TransactionPartition, markers: MarkerWriting) -> None:
        self._partition = partition
        self._markers = markers
        self._under_way: set[Transaction] = set()
        """Each as it was prepared: the next one of the same producer may have the same epoch."""
        self._everything = True
        """Ask for all transactions that are prepared, told of before or not."""
        self._room = asyncio.Semaphore(COMPLETIONS_MAX)

    async def run(self) -> None:
        """Until cancelled."""
        self._everything = True
        self._partition.prepared.set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._partition.prepared.wait()
                self._partition.prepared.clear()
                everything, self._everything = self._everything, False
                try:
                    found: Prepared = await self._partition.submit(partial(_prepared, everything))
                except CoordinatorRefusal:
                    self._everything = True
                    await asyncio.sleep(REFUSED_SECONDS)
                    self._partition.prepared.set()
                    continue
                for transaction in found.transactions:
                    if transaction not in self._under_way:
                        await self._room.acquire()
                        self._under_way.add(transaction)
                        tasks.create_task(self._complete(transaction, found.coordinator_epoch))

    async def _complete(self, transaction: Transaction, coordinator_epoch: int) -> None:
        try:
            left = set(transaction.partitions)
            pause_seconds = RETRY_SECONDS
            while left:
                left = await self._markers.write(transaction, coordinator_epoch, left)
                if left:
                    await asyncio.sleep(pause_seconds)
                    pause_seconds = min(2 * pause_seconds, RETRY_SECONDS_MAX)
            self._partition.wake_next(transaction.transactional_id)  # it runs behind this turn, ahead of the append
            await self._partition.submit(lambda machine, ticket, now: machine.complete(ticket, transaction, now))
        except CoordinatorRefusal:  # whoever loads the partition next finds it prepared
            self._everything = True
        except LogUnavailable as fenced:
            logger.warning(
                "transaction coordinator, %s: %s: %s", self._partition.name, transaction.transactional_id, fenced
            )
            await asyncio.sleep(RETRY_SECONDS_MAX)
            self._everything = True
            self._partition.prepared.set()
        finally:
            self._under_way.discard(transaction)
            self._room.release()


def _prepared(everything: bool, machine: TransactionMachine, ticket: Ticket, now: Moment) -> Result:
    return machine.prepared(ticket, everything, now)
