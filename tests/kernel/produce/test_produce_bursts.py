"""Bursts: several Produce frames scanned in one call, by both kernels alike, and like one after the other."""

from __future__ import annotations

import struct
from collections import Counter
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kernel.produce.produce_bodies import VERSIONS, WireRequest, WireTopic, good_batch, requests, resolver
from tests.kernel.produce.test_produce_response import ERRORS
from tests.kernel.test_group_log import GROUPS, PARTITIONS, TOPIC, Node

from mainstem.kernel import MalformedProduce, Verdict, compiled, pure
from mainstem.model import AppendResult, Outcome

LIMIT = 1 << 20

both = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])


class Frame(NamedTuple):
    """A request as it comes from a socket; by itself a plain one."""

    request: WireRequest
    version: int = 9
    client_id: bytes | None = b"client"
    tags: bytes = b"\0"
    correlation_id: int = 1
    api_key: int = 0
    excess: bytes = b""

    def written(self) -> bytes:
        name = -1 if self.client_id is None else len(self.client_id)
        head = struct.pack(">hhih", self.api_key, self.version, self.correlation_id, name) + (self.client_id or b"")
        content = head + (self.tags if self.version >= 9 else b"") + self.request.body(self.version) + self.excess
        return struct.pack(">i", len(content)) + content


def plain(*partitions: tuple[int, bytes | None], name: bytes = b"plain", acks: int = -1) -> WireRequest:
    return WireRequest(None, acks, 1500, [WireTopic(name, partitions or [(0, good_batch())])], [])


def scan(kernel: ModuleType, sent: bytes, requests_max: int = 100, limit: int = LIMIT, start: int = 0) -> Any:
    resolve = resolver(kernel)
    return kernel.scan_burst(memoryview(sent), start, len(sent), requests_max, limit, resolve, resolve)


frames = st.builds(
    Frame,
    request=requests | st.sampled_from([plain(), plain(acks=1), plain(name=b"\xff")]),
    version=st.sampled_from([*VERSIONS, 9, 9, 9, 9, 9, 9, 2, 14]),
    client_id=st.sampled_from([b"client"] * 8 + [None, b"", b"\xff", "ü".encode(), b"c" * 300]),
    tags=st.sampled_from([b"\0"] * 8 + [b"\x01\x00\x00", b""]),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    api_key=st.sampled_from([0] * 12 + [1, -1]),
    excess=st.sampled_from([b""] * 12 + [b"x"]),
)
alike = st.integers(3, 13).flatmap(
    lambda version: st.lists(
        st.tuples(
            st.sampled_from([plain(name=name) for name in (b"plain", b"stamped", b"compacted", b"lonely")]) | requests,
            st.integers(0, 9),
        ).map(lambda drawn: Frame(drawn[0], version, correlation_id=drawn[1])),
        max_size=6,
    )
)


def everything_of(kernel: ModuleType, sent: bytes, start: int, stop: int, requests_max: int, limit: int) -> Any:
    asked: list[tuple[str, bytes]] = []
    resolve = resolver(kernel)

    def by(kind: str) -> Any:
        def listening(key: bytes) -> Any:
            asked.append((kind, key))
            if key == b"\xff":
                raise MalformedProduce("a topic name is not UTF-8")
            return resolve(key)

        return listening

    buffer = bytearray(sent)
    with memoryview(buffer) as view:
        found = kernel.scan_burst(view, start, stop, requests_max, limit, by("name"), by("id"))
        if found is None:
            return asked, None
        before = (
            (found.version, found.transactional, found.acks, found.timeout_ms, found.topics),
            (found.request_count, found.bytes_taken, found.batch_count, found.accepted_count, len(found)),
            found.scanned(),
            [(batch[0], bytes(batch.data), batch[2:]) for batch in found],
            [(number, bytes(data)) for number, data in found.compacted()],
        )
        found.release()
    buffer += b"nobody has a view of it"
    first = found.responses(ERRORS), found.errors(ERRORS)
    found.settle([AppendResult(Outcome.OK, number, -1, 0) for number in range(len(found))])
    after = found.responses(ERRORS), found.errors(ERRORS), found.scanned()
    return asked, before, first, after


@given(
    sent=st.lists(frames, max_size=5) | alike,
    before=st.binary(max_size=3),
    behind=st.binary(max_size=20) | st.just(Frame(plain()).written()[:-1]),
    cut=st.integers(0, 3),
    requests_max=st.sampled_from([100, 100, 100, 1, 2, 0]),
    limit=st.sampled_from([LIMIT] * 5 + [80, 200]),
    changes=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 255)), max_size=2),
)
@settings(max_examples=examples(500), deadline=None)
def test_both_do_the_same(
    sent: list[Frame],
    before: bytes,
    behind: bytes,
    cut: int,
    requests_max: int,
    limit: int,
    changes: list[tuple[int, int]],
) -> None:
    content = bytearray(b"".join(frame.written() for frame in sent) + behind)
    for place, value in changes:
        if content:
            content[place % len(content)] = value
    whole = before + bytes(content)
    args = whole, len(before), max(len(before), len(whole) - cut), requests_max, limit
    assert everything_of(pure, *args) == everything_of(compiled, *args)


