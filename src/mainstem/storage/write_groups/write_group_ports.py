"""The two ports through which a write group reaches its node: the `Applier` applies committed blocks to the node's
state, the `Watcher` carries the write group's wishes to the write loop, the network and the snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mainstem.model import Buffer
from mainstem.raft import Message, Snapshot
from mainstem.raft.messages import InstallSnapshot
from mainstem.storage.journal.encoding.format import BlockHeader
from mainstem.storage.write_groups import control


class Applier(Protocol):
    """Applies blocks to the state outside the write group; one object serves all write groups of a node."""

    def queues_seen(self, directory: Buffer) -> None:
        """Create the queues of this directory where they are missing: the block was not appended here."""
        ...

    def block_applied(
        self,
        header: BlockHeader,
        directory: Buffer,
        payload: memoryview | None,
        watched: Sequence[tuple[int, int]],
    ) -> None:
        """Apply a block, before its commands. `payload` is None when only the journal has it; `watched` holds (queue
        id, bytes) of the batches whose queues a reader waits for."""
        ...

    def awaits(self, group: int, command: control.Command) -> bool:
        """Whether a command must wait for blocks of another write group to be applied here."""
        ...

    def holds(self, group: int) -> bool:
        """Whether the blocks behind a write group's snapshot must wait for blocks of others to be applied here."""
        ...

    def transactions_ended(self, queue_ids: Sequence[int]) -> None:
        """Tell readers that the block applied last has markers of these queues."""
        ...

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        """Apply one command and return its outcome, for the proposer."""
        ...


class Watcher(Protocol):
    """Does what the write groups of a node ask for, and hears when their leaders change."""

    def send(self, group: int, messages: Iterable[Message]) -> None:
        """Send messages to other members of the write group; never blocks, and may lose messages."""
        ...

    def withholds(self, group: int) -> None:
        """Call `WriteGroupConsensus.send_withheld` every few ms until it withholds nothing."""
        ...

    def wake(self) -> None:
        """Have the write loop take a turn."""
        ...

    def superseded(self, group: int, first_index: int, positions: Sequence[int], last_data: int) -> None:
        """Mark these journal positions dead: their blocks, from index `first_index` on, have left the log, whose last
        data block before is `last_data`; 0: there is none."""
        ...

    def send_snapshot(self, group: int, message: InstallSnapshot) -> None:
        """Have a member fetch the newest snapshot, then call `WriteGroupConsensus.snapshot_sent`."""
        ...

    def install_snapshot(self, group: int, snapshot: Snapshot) -> None:
        """Replace state and log by this snapshot, whose content is here; later, never within this call, call
        `WriteGroupConsensus.snapshot_installed` or `snapshot_failed`."""
        ...

    def leader_changed(self, group: int, leader_id: int, term: int) -> None:
        """Take note of the leader and its term; 0: no leader is known."""
        ...

    def hand_over_changed(self, group: int, *, begun: bool) -> None:
        """Take note that this node, which serves the write group, asks another one to lead it; or that it has given
        that up, and leads on. `serving_changed` and
        `leader_changed` tell that the other one leads."""
        ...

    def serving_changed(self, group: int, *, serving: bool) -> None:
        """Take note whether this node takes batches for the write group and answers reads of it."""
        ...
