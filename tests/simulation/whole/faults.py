"""What goes wrong for whole nodes: all that does for storage roles, and what their clients see of the network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tests.simulation.cluster.faults import Faults, Kind
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.connection import ClientQuality


class WholeFaults(Faults):
    def __init__(self, cluster: WholeCluster, rng: random.Random, only: Sequence[str] = ()) -> None:
        self._clients = cluster.clients_network
        super().__init__(cluster, rng, only)

    def kinds(self) -> list[Kind]:
        return [
            *super().kinds(),
            ("clients cut off", self._cut_clients_off),
            ("connections break", self._break_connections),
        ]

    async def heal(self) -> None:
        await super().heal()
        self._clients.quality = ClientQuality()
        self._clients.cut.clear()

    async def _cut_clients_off(self) -> None:
        """Clients do not reach a node, which other nodes do reach."""
        node_id = self._node().node_id
        self._clients.cut.add(node_id)
        await asyncio.sleep(self._some_time())
        self._clients.cut.discard(node_id)

    async def _break_connections(self) -> None:
        self._clients.quality = ClientQuality(
            delay_seconds=self._rng.choice([0.001, 0.05, 0.5]), breaks=self._rng.choice([0.02, 0.1, 0.3])
        )
        await asyncio.sleep(2 * self._some_time())
        self._clients.quality = ClientQuality()
