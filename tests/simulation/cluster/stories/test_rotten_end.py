"""A bit goes bad in the very last write of a replica, which nothing vouches for yet: its next start cannot tell that
from a write that the stop tore. The block was acknowledged, and the only other node that has it is down. Nobody is
elected before that node is back, and nothing is lost; where the journals of all replicas end so, they still elect a
leader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.simulation.cluster.clients import Producer
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import LEFT_BEHIND, Run
from tests.simulation.find import more_at_length
from tests.simulation.oracle import require

from mainstem.model import Outcome
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    offset_of,
    segment_name,
    sequence_of,
)

LEADERLESS_SECONDS = 15.0
"""Longer than those who may have lost the ends of their logs wait for a member that does not answer."""
BYTES: Mapping[str, int] = {
    "magic": 0,
    "checksum": 5,
    "chain": 9,
    "length": 17,
    "position": 33,
    "directory": BLOCK_HEADER_BYTES + 3,
    "payload": BLOCK_HEADER_BYTES + DIRECTORY_ROW_BYTES + 40,
}
"""The place of the bit in the block."""


class RottenEnd(Run):
    """Two nodes of three acknowledge a batch. Then a bit of it rots on one, and the other goes down."""

    byte = 0
    splits = False
    """Whether the batch is split, too, before it rots."""

    async def _story(self) -> None:
        cluster = self.cluster
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(1, patience=30)
        queue = cluster.topics[0].queue_id(0)
        self._queue_ids = [queue]
        self.group = cluster.group_of(queue)
        await asyncio.sleep(2)
        leader = cluster.leaders(self.group)[0]
        rotten, behind = (node for node in cluster.nodes.values() if node is not leader)
        apart = {(behind.node_id, other.node_id) for other in (leader, rotten)}
        apart |= {(to, sender) for sender, to in apart}
        cluster.network.cut |= apart
        batch = self.clients.new_batch(queue, (-1, -1, -1), 1)
        (result,) = await Producer(self.clients, [queue], -1, -1).send(self.group, [batch])
        require(result is not None and result.outcome is Outcome.OK, "a majority acknowledges nothing")
        await asyncio.sleep(1)
        acknowledged = rotten.storage.groups[self.group].last_index
        require(behind.storage.groups[self.group].last_index < acknowledged, "the third node has it, too")
        if self.splits:
            await rotten.call(self.splitters[rotten.node_id].split(well_behaved=True), patience=60)
            split = rotten.storage.queue_store.splits.journal_index(self.group)
            require(split == acknowledged, f"block {split} is the last that is split, not {acknowledged}")
        self._rots(rotten)
        await self._others(leader, rotten, behind)
        cluster.network.cut -= apart
        async with asyncio.timeout(60):
            while not cluster.leaders(self.group) or any(node.starts.lost for node in cluster.nodes.values()):  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        leading = cluster.leaders(self.group)[0].storage.groups[self.group]
        require(leading.last_index >= acknowledged, "what was acknowledged is lost")  # the others are caught up with it
        self.clients.ending = True
        await self._settle()

    async def _others(self, leader: SimulatedNode, rotten: SimulatedNode, behind: SimulatedNode) -> None:
        leader.lose_power(keep_all=True)
        require(await rotten.start(), "a node whose last write is damaged does not start")
        require(self.group in rotten.storage.replication.silent, "a replica that may lack blocks takes part")
        rotten.lose_power(keep_all=True)
        rotten.boot()
        require(await rotten.start(), "it does not start again")  # on a journal without what was cut off
        self.cluster.network.cut.clear()
        await asyncio.sleep(LEADERLESS_SECONDS)
        require(not self.cluster.leaders(self.group), "a leader without the node that has what was acknowledged")
        leader.boot()
        require(await leader.start(), "the node that has it does not start")

    def _rots(self, node: SimulatedNode) -> None:
        blocks = node.storage.groups[self.group].blocks
        place = blocks.position_of(blocks.last_index())
        node.lose_power(keep_all=True)
        node.boot()
        node.disk1.flip(f"journal/{segment_name(sequence_of(place))}", 8 * (offset_of(place) + self.byte) + 1)


class AllEndsRotten(RottenEnd):
    """The batch is damaged on one node; the others' journals end in damage, too, of what only they lack."""

    async def _others(self, leader: SimulatedNode, rotten: SimulatedNode, behind: SimulatedNode) -> None:
        self.cluster.network.cut.clear()
        await asyncio.sleep(0)
        behind_last = behind.storage.groups[self.group].last_index
        require(behind_last > 0, "it has nothing")
        for node in (leader, behind):
            end = node.storage.journal.end
            node.lose_power(keep_all=True)
            node.boot()
            header = (0x314B424D).to_bytes(4, "little") + bytes(28) + end.to_bytes(8, "little")
            file = await node.disk1.open(f"journal/{segment_name(sequence_of(end))}")
            await file.write(offset_of(end), [header], sync=True)
            await file.close()
        for node in (rotten, leader, behind):
            require(await node.start(), "a node whose last write was torn does not start")
            require(self.group in node.storage.replication.silent, "a replica that may lack blocks takes part")


@pytest.mark.parametrize("where", BYTES)
@pytest.mark.parametrize("seed", more_at_length([4, 5]))
def test_an_acknowledged_block_that_rots_at_the_journals_end_is_not_lost(tmp_path: Path, seed: int, where: str) -> None:
    story = RottenEnd(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    story.byte = BYTES[where]
    story.play()


def test_a_node_that_lacks_what_it_has_split_starts_again_and_again(tmp_path: Path) -> None:
    story = RottenEnd(4, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    story.byte, story.splits = BYTES["payload"], True
    story.play()


@pytest.mark.parametrize("seed", more_at_length([4, 5]))
def test_replicas_all_of_whose_journals_end_in_torn_writes_elect_the_longest_log(tmp_path: Path, seed: int) -> None:
    story = AllEndsRotten(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    story.byte = BYTES["payload"]
    story.play()
