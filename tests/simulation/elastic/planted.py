"""Bugs to plant where replicas move, by `cluster.planted`."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import Any

from tests.simulation.cluster.planted import Plant

from mainstem.model import SLOTS, slot_of
from mainstem.nameserver.state import state
from mainstem.nameserver.state.plans import write_group_growth
from mainstem.nameserver.state.plans.drain_plan import Placements, Standings
from mainstem.node.views import cluster_views
from mainstem.raft import ChangeKind, MembershipChange
from mainstem.storage.cluster.departures import Departures
from mainstem.storage.cluster.membership_steps import MembershipSteps
from mainstem.storage.write_groups.write_group import WriteGroup


def _learner_counts_as_a_copy() -> tuple[type, str, Any]:
    """An old replica goes as soon as the new one learns: whether it has a vote is not looked at."""
    take = MembershipSteps._next

    def hasty(
        steps: MembershipSteps, group: WriteGroup, wanted: frozenset[int], guests: frozenset[int]
    ) -> MembershipChange | None:
        voters, learners = group.consensus.voters, group.consensus.learners
        if wanted <= voters | learners:
            for node_id in sorted(voters - wanted, key=lambda one: (one == steps._node_id, one)):
                return MembershipChange(ChangeKind.REMOVE, node_id)
        return take(steps, group, wanted, guests)

    return MembershipSteps, "_next", hasty


def _repair_removes_a_good_copy() -> tuple[type, str, Any]:
    """A node that is back while its replica is rebuilt elsewhere believes placement: what it has goes at once."""

    async def is_out(departures: Departures, group: WriteGroup, placed: Collection[int]) -> bool:
        return True

    return Departures, "_is_out", is_out


def _drain_ends_early() -> tuple[ModuleType, str, Any]:
    """A drained node is empty once placement wants nothing there any more, whatever it still has."""

    def left_on(node_id: int, placements: Placements, standings: Standings) -> list[int]:
        return [group for group, replicas in sorted(placements.items()) if node_id in replicas]

    return cluster_views, "left_on", left_on


def _slots_with_queues_move() -> tuple[ModuleType, str, Any]:
    """Write groups that are added take over slots to which queues hash: these queues are appended to in two of them."""
    return write_group_growth, "slot_of", lambda queue_id: 0


def _classes_are_forgotten() -> tuple[ModuleType, str, Any]:
    """Queues are looked for among the slots of the first write groups, whatever their numbers say."""
    return state, "slot_of", lambda queue_id: slot_of(queue_id) % SLOTS


ELASTIC_PLANTS: dict[str, Plant] = {
    "learner-counts-as-a-copy": _learner_counts_as_a_copy,
    "repair-removes-a-good-copy": _repair_removes_a_good_copy,
    "drain-ends-early": _drain_ends_early,
    "slots-with-queues-move": _slots_with_queues_move,
    "classes-are-forgotten": _classes_are_forgotten,
}

ELASTIC_BREAKS = dict.fromkeys(ELASTIC_PLANTS, "P")
"""As `cluster.planted.BREAKS`."""

FOUND_BY = {
    "learner-counts-as-a-copy": "one was given up before another one had taken its place",
    "repair-removes-a-good-copy": "removes a good copy of write group",
    "drain-ends-early": "while it is drained, and still is a member",
    "slots-with-queues-move": "and its slot is given to write group",
    "classes-are-forgotten": "copies, and the topic asks",
}
"""The words of the check that finds each."""

WITH_CLASSES = {"classes-are-forgotten"}
"""Found where write groups have different replication factors."""
