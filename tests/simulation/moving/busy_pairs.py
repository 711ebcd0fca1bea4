"""A cluster in which two queues of one write group are busy: it has one of them go to another write group by itself.

Each write group takes in a little, and much more for each of the busy queues that is in it; its leader tells that, and
which queues they are. The queues' records are those of the simulation's clients, under the faults of whole nodes. Once
there are no faults any more the two have come apart (S), and neither moves again before it has rested.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from tests.simulation.cluster.run import HEALED_SECONDS, Outcomes
from tests.simulation.moving.clusters import LOOK_SECONDS, Mover, MovingCluster, MovingClusterRun, MovingNode
from tests.simulation.oracle import play_seed, require
from tests.simulation.whole.admin import Admin
from tests.simulation.whole.cluster import WholeSettings
from tests.simulation.whole.node import WholeNode

from mainstem.model import slot_of
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.config import NodeConfig
from mainstem.node.moving_duties import leader_of, moving_duties
from mainstem.node.node_roles import Roles
from mainstem.rpc.messages.loads import ToldLoad, ToldMove, ToldQueuePart, ToldSlotMove, ToldWriteGroupLoad

REST_SECONDS = 5
"""Simulated: some looks."""

LITTLE, MUCH = 2e6, 45e6
"""Bytes per second of a write group besides, and of a busy queue."""


class BusySettings(WholeSettings):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.groups = 3
        self.begins_old = False

    def config(self, node_id: int) -> NodeConfig:
        config = super().config(node_id)
        nameserver = msgspec.structs.replace(
            config.nameserver, balance="queues", balance_seconds=1, balance_moves_per_hour=100,
            balance_rest_seconds=REST_SECONDS,
        )  # fmt: skip
        nameserver.validate()
        return msgspec.structs.replace(config, nameserver=nameserver)


class BusyNode(MovingNode):
    cluster: BusyCluster

    def _before_balance(self, roles: Roles) -> None:
        nameserver, storage, moves = roles.nameserver, roles.storage, roles.nameserver.recent_moves
        duties = moving_duties(nameserver, roles.reports, leader_of(roles))

        def load() -> ToldLoad:
            led = [it.group for it in storage.groups if it.serving]
            return ToldLoad(write_groups=[self.cluster.load(group, nameserver) for group in led])

        nameserver.measure_load(load)
        roles.reports.loads, roles.reports.moves = nameserver.loads, moves.told
        roles.reports.slot_moves, roles.reports.balancer = moves.slots_told, duties.balancer.told
        noted_at = dict[int, float]()

        def noted(move: ToldMove | ToldSlotMove) -> None:
            if isinstance(move, ToldMove) or move.taken_back:
                return
            now, slot = self.cluster.loop.time(), move.slot
            since = now - noted_at.get(slot, -1e9)
            self.cluster.guard(lambda: require(since >= REST_SECONDS, f"slot {slot} moves again after {since} s", "S"))
            noted_at[slot] = now
            self.cluster.asked += 1

        moves.watchers.append(noted)
        roles.setup.background.begin(duties.balancer.run, "balancer")


class BusyCluster(MovingCluster):
    node_kind: ClassVar[type[WholeNode]] = BusyNode
    settings: BusySettings

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.busy: tuple[int, ...] = ()
        """The two queues, once there are any in one write group."""
        self.asked = 0
        """Moves that balancers began."""

    def choose(self, queue_ids: list[int]) -> None:
        """Have the first two of these that share a write group, in slots of their own, be busy."""
        found: dict[int, int] = {}
        for queue_id in sorted(queue_ids):
            other = found.setdefault(self.group_of(queue_id), queue_id)
            if slot_of(other) != slot_of(queue_id):
                self.busy = (other, queue_id)
                return

    def load(self, group: int, nameserver: Nameserver) -> ToldWriteGroupLoad:
        here = [it for it in self.busy if nameserver.lookups.write_group(it) == group]
        rate = LITTLE + MUCH * len(here)
        return ToldWriteGroupLoad(group, rate, 0.0, 0.0, 3600.0, [ToldQueuePart(it, MUCH / rate) for it in here])


class Chooser(Mover):
    """Asks for no move: chooses the busy queues, and waits in the end until they have come apart, by a move. If nobody
    made topics with queues that share a write group and may move, it makes one."""

    _cluster: BusyCluster

    async def run(self) -> None:
        cluster = self._cluster
        while not self._work.ending:
            self._choose()
            await asyncio.sleep(LOOK_SECONDS)
        for _ in range(int(HEALED_SECONDS / LOOK_SECONDS)):
            self._choose()
            if not cluster.busy:
                await Admin(self._work).create(cluster.settings.groups + 1, {"retention.ms": "-1"})
            apart = len({cluster.group_of(it) for it in cluster.busy}) == 2
            if apart and cluster.asked and not self.wished():
                self.asked = cluster.asked
                return
            await asyncio.sleep(LOOK_SECONDS)
        told = [node.roles.reports.balancer() for node in cluster.nodes.values() if node.roles is not None]
        require(False, f"the busy queues {cluster.busy} have not come apart: {told}", "S")

    def _choose(self) -> None:
        able = [it for it in self._work.partitions() if not it[0].settings.keeps_for_good]
        there = {topic.queue_id(partition) for topic, partition in able}
        if not there.issuperset(self._cluster.busy):
            self._cluster.busy = ()  # one was deleted
        if not self._cluster.busy:
            self._cluster.choose(sorted(there))


class BusyRun(MovingClusterRun):
    def _mover(self, rng: random.Random) -> Mover:
        return Chooser(self.cluster, self.work, rng)

    def _settings(self, rng: random.Random) -> WholeSettings:
        return BusySettings(rng)

    def _new_cluster(self, *arguments: Any) -> MovingCluster:
        return BusyCluster(*arguments)


def play(seed: int, directory: Path, *, seconds: float | None = None) -> Outcomes:
    """Play one run; a failure names its seed."""
    return play_seed(BusyRun, seed, directory, seconds)
