"""A node whose file of votes tells less than it promised: it refuses to start, or its replicas are silent at first."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.files import SimulatedFiles

from mainstem.kernel import QueueTable
from mainstem.model import Durability
from mainstem.nameserver.disk.starts import LossCause, lost
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.raft import HardState
from mainstem.storage.cluster.write_group_replication import Consensus, ReplicationParts, WriteGroupReplication
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.encoding.format import KIND_NO_OP, BlockHeader, position_of
from mainstem.storage.write_groups.hard_states import NAME, HardStates
from mainstem.storage.write_groups.log_block import LogBlock
from mainstem.storage.write_groups.write_group import WriteGroup

FOUNDERS = (1, 2, 3)


class Disk:
    """Of node 1, with a write group that it founded with others, and its log of one block."""

    def __init__(self) -> None:
        self.files = SimulatedFiles(1)
        self.group: WriteGroup
        """Of the last start."""
        self._nonces = (bytes([number]) * 8 for number in itertools.count(1))

    async def begun(self) -> StartsFile:
        starts = await StartsFile.open(self.files, 1)
        await starts.begin(1, "", lambda count: next(self._nonces), acknowledges_unsynced=False)
        return starts

    async def vote(self, state: HardState) -> None:
        """A life in which the node promises this."""
        starts, states = await self.begun(), await HardStates.open(self.files, 1)
        states.nonce = starts.nonce
        if not states.began(0):
            states.begin(0, FOUNDERS)
        await states.save({0: state})
        await starts.wrote(NAME)
        await states.close()
        await starts.close()

    async def start(self, starts: StartsFile) -> WriteGroupReplication:
        """Raises `StorageError`."""
        nobody: Any = None
        consensus = Consensus(1, nobody, {0: FOUNDERS}, forgotten=starts)
        journal: Any = SimpleNamespace(durability=Durability.SYNC)
        replication = WriteGroupReplication(consensus, journal, nobody, await HardStates.open(self.files, 1))
        self.group = group = WriteGroup(0, QueueTable(), nobody, nobody, block_bytes_max=5000, batch_bytes_max=1 << 20)
        block = LogBlock(KIND_NO_OP, 1, 1)
        block.header = BlockHeader(KIND_NO_OP, 0, 1, 1, 80, 0, 0, 0, position_of(1, 4096), 0, 0, 1)
        group.blocks.append(block)
        replication.drive(ReplicationParts([group], nobody, nobody, nobody))
        await replication.start()
        return replication


async def with_an_older_copy() -> Disk:
    """A disk whose file of votes is as it was before the first vote."""
    disk = Disk()
    await disk.vote(HardState())
    older = disk.files.content(NAME)
    await disk.vote(HardState(3, 2))
    disk.files.put(NAME, older)
    return disk


def test_an_older_copy_from_before_the_first_vote_is_known_as_one_and_does_not_keep_the_node_from_starting() -> None:
    """Its replica has a log and no vote, as where the file is lost; but it is known to be an older one."""

    async def story() -> None:
        disk = await with_an_older_copy()
        for _ in range(2):  # and as long as it has not got back what it has forgotten
            starts = await disk.begun()
            replication = await disk.start(starts)
            assert list(replication.silent) == [0]
            assert starts.has_lost(0)

    asyncio.run(story())


@pytest.mark.parametrize("loss", [LossCause.NOTHING, LossCause.POWER])
def test_a_file_of_votes_that_is_gone_is_refused_with_a_remedy(loss: LossCause) -> None:
    """Power takes ends of logs, and no votes: what is missing then is damage like any other."""

    async def story() -> None:
        disk = Disk()
        await disk.vote(HardState(3, 2))
        disk.files.forget(NAME)
        starts = await disk.begun()
        if loss is not LossCause.NOTHING:
            starts.remembers = lost(starts.remembers, loss, "as the test says")
        with pytest.raises(StorageError, match=r"`hard_states` is missing\. Which votes this node gave is unknown"):
            await disk.start(starts)

    asyncio.run(story())


def test_the_vote_that_a_replica_comes_back_with_is_on_the_disk_before_it_takes_part() -> None:
    async def story() -> None:
        disk = await with_an_older_copy()
        replication = await disk.start(await disk.begun())
        joined: list[SimulatedFiles] = []

        def join(*arguments: object, **options: object) -> None:
            joined.append(disk.files.clone(2))

        disk.group.consensus.join = join  # type: ignore[method-assign]
        await replication.rejoin(0, HardState(4, 3), abstains_to=9)
        (then,) = joined
        then.crash(keep_bytes=0)
        assert (await HardStates.open(then, 1)).of(0) == HardState(4, 3)
        assert not replication.silent

    asyncio.run(story())
