"""One partition of `__transaction_state`, served by this node: a transaction machine in a runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.machines.runtime import MachineRuntime
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.transaction import StateRecord
from mainstem.broker.transactions.transaction_machine import TransactionCounts, TransactionMachine
from mainstem.ports import Clock

logger = logging.getLogger(__name__)

TransactionEvent = Callable[[TransactionMachine, Ticket, Moment], Result]


class TransactionPartition:
    """The runtime's `MachineKind`. `make_queue` is called when the partition's queue is missing, `wake` when the
    runtime's `wake_at_ms` may have moved closer; `counts` outlives it."""

    def __init__(
        self,
        log: MachineLog[StateRecord],
        config: TransactionsConfig,
        clock: Clock,
        *,
        name: str,
        counts: TransactionCounts,
        make_queue: Callable[[], Awaitable[None]],
        wake: Callable[[], None],
    ) -> None:
        self.name = name
        self.prepared = asyncio.Event()
        """There may be transactions whose markers are to be written."""
        self.runtime: MachineRuntime[TransactionMachine] = MachineRuntime(
            self,
            log,
            clock,
            name=f"transaction coordinator, {name}",
            snapshot_after_bytes=config.snapshot_after_bytes,
            wake=wake,
        )
        self._log = log
        self._config = config
        self._counts = counts
        self._make_queue = make_queue

    @property
    def machine(self) -> TransactionMachine | None:
        """None while nothing is loaded."""
        return self.runtime.machine

    async def confirm_owner(self) -> None:
        """Raises `LeaderMissing` where another node owns the log by now."""
        await self._log.confirm_owner()

    def submit(self, event: TransactionEvent) -> asyncio.Future[Any]:
        """Hand an event to the machine; the future gives its answer. Raises `CoordinatorRefusal`, and so may the
        future."""
        return self.runtime.submit(event)

    # --- machines.runtime.MachineKind ----------------------------------------------------------------

    async def prepare(self) -> None:
        if not await self._log.exists():
            await self._make_queue()

    def make(self) -> TransactionMachine:
        return TransactionMachine(self._config, self._counts, self.prepared.set)

    async def sort_out(self, machine: TransactionMachine) -> None:
        """Transactions depend on nothing but their log."""

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

    def dropped(self) -> None:
        """The machine holds nothing but memory."""
