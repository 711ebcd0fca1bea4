"""Files that are brought as a whole for readers who want most of them together: each byte once, and within bounds."""

from __future__ import annotations

import asyncio

from tests.storage.read_cache.test_chunks_together import (
    CHUNK,
    CHUNKS_PER_READ,
    CONTENT,
    FarFile,
    make_cache,
    play,
    settled,
)

from mainstem.storage.errors import OutOfReach
from mainstem.storage.read_cache.files_in_whole import FILES_MAX
from mainstem.storage.read_cache.read_cache import FAR_AHEAD_SHARE, ReadCache

READ = CHUNKS_PER_READ * CHUNK
CHUNKS = 32
"""That memory has, fewer than the file: three quarters of them are for what is read ahead."""


def test_readers_wait_until_their_chunk_is_asked_for_and_each_byte_comes_once() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        async def read(number: int) -> bool:
            waited = await cache.comes_in_whole(file.extent(number * READ, 1))
            for position in range(number * READ, (number + 1) * READ, CHUNK):
                view, _hit = await cache.read(file.extent(position + 100, 300))
                assert view == CONTENT[position + 100 : position + 400]
            return waited

        assert cache.bring_whole(file, len(CONTENT))
        assert not cache.bring_whole(file, len(CONTENT)), "it is on its way"
        readers = asyncio.gather(*(read(number) for number in reversed(range(len(CONTENT) // READ))))
        assert all(await asyncio.wait_for(readers, 10))
        assert file.reads == [(begin, READ) for begin in range(0, 100 * CHUNK, READ)] + [(100 * CHUNK, CHUNK)]
        assert not await cache.comes_in_whole(file.extent(0, 10)), "nobody waits for what has come"
        assert cache.bytes_held <= CHUNKS * CHUNK

    play(scenario, CHUNKS)


def test_readers_that_are_slow_let_no_one_wait_for_them() -> None:
    """There is no room once three quarters of memory are read ahead, and nobody takes any of it."""

    async def scenario(cache: ReadCache, file: FarFile) -> None:
        cache.bring_whole(file, len(CONTENT))
        assert await asyncio.wait_for(cache.comes_in_whole(file.extent(90 * CHUNK, 10)), 10)
        asked = sum(length for _position, length in file.reads)
        assert (CHUNKS * FAR_AHEAD_SHARE - CHUNKS_PER_READ) * CHUNK < asked <= CHUNKS * FAR_AHEAD_SHARE * CHUNK
        assert not cache.holds(file, 90)
        view, _hit = await cache.read(file.extent(90 * CHUNK, 10))
        assert view == CONTENT[90 * CHUNK : 90 * CHUNK + 10]

    play(scenario, CHUNKS)


def test_chunks_that_are_taken_make_room_for_the_next_read_while_another_is_on_its_way() -> None:
    class LateFile(FarFile):
        """Its sixth read takes long."""

        async def read(self, position: int, length: int, *, at_once: bool) -> memoryview:
            content = await super().read(position, length, at_once=at_once)
            await asyncio.sleep(3600 if position == 5 * READ else 0)
            return content

    async def scenario(cache: ReadCache, _file: FarFile) -> None:
        file = LateFile()
        cache.bring_whole(file, len(CONTENT))
        await settled()
        assert len(file.reads) == CHUNKS * FAR_AHEAD_SHARE / CHUNKS_PER_READ == 6, "there is no room for more"
        for number in range(CHUNKS_PER_READ):
            assert cache.held(file, number * CHUNK) is not None
        await settled()
        assert len(file.reads) == 7

    play(scenario, CHUNKS)


def test_a_read_that_fails_ends_it_and_its_readers_hear_why() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        file.failure = lambda position, length: OutOfReach("the store is out") if position >= READ else None
        cache.bring_whole(file, len(CONTENT))
        assert await asyncio.wait_for(cache.comes_in_whole(file.extent(90 * CHUNK, 10)), 10)
        asked = len(file.reads)
        await settled()
        assert len(file.reads) == asked < len(CONTENT) / READ
        file.failure = lambda position, length: None
        assert cache.bring_whole(file, len(CONTENT)), "it is tried again"
        assert await asyncio.wait_for(cache.comes_in_whole(file.extent(20 * CHUNK, 10)), 10)
        assert cache.holds(file, 20)

    play(scenario, CHUNKS)


def test_files_that_wait_are_bounded_and_their_readers_go_on_when_it_is_closed() -> None:
    async def scenario() -> None:
        cache = make_cache(CHUNKS)
        files = [FarFile(f"{number}.pack") for number in range(FILES_MAX + 1)]
        for file in files:
            file.gate.clear()
        assert [cache.bring_whole(file, len(CONTENT)) for file in files] == [True] * FILES_MAX + [False]
        waiting = asyncio.ensure_future(cache.comes_in_whole(files[-2].extent(0, 10)))
        await settled()
        assert not waiting.done()
        assert not await cache.comes_in_whole(files[-1].extent(0, 10))
        await cache.close()
        assert await asyncio.wait_for(waiting, 10)

    asyncio.run(scenario())
