"""Durable writes and reads in pieces: both twins leave the same bytes in files, and tell the same of what fails."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import select
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.kernel import VECTOR_BUFFERS_MAX, compiled, pure

TWINS = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])
PAGE_BYTES = 4096


def told(writer: pure.DurableWriter, count: int) -> list[int]:
    """The outcomes of so many writes, in the order in which these began."""
    errors: list[int] = []
    while len(errors) < count:
        readable, _, _ = select.select([writer.wake], [], [], PATIENCE_SECONDS)
        assert readable, f"after {errors} nothing more was told"
        errors += writer.over()
    return errors


@TWINS
@pytest.mark.parametrize("whole_file", [False, True], ids=["that alone", "the whole file"])
def test_writes_are_made_in_their_order_whatever_they_are_made_of(
    kernel: ModuleType, tmp_path: Path, whole_file: bool
) -> None:
    dice = random.Random(7)
    expected = bytearray(1 << 20)
    path = tmp_path / "file"
    path.write_bytes(expected)
    writer = kernel.DurableWriter()
    with path.open("r+b") as file:
        for count in (0, 1, 2, 40, VECTOR_BUFFERS_MAX, VECTOR_BUFFERS_MAX + 1, 3 * VECTOR_BUFFERS_MAX, 1):
            pieces = [dice.randbytes(dice.choice((0, 1, 100, 300))) for _ in range(count)]
            content, position = b"".join(pieces), dice.randrange(1000)
            expected[position : position + len(content)] = content
            buffers = [kind(piece) for kind, piece in zip([bytes, bytearray, memoryview] * count, pieces, strict=False)]
            writer.begin(file.fileno(), position, buffers, whole_file)
        assert told(writer, 8) == [0] * 8
    writer.close()
    assert path.read_bytes() == expected


@TWINS
def test_a_write_that_fails_is_told_in_its_place_and_the_others_are_made(kernel: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    writer = kernel.DurableWriter()
    with path.open("rb") as unwritable, path.open("r+b") as file, open("/dev/full", "wb") as full:
        writer.begin(file.fileno(), 0, [b"ab"])
        writer.begin(unwritable.fileno(), 0, [b"x"])
        writer.begin(full.fileno(), 0, [b"x"])
        writer.begin(-1, 0, [])
        writer.begin(file.fileno(), 2, [b"cd"])
        writer.begin(unwritable.fileno(), 0, [b"x"], True)
        assert told(writer, 6) == [0, errno.EBADF, errno.ENOSPC, 0, 0, errno.EBADF]
    writer.close()
    assert path.read_bytes() == b"abcd" + bytes(6)


@TWINS
def test_zeros_are_written_where_they_are_asked_for_and_in_their_order(kernel: ModuleType, tmp_path: Path) -> None:
    path, size = tmp_path / "file", 3 * pure.disk_moves.ZEROS_PIECE_BYTES
    expected = bytearray(random.Random(3).randbytes(size))
    path.write_bytes(expected)
    writer = kernel.DurableWriter("disk-fill", 19)
    with path.open("r+b") as file, path.open("rb") as unwritable, open("/dev/full", "wb") as full:
        for position, count in ((5, 1), (100, 0), (4096, 2 * pure.disk_moves.ZEROS_PIECE_BYTES + 7), (size - 3, 10)):
            writer.begin_zeros(file.fileno(), position, count)
            expected[position : position + count] = bytes(count)
        writer.begin(file.fileno(), 10_000, [b"behind"])
        writer.begin_zeros(unwritable.fileno(), 0, 1)
        writer.begin_zeros(full.fileno(), 0, 1)
        writer.begin_zeros(-1, 0, 1)
        expected[10_000:10_006] = b"behind"
        assert told(writer, 8) == [0] * 5 + [errno.EBADF, errno.ENOSPC, 0]
    writer.close()
    assert path.read_bytes() == expected


@TWINS
def test_the_processor_time_of_zeros_is_counted_and_that_of_other_writes_is_not(
    kernel: ModuleType, tmp_path: Path
) -> None:
    writer = kernel.DurableWriter()
    with (tmp_path / "file").open("w+b") as file:
        writer.begin(file.fileno(), 0, [bytes(1 << 20)])
        assert told(writer, 1) == [0]
        assert writer.zeros_seconds == 0
        writer.begin_zeros(file.fileno(), 0, 1 << 20)
        assert told(writer, 1) == [0]
        once = writer.zeros_seconds
        assert once > 0
        writer.begin_zeros(file.fileno(), 0, 8 << 20)
        assert told(writer, 1) == [0]
        assert writer.zeros_seconds > once
    writer.close()


@TWINS
def test_pieces_are_written_whatever_they_are_made_of_each_up_to_a_multiple(kernel: ModuleType, tmp_path: Path) -> None:
    dice = random.Random(11)
    expected = bytearray(1 << 20)
    path = tmp_path / "file"
    path.write_bytes(expected)
    with path.open("r+b") as file:
        for piece in (1, 7, 64, 1000, 4096, 1 << 20):
            for count in (0, 1, 2, 30, VECTOR_BUFFERS_MAX + 1):
                parts = [dice.randbytes(dice.choice((0, 1, 63, 64, 200))) for _ in range(count)]
                content, position = b"".join(parts), dice.randrange(5000)
                expected[position : position + len(content)] = content
                kinds = [bytes, bytearray, memoryview] * count
                buffers = [kind(part) for kind, part in zip(kinds, parts, strict=False)]
                assert kernel.write_pieces(file.fileno(), position, buffers, piece) == len(content)
    assert path.read_bytes() == expected


@TWINS
def test_pieces_that_fail_are_told_and_so_is_how_much_was_written_before(kernel: ModuleType, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        kernel.write_pieces(full.fileno(), 0, [b"xy"], 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for largest, written in ((10_000, 10_000), (8192, 8192)):  # cut short, or refused behind the second
        with (tmp_path / "file").open("wb") as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
            try:
                assert kernel.write_pieces(file.fileno(), 0, [bytes(5000), bytes(9000)], 4096) == written
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@TWINS
def test_a_file_is_synced_as_a_whole_whatever_its_size(kernel: ModuleType, tmp_path: Path) -> None:
    for size in (0, 1, 512 << 10, (1 << 20) + 1):
        path, content = tmp_path / str(size), random.Random(size).randbytes(size)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            kernel.sync_file(file.fileno())
        assert path.read_bytes() == content
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            kernel.sync_file(end)
        os.close(end)


def test_the_thread_lets_others_go_first_as_it_is_told(tmp_path: Path) -> None:
    """Only the compiled one's: it never has the interpreter, which others would wait for."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for nice in (0, 3):
        writer = compiled.DurableWriter("some-name", nice)
        with (tmp_path / "file").open("wb") as file:
            writer.begin_zeros(file.fileno(), 0, 1)
            assert told(writer, 1) == [0]
        names = {number: Path(f"/proc/self/task/{number}/comm").read_text() for number in os.listdir("/proc/self/task")}
        (thread,) = (int(number) for number, name in names.items() if name == "some-name\n")
        assert os.getpriority(os.PRIO_PROCESS, thread) == min(19, own + nice)
        writer.close()


