"""Reads in pieces, by way of the page cache and past it: the same bytes as a plain read, whatever the alignment."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainstem.kernel import fill_pieces
from mainstem.ports import ReadingMode
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.disks.disk_reads import (
    ALIGNMENT,
    PIECE_BYTES,
    STRETCH_BYTES,
    DirectReads,
    PiecewiseReads,
    PlainReads,
    ReadableFile,
    all_resident,
    open_for_pieces,
)

SIZES = (
    0,
    1,
    ALIGNMENT - 1,
    ALIGNMENT,
    ALIGNMENT + 1,
    2 * STRETCH_BYTES,
    2 * STRETCH_BYTES + PIECE_BYTES + 777,
)
"""Of files: those that end in mid-page, at the end of a page, of a stretch."""

EDGES = (0, 1, 511, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1,
         STRETCH_BYTES - 1, STRETCH_BYTES, STRETCH_BYTES + 1, 2 * STRETCH_BYTES + 5)  # fmt: skip
"""The positions of reads, and how long they are."""


class Watched:
    """`fill_pieces` that remembers what was asked for. With `refuses` it is a file system without O_DIRECT."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.asked: list[tuple[int, int]] = []
        self.refuses = refuses

    def __call__(self, descriptor: int, memory: memoryview, position: int, piece_bytes: int, page_bytes: int) -> int:
        filled = 0
        while filled < len(memory):
            piece = memory[filled : filled + piece_bytes]
            self.asked.append((position + filled, len(piece)))
            if self.refuses:
                raise OSError(self.refuses, os.strerror(self.refuses))
            count = fill_pieces(descriptor, piece, position + filled, piece_bytes, page_bytes)
            filled += count
            if count < len(piece):
                break
        return filled


@pytest.fixture
def opened() -> Iterator[Callable[[Path], int]]:
    """Opens files for reading, and closes them at the end."""
    descriptors: list[int] = []

    def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
        descriptors.append(os.open(path, flags))
        return descriptors[-1]

    yield open_file
    for descriptor in descriptors:
        os.close(descriptor)


def content_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["plain", "pieces", "direct", "direct as far as the file system can"])
def test_bytes_are_those_of_the_file_from_any_place_on(
    tmp_path: Path, opened: Callable[..., int], kind: str, size: int
) -> None:
    path, content = tmp_path / "file", content_of(size)
    path.write_bytes(content)
    reads: ReadableFile
    if kind == "plain":
        reads = PlainReads(opened(path))
    elif kind == "pieces":
        reads = PiecewiseReads(opened(path))
    elif kind == "direct":
        reads = DirectReads(opened(path))
    else:
        reads = open_for_pieces(path, cold=True, open_file=opened)
    for position in {*EDGES, max(size - 1, 0), size, size + ALIGNMENT}:
        for length in EDGES:
            assert reads.read(position, length) == content[position : position + length], (position, length)
            whole = reads.read_at_once(position, length)
            assert whole == content[position : position + length], (position, length)
            pieces = reads.read_into_chunk(position, length)
            assert pieces == content[position : position + length], (position, length)


def test_a_direct_read_asks_for_whole_pages_in_pieces(tmp_path: Path, opened: Callable[[Path], int]) -> None:
    path = tmp_path / "file"
    path.write_bytes(content_of(2 * STRETCH_BYTES))
    fill = Watched()
    reads = DirectReads(opened(path), fill)
    reads.read(ALIGNMENT + 1, STRETCH_BYTES)
    assert sum(size for _, size in fill.asked) == STRETCH_BYTES + ALIGNMENT
    for position, size in fill.asked:
        assert position % ALIGNMENT == size % ALIGNMENT == 0
        assert size <= PIECE_BYTES


