"""The clocks of the other nodes: heartbeats carry their readings to the metadata leader and back.

This node advances a reading with its own monotonic time until the next one comes, so that a step of the clock here
changes nothing in what is known of the others. Soft state, never logged.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.ports import Clock
from mainstem.rpc.messages.metadata import NodeClock

STALE_SECONDS = 30.0
"""An older reading is dropped: some ten heartbeats, and far less time than a clock needs to drift by a
day."""

READINGS_MAX = 1_000
"""Nodes whose readings are kept: as many as a reply has verdicts of."""


class Clocks:
    """Holds the last clock reading of each node, and computes what that clock says now."""

    def __init__(self, node_id: int, clock: Clock) -> None:
        self._node_id = node_id
        self._clock = clock
        self._heard: dict[int, tuple[int, float]] = {}
        """node id → (what its clock said in ms, when by this node's monotonic time)"""

    def heard(self, node_id: int, now_ms: int, age_ms: int = 0) -> None:
        """Note what a node's clock said `age_ms` ago; 0: the node's version does not report its clock."""
        if now_ms > 0 and (node_id in self._heard or len(self._heard) < READINGS_MAX):
            self._heard[node_id] = now_ms - age_ms, self._clock.monotonic() - age_ms / 1000

    def learn(self, told: Iterable[NodeClock]) -> None:
        """Take over the readings that the metadata leader sent."""
        for one in told:
            if one.node != self._node_id:
                self.heard(one.node, one.now_ms, one.age_ms)

    def told(self) -> list[NodeClock]:
        """The readings known here, as they are sent to other nodes."""
        known = [(node_id, self.time_of(node_id)) for node_id in sorted({*self._heard, self._node_id})]
        return [NodeClock(node_id, time, self._age_ms(node_id)) for node_id, time in known if time is not None]

    def _age_ms(self, node_id: int) -> int:
        if node_id == self._node_id:
            return 0
        return int(1000 * (self._clock.monotonic() - self._heard[node_id][1]))

    def time_of(self, node_id: int) -> int | None:
        """The reading of the node's clock now, in ms; None: no reading of it is young enough."""
        if node_id == self._node_id:
            return self._clock.now_ms()
        reading = self._heard.get(node_id)
        if reading is None or self._clock.monotonic() - reading[1] > STALE_SECONDS:
            return None
        return reading[0] + int(1000 * (self._clock.monotonic() - reading[1]))
