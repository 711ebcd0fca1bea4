"""Chunks of one file that are asked for together: how few requests to the disk they make, and what each reader gets."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.kernel import fill_pieces
from mainstem.model import Buffer
from mainstem.storage.disks.chunk_memory import CHUNK_BYTES
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.disks.disk_reads import ALIGNMENT, DirectReads, open_for_pieces
from mainstem.storage.disks.neighbour_reads import CHUNKS_TOGETHER, NeighbourReads
from mainstem.storage.disks.read_threads import ReadThreads

CHUNKS = 2 * CHUNKS_TOGETHER + 1
TAIL_BYTES = 12_345
"""Of the last chunk, which ends in mid-page."""


class WatchedReads(DirectReads):
    """Direct reads that remember the requests. `refused`: the error of each request of several chunks; `damaged`: a
    chunk that cannot be read alone."""

    def __init__(self, path: Path, *, refused: int = 0, damaged: int = -1) -> None:
        super().__init__(open_for_pieces(path, cold=True).descriptor, fill_pieces)
        self.refused = refused
        self.damaged = damaged
        self.asked: list[tuple[int, int]] = []

    def read_neighbours(self, position: int, count: int) -> list[Buffer] | None:
        self.asked.append((position // CHUNK_BYTES, count))
        if self.refused:
            self._give_up(OSError(self.refused, os.strerror(self.refused)))
            return None
        return super().read_neighbours(position, count)

    def read_at_once(self, position: int, length: int) -> Buffer:
        self.asked.append((position // CHUNK_BYTES, 1))
        if position // CHUNK_BYTES == self.damaged:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_at_once(position, length)


@pytest.fixture
def content() -> bytes:
    return os.urandom((CHUNKS - 1) * CHUNK_BYTES + TAIL_BYTES)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


async def read(reads: WatchedReads, numbers: list[int]) -> list[Buffer | BaseException]:
    threads = ReadThreads("reads", 1)
    neighbours = NeighbourReads(reads, threads)
    found = await asyncio.wait_for(
        asyncio.gather(*(neighbours.read(number * CHUNK_BYTES) for number in numbers), return_exceptions=True),
        PATIENCE_SECONDS,
    )
    await threads.close()
    os.close(reads.descriptor)
    return found


def chunk(content: bytes, number: int) -> bytes:
    return content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]


def contents(found: list[Buffer | BaseException]) -> list[bytes]:
    return [bytes(one) for one in found if not isinstance(one, BaseException)]


def test_neighbours_come_in_one_request_up_to_so_many_and_others_alone(path: Path, content: bytes) -> None:
    numbers = [7, *range(CHUNKS_TOGETHER + 1)]
    reads = WatchedReads(path)
    found = asyncio.run(read(reads, numbers))
    assert contents(found) == [chunk(content, number) for number in numbers]
    assert reads.asked == [(0, CHUNKS_TOGETHER), (CHUNKS_TOGETHER, 1), (7, 1)]


def test_chunks_at_the_end_of_a_file_are_short_and_those_behind_it_empty(path: Path, content: bytes) -> None:
    numbers = [*range(CHUNKS - 2, CHUNKS + 2)]
    reads = WatchedReads(path)
    found = asyncio.run(read(reads, numbers))
    assert [len(one) for one in contents(found)] == [CHUNK_BYTES, TAIL_BYTES, 0, 0]
    assert contents(found) == [chunk(content, number) for number in numbers]


def test_a_file_that_ends_with_a_page_is_read_to_its_end(path: Path, content: bytes) -> None:
    """Such a request looks like one that the system has cut short."""
    os.truncate(path, CHUNK_BYTES + ALIGNMENT)
    found = asyncio.run(read(WatchedReads(path), [0, 1, 2]))
    assert contents(found) == [chunk(content, 0), content[CHUNK_BYTES : CHUNK_BYTES + ALIGNMENT], b""]


def test_the_same_chunk_for_two_readers_is_read_for_each(path: Path, content: bytes) -> None:
    found = asyncio.run(read(WatchedReads(path), [1, 0, 1]))
    assert contents(found) == [chunk(content, number) for number in (1, 0, 1)]


def test_where_a_file_system_refuses_each_comes_alone_and_the_refusal_is_remembered(path: Path, content: bytes) -> None:
    reads = WatchedReads(path, refused=errno.EINVAL)
    found = asyncio.run(read(reads, [0, 1]))
    assert contents(found) == [chunk(content, 0), chunk(content, 1)]
    assert reads.asked == [(0, 2), (0, 1), (1, 1)]
    assert DirectReads.read_neighbours(reads, 0, 2) is None, "nor is it asked for again"


def test_only_the_reader_of_a_chunk_that_a_disk_cannot_read_hears_of_it(path: Path, content: bytes) -> None:
    reads = WatchedReads(path, refused=errno.EIO, damaged=1)
    before, damaged, behind = asyncio.run(read(reads, [0, 1, 2]))
    assert contents([before, behind]) == [chunk(content, 0), chunk(content, 2)]
    assert isinstance(damaged, OSError)
    assert damaged.errno == errno.EIO
    assert reads.asked == [(0, 3), (0, 1), (1, 1), (2, 1)]


def test_a_file_that_closes_waits_for_chunks_that_were_only_asked_for(path: Path) -> None:
    """The number of its descriptor may belong to another file a moment later."""

    async def story() -> None:
        files = DiskFiles(path.parent)
        reads = WatchedReads(path)
        file = files.file_over(reads)
        reading = [
            asyncio.get_running_loop().create_task(file.read(number * CHUNK_BYTES, CHUNK_BYTES, at_once=True))
            for number in (0, 1)
        ]
        await asyncio.sleep(0)
        assert not reads.asked
        await asyncio.wait_for(file.close(), PATIENCE_SECONDS)
        assert reads.asked == [(0, 2)]
        await asyncio.gather(*reading)
        await files.close()

    asyncio.run(story())
