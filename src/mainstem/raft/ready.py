"""What a core wants done, in one value. The order is told in `mainstem.raft`."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.raft.entry import Entry, HardState, Snapshot
from mainstem.raft.messages import InstallSnapshot, Message
from mainstem.raft.roles import Role


class RoleChange(NamedTuple):
    """Who leads, as this node sees it now; `leader_id` 0: nobody known."""

    role: Role
    term: int
    leader_id: int


class ReadResult(NamedTuple):
    """What came of `read_index(context)`: answer it from the applied state now, or, `granted` False, ask again."""

    context: object
    read_index: int
    granted: bool


class Ready(NamedTuple):
    """Everything here may be begun as it stands; nothing in it waits for anything else in it.

    What must wait for a disk is not here yet: the core keeps it until `hard_state_persisted`, `persisted` or
    `snapshot_installed` is called."""

    messages: tuple[Message, ...] = ()
    """To be sent at once. Losing one is allowed."""
    hard_state: HardState | None = None
    """To be made durable; then `hard_state_persisted`. Until then no Ready brings a message."""
    truncate_from: int = 0
    """Drop entry `truncate_from` and all behind it, before `entries` are taken. 0: drop nothing."""
    entries: tuple[Entry, ...] = ()
    """To be put behind the log, and made durable; then `persisted`."""
    snapshot: Snapshot | None = None
    """Replaces state and log, once its bytes are here; then `snapshot_installed`."""
    snapshots_to_send: tuple[InstallSnapshot, ...] = ()
    """Send each receiver the newest snapshot, then this message; then `report_snapshot`."""
    committed: tuple[Entry, ...] = ()
    """To be applied, in this order. All are durable here."""
    reads: tuple[ReadResult, ...] = ()
    """May be answered from the state before this Ready's `committed`, and of course from the one behind."""
    role_change: RoleChange | None = None
