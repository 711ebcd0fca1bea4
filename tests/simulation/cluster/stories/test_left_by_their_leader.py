"""A node that lost the end of its logs is still fetching it when its leader stops, and the third node has forgotten its
votes: neither of the two may vote before it has a leader. Once the leader's node is back, they have one again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import LEFT_BEHIND, Run
from tests.simulation.find import more_at_length
from tests.simulation.oracle import require

from mainstem.raft import HardState
from mainstem.storage.journal.encoding.format import offset_of, segment_name, sequence_of


class LeftByItsLeader(Run):
    """One node abstains, one has forgotten its votes, and their leader was down for a while. (With seed 5 the logs of
    the latter two end alike, and the one that may not stand comes first.)"""

    async def _story(self) -> None:
        cluster = self.cluster
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(1, patience=30)
        self._queue_ids = [cluster.topics[0].queue_id(0)]
        await asyncio.sleep(2)
        torn = self._rng.choice(list(cluster.nodes.values()))
        group = await self._abstains(torn)
        leader = cluster.leaders(group)[0]
        (forgetful,) = (node for node in cluster.nodes.values() if node not in (torn, leader))
        for node in (leader, forgetful):
            node.lose_power(keep_all=True)
            node.boot()
        forgetful.starts.forget_votes()
        cluster.network.cut.clear()
        for node in (leader, forgetful):
            require(await node.start(), f"node {node.node_id} does not start")
        core = torn.storage.groups[group].consensus.core
        require(core is not None and core.abstains, "it abstains no more, and nobody leads")
        require(group in forgetful.storage.replication.silent, "it takes part without its votes")
        async with asyncio.timeout(60):
            while not cluster.leaders(group) or any(node.starts.lost for node in cluster.nodes.values()):  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        self.clients.ending = True
        await self._settle()

    async def _abstains(self, node: SimulatedNode) -> int:
        """Have a node lose the end of its journal, and be cut off once a leader has told it how far to abstain. Returns
        the write group."""
        network, ids = self.cluster.network, self.cluster.nodes
        end = node.storage.journal.end
        node.lose_power(keep_all=True)
        node.boot()
        header = (0x314B424D).to_bytes(4, "little") + bytes(28) + end.to_bytes(8, "little")
        file = await node.disk1.open(f"journal/{segment_name(sequence_of(end))}")
        await file.write(offset_of(end), [header], sync=True)
        await file.close()
        require(await node.start(), "a node whose last write was torn does not start")
        rejoin = node.storage.replication.rejoin
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def rejoined(
            number: int, hard_state: HardState, *, abstains_to: int, waits_for_leader: bool = False
        ) -> None:
            if not told.done():
                others = ids.keys() - {node.node_id}
                network.cut |= {pair for it in others for pair in ((node.node_id, it), (it, node.node_id))}
                told.set_result(number)
            await rejoin(number, hard_state, abstains_to=abstains_to, waits_for_leader=waits_for_leader)

        node.storage.replication.rejoin = rejoined  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            group = await told
        await asyncio.sleep(1)
        return group


@pytest.mark.parametrize("seed", more_at_length([5, 1], 2))
def test_a_write_group_whose_members_lost_different_things_has_a_leader_again(tmp_path: Path, seed: int) -> None:
    LeftByItsLeader(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND]).play()
