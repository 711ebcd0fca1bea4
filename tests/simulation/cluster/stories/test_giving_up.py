"""Data that an operator gives up on one of three nodes is lost on all of them, or on none: a copy that is whole is used
before anything is given up, and one that comes back later resurrects nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy
import pytest
from tests.simulation.cluster.history import History
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import LEFT_BEHIND, Run
from tests.simulation.find import more_at_length
from tests.simulation.oracle import require

from mainstem.kernel import NO_SLOT
from mainstem.model import AppendResult, BatchAppend, Buffer, Outcome, QueueRead
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW,
    DIRECTORY_ROW_BYTES,
    BlockHeader,
    offset_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.mending.block_repair import Twin
from mainstem.storage.journal.mending.stand_ins import is_stand_in, unpadded
from mainstem.storage.journal.stored_block import read_block
from mainstem.storage.repair.losses import PATIENCE_MS
from mainstem.storage.repair.lost_blocks import LOSSES_MAX, LostBlocks, LostPart, missing_segment
from mainstem.storage.upkeep.maintenance import DAMAGE_SECONDS
from mainstem.storage.write_groups import control

FOUND_SECONDS = PATIENCE_MS / 1000 + 3 * DAMAGE_SECONDS
"""Simulated. By then a damaged block that nobody gives is offered for being given up."""


class Story(Run):
    """Three nodes have a block of three batches, and a queue goes on behind it."""

    group = 0
    checkpoints = True
    """The block is known to a checkpoint."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory, seconds=1.0, faults=[LEFT_BEHIND])
        settings = self.cluster.settings
        settings.storage = msgspec.structs.replace(
            settings.storage, checkpoint_seconds=3600.0, checkpoint_bytes=1 << 30, block_bytes_max=1 << 22
        )
        self.nodes: list[SimulatedNode] = list(self.cluster.nodes.values())
        self.queue_id = 0
        self.index = 0

    async def _story(self) -> None:
        assert len(self.nodes) == 3
        for node in self.nodes:
            await node.start()
        topic = await self.cluster.create_topic(8, patience=30)
        ids = [topic.queue_id(partition) for partition in range(8)]
        self.queue_id = next(queue_id for queue_id in ids if self.cluster.group_of(queue_id) == self.group)
        await self.put(3)
        await self.put(1, together=3)
        self.index = await self.last_index()
        await self.put(3)
        await self.last_index()
        self.rows = numpy.frombuffer((await self.block(self.nodes[0])).directory, DIRECTORY_ROW)
        assert len(self.rows) == 3
        if self.checkpoints:
            for node in self.nodes:
                await node.call(node.storage.checkpointer.checkpoint(), patience=30)
        await self.tell()
        self.cluster.check_tasks()

    async def tell(self) -> None:
        raise NotImplementedError

    # --- what clients do ----------------------------------------------------------------------------------

    async def put(self, count: int, together: int = 1) -> None:
        for _ in range(count):
            leader = await self.cluster.lead(self.group, patience=60)
            batches = [self.clients.new_batch(self.queue_id, (-1, -1, -1), 1) for _ in range(together)]
            for batch in batches:
                self.cluster.history.sending(batch.data)
            appended = self._appended(leader, [batch.append for batch in batches])
            results = await leader.call(appended, patience=30)
            assert results is not None
            assert {result.outcome for result in results} == {Outcome.OK}

    async def _appended(self, node: SimulatedNode, batches: list[BatchAppend]) -> list[AppendResult]:
        return await node.storage.messages.append(batches, -1)

    async def last_index(self) -> int:
        """The write group's last block, once all nodes that are up have applied it."""
        leader = await self.cluster.lead(self.group, patience=60)
        last = leader.storage.groups[self.group].applied_index
        async with asyncio.timeout(60):
            while any(node.storage.groups[self.group].applied_index < last for node in self.nodes if node.up):  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        return last

    # --- what happens to disks ----------------------------------------------------------------------------

    def place(self, node: SimulatedNode) -> int:
        """Journal position of the block."""
        position = node.storage.groups[self.group].blocks.position_of(self.index)
        require(bool(position), f"node {node.node_id} has no block {self.index}")
        return position

    def flip(self, node: SimulatedNode, batch: int) -> None:
        """One bit of one of the three batches; once more, and it is as it was."""
        row = self.rows[batch]
        payload = self.place(node) + BLOCK_HEADER_BYTES + len(self.rows) * DIRECTORY_ROW_BYTES
        at = payload + int(row["position"]) + int(row["length"]) - 1
        node.disk1.flip(f"journal/{segment_name(sequence_of(at))}", 8 * offset_of(at))

    async def restarted(self, node: SimulatedNode) -> None:
        if node.up:
            await node.stop()
        node.boot()
        require(await node.start(), f"node {node.node_id} does not start: {node.refusal!r}")

    async def harmed(self, node: SimulatedNode, batch: int) -> None:
        """The node starts anew, with the block damaged, and with nothing in memory of it."""
        await node.stop()
        self.flip(node, batch)
        await self.restarted(node)

    async def met(self, *nodes: SimulatedNode) -> None:
        """Readers of these nodes come across the block, and nobody gives it for a long time."""
        for node in nodes:
            node.storage.damage.heard(self.place(node))
        await asyncio.sleep(FOUND_SECONDS)

    async def give_up(self, node: SimulatedNode, without: Sequence[int] = ()) -> None:
        """As the command does, on the node that is stopped, and is started again."""
        await node.stop()
        node.boot()
        lost = await LostBlocks.open(node.disk1)
        await lost.give_up([f"{self.group}:{self.index}-{self.index}"], without)
        require(await node.start(), f"node {node.node_id} does not start: {node.refusal!r}")

    # --- what is there ------------------------------------------------------------------------------------

    async def lost(self, node: SimulatedNode) -> list[str]:
        lost = await LostBlocks.open(node.disk1.clone(1))
        return [part.name for loss in lost.losses if not loss.replaced for part in loss.parts]

    async def block(self, node: SimulatedNode) -> Block:
        damage, group = node.storage.damage, node.storage.groups[self.group]
        found = await read_block(node.storage.journal, damage.place(group, self.index))
        header = await node.storage.journal.read(self.place(node), BLOCK_HEADER_BYTES)
        twin = Twin(
            found.header.kind, found.header.created_ms, found.header.batch_count, found.directory, found.payload
        )
        return Block(found.header.kind, twin.created_ms, bytes(twin.directory), unpadded(twin), is_stand_in(header))

    async def is_the_same(self, *, stand_in: bool) -> Block:
        """All nodes have the same block: that which was written, or the same in its place."""
        blocks = [await self.block(node) for node in self.nodes]
        require(blocks[0] == blocks[1] == blocks[2], f"different histories: {blocks}")
        require(blocks[0].stand_in == stand_in, f"a stand-in: {blocks[0].stand_in}")
        return blocks[0]

    async def goes_on(self, offsets: Sequence[int]) -> None:
        """Every node serves exactly these offsets when it leads, splits them, and serves them from its runs; batches
        are taken behind them."""
        await self.put(1)
        await self.last_index()
        wanted = [*offsets, 9]
        for node in self.nodes:
            require(not node.storage.waiting.reasons(), f"node {node.node_id} waits: {node.storage.waiting.reasons()}")
            require(not node.storage.damage.waiting(), f"node {node.node_id} has damage")
            require(await self.lost(node) == [], f"node {node.node_id} misses {await self.lost(node)}")
            require(await self.read(node) == wanted, f"node {node.node_id}: {await self.read(node)}, not {wanted}")
        for node in self.nodes:
            self.splitters[node.node_id].hurries = True
            async with asyncio.timeout(120):
                while node.storage.state.manifest.written(self.group) < self.index + 3:
                    await node.call(self._split_once(node, self.splitters[node.node_id], forward=True), patience=60)
                    await asyncio.sleep(0.1)
            require(await self.read(node) == wanted, f"node {node.node_id} has split something else")

    async def read(self, node: SimulatedNode) -> list[int]:
        table = node.storage.state.table
        require(table.find(self.queue_id) != NO_SLOT, "the queue is not there")
        path = node.storage.read_path
        offsets = path.offsets(self.queue_id)
        assert offsets is not None
        position, found = offsets.log_start, []
        while position < offsets.high_watermark:
            part = await node.call(path.read(QueueRead(self.queue_id, position, 1 << 20), 1 << 20, True), patience=30)
            assert part is not None
            require(part.outcome is Outcome.OK, f"node {node.node_id}: {part.outcome} at offset {position}")
            found += [int.from_bytes(batch[:8], "big") for batch in part.batches]
            position = part.next_offset
        return found


