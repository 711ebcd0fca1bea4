"""The metadata leader's duties that have replicas move, wired to what the nodes report."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mainstem.nameserver.cluster.balance_planner import BalancePlanner, ToldFacts
from mainstem.nameserver.cluster.balancing import Balancer
from mainstem.nameserver.cluster.draining import Draining
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.plans.drain_plan import Standings
from mainstem.node.node_reports import NodeReports
from mainstem.node.node_roles import Roles


class MovingDuties(NamedTuple):
    """Made on every node; the caller runs them where there are other nodes."""

    draining: Draining
    planner: BalancePlanner
    balancer: Balancer


def moving_duties(nameserver: Nameserver, reports: NodeReports, leader: Callable[[int], int]) -> MovingDuties:
    """`leader` names the node that leads a write group, as far as this one knows; -1: none."""

    async def standings() -> Standings:
        return await reports.standings([node.node_id for node in nameserver.lookups.nodes() if node.stores])

    async def facts() -> ToldFacts:
        return await reports.facts([node.node_id for node in nameserver.lookups.nodes()])

    draining = nameserver.draining(standings)
    planner = nameserver.balance_planner(draining.takers, leader, facts)
    return MovingDuties(draining, planner, nameserver.balancer(planner, draining.takers))


def leader_of(roles: Roles) -> Callable[[int], int]:
    """Names the node that leads a write group, as far as this node knows."""
    return roles.held.leadership.leader if roles.held is not None else roles.nameserver.lookups.write_group_leader
