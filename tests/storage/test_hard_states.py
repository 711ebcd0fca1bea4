"""Terms and votes, and how each group began here: read back, or refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.files import SimulatedFiles

from mainstem.raft import HardState
from mainstem.storage.errors import FormatError
from mainstem.storage.hard_states import COPY_BYTES, MAGIC, NAME, HardStates


def test_a_replica_that_was_moved_away_is_remembered_with_its_votes_until_another_comes() -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk)
        for group, later in ((0, False), (1, True), (2, True)):
            states.begin(group, later=later)
        await states.save({0: HardState(7, 2), 2: HardState(3, 1)})
        for group in (0, 2):
            states.leave(group)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert [states.left(group) for group in range(4)] == [True, False, True, False]
        assert [states.came_later(group) for group in range(4)] == [True, True, True, False]
        assert (states.of(0), states.of(2)) == (HardState(7, 2), HardState(3, 1))
        states.begin(0, later=True)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert (states.left(0), states.came_later(0), states.of(0)) == (False, True, HardState(7, 2))
        await states.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("magic", "words"),
    [(b"MSHARDS2", "of format MSHARDS2.*start the version that wrote it"), (b"nonsense", "neither copy passes")],
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
