"""One partition of `__transaction_state`, served by this node: a transaction machine in a runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mainstem.broker.machines.letting_go import let_go_in_turns
from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.machine_partition import MachinePartition, PartitionPlace
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.transaction import StateRecord
from mainstem.broker.transactions.transaction_machine import TransactionCounts, TransactionMachine
from mainstem.ports import Clock

logger = logging.getLogger(__name__)

TransactionEvent = Callable[[TransactionMachine, Ticket, Moment], Result]


class TransactionPartition(MachinePartition[TransactionMachine]):
    """`counts` outlives it."""

    def __init__(
        self,
        log: MachineLog[StateRecord],
        config: TransactionsConfig,
        clock: Clock,
        place: PartitionPlace,
        *,
        counts: TransactionCounts,
    ) -> None:
        super().__init__(log, clock, place, snapshot_after_bytes=config.snapshot_after_bytes)
        self.prepared = asyncio.Event()
        """There may be transactions whose markers are to be written."""
        self._config = config
        self._counts = counts
        self._completing: dict[str, asyncio.Event] = {}
        """By transactional id: who waits for the end of its prepared transaction."""

    async def completed(self, transactional_id: str) -> None:
        """Returns once no transaction is prepared under this id any more as far as the machine knows, which may be
        ahead of its log."""
        current = None if self.machine is None else self.machine.transactions.get(transactional_id)
        if current is not None and current.state.is_prepared:
            await self._completing.setdefault(transactional_id, asyncio.Event()).wait()

    def wake_next(self, transactional_id: str) -> None:
        """The machine is told in this turn that all markers of a transaction are written."""
        waiting = self._completing.pop(transactional_id, None)
        if waiting is not None:
            waiting.set()

    # --- the runtime's MachineKind ----------------------------------------------------------------------

    def make(self) -> TransactionMachine:
        return TransactionMachine(self._config, self._counts, self.prepared.set)

    def accepts_loss(self, machine: TransactionMachine, gaps: Sequence[Gap], missing: str, *, new: bool) -> bool:
        if new:
            logger.error(
                "transaction coordinator, %s: offsets %s cannot be read. Transactions of this partition that are known "
                "from the rest go on; producers with other transactional ids are told COORDINATOR_NOT_AVAILABLE. "
                "Restore the file named in the lines before, on this node or a replica",
                self.name,
                missing,
            )
            self._counts.records_lost += sum(gap.end - gap.start for gap in gaps)
        return False

    def serve(self, machine: TransactionMachine, records: int) -> None:
        logger.debug(
            "transaction coordinator, %s: %d ids from %d records", self.name, len(machine.transactions), records
        )
        self.prepared.set()

    def failed(self) -> None:
        self._counts.log_failures += 1

    def dropped(self, machine: TransactionMachine | None) -> None:
        for transactional_id in list(self._completing):
            self.wake_next(transactional_id)
        if machine is not None:
            let_go_in_turns(machine.let_go())
