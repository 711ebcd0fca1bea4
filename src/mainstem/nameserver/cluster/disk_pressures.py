"""Nodes tell each other how full their disks 1 are, by way of their heartbeats, once there is little room, and which
tenants have filled them.

A write group lies on the disks 1 of all of its replicas, each of which splits its own copy at its own pace; its leader
is the one that can have producers wait. The metadata's leader remembers what nodes tell it and tells all of them. Soft
state, in memory alone; a node that says no more has room, or is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from mainstem.rpc.messages.metadata import NODES_PRESSED_MAX, PRESSURE_MAX, TENANTS_PRESSING_MAX, DiskPressure
from mainstem.security.quotas.disk_shares import BEGINS_AT

NO_PRESSURE = float("-inf")

STALE_SECONDS = 5.0
"""A node's word counts for so long: several heartbeats, and a small part of the time in which a disk fills."""


class _Heard(NamedTuple):
    told: DiskPressure
    at: float


class DiskPressures:
    """Holds what this node has heard of others."""

    def __init__(self, node_id: int, monotonic: Callable[[], float]) -> None:
        self._node_id = node_id
        self._monotonic = monotonic
        self.measure: Callable[[], tuple[float, Collection[str]]] = lambda: (NO_PRESSURE, ())
        """Measures the pressure on this node's own disk 1, and says which tenants have filled it."""
        self._heard: dict[int, _Heard] = {}

    def own(self) -> DiskPressure | None:
        """This node's, as it tells others; None: there is room."""
        pressure, tenants = self.measure()
        if pressure <= BEGINS_AT:
            return None
        return DiskPressure(self._node_id, min(pressure, PRESSURE_MAX), list(tenants)[:TENANTS_PRESSING_MAX])

    def heard(self, node_id: int, told: DiskPressure | None) -> None:
        """A node told its own; None: there is room."""
        if told is None:
            self._heard.pop(node_id, None)
        elif node_id in self._heard or len(self._heard) < NODES_PRESSED_MAX:
            self._heard[node_id] = _Heard(DiskPressure(node_id, told.pressure, told.tenants), self._monotonic())

    def learn(self, told: Iterable[DiskPressure]) -> None:
        """The metadata's leader told those of all nodes."""
        now = self._monotonic()
        self._heard = {it.node: _Heard(it, now) for it in told}

    def told(self) -> list[DiskPressure]:
        self._forget()
        return [it.told for it in self._heard.values()]

    def of(self, nodes: Collection[int]) -> tuple[float, frozenset[str]]:
        """The highest of these nodes, and all tenants that have filled their disks; `NO_PRESSURE` where all have room,
        as far as is known."""
        found = [it for it in self.told() if it.node in nodes]
        tenants = frozenset(tenant for it in found for tenant in it.tenants)
        return max((it.pressure for it in found), default=NO_PRESSURE), tenants

    def _forget(self) -> None:
        if self._heard:
            oldest = self._monotonic() - STALE_SECONDS
            self._heard = {node_id: it for node_id, it in self._heard.items() if it.at >= oldest}
