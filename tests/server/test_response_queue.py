"""The response queue: order of requests, joined small buffers, large ones untouched, exact accounts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.model import Buffer
from mainstem.server.response_queue import CHUNK_BYTES_MAX, JOIN_BYTES_MAX, ResponseQueue


@given(
    replies=st.lists(
        st.none() | st.lists(st.binary(max_size=20) | st.just(b"z" * JOIN_BYTES_MAX), max_size=5), max_size=8
    ),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_responses_leave_in_the_order_of_requests(replies: list[list[bytes] | None], order: object) -> None:
    queue = ResponseQueue()
    places = [queue.expect(1) for _ in replies]
    answers = list(zip(places, replies, strict=True))
    order.shuffle(answers)  # type: ignore[attr-defined]
    sent = b""
    for number, (place, reply) in enumerate(answers):
        queue.answer(place, reply)
        if number % 2:
            sent += drain(queue)
    sent += drain(queue)
    assert sent == b"".join(b"".join(reply) for reply in replies if reply is not None)
    assert queue.bytes_unsent == 0
    assert queue.idle


def drain(queue: ResponseQueue) -> bytes:
    chunks: list[Buffer] = []
    while (chunk := queue.next_chunk()) is not None:
        chunks.append(chunk)
    return b"".join(chunks)


def test_small_buffers_are_joined_and_large_ones_left_alone() -> None:
    queue = ResponseQueue()
    large = memoryview(bytes(JOIN_BYTES_MAX + 1))
    queue.answer(queue.expect(1), [b"head", b"body", large, b"tail"])
    assert queue.bytes_unsent == 8 + len(large) + 4
    assert queue.next_chunk() == b"headbody"
    assert queue.next_chunk() is large
    assert queue.next_chunk() == b"tail"
    assert queue.next_chunk() is None


def test_a_response_out_of_turn_counts_as_unsent_but_waits() -> None:
    queue = ResponseQueue()
    first, second = queue.expect(1), queue.expect(1)
    queue.answer(second, [b"second"])
    assert queue.bytes_unsent == 6
    assert not queue.sendable
    assert queue.in_flight == 2
    queue.answer(first, None)
    assert queue.next_chunk() == b"second"
    assert queue.idle


def test_a_large_buffer_leaves_in_pieces_and_uncopied() -> None:
    queue = ResponseQueue()
    content = bytes(range(256)) * (CHUNK_BYTES_MAX * 5 // 512)  # two pieces and a half
    queue.answer(queue.expect(1), [b"head", content, b"tail"])
    assert queue.next_chunk() == b"head"
    pieces = []
    while queue.bytes_unsent:
        piece = queue.next_chunk()
        assert piece is not None
        assert len(piece) <= CHUNK_BYTES_MAX
        pieces.append(piece)
    assert isinstance(pieces[0], memoryview)
    assert pieces[0].obj is content
    assert b"".join(pieces) == content + b"tail"
    assert queue.idle
