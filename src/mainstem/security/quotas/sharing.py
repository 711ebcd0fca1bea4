"""How the nodes of a cluster share a quota, so that a client has it once, whichever nodes it uses. No I/O, no clock.

Each node tells the metadata's leader with its heartbeats what its clients took of each quota, and whether they were
held back; the leader answers with the node's part. Nodes whose clients are not held back get what they take and a
little more, the others share the rest evenly; parts of a quota always add up to the whole of it. A quota that one node
alone uses is that node's. The report is bounded: of very many quotas those with the most use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from mainstem.security.quotas.quota import Entity

QUOTAS_TOLD_MAX = 1_000
"""In one heartbeat of a node: some 40 kB. Of others each node has its share by the number of nodes."""

USE_SECONDS = 3.0
"""For which the use that a node told counts: six heartbeats."""

SETTLING_SECONDS = 1.5
"""A new leader gives no parts before it has heard of all nodes: three heartbeats."""

HEADROOM = 1.03
LEAST = 0.005
"""A node that is not held back gets three percent more than it takes, and at least half a percent of the whole: one
that takes more is held back for one heartbeat, and then gets an even part."""

ID_BYTES = 16


class QuotaUse(NamedTuple):
    """The share that the clients of a node take of one quota."""

    quota: bytes
    """`quota_id`."""
    whole: float
    """All of the quota, per second."""
    used: float
    """Per second."""
    held_back: bool
    """Whether clients had to wait for it."""


class QuotaPart(NamedTuple):
    quota: bytes
    per_second: float


class QuotaUser(Protocol):
    """A node's broker, which holds clients to its parts."""

    def quotas_used(self) -> Sequence[QuotaUse]:
        """The use of its clients since the last call, `QUOTAS_TOLD_MAX` at most."""
        ...

    def quotas_parted(self, parts: Iterable[QuotaPart]) -> None:
        """Its parts from now on."""
        ...


def quota_id(key: str, of: Entity) -> bytes:
    """The same on all nodes, and short whatever the names are."""
    return hashlib.blake2b(repr((key, of)).encode(), digest_size=ID_BYTES).digest()


class QuotaSharing:
    """The leader's side."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._told: dict[int, tuple[float, dict[bytes, QuotaUse]]] = {}
        """By node when it told its use last, and what it was."""

    def told(self, node_id: int, uses: Iterable[QuotaUse], now: float) -> list[QuotaPart]:
        """A node tells its use, all of it; its parts."""
        self._told[node_id] = (now, {use.quota: use for use in uses})
        if now - self._since < SETTLING_SECONDS:
            return []
        self._told = {node: it for node, it in self._told.items() if now - it[0] < USE_SECONDS}
        return [QuotaPart(quota, self._part(node_id, quota)) for quota in self._told[node_id][1]]

    def _part(self, node_id: int, quota: bytes) -> float:
        uses = {node: use for node, (_, told) in self._told.items() if (use := told.get(quota)) is not None}
        own, whole = uses[node_id], max(use.whole for use in uses.values())
        eager = [use for use in uses.values() if use.held_back]
        if not eager:  # what is left over is anybody's
            left = whole - sum(use.used for use in uses.values())
            return max(own.used + left / len(uses), LEAST * whole)
        most = whole / len(uses)
        modest = sum(_modest(use, whole, most) for use in uses.values() if not use.held_back)
        return (whole - modest) / len(eager) if own.held_back else _modest(own, whole, most)


def _modest(use: QuotaUse, whole: float, most: float) -> float:
    """The part of a node that is not held back. It may have more than an even part only if nobody wants it."""
    return min(HEADROOM * use.used + LEAST * whole, max(most, 0.0))
