"""One simulated run of a cluster whose replicas move, from one seed. In the end each write group has as many good
replicas as before, where placement wants them, and other nodes have nothing of it.

Nodes join, are drained, and stay dead until what they held is rebuilt, and an operator has replicas spread evenly, all
of it while clients are at work, under the faults that whole nodes have anyway.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import HEALED_SECONDS, HasLived, NodeSplitters, Outcomes, passes_seen
from tests.simulation.compactor import Compactors
from tests.simulation.elastic.cluster import ElasticCluster, ElasticNode, ElasticSettings
from tests.simulation.elastic.operator import Operator
from tests.simulation.merger import Mergers
from tests.simulation.oracle import Violation, require, seed_failed
from tests.simulation.whole.clients import Watchman
from tests.simulation.whole.run import POLL_SECONDS, WholeRun

from mainstem.model import FACTOR_OF_CLUSTER

CLASSES = "classes"
"""Stands for write groups of different replication factors, as transactions do among the faults."""

HARM_TO_DISKS = ("old copy", "bit flip", "rotten file", "rotten producers")
"""The names of these faults."""

SETTLED_SECONDS = 240.0
"""Simulated. A replica that is removed goes once it asks the others, and their splitters hold files for some time."""


class ElasticRun(WholeRun):
    """`ElasticRun(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    cluster: ElasticCluster
    operator_kind: ClassVar[type[Operator]] = Operator
    _ending_seconds = 3 * HEALED_SECONDS

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        seconds = seconds or random.Random(f"{seed} elastic").choice([6.0, 10.0, 15.0])
        super().__init__(seed, directory, seconds=seconds, faults=[fault for fault in faults if fault != CLASSES])
        self._seed = seed
        self.operator = self.operator_kind(
            self.cluster, self.work, random.Random(f"{seed} operator"), self.faults.bring_up, self._joined
        )
        if CLASSES in faults:
            self._have_classes(random.Random(f"{seed} classes"))
        self._watching: list[asyncio.Task[None]] = []

    def _settings(self, rng: random.Random) -> ElasticSettings:
        return ElasticSettings(rng)

    def _new_cluster(self, *arguments: Any) -> ElasticCluster:
        return ElasticCluster(*arguments)

    def _nodes_ever(self) -> Sequence[HasLived]:
        return [*super()._nodes_ever(), *self.cluster.removed.values()]

    def _have_classes(self, rng: random.Random) -> None:
        """The operator adds write groups with fewer replicas, and some of the topics made from then on ask for these.
        One replica alone is lost with its disk, so that no disk fails where there are such."""
        fewer = rng.choice([1, 2])
        self.operator.factors = (None, fewer)
        if fewer == 1:
            self.faults.leave_out(HARM_TO_DISKS)

        def factor() -> int:
            newest = self.cluster.newest_metadata()
            placed = newest.lookups.placements().values() if newest is not None else ()
            return rng.choice(sorted({len(replicas) for replicas in placed}) or [FACTOR_OF_CLUSTER])

        self.work.factors = factor

    # --- the story ----------------------------------------------------------------------------------------

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._load()
        yield self.operator.run()

    def _joined(self, node: ElasticNode) -> None:
        """A node is of the cluster from now on."""
        node_id, seed = node.node_id, self._seed
        self.splitters[node_id] = NodeSplitters(node, random.Random(f"{seed} splits {node_id}"))
        self.mergers[node_id] = Mergers(node, random.Random(f"{seed} merges {node_id}"))
        if self.compactors:
            rng = random.Random(f"{seed} compactions {node_id}")
            compactors = Compactors(node, rng, passes_seen(self.cluster, node_id))
            self.compactors = {**self.compactors, node_id: compactors}
        if not self.work.ending:
            self._begin_splitting(node)
            if node_id in self.cluster.serving_clients:
                watching = self._looked_after(Watchman(self.work, node_id).run())
                self._watching.append(self.loop.create_task(watching))

    # --- the end ------------------------------------------------------------------------------------------

    @property
    def _placements(self) -> dict[int, tuple[int, ...]]:
        """The nodes where the replicas of each write group are wanted, according to any node."""
        roles = next(iter(self.cluster.nodes.values())).roles
        assert roles is not None
        return dict(roles.nameserver.lookups.placements())

    def _holders_of(self, group: int) -> Collection[SimulatedNode]:
        """Those whose replicas have a vote: a balancer that goes on may have another one copied meanwhile."""
        placed, leaders = self._placements[group], self.cluster.leaders(group)
        voters = leaders[0].storage.groups[group].consensus.committed_membership.voters if leaders else placed
        return [self.cluster.nodes[node_id] for node_id in placed if node_id in voters]

    async def _settle(self) -> None:
        await asyncio.gather(*self._watching)
        await super()._settle()

    async def _agree_on_metadata(self) -> None:
        await super()._agree_on_metadata()
        self.cluster.settings.groups = len(self._placements)
        await self._settle_replicas()
        await super()._agree_on_metadata()  # a move may have been turned back meanwhile

    async def _settle_replicas(self) -> None:
        """Each write group has its replicas where they are wanted, as many as before, and none anywhere else."""
        for _ in range(int(SETTLED_SECONDS / POLL_SECONDS)):
            wrong = [why for group, placed in self._placements.items() if (why := self._wrong(group, placed))]
            if not wrong:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise Violation("; ".join(wrong), "P")

    def _wrong(self, group: int, placed: Sequence[int]) -> str:
        wanted = self.cluster.copies.wanted(group)
        require(len(set(placed)) == wanted, f"write group {group} is placed on {placed}, it had {wanted} copies", "P")
        unknown = sorted(set(placed) - set(self.cluster.nodes))
        require(not unknown, f"write group {group} is placed on {placed}, of which {unknown} were removed", "P")
        leaders = self.cluster.leaders(group)
        if not leaders:
            return f"write group {group} has no leader"
        membership = leaders[0].storage.groups[group].consensus.committed_membership
        if membership.voters != set(placed) or membership.learners:
            return f"write group {group} is placed on {placed}, and has {membership}"
        left = [
            node.node_id
            for node in self.cluster.nodes.values()
            if node.node_id not in placed and not node.is_without(group)
        ]
        return f"write group {group}: nodes {left} keep something of it, it is placed on {placed}" if left else ""

    def _outcomes(self) -> Outcomes:
        outcomes = super()._outcomes()
        outcomes.moves = self.operator.did
        return outcomes


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Outcomes:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = ElasticRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
