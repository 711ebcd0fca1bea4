"""The owners of a write group's queues: of the writers that may write to a queue in turn, only the newest still does.

A replicated machine is the one writer of its internal queue. Before it loads the queue it asks the write group's leader
for an **owner epoch**, and each of its appends carries that epoch. A grant takes the queue from the owner before: from
then on the leader refuses that owner's appends before anything of them is in a block. The blocks of the owner before
are in the log ahead of the grant, so a new owner that reads the queue to its end has them all.

Epochs live in the memory of the leader and need no log: an epoch begins with the leader's term, and a leader knows the
epochs of its own term only. A block that a deposed leader lets through is in no log that counts unless it is ahead of
its successor's first block, and so ahead of every grant of the successor."""

from __future__ import annotations

from mainstem.storage.errors import StorageError

TERM_SHIFT = 32
"""An owner epoch is the term above a count of the term's grants: later ones are greater, across leaders as well."""

OWNED_QUEUES_MAX = 65_536
"""Owned queues of one write group. The internal topics have some hundred partitions; each costs about 100 bytes."""


class QueueOwners:
    """Grants the owner epochs of a write group's queues, and checks them."""

    def __init__(self) -> None:
        self._term = 0
        self._grants = 0
        self._granted: dict[int, int] = {}
        """Queue id → the newest owner epoch of this term."""

    def begin(self, term: int) -> None:
        """Forget all owners: this node leads in a new term."""
        self._term = term
        self._grants = 0
        self._granted.clear()

    def grant(self, queue_id: int) -> int:
        """A queue's next owner epoch; appends with an older one, or without any, are refused from now on. Raises
        `StorageError` when too many queues have owners."""
        if queue_id not in self._granted and len(self._granted) >= OWNED_QUEUES_MAX:
            raise StorageError(
                f"queue {queue_id:#x} can have no owner: {OWNED_QUEUES_MAX} queues of its write group have one; "
                "delete internal topics that are not needed"
            )
        self._grants += 1
        epoch = self._term << TERM_SHIFT | self._grants
        self._granted[queue_id] = epoch
        return epoch

    def admits(self, queue_id: int, owner_epoch: int | None) -> bool:
        """Whether a writer with this owner epoch, None for a writer without, may append to a queue now."""
        return self._granted.get(queue_id) == owner_epoch