class Unwatched(History):
    """Starts that apply the log once more find something else in it, which these stories compare themselves."""

    def applied(self, node_id: int, header: BlockHeader, directory: Buffer, payload: memoryview | None) -> None: ...

    def obeyed(self, node_id: int, group: int, index: int, command: control.Command) -> None: ...


class Block(NamedTuple):
    kind: int
    created_ms: int
    directory: bytes
    payload: bytes
    stand_in: bool


ALL = [*range(9)]
"""The offsets that were acknowledged before anything was harmed; 3, 4 and 5 are in the block."""


class DamagedOnAll(Story):
    """Each node has another of the three batches damaged."""

    async def tell(self) -> None:
        first, second, third = self.nodes
        for batch, node in enumerate(self.nodes):
            await self.harmed(node, batch)
        await self.met(*self.nodes)
        for node in self.nodes:
            require(await self.lost(node) == [f"0:{self.index}-{self.index}"], f"{await self.lost(node)}")
        await self.give_up(first)
        require((await self.block(first)).stand_in, "nothing stands in for what all have lost")
        require(await self.lost(first) == [], "it is still lost")
        await asyncio.sleep(3 * DAMAGE_SECONDS)
        require(bool(second.storage.damage.waiting()), "a node takes for whole what another has given up")
        for node in (second, third):
            await self.restarted(node)
        await self.is_the_same(stand_in=True)
        await self.goes_on([0, 1, 2, 4, 5, 6, 7, 8])


