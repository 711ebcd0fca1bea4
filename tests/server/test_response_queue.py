"""The response queue: order of requests, joined small buffers, large ones untouched, exact accounts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.kernel import ScatteredBytes
from mainstem.model import Buffer
from mainstem.ports import Scattered
from mainstem.server.response_queue import CHUNK_BYTES_MAX, SMALL_BYTES, ResponseQueue


@given(
    replies=st.lists(
        st.none()
        | st.lists(
            st.binary(max_size=20)
            | st.sampled_from([b"y" * SMALL_BYTES, b"z" * CHUNK_BYTES_MAX])
            | st.lists(st.integers(1, 2 * CHUNK_BYTES_MAX), min_size=1, max_size=4).map(tuple),
            max_size=5,
        ),
        max_size=8,
    ),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_responses_leave_in_the_order_of_requests(
    replies: list[list[bytes | tuple[int, ...]] | None], order: object
) -> None:
    """A tuple is the sizes of pieces that lie scattered."""
    expected = b"".join(b"".join(map(content_of, reply)) for reply in replies if reply is not None)
    queue = ResponseQueue()
    places = [queue.expect(1) for _ in replies]
    answers = list(zip(places, replies, strict=True))
    order.shuffle(answers)  # type: ignore[attr-defined]
    sent = b""
    for number, (place, reply) in enumerate(answers):
        queue.answer(place, None if reply is None else [part_of(part) for part in reply])
        if number % 2:
            sent += drain(queue)
    sent += drain(queue)
    assert sent == expected
    assert queue.bytes_unsent == 0
    assert queue.idle


def content_of(part: bytes | tuple[int, ...]) -> bytes:
    return part if isinstance(part, bytes) else b"".join(bytes([size % 251]) * size for size in part)


def part_of(part: bytes | tuple[int, ...]) -> Buffer | Scattered:
    return part if isinstance(part, bytes) else ScatteredBytes(bytes([size % 251]) * size for size in part)


def drain(queue: ResponseQueue) -> bytes:
    """Every other piece of what lies scattered goes another way."""
    chunks: list[Buffer] = []
    while queue.sendable:
        scattered = queue.scattered
        if scattered is not None and len(chunks) % 2:
            taken = scattered.take(10_000)
            queue.left(sum(map(len, taken)))
            chunks += taken
            continue
        together = queue.next_chunks()
        assert sum(map(len, together)) <= CHUNK_BYTES_MAX
        chunks.extend(together)
    return b"".join(chunks)


def test_small_buffers_are_joined_and_large_ones_left_alone() -> None:
    queue = ResponseQueue()
    large = memoryview(bytes(CHUNK_BYTES_MAX))
    queue.answer(queue.expect(1), [b"head", b"body", large, b"tail"])
    assert queue.bytes_unsent == 8 + len(large) + 4
    assert queue.next_chunks() == [b"headbody"]
    (alone,) = queue.next_chunks()
    assert alone is large
    assert queue.next_chunks() == [b"tail"]
    assert queue.next_chunks() == []


def test_buffers_of_batches_leave_together_and_uncopied_with_the_headers_between_them() -> None:
    """Of many queues with a batch each: a write takes as many as fit, and copies none."""
    queue = ResponseQueue()
    head, batch = memoryview(bytes(60)), memoryview(bytes(10_000))
    queue.answer(queue.expect(1), [head, batch] * 30)
    leaving = queue.next_chunks()
    assert len(leaving) == 2 * (CHUNK_BYTES_MAX // 10_060) + 1
    assert all(part is head or part is batch for part in leaving)
    assert queue.bytes_unsent == 30 * 10_060 - sum(map(len, leaving))
    assert sum(map(len, leaving)) + len(drain(queue)) == 30 * 10_060


def test_a_response_out_of_turn_counts_as_unsent_but_waits() -> None:
    queue = ResponseQueue()
    first, second = queue.expect(1), queue.expect(1)
    queue.answer(second, [b"second"])
    assert queue.bytes_unsent == 6
    assert not queue.sendable
    assert queue.in_flight == 2
    queue.answer(first, None)
    assert queue.next_chunks() == [b"second"]
    assert queue.idle


def test_a_large_buffer_leaves_in_pieces_and_uncopied() -> None:
    queue = ResponseQueue()
    content = bytes(range(256)) * (CHUNK_BYTES_MAX * 5 // 512)  # two pieces and a half
    queue.answer(queue.expect(1), [b"head", content, b"tail"])
    assert queue.next_chunks() == [b"head"]
    pieces = []
    while queue.bytes_unsent:
        together = queue.next_chunks()
        assert sum(map(len, together)) <= CHUNK_BYTES_MAX
        pieces.extend(together)
    assert isinstance(pieces[0], memoryview)
    assert pieces[0].obj is content
    assert b"".join(pieces) == content + b"tail"
    assert queue.idle
