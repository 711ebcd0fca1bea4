"""What the storage role reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mainstem.errors import LeaderMissing, MainstemError


class StorageError(MainstemError):
    """Base of the storage role's errors."""


class FormatError(StorageError):
    """Bytes on a disk that are not what the format says; the message names file and position."""


class JournalHole(NamedTuple):
    """A place in the journal where a block was, between others that can be read."""

    position: int
    end: int
    candidates: tuple[tuple[int, int], ...]
    """Which it may have been: write groups, and the block that each of them misses next."""


class CorruptJournal(StorageError):
    """A block known to be durable cannot be read back. The group is refused; nothing is truncated.

    `groups` are the write groups that may have lost a block, as far as the blocks around the damage tell: one
    with no other block in sight is not among them."""

    def __init__(
        self, message: str, groups: Iterable[int] = (), hole: JournalHole | None = None, position: int = 0
    ) -> None:
        """`position`: where in the journal a reader met it; 0: no reader did."""
        super().__init__(message)
        self.position = position
        self.groups = frozenset(groups)
        self.hole = hole
        """Where a start found that one block is not what was written, as far as that can be told."""


class StorageBusy(StorageError):
    """There is no room on the disk for what is to be written. Nothing was written; a retry may succeed."""


class StorageFailed(StorageError):
    """The disk failed a write or a sync; this node accepts no more writes until it is started again."""


class SegmentGone(StorageError):
    """A journal segment was recycled under its reader; look the offset up again."""


class NotTheLeader(StorageError, LeaderMissing):
    """Another node leads the write group, or none does now. Nothing was logged; ask the leader."""
