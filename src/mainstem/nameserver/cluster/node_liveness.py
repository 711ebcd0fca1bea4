"""The metadata leader judges which nodes live, by when it last heard from each and what the other nodes say
of it.

Soft state: a new leader begins with the verdicts that the leader before told it, and gives every node time to be
heard. A node is suspected after `suspect_seconds` without a heartbeat and dead after `dead_seconds`; where another
node says that its address refuses connections, the process is gone and it is dead after `refused_seconds`. Each
verdict says why. A silent node that another node reaches stays suspected and is not held for dead: this leader is the
one that does not hear it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mainstem.model import LevelRange


class NodeState(enum.Enum):
    ALIVE = "alive"
    SUSPECTED = "suspected"
    DEAD = "dead"


class LivenessVerdict(NamedTuple):
    """`reason` is for people; empty for a node that is well."""

    state: NodeState
    reason: str = ""


ALIVE = LivenessVerdict(NodeState.ALIVE)


class Thresholds(NamedTuple):
    """Seconds without a heartbeat."""

    suspect_seconds: float
    refused_seconds: float
    dead_seconds: float


OF_NOTHING = Thresholds(suspect_seconds=0.3, refused_seconds=0.3, dead_seconds=1.5)
"""For nodes that hold nothing and vote on nothing: who holds one for dead too soon only sends clients elsewhere. Three
heartbeats, since such nodes send one every `QUICK_SECONDS`."""

QUICK_SECONDS = 0.1


class Report(NamedTuple):
    """A node's report on itself, from its last heartbeat."""

    applied: int = 0
    disk: str = ""
    lag_bytes: int = 0
    levels: LevelRange = LevelRange()


@dataclass(slots=True)
class _Heard:
    at: float
    ever: bool
    report: Report
    failure: str = ""
    refused: bool = False
    gone: bool = False
    reached_by: int = 0
    """When another node last had an answer from it (`reached_by` names that node); 0: never."""
    reached_at: float = 0.0


class NodeLiveness:
    """Holds the last report of every node. `began`: when this node began to lead, in seconds of the clock of
    all times here."""

    def __init__(
        self,
        thresholds: Thresholds,
        began: float,
        dead: Mapping[int, str] = {},
        holds_nothing: Callable[[int], bool] = lambda node_id: False,
    ) -> None:
        self._thresholds = thresholds
        self._holds_nothing = holds_nothing
        self.began = began
        self._inherited = dict(dead)
        """Nodes that the leader before held for dead, and why."""
        self._heard: dict[int, _Heard] = {}

    def heard(self, node_id: int, now: float, report: Report) -> None:
        """A heartbeat came."""
        self._inherited.pop(node_id, None)
        self._heard[node_id] = _Heard(now, True, report)

    def failed(self, node_id: int, reason: str, *, refused: bool, now: float) -> None:
        """The node could not be reached; `refused`: its machine answered, but no process listens."""
        heard = self._heard.setdefault(node_id, _Heard(self.began, False, Report()))
        if heard.at < now:
            heard.failure, heard.refused = reason, refused

    def reached(self, node_id: int, by: int, now: float) -> None:
        """Node `by` got an answer from it."""
        self._inherited.pop(node_id, None)
        heard = self._heard.setdefault(node_id, _Heard(self.began, False, Report()))
        heard.reached_by, heard.reached_at = by, now

    def is_gone(self, node_id: int) -> bool:
        """Whether the node said that it stops, and was not heard since."""
        heard = self._heard.get(node_id)
        return heard is not None and heard.gone

    def left(self, node_id: int, now: float, why: str = "") -> None:
        """The node said that it stops; `why`: what is wrong with it, in words."""
        self._heard[node_id] = _Heard(now, True, Report(disk=why), gone=True)

    def report(self, node_id: int) -> Report | None:
        heard = self._heard.get(node_id)
        return heard.report if heard is not None and heard.ever else None

    def last_heard(self, node_id: int) -> float | None:
        """When the node was last heard; None: not since this node leads."""
        heard = self._heard.get(node_id)
        return heard.at if heard is not None and heard.ever else None

    def verdict(self, node_id: int, now: float) -> LivenessVerdict:
        if node_id in self._inherited:
            return LivenessVerdict(NodeState.DEAD, self._inherited[node_id])
        heard = self._heard.get(node_id) or _Heard(self.began, False, Report())
        if heard.gone:
            why = f"; {heard.report.disk}" if heard.report.disk else ""
            return LivenessVerdict(NodeState.DEAD, f"it said that it stops, {now - heard.at:.1f} s ago{why}")
        silence = now - heard.at
        limits = OF_NOTHING if self._holds_nothing(node_id) else self._thresholds
        dead_after = limits.refused_seconds if heard.refused else limits.dead_seconds
        reached = heard.reached_by and now - heard.reached_at < limits.dead_seconds
        if silence < limits.suspect_seconds and (silence < dead_after or reached):
            return ALIVE
        since = "no heartbeat" if heard.ever else "never heard of since this leader began"
        reason = f"{since} for {silence:.1f} s" if heard.ever else f"{since}, {silence:.1f} s ago"
        if heard.failure:
            reason += f"; {heard.failure}"
        if reached:
            return LivenessVerdict(NodeState.SUSPECTED, f"{reason}; node {heard.reached_by} reaches it")
        return LivenessVerdict(NodeState.DEAD if silence >= dead_after else NodeState.SUSPECTED, reason)

    def verdicts(self, node_ids: Iterable[int], now: float) -> dict[int, LivenessVerdict]:
        """The verdicts on those nodes that are not well."""
        found = {node_id: self.verdict(node_id, now) for node_id in node_ids}
        return {node_id: verdict for node_id, verdict in found.items() if verdict.state is not NodeState.ALIVE}
