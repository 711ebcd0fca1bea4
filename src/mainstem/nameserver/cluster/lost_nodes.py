"""Which storage nodes have been dead for so long that what they held is rebuilt elsewhere.

Soft state, on every node: times begin anew when another node leads the metadata, so that a leader lets every node be
heard for the whole time before it acts. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class LostNode(NamedTuple):
    dead_seconds: float
    """For which the metadata leader of now has held it for dead."""
    rebuilt_in_seconds: float | None
    """Until what it held is rebuilt elsewhere; 0: that may begin, None: it does not come by itself."""


class LostNodes:
    """`after_seconds`: 0 for a cluster in which nothing is rebuilt by itself."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._leader = -1
        self._dead_since: dict[int, float] = {}
        self._now = 0.0
        self._storing = 0

    def look(self, now: float, leader: int, storing: Collection[int], dead: Collection[int]) -> None:
        """`storing` are the nodes with the role storage, `dead` those of them that the metadata leader holds for dead;
        `now` in seconds of a clock that only goes forward."""
        since = self._dead_since if leader == self._leader and leader >= 0 else {}
        self._dead_since = {node_id: since.get(node_id, now) for node_id in dead}
        self._leader, self._now, self._storing = leader, now, len(storing)

    @property
    def outage(self) -> bool:
        """Whether half of the nodes that store or more are dead: a network or a building is more likely to be at fault
        than they are, and to copy all of it to the rest would fill that. Nothing is rebuilt meanwhile."""
        return 2 * len(self._dead_since) >= self._storing

    @property
    def dead(self) -> Mapping[int, LostNode]:
        """By node id."""
        return {node_id: self._of(since) for node_id, since in sorted(self._dead_since.items())}

    @property
    def lost(self) -> frozenset[int]:
        """Those whose replicas are rebuilt elsewhere now."""
        return frozenset(node_id for node_id, it in self.dead.items() if it.rebuilt_in_seconds == 0)

    def _of(self, since: float) -> LostNode:
        dead_seconds = self._now - since
        if not self._after_seconds or self.outage:
            return LostNode(dead_seconds, None)
        return LostNode(dead_seconds, max(0.0, self._after_seconds - dead_seconds))
