"""The metadata leader remembers how loaded the nodes are, as their heartbeats tell it.

Soft state, in memory alone: a new leader knows nothing before the nodes' next heartbeats. A write group that changes
its leader keeps the load that the leader before measured, until the new one has measured for long enough: what moves
does not seem light because it has just moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mainstem.rpc.messages.loads import (
    NODES_TOLD_MAX,
    ToldLoad,
    ToldLoads,
    ToldNodeLoad,
    ToldWriteGroupLoad,
)

STALE_SECONDS = 15.0
"""A node's load is forgotten after so long without another: a few heartbeats, and longer than a suspicion lasts."""

SETTLED_SECONDS = 60.0
"""A new leader's measure of a write group counts after so long: two times that in which rates are smoothed."""


class _Heard(NamedTuple):
    load: ToldLoad
    at: float


class _Measured(NamedTuple):
    load: ToldWriteGroupLoad
    node: int
    at: float


class NodeLoads:
    """Holds this node's measure, and on the metadata leader the last load of each node."""

    def __init__(self, node_id: int, monotonic: Callable[[], float]) -> None:
        self._node_id = node_id
        self._monotonic = monotonic
        self.measure: Callable[[], ToldLoad] | None = None
        """Measures this node; None: it does not say how loaded it is."""
        self._term = 0
        self._heard: dict[int, _Heard] = {}
        self._write_groups: dict[int, _Measured] = {}

    def own(self) -> ToldLoad | None:
        return None if self.measure is None else self.measure()

    def heard(self, node_id: int, load: ToldLoad | None, term: int) -> None:
        """A node told the leader of this term its load; None: its version does not."""
        self._lead(term)
        if load is None or (node_id not in self._heard and len(self._heard) >= NODES_TOLD_MAX):
            return
        now = self._monotonic()
        self._heard[node_id] = _Heard(load, now)
        for told in load.write_groups:
            known = self._write_groups.get(told.group)
            settled = known is None or known.node == node_id or told.seconds >= SETTLED_SECONDS
            if settled or (known is not None and now - known.at > SETTLED_SECONDS):
                self._write_groups[told.group] = _Measured(told, node_id, now)

    def told(self, term: int) -> ToldLoads:
        """The loads known to this node, which leads in this term. Loads that are too old are forgotten."""
        self.heard(self._node_id, self.own(), term)
        now = self._monotonic()
        self._heard = {node: it for node, it in self._heard.items() if now - it.at <= STALE_SECONDS}
        self._write_groups = {
            group: it for group, it in self._write_groups.items() if now - it.at <= 2 * SETTLED_SECONDS
        }
        return ToldLoads(
            [ToldNodeLoad(node, max(0.0, now - it.at), it.load) for node, it in sorted(self._heard.items())],
            [it.load for _, it in sorted(self._write_groups.items())],
        )

    def _lead(self, term: int) -> None:
        if term != self._term:
            self._term = term
            self._heard.clear()
            self._write_groups.clear()
