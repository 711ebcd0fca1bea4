"""Snapshots of a member's applied state: made to shorten its own log, given to others, taken from the
leader."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from mainstem.nameserver.disk.metadata_log import MetadataLog, MetadataSnapshot
from mainstem.nameserver.disk.room import Room
from mainstem.nameserver.errors import InconsistentCommand, MetadataUnavailable
from mainstem.nameserver.quorum.quorum_log import QuorumLog, encode_membership, to_stored
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.raft import LoggedMembership, Membership
from mainstem.raft import Snapshot as RaftSnapshot

log = logging.getLogger(__name__)


class ReceivedSnapshot(NamedTuple):
    """The bytes of a snapshot that the leader sent."""

    name: RaftSnapshot
    commands: Sequence[bytes]


class QuorumSnapshots:
    """Makes, gives and takes the snapshots of one member."""

    def __init__(
        self,
        memberships: Sequence[LoggedMembership],
        metadata_log: MetadataLog,
        entries: QuorumLog,
        replica: MetadataReplica,
        room: Room,
    ) -> None:
        """`memberships`: all in the log, some of which may not be applied yet."""
        self.tried = 0
        """Called when a snapshot for the own log is finished, successfully or not."""
        self.received: ReceivedSnapshot | None = None
        """The snapshot that `take` would install."""
        self._log = metadata_log
        self._entries = entries
        self._replica = replica
        self._room = room
        self._membership = max(
            (it for it in memberships if it.index <= replica.applied_index), key=lambda it: it.index
        ).membership
        self._making = False
        entries.snapshots_come_from(self.now)

    def membership_applied(self, membership: Membership) -> None:
        self._membership = membership

    def now(self) -> RaftSnapshot | None:
        """Names the snapshot of the state as it is applied; None: nothing is applied yet."""
        replica = self._replica
        if not replica.applied_index or replica.applied_index > self._entries.last_index():
            return None  # a node that followed before it became a member is ahead of its own log for a while
        return RaftSnapshot(replica.applied_index, replica.applied_term, self._membership)

    def _present(self) -> tuple[RaftSnapshot, Iterable[bytes]]:
        name = self.now()
        assert name is not None, "something is applied"
        return name, self._replica.commands()

    async def to_give(self) -> tuple[RaftSnapshot, Iterable[bytes]]:
        """The present state as a snapshot. Raises `MetadataUnavailable` where there is none."""
        async with self._replica.still():
            if self.now() is None:
                raise MetadataUnavailable("nothing is committed in this metadata quorum yet")
            return self._present()

    # the own log

    @property
    def due(self) -> bool:
        """Whether the log has grown long, and no snapshot is being made."""
        return self._log.wants_snapshot and not self._making

    def make(self) -> Coroutine[Any, Any, None]:
        """Replace the log's beginning by a snapshot of the present state."""
        self._making = True
        return self._make(*self._present())

    async def _make(self, name: RaftSnapshot, commands: Iterable[bytes]) -> None:
        self.tried += 1
        snapshot = MetadataSnapshot(name.index, name.term, encode_membership(name.membership), commands)
        try:
            if await self._log.snapshot(
                snapshot, lambda: [to_stored(entry) for entry in self._entries.behind(name.index)]
            ):
                self._entries.release(name.index)
        finally:
            self._making = False

    # from the leader

    async def take(self, name: RaftSnapshot) -> bool:
        """Replace state and log by the received snapshot, once there is room for it; False if another
        snapshot was received, or nonsense."""
        received, self.received = self.received, None
        try:
            if received is None or received.name != name:
                raise ValueError("another one is here, or none")
            state = await self._replica.restored(received.commands)
        except (ValueError, InconsistentCommand) as error:
            log.error("the metadata leader's snapshot at entry %d is not taken: %s", name.index, error)
            return False
        snapshot = MetadataSnapshot(name.index, name.term, encode_membership(name.membership), received.commands)
        await self._log.install(snapshot, self._room.wait)
        await self._replica.replace(state, name.index, name.term)
        self._membership = name.membership
        self._entries.reset(name.index, name.term)
        return True