class DamagedOnTwo(Story):
    """The third has it, and is away when it is given up."""

    async def tell(self) -> None:
        first, second, third = self.nodes
        whole = await self.block(third)
        third.lose_power(keep_all=True)
        await self.harmed(first, 0)
        await self.harmed(second, 1)
        await self.met(first, second)
        await self.give_up(first)
        require(bool(await self.lost(first)), "it was given up though a node that may have it is away")
        await self.restarted(third)
        await asyncio.sleep(4 * DAMAGE_SECONDS)
        await self.met(first)
        require(await self.is_the_same(stand_in=False) == whole, "it is another block")
        await self.restarted(first)
        require(await self.is_the_same(stand_in=False) == whole, "it is given up after all")
        await self.goes_on(ALL)


class TakenAtTheStart(DamagedOnTwo):
    """The third is back when the first is started, which takes the block from it before anything else."""

    async def tell(self) -> None:
        first, second, third = self.nodes
        whole = await self.block(third)
        third.lose_power(keep_all=True)
        await self.harmed(first, 0)
        await self.harmed(second, 1)
        await self.met(first, second)
        lost = LostBlocks.open
        await first.stop()
        first.boot()
        await (await lost(first.disk1)).give_up([f"{self.group}:{self.index}-{self.index}"])
        await self.restarted(third)
        require(await first.start(), "it does not start")
        require(await self.block(first) == whole, "it was given up though another node has it")
        await self.met(second)
        await self.goes_on(ALL)


class ReturnsDamaged(Story):
    """The third was away as well, and returns with the block damaged; its file is restored when the others have given
    the block up."""

    async def tell(self) -> None:
        first, second, third = self.nodes
        await self.harmed(third, 2)
        third.lose_power(keep_all=True)
        await self.harmed(first, 0)
        await self.harmed(second, 1)
        await self.met(first, second)
        await self.give_up(first)
        require(bool(await self.lost(first)), "it was given up though a node that may have it is away")
        await self.restarted(third)
        await self.restarted(first)
        require((await self.block(first)).stand_in, "nothing stands in for what all have lost")
        self.flip(third, 2)
        await self.met(third)
        require(bool(third.storage.damage.waiting()), "it takes for whole what others have given up")
        first.lose_power(keep_all=True)
        await self.restarted(third)
        require(self.group in third.storage.waiting.reasons(), "it does not wait for who can tell")
        await self.restarted(first)
        await self.restarted(second)
        await self.restarted(third)
        await self.is_the_same(stand_in=True)
        await self.goes_on([0, 1, 2, 4, 5, 6, 7, 8])


