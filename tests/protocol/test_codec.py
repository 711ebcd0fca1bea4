"""The promises of readers and writers beyond the wire format: ownership, defaults, refusals."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from uuid import UUID

import pytest

from mainstem.protocol.codec import read, read_prefix, write
from mainstem.protocol.errors import UnsupportedVersion, UnwritableMessage
from mainstem.protocol.messages import (
    API_MESSAGES,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    MetadataRequest,
    ProduceRequest,
)
from mainstem.protocol.messages.metadata import MetadataRequestTopic
from mainstem.protocol.messages.produce import PartitionProduceData, TopicProduceData
from mainstem.protocol.schema import (
    Versions,
    array,
    binary,
    boolean,
    float64,
    int16,
    message,
    nested,
    string,
    struct,
    uint16,
    uint32,
    uuid,
    wire,
)

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@nested
class Inner:
    number: int = wire(int16, default=0)


@message(versions="0-2", flexible="1+")
class Everything:
    """Kinds that no API declared so far uses."""

    inner: Inner | None = wire(struct(Inner), nullable="0+")
    ratio: float = wire(float64)
    small: int = wire(uint16)
    large: int = wire(uint32)
    ids: tuple[UUID, ...] = wire(array(uuid))
    blobs: tuple[bytes, ...] = wire(array(binary))
    flags: tuple[bool, ...] = wire(array(boolean))
    note: str | None = wire(string, "2+", nullable="2+", tag=0, default="none")


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("inner", [None, Inner(number=-3)])
def test_kinds_without_an_api(version: int, inner: Inner | None) -> None:
    original = Everything(
        inner=inner,
        ratio=0.1,
        small=65535,
        large=2**32 - 1,
        ids=(UUID(int=1), UUID(int=2)),
        blobs=(b"", b"x" * 200),
        flags=(True, False),
        note=None if version == 2 else "none",
    )
    assert read(Everything, version, write(original, version)) == original


def test_messages_are_frozen_keyword_only_and_slotted() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        HEARTBEAT.group_id = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del HEARTBEAT.group_id
    with pytest.raises(TypeError):
        HeartbeatRequest("g", 1, "m")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="member_id"):
        HeartbeatRequest(group_id="g", generation_id=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="surprise"):
        HeartbeatRequest(group_id="g", generation_id=1, member_id="m", surprise=1)  # type: ignore[call-arg]
    assert not hasattr(HEARTBEAT, "__dict__")
    assert dataclasses.is_dataclass(HeartbeatRequest)
    assert dataclasses.replace(HEARTBEAT, member_id="n").member_id == "n"
    assert copy.deepcopy(HEARTBEAT) == HEARTBEAT
    assert pickle.loads(pickle.dumps(HEARTBEAT)) == HEARTBEAT


def test_messages_compare_by_value() -> None:
    same = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert same == HEARTBEAT
    assert hash(same) == hash(HEARTBEAT)
    assert dataclasses.replace(same, member_id="n") != HEARTBEAT
    assert repr(same) == ("HeartbeatRequest(group_id='g', generation_id=1, member_id='m', group_instance_id=None)")


def test_decoded_messages_do_not_hold_the_input() -> None:
    buffer = bytearray(
        write(
            JoinGroupRequest(group_id="g", session_timeout_ms=1, member_id="", protocol_type="consumer", protocols=()),
            0,
        )
    )
    read(JoinGroupRequest, 0, memoryview(buffer))
    buffer.clear()  # would raise BufferError if a view were left


def test_records_are_slices_of_the_input() -> None:
    request = ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=(
            TopicProduceData(
                name="t",
                partition_data=(
                    PartitionProduceData(index=0, records=(b"ab", b"c" * 3000)),
                    PartitionProduceData(index=1, records=None),
                ),
            ),
        ),
    )
    buffer = bytearray(write(request, 9))
    first, second = read(ProduceRequest, 9, buffer).topic_data[0].partition_data
    assert isinstance(first.records, memoryview)
    assert first.records.obj is buffer
    assert bytes(first.records) == b"ab" + b"c" * 3000
    assert second.records is None


def test_read_prefix_tells_where_the_message_ends() -> None:
    encoded = write(HEARTBEAT, 0)
    assert read_prefix(HeartbeatRequest, 0, b"!" + encoded + b"rest", 1) == (HEARTBEAT, 1 + len(encoded))


def test_absent_fields_are_refused_unless_ignorable_or_default() -> None:
    static = dataclasses.replace(HEARTBEAT, group_instance_id="i")
    with pytest.raises(UnsupportedVersion, match=r"v2: HeartbeatRequest.group_instance_id is 'i'"):
        write(static, 2)
    assert read(HeartbeatRequest, 3, write(static, 3)) == static
    with pytest.raises(UnsupportedVersion, match="coordinator_keys"):
        write(FindCoordinatorRequest(coordinator_keys=("g",)), 3)
    ignorable = MetadataRequest(topics=(MetadataRequestTopic(name="t", topic_id=UUID(int=9)),))
    assert read(MetadataRequest, 9, write(ignorable, 9)).topics == (MetadataRequestTopic(name="t"),)


def test_nulls_are_refused_where_the_version_has_none() -> None:
    with pytest.raises(UnwritableMessage, match="topics may not be null"):
        write(MetadataRequest(topics=None), 0)
    with pytest.raises(UnwritableMessage, match=r"topics\[\].name may not be null"):
        write(MetadataRequest(topics=(MetadataRequestTopic(name=None),)), 9)


@pytest.mark.parametrize(
    "change",
    [{"generation_id": 2**31}, {"group_id": "x" * 32768}, {"group_id": "\ud800"}],
    ids=["number", "length", "surrogate"],
)
def test_values_that_do_not_fit(change: dict[str, object]) -> None:
    unwritable = dataclasses.replace(HEARTBEAT, **change)  # type: ignore[arg-type]
    for version in (0, 4):
        with pytest.raises(UnwritableMessage, match=f"HeartbeatRequest v{version}"):
            write(unwritable, version)


def test_the_registry_is_consistent() -> None:
    for api_key, api in API_MESSAGES.items():
        assert api_key == api.api_key
        assert (api.request.__name__, api.response.__name__) == (f"{api.name}Request", f"{api.name}Response")
        assert api.version_min <= api.version_max
    produce, delete_offsets = API_MESSAGES[0], API_MESSAGES[47]
    assert (produce.version_min, produce.version_max, produce.flexible_from) == (3, 13, 9)
    assert (delete_offsets.flexible_from, delete_offsets.is_flexible(0)) == (None, False)


def test_version_ranges() -> None:
    assert Versions.parse("3") == Versions(3, 3)
    assert Versions.parse("0-9") == Versions(0, 9)
    assert 40 in Versions.parse("6+")
    assert 0 not in Versions.parse("none")
