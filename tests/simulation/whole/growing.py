"""Nodes of a cluster to which write groups are added while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.simulation.cluster.lives import Life
from tests.simulation.whole.node import WholeNode

from mainstem.storage.placement import NO_OTHERS, NOTHING_MOVED
from mainstem.storage.role import Storage


class GrowingNode(WholeNode):
    """Write groups that come later are watched like the first ones."""

    def watch_storage(self, storage: Storage, life: Life) -> None:
        super().watch_storage(storage, life)
        grow = storage.grow

        def grown(
            slots: Sequence[int],
            groups: int,
            numbers: Mapping[int, int] = NOTHING_MOVED,
            others: Mapping[int, Sequence[int]] = NO_OTHERS,
        ) -> None:
            before = len(storage.groups)
            grow(slots, groups, numbers, others)
            for group in storage.groups[before:]:
                self._observe_snapshots(group, life)
                self._observe_promises(group, life)
                self._watch_new(group.group, storage, life)

        storage.grow = grown  # type: ignore[method-assign]

    def _watch_new(self, group: int, storage: Storage, life: Life) -> None:
        """A write group has come."""

    def leads(self, group: int) -> bool:
        """A node may not have heard of the last write groups yet."""
        return self.serving is not None and group < len(self.serving.groups) and super().leads(group)

    def holds(self, group: int, index: int) -> bool:
        known = len(self.storage.groups) if hasattr(self, "storage") else 0
        return group < known and super().holds(group, index)
