"""One partition of an internal topic, served by this node until its runtime resigns: a machine in a runtime."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mainstem.broker.machines.load_turns import LoadTurns
from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.result import Answer, Moment, Result, Ticket
from mainstem.broker.machines.runtime import Machine, MachineRuntime
from mainstem.ports import Clock

M = TypeVar("M", bound=Machine)


class PartitionPlace(NamedTuple):
    """A partition as the topic that it belongs to knows it."""

    keeper: str
    """The coordinator that writes it, for messages."""
    name: str
    make_queue: Callable[[], Awaitable[None]]
    """To be called when the partition's queue is missing."""
    wake: Callable[[], None]
    """To be called when the runtime's `wake_at_ms` may have moved closer."""
    load_turns: LoadTurns
    loaded: Callable[[], None]
    """To be called whenever the partition's log has been loaded."""


class MachinePartition(ABC, Generic[M]):
    """The runtime's `MachineKind`."""

    def __init__(self, log: MachineLog[Any], clock: Clock, place: PartitionPlace, *, snapshot_after_bytes: int) -> None:
        self.name = place.name
        self.runtime: MachineRuntime[M] = MachineRuntime(
            self,
            log,
            clock,
            name=f"{place.keeper}, {place.name}",
            snapshot_after_bytes=snapshot_after_bytes,
            wake=place.wake,
            load_turns=place.load_turns,
            loaded=place.loaded,
        )
        self._log = log
        self._make_queue = place.make_queue

    @property
    def machine(self) -> M | None:
        """None while nothing is loaded."""
        return self.runtime.machine

    @property
    def gaps(self) -> Sequence[Gap]:
        """The gaps in the log that is served."""
        return self.runtime.gaps

    async def confirm_owner(self) -> None:
        """Raises `LeaderMissing` where another node owns the log by now."""
        await self._log.confirm_owner()

    def submit(self, event: Callable[[M, Ticket, Moment], Result]) -> asyncio.Future[Any]:
        """Hand an event to the machine; the future gives its answer. Raises `CoordinatorRefusal`, and so may the
        future."""
        return self.runtime.submit(event)

    # --- runtime.MachineKind -------------------------------------------------------------------------

    async def prepare(self) -> None:
        if not await self._log.exists():
            await self._make_queue()

    @abstractmethod
    def make(self) -> M: ...

    async def sort_out(self, machine: M) -> None:
        """Most machines depend on nothing but their log."""

    @abstractmethod
    def accepts_loss(self, machine: M, gaps: Sequence[Gap], missing: str, *, new: bool) -> bool: ...

    @abstractmethod
    def serve(self, machine: M, records: int) -> None: ...

    @abstractmethod
    def failed(self) -> None: ...

    def answered(self, machine: M, answers: Sequence[Answer], now: Moment) -> None:
        """Most machines do not mind when their answers leave."""

    def dropped(self, machine: M | None) -> None:
        """Most machines hold nothing but memory."""
