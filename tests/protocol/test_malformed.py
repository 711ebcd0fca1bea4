"""Bytes that are no message: only `MalformedMessage` comes out of them, and little memory goes in."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.protocol.generated import messages

from mainstem.protocol.codec import read, read_in_slices, read_prefix, write, write_in_slices
from mainstem.protocol.errors import MalformedMessage, UnsupportedVersion
from mainstem.protocol.messages import (
    API_MESSAGES,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    MetadataRequest,
    ProduceRequest,
)
from mainstem.protocol.messages.group_membership import JoinGroupRequestProtocol
from mainstem.protocol.messages.metadata import MetadataRequestTopic
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequest
from mainstem.protocol.schema import declaration_of

CASES = [
    pytest.param(message_class, version, id=f"{message_class.__name__}-{version}")
    for api in API_MESSAGES.values()
    for message_class in (api.request, api.response)
    for version in (api.version_min, api.version_max)
]

few_examples = settings(
    max_examples=settings().max_examples // 6,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

JOIN = JoinGroupRequest(
    group_id="group",
    session_timeout_ms=1,
    member_id="",
    protocol_type="consumer",
    protocols=(JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01"),),
)


def read_or_refuse(message_class: type[Any], version: int, data: bytes) -> Any:
    """The message, or None where the bytes were refused; anything but a refusal fails the test."""
    try:
        return read(message_class, version, data)
    except MalformedMessage as problem:
        position = problem.position
    assert 0 <= position <= len(data)
    return None


@pytest.mark.parametrize(("message_class", "version"), CASES)
@few_examples
@given(data=st.data())
def test_every_truncation_and_extension(message_class: type[Any], version: int, data: Any) -> None:
    encoded = write(data.draw(messages(message_class, version)), version)
    for size in range(min(len(encoded), 300)):
        with pytest.raises(MalformedMessage) as caught:
            read(message_class, version, encoded[:size])
        assert 0 <= caught.value.position <= size
    with pytest.raises(MalformedMessage, match="1 unknown bytes"):
        read(message_class, version, encoded + b"\x00")


@pytest.mark.parametrize(("message_class", "version"), CASES)
@few_examples
@given(data=st.data())
def test_bytes_changed_anywhere(message_class: type[Any], version: int, data: Any) -> None:
    encoded = bytearray(write(data.draw(messages(message_class, version)), version))
    for _ in range(data.draw(st.integers(1, 4))):
        if encoded:
            position = data.draw(st.integers(0, len(encoded) - 1))
            encoded[position] = data.draw(st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xFF]))
    read_or_refuse(message_class, version, bytes(encoded))


@pytest.mark.parametrize(("message_class", "version"), CASES)
@few_examples
@given(noise=st.binary(max_size=200))
def test_noise(message_class: type[Any], version: int, noise: bytes) -> None:
    message = read_or_refuse(message_class, version, noise)
    if message is not None:
        assert read(message_class, version, write(message, version)) == message


@pytest.mark.parametrize(("message_class", "version"), CASES)
def test_lengths_that_lie_cost_nothing(message_class: type[Any], version: int) -> None:
    declaration = declaration_of(message_class)
    largest = b"\xff\xff\xff\xff\x0f" if version in declaration.flexible else b"\x7f\xff\xff\xff"
    read_or_refuse(message_class, version, b"")  # compile before memory is measured
    tracemalloc.start()
    try:
        for position in range(48):
            read_or_refuse(message_class, version, bytes(position) + largest + bytes(60))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_request_has_room_for_so_many_elements_in_all() -> None:
    """Nested arrays count together, and numbers count as well."""

    def fetch_of(topics: int, partitions: int) -> bytes:
        topic = struct.pack(">hi", 0, partitions) + bytes(4 * partitions)
        return struct.pack(">hi", 0, topics) + topics * topic

    assert len(read(OffsetFetchRequest, 1, fetch_of(2, 124_999)).topics or ()) == 2
    with pytest.raises(MalformedMessage, match="more than it may have"):
        read(OffsetFetchRequest, 1, fetch_of(2, 125_000))
    with pytest.raises(MalformedMessage, match="more than it may have"):
        read(MetadataRequest, 1, struct.pack(">i", 250_001) + bytes(2 * 250_001))
    with pytest.raises(MalformedMessage, match="more than it may have"):
        read(DeleteGroupsRequest, 0, struct.pack(">i", 10_001) + bytes(2 * 10_001))


def test_every_request_says_how_many_elements_it_may_have() -> None:
    unbounded = [api.request for api in API_MESSAGES.values() if not declaration_of(api.request).elements_max]
    assert unbounded == []


@pytest.mark.parametrize(("message_class", "version"), CASES)
@few_examples
@given(data=st.data())
def test_in_slices_the_same_is_read_written_and_refused(message_class: type[Any], version: int, data: Any) -> None:
    message = data.draw(messages(message_class, version))
    encoded = write(message, version)
    assert b"".join(whole(write_in_slices(message, version))) == encoded
    assert whole(read_in_slices(message_class, version, b"ab" + encoded + b"c", 2)) == (
        *read_prefix(message_class, version, b"ab" + encoded + b"c", 2),
    )
    damaged = bytearray(encoded[: data.draw(st.integers(0, len(encoded)))])
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    outcomes: list[Any] = []
    for reader in (read_prefix, lambda *asked: whole(read_in_slices(*asked))):
        try:
            outcomes.append(reader(message_class, version, bytes(damaged)))
        except MalformedMessage as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def whole(slices: Generator[None, None, Any]) -> Any:
    """The value that a generator returns."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value


