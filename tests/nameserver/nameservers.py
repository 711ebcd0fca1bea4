"""Several nameservers on simulated disks, time and network: started, killed, and asked for things."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.fakes.cluster import End, SimulatedNetwork, addresses
from tests.fakes.files import SimulatedFiles
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.model import OWN_LEVELS, LevelRange, ListenerAddress, Node, NodeRole
from mainstem.nameserver.cluster.heartbeats import Condition
from mainstem.nameserver.cluster_ports import ClusterPorts, Facts
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.nameserver.nameserver import Nameserver
from mainstem.rpc.messages.starts import SHOW_START
from mainstem.rpc.wire.identity import Identity


class Nameservers:
    def __init__(self, seed: int, count: int = 3, **config: Any) -> None:
        self.seed = seed
        self.network = SimulatedNetwork(seed)
        self.first_quorum = list(range(1, count + 1))
        self.disks = {node_id: SimulatedFiles(seed * 100 + node_id) for node_id in self.first_quorum}
        self.running: dict[int, Nameserver] = {}
        self.config = {"log_bytes_max": 16 * 1024, "change_wait_ms_max": 8_000, **config}
        self.racks: dict[int, str] = {}
        self.machines: dict[int, str] = {}
        self.endpoints: dict[int, tuple[ListenerAddress, ...]] = {}
        self.roles: dict[int, tuple[str, ...]] = {}
        """The roles of nodes that do not have all of them."""
        self.levels: dict[int, LevelRange] = {}
        """The feature levels that a node's program can work at, where they are not this program's."""
        self.conditions: dict[int, Condition] = {}
        """The state of a node's disks, where anything is to be said of it."""
        self.shows_starts = False
        """Nodes remember starts, and show theirs before anything else."""
        self._ends: dict[int, End] = {}
        self._starts = 0

    async def start(self, node_id: int, **config: Any) -> Nameserver:
        self._starts += 1
        randomness = random.Random(self.seed * 10_000 + self._starts)

        starts: StartsFile | None = None

        async def connect(identity: Identity) -> ClusterPorts:
            self._ends[node_id] = self.network.attach(identity)
            ports = self._ends[node_id].ports
            if starts is not None:
                ports.handlers.unary(SHOW_START, starts.answer)
            return ports

        chosen = NameserverConfig(node_id=node_id, peers=addresses(self.first_quorum), **{**self.config, **config})
        chosen.validate()
        node = Node(
            node_id=node_id, host="127.0.0.1", port=9000 + node_id, rack=self.racks.get(node_id),
            machine=self.machines.get(node_id), endpoints=self.endpoints.get(node_id, ()),
        )  # fmt: skip
        levels = self.levels.get(node_id, OWN_LEVELS)
        facts = Facts(f"10.0.0.{node_id}:9093", self.roles.get(node_id, tuple(NodeRole)), "0.2", levels)
        disk = self.disks.setdefault(node_id, SimulatedFiles(self.seed * 100 + node_id))
        if self.shows_starts:
            starts = await StartsFile.open(disk, node_id)
            await starts.begin(node_id, "", randomness.randbytes, acknowledges_unsynced=False)
        try:
            nameserver = await Nameserver.open(
                disk, randomness, chosen, node, connect, facts, starts,
                condition=lambda: self.condition(node_id),
            )  # fmt: skip
        except BaseException:
            if node_id in self._ends:
                self._ends[node_id].detach()
            raise
        self.running[node_id] = nameserver
        return nameserver

    def condition(self, node_id: int) -> Condition:
        return self.conditions.get(node_id, Condition())

    async def start_all(self) -> None:
        await asyncio.gather(*(self.start(node_id) for node_id in self.first_quorum))

    async def kill(self, node_id: int) -> None:
        """The power goes: what was not synced is lost, in part."""
        nameserver = self.running.pop(node_id)
        self._ends[node_id].detach()
        nameserver.task.cancel()
        await asyncio.wait([nameserver.task])
        self.disks[node_id].crash()

    async def stop(self, node_id: int) -> None:
        nameserver = self.running.pop(node_id)
        await nameserver.close()
        self._ends[node_id].close()

    async def close(self) -> None:
        for node_id in list(self.running):
            await self.kill(node_id)
        await self.network.close()

    async def until(self, is_so: Callable[[], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not is_so():  # noqa: ASYNC110  # states, not events: whatever leads there will do
                await asyncio.sleep(0.02)

    def leader(self) -> int:
        """The node that serves as leader; 0: none does."""
        serving = [
            (it.lookups.metadata_term, node_id) for node_id, it in self.running.items() if it.lookups.leads_metadata
        ]
        return max(serving, default=(0, 0))[1]

    async def elected(self) -> int:
        await self.until(lambda: self.leader() != 0)
        return self.leader()

    def same_state(self) -> bool:
        states = [list(it.replica.state.commands()) for it in self.running.values()]
        return all(state == states[0] for state in states)

    async def settled(self) -> None:
        """All that run have the same state, with nothing under way."""
        await self.elected()
        await self.until(lambda: len({it.lookups.version for it in self.running.values()}) == 1)
        assert self.same_state()


def simulate(work: Coroutine[Any, Any, Any]) -> None:
    """Run on simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(work)
