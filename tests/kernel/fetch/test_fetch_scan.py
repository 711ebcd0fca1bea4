"""The scan of Fetch bodies: both kernels against the codec, and against each other under hostile bytes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.fetch.fetch_requests import (
    KERNELS,
    PREFIX,
    VERSIONS,
    seen_by_codec,
    seen_by_scan,
    versioned_requests,
)

from mainstem.kernel import MalformedFetch
from mainstem.kernel.pure import fetch as pure_fetch
from mainstem.protocol import codec
from mainstem.protocol.errors import MalformedMessage
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.varint import unsigned_varint

both = pytest.mark.parametrize("kernel", KERNELS, ids=["pure", "compiled"])

V4_HEAD = bytes(4 + 12 + 1)
V12_HEAD = bytes(4 + 12 + 1 + 8)


def plain_body(version: int) -> bytes:
    partitions = (FetchPartition(partition=1, fetch_offset=2, partition_max_bytes=3),)
    topic = FetchTopic(topic="t", partitions=partitions) if version < 13 else FetchTopic(partitions=partitions)
    return codec.write(FetchRequest(max_wait_ms=5, min_bytes=6, topics=(topic,)), version)


@both
@given(made=versioned_requests)
def test_the_scan_sees_what_the_codec_wrote(kernel: ModuleType, made: tuple[int, FetchRequest]) -> None:
    version, request = made
    body = codec.write(request, version)
    assert seen_by_scan(kernel, body, version) == seen_by_codec(body, version)


@both
@pytest.mark.parametrize("version", VERSIONS)
def test_a_body_cut_anywhere_is_malformed(kernel: ModuleType, version: int) -> None:
    body = plain_body(version)
    assert "error" not in seen_by_scan(kernel, body, version)
    for stop in range(len(body)):
        assert "error" in seen_by_scan(kernel, body[:stop], version)


@both
def test_bytes_behind_the_request_are_ignored(kernel: ModuleType) -> None:
    for version in VERSIONS:
        body = plain_body(version)
        assert seen_by_scan(kernel, body + b"\xff\xff", version) == seen_by_scan(kernel, body, version)


@both
@pytest.mark.parametrize(
    ("version", "body", "complaint"),
    [
        (4, V4_HEAD + b"\xff\xff\xff\xff", "an array claims -1 elements"),
        (4, V4_HEAD + b"\x80\x00\x00\x00", "a length is -2147483648"),
        (4, V4_HEAD + b"\x7f\xff\xff\xff", "an array claims 2147483647 elements"),
        (4, V4_HEAD + b"\x00\x00\x00\x01" + b"\xff\xff" + bytes(8), "a string is null"),
        (4, V4_HEAD + b"\x00\x00\x00\x01" + b"\x7f\xff" + bytes(8), "a string claims 32767 bytes"),
        (4, V4_HEAD + b"\x00\x00\x00\x01" + b"\x00\x01\xff" + bytes(4), "a topic name is not UTF-8"),
        (12, V12_HEAD + b"\x00" + bytes(8), "an array claims -1 elements"),
        (12, V12_HEAD + b"\xff\xff\xff\xff\x0f" + bytes(8), "an array claims 4294967294 elements"),
        (12, V12_HEAD + b"\xff\xff\xff\xff\xff\xff", "a variable-length number exceeds 32 bits"),
        (12, V12_HEAD + b"\x02\x00" + bytes(8), "a string is null"),
        (12, V12_HEAD + b"\x02\x81\x80\x02" + bytes(40_000), "a string has 32768 bytes"),
        (12, V12_HEAD + b"\x01\x01\x01\x01\x00\xff\xff\xff\xff\x0f", "a tagged field claims 4294967295 bytes"),
        (12, V12_HEAD + b"\x01\x01\x00\x00", "a string is null"),  # the rack
        (12, V12_HEAD + b"\x01\x01\x02\xff\x00", "a rack is not UTF-8"),
    ],
)
def test_lengths_that_lie_are_malformed(kernel: ModuleType, version: int, body: bytes, complaint: str) -> None:
    assert complaint in seen_by_scan(kernel, body, version)["error"]


@both
def test_entries_are_bounded_in_number(kernel: ModuleType) -> None:
    """A frame of tiny topics is told from a request before most of it is looked at."""
    count = pure_fetch.ENTRIES_MAX + 1
    body = V12_HEAD + unsigned_varint(count + 1) + b"\x01\x01\x00" * count
    error = seen_by_scan(kernel, body, 12)["error"]
    assert error == f"more than {pure_fetch.ENTRIES_MAX} topics and partitions in a request"


@both
def test_forgotten_entries_are_bounded_with_those_scanned_at_once(kernel: ModuleType) -> None:
    count = pure_fetch.ENTRIES_AT_ONCE
    forgotten = unsigned_varint(2) + b"\x02t" + unsigned_varint(count) + bytes(4 * (count - 1)) + b"\0"
    assert "error" not in seen_by_scan(kernel, V12_HEAD + b"\x01" + forgotten + b"\x01\0", 12)
    topic = b"\x02\x02t\x01\0"
    error = seen_by_scan(kernel, V12_HEAD + topic + forgotten + b"\x01\0", 12)["error"]
    assert error == f"more than {count} topics and partitions in a request"


def scanned_in_parts(kernel: ModuleType, body: bytes, version: int, sizes: list[int]) -> dict[str, Any]:
    """The entries that the scans of all parts see together, each of at most as many entries as `sizes` has in turn."""
    frame, taken = memoryview(bytearray(PREFIX + body)), 0
    rows: list[Any] = []
    scan = None
    at = len(PREFIX)
    try:
        while scan is None or scan.rest is not None:
            most = sizes[taken % len(sizes)]
            taken += 1
            if scan is None:
                scan = kernel.scan_fetch(frame, at, version, most)
            else:
                assert not scan.forgotten
                at = scan.rest.position
                scan = kernel.scan_more(frame, at, version, scan, most)
            found = scan.plan.partitions()
            assert len(found) + scan.plan.topics_named <= most + 1, "a topic goes on in another part"
            rows += found
    except MalformedFetch as error:
        return {"error": str(error)}
    return {
        "header": (scan.max_wait_ms, scan.min_bytes, scan.max_bytes, scan.isolation_level),
        "session": (scan.session_id, scan.session_epoch),
        "forgotten": [(key, list(found)) for key, found in scan.forgotten],
        "rows": [tuple(row[:6]) for row in rows],
        "rack": scan.rack,
    }


part_sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@both
@given(made=versioned_requests, sizes=part_sizes)
def test_scans_of_parts_see_together_what_the_codec_wrote(
    kernel: ModuleType, made: tuple[int, FetchRequest], sizes: list[int]
) -> None:
    version, request = made
    body = codec.write(request, version)
    seen = seen_by_codec(body, version)
    del seen["wanted"], seen["asks_epochs"]
    assert scanned_in_parts(kernel, body, version, sizes) == seen


@given(made=versioned_requests, sizes=part_sizes, place=st.integers(0, 2000), byte=st.integers(0, 255))
def test_both_make_the_same_of_damaged_requests_in_parts(
    made: tuple[int, FetchRequest], sizes: list[int], place: int, byte: int
) -> None:
    version, request = made
    body = bytearray(codec.write(request, version))
    body[place % len(body)] = byte
    found = [scanned_in_parts(kernel, bytes(body), version, sizes) for kernel in KERNELS]
    assert found[0] == found[1]


@both
def test_there_is_more_to_scan_only_where_a_scan_stopped(kernel: ModuleType) -> None:
    body = memoryview(plain_body(12))
    scan = kernel.scan_fetch(body, 0, 12)
    assert scan.rest is None
    with pytest.raises(ValueError, match="nothing is left"):
        kernel.scan_more(body, 0, 12, scan, 1)
    stopped = kernel.scan_fetch(body, 0, 12, 1)
    with pytest.raises(MalformedFetch, match="ends early"):
        kernel.scan_more(body, len(body) + 1, 12, stopped, 1)


@both
@pytest.mark.parametrize("position", [7, 1000])
def test_a_body_that_starts_behind_the_end_is_malformed(kernel: ModuleType, position: int) -> None:
    with pytest.raises(MalformedFetch, match="ends early"):
        kernel.scan_fetch(memoryview(PREFIX), position, 12)


@given(
    made=versioned_requests,
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 2000)),
    other_version=st.one_of(st.none(), st.sampled_from(list(VERSIONS))),
)
def test_both_make_the_same_of_damaged_requests(
    made: tuple[int, FetchRequest], changes: list[tuple[int, int]], cut: int | None, other_version: int | None
) -> None:
    version, request = made
    body = bytearray(codec.write(request, version))
    for position, byte in changes:
        body[position % len(body)] = byte
    damaged = bytes(body[:cut])
    version = other_version or version
    found = [seen_by_scan(kernel, damaged, version) for kernel in KERNELS]
    assert found[0] == found[1]
    try:
        oracle = seen_by_codec(damaged, version)
    except MalformedMessage:
        return  # the scan steps over tags, so it may well take what the codec does not
    assert found[0] == oracle


@given(version=st.sampled_from(list(VERSIONS)), body=st.binary(max_size=300))
def test_both_make_the_same_of_noise(version: int, body: bytes) -> None:
    found = [seen_by_scan(kernel, body, version) for kernel in KERNELS]
    assert found[0] == found[1]