@TWINS
def test_a_file_that_knows_no_durable_writes_fails_to_sync(kernel: ModuleType) -> None:
    """A second attempt in two steps says what is wrong."""
    writer = kernel.DurableWriter()
    with open("/dev/null", "wb") as null:
        writer.begin(null.fileno(), 0, [b"x"], True)
        assert told(writer, 1) == [errno.EINVAL]
    writer.close()


@TWINS
def test_the_buffers_of_a_write_are_held_until_it_is_told(kernel: ModuleType, tmp_path: Path) -> None:
    path, content = tmp_path / "file", bytearray(b"content")
    path.write_bytes(b"")
    writer = kernel.DurableWriter()
    with path.open("r+b") as file:
        writer.begin(file.fileno(), 0, [content])
        with pytest.raises(BufferError):
            content.clear()
        assert told(writer, 1) == [0]
    content.clear()
    writer.close()
    assert path.read_bytes() == b"content"


@TWINS
def test_a_writer_that_is_closed_makes_what_it_was_given_and_may_go_on(kernel: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    writer = kernel.DurableWriter()
    writer.close()
    assert writer.over() == []
    with path.open("r+b") as file:
        for at in range(100):
            writer.begin(file.fileno(), at, [bytes([at])])
        writer.close()
        assert writer.over() == [0] * 100
        assert path.read_bytes() == bytes(range(100))
        writer.begin(file.fileno(), 0, [b"more"])
        assert told(writer, 1) == [0]
        writer.close()


def test_a_writer_that_is_dropped_makes_what_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    writer = compiled.DurableWriter()
    descriptor = writer.wake
    with path.open("r+b") as file:
        for at in range(50):
            writer.begin(file.fileno(), at * 10, [bytes([at]) * 10])
        del writer
        assert path.read_bytes() == b"".join(bytes([at]) * 10 for at in range(50))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_writer_among_garbage_keeps_the_buffers_until_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", wrong.append)
    path = tmp_path / "file"
    path.write_bytes(b"")
    with path.open("r+b") as file:
        writer = compiled.DurableWriter()
        writer.begin(file.fileno(), 0, [b"content"])
        garbage: list[object] = [writer]
        garbage.append(garbage)
        del garbage, writer
        gc.collect()
        assert path.read_bytes() == b"content"
    assert not wrong


@TWINS
def test_what_is_no_buffer_is_refused_and_nothing_is_written(kernel: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    writer = kernel.DurableWriter()
    with path.open("r+b") as file:
        with pytest.raises(TypeError):
            writer.begin(file.fileno(), 0, [b"x", "text"])
        writer.begin(-1, 0, [])
        assert told(writer, 1) == [0]
    writer.close()
    assert path.read_bytes() == b""


@TWINS
@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES, 5 * PAGE_BYTES + 7, 8 * PAGE_BYTES])
def test_memory_is_filled_up_to_the_end_of_the_file(kernel: ModuleType, tmp_path: Path, size: int) -> None:
    path, content = tmp_path / "file", random.Random(size).randbytes(size)
    path.write_bytes(content)
    with path.open("rb") as file:
        for position in (0, PAGE_BYTES, 3 * PAGE_BYTES):
            for room in (0, 1, PAGE_BYTES, 6 * PAGE_BYTES, 9 * PAGE_BYTES):
                for piece_bytes in (PAGE_BYTES, 2 * PAGE_BYTES, 100 * PAGE_BYTES):
                    memory = bytearray(b"\xff" * room)
                    filled = kernel.fill_pieces(file.fileno(), memoryview(memory), position, piece_bytes, PAGE_BYTES)
                    found = content[position : position + room]
                    assert (filled, bytes(memory)) == (len(found), found + b"\xff" * (room - len(found)))


@TWINS
def test_a_read_in_many_pieces_rests_between_them(kernel: ModuleType, tmp_path: Path) -> None:
    """To give the processor up and get it back at once is no rest, and Linux does not count it as one."""
    memory = memoryview(bytearray(2_000 * PAGE_BYTES))
    with (tmp_path / "file").open("w+b") as file:
        file.write(memory)
        file.flush()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(4):  # each takes the processor for more than a millisecond
            kernel.fill_pieces(file.fileno(), memory, 0, PAGE_BYTES, PAGE_BYTES)
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before >= 4


@TWINS
def test_a_read_that_fails_says_why(kernel: ModuleType, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            kernel.fill_pieces(descriptor, memoryview(bytearray(10)), 0, 10, PAGE_BYTES)
        with pytest.raises((BufferError, TypeError)):
            kernel.fill_pieces(descriptor, memoryview(bytes(10)), 0, 10, PAGE_BYTES)
    finally:
        os.close(descriptor)
