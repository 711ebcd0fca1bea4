"""Terms and votes, and how each group began here: read back, or refused."""

from __future__ import annotations

import asyncio
import struct

import pytest
from tests.fakes.files import SimulatedFiles

from mainstem.kernel import crc32c
from mainstem.raft import HardState
from mainstem.storage.errors import FormatError, StorageFailed
from mainstem.storage.hard_states import COPY_BYTES, MAGIC, NAME, HardStates


def test_a_replica_that_was_moved_away_is_remembered_with_its_votes_until_another_comes() -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk)
        for group, founders in ((0, {1, 2, 3}), (1, ()), (2, ())):
            states.begin(group, founders)
        await states.save({0: HardState(7, 2), 2: HardState(3, 1)})
        for group in (0, 2):
            states.leave(group)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert [states.left(group) for group in range(4)] == [True, False, True, False]
        assert [states.came_later(group) for group in range(4)] == [True, True, True, False]
        assert (states.of(0), states.of(2)) == (HardState(7, 2), HardState(3, 1))
        states.begin(0)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert (states.left(0), states.came_later(0), states.of(0)) == (False, True, HardState(7, 2))
        await states.close()

    asyncio.run(story())


def test_founders_are_remembered_until_the_replica_leaves() -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk)
        states.begin(0, {1, 2, 3})
        states.begin(1, {2})
        states.begin(2)
        await states.save({1: HardState(7, 2)})
        await states.close()
        states = await HardStates.open(disk)
        assert [states.founders(group) for group in range(4)] == [{1, 2, 3}, {2}, set(), set()]
        assert states.of(1) == HardState(7, 2)
        states.leave(0)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert [states.founders(group) for group in range(2)] == [set(), {2}]
        await states.close()

    asyncio.run(story())


def test_format_1_is_read_and_knows_no_founders() -> None:
    disk = SimulatedFiles(1)
    rows = struct.pack("<IIQQ", 0, 0, 7, 2) + struct.pack("<IIQQ", 3, 1, 5, 0) + struct.pack("<IIQQ", 4, 2, 6, 1)
    content = struct.pack("<IQ", 3, 11) + rows
    disk.put(NAME, (b"MSHARDS1" + struct.pack("<I", crc32c(content)) + content).ljust(2 * COPY_BYTES, b"\0"))

    async def story() -> None:
        states = await HardStates.open(disk)
        assert states.sequence == 11
        assert [states.began(group) for group in range(5)] == [True, False, False, True, True]
        assert [states.of(group) for group in (0, 3, 4)] == [HardState(7, 2), HardState(5), HardState(6, 1)]
        assert (states.came_later(3), states.left(4), states.founders(0)) == (True, True, frozenset())
        await states.save({0: HardState(8, 1)})
        await states.close()
        states = await HardStates.open(disk)
        assert (states.of(0), states.came_later(3), states.left(4)) == (HardState(8, 1), True, True)
        await states.close()

    asyncio.run(story())


def test_more_groups_than_there_is_room_for_are_refused() -> None:
    async def story() -> None:
        states = await HardStates.open(SimulatedFiles(1))
        for group in range(2000):
            states.begin(group, {1, 2, 3})
        with pytest.raises(StorageFailed, match="2000 write groups"):
            await states.save({})
        await states.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("magic", "words"),
    [(b"MSHARDS3", "of format MSHARDS3.*start the version that wrote it"), (b"nonsense", "neither copy passes")],
)
def test_what_this_version_cannot_read_is_refused_by_name(magic: bytes, words: str) -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk)
        for _ in range(2):
            await states.save({0: HardState(7, 2)})
        await states.close()
        content = disk.content(NAME)
        assert content[:8] == content[COPY_BYTES : COPY_BYTES + 8] == MAGIC
        disk.put(NAME, content.replace(MAGIC, magic))
        with pytest.raises(FormatError, match=f"{NAME}: {words}"):
            await HardStates.open(disk)

    asyncio.run(story())
