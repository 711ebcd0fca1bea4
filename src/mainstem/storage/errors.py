"""What the storage role reports."""

from __future__ import annotations

from mainstem.errors import MainstemError


class StorageError(MainstemError):
    """Base of the storage role's errors."""


class FormatError(StorageError):
    """Bytes on a disk that are not what the format says; the message names file and position."""


class CorruptJournal(StorageError):
    """A block known to be durable cannot be read back. The group is refused; nothing is truncated."""


class StorageFailed(StorageError):
    """The disk failed a write or a sync; this node accepts no more writes until it is started again."""


class SegmentGone(StorageError):
    """A journal segment was recycled under its reader; look the offset up again."""
