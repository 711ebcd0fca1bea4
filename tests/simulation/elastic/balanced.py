"""A cluster that spreads its load by itself: each write group takes in a rate of its own, which its leader tells, and
the balancer is on.

It is watched that the balancer moves no write group again before that has rested, as long as the same node leads the
metadata, and that it comes to an end in which nobody has too much to do (S), under the faults and beside the operator
of elastic clusters.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
from tests.simulation.cluster.run import HEALED_SECONDS, Outcomes
from tests.simulation.elastic.cluster import ElasticCluster, ElasticNode, ElasticSettings
from tests.simulation.elastic.operator import Operator
from tests.simulation.elastic.run import ElasticRun
from tests.simulation.oracle import Violation, play_seed, require
from tests.simulation.whole.node import WholeNode

from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.config import NodeConfig
from mainstem.node.moving_duties import MovingDuties
from mainstem.node.node_roles import Roles
from mainstem.rpc.messages.loads import ToldLoad, ToldMove, ToldSlotMove, ToldWriteGroupLoad

REST_SECONDS = 10
"""Simulated: some looks, and many times within a run."""

EVEN_SECONDS = 40.0 * REST_SECONDS
"""Simulated. Without faults: some moves, each behind a copy, three looks and a rest."""

RATES = (1e6, 10e6, 40e6)
"""Bytes per second that write groups take in: next to nothing, some, and as much as makes a node busy."""


class BalancedSettings(ElasticSettings):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.groups = 4
        self.rates = [rng.choice(RATES) for _ in range(16)]
        """By write group."""

    def config(self, node_id: int) -> NodeConfig:
        config = super().config(node_id)
        nameserver = msgspec.structs.replace(
            config.nameserver, balance="replicas", balance_seconds=1, balance_moves_per_hour=100,
            balance_rest_seconds=REST_SECONDS,
        )  # fmt: skip
        nameserver.validate()
        return msgspec.structs.replace(config, nameserver=nameserver)


class BalancedNode(ElasticNode):
    cluster: BalancedCluster

    def _begin_balancing(self, roles: Roles, duties: MovingDuties) -> None:
        nameserver, rates = roles.nameserver, self.cluster.settings.rates
        storage = roles.storage

        def load() -> ToldLoad:
            led = [it.group for it in storage.groups if it.serving]
            return ToldLoad(write_groups=[ToldWriteGroupLoad(it, rates[it], 0.0, 0.0, 3600.0) for it in led])

        nameserver.measure_load(load)
        roles.reports.loads, roles.reports.moves = nameserver.loads, nameserver.recent_moves.told
        roles.reports.balancer = duties.balancer.told
        self._watch_moves(nameserver, duties.draining.takers)
        roles.setup.background.begin(duties.balancer.run, "balancer")

    def _watch_moves(self, nameserver: Nameserver, takers: Callable[[], list[int]]) -> None:
        cluster, moved = self.cluster, dict[int, float]()

        def noted(move: ToldMove | ToldSlotMove) -> None:
            if isinstance(move, ToldSlotMove):
                return
            now, group = cluster.loop.time(), move.group
            if move.by_balancer:
                cluster.guard(lambda: cluster.rested(group, now - moved.get(group, -1e9)))
                cluster.balanced.append(Balanced(now, group, move.old, move.new, move.preferred, tuple(takers())))
            moved[group] = now

        nameserver.recent_moves.watchers.append(noted)


class Balanced(NamedTuple):
    """A move that a balancer began."""

    at: float
    group: int
    old: int
    new: int
    preferred: bool
    takers: tuple[int, ...]
    """The nodes that might take something."""


class BalancedCluster(ElasticCluster):
    node_kind: ClassVar[type[WholeNode]] = BalancedNode
    spare_kind: ClassVar[type[ElasticNode]] = BalancedNode
    settings: BalancedSettings

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.balanced: list[Balanced] = []

    def rested(self, group: int, seconds: float) -> None:
        require(
            seconds >= REST_SECONDS,
            f"the balancer moves write group {group} again after {seconds:.1f} s, and it rests for {REST_SECONDS}",
            "S",
        )


class PatientOperator(Operator):
    """Drains nodes and adds write groups, and leaves it to the cluster to spread what they do."""

    async def _rebalance(self) -> None:
        await self._pause(1.0, 4.0, 8.0)

    async def _is_balanced(self) -> bool:
        """Whether a rebalance would find nothing to do, and nothing is under way."""
        plan = await self._balance(dry_run=True)
        return plan is not None and not plan.moves and not plan.under_way and plan.by_load

    async def _finish_balance(self) -> None:
        """Once there are no faults any more, no write group goes back to where the balancer took it from while the same
        nodes are there. One that has nothing may restart meanwhile, and is not waited for."""
        cluster = self._cluster
        assert isinstance(cluster, BalancedCluster)
        calm, over = cluster.loop.time(), cluster.loop.time() + EVEN_SECONDS
        if not await self._until(self._is_balanced, over - calm, ending=True):
            raise Violation(f"the balancer has not spread the load: {await self._balance(dry_run=True)}", "S")
        since = [it for it in cluster.balanced if it.at >= calm]
        for takers, moves in itertools.groupby(since, lambda it: it.takers):
            there = list(moves)
            gave = {(it.group, it.old, it.preferred) for it in there}
            back = [it for it in there if (it.group, it.new, it.preferred) in gave]
            require(not back, f"the balancer moved back and forth between nodes {takers}: {back}", "S")
        self._did("balanced")
        if cluster.balanced:
            self._did("by itself", len(cluster.balanced))


class BalancedRun(ElasticRun):
    operator_kind: ClassVar[type[Operator]] = PatientOperator
    _ending_seconds = 3 * HEALED_SECONDS + EVEN_SECONDS

    def _settings(self, rng: random.Random) -> BalancedSettings:
        return BalancedSettings(rng)

    def _new_cluster(self, *arguments: Any) -> BalancedCluster:
        return BalancedCluster(*arguments)


def play(seed: int, directory: Path, *, seconds: float | None = None) -> Outcomes:
    """Play one run; a failure names its seed."""
    return play_seed(BalancedRun, seed, directory, seconds)