@both
@given(sent=alike)
@settings(max_examples=examples(100), deadline=None)
def test_a_burst_is_its_requests_one_after_the_other(kernel: ModuleType, sent: list[Frame]) -> None:
    content = b"".join(frame.written() for frame in sent)
    start, resolve = 0, resolver(kernel)
    while start < len(content):
        found = scan(kernel, content, start=start)
        if found is None:  # something of the first is out of the ordinary
            (length,) = struct.unpack_from(">i", content, start)
            start += 4 + length
            sent = sent[1:]
            continue
        together, sent = sent[: found.request_count], sent[found.request_count :]
        assert content[start : start + found.bytes_taken] == b"".join(frame.written() for frame in together)
        alone = [
            (frame, kernel.scan_produce(memoryview(frame.request.body(frame.version)), 0, frame.version, resolve))
            for frame in together
        ]
        for throttle_ms in (0, 1500):
            answers = [one.response(frame.correlation_id, ERRORS, throttle_ms) for frame, one in alone]
            assert found.responses(ERRORS, throttle_ms) == b"".join(answers)
        assert [bytes(batch.data) for batch in found] == [bytes(batch.data) for _, one in alone for batch in one]
        assert found.errors(ERRORS) == sum((Counter(one.errors(ERRORS)) for _, one in alone), Counter())
        start += found.bytes_taken


@both
def test_a_burst_ends_in_front_of_what_is_out_of_the_ordinary(kernel: ModuleType) -> None:
    good = [Frame(plain(), correlation_id=number).written() for number in range(2)]
    odd = [
        Frame(plain(acks=1)),
        Frame(plain(), version=8),
        Frame(plain()._replace(transactional_id=b"t")),
        Frame(plain(), client_id="ü".encode()),
        Frame(plain(), tags=b"\x01\x00\x00"),
        Frame(plain(), api_key=3),
        Frame(plain(), excess=b"x"),
        Frame(plain(), client_id=b"c" * 400),
    ]
    for frame in odd:
        found = scan(kernel, b"".join([*good, frame.written(), *good]), limit=400)
        assert (found.request_count, found.bytes_taken) == (2, sum(map(len, good))), frame
        assert found.batch_count == len(found.topics) == 2
    for end in range(1, len(good[0])):
        found = scan(kernel, good[0] + good[1][:end])
        assert found.request_count == 1
    assert scan(kernel, odd[6].written() + good[0]) is None
    assert scan(kernel, b"") is None
    assert scan(kernel, b"".join(good), requests_max=1).request_count == 1
    assert scan(kernel, b"".join(good), requests_max=0) is None


@both
def test_a_topic_is_asked_for_once_in_a_row(kernel: ModuleType) -> None:
    asked: list[bytes] = []
    resolve = resolver(kernel)

    def listening(key: bytes) -> Any:
        asked.append(key)
        return resolve(key)

    names = [b"plain", b"plain", b"stamped", b"plain"]
    content = memoryview(b"".join(Frame(plain(name=name)).written() for name in names))
    kernel.scan_burst(content, 0, len(content), 100, LIMIT, listening, listening)
    assert asked == [b"plain", b"stamped", b"plain"]


@both
def test_what_waits_for_a_block_fails_with_it(kernel: ModuleType) -> None:
    found = scan(kernel, b"".join(Frame(plain((number % 3, good_batch()))).written() for number in range(3)))
    found.settle([AppendResult(Outcome.OK, number, -1, 0) for number in range(3)])
    found.fail(Verdict.STORAGE_FAILED, 1, 7)  # nobody waits for that one
    assert [batch.verdict for batch in found.scanned()] == [Verdict.OK] * 3
    found.fail(Verdict.STORAGE_FAILED)
    assert [batch.verdict for batch in found.scanned()] == [Verdict.STORAGE_FAILED] * 3


@given(
    sent=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=5),
    lost=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_a_lost_block_takes_its_own_batches_along(sent: list[list[int]], lost: int) -> None:
    ends = []
    for kernel in (pure, compiled):
        node = Node(kernel)
        topic = kernel.ProduceTopic(number=TOPIC, partitions=PARTITIONS, message_bytes_max=1 << 20)
        content = b"".join(
            Frame(plain(*((partition, good_batch()) for partition in request))).written() for request in sent
        )
        resolve = {b"plain": topic}.__getitem__
        found = kernel.scan_burst(memoryview(content), 0, len(content), 100, LIMIT, resolve, resolve)
        results, waiting = node.append(found, [True] * GROUPS, 1)
        assert results is found
        group, index = waiting[lost % len(waiting)]
        found.fail(Verdict.NOT_LEADER, group, index)
        for one in found.scanned():
            own = (one.group, one.block_index) == (group, index)
            assert (one.group, one.block_index) in waiting
            assert one.verdict == (Verdict.NOT_LEADER if own else Verdict.OK)
            assert (one.base_offset == -1) == own
        ends.append((waiting, found.scanned(), found.responses(ERRORS)))
    assert ends[0] == ends[1]


@both
@pytest.mark.parametrize("bounds", [(-1, 3), (2, 1), (0, 6)])
def test_frames_lie_inside_the_buffer(kernel: ModuleType, bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no frames"):
        kernel.scan_burst(memoryview(b"bytes"), *bounds, 1, LIMIT, None, None)
