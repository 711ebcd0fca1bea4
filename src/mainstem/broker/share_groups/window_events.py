"""The events of one window, as nodes hand them to the one that serves it: plain values, so that they travel.

Each says which event of `ShareStateMachine` it is; its class in `WINDOW_EVENTS` says what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.share_partition import Acquired
from mainstem.broker.share_groups.state_machine import (
    LogBounds,
    NextRead,
    ReadBatches,
    ShareStateMachine,
    WantedRecords,
    WindowState,
    WrittenState,
)
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import AcknowledgementBatch


class WindowEvent(Protocol):
    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result: ...


class Begin(NamedTuple):
    """Where does a member read next?"""

    bounds: LogBounds

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.begin(ticket, key, self.bounds, now)


class Acquire(NamedTuple):
    member_id: str
    read: ReadBatches
    wanted: WantedRecords

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.acquire(ticket, key, self.member_id, self.read, self.wanted, now)


class Acknowledge(NamedTuple):
    member_id: str
    batches: Sequence[AcknowledgementBatch]

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.acknowledge(ticket, key, self.member_id, self.batches, now)


class Release(NamedTuple):
    """A member reads no more."""

    member_id: str

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.release(ticket, [key], self.member_id, now)


class Read(NamedTuple):
    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.read(ticket, [key], now)


class ReadToLead(NamedTuple):
    leader_epoch: int

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.read_to_lead(ticket, key, self.leader_epoch, now)


class Initialize(NamedTuple):
    state_epoch: int
    start: int

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.initialize(ticket, key, self.state_epoch, self.start, now)


class Write(NamedTuple):
    written: WrittenState

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.write(ticket, key, self.written, now)


class Delete(NamedTuple):
    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.delete(ticket, key, now)


class LookFor(NamedTuple):
    """Is the window there? Asked by a node that has heard of a move."""

    def run(self, machine: ShareStateMachine, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        return machine.has(ticket, key)


WINDOW_EVENTS: Mapping[type[Any], Any] = {
    Begin: NextRead | ErrorCode,
    Acquire: list[Acquired],
    Acknowledge: ErrorCode,
    Release: int,
    Read: list[WindowState | None],
    ReadToLead: WindowState | ErrorCode,
    Initialize: ErrorCode,
    Write: ErrorCode,
    Delete: ErrorCode,
    LookFor: bool,
}
"""The type of the answer to each. Their order numbers them between nodes: new ones come last."""


class OtherWindows(Protocol):
    """The windows that other nodes serve."""

    async def ask(self, node_id: int, index: int, key: WindowKey, event: WindowEvent) -> Any:
        """The answer to an event of a window in a partition of the topic of states. Raises `CoordinatorRefusal`."""
        ...
