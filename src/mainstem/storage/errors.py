"""The errors of the storage role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mainstem.errors import LeaderMissing, MainstemError, StorageUnavailable


class StorageError(MainstemError):
    """Base of the storage role's errors."""


class FormatError(StorageError):
    """Bytes on a disk break their format; the message names file and position."""


class OutOfReach(StorageError):
    """The bytes to be read lie where they cannot be reached now. Nothing is known of it: a retry may succeed, and
    nothing counts as damaged because of it."""


class RecordsDeleted(StorageError):
    """The log start has passed what was read. A reader that comes again is told so."""


class JournalHole(NamedTuple):
    """A place in the journal where a block was, between blocks that can be read."""

    position: int
    end: int
    candidates: tuple[tuple[int, int], ...]
    """The blocks it may have been: write groups, each with the block that it misses next."""


class CorruptJournal(StorageError, StorageUnavailable):
    """A block known to be durable cannot be read back. The write group is refused; nothing is truncated.

    `groups` are the write groups that may have lost a block, as far as the blocks around the damage tell: a write group
    with no other block there is not among them."""

    def __init__(
        self, message: str, groups: Iterable[int] = (), hole: JournalHole | None = None, position: int = 0
    ) -> None:
        """`position`: the journal position where a reader met the damage; 0: no reader did."""
        super().__init__(message)
        self.position = position
        self.groups = frozenset(groups)
        self.hole = hole
        """The hole of a single block that a start found, if it can be told; None otherwise."""


class StorageBusy(StorageError, StorageUnavailable):
    """The disk has no room for a write. Nothing was written; a retry may succeed."""


class StorageFailed(StorageError, StorageUnavailable):
    """The disk failed a write or a sync; this node accepts no more writes until it is started again."""


class WriteGroupEnded(StorageError, StorageUnavailable):
    """This node has no part in a write group any more, though its disk is well; other write groups go on."""


class ChangesFailed(StorageError, StorageUnavailable):
    """A change could not be made in some write groups; in all others it was made."""

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        """`errors`: why, by write group."""
        super().__init__("; ".join(f"write group {group}: {error}" for group, error in sorted(errors.items())))
        self.groups = frozenset(errors)


class SegmentGone(StorageError):
    """A journal segment was recycled under its reader; look the offset up again."""


class NotTheLeader(StorageError, LeaderMissing):
    """Another node leads the write group, or none does now. Nothing was logged; ask the leader."""
