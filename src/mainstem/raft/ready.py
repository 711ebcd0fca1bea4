"""The work a core has for its driver, in one value. `mainstem.raft` gives the order."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.raft.entry import Entry, HardState, Snapshot
from mainstem.raft.messages import InstallSnapshot, Message
from mainstem.raft.roles import Role


class RoleChange(NamedTuple):
    """Role, term and leader as this node sees them now; `leader_id` 0: none is known."""

    role: Role
    term: int
    leader_id: int


class ReadResult(NamedTuple):
    """The outcome of `read_index(context)`: answer it from the applied state now or, with `granted` False, ask
    again."""

    context: object
    read_index: int
    granted: bool


class Ready(NamedTuple):
    """The driver may begin every part of it at once; no part waits for another.

    Work that must wait for a disk is not in it yet: the core keeps that back until `hard_state_persisted`, `persisted`
    or `snapshot_installed` is called."""

    messages: tuple[Message, ...] = ()
    """Messages to send at once. Losing one is allowed."""
    hard_state: HardState | None = None
    """Make it durable, then call `hard_state_persisted`. Until then no Ready brings a message."""
    truncate_from: int = 0
    """Drop entry `truncate_from` and all behind it, before `entries` are taken. 0: drop nothing."""
    entries: tuple[Entry, ...] = ()
    """Put them behind the log and make them durable, then call `persisted`."""
    snapshot: Snapshot | None = None
    """Replace state and log by it once its bytes are here, then call `snapshot_installed`."""
    snapshots_to_send: tuple[InstallSnapshot, ...] = ()
    """Send each receiver the newest snapshot, then this message, then call `report_snapshot`."""
    committed: tuple[Entry, ...] = ()
    """Apply them in this order. All are durable here."""
    reads: tuple[ReadResult, ...] = ()
    """Answer them from the applied state, before or after this Ready's `committed`."""
    role_change: RoleChange | None = None
