"""The read cache over a source from which each read takes long: neighbouring chunks come in one read, and memory is
bounded all the same."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.clock import FakeClock

from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import FormatError, OutOfReach, StorageError
from mainstem.storage.read_cache.cached_chunk import CachedChunk
from mainstem.storage.read_cache.chunks_ahead import READS_AHEAD_LEAST
from mainstem.storage.read_cache.extent import Extent
from mainstem.storage.read_cache.read_cache import UNDER_WAY_SHARE, ReadCache
from mainstem.storage.read_cache.readers_crowd import CROWD_SECONDS, REST_SECONDS

CHUNK = 4096
CHUNKS_PER_READ = 4
POSITIONS = numpy.arange(100 * CHUNK + 1234)
CONTENT = (POSITIONS * 7 + POSITIONS // 251).astype(numpy.uint8).tobytes()


class FarFile:
    """A file that counts its reads, holds them back while `gate` is closed, and knows how many bytes that it gave are
    still held by anybody."""

    def __init__(self, name: str = "a.pack") -> None:
        self.name = name
        self.clock = FakeClock()
        self.reads: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Callable[[int, int], Exception | None] = lambda position, length: None
        self.held_bytes = 0

    async def read(self, position: int, length: int, *, at_once: bool) -> memoryview:
        self.reads.append((position, length))
        await self.gate.wait()
        failure = self.failure(position, length)
        if failure is not None:
            raise failure
        content = numpy.frombuffer(CONTENT[position : position + length], numpy.uint8).copy()
        self.held_bytes += len(content)
        weakref.finalize(content, self._dropped, len(content))
        return content.data

    def _dropped(self, size: int) -> None:
        self.held_bytes -= size

    def extent(self, position: int, length: int) -> Extent:
        return Extent(self, position, length, google_crc32c.value(CONTENT[position : position + length]))


def make_cache(chunks: int, *, past_when_crowded: bool = False, clock: FakeClock | None = None) -> ReadCache:
    return ReadCache(
        clock or FakeClock(),
        bytes_max=chunks * CHUNK,
        chunk_bytes=CHUNK,
        ahead_together=32,
        chunks_per_read=CHUNKS_PER_READ,
        past_when_crowded=past_when_crowded,
    )


def play(
    scenario: Callable[[ReadCache, FarFile], Coroutine[None, None, None]],
    chunks: int = 80,
    *,
    past_when_crowded: bool = False,
) -> None:
    async def told() -> None:
        file = FarFile()
        cache = make_cache(chunks, past_when_crowded=past_when_crowded, clock=file.clock)
        await scenario(cache, file)
        await cache.close()

    asyncio.run(told())


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def all_of_it(file: FarFile) -> AsyncGenerator[Extent, None]:
    yield Extent(file, 0, len(CONTENT), 0)


@given(
    st.integers(1, 60),
    st.lists(
        st.tuples(
            st.sampled_from(["read", "stretch", "ahead", "span"]),
            st.integers(0, len(CONTENT) - 1),
            st.sampled_from([1, 100, CHUNK, 3 * CHUNK, 40_000]),
        ),
        max_size=40,
    ),
)
def test_whatever_is_asked_for_is_what_the_file_holds_and_memory_is_bounded(
    chunks: int, asked: list[tuple[str, int, int]]
) -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        for what, position, length in asked:
            extent = file.extent(position, min(length, len(CONTENT) - position))
            if what == "ahead":
                cache.read_ahead(all_of_it(file), length // CHUNK)
                await settled()
            elif what == "span":
                assert (await cache.span(file, *extent[1:3]))[0] == CONTENT[position : position + extent.length]
            else:
                if what == "stretch":
                    await cache.load_stretch(extent, length)
                assert (await cache.read(extent))[0] == CONTENT[position : position + extent.length]
            assert file.held_bytes <= cache.bytes_held <= chunks * CHUNK
        await cache.close()
        assert cache.bytes_held == file.held_bytes == 0

    play(scenario, chunks)


def test_the_chunks_of_a_stretch_come_in_as_few_reads_as_they_may() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        await cache.read(file.extent(9 * CHUNK, 10))
        file.reads.clear()
        extent = file.extent(2 * CHUNK + 100, 1000)
        assert await cache.load_stretch(extent, 9 * CHUNK), "its reader waited"
        assert sorted(file.reads) == [(2 * CHUNK, 4 * CHUNK), (6 * CHUNK, 3 * CHUNK), (10 * CHUNK, 2 * CHUNK)]
        file.reads.clear()
        assert not await cache.load_stretch(extent, 9 * CHUNK), "memory has all of it"
        view, hit = await cache.read(extent)
        assert view == CONTENT[2 * CHUNK + 100 : 2 * CHUNK + 1100]
        assert hit
        assert not await cache.load_stretch(file.extent(20 * CHUNK, 10), CHUNK), (
            "one chunk is read when it is asked for"
        )
        assert file.reads == []

    play(scenario)


def test_what_a_reader_may_ask_for_next_comes_in_the_same_read() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        assert await cache.load_stretch(file.extent(2 * CHUNK + 100, 1000), CHUNK, 40 * CHUNK)
        assert file.reads == [(2 * CHUNK, 4 * CHUNK)]
        assert not await cache.load_stretch(file.extent(4 * CHUNK, 1000), 2 * CHUNK, 40 * CHUNK)
        assert await cache.load_stretch(file.extent(10 * CHUNK, 1000), CHUNK, 11 * CHUNK + 1)
        assert file.reads[1:] == [(10 * CHUNK, 2 * CHUNK)], "no more than the reader may ask for"
        await cache.read(file.extent(22 * CHUNK, 10))
        assert await cache.load_stretch(file.extent(20 * CHUNK, 1000), CHUNK, 40 * CHUNK)
        assert file.reads[3:] == [(20 * CHUNK, 2 * CHUNK)], "nor what memory has"

    play(scenario)


def test_what_a_reader_may_ask_for_next_takes_no_more_memory_than_reading_ahead_may() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        for first in range(0, 50, 10):
            await cache.load_stretch(file.extent(first * CHUNK, 1000), 2 * CHUNK, 100 * CHUNK)
        lengths = [length // CHUNK for _position, length in file.reads]
        assert lengths == [4, 4, 4, 4, 2]

    play(scenario, 16)


def test_what_is_on_its_way_for_many_readers_fits_into_memory_and_all_get_theirs() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        file.gate.clear()
        most = 0

        async def read(first: int, upto: int) -> None:
            extent = file.extent(first * CHUNK + 50, CHUNK)
            await cache.load_stretch(extent, 2 * CHUNK, upto * CHUNK)
            assert (await cache.read(extent))[0] == CONTENT[extent.position : extent.position + CHUNK]

        cache.read_ahead(all_of_it(file), 32)
        readers = [asyncio.create_task(read(first, upto)) for first in range(0, 90, 3) for upto in (0, first + 9)]
        while not all(reader.done() for reader in readers):
            asked = sum(length for _position, length in file.reads)
            await settled()
            most = max(most, sum(length for _position, length in file.reads) - asked)
            file.gate.set()
            await asyncio.sleep(0)
            file.gate.clear()
        await asyncio.gather(*readers)
        assert most <= 16 * CHUNK * UNDER_WAY_SHARE

    play(scenario, 16)


def test_who_wants_a_chunk_that_comes_with_others_waits_for_that_read() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        file.gate.clear()
        extents = [file.extent(number * CHUNK, 100) for number in range(4)]
        stretches = [asyncio.ensure_future(cache.load_stretch(extents[0], 4 * CHUNK)) for _ in range(2)]
        await settled()
        readers = [asyncio.ensure_future(cache.read(extent)) for extent in extents]
        await settled()
        file.gate.set()
        assert [hit for _view, hit in await asyncio.gather(*readers)] == [False] * 4
        await asyncio.gather(*stretches)
        assert file.reads == [(0, 4 * CHUNK)]

    play(scenario)


def test_who_waits_for_a_read_that_is_given_up_reads_by_itself() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        file.gate.clear()
        stretch = asyncio.ensure_future(cache.load_stretch(file.extent(0, 100), 4 * CHUNK))
        await settled()
        reader = asyncio.ensure_future(cache.read(file.extent(CHUNK, 100)))
        await settled()
        stretch.cancel()
        file.gate.set()
        assert (await reader)[0] == CONTENT[CHUNK : CHUNK + 100]
        assert file.reads == [(0, 4 * CHUNK), (CHUNK, CHUNK)]

    play(scenario)


def test_a_chunk_that_cannot_be_read_leaves_its_neighbours_readable() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        file.failure = lambda position, length: StorageError("lost") if position + length > 3 * CHUNK else None
        assert await cache.load_stretch(file.extent(0, 100), 4 * CHUNK)
        for number in range(3):
            assert (await cache.read(file.extent(number * CHUNK, 100)))[0] == CONTENT[number * CHUNK :][:100]
        with pytest.raises(StorageError, match="lost"):
            await cache.read(file.extent(3 * CHUNK, 100))

    play(scenario)


def test_an_outage_reaches_all_who_wait_and_is_not_waited_for_twice() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        file.failure = lambda position, length: OutOfReach("out")
        file.gate.clear()
        stretch = asyncio.ensure_future(cache.load_stretch(file.extent(0, 100), 9 * CHUNK))
        await settled()
        reader = asyncio.ensure_future(cache.read(file.extent(CHUNK, 100)))
        await settled()
        file.gate.set()
        for outcome in await asyncio.gather(stretch, reader, return_exceptions=True):
            assert isinstance(outcome, OutOfReach)
        assert sorted(file.reads) == [(0, 4 * CHUNK), (4 * CHUNK, 4 * CHUNK), (8 * CHUNK, CHUNK)]

    play(scenario)


def test_read_ahead_asks_for_more_at_once_the_further_it_goes() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        cache.read_ahead(all_of_it(file), READS_AHEAD_LEAST)
        await settled()
        assert file.reads == [(number * CHUNK, CHUNK) for number in range(READS_AHEAD_LEAST)]
        file.reads.clear()
        count = READS_AHEAD_LEAST * CHUNKS_PER_READ
        cache.read_ahead(all_of_it(file), count)
        await settled()
        assert file.reads == [(first * CHUNK, 4 * CHUNK) for first in range(READS_AHEAD_LEAST, count, 4)]

    play(scenario)


def test_a_reader_that_goes_on_has_whole_reads_made_ahead_of_it() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        count = READS_AHEAD_LEAST * CHUNKS_PER_READ
        for place in range(60):

            async def rest(place: int = place) -> AsyncGenerator[Extent, None]:
                yield Extent(file, place * CHUNK, len(CONTENT) - place * CHUNK, 0)

            cache.read_ahead(rest(), count)
            await settled()
            for number in range(place, place + count - CHUNKS_PER_READ + 1):
                assert cache.holds(file, number)
            assert (await cache.read(file.extent(place * CHUNK, 100)))[1]
        assert {length for _position, length in file.reads} == {4 * CHUNK}

    play(scenario)


def test_the_end_of_a_file_is_read_ahead_however_little_it_is() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        async def end() -> AsyncGenerator[Extent, None]:
            yield Extent(file, 98 * CHUNK, len(CONTENT) - 98 * CHUNK, 0)
            yield Extent(file, 10 * CHUNK, 2 * CHUNK, 0)

        cache.read_ahead(end(), READS_AHEAD_LEAST * CHUNKS_PER_READ)
        await settled()
        assert file.reads == [(98 * CHUNK, 3 * CHUNK), (10 * CHUNK, 2 * CHUNK)]
        assert (await cache.read(file.extent(100 * CHUNK, 1234)))[1]

    play(scenario)


def test_a_chunk_that_is_read_again_stays_without_the_memory_of_its_neighbours() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        other = FarFile("b.pack")
        for first in range(0, 40, 4):
            await cache.load_stretch(file.extent(first * CHUNK, 100), 4 * CHUNK)
            for position in (0, 500, 0):  # coming back protects it
                await cache.read(file.extent(first * CHUNK + position, 100))
        for first in range(0, 80, 4):
            await cache.load_stretch(other.extent(first * CHUNK, 100), 4 * CHUNK)
        assert all(cache.holds(file, first) for first in range(0, 40, 4))
        assert not any(cache.holds(file, first + 1) for first in range(0, 40, 4))
        assert file.held_bytes == 0, "each has bytes of its own, in place of those that came"
        assert other.held_bytes + 10 * CHUNK <= cache.bytes_held <= 40 * CHUNK

    play(scenario, 40)


def test_a_chunk_that_two_queues_share_is_not_kept_for_being_read_by_both() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        await cache.load_stretch(file.extent(0, 100), 4 * CHUNK)
        await cache.read(file.extent(500, 100))
        await cache.read(file.extent(0, 100))
        assert file.held_bytes == 4 * CHUNK, "it has no bytes of its own"

    play(scenario, 40)


def test_bytes_that_came_together_are_checked() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        wrong = file.extent(CHUNK + 10, 100)._replace(crc=1)
        await cache.load_stretch(wrong, 3 * CHUNK)
        with pytest.raises(FormatError, match=r"a\.pack: extent of 100 bytes at 4106 fails its CRC"):
            await cache.read(wrong)
        assert not cache.holds(file, 1), "what failed is not kept"

    play(scenario)


def test_a_chunk_is_taken_together_with_those_that_came_with_it() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        for first in (0, 4, 8):
            await cache.load_stretch(file.extent(first * CHUNK, 100), CHUNK, 12 * CHUNK)
        for number in range(5, 12):
            await cache.read(file.extent(number * CHUNK, 100))
        chunk = cache.held(file, CHUNK + 500)
        assert chunk is not None
        data, start = chunk.came_with
        assert start == 0
        assert data == CONTENT[: 4 * CHUNK]
        chunk.checked.add(2 * CHUNK - 50)
        other = cache.held(file, 2 * CHUNK)
        assert other is not None
        assert 2 * CHUNK - 50 in other.checked, "what was checked lies in both"
        cache.passed(file, chunk, 20, 3 * CHUNK + 10)
        await cache.load_stretch(file.extent(20 * CHUNK, 100), 4 * CHUNK)
        await cache.load_stretch(file.extent(24 * CHUNK, 100), 4 * CHUNK)
        assert all(cache.holds(file, number) for number in (1, 2, 3)), "they were used last"
        assert not any(cache.holds(file, number) for number in (0, 4, 5, 6, 7))

    play(scenario, 16)


def test_what_was_read_ahead_stays_longer_than_what_was_used_and_not_for_ever() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        await cache.load_stretch(file.extent(0, 100), CHUNK, 4 * CHUNK)
        assert cache.holds(file, 3)
        for first in range(20, 32, 4):  # as much as there is room for, and used later than 1, 2 and 3 came
            await cache.load_stretch(file.extent(first * CHUNK, 100), 4 * CHUNK)
            for number in range(first, first + 4):
                await cache.read(file.extent(number * CHUNK, 100))
        await cache.read(file.extent(40 * CHUNK, 100))
        assert all(cache.holds(file, number) for number in (1, 2, 3)), "their reader has yet to come"
        assert not cache.holds(file, 0), "its reader has been here"
        await cache.load_stretch(file.extent(60 * CHUNK, 100), 4 * CHUNK)
        assert not any(cache.holds(file, number) for number in (1, 2, 3)), "as much as memory holds came after them"
        assert cache.bytes_held <= 16 * CHUNK

    play(scenario, 16)


def test_a_chunk_that_is_kept_alone_has_no_neighbours() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        await cache.load_stretch(file.extent(0, 100), 4 * CHUNK)
        for position in (0, 500, 0):  # coming back protects it
            await cache.read(file.extent(position, 100))
        chunk = cache.held(file, 0)
        assert chunk is not None
        data, start = chunk.came_with
        assert (len(data), start) == (CHUNK, 0)
        assert {0, 500} <= chunk.checked

    play(scenario, 40)


WHOLE = CHUNKS_PER_READ * CHUNK // 100 * 100
"""The bytes of a reader's own stretch in extents of a hundred bytes, while there is room."""


