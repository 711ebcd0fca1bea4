"""Readers of the remote tier alone: how many requests they cost, and what is damage and what is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import pytest
from msgspec import structs
from tests.fakes.files import SimulatedFiles
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.fakes.simulated_loop import SimulatedLoop
from tests.storage.queue_store.runs import Batch, indexes_in_pages, make_batch
from tests.storage.remote.tiered_node import upload

from mainstem.errors import ConfigError
from mainstem.storage.errors import FormatError, OutOfReach
from mainstem.storage.extents.extent_format import FRAME_BYTES
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectTooShort
from mainstem.storage.object_stores.guards.metered import Metered
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupPosition
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.remote.config import ReadCacheConfig
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading import object_files
from mainstem.storage.remote.reading.remote_history import AHEAD_AT_ONCE, SWEEP_SECONDS, RemoteHistory
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import StoreFile, path_of, segment_name

QUEUE = 1 << 32
CHUNK = 64 << 10
LATENCY_SECONDS = 0.02
SEGMENT = segment_name("t", 0, "unique", 300)
JOINED = segment_name("t", 0, "unique", 300, joined=True)


class World:
    """A bucket, a manifest of what is in it, and readers with nothing in memory."""

    def __init__(self, loop: SimulatedLoop, directory: Path) -> None:
        self.loop = loop
        self.bucket = SimulatedBucket(loop, random.Random(1))
        self.disk = SimulatedFiles()
        self.path = str(directory / "remote-manifest.sqlite")
        self.config = ReadCacheConfig(
            memory_bytes=32 << 20, chunk_bytes=CHUNK, read_ahead_chunks_max=16, request_bytes=CHUNK
        )
        self.store: Metered
        self.tier: RemoteTier
        self.manifest: Manifest
        self.history: RemoteHistory

    async def open(self) -> None:
        self.tier = await RemoteTier.open(self.path, self.loop.now_ms)
        self.manifest = self.tier.manifest
        await self.reopen()

    async def reopen(self) -> None:
        self.store = Metered(SimulatedObjectStore(self.bucket), self.loop.time)
        self.history = await RemoteHistory.open(self.tier, self.store, self.config, self.loop, self.disk)

    async def reopen_with(self, **config: int) -> None:
        """Readers with nothing in memory and other settings."""
        await self.history.close()
        self.config = structs.replace(self.config, **config)
        await self.reopen()

    async def add(self, name: str, batches: Sequence[Batch]) -> StoreFile:
        """A file of the next ten blocks."""
        file = upload(self.bucket, name, batches)
        upto = self.manifest.position(0).position + 10
        await self.manifest.change(0, (), [(upto - 10, upto, file)], WriteGroupPosition(upto, 0), ())
        return file

    async def read_all(
        self, queue_id: int = QUEUE, offset: int = 0, bytes_max: int = 40_000, pause: float = 0
    ) -> list[bytes]:
        """`pause`: seconds after which the reader comes back."""
        found: list[bytes] = []
        while (part := await self.history.read(queue_id, 0, offset, bytes_max)) is not None:
            found += map(bytes, part.batches)
            offset = part.next_offset
            if pause:
                await asyncio.sleep(pause)
        return found


def play(directory: Path, story: Callable[[World], Coroutine[None, None, None]]) -> None:
    loop = SimulatedLoop()

    async def told() -> None:
        world = World(loop, directory)
        await world.open()
        await story(world)
        await world.history.close()
        await world.manifest.close()

    try:
        loop.run_until_complete(told())
    finally:
        loop.close()


def history_of(count: int, size: int = 10_000, first: int = 0, queue_id: int = QUEUE) -> list[Batch]:
    return [make_batch(queue_id, first + number, size=size, timestamp=1000 + first + number) for number in range(count)]


def datas(batches: Sequence[Batch]) -> list[bytes]:
    return [batch.data for batch in batches]


@pytest.mark.parametrize("segment", [SEGMENT, JOINED])
def test_packed_files_and_segments_are_read_in_the_order_of_their_blocks(tmp_path: Path, segment: str) -> None:
    async def story(world: World) -> None:
        one, two = history_of(300, 500), history_of(200, 3000, 300)
        other = history_of(50, 700, queue_id=QUEUE + 1)
        await world.add("a.pack", [*one, *other])
        await world.add(segment, two)
        assert await world.read_all() == datas([*one, *two])
        assert await world.read_all(QUEUE + 1) == datas(other)
        assert await world.read_all(QUEUE + 2) == []
        assert await world.history.bounds(QUEUE, 0) == (0, 499)
        assert await world.history.bounds(QUEUE + 1, 0) == (0, 49)
        assert await world.history.bounds(QUEUE + 2, 0) is None
        assert await world.history.first_offset(QUEUE, 0, 77) == 77
        assert [extent.last_offset async for extent in world.history.extents(QUEUE, 0, 490)][-1] == 499

    play(tmp_path, story)


@pytest.mark.parametrize("name", ["a.pack", segment_name("t", 0, "unique", 0, joined=True)])
def test_an_index_costs_one_request_however_its_reader_asks(tmp_path: Path, name: str) -> None:
    async def story(world: World) -> None:
        file = await world.add(name, history_of(100))
        assert file.bytes > object_files.TAIL_BYTES
        await world.history.first_offset(QUEUE, 0, 0)
        assert world.bucket.asked == 1
        await world.history.first_offset(QUEUE, 0, 50)
        assert world.bucket.asked == 1

    play(tmp_path, story)


def test_an_index_costs_one_request_however_large_it_is(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        file = await world.add("a.pack", [make_batch(QUEUE + number, 0) for number in range(4200)])
        assert file.bytes - file.batch_bytes > object_files.TAIL_BYTES + FRAME_BYTES
        assert await world.history.first_offset(QUEUE + 7, 0, 0) == 0
        assert world.bucket.asked == 1

    play(tmp_path, story)


def test_a_hundred_readers_of_one_range_cost_one_request_per_chunk(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS / 2, LATENCY_SECONDS)
        batches = history_of(300)
        file = await world.add("a.pack", batches)
        found = await asyncio.gather(*(world.read_all() for _ in range(100)))
        assert all(one == datas(batches) for one in found)
        with_index = -(-object_files.TAIL_BYTES // CHUNK)
        assert world.bucket.asked <= 1 + -(-file.bytes // CHUNK)
        assert world.bucket.asked >= file.bytes // CHUNK - with_index

    play(tmp_path, story)


def test_what_came_in_one_request_is_served_from_where_it_lies(tmp_path: Path) -> None:
    """Extents that lie in two chunks of it, too."""

    async def story(world: World) -> None:
        batches = history_of(100)
        await world.add("a.pack", batches)
        await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
        found = await world.history.read(QUEUE, 0, 0, 5 * CHUNK // 2)
        assert found is not None
        assert [*map(bytes, found.batches)] == datas(batches)[: len(found.batches)]
        assert sum(map(len, found.batches)) > 2 * CHUNK
        assert len({id(batch.obj) for batch in found.batches}) == 1, "nothing of it is a copy"

    play(tmp_path, story)


@pytest.mark.parametrize(("pause", "requests_each"), [(0.0, 2.5), (0.3, 4.0)])
def test_readers_that_are_more_than_memory_has_room_for_ask_for_what_they_read(
    tmp_path: Path, pause: float, requests_each: float
) -> None:
    """Each queue begins and ends within chunks, and each read ends within one. It takes three reads. Readers that come
    back late keep the room for what comes next from each other."""

    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS / 2, LATENCY_SECONDS)
        queues = [history_of(70, queue_id=QUEUE + number) for number in range(40)]
        for first in range(0, 40, 10):
            await world.add(f"{first}.pack", [batch for queue in queues[first : first + 10] for batch in queue])
        await world.reopen_with(
            memory_bytes=4 << 20, chunk_bytes=256 << 10, request_bytes=1 << 20, read_ahead_chunks_max=64
        )
        asked = world.bucket.asked
        found = await asyncio.gather(*(world.read_all(QUEUE + number, 0, 260_000, pause) for number in range(40)))
        assert found == [datas(queue) for queue in queues]
        assert world.bucket.asked - asked <= 40 * requests_each
        read = sum(len(batch.data) for queue in queues for batch in queue)
        indexes = sum(file.bytes - file.batch_bytes for file in world.manifest.files.values())
        assert world.store.read_bytes - indexes <= 1.05 * read
        assert world.history.damaged.all() == []

    play(tmp_path, story)


def test_each_of_many_readers_is_brought_what_several_reads_take_in_one_request(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        queues = [history_of(210, queue_id=QUEUE + number) for number in range(14)]
        await world.add("a.pack", [batch for queue in queues for batch in queue])
        await world.reopen_with(
            memory_bytes=16 << 20, chunk_bytes=256 << 10, request_bytes=1 << 20, read_ahead_chunks_max=64
        )
        await world.history.first_offset(QUEUE, 0, 0)
        asked, read_bytes = world.bucket.asked, world.store.read_bytes
        found = await asyncio.gather(*(world.read_all(QUEUE + number, 0, 260_000) for number in range(14)))
        assert found == [datas(queue) for queue in queues]
        assert world.history.reads == 14 * 10, "a read takes whole extents, and finds out where the queue ends"
        assert world.bucket.asked - asked <= 14 * 5, "each brings what several reads take"
        read = sum(len(batch.data) for queue in queues for batch in queue)
        assert world.store.read_bytes - read_bytes <= 1.05 * read

    play(tmp_path, story)


def test_a_damaged_extent_costs_each_of_many_readers_no_more_than_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        queues = [history_of(70, queue_id=QUEUE + number) for number in range(20)]
        await world.add("a.pack", [batch for queue in queues for batch in queue])
        await world.reopen_with(
            memory_bytes=4 << 20, chunk_bytes=256 << 10, request_bytes=1 << 20, read_ahead_chunks_max=64
        )
        name = object_of(0, path_of("a.pack"))
        content = bytearray(world.bucket.objects[name].content)
        broken = content.index(queues[7][30].data) + 500
        content[broken] ^= 1
        world.bucket.put(name, bytes(content))
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS / 2, LATENCY_SECONDS)

        async def read(number: int) -> list[bytes] | str:
            try:
                return await world.read_all(QUEUE + number, 0, 260_000)
            except FormatError as error:
                return str(error)

        found = await asyncio.gather(*map(read, range(20)))
        said = found.pop(7)
        assert "fails its CRC" in said
        assert found == [datas(queue) for number, queue in enumerate(queues) if number != 7]
        assert [damaged.name for damaged in world.history.damaged.all()] == ["a.pack"]

    play(tmp_path, story)


def test_many_chunks_are_on_their_way_for_one_reader(tmp_path: Path) -> None:
    """By the clock of a loop on which nothing but the store takes time."""

    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        batches = history_of(1000)
        file = await world.add("a.pack", batches)
        began = world.loop.time()
        assert await world.read_all(bytes_max=CHUNK) == datas(batches)
        requests = file.bytes / CHUNK
        assert world.loop.time() - began < LATENCY_SECONDS * requests / 8
        assert world.bucket.asked <= requests + 2

    play(tmp_path, story)


def test_neighbouring_chunks_come_in_one_request_and_no_later(tmp_path: Path) -> None:
    """By the clock of a loop on which nothing but the store takes time."""

    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        batches = history_of(1600)
        file = await world.add("a.pack", batches)
        chunks = file.bytes / CHUNK
        spent = {}
        for request_bytes in (CHUNK, 4 * CHUNK):
            await world.reopen_with(request_bytes=request_bytes, read_ahead_chunks_max=64)
            asked, began = world.bucket.asked, world.loop.time()
            assert await world.read_all(bytes_max=CHUNK) == datas(batches)
            spent[request_bytes] = world.bucket.asked - asked, world.loop.time() - began
        assert spent[CHUNK][0] >= chunks - 4
        assert spent[4 * CHUNK][0] <= chunks / 3
        assert spent[4 * CHUNK][1] <= spent[CHUNK][1] + 2 * LATENCY_SECONDS

    play(tmp_path, story)


def test_a_large_queue_in_a_file_whose_index_is_read_in_pages_is_read_ahead_of(tmp_path: Path) -> None:
    """By the clock of a loop on which nothing but the store takes time. A file has such an index for one queue of a
    gigabyte as for many small ones."""

    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        large, small = history_of(800), history_of(4, queue_id=QUEUE + 1)
        file = await world.add("a.pack", [*large, *small])
        requests = file.bytes // (16 * CHUNK)
        await world.reopen_with(chunk_bytes=8 * CHUNK, request_bytes=16 * CHUNK, read_ahead_chunks_max=64)
        began, asked = world.loop.time(), world.bucket.asked
        assert await world.read_all(bytes_max=4 * CHUNK) == datas(large)
        assert world.bucket.asked - asked <= 2 * requests
        assert world.loop.time() - began < LATENCY_SECONDS * requests
        read_bytes = world.store.read_bytes
        assert await world.read_all(QUEUE + 1) == datas(small)
        assert world.store.read_bytes - read_bytes < 2 * CHUNK, "a small one is brought by itself"

    with indexes_in_pages(8):
        play(tmp_path, story)


@pytest.mark.parametrize("bytes_max", [CHUNK, 4 * CHUNK])
def test_a_reader_has_all_that_it_needs_on_its_way_once_it_comes_back(tmp_path: Path, bytes_max: int) -> None:
    """By the clock of a loop on which nothing but the store takes time. One request is that of the index, one that of
    the first read, beside which half of what may be read ahead is on its way."""

    async def story(world: World) -> None:
        batches = history_of(400)
        file = await world.add("a.pack", batches)
        await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        began = world.loop.time()
        assert await world.read_all(bytes_max=bytes_max) == datas(batches)
        assert (AHEAD_AT_ONCE + 8) * CHUNK < file.bytes < (AHEAD_AT_ONCE + 64) * CHUNK
        assert world.loop.time() - began < 3.5 * LATENCY_SECONDS

    play(tmp_path, story)


def test_who_was_never_here_is_read_ahead_of_if_nobody_else_is_and_if_it_takes_a_chunk(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        queues = range(QUEUE, QUEUE + 3)
        await world.add("a.pack", [batch for queue in queues for batch in history_of(600, queue_id=queue)])

        async def read_bytes(queues: Sequence[int], bytes_max: int) -> int:
            await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
            await world.history.first_offset(QUEUE, 0, 0)
            before = world.store.read_bytes
            await asyncio.gather(*(world.history.read(queue, 0, 0, bytes_max) for queue in queues))
            await asyncio.sleep(100 * LATENCY_SECONDS)  # of the simulated clock: all that was begun has come
            assert not world.history.cache.is_reading_ahead
            return world.store.read_bytes - before

        assert await read_bytes(queues[:1], CHUNK // 2) <= 2 * CHUNK
        ahead = AHEAD_AT_ONCE * CHUNK
        one = await read_bytes(queues[:1], CHUNK)
        assert ahead < one <= ahead + 2 * CHUNK
        assert await read_bytes(queues, CHUNK) <= one + 2 * 4 * CHUNK

    play(tmp_path, story)


@pytest.mark.parametrize(("queues", "offset", "waits"), [(1, 0, 1), (2, 0, 2), (1, 1, 2)])
def test_the_beginning_of_a_queue_alone_in_its_file_comes_beside_the_index(
    tmp_path: Path, queues: int, offset: int, waits: int
) -> None:
    """Nothing but an index tells where another queue's rows begin, or a later offset."""

    async def story(world: World) -> None:
        batches = history_of(100)
        await world.add("a.pack", [*batches, *(make_batch(QUEUE + 1, 0) for _ in range(queues - 1))])
        await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        began = world.loop.time()
        found = await world.history.read(QUEUE, 0, offset, 2 * CHUNK)
        assert found is not None
        assert found.base_offset <= offset < found.next_offset
        assert (waits - 0.5) * LATENCY_SECONDS < world.loop.time() - began < (waits + 0.5) * LATENCY_SECONDS
        assert await world.read_all() == datas(batches)
        assert world.store.read_bytes < 1.1 * sum(map(len, datas(batches))) + 3 * CHUNK, "nothing came twice"

    play(tmp_path, story)


