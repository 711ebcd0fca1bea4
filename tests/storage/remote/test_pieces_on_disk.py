"""Pieces of remote files on disk 2: what stays, what goes, and what rot and a full disk do."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine

from tests.fakes.clock import FakeClock
from tests.fakes.files import SimulatedFiles

from mainstem.storage.remote.reading.pieces_on_disk import PATH, PAUSE_SECONDS, KeptPiece, PiecesOnDisk

SLOT = 4096
SLOTS = 4


def piece(number: int, length: int = SLOT) -> bytes:
    return bytes([number % 256]) * length


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.disk = SimulatedFiles()
        self.pieces: PiecesOnDisk

    async def open(self, slots: int = SLOTS) -> None:
        pieces = await PiecesOnDisk.open(self.disk, self.clock, slots * SLOT + 100, SLOT)
        assert pieces is not None
        self.pieces = pieces

    async def keep(self, *numbers: int) -> None:
        for number in numbers:
            self.pieces.keep(KeptPiece("a", number, SLOT), piece(number))
            await self.written()

    async def written(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def held(self, *numbers: int) -> list[int]:
        """Those of the pieces that are there, whole."""
        found = []
        for number in numbers:
            content = await self.pieces.read(KeptPiece("a", number, SLOT))
            if content is not None:
                assert bytes(content) == piece(number)
                found.append(number)
        return found


def play(story: Callable[[World], Coroutine[None, None, None]]) -> None:
    async def told() -> None:
        world = World()
        await world.open()
        await story(world)
        await world.pieces.close()

    asyncio.run(told())


def test_a_piece_comes_back_as_it_was_and_only_as_a_whole() -> None:
    async def story(world: World) -> None:
        world.pieces.keep(KeptPiece("a", 0, 1000), piece(7, 1000))
        await world.written()
        assert await world.pieces.read(KeptPiece("a", 0, 1000)) == piece(7, 1000)
        assert await world.pieces.read(KeptPiece("a", 0, 999)) is None
        assert await world.pieces.read(KeptPiece("b", 0, 1000)) is None
        world.pieces.forget("a")
        assert await world.pieces.read(KeptPiece("a", 0, 1000)) is None
        assert len(world.pieces) == 0

    play(story)


def test_a_piece_that_is_forgotten_while_it_is_written_is_not_kept() -> None:
    """An object was restored meanwhile: these are the bytes of the damaged one."""

    async def story(world: World) -> None:
        for behind in (piece(8), None):
            world.pieces.keep(KeptPiece("a", 0, SLOT), piece(7))
            world.pieces.forget("a")
            if behind is not None:
                world.pieces.keep(KeptPiece("a", 0, SLOT), behind)
            await world.written()
            assert await world.pieces.read(KeptPiece("a", 0, SLOT)) == behind
            world.pieces.forget("a")
        await world.keep(*range(SLOTS))
        assert await world.held(*range(SLOTS)) == list(range(SLOTS)), "no slot is lost"

    play(story)


def test_who_passes_through_once_puts_nothing_out() -> None:
    async def story(world: World) -> None:
        await world.keep(0, 1, 2, 3)
        await world.keep(*range(10, 20))
        assert await world.held(*range(20)) == [0, 1, 2, 3]
        await world.keep(10)
        assert await world.held(10) == [10]
        assert len(world.pieces) == SLOTS
        assert len(world.disk.content(PATH)) <= SLOTS * SLOT

    play(story)


def test_what_was_read_from_here_outlives_what_was_not() -> None:
    async def story(world: World) -> None:
        await world.keep(0, 1, 2, 3)
        assert await world.held(0, 1) == [0, 1]
        for number in (10, 11, 12, 13):
            await world.keep(number, number)
        assert await world.held(0, 1, 2, 3) == [0, 1]

    play(story)


def test_bytes_that_went_bad_are_no_piece() -> None:
    async def story(world: World) -> None:
        await world.keep(0, 1)
        world.disk.flip(PATH, 8 * (SLOT + 100))
        assert await world.held(0, 1) == [0]
        assert (world.pieces.rotten, len(world.pieces)) == (1, 1)
        await world.keep(1)
        assert await world.held(1) == [1]

    play(story)


def test_a_start_begins_with_nothing_and_takes_no_more_room() -> None:
    async def story(world: World) -> None:
        await world.keep(0, 1, 2)
        await world.pieces.close()
        await world.open()
        assert len(world.disk.content(PATH)) == 0
        assert await world.held(0, 1, 2) == []
        await world.keep(0)
        await world.pieces.close()
        assert await PiecesOnDisk.open(world.disk, world.clock, SLOT - 1, SLOT) is None
        assert PATH not in world.disk.paths()
        await world.open()

    play(story)


def test_a_disk_that_fails_is_left_alone_for_a_while() -> None:
    async def story(world: World) -> None:
        world.disk.fail("write", path=PATH, error=errno.ENOSPC)
        await world.keep(0, 1)
        assert await world.held(0, 1) == []
        world.clock.advance(PAUSE_SECONDS)
        await world.keep(0, 1)
        assert await world.held(0, 1) == [0, 1]
        world.disk.fail("read", path=PATH)
        assert await world.held(0, 1) == [1]

    play(story)