def test_a_chunk_is_read_in_pieces_into_memory_that_nobody_copies(
    tmp_path: Path, opened: Callable[[Path], int]
) -> None:
    path, content = tmp_path / "file", content_of(2 * STRETCH_BYTES)
    path.write_bytes(content)
    for kind in (DirectReads, PiecewiseReads):
        fill = Watched()
        reads = kind(opened(path), fill)
        views = [memoryview(reads.read_into_chunk(at * STRETCH_BYTES, STRETCH_BYTES)) for at in range(2)]
        assert max(size for _, size in fill.asked) == PIECE_BYTES
        for at, view in enumerate(views):
            assert view == content[at * STRETCH_BYTES : (at + 1) * STRETCH_BYTES]
            assert view.readonly
            assert not isinstance(view.obj, bytes), "it lies where the disk has put it"


def test_a_file_system_that_refuses_a_direct_read_is_read_by_way_of_memory(
    tmp_path: Path, opened: Callable[[Path], int]
) -> None:
    path, content = tmp_path / "file", content_of(STRETCH_BYTES + 100)
    path.write_bytes(content)
    fill = Watched(refuses=errno.EINVAL)
    reads = DirectReads(opened(path), fill)
    assert reads.read(99, STRETCH_BYTES) == content[99 : 99 + STRETCH_BYTES]
    assert reads.read(0, 10) == content[:10]
    assert reads.read_into_chunk(99, STRETCH_BYTES) == content[99 : 99 + STRETCH_BYTES]
    assert len(fill.asked) == 1, "it is not asked again"
    assert not fcntl.fcntl(reads.descriptor, fcntl.F_GETFL) & os.O_DIRECT


