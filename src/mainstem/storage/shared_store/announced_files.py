"""Files that a task writes to a shared store: none is begun before the log of its write group says that it is to come.

A file that is begun and never comes to count is then known by its name, and the node deletes what is left of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.storage.shared_store.blocking_store import BlockingStore
from mainstem.storage.shared_store.object_target import ObjectTarget
from mainstem.storage.store_files.announcement import Announce
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import owner_of
from mainstem.storage.store_files.write_pace import WritePace


class AnnouncedFiles:
    """The outputs of one task."""

    def __init__(self, store: BlockingStore, ask: Announce, *, bytes_per_second: int = 0) -> None:
        """`ask`: the node. `bytes_per_second`: the pace of each file, 0 is unpaced."""
        self._store = store
        self._ask = ask
        self._bytes_per_second = bytes_per_second
        self._groups: dict[str, int] = {}
        """Write group of each name."""

    def announce(self, group: int, names: Sequence[str]) -> None:
        """Have the node announce those of these names that it has not."""
        new = [name for name in names if name not in self._groups]
        if new:
            self._ask(group, new)
            self._groups.update(dict.fromkeys(new, group))

    def open(self, path: str) -> ObjectTarget:
        """Open a file for writing at this path below the root of the store; its name is announced."""
        name = owner_of(path)
        assert name in self._groups, f"{path} was not announced"
        return ObjectTarget(self._store, object_of(self._groups[name], path), WritePace(self._bytes_per_second))
