"""Frames and the two ends of a connection, without sockets: round trips, bounds, hostile bytes."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.rpc.errors import ProtocolViolation, VersionMismatch
from mainstem.rpc.wire.call_state import STREAM_WINDOW_ITEMS, CalleeConnection, CallerConnection
from mainstem.rpc.wire.frames import (
    HEADER,
    HELLO_BYTES_MAX,
    STAGED_FRAME_BYTES_MAX,
    STAGING_BYTES,
    FrameDecoder,
    FrameKind,
    RpcErrorCode,
    bare_reply,
    encode,
)
from mainstem.rpc.wire.hello import PROTOCOL_VERSION, Hello
from mainstem.rpc.wire.method import Method, Nothing, Reply


class Number(msgspec.Struct, frozen=True):
    value: int


DOUBLE = Method(1, "test.double", Number, Number)
COUNT = Method(2, "test.count", Number, Number, streams=True)


def joined(buffers: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def feed(decoder: FrameDecoder, data: bytes) -> None:
    for count in decoder.fill(data):
        decoder.received(count)


def met() -> tuple[CallerConnection, CalleeConnection]:
    """Two ends that exchanged their hellos."""
    caller, callee = CallerConnection(), CalleeConnection()
    assert list(callee.receive(joined(caller.hello()))) == []
    assert caller.receive(joined(callee.hello())) == []
    return caller, callee


FRAMES = st.lists(
    st.tuples(
        st.sampled_from(list(FrameKind)),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=300),
        st.lists(st.binary(max_size=300), max_size=3),
    )
)


@settings(max_examples=60, deadline=None)
@given(frames=FRAMES, cuts=st.lists(st.integers(1, 50), min_size=1))
def test_frames_survive_any_cutting_of_the_stream(frames: list[Any], cuts: list[int]) -> None:
    stream = b"".join(
        joined(encode(kind, request_id, code=code, time_left_ms=left, body=body, attachment=parts))
        for kind, request_id, code, left, body, parts in frames
    )
    decoder, found, position, turn = FrameDecoder(1 << 20), [], 0, 0
    while position < len(stream):
        for count in decoder.fill(stream[position : position + cuts[turn % len(cuts)]]):
            decoder.received(count)
            while (frame := decoder.next_frame()) is not None:
                found.append(frame)
        position += cuts[turn % len(cuts)]
        turn += 1
    assert [tuple(frame) for frame in found] == [
        (kind, code, request_id, left, body, b"".join(parts)) for kind, request_id, code, left, body, parts in frames
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(data: bytes) -> None:
    for end in (CallerConnection(), CalleeConnection(), *met()):
        try:
            list(end.receive(data))
        except (ProtocolViolation, VersionMismatch):
            pass


@pytest.mark.parametrize("length", [0, 15, 0x7FFFFFFF, 0xFFFFFFFF])
def test_lying_length_is_refused_before_its_bytes_come(length: int) -> None:
    decoder = FrameDecoder(1 << 20)
    feed(decoder, struct.pack("<I", length))
    with pytest.raises(ProtocolViolation, match="a frame of"):
        decoder.next_frame()


def test_body_longer_than_its_frame_is_refused() -> None:
    decoder = FrameDecoder(1 << 20)
    feed(decoder, HEADER.pack(HEADER.size - 4, FrameKind.REQUEST, 0, 1, 1, 0, 1))
    with pytest.raises(ProtocolViolation, match="a body of"):
        decoder.next_frame()


def test_stranger_may_not_send_a_large_first_frame() -> None:
    with pytest.raises(ProtocolViolation):
        list(CalleeConnection().receive(HEADER.pack(HELLO_BYTES_MAX, FrameKind.HELLO, 0, 0, 0, 0, 0)))


def test_nothing_is_accepted_before_the_hello() -> None:
    with pytest.raises(ProtocolViolation, match="before the hello"):
        list(CalleeConnection().receive(joined(encode(FrameKind.REQUEST, 1, code=1))))


def test_a_hello_that_is_nested_too_deep_is_refused() -> None:
    body = b"\x81\xa1a" + b"\x91" * 2000 + b"\xc0"
    with pytest.raises(ProtocolViolation, match="unreadable hello"):
        list(CalleeConnection().receive(joined(encode(FrameKind.HELLO, 0, body=body))))


def test_versions_without_an_overlap_are_named() -> None:
    hello = Hello(oldest=7, newest=9, frame_bytes_max=1 << 20, name="tomorrow's node")
    with pytest.raises(VersionMismatch, match="tomorrow's node speaks protocol versions 7 to 9"):
        list(CalleeConnection().receive(joined(encode(FrameKind.HELLO, 0, body=msgspec.msgpack.encode(hello)))))


def test_highest_common_version_is_spoken() -> None:
    callee = CalleeConnection()
    hello = Hello(oldest=1, newest=9, frame_bytes_max=1 << 20)
    list(callee.receive(joined(encode(FrameKind.HELLO, 0, body=msgspec.msgpack.encode(hello)))))
    assert callee.version == PROTOCOL_VERSION
    assert callee.tells


def test_a_peer_of_the_first_version_is_told_nothing() -> None:
    caller = CallerConnection()
    caller.receive(joined(encode(FrameKind.HELLO, 0, body=msgspec.msgpack.encode(Hello(newest=1)))))
    assert caller.version == 1
    assert not caller.tells


def test_frame_larger_than_the_peer_accepts_is_not_sent() -> None:
    caller = CallerConnection()
    hello = Hello(frame_bytes_max=HELLO_BYTES_MAX)
    caller.receive(joined(encode(FrameKind.HELLO, 0, body=msgspec.msgpack.encode(hello))))
    with pytest.raises(ValueError, match="larger than the 4096"):
        caller.call(DOUBLE, Number(1), [bytes(HELLO_BYTES_MAX)])
    assert caller.in_flight == 0


def test_attachments_are_passed_through_uncopied() -> None:
    caller, _ = met()
    attachment = bytearray(b"payload")
    _, buffers = caller.call(DOUBLE, Number(1), [attachment])
    assert buffers[1] is attachment


def test_answer_to_a_call_never_made_is_refused() -> None:
    caller, callee = met()
    with pytest.raises(ProtocolViolation, match="request 5, which was never made"):
        caller.receive(joined(callee.reply(5, Reply(Number(1)), streams=False)))


def test_stream_beyond_its_window_is_refused() -> None:
    caller, callee = met()
    request_id, buffers = caller.call(COUNT, Number(1))
    assert next(iter(callee.receive(joined(buffers)))).kind == FrameKind.REQUEST
    item = joined(callee.reply(request_id, Reply(Number(1)), streams=True))
    for _ in range(STREAM_WINDOW_ITEMS):
        caller.receive(item)
    with pytest.raises(ProtocolViolation, match="beyond the window"):
        caller.receive(item)


def test_cancelled_call_swallows_its_late_answer() -> None:
    caller, callee = met()
    request_id, _ = caller.call(DOUBLE, Number(1))
    assert caller.cancel(request_id)
    assert caller.receive(joined(callee.reply(request_id, Reply(Number(2)), streams=False))) == []
    assert caller.in_flight == 0


def test_unreadable_reply_is_a_violation() -> None:
    caller, callee = met()
    request_id, _ = caller.call(DOUBLE, Number(1))
    with pytest.raises(ProtocolViolation, match="unreadable reply"):
        caller.receive(joined(callee.reply(request_id, Reply(Nothing()), streams=False)))


def test_undeclared_refusal_becomes_a_failed_call() -> None:
    caller, callee = met()
    request_id, _ = caller.call(DOUBLE, Number(1))
    frame = callee.fail(request_id, RpcErrorCode.REFUSED, "no", "never heard of")
    (answer,) = caller.receive(joined(frame))
    assert str(answer.error) == "test.double: no"


SIZES = st.lists(
    st.one_of(
        st.integers(0, 200),
        st.integers(STAGED_FRAME_BYTES_MAX - 30, STAGED_FRAME_BYTES_MAX + 30),
        st.integers(STAGING_BYTES - 30, STAGING_BYTES + 30),
        st.integers(0, 4 * STAGING_BYTES),
    ),
    min_size=1,
    max_size=8,
)


@given(sizes=SIZES, reads=st.lists(st.integers(1, 2 * STAGING_BYTES), min_size=1, max_size=5))
def test_frames_of_all_sizes_are_received_where_they_belong(sizes: list[int], reads: list[int]) -> None:
    """As a socket does it: a read takes what there is and what there is room for."""
    attachments = [bytes([place % 251]) * size for place, size in enumerate(sizes)]
    stream = b"".join(
        joined(encode(FrameKind.REQUEST, place, body=b"body", attachment=[attachment]))
        for place, attachment in enumerate(attachments)
    )
    decoder, found, position, turn = FrameDecoder(1 << 20), [], 0, 0
    while position < len(stream):
        target = decoder.writable()
        assert len(target) > 0
        count = min(len(target), len(stream) - position, reads[turn % len(reads)])
        target[:count] = stream[position : position + count]
        decoder.received(count)
        position, turn = position + count, turn + 1
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    assert [(frame.request_id, frame.body) for frame in found] == [(n, b"body") for n in range(len(sizes))]
    assert [frame.attachment for frame in found] == attachments  # earlier ones are not overwritten by later ones


def test_a_large_frame_is_received_into_memory_of_its_own() -> None:
    decoder = FrameDecoder(1 << 20)
    stream = joined(encode(FrameKind.REQUEST, 1, body=b"body", attachment=[bytes(500_000)]))
    decoder.writable()[:1000] = stream[:1000]
    decoder.received(1000)
    assert decoder.next_frame() is None
    rest = decoder.writable()
    assert len(rest) == len(stream) - 1000
    rest[:] = stream[1000:]
    decoder.received(len(rest))
    frame = decoder.next_frame()
    assert frame is not None
    assert isinstance(frame.attachment, memoryview)
    assert frame.attachment.readonly
    assert frame.attachment.obj is rest.obj
    assert decoder.next_frame() is None


def test_a_lying_length_takes_no_memory_before_its_bytes_come() -> None:
    """The frame's memory is asked for at once, and not touched."""
    decoder = FrameDecoder(1 << 30)
    feed(decoder, HEADER.pack((1 << 30) - 4, FrameKind.REQUEST, 0, 1, 1, 0, 1))
    before = _resident_pages()
    assert decoder.next_frame() is None
    assert len(decoder.writable()) == (1 << 30) - HEADER.size
    assert _resident_pages() - before < 1000


def _resident_pages() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1])


@given(request_id=st.integers(1, 0xFFFFFFFF))
def test_a_bare_reply_is_that_of_a_message_without_fields(request_id: int) -> None:
    assert joined(bare_reply(request_id)) == joined(
        encode(FrameKind.REPLY, request_id, body=msgspec.msgpack.encode(Nothing()))
    )
