"""The view that explains why something is where it is: in plain sentences, with the facts that they tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainstem.console.views.of_cluster import (
    BalanceMoveView,
    MoveView,
    NodeLoadView,
    ReplicaView,
    WriteGroupLoadView,
)


class BegunMoveView(msgspec.Struct, frozen=True, kw_only=True):
    """A move that was begun: the replica of a write group on node `old` was to go to node `new`; or, with `preferred`,
    the one on `new` was to lead in place of the one on `old`."""

    group: int
    old: int
    new: int
    preferred: bool
    why: str
    """Empty: its reason is not known."""
    age_seconds: float


class ExplanationView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node, a write group or a queue is where it is."""

    subject: str
    """In words, as a sentence begins with it."""
    sentences: Sequence[str]
    """For people, in the order in which they are meant."""
    node: int | None = None
    group: int | None = None
    """Of a write group, or of the one that a queue belongs to."""
    topic: str | None = None
    partition: int | None = None
    slot: int | None = None
    leader: int | None = None
    """The node that leads the write group; -1: none that is known."""
    preferred_leader: int | None = None
    replicas: Sequence[ReplicaView] = []
    holds: Sequence[int] = []
    """The write groups of which a node has replicas."""
    leads: Sequence[int] = []
    """Those of them that it leads."""
    load: WriteGroupLoadView | None = None
    node_load: NodeLoadView | None = None
    moves: Sequence[MoveView] = []
    """Those under way."""
    begun: Sequence[BegunMoveView] = []
    """The last moves, as far as somebody remembers them, the newest first."""
    planned: Sequence[BalanceMoveView] = []
    """The moves that a rebalance would begin, or plan behind those."""
    waits_for: Sequence[str] = []
    """Why something does not go on, in words."""
