"""The transaction coordinator of one node: answers producers and tools by the machines of the partitions of
`__transaction_state` that this node serves (`served_transactions`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.served_transactions import ServedTransactions
from mainstem.broker.transactions.transaction import TopicPartition, Transaction
from mainstem.broker.transactions.transaction_machine import TransactionMachine
from mainstem.broker.transactions.transaction_partition import TransactionEvent
from mainstem.broker.transactions.transitions import Initialization, Need, Producer, TransactionEnding
from mainstem.errors import MainstemError
from mainstem.model import FeatureLevel
from mainstem.protocol.error_codes import ErrorCode

NewProducerId = Callable[[], Awaitable[int]]
"""Gives a producer id that nobody has. Raises `MainstemError`."""

COMPLETION_SECONDS_MAX = 0.5
"""For which a producer's next transaction waits until the last one is complete. A connection's requests are answered in
turn: behind a queue that has no leader they must not wait for long."""

_Making = Callable[[int | None], TransactionEvent]


class TransactionCoordinator:
    """Answers by the partitions that `served` serves, which its owner starts and closes. `feature_level` is that of the
    cluster: an older one knows no transactions."""

    def __init__(
        self,
        served: ServedTransactions,
        config: TransactionsConfig,
        new_producer_id: NewProducerId,
        feature_level: Callable[[], FeatureLevel] = FeatureLevel.newest,
    ) -> None:
        self.served = served
        self.config = config
        self._new_producer_id = new_producer_id
        self._feature_level = feature_level

    @property
    def enabled(self) -> bool:
        """Whether the cluster's nodes all know transactions."""
        return self._feature_level() >= FeatureLevel.TRANSACTIONAL

    async def leader_of(self, transactional_id: str) -> int:
        """The node that coordinates a transactional id; -1 when there is none now."""
        return await self.served.leader_of(transactional_id)

    # --- producers -----------------------------------------------------------------------------------

    async def initialize(self, asked: Initialization) -> Producer | ErrorCode:
        """InitProducerId. Ids and epochs are those that the producer has from now on."""
        if not asked.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not 0 < asked.timeout_ms <= self.config.timeout_ms_max:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT

        def making(new_id: int | None) -> TransactionEvent:
            return lambda machine, ticket, now: machine.initialize(ticket, asked, new_id, now)

        answer = await self._with_id(asked.transactional_id, making)
        assert isinstance(answer, Producer | ErrorCode)
        return answer

    async def add(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], client_version: int
    ) -> ErrorCode:
        """Take partitions into the producer's transaction, which begins with the first: all of them, or none.

        Producers begin a transaction as soon as the end of the one before is decided, and its markers take two more
        appends. Kafka answers CONCURRENT_TRANSACTIONS, on which clients wait for 20 ms and more. Here the request waits
        for a while; so the new transaction begins in the append that completes the last one."""
        added = frozenset(partitions)

        def event(machine: TransactionMachine, ticket: Ticket, now: Moment) -> Result:
            return machine.add(ticket, transactional_id, producer, added, client_version, now)

        answer = await self._submit(transactional_id, event)
        if answer is ErrorCode.CONCURRENT_TRANSACTIONS:
            try:
                async with asyncio.timeout(COMPLETION_SECONDS_MAX):
                    await (await self.served.led_for(transactional_id)).completed(transactional_id)
            except (TimeoutError, CoordinatorRefusal):
                return ErrorCode.CONCURRENT_TRANSACTIONS
            answer = await self._submit(transactional_id, event)
        assert isinstance(answer, ErrorCode)
        return answer

    async def verify(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether these partitions are in the producer's open transaction."""
        answer = await self._submit(
            transactional_id,
            lambda machine, ticket, now: machine.verify(ticket, transactional_id, producer, partitions, now),
        )
        if isinstance(answer, ErrorCode):
            return dict.fromkeys(partitions, answer)
        assert isinstance(answer, dict)
        return answer

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch of the coordinator of an id, as far as it is loaded here; else -1. Behind an answer of it, that is
        the epoch of the one that answered, or a later one's."""
        partition = self.served.partitions.get(self.served.index_of(transactional_id))
        machine = None if partition is None else partition.machine
        return -1 if machine is None else machine.coordinator_epoch

    async def end(self, transactional_id: str, producer: Producer, *, commit: bool, version: int) -> TransactionEnding:
        """EndTxn of a client that speaks a transaction version. The decision is durable once this returns; the markers
        are written after that."""

        def making(new_id: int | None) -> TransactionEvent:
            def event(machine: TransactionMachine, ticket: Ticket, now: Moment) -> Result:
                return machine.end(ticket, transactional_id, producer, commit, version, new_id, now)

            return event

        answer = await self._with_id(transactional_id, making)
        if isinstance(answer, ErrorCode):
            return TransactionEnding(answer)
        assert isinstance(answer, TransactionEnding)
        return answer

    # --- tools ---------------------------------------------------------------------------------------

    async def describe(self, transactional_ids: Sequence[str]) -> list[Transaction | ErrorCode]:
        """In the order asked for."""
        found: list[Transaction | ErrorCode] = []
        for transactional_id in transactional_ids:
            answer = await self._submit(transactional_id, partial(_get, transactional_id))
            if isinstance(answer, list):
                found.append(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if answer[0] is None else answer[0])
            else:
                found.append(answer)
        return found

    async def all(self) -> list[Transaction] | ErrorCode:
        """The transactions of the partitions that this node serves."""
        if not self.enabled:
            return []
        self.served.look()
        found: list[Transaction] = []
        for partition in list(self.served.partitions.values()):
            try:
                found += await partition.submit(lambda machine, ticket, now: machine.all(ticket, now))
            except CoordinatorRefusal as refusal:
                if refusal.code is not ErrorCode.NOT_COORDINATOR:  # other nodes answer for those
                    return refusal.code
        return found

    # --- internals -----------------------------------------------------------------------------------

    async def _with_id(self, transactional_id: str, making: _Making) -> Any:
        """The answer to an event that may need a new producer id."""
        answer = await self._submit(transactional_id, making(None))
        if answer is not Need.PRODUCER_ID:
            return answer
        try:
            new_id = await self._new_producer_id()
        except MainstemError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self._submit(transactional_id, making(new_id))

    async def _submit(self, transactional_id: str, event: TransactionEvent) -> Any:
        """The machine's answer, or the code of a refusal."""
        if not self.enabled:
            return ErrorCode.UNSUPPORTED_VERSION
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        try:
            return await (await self.served.led_for(transactional_id)).submit(event)
        except CoordinatorRefusal as refusal:
            return refusal.code


def _get(transactional_id: str, machine: TransactionMachine, ticket: Ticket, now: Moment) -> Result:
    return machine.get(ticket, [transactional_id], now)
