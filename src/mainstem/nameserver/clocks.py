"""What the clocks of the other nodes say, as heartbeats bring it to the metadata leader and back.

A reading goes on with this node's monotonic time until the next one, so that a step of the clock here changes nothing
of what is known of the others. Soft state, never logged.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.ports import Clock
from mainstem.rpc.metadata import NodeClock

STALE_SECONDS = 30.0
"""A reading older than this is none: some ten heartbeats, and far less than a clock drifts by in a day."""

READINGS_MAX = 1_000
"""As many nodes as a reply has verdicts of."""


class Clocks:
    """What the clocks of nodes said, and what that makes now."""

    def __init__(self, node_id: int, clock: Clock) -> None:
        self._node_id = node_id
        self._clock = clock
        self._heard: dict[int, tuple[int, float]] = {}
        """Per node what its clock said (ms), and when by monotonic time."""

    def heard(self, node_id: int, now_ms: int, age_ms: int = 0) -> None:
        """What time it is at a node, which it said so long ago; 0: it is of a version that does not say so."""
        if now_ms > 0 and (node_id in self._heard or len(self._heard) < READINGS_MAX):
            self._heard[node_id] = now_ms - age_ms, self._clock.monotonic() - age_ms / 1000

    def learn(self, told: Iterable[NodeClock]) -> None:
        """The metadata leader has just said what it knows."""
        for one in told:
            if one.node != self._node_id:
                self.heard(one.node, one.now_ms, one.age_ms)

    def told(self) -> list[NodeClock]:
        """What is known here, for others."""
        known = [(node_id, self.time_of(node_id)) for node_id in sorted({*self._heard, self._node_id})]
        return [NodeClock(node_id, time, self._age_ms(node_id)) for node_id, time in known if time is not None]

    def _age_ms(self, node_id: int) -> int:
        if node_id == self._node_id:
            return 0
        return int(1000 * (self._clock.monotonic() - self._heard[node_id][1]))

    def time_of(self, node_id: int) -> int | None:
        """What a node's clock says now; None: it was not heard lately."""
        if node_id == self._node_id:
            return self._clock.now_ms()
        reading = self._heard.get(node_id)
        if reading is None or self._clock.monotonic() - reading[1] > STALE_SECONDS:
            return None
        return reading[0] + int(1000 * (self._clock.monotonic() - reading[1]))
