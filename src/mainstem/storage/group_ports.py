"""What a write group needs of its node: somebody to apply what is committed, and somebody to tell what it wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mainstem.model import Buffer
from mainstem.raft import Message, Snapshot
from mainstem.raft.messages import InstallSnapshot
from mainstem.storage import control
from mainstem.storage.journal.format import BlockHeader


class Applier(Protocol):
    """What applying a block does outside the group; one for all groups of a node."""

    def queues_seen(self, directory: Buffer) -> None:
        """The queues of this directory, of a block that was not appended here, exist."""
        ...

    def block_applied(
        self,
        header: BlockHeader,
        directory: Buffer,
        payload: memoryview | None,
        watched: Sequence[tuple[int, int]],
    ) -> None:
        """Every block, before its commands; `payload` None when only the journal has it. `watched`: (queue id,
        bytes) of the batches of queues that somebody waits for."""
        ...

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        """Apply one command; what it came to, for the proposer."""
        ...


class Watcher(Protocol):
    """Who is told what becomes of the groups of a node."""

    def send(self, group: int, messages: Iterable[Message]) -> None:
        """To other nodes of the group; never blocks, and may lose them."""
        ...

    def wake(self) -> None:
        """There is something to write."""
        ...

    def superseded(self, group: int, first_index: int, positions: Sequence[int]) -> None:
        """Blocks from `first_index` on have left the log; these places in the journal are dead."""
        ...

    def send_snapshot(self, group: int, message: InstallSnapshot) -> None:
        """Have a member fetch the newest snapshot; then `GroupConsensus.snapshot_sent`."""
        ...

    def install_snapshot(self, group: int, snapshot: Snapshot) -> None:
        """State and log are to be replaced by this one, whose content is here; then
        `GroupConsensus.snapshot_installed`, or `snapshot_failed`. Neither at once."""
        ...

    def leader_changed(self, group: int, leader_id: int, term: int) -> None:
        """Who leads, 0: nobody known."""
        ...

    def serving_changed(self, group: int, *, serving: bool) -> None:
        """Whether this node takes batches for the group, and answers reads of it."""
        ...
