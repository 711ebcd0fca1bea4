"""Messages inside others: the consumer protocol and the records of `__consumer_offsets`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import metadata as kafka_python
from tests.protocol.generated import messages
from tests.protocol.oracles import kafka_python_plain, plain

from mainstem.protocol.codec import read, write
from mainstem.protocol.errors import MalformedMessage, ProtocolError, UnsupportedVersion
from mainstem.protocol.messages.consumer_group_records import (
    MODERN_RECORDS,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMetadataValue,
    RecordedTopicPartitions,
)
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
    write_key,
    write_value,
)
from mainstem.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from mainstem.protocol.messages.versioned import read_versioned

SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=("a", "b"),
    user_data=b"\x01",
    owned_partitions=(TopicPartition(topic="a", partitions=(0, 2)),),
    generation_id=7,
    rack_id="r",
)
MEMBER = MemberMetadata(
    member_id="m",
    group_instance_id="i",
    client_id="c",
    client_host="/127.0.0.1",
    rebalance_timeout=300_000,
    session_timeout=45_000,
    subscription=b"s",
    assignment=b"a",
)


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("message_class", [ConsumerProtocolSubscription, ConsumerProtocolAssignment])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_consumer_protocol_against_kafka_python(version: int, message_class: type[Any], data: Any) -> None:
    message = data.draw(messages(message_class, version))
    encoded = write(message, version)
    other = getattr(kafka_python, message_class.__name__)
    theirs = other(
        **{
            name: [(item.topic, list(item.partitions)) for item in value] if name.endswith("partitions") else value
            for name, value in ((name, getattr(message, name)) for name in message.__slots__)
            if name in other.fields and other.fields[name].for_version_q(version)
        },
        version=version,
    )
    assert version.to_bytes(2, "big") + encoded == bytes(theirs.encode())
    back = other.decode(version.to_bytes(2, "big") + encoded)
    assert kafka_python_plain(message_class, back, version) == plain(message, version)
    assert read(message_class, version, encoded) == message


def test_known_subscription_bytes() -> None:
    expected = "0001 00000002 0001 61 0001 62 00000001 01 00000001 0001 61 00000002 00000000 00000002"
    assert write_subscription(SUBSCRIPTION, 1) == bytes.fromhex(expected)


def test_newer_versions_are_read_as_the_last_known() -> None:
    encoded = write_subscription(SUBSCRIPTION)
    assert read_subscription(b"\x00\x09" + encoded[2:] + b"what came later") == SUBSCRIPTION
    assignment = ConsumerProtocolAssignment(assigned_partitions=SUBSCRIPTION.owned_partitions)
    assert read_assignment(b"\x00\x09" + write_assignment(assignment)[2:] + b"later") == assignment


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\x00", b"\x00\x01\x00"])
def test_bad_subscriptions(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_subscription(data)


def test_known_offset_commit_bytes() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert write_key(key) == bytes.fromhex("0001 0001 67 0001 74 00000003")
    value = OffsetCommitValue(offset=9, leader_epoch=2, metadata="", commit_timestamp=5)
    assert write_value(value) == bytes.fromhex("0003 0000000000000009 00000002 0000 0000000000000005")
    assert read_key(write_key(key)) == key
    assert read_key(b"\x00\x00" + write_key(key)[2:]) == key
    assert read_offset_commit_value(write_value(value)) == value


def test_known_group_metadata_bytes() -> None:
    key = GroupMetadataKey(group="g")
    assert write_key(key) == bytes.fromhex("0002 0001 67")
    assert read_key(write_key(key)) == key
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        current_state_timestamp=6,
        members=(MEMBER,),
    )
    assert write_value(value) == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 6d 0000000000000006 00000001"
        "0001 6d 0001 69 0001 63 000a 2f3132372e302e302e31 000493e0 0000afc8 00000001 73 00000001 61"
    )
    assert read_group_metadata_value(write_value(value)) == value


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("message_class", [OffsetCommitValue, GroupMetadataValue])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_values_round_trip_in_every_version(message_class: type[Any], version: int, data: Any) -> None:
    message = data.draw(messages(message_class, version))
    assert read(message_class, version, write(message, version)) == message


def test_known_bytes_of_groups_that_the_coordinator_assigns() -> None:
    topic = UUID(int=7)
    key = ConsumerGroupCurrentMemberAssignmentKey(group="g", member_id="m")
    assert MODERN_RECORDS.write_key(key) == bytes.fromhex("0008 0001 67 0001 6d")
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=5,
        previous_member_epoch=4,
        state=1,
        assigned_partitions=(RecordedTopicPartitions(topic_id=topic, partitions=(0, 2)),),
        partitions_pending_revocation=(),
    )
    assert MODERN_RECORDS.write_value(value) == bytes.fromhex(
        "0000 00000005 00000004 01 02 00000000000000000000000000000007 03 00000000 00000002 00 01 00"
    )
    assert MODERN_RECORDS.read_value(key, MODERN_RECORDS.write_value(value)) == value
    epoch = ConsumerGroupMetadataValue(epoch=3)
    assert MODERN_RECORDS.write_value(epoch) == bytes.fromhex("0000 00000003 00")
    hashed = ConsumerGroupMetadataValue(epoch=3, metadata_hash=9)
    assert MODERN_RECORDS.write_value(hashed) == bytes.fromhex("0000 00000003 01 00 08 0000000000000009")


@pytest.mark.parametrize("kind", sorted(MODERN_RECORDS.keys))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_keys_of_assigned_groups_round_trip(kind: int, data: Any) -> None:
    key = data.draw(messages(MODERN_RECORDS.keys[kind], kind))
    assert read_versioned(MODERN_RECORDS.keys[kind], MODERN_RECORDS.write_key(key)) == key
    assert MODERN_RECORDS.write_key(key)[:2] == kind.to_bytes(2, "big")


def test_old_values_are_still_read() -> None:
    expiring = bytes.fromhex("0001 0000000000000009 0000 0000000000000005 0000000000000006")
    assert read_offset_commit_value(expiring).expire_timestamp == 6


def test_unknown_records_are_told_from_broken_ones() -> None:
    with pytest.raises(UnsupportedVersion, match="version 9"):
        read_key(b"\x00\x09\x00\x01g")
    with pytest.raises(MalformedMessage):
        read_key(b"\x00")
    with pytest.raises(MalformedMessage):
        read_key(b"\x00\x02\x00\x05g")