async def own_stretch(cache: ReadCache, extent: Extent, wanted: int) -> CachedChunk | None:
    return await cache.stretch_past(extent, wanted, lambda most: max(100, most // 100 * 100))


async def in_a_crowd(
    cache: ReadCache, file: FarFile, places: tuple[int, int, int] = (0, 8, 16)
) -> list[asyncio.Future[bool]]:
    """Three readers wait for a stretch each, more than half of the memory of 16 chunks has room for."""
    assert not cache.is_crowded
    file.gate.clear()
    waiting = [asyncio.ensure_future(cache.load_stretch(file.extent(at * CHUNK, 100), 4 * CHUNK)) for at in places]
    await settled()
    assert cache.is_crowded
    return waiting


def test_one_of_a_crowd_is_brought_what_it_takes_past_the_memory() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        extent = file.extent(50 * CHUNK + 10, 100)
        assert await own_stretch(cache, extent, 5000) is None, "nobody else waits"
        waiting = await in_a_crowd(cache, file)
        file.reads.clear()
        together = [asyncio.ensure_future(own_stretch(cache, extent, 5000)) for _ in range(2)]
        await settled()
        assert await own_stretch(cache, file.extent(100, 100), 5000) is None, "it is on its way into memory"
        cache.read_ahead(all_of_it(file), 40)
        await settled()
        assert len(file.reads) <= 1, "nothing is read ahead"
        file.gate.set()
        one, two = await asyncio.gather(*together)
        assert one is not None
        assert one is two
        assert one.data == CONTENT[extent.position :][:WHOLE], "nobody else wants the room for what comes next"
        assert cache.checked(one, extent) == CONTENT[extent.position :][:100]
        with pytest.raises(FormatError, match="fails its CRC"):
            cache.checked(one, file.extent(50 * CHUNK + 500, 100)._replace(crc=1))
        await asyncio.gather(*waiting)
        assert file.reads == [(extent.position, WHOLE)]
        assert cache.bytes_held == 12 * CHUNK, "memory has what the others wait for alone"
        assert cache.is_crowded
        file.clock.advance(CROWD_SECONDS)
        assert not cache.is_crowded
        assert await own_stretch(cache, extent, 5000) is None

    play(scenario, 16, past_when_crowded=True)


def test_what_readers_of_a_crowd_come_back_for_is_bounded_and_asked_for_once() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        waiting = await in_a_crowd(cache, file)
        places = [file.extent((30 + 5 * number) * CHUNK, 100) for number in range(3)]
        asked = [asyncio.ensure_future(own_stretch(cache, extent, CHUNK)) for extent in places]
        await settled()
        file.reads.clear()
        file.gate.set()
        file.gate.clear()  # the crowd is served, and the others wait
        await asyncio.gather(*waiting)
        await settled()
        assert [length for _, length in file.reads] == [WHOLE, WHOLE, 4000], "half of the memory has no more room"
        file.gate.set()
        rests = [file.extent(extent.position + 4000, 100) for extent in places]
        for rest in rests:
            stretch = await asked.pop(0)
            assert stretch is not None
            cache.keep_rest(rest, stretch)
        del stretch
        assert 2 * WHOLE <= cache.bytes_held <= 16 * CHUNK
        assert file.held_bytes <= 16 * CHUNK
        kept = [cache.take_rest(rest) for rest in rests]
        assert [stretch is not None for stretch in kept] == [True, True, False], "nothing is left of the last"
        assert kept[1] is not None
        assert cache.checked(kept[1], rests[1]) == CONTENT[rests[1].position :][:100]
        assert cache.take_rest(rests[1]) is None, "it is one reader's"
        cache.keep_rest(rests[1], kept[1])
        cache.forget(file.name)
        assert cache.take_rest(rests[1]) is None

    play(scenario, 16, past_when_crowded=True)


def test_a_reader_of_a_crowd_that_does_not_come_back_leaves_its_room_to_others() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        waiting = await in_a_crowd(cache, file)
        file.gate.set()
        await asyncio.gather(*waiting)
        gone = [file.extent(at * CHUNK, 100) for at in (30, 40)]
        for extent in gone:
            stretch = await own_stretch(cache, extent, CHUNK)
            assert stretch is not None
            cache.keep_rest(extent, stretch)
        file.reads.clear()
        await own_stretch(cache, file.extent(50 * CHUNK, 100), CHUNK)
        assert file.reads == [(50 * CHUNK, 4000)], "it has no more than it takes"
        file.clock.advance(REST_SECONDS)
        waiting = await in_a_crowd(cache, file, (60, 68, 76))
        file.gate.set()
        await asyncio.gather(*waiting)
        file.reads.clear()
        await own_stretch(cache, file.extent(90 * CHUNK, 100), CHUNK)
        assert file.reads == [(90 * CHUNK, WHOLE)]
        assert [cache.take_rest(extent) for extent in gone] == [None, None]

    play(scenario, 16, past_when_crowded=True)


def test_what_cannot_be_read_past_the_memory_is_left_to_who_reports_it() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        waiting = await in_a_crowd(cache, file)
        extent = file.extent(50 * CHUNK + 10, 100)
        lost: dict[str, Exception] = {"is": StorageError("lost")}
        file.failure = lambda position, length: lost["is"] if position == extent.position else None
        asked = asyncio.ensure_future(own_stretch(cache, extent, 5000))
        await settled()
        file.gate.set()
        assert await asked is None
        await asyncio.gather(*waiting)
        file.gate.clear()
        waiting = [
            asyncio.ensure_future(cache.load_stretch(file.extent(at * CHUNK, 100), 4 * CHUNK)) for at in (40, 60, 80)
        ]
        await settled()
        lost["is"] = OutOfReach("out")
        asked = asyncio.ensure_future(own_stretch(cache, extent, 5000))
        await settled()
        file.gate.set()
        with pytest.raises(OutOfReach):
            await asked
        await asyncio.gather(*waiting)

    play(scenario, 16, past_when_crowded=True)


def test_a_crowd_asks_for_whole_stretches_where_nothing_is_read_past_the_memory() -> None:
    async def scenario(cache: ReadCache, file: FarFile) -> None:
        file.gate.clear()
        waiting = [
            asyncio.ensure_future(cache.load_stretch(file.extent(at * CHUNK, 100), 4 * CHUNK)) for at in (0, 8, 16)
        ]
        await settled()
        assert await own_stretch(cache, file.extent(50 * CHUNK, 100), 5000) is None
        file.gate.set()
        await asyncio.gather(*waiting)

    play(scenario, 16)


def test_several_keys_are_loaded_in_one_flight() -> None:
    async def scenario() -> None:
        flights: SingleFlight[str, int] = SingleFlight()
        gate = asyncio.Event()

        async def load() -> list[int | None]:
            await gate.wait()
            return [1, None]

        async def alone() -> int:
            return 3

        together = asyncio.ensure_future(flights.run_together(["a", "b"], load))
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(flights.run(key, alone)) for key in ("a", "b", "c")]
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*waiting) == [1, 3, 3]
        await together
        assert "a" not in flights

    asyncio.run(scenario())
