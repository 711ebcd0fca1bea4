"""Scattered bytes of both kernels: whatever way they leave, they leave in their order, and let go of what has left."""

from __future__ import annotations

import array
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.fetch.fetch_requests import KERNELS

from mainstem.kernel.pure.scattered_bytes import PIECES_PER_CALL_MAX

both = pytest.mark.parametrize("kernel", KERNELS, ids=["pure", "compiled"])

PLENTY = 1 << 30


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a stream, neither of which waits; the first takes a few kilobytes that nobody reads."""
    near, far = socket.socketpair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        near.setblocking(False)
        far.setblocking(False)
        yield near, far


def read_all(end: socket.socket) -> bytes:
    """The part that has come."""
    found = bytearray()
    try:
        while more := end.recv(1 << 20):
            found += more
    except BlockingIOError:
        pass
    return bytes(found)


@both
@given(
    pieces=st.lists(st.integers(0, 9000), max_size=40),
    steps=st.lists(st.tuples(st.sampled_from(["take", "send", "read"]), st.integers(0, 30_000)), max_size=20),
)
def test_they_leave_in_their_order_whichever_way(
    kernel: ModuleType, pieces: list[int], steps: list[tuple[str, int]]
) -> None:
    content = bytes(range(256)) * (sum(pieces) // 256 + 1)
    views, position = [], 0
    for size in pieces:
        views.append(memoryview(content)[position : position + size])
        position += size
    scattered = kernel.ScatteredBytes(views)
    came = bytearray()
    with connected() as (near, far):
        for way, size in [*steps, ("take", PLENTY)]:
            before = len(scattered)
            if way == "send":
                sent = scattered.send(near.fileno(), size)
                assert 0 <= sent <= min(size, before)
                assert len(scattered) == before - sent
            elif way == "take":
                came += read_all(far)
                taken = scattered.take(size)
                assert sum(map(len, taken)) == min(size, before)
                assert len(scattered) == before - min(size, before)
                assert all(view.obj is content for view in taken)
                came += b"".join(taken)
            else:
                came += read_all(far)
        assert len(scattered) == 0
        assert scattered.send(near.fileno(), PLENTY) == 0
        assert scattered.take(PLENTY) == []
    assert came == content[:position]


@both
def test_more_pieces_than_one_call_takes_leave_at_once(kernel: ModuleType) -> None:
    pieces = [b"%06d" % number for number in range(2 * PIECES_PER_CALL_MAX + 7)]
    scattered = kernel.ScatteredBytes(pieces)
    near, far = socket.socketpair()
    with near, far:
        assert scattered.send(near.fileno(), PLENTY) == 6 * len(pieces)
        far.setblocking(False)
        assert read_all(far) == b"".join(pieces)


@both
def test_a_full_socket_takes_no_more_until_it_is_read(kernel: ModuleType) -> None:
    with connected() as (near, far):
        scattered = kernel.ScatteredBytes([bytes(1_000_000)])
        first = scattered.send(near.fileno(), PLENTY)
        assert 0 < first < 1_000_000
        assert scattered.send(near.fileno(), PLENTY) == 0
        read_all(far)
        assert scattered.send(near.fileno(), PLENTY) > 0


@both
def test_a_socket_that_fails_takes_nothing(kernel: ModuleType) -> None:
    near, far = socket.socketpair()
    with near:
        far.close()
        scattered = kernel.ScatteredBytes([b"nobody", b"reads"])
        assert scattered.send(near.fileno(), PLENTY) == 0
        assert len(scattered) == 11
    assert scattered.send(-1, PLENTY) == 0


@both
def test_what_has_left_is_let_go_of(kernel: ModuleType) -> None:
    """A bytearray cannot be resized while anybody holds a view of it."""
    owners = [bytearray(b"one"), bytearray(b"two"), bytearray(b"three")]
    scattered = kernel.ScatteredBytes(owners)
    with connected() as (near, _):
        assert scattered.send(near.fileno(), 4) == 4
    owners[0].clear()
    with pytest.raises(BufferError):
        owners[1].clear()
    assert [bytes(view) for view in scattered.take(2)] == [b"wo"]
    owners[1].clear()
    with pytest.raises(BufferError):
        owners[2].clear()
    del scattered
    owners[2].clear()


@both
def test_pieces_are_contiguous_bytes(kernel: ModuleType) -> None:
    assert len(kernel.ScatteredBytes()) == 0
    for wrong in (memoryview(b"every other")[::2], memoryview(array.array("i", [1, 2]))):
        with pytest.raises(ValueError, match="contiguous"):
            kernel.ScatteredBytes([b"fine", wrong])