@pytest.mark.parametrize(("readers", "offset", "waits"), [(5, 0, 1), (4, 0, 2), (8, 0, 1), (8, 1, 2)])
def test_most_queues_of_a_file_that_are_begun_together_come_beside_their_index(
    tmp_path: Path, readers: int, offset: int, waits: int
) -> None:
    """Readers of half of its eight queues wait for the index first, and so do those who begin later in theirs."""

    async def story(world: World) -> None:
        queues = {QUEUE + number: history_of(20, queue_id=QUEUE + number) for number in range(8)}
        file = await world.add("a.pack", [batch for queue in queues.values() for batch in queue])
        await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        began = world.loop.time()
        read = [*queues][-readers:]
        found = await asyncio.gather(*(world.history.read(queue, 0, offset, 4 * CHUNK) for queue in read))
        assert (waits - 0.5) * LATENCY_SECONDS < world.loop.time() - began < (waits + 0.5) * LATENCY_SECONDS
        batches = [[*map(bytes, part.batches)] for part in found if part is not None]
        assert batches == [datas(queues[queue][offset:]) for queue in read]
        assert world.store.read_bytes < file.bytes + 3 * CHUNK, "nothing came twice"
        if readers == 4:
            assert world.store.read_bytes < 0.7 * file.bytes, "nor what nobody wants"

    play(tmp_path, story)


