"""The port through which a core reads the driver's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mainstem.raft.entry import Entry, Snapshot


class LogStore(Protocol):
    """The log as the driver holds it: everything taken from a `Ready` that was advanced, durable or not.

    An empty log that begins at the beginning has first index 1 and last index 0."""

    def first_index(self) -> int:
        """The oldest entry the store has: the entry behind the newest snapshot, or an older one."""
        ...

    def last_index(self) -> int:
        """The newest entry; `first_index() - 1` if there is none."""
        ...

    def term(self, index: int) -> int:
        """The term of an entry, also of the one right before the first (0 for index 0). Raises `Compacted` for
        anything older, `Unavailable` for anything newer than the last."""
        ...

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        """Entries `first` to `last`, both included, fewer if their sizes pass `bytes_max`, but one at least.
        Raises `Compacted` or `Unavailable`."""
        ...

    def snapshot(self) -> Snapshot:
        """The newest snapshot there is, at `first_index() - 1` or later. Raises `Unavailable` if none can be had
        now: the core asks again."""
        ...