def evict(path: Path) -> None:
    """The file's pages leave memory, as far as the file system lets go of them."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_what_memory_lacks_is_read_at_once_past_it(path_on_disk: Path, opened: Callable[[Path], int]) -> None:
    path, content = path_on_disk / "file", content_of(2 * STRETCH_BYTES)
    path.write_bytes(content)
    fill = Watched()
    reads = PiecewiseReads(opened(path), fill)
    assert reads.read_at_once(0, STRETCH_BYTES) == content[:STRETCH_BYTES]
    assert not fcntl.fcntl(reads.descriptor, fcntl.F_GETFL) & os.O_DIRECT, "memory has it"
    evict(path)
    lives_in_memory = all_resident(reads.descriptor, 0, STRETCH_BYTES)  # as tmpfs does
    assert reads.read_at_once(3, STRETCH_BYTES) == content[3 : 3 + STRETCH_BYTES]
    assert fill.asked == [(0, STRETCH_BYTES), (0, STRETCH_BYTES + ALIGNMENT)]
    went_past = bool(fcntl.fcntl(reads.descriptor, fcntl.F_GETFL) & os.O_DIRECT)
    assert went_past is not lives_in_memory
    assert all_resident(reads.descriptor, 0, STRETCH_BYTES) is lives_in_memory, "nothing was put into memory for it"
    assert reads.read(5, 100) == content[5:105]
    assert not fcntl.fcntl(reads.descriptor, fcntl.F_GETFL) & os.O_DIRECT, "pieces go by way of memory again"


def test_a_chunk_that_memory_lacks_is_read_past_it_in_pieces(path_on_disk: Path, opened: Callable[[Path], int]) -> None:
    path, content = path_on_disk / "file", content_of(2 * STRETCH_BYTES)
    path.write_bytes(content)
    evict(path)
    fill = Watched()
    reads = PiecewiseReads(opened(path), fill)
    lives_in_memory = all_resident(reads.descriptor, 0, STRETCH_BYTES)
    assert reads.read_into_chunk(0, STRETCH_BYTES) == content[:STRETCH_BYTES]
    assert fill.asked == [(at, PIECE_BYTES) for at in range(0, STRETCH_BYTES, PIECE_BYTES)]
    assert all_resident(reads.descriptor, 0, STRETCH_BYTES) is lives_in_memory, "nothing was put into memory for it"


def test_bytes_that_are_not_on_the_disk_yet_are_read_past_memory_as_well(
    tmp_path: Path, opened: Callable[[Path], int]
) -> None:
    path, content = tmp_path / "file", bytearray(content_of(2 * STRETCH_BYTES))
    path.write_bytes(content)
    evict(path)
    content[STRETCH_BYTES : STRETCH_BYTES + 9] = b"unwritten"
    with path.open("r+b") as file:
        file.seek(STRETCH_BYTES)
        file.write(b"unwritten")
    assert PiecewiseReads(opened(path)).read_at_once(0, len(content)) == content


def test_a_file_system_that_cannot_read_past_memory_reads_at_once_by_way_of_it(
    tmp_path: Path, opened: Callable[[Path], int]
) -> None:
    path, content = tmp_path / "file", content_of(2 * STRETCH_BYTES)
    path.write_bytes(content)
    evict(path)

    def refusing(descriptor: int, memory: memoryview, position: int, piece_bytes: int, page_bytes: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return fill_pieces(descriptor, memory, position, piece_bytes, page_bytes)

    reads = PiecewiseReads(opened(path), refusing)
    for _ in range(2):
        assert reads.read_at_once(77, STRETCH_BYTES) == content[77 : 77 + STRETCH_BYTES]
    direct = DirectReads(opened(path), Watched(refuses=errno.EINVAL))
    assert direct.read_at_once(77, STRETCH_BYTES) == content[77 : 77 + STRETCH_BYTES]


def test_what_was_read_at_once_stays_as_it_was(tmp_path: Path, opened: Callable[[Path], int]) -> None:
    path, content = tmp_path / "file", content_of(3 * STRETCH_BYTES)
    path.write_bytes(content)
    reads = DirectReads(opened(path))
    views = [reads.read_at_once(at * STRETCH_BYTES, STRETCH_BYTES) for at in range(3)]
    for at, view in enumerate(views):
        assert view == content[at * STRETCH_BYTES : (at + 1) * STRETCH_BYTES]
        assert memoryview(view).readonly


def test_a_disk_that_fails_is_not_taken_for_one_that_refuses(tmp_path: Path, opened: Callable[[Path], int]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    reads = DirectReads(opened(path), Watched(refuses=errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        reads.read(0, 7)
    with pytest.raises(OSError, match="Input/output"):
        reads.read_into_chunk(0, STRETCH_BYTES)
    with pytest.raises(OSError, match="Input/output"):
        reads.read_at_once(0, STRETCH_BYTES)


def test_a_file_system_that_refuses_to_open_past_memory(tmp_path: Path, opened: Callable[..., int]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")

    def refusing(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opened(path, flags)

    reads = open_for_pieces(path, cold=True, open_file=refusing)
    assert isinstance(reads, PiecewiseReads)
    assert reads.read(3, 100) == b"tent"
    with pytest.raises(FileNotFoundError):
        open_for_pieces(tmp_path / "none", cold=True)


def test_a_view_is_filled_as_far_as_the_file_goes(tmp_path: Path, opened: Callable[[Path], int]) -> None:
    path, content = tmp_path / "file", content_of(2 * PIECE_BYTES + 10)
    path.write_bytes(content)
    target = bytearray(3 * PIECE_BYTES)
    count = PiecewiseReads(opened(path)).read_into(5, memoryview(target))
    assert count == len(content) - 5
    assert bytes(target) == content[5:].ljust(len(target), b"\0")


@pytest.mark.parametrize("reading", list(ReadingMode))
def test_files_read_alike_however_they_are_opened(tmp_path: Path, reading: ReadingMode) -> None:
    content = content_of(STRETCH_BYTES + 4321)

    async def story() -> None:
        files = DiskFiles(tmp_path)
        written = await files.open("runs/one", create=True)
        await written.write(0, [content], sync=True)
        file = await files.open("runs/one", reading=reading)
        assert await file.size() == len(content)
        assert await file.read(4000, STRETCH_BYTES) == content[4000 : 4000 + STRETCH_BYTES]
        assert await file.read(len(content) - 1, 2) == content[-1:]
        assert await file.read(4000, STRETCH_BYTES, at_once=True) == content[4000 : 4000 + STRETCH_BYTES]
        assert await file.lock(exclusive=False)
        with pytest.raises(FileNotFoundError):
            await files.open("runs/none", reading=reading)
        await file.close()
        await written.close()
        await files.close()

    asyncio.run(story())
