"""The read cache: what stays, what leaves, what is checked, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.clock import FakeClock

from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import FormatError
from mainstem.storage.read_cache.extent import Extent
from mainstem.storage.read_cache.read_cache import ReadCache
from mainstem.storage.read_cache.whole_chunks import load_chunks

CHUNK = 4096
POSITIONS = numpy.arange(100 * CHUNK + 1234)
CONTENT = (POSITIONS * 7 + POSITIONS // 251).astype(numpy.uint8).tobytes()


class Disk:
    """A file in memory that counts its reads, and holds them back while `gate` is closed."""

    def __init__(self, name: str = "a.run") -> None:
        self.name = name
        self.reads: list[tuple[int, int]] = []
        self.at_once: list[bool] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: OSError | None = None

    async def read(self, position: int, length: int, *, at_once: bool) -> bytes:
        self.reads.append((position, length))
        self.at_once.append(at_once)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return CONTENT[position : position + length]

    def extent(self, position: int, length: int) -> Extent:
        return Extent(self, position, length, google_crc32c.value(CONTENT[position : position + length]))


def make_cache(chunks: int, **options: Any) -> ReadCache:
    return ReadCache(FakeClock(), bytes_max=chunks * CHUNK, chunk_bytes=CHUNK, **options)


def values(cache: ReadCache) -> dict[str, float]:
    return {sample.name.removeprefix("mainstem_read_cache_"): sample.value for sample in cache.samples()}


@given(
    st.integers(0, 50),
    st.lists(
        st.tuples(st.integers(0, len(CONTENT) - 1), st.sampled_from([1, 100, CHUNK, 3 * CHUNK, 40_000])), max_size=40
    ),
)
def test_whatever_is_asked_for_is_what_the_file_holds_and_memory_is_bounded(
    chunks: int, asked: list[tuple[int, int]]
) -> None:
    async def scenario() -> None:
        cache = make_cache(chunks)
        disk = Disk()
        for position, length in asked:
            extent = disk.extent(position, min(length, len(CONTENT) - position))
            view, _hit = await cache.read(extent)
            assert view == CONTENT[position : position + extent.length]
            assert cache.bytes_held <= chunks * CHUNK
        for position, length in disk.reads:
            assert (length == CHUNK and position % CHUNK == 0) or length > chunks * CHUNK / 4

    asyncio.run(scenario())


def test_a_chunk_is_read_once_for_all_who_wait_for_it() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(8), Disk()
        disk.gate.clear()
        readers = [asyncio.ensure_future(cache.read(disk.extent(place * 100, 100))) for place in range(5)]
        await asyncio.sleep(0)
        readers[0].cancel()  # the one who reads; another goes on for the rest
        for _ in range(5):
            await asyncio.sleep(0)
        disk.gate.set()
        for place, reader in enumerate(readers[1:], 1):
            assert (await reader)[0] == CONTENT[place * 100 : place * 100 + 100]
        assert disk.reads == [(0, CHUNK), (0, CHUNK)]

    asyncio.run(scenario())


def test_a_failed_read_reaches_all_who_wait_and_is_tried_again_by_the_next() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(8), Disk()
        disk.gate.clear()
        disk.failure = OSError(5, "Input/output error")
        readers = [asyncio.ensure_future(cache.read(disk.extent(0, 100))) for _ in range(3)]
        await asyncio.sleep(0)
        disk.gate.set()
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert [type(result) for result in results] == [OSError] * 3
        disk.failure = None
        assert (await cache.read(disk.extent(0, 100)))[0] == CONTENT[:100]
        assert len(disk.reads) == 2

    asyncio.run(scenario())


def test_a_reader_passing_through_does_not_evict_what_is_read_again() -> None:
    async def scenario() -> None:
        cache, hot, cold = make_cache(10), Disk("hot.run"), Disk("cold.run")
        for _ in range(3):
            for place in range(0, 4 * CHUNK, 1024):
                await cache.read(hot.extent(place, 1024))
        for place in range(0, 60 * CHUNK, 1024):
            await cache.read(cold.extent(place, 1024))
        before = len(hot.reads)
        for place in range(0, 4 * CHUNK, 1024):
            assert (await cache.read(hot.extent(place, 1024)))[1], "still in memory"
        assert len(hot.reads) == before == 4
        assert len(cold.reads) == 60

    asyncio.run(scenario())


def test_bytes_are_checked_when_they_come_from_the_disk() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(8), Disk()
        wrong = disk.extent(100, 5000)._replace(crc=1)
        for _ in range(2):
            with pytest.raises(FormatError, match=r"a\.run: extent of 5000 bytes at 100 fails its CRC"):
                await cache.read(wrong)
        assert len(disk.reads) == 4, "what failed is not kept"
        with pytest.raises(FormatError, match=r"is cut short at 1234 bytes"):
            await cache.read(Extent(disk, 100 * CHUNK, 2000, 0))

    asyncio.run(scenario())


def test_what_memory_holds_is_checked_once() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(8), Disk()
        await cache.read(disk.extent(100, 5000))
        assert (await cache.read(disk.extent(100, 5000)._replace(crc=1)))[1], "a second check would fail"

    asyncio.run(scenario())


def test_what_was_evicted_is_checked_again() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(4), Disk()
        both = disk.extent(CHUNK - 10, 20)
        await cache.read(both)
        for place in range(2, 6):
            await cache.read(disk.extent(place * CHUNK, 10))
        with pytest.raises(FormatError):
            await cache.read(both._replace(crc=1))

    asyncio.run(scenario())


def test_switched_off_it_reads_exactly_what_is_asked_for() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(0), Disk()
        for _ in range(2):
            content, was_held = await cache.read(disk.extent(10, 50))
            assert (bytes(content), was_held) == (CONTENT[10:60], False)
        cache.read_ahead(extents(disk), 5)
        await asyncio.sleep(0)
        assert disk.reads == [(10, 50), (10, 50)]
        assert (values(cache)["misses_total"], values(cache)["hits_total"], cache.bytes_held) == (2, 0, 0)

    asyncio.run(scenario())


async def extents(disk: Disk) -> AsyncGenerator[Extent, None]:
    for place in range(0, 50 * CHUNK, CHUNK // 2):
        yield disk.extent(place, CHUNK // 2)


def test_reading_ahead_loads_so_many_chunks_and_no_more() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(20), Disk()
        cache.read_ahead(extents(disk), 5)
        await settled(lambda: len(disk.reads) >= 5)
        assert disk.reads == [(number * CHUNK, CHUNK) for number in range(5)]
        assert (await cache.read(disk.extent(4 * CHUNK, 100)))[1]
        assert values(cache)["ahead_chunks_total"] == 5
        await cache.close()
        assert cache.bytes_held == 0

    asyncio.run(scenario())


def test_who_goes_on_is_read_ahead_of_and_nothing_is_begun_for_what_memory_has() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(20), Disk()
        await cache.read(disk.extent(4 * CHUNK, 100))
        cache.read_on(disk, range(3, 7))
        cache.read_on(disk, range(3, 6))
        await settled(lambda: cache.bytes_held == 4 * CHUNK)
        assert sorted(disk.reads) == [(number * CHUNK, CHUNK) for number in (3, 4, 5, 6)], "each once"
        for number in range(3, 7):
            position = number * CHUNK + 5
            assert bytes((await cache.read(disk.extent(position, 100)))[0]) == CONTENT[position : position + 100]
        assert len(disk.reads) == 4, "its reader found it in memory"
        cache.read_on(disk, range(3, 7))
        cache.read_on(disk, range(8, 8))
        assert len(asyncio.all_tasks()) == 1
        await cache.close()
        assert cache.bytes_held == 0

    asyncio.run(scenario())


def test_reading_on_ends_where_memory_has_no_more_room_for_what_nobody_uses() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(20), Disk()
        cache.read_on(disk, range(50))
        await settled(lambda: cache.bytes_held >= 10 * CHUNK)
        await settled(lambda: len(asyncio.all_tasks()) == 1)
        assert len(disk.reads) == 10

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [2, 3], ids=["on its way", "not begun"])
def test_a_reader_is_told_that_it_waited_for_a_chunk_that_is_on_its_way_as_well(number: int) -> None:
    async def scenario() -> None:
        cache, disk = make_cache(20), Disk()
        disk.gate.clear()
        cache.read_on(disk, range(2, 3))
        await settled(lambda: bool(disk.reads))
        loading = asyncio.ensure_future(load_chunks(cache, [(disk, number, 100)]))
        await asyncio.sleep(0)
        disk.gate.set()
        (chunk,), held = await loading
        assert chunk is not None
        assert bytes(chunk) == CONTENT[number * CHUNK :][:CHUNK]
        assert not held
        assert (await load_chunks(cache, [(disk, number, 100)]))[1]
        assert disk.reads.count((number * CHUNK, CHUNK)) == 1

    asyncio.run(scenario())


def test_close_ends_reading_ahead_that_is_stuck() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(20), Disk()
        disk.gate.clear()
        cache.read_ahead(extents(disk), 5)
        await settled(lambda: bool(disk.reads))
        await cache.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_a_forgotten_file_is_read_again() -> None:
    async def scenario() -> None:
        cache, disk, other = make_cache(8), Disk(), Disk("b.run")
        for source in (disk, other):
            await cache.read(source.extent(0, 10))
        cache.forget("a.run")
        assert cache.bytes_held == CHUNK
        assert not (await cache.read(disk.extent(0, 10)))[1]
        assert (await cache.read(other.extent(0, 10)))[1]

    asyncio.run(scenario())


def test_reads_of_the_disk_are_paced() -> None:
    async def scenario() -> None:
        clock, disk = FakeClock(), Disk()
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            clock.advance(seconds)

        cache = ReadCache(clock, bytes_max=1 << 20, chunk_bytes=CHUNK, bytes_per_second=CHUNK * 10, sleep=sleep)
        for number in range(6):
            await cache.read(disk.extent(number * CHUNK, CHUNK))
            await cache.read(disk.extent(number * CHUNK, CHUNK))
        assert clock.monotonic() == pytest.approx(0.5)
        assert slept == pytest.approx([0.1] * 5)

    asyncio.run(scenario())


def test_a_single_flight_gives_one_answer_per_load() -> None:
    async def scenario() -> None:
        flights: SingleFlight[str, int] = SingleFlight()
        calls = 0

        async def load() -> int:
            nonlocal calls
            calls += 1
            number = calls
            await asyncio.sleep(0)
            return number

        joined = (flights.run("a", load) for _ in range(3))
        assert await asyncio.gather(*joined, flights.run("b", load)) == [1, 1, 1, 2]
        assert await flights.run("a", load) == 3
        assert "a" not in flights

    asyncio.run(scenario())


async def settled(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        await asyncio.sleep(0)
        if condition():
            for _ in range(20):
                await asyncio.sleep(0)
            return
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("free", [False, True])
def test_a_disk_that_nobody_else_wants_is_read_at_once(free: bool) -> None:
    async def pace(size: int) -> bool:
        return free

    async def scenario() -> None:
        disk = Disk()
        cache = ReadCache(FakeClock(), bytes_max=8 * CHUNK, chunk_bytes=CHUNK, pace=pace)
        await cache.span(disk, 0, CHUNK)
        await cache.past(disk, CHUNK, 10)
        assert disk.at_once == [free, free]

    asyncio.run(scenario())


# --- extents that are brought alone ---------------------------------------------------------------------------


class Together:
    """Reads parts of files in one go, and counts the goes."""

    def __init__(self, *disks: Disk) -> None:
        self._disks = {disk.name: disk for disk in disks}
        self.goes: list[list[tuple[str, int, int]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails: set[str] = set()

    async def read(self, parts: Sequence[tuple[str, int, int]]) -> list[bytes | None]:
        self.goes.append(list(parts))
        await self.gate.wait()
        return [
            None if name in self.fails else CONTENT[position : position + length] for name, position, length in parts
        ]


@given(
    st.integers(1, 50),
    st.lists(
        st.tuples(
            st.booleans(), st.integers(0, 20 * CHUNK), st.sampled_from([1, 100, 700, CHUNK // 4, CHUNK, 3 * CHUNK])
        ),
        max_size=60,
    ),
)
def test_whatever_is_brought_before_it_is_asked_for_is_what_the_file_holds_and_memory_is_bounded(
    chunks: int, asked: list[tuple[bool, int, int]]
) -> None:
    async def scenario() -> None:
        cache, disk = make_cache(chunks), Disk()
        together = Together(disk)
        for number, (is_brought, position, length) in enumerate(asked):
            extents = [disk.extent(position, length) for _, position, length in asked[number : number + 5]]
            if is_brought:
                await cache.bring(extents, together.read)
                assert cache.bytes_held <= chunks * CHUNK
            view, _hit = await cache.read(extents[0])
            assert view == CONTENT[position : position + length]
            assert cache.bytes_held <= chunks * CHUNK
        await cache.close()
        assert cache.bytes_held == 0

    asyncio.run(scenario())


def test_small_extents_are_brought_in_one_go_and_waited_for_once() -> None:
    async def scenario() -> None:
        cache = make_cache(100)
        disks = [Disk(f"{number}.run") for number in range(4)]
        together = Together(*disks)
        extents = [disk.extent(3 * CHUNK + 10, 500) for disk in disks]
        following = disks[0].extent(3 * CHUNK + 510, 200)
        too_large = disks[0].extent(5 * CHUNK, CHUNK // 4 + 1)
        in_two_chunks = disks[0].extent(7 * CHUNK - 10, 20)
        assert all(cache.takes_alone(extent) for extent in extents)
        assert not cache.takes_alone(too_large)
        assert not cache.takes_alone(in_two_chunks)
        await cache.bring([extents[0], following, too_large, in_two_chunks, *extents[1:]], together.read)
        (parts,) = together.goes
        assert parts == [("0.run", 3 * CHUNK + 10, 700), *((f"{n}.run", 3 * CHUNK + 10, 500) for n in (1, 2, 3))]
        assert not any(cache.takes_alone(extent) for extent in extents)
        for extent in extents:
            assert (await cache.read(extent))[1] is False, "its reader waited for the disk"
            assert (await cache.read(extent))[1] is True
        assert (await cache.read(following))[1] is True, "it came with the extent before it"
        assert all(disk.reads == [] for disk in disks)
        await cache.bring(extents, together.read)
        assert len(together.goes) == 1, "memory has all of it"

    asyncio.run(scenario())


def test_another_extent_of_the_same_chunk_has_the_chunk_loaded() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(100), Disk()
        together = Together(disk)
        one, other = disk.extent(CHUNK + 1000, 500), disk.extent(CHUNK + 200, 300)
        await cache.bring([one], together.read)
        await cache.read(one)
        assert not cache.holds(disk, 1)
        assert not cache.takes_alone(other)
        assert (await cache.read(other))[0] == CONTENT[CHUNK + 200 : CHUNK + 500]
        assert disk.reads == [(CHUNK, CHUNK)]
        assert cache.holds(disk, 1)
        assert (await cache.read(one))[1]
        assert cache.bytes_held == CHUNK, "the chunk took the place of what was there of it"

    asyncio.run(scenario())


def test_extents_that_two_readers_want_are_brought_once() -> None:
    async def scenario() -> None:
        cache, disk = make_cache(100), Disk()
        together = Together(disk)
        together.gate.clear()
        extents = [disk.extent(number * CHUNK, 100) for number in range(3)]
        readers = [asyncio.ensure_future(cache.bring(extents, together.read)) for _ in range(3)]
        await settled(lambda: len(together.goes) == 1)
        readers[0].cancel()  # the one who reads; another goes on for the rest
        await settled(lambda: len(together.goes) == 2)
        together.gate.set()
        await asyncio.gather(*readers[1:])
        assert len(together.goes) == 2
        for extent in extents:
            await cache.read(extent)
        assert disk.reads == []

    asyncio.run(scenario())


def test_what_is_brought_is_checked_and_what_does_not_come_is_read() -> None:
    async def scenario() -> None:
        cache, disk, gone = make_cache(100), Disk(), Disk("gone.run")
        together = Together(disk, gone)
        together.fails.add(gone.name)
        wrong, whole = disk.extent(100, 500)._replace(crc=1), gone.extent(100, 500)
        short = disk.extent(len(CONTENT) - 100, 100)._replace(length=200)
        await cache.bring([wrong, whole, short], together.read)
        with pytest.raises(FormatError, match=r"a\.run: extent of 500 bytes at 100 fails its CRC"):
            await cache.read(wrong)
        assert cache.takes_alone(wrong), "what failed is not kept"
        assert (await cache.read(whole))[0] == CONTENT[100:600]
        assert gone.reads == [(0, CHUNK)]
        with pytest.raises(FormatError, match=r"is cut short at 100 bytes"):
            await cache.read(short)

    asyncio.run(scenario())


def test_what_is_brought_at_once_is_bounded_and_paced() -> None:
    async def scenario() -> None:
        paced: list[int] = []

        async def pace(size: int) -> bool:
            paced.append(size)
            return False

        cache, disk = make_cache(40, pace=pace), Disk()
        together = Together(disk)
        await cache.bring([disk.extent(number * CHUNK, 1000) for number in range(100)], together.read)
        ((*parts,),) = together.goes
        assert paced == [1000 * len(parts)]
        assert 8 <= len(parts) <= 16, "a tenth of 160 KiB"
        assert cache.bytes_held <= 4 * CHUNK

    asyncio.run(scenario())
