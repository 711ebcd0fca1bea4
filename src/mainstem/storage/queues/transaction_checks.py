"""Asks coordinators whether producers have the transactions that their batches claim to be part of.

The first batch of a transaction in a queue waits here until the coordinator has answered (KIP-890): otherwise a batch
that was on its way for too long could begin a transaction that nobody ends. A producer's batches are served in the
order of their arrival, those of different producers do not wait for each other. An answer that a marker has overtaken
confirms nothing, and the batch asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mainstem.errors import MainstemError
from mainstem.model import AppendTransaction, Outcome
from mainstem.ports import TransactionVerification
from mainstem.storage.write_groups.write_group_transactions import Asked, WriteGroupTransactions

log = logging.getLogger(__name__)

WAITING_MAX = 65_536
"""Appends that wait for coordinators; more are refused, and come again."""

VERIFY_SECONDS_MAX = 5.0
"""Clients wait thirty seconds by default, and try again."""

Key = tuple[int, int, int]
"""Write group, queue id, producer id."""
GoOn = Callable[[Mapping[Key, Outcome]], None]


class _WaitingAppend(NamedTuple):
    asked: frozenset[Asked]
    transaction: AppendTransaction
    go_on: GoOn


class TransactionChecks:
    """Of all write groups of a node. `run` runs as a task of the storage role."""

    def __init__(self, groups: Sequence[WriteGroupTransactions]) -> None:
        self._groups = groups
        self.asked: list[Asked] = []
        """The write groups note here whose batches wait; `ask` takes them over."""
        self.grow()
        self.verification: TransactionVerification | None = None
        """The way to the coordinators, once there is one."""
        self._waiting: dict[int, list[_WaitingAppend]] = {}
        """By producer, in the order in which they came; a task serves each producer that has any."""
        self._new: list[int] = []
        self._wake = asyncio.Event()
        self._runs = False

    def grow(self) -> None:
        """There are more write groups than before, or the first ones."""
        for one in self._groups:
            one.asked = self.asked

    @property
    def waiting(self) -> int:
        """How many appends wait for coordinators."""
        return sum(map(len, self._waiting.values()))

    def ask(self, transaction: AppendTransaction | None, go_on: GoOn) -> None:
        """Ask for the producers that have just been noted, and go on then: with those that must not append, and why."""
        asked = frozenset(self.asked)
        self.asked.clear()
        producers = {entry[2] for entry in asked}
        if transaction is None or len(producers) > 1:  # a transactional id has one producer at a time
            go_on({entry[:3]: Outcome.INVALID_TXN_STATE for entry in asked})
            return
        if not self._runs or self.verification is None or self.waiting >= WAITING_MAX:
            go_on({entry[:3]: Outcome.STORAGE_BUSY for entry in asked})
            return
        (producer_id,) = producers
        if producer_id not in self._waiting:
            self._waiting[producer_id] = []
            self._new.append(producer_id)
            self._wake.set()
        self._waiting[producer_id].append(_WaitingAppend(asked, transaction, go_on))

    async def run(self) -> None:
        """Ask coordinators for what waits, until cancelled."""
        self._runs = True
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    new, self._new = self._new, []
                    for producer_id in new:
                        tasks.create_task(self._serve(producer_id))
        finally:
            self._runs = False
            left, self._waiting = self._waiting, {}
            for appends in left.values():
                for one in appends:
                    one.go_on({entry[:3]: Outcome.STORAGE_BUSY for entry in one.asked})

    async def _serve(self, producer_id: int) -> None:
        """Serve the appends of one producer until none is left."""
        waiting = self._waiting[producer_id]
        while waiting:
            one = waiting[0]
            for group, queue_id, _, _ in one.asked:
                self._groups[group].verifying(queue_id, producer_id)
            outcomes = await self._outcomes(one, producer_id)
            if self._waiting.get(producer_id) is not waiting:
                return  # `run` has ended, and answered
            waiting.pop(0)
            refused: dict[Key, Outcome] = {}
            for entry in one.asked:
                group, queue_id, _, epoch = entry
                outcome = outcomes.get(queue_id, Outcome.STORAGE_BUSY)
                if outcome is Outcome.CONCURRENT_TRANSACTIONS and not one.transaction.adds_queues:
                    outcome = Outcome.STORAGE_BUSY  # which clients of then try again
                if outcome is Outcome.OK:
                    self._groups[group].verified(queue_id, producer_id, epoch)
                else:
                    self._groups[group].void_verification(queue_id, producer_id)
                    refused[entry[:3]] = outcome
            if not waiting:
                del self._waiting[producer_id]  # what the batches ask for now is served behind them
            try:
                one.go_on(refused)
            finally:
                for group in {entry[0] for entry in one.asked}:
                    self._groups[group].verifications_used()

    async def _outcomes(self, one: _WaitingAppend, producer_id: int) -> Mapping[int, Outcome]:
        queues = sorted({queue_id for _, queue_id, _, _ in one.asked})
        epoch = max(epoch for _, _, _, epoch in one.asked)
        assert self.verification is not None, "asked for nothing without it"
        try:
            async with asyncio.timeout(VERIFY_SECONDS_MAX):
                return await self.verification.verify(one.transaction, producer_id, epoch, queues)
        except (MainstemError, OSError, TimeoutError) as error:
            log.info(
                "transaction %r of producer %d cannot be verified now: %s",
                one.transaction.transactional_id,
                producer_id,
                error or "no answer in time",
            )
            return {}
