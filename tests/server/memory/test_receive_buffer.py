"""The receive buffer: frames come out as they went in, and memory follows what was sent."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.server.receive_buffer import (
    KEEP_BYTES_MAX,
    MAPPED_BYTES_MIN,
    READ_BYTES_MAX,
    START_BYTES,
    Growth,
    ReceiveBuffer,
)


def feed(buffer: ReceiveBuffer, content: bytes) -> int:
    """Write what fits now; how much that was."""
    room = buffer.writable()
    size = min(len(room), len(content))
    room[:size] = content[:size]
    room.release()
    buffer.received(size)
    return size


def frames_in(buffer: ReceiveBuffer) -> list[bytes]:
    found = []
    while (length := buffer.length()) is not None:
        frame = buffer.take(length)
        if frame is None:
            break
        found.append(bytes(frame))
        frame.release()
    buffer.settle()
    return found


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@given(
    sizes=st.lists(st.sampled_from([1, 3, 4, 1000, START_BYTES - 4, START_BYTES, 70_000, 1_500_000]), max_size=8),
    pieces=st.lists(st.integers(1, 40_000), min_size=1, max_size=20).filter(lambda pieces: sum(pieces) > 1000),
)
@settings(max_examples=25, deadline=None)
def test_frames_come_out_as_they_went_in(sizes: list[int], pieces: list[int]) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(map(framed, frames))
    buffer = ReceiveBuffer()
    seen: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        size = pieces[turn % len(pieces)]
        turn += 1
        position += feed(buffer, stream[position : position + size])
        seen += frames_in(buffer)
    assert seen == frames
    assert buffer.unread == 0


def test_a_lying_length_costs_at_most_twice_what_was_sent() -> None:
    buffer = ReceiveBuffer()
    feed(buffer, struct.pack(">i", 2**31 - 1))
    assert frames_in(buffer) == []
    assert buffer.capacity == START_BYTES
    sent = 4
    while sent < MAPPED_BYTES_MIN // 2:
        sent += feed(buffer, b"x" * 65536)
        assert frames_in(buffer) == []
        assert buffer.capacity <= max(2 * sent, START_BYTES)


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_what_a_large_frame_announces_takes_memory_only_as_it_comes() -> None:
    buffer = ReceiveBuffer()
    pages_before = resident_pages()
    feed(buffer, struct.pack(">i", 1 << 30))
    sent = 4
    while sent < 3 * MAPPED_BYTES_MIN:
        sent += feed(buffer, b"x" * 65536)
        assert frames_in(buffer) == []
    assert buffer.capacity > 1 << 30
    assert (resident_pages() - pages_before) * mmap.PAGESIZE < 1 << 29


def test_a_large_buffer_is_given_up_after_its_frame() -> None:
    buffer = ReceiveBuffer()
    stream = framed(b"y" * (KEEP_BYTES_MAX + 1))
    position = 0
    seen: list[bytes] = []
    while position < len(stream):
        position += feed(buffer, stream[position : position + READ_BYTES_MAX])
        seen += frames_in(buffer)
    assert len(seen) == 1
    assert buffer.capacity == START_BYTES


def test_a_frame_with_memory_of_its_own_lasts_while_somebody_holds_it() -> None:
    buffer = ReceiveBuffer()
    content = b"y" * (KEEP_BYTES_MAX + 1)
    stream = framed(content)
    position = 0
    while (length := buffer.length()) is None or (frame := buffer.take(length)) is None:
        position += feed(buffer, stream[position : position + READ_BYTES_MAX])
    held = frame[1:]
    frame.release()
    buffer.settle()
    for _ in range(3):
        feed(buffer, framed(b"n" * 1000))
        assert frames_in(buffer)
    assert held == content[1:]


@given(
    sizes=st.lists(st.sampled_from([1, 1000, START_BYTES - 4, START_BYTES, 70_000, 700_000]), max_size=8),
    pieces=st.lists(st.integers(1, 40_000), min_size=1, max_size=20),
    denials=st.lists(st.booleans(), min_size=1, max_size=30),
)
@settings(max_examples=25, deadline=None)
def test_without_permission_nothing_grows_and_nothing_is_lost(
    sizes: list[int], pieces: list[int], denials: list[bool]
) -> None:
    class Scarce(Growth):
        def __init__(self) -> None:
            self.asked = 0
            self.granted = START_BYTES

        def may_grow(self, capacity: int) -> bool:
            self.asked += 1
            if denials[self.asked % len(denials)] and self.asked % 31:
                return False
            self.granted = capacity
            return True

        def resized(self, capacity: int) -> None:
            self.granted = capacity

    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(map(framed, frames))
    room = Scarce()
    buffer = ReceiveBuffer(room)
    seen: list[bytes] = []
    position = turn = 0
    while len(seen) < len(frames):
        size = pieces[turn % len(pieces)]
        turn += 1
        if not buffer.full:
            position += feed(buffer, stream[position : position + size])
        seen += frames_in(buffer)
        assert buffer.capacity == room.granted
        if buffer.full and len(seen) < len(frames):
            assert buffer.starved > buffer.capacity
    assert seen == frames


def test_where_memory_is_scarce_an_empty_buffer_is_given_up_at_once() -> None:
    told: list[int] = []

    class Telling(Growth):
        def resized(self, capacity: int) -> None:
            told.append(capacity)

    buffer = ReceiveBuffer(Telling())
    stream = framed(b"y" * 100_000)
    position = 0
    while position < len(stream):
        position += feed(buffer, stream[position:])
        frames_in(buffer)
    assert buffer.capacity > 100_000
    buffer.settle(scarce=True)
    assert buffer.capacity == START_BYTES
    assert told == [START_BYTES]


def test_an_idle_buffer_shrinks_unless_something_is_in_it() -> None:
    buffer = ReceiveBuffer()
    feed(buffer, b"\0" * START_BYTES)
    assert buffer.capacity == 2 * START_BYTES
    buffer.shrink()
    assert buffer.capacity == 2 * START_BYTES
    for _ in range(START_BYTES // 4):
        frame = buffer.take(0)
        assert frame is not None
        frame.release()
    buffer.shrink()
    assert buffer.capacity == START_BYTES


def test_a_full_buffer_says_so() -> None:
    buffer = ReceiveBuffer()
    while not buffer.full:
        feed(buffer, struct.pack(">i", 10) * 4096)
    assert buffer.capacity == READ_BYTES_MAX
    assert len(buffer.writable()) == 0