def test_readers_that_begin_at_their_log_starts_come_as_those_at_0(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        queues = {QUEUE + number: history_of(20, first=7, queue_id=QUEUE + number) for number in range(8)}
        file = await world.add("a.pack", [batch for queue in queues.values() for batch in queue])
        for log_start, waits in ((7, 1), (6, 2)):
            await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
            world.history.know_log_starts(lambda queue_id, start=log_start: start)  # type: ignore[misc]
            world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
            began = world.loop.time()
            found = await asyncio.gather(*(world.history.read(queue, 0, 7, 4 * CHUNK) for queue in queues))
            assert (waits - 0.5) * LATENCY_SECONDS < world.loop.time() - began < (waits + 0.5) * LATENCY_SECONDS
            assert [[*map(bytes, part.batches)] for part in found if part is not None] == [*map(datas, queues.values())]
            assert world.store.read_bytes < file.bytes + 3 * CHUNK, "nothing came twice"

    play(tmp_path, story)


def test_a_log_start_that_was_moved_far_is_found_in_a_few_requests(tmp_path: Path) -> None:
    """The first file that may have the queue is not the one that has its log start, and damage there hides nothing."""

    async def story(world: World) -> None:
        queues = range(QUEUE, QUEUE + 2)
        for number in range(32):
            batches = [batch for queue in queues for batch in history_of(3, first=3 * number, queue_id=queue)]
            await world.add(f"{number:02}.pack", batches)
        for damaged in (False, True):
            if damaged:
                world.bucket.lose(object_of(0, path_of("00.pack")))
            await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
            world.history.know_log_starts(lambda queue_id: 75)
            asked = world.bucket.asked
            found = await world.history.read(QUEUE, 0, 75, CHUNK)
            assert found is not None
            assert found.base_offset == 75
            assert world.bucket.asked - asked < 16

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("readers", "offset", "in_whole"), [(8, 5, True), (5, 45, True), (4, 5, False), (8, 80, False)]
)
def test_most_queues_of_a_file_that_are_begun_within_it_come_in_requests_of_full_size(
    tmp_path: Path, readers: int, offset: int, in_whole: bool
) -> None:
    """Unless readers begin with less than most of what their queues have there."""

    async def story(world: World) -> None:
        queues = {QUEUE + number: history_of(100, queue_id=QUEUE + number) for number in range(8)}
        file = await world.add("a.pack", [batch for queue in queues.values() for batch in queue])
        await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=64)
        asked = world.bucket.asked
        read = [*queues][-readers:]
        found = await asyncio.gather(*(world.history.read(queue, 0, offset, 4 * CHUNK) for queue in read))
        for queue, part in zip(read, found, strict=True):
            assert part is not None
            assert [*map(bytes, part.batches)] == datas(queues[queue][offset:])[: len(part.batches)]
        await asyncio.sleep(1.0)  # of the simulated clock: all has come that was begun
        assert (world.store.read_bytes >= file.batch_bytes) == in_whole
        if in_whole:
            assert world.bucket.asked - asked <= 1 + -(-file.bytes // (4 * CHUNK))
        assert world.store.read_bytes < file.bytes + 3 * CHUNK, "nothing came twice"

    play(tmp_path, story)


def test_all_that_a_read_wants_comes_in_the_time_of_one_request(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        batches = history_of(100)
        await world.add("a.pack", batches)
        await world.reopen_with(request_bytes=4 * CHUNK, read_ahead_chunks_max=0)
        await world.history.first_offset(QUEUE, 0, 0)
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        asked, began = world.bucket.asked, world.loop.time()
        found = await world.history.read(QUEUE, 0, 0, 6 * CHUNK)
        assert found is not None
        assert not found.from_cache
        assert [*map(bytes, found.batches)] == datas(batches)[: len(found.batches)]
        assert sum(map(len, found.batches)) > 5 * CHUNK
        assert world.bucket.asked - asked == 2
        assert world.loop.time() - began < 1.5 * LATENCY_SECONDS
        again = await world.history.read(QUEUE, 0, 0, 6 * CHUNK)
        assert again is not None
        assert again.from_cache

    play(tmp_path, story)


@pytest.mark.parametrize(("spoil", "error"), [("lose", ObjectAbsent), ("cut", ObjectTooShort), ("flip", FormatError)])
@pytest.mark.parametrize("name", ["a.pack", SEGMENT, JOINED])
@pytest.mark.parametrize("request_bytes", [CHUNK, 4 * CHUNK])
def test_a_lost_or_damaged_object_is_named_as_damage_and_others_are_served(
    tmp_path: Path, spoil: str, error: type[Exception], name: str, request_bytes: int
) -> None:
    async def story(world: World) -> None:
        await world.reopen_with(request_bytes=request_bytes)
        first = 0 if name == "a.pack" else 300
        await world.add(name, history_of(100, first=first))
        rest = history_of(10, first=first + 100)
        await world.add("b.pack", rest)
        at = object_of(0, path_of(name))
        content = world.bucket.objects[at].content
        if spoil == "lose":
            world.bucket.lose(at)
        else:
            spoilt = content[:2000] if spoil == "cut" else content[:50] + bytes(9000) + content[9050:]
            world.bucket.put(at, spoilt)
        for _ in range(2):
            with pytest.raises(error, match=path_of(name) if spoil != "flip" else name):
                await world.read_all(offset=first)
        assert [damage.name for damage in world.history.damaged.all()] == [name]
        assert await world.read_all(offset=first + 100) == datas(rest)

    play(tmp_path, story)


@pytest.mark.parametrize("how", ["down", "refuses"])
@pytest.mark.parametrize("known", [False, True])
def test_a_store_that_is_out_says_nothing_of_its_objects(tmp_path: Path, how: str, known: bool) -> None:
    async def story(world: World) -> None:
        batches = history_of(100)
        await world.add("a.pack", batches)
        if known:
            await world.history.first_offset(QUEUE, 0, 0)
        setattr(world.bucket.weather, how, True)
        for _ in range(2):
            with pytest.raises(OutOfReach):
                await world.read_all()
        assert world.history.damaged.all() == []
        setattr(world.bucket.weather, how, False)
        assert await world.read_all() == datas(batches)
        assert world.history.failures == 2

    play(tmp_path, story)


def test_a_reader_goes_on_in_what_took_the_place_of_a_file(tmp_path: Path) -> None:
    """The tier says that a file is gone before its object is deleted."""

    async def story(world: World) -> None:
        batches = history_of(100)
        await world.add("a.pack", batches)
        part = await world.history.read(QUEUE, 0, 0, 20_000)
        assert part is not None
        merged = upload(world.bucket, "b.pack", batches)
        gone = world.manifest.ranges(0)
        await world.manifest.change(0, gone, [(0, 10, merged)], WriteGroupPosition(10, 0), ())
        world.bucket.remove(object_of(0, path_of("a.pack")))
        rest = await world.read_all(offset=part.next_offset)
        assert [*map(bytes, part.batches), *rest] == datas(batches)
        assert world.history.damaged.all() == []
        await asyncio.sleep(SWEEP_SECONDS)
        await world.read_all()
        assert world.history.stored.search.outdated() == []

    play(tmp_path, story)


def test_a_reader_whose_object_is_deleted_under_it_looks_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        batches = history_of(100)
        await world.add("a.pack", batches)
        await world.history.first_offset(QUEUE, 0, 0)
        merged = upload(world.bucket, "b.pack", batches)
        reading = asyncio.ensure_future(world.read_all())
        await asyncio.sleep(LATENCY_SECONDS / 4)
        await world.manifest.change(0, world.manifest.ranges(0), [(0, 10, merged)], WriteGroupPosition(10, 0), ())
        world.bucket.remove(object_of(0, path_of("a.pack")))
        assert await reading == datas(batches)
        assert world.history.damaged.all() == []
        assert world.history.failures == 0

    play(tmp_path, story)


def test_a_queue_with_little_in_each_file_does_not_wait_for_one_after_the_other(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        count, batches = 40, history_of(400, 500)
        for number in range(count):
            await world.add(f"{number}.pack", batches[10 * number : 10 * number + 10])
        began = world.loop.time()
        assert await world.read_all(bytes_max=6000) == datas(batches)
        assert world.loop.time() - began < count * LATENCY_SECONDS / 2
        assert world.bucket.asked <= count + 1

    play(tmp_path, story)


def test_small_queues_are_read_in_a_few_requests_per_file_and_without_their_neighbours(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        files, queues = 10, 2500
        batches = [
            [make_batch(QUEUE + queue, number, size=900, timestamp=1000 + number) for queue in range(queues)]
            for number in range(files)
        ]
        for number in range(files):
            await world.add(f"{number}.pack", batches[number])
        await world.read_all(QUEUE)  # what indexes are like is known
        world.bucket.weather.latency_seconds = (LATENCY_SECONDS, LATENCY_SECONDS)
        for queue in (700, 1300, 2200):
            asked, began, read = world.bucket.asked, world.loop.time(), world.history.cache.bytes_held
            assert await world.read_all(QUEUE + queue) == [batches[number][queue].data for number in range(files)]
            assert world.bucket.asked - asked <= 2 * files
            assert world.loop.time() - began < 5 * LATENCY_SECONDS
            assert world.history.cache.bytes_held - read < files * CHUNK / 4

    play(tmp_path, story)


@pytest.mark.parametrize("request_bytes", [CHUNK, 4 * CHUNK])
def test_what_is_read_again_and_again_comes_from_disk_2(tmp_path: Path, request_bytes: int) -> None:
    async def story(world: World) -> None:
        batches = history_of(300)
        file = await world.add("a.pack", batches)
        world.config = ReadCacheConfig(
            memory_bytes=1 << 20,
            chunk_bytes=CHUNK,
            read_ahead_chunks_max=4,
            disk_bytes=64 * CHUNK,
            request_bytes=request_bytes,
        )
        await world.history.close()
        await world.reopen()
        assert file.bytes < 60 * CHUNK
        assert await world.read_all() == datas(batches)
        asked = world.bucket.asked
        assert await world.read_all() == datas(batches)
        assert world.bucket.asked == asked
        world.disk.flip("remote-cache/pieces", 8 * (3 * CHUNK + 5))
        assert await world.read_all() == datas(batches)
        assert world.bucket.asked == asked + 1
        assert world.history.damaged.all() == []

    play(tmp_path, story)


def test_files_that_are_too_old_are_not_asked_for_a_time(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        for number in range(10):
            await world.add(f"{number}.pack", history_of(20, first=20 * number))
        found = [extent async for extent in world.history.extents_since(QUEUE, 0, 0, 1190)]
        assert found
        assert found[0].last_offset >= 190
        assert world.bucket.asked == 1
        latest = [(late, extent) async for late, extent in world.history.latest_extents(QUEUE, 0, 0)]
        assert latest[0][0] == 1199
        assert [late for late, _extent in latest] == sorted((late for late, _ in latest), reverse=True)

    play(tmp_path, story)


@pytest.mark.parametrize(
    "wrong", [{"memory_bytes": 0}, {"disk_bytes": -1}, {"chunk_bytes": 1000}, {"index_bytes": 5}, {"request_bytes": 9}]
)
def test_a_config_that_cannot_work_is_refused_by_its_key(wrong: dict[str, int]) -> None:
    [key] = wrong
    with pytest.raises(ConfigError, match=rf"read_cache\.{key}"):
        ReadCacheConfig(**wrong).validate()
