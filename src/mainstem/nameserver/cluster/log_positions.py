"""The metadata leader notes how far the other nodes are in the metadata's log, as their heartbeats tell, and when each
of them last had all that the leader had.

A node that has, at one heartbeat, what the leader had at the one before, was level with the leader then: in between the
leader may have gone on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HeardPosition:
    """Times in seconds of the leader's monotonic clock."""

    applied: int
    heard_at: float
    leader_applied: int
    """The last entry of the leader when it heard this."""
    caught_up_at: float | None = None
    """None: not since this node leads."""


class LogPositions:
    """Under one leadership; one entry for each node that was heard."""

    def __init__(self) -> None:
        self._heard: dict[int, HeardPosition] = {}

    def heard(self, node_id: int, applied: int, leader_applied: int, now: float) -> None:
        """A node says that it has applied entries up to `applied`; this one has those up to `leader_applied`."""
        before = self._heard.get(node_id)
        caught_up_at = None if before is None else before.caught_up_at
        if applied >= leader_applied:
            caught_up_at = now
        elif before is not None and applied >= before.leader_applied:
            caught_up_at = before.heard_at
        self._heard[node_id] = HeardPosition(applied, now, leader_applied, caught_up_at)

    def of(self, node_id: int) -> HeardPosition | None:
        """None: the node was not heard since this one leads."""
        return self._heard.get(node_id)