class NoRoomToPromise(Story):
    """The second has lost so much that it notes nothing more: it can promise nothing, so nothing is given up."""

    async def tell(self) -> None:
        first, second, _third = self.nodes
        for batch, node in enumerate(self.nodes):
            await self.harmed(node, batch)
        far = 1 << 40
        others = [missing_segment(far + number, [LostPart(self.group, far, far + 1)]) for number in range(LOSSES_MAX)]
        await second.call(second.storage.lost.note(others), patience=30)
        await self.met(*self.nodes)
        await self.give_up(first)
        require(bool(await self.lost(first)), "it was given up though another node could take its copy for whole")


class HoleOnAll(Story):
    """No start can walk over the block, nor does a checkpoint know of it: all nodes have forgotten something, so that
    nobody leads."""

    checkpoints = False

    async def tell(self) -> None:
        first, second, third = self.nodes
        for node in self.nodes:
            node.lose_power(keep_all=True)
        for number, node in enumerate(self.nodes):
            at = self.place(node) + 20 + number
            node.disk1.flip(f"journal/{segment_name(sequence_of(at))}", 8 * offset_of(at))
        for node in self.nodes:
            await self.restarted(node)
        await asyncio.sleep(FOUND_SECONDS)
        require(not self.cluster.leaders(self.group), "somebody leads without the block")
        self.cluster.history = Unwatched()
        for node in self.nodes:
            require(await self.lost(node) == [f"0:{self.index}-{self.index}"], f"{await self.lost(node)}")
        await self.give_up(first)
        for node in (second, third):
            await self.restarted(node)
        await self.cluster.lead(self.group, patience=60)
        require(not (await self.is_the_same(stand_in=True)).directory, "there are batches nobody can have read")
        await self.goes_on([0, 1, 2, 6, 7, 8])


class HoleOnTwo(Story):
    """As in `HoleOnAll`, but the third has the block, and is away when it is given up."""

    checkpoints = False

    async def tell(self) -> None:
        first, second, third = self.nodes
        whole = await self.block(third)
        for node in self.nodes:
            node.lose_power(keep_all=True)
        for node in (first, second):
            at = self.place(node) + 20
            node.disk1.flip(f"journal/{segment_name(sequence_of(at))}", 8 * offset_of(at))
            await self.restarted(node)
        await asyncio.sleep(FOUND_SECONDS)
        await self.give_up(first)
        require(bool(await self.lost(first)), "it was given up though a node that may have it is away")
        await self.restarted(third)
        await self.restarted(first)
        await self.restarted(second)
        await self.cluster.lead(self.group, patience=60)
        require(await self.is_the_same(stand_in=False) == whole, "it is another block")
        await self.goes_on(ALL)


class LostForGood(Story):
    """The operator says that the third will not come back."""

    async def tell(self) -> None:
        first, second, third = self.nodes
        third.lose_power(keep_all=True)
        await self.harmed(first, 0)
        await self.harmed(second, 1)
        await self.met(first, second)
        await self.give_up(first, without=[third.node_id])
        require((await self.block(first)).stand_in, "a node that is lost for good is waited for")
        await self.restarted(second)
        require(await self.lost(second) == [], "it does not go on as the first does")
        require(await self.block(first) == await self.block(second), "different histories")


@pytest.mark.parametrize(
    "story",
    [DamagedOnAll, DamagedOnTwo, TakenAtTheStart, ReturnsDamaged, NoRoomToPromise, HoleOnAll, HoleOnTwo, LostForGood],
)
@pytest.mark.parametrize("seed", more_at_length([1, 2]))
def test_what_is_given_up_is_lost_on_all_nodes_or_on_none(tmp_path: Path, story: type[Story], seed: int) -> None:
    story(seed, tmp_path).play()