def test_a_long_message_is_read_and_written_in_many_slices() -> None:
    names = tuple(MetadataRequestTopic(name=f"topic-{number}") for number in range(20_000))
    message = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    assert sum(1 for _ in write_in_slices(message, 9)) == 20_000 // 512
    encoded = write(message, 9)
    assert sum(1 for _ in read_in_slices(MetadataRequest, 9, encoded)) == 20_000 // 512
    assert whole(read_in_slices(MetadataRequest, 9, encoded))[0] == message


def test_tagged_fields_are_bounded() -> None:
    tags = b"".join(bytes([100 + number, 0]) for number in range(17))
    sound = write(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)[:-1]
    read(HeartbeatRequest, 4, sound + bytes([16]) + tags[:32])
    with pytest.raises(MalformedMessage, match="17 tagged fields, more than 16"):
        read(HeartbeatRequest, 4, sound + bytes([17]) + tags)


def test_positions_name_the_place() -> None:
    encoded = bytearray(write(JOIN, 0))
    encoded[6] = 0xFF
    with pytest.raises(MalformedMessage, match=r"JoinGroupRequest v0: text is not UTF-8, at byte 2"):
        read(JoinGroupRequest, 0, encoded)
    with pytest.raises(MalformedMessage, match=r"protocols claims 2147483647 elements and 0 bytes remain"):
        read(JoinGroupRequest, 0, write(JOIN, 0)[: -(4 + 2 + 5 + 4 + 2)] + b"\x7f\xff\xff\xff")


def test_a_null_where_none_may_be() -> None:
    with pytest.raises(MalformedMessage, match="group_id has length -1 and may not be null"):
        read(HeartbeatRequest, 0, b"\xff\xff" + bytes(8))
    with pytest.raises(MalformedMessage, match="topics has length -2"):
        read(MetadataRequest, 1, b"\xff\xff\xff\xfe")
    assert read(MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None


def test_varints_end_after_five_bytes() -> None:
    with pytest.raises(MalformedMessage, match="exceeds 32 bits"):
        read(ApiVersionsRequest, 3, b"\xff" * 4000)


def test_strings_keep_kafkas_bound_in_flexible_versions() -> None:
    with pytest.raises(MalformedMessage, match="more than a string may have"):
        read(ApiVersionsRequest, 3, b"\x81\x80\x02" + b"x" * 32768 + b"\x01\x00")


def test_a_tagged_field_must_fill_its_size() -> None:
    empty = write(FetchRequest(max_wait_ms=0, min_bytes=0, topics=()), 12)
    assert empty.endswith(b"\x00")
    assert read(FetchRequest, 12, empty[:-1] + b"\x01\x00\x02\x02x").cluster_id == "x"
    with pytest.raises(MalformedMessage, match="cluster_id does not fill its 3 bytes"):
        read(FetchRequest, 12, empty[:-1] + b"\x01\x00\x03\x02xy")
    with pytest.raises(MalformedMessage):
        read(FetchRequest, 12, empty[:-1] + b"\x01\x00\x01\x02x")


def test_unknown_tagged_fields_are_skipped() -> None:
    empty = write(FetchRequest(max_wait_ms=0, min_bytes=0, topics=()), 12)
    assert read(FetchRequest, 12, empty[:-1] + b"\x02\x00\x02\x02x\x63\x03abc").cluster_id == "x"
    plain = write(CreateTopicsRequest(topics=()), 5)
    assert read(CreateTopicsRequest, 5, plain[:-1] + b"\x01\xff\x01\x03abc") == CreateTopicsRequest(topics=())


def test_versions_that_do_not_exist() -> None:
    with pytest.raises(UnsupportedVersion, match="ProduceRequest has no version 2: supported are 3 to 13"):
        read(ProduceRequest, 2, b"")
    with pytest.raises(UnsupportedVersion):
        write(JOIN, 10)


def test_a_start_outside_the_input() -> None:
    for position in (-1, 6):
        with pytest.raises(MalformedMessage, match="starts outside"):
            read(HeartbeatRequest, 0, bytes(5), position)
