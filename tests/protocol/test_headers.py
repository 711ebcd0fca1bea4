"""Headers against bytes written down by hand, and what bad ones raise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.model import Buffer
from mainstem.protocol.codec import write, write_parts
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import MalformedMessage
from mainstem.protocol.headers import (
    RequestHeader,
    is_unsupported_api_versions,
    parse_header,
    parse_response_header,
    request_frame,
    response_frame,
    write_request_header,
)
from mainstem.protocol.messages import ApiVersionsResponse, HeartbeatResponse
from mainstem.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

METADATA, HEARTBEAT, API_VERSIONS, FETCH, UNKNOWN_API = 3, 12, 18, 1, 9999


def test_version_1_has_no_tagged_fields() -> None:
    frame = bytes.fromhex("0003 0001 00000007 0005 68656c6c6f ffffffff")
    header, position = parse_header(memoryview(frame))
    assert header == RequestHeader(METADATA, 1, 7, "hello")
    assert frame[position:] == b"\xff\xff\xff\xff"


def test_version_2_skips_tagged_fields() -> None:
    frame = bytes.fromhex("0003 0009 00000007 0005 68656c6c6f 01 05 02 abcd 99")
    header, position = parse_header(memoryview(frame))
    assert header == RequestHeader(METADATA, 9, 7, "hello")
    assert frame[position:] == b"\x99"


def test_the_client_id_may_be_null() -> None:
    header, position = parse_header(bytes.fromhex("000c 0000 ffffffff ffff"))
    assert header == RequestHeader(HEARTBEAT, 0, -1, None)
    assert position == 10


def test_an_unknown_api_still_has_a_readable_header() -> None:
    header, _ = parse_header(bytes.fromhex("270f 0000 00000001 0000"))
    assert header == RequestHeader(UNKNOWN_API, 0, 1, "")


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        ("", "no room"),
        ("0003 0001 00000007", "no room"),
        ("0003 0001 00000007 0005 6865", "claims 5 bytes"),
        ("0003 0001 00000007 fffe", "length -2"),
        ("0003 0001 00000007 0001 ff", "not UTF-8"),
        ("0003 0009 00000007 0000", "ends early"),
        ("0003 0009 00000007 0000 ffffffff0f", "4294967295 tagged fields"),
        ("0003 0009 00000007 0000 02", "ends early"),
        ("0003 0009 00000007 0000 01 05 ffffffff0f", "exceeds the input"),
        ("0003 0009 00000007 0000 ffffffffff01", "exceeds 32 bits"),
    ],
)
def test_bad_headers(frame: str, what: str) -> None:
    with pytest.raises(MalformedMessage, match=what):
        parse_header(memoryview(bytes.fromhex(frame)))


@given(
    api_key=st.sampled_from([METADATA, HEARTBEAT, API_VERSIONS, UNKNOWN_API]),
    api_version=st.integers(0, 14),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_request_headers_round_trip(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
    header = RequestHeader(api_key, api_version, correlation_id, client_id)
    frame = request_frame(header, b"body")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    parsed, position = parse_header(frame[4:])
    assert (parsed, frame[4 + position :]) == (header, b"body")
    assert frame[4 : 4 + position] == write_request_header(header)


def test_response_frames() -> None:
    message = HeartbeatResponse(error_code=27)
    assert b"".join(response_frame(7, HEARTBEAT, 3, write_parts(message, 3))) == bytes.fromhex(
        "0000000a 00000007 00000000 001b"
    )
    assert b"".join(response_frame(7, HEARTBEAT, 4, write_parts(message, 4))) == bytes.fromhex(
        "0000000c 00000007 00 00000000 001b 00"
    )


def test_api_versions_responses_never_have_the_newer_header() -> None:
    message = ApiVersionsResponse(error_code=0, api_keys=())
    frame = b"".join(response_frame(7, API_VERSIONS, 4, write_parts(message, 4)))
    assert frame == bytes.fromhex("0000000c 00000007 0000 01 00000000 00")
    assert parse_response_header(frame[4:], API_VERSIONS, 4) == (7, 4)


def test_a_too_new_api_versions_request_is_answered_in_version_0() -> None:
    header, _ = parse_header(bytes.fromhex("0012 0063 00000007 0000 00"))
    assert is_unsupported_api_versions(header)
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=())
    assert write(refusal, 0) == bytes.fromhex("0023 00000000")
    assert not is_unsupported_api_versions(RequestHeader(API_VERSIONS, 4, 7, ""))
    assert not is_unsupported_api_versions(RequestHeader(METADATA, 99, 7, ""))


def test_large_records_are_not_copied_into_the_frame() -> None:
    large, small = memoryview(bytes(5000)), b"s" * 10
    payloads: list[Buffer | tuple[Buffer, ...]] = [large, small, (large, small)]
    partitions = tuple(
        PartitionData(partition_index=index, error_code=0, high_watermark=1, records=payload)
        for index, payload in enumerate(payloads)
    )
    message = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=partitions),))
    frame = response_frame(7, FETCH, 11, write_parts(message, 11))
    assert [part for part in frame if part is large] == [large, large]
    joined = b"".join(frame)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4
    correlation_id, position = parse_response_header(joined[4:], FETCH, 11)
    assert (correlation_id, joined[4 + position :]) == (7, write(message, 11))


@pytest.mark.parametrize("frame", ["", "000000", "00000007", "00000007 01"])
def test_bad_response_headers(frame: str) -> None:
    with pytest.raises(MalformedMessage):
        parse_response_header(bytes.fromhex(frame), HEARTBEAT, 4)
