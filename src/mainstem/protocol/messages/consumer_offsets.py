"""The records of the internal topic `__consumer_offsets`, in Kafka's own format.

The version in front of a key tells what the record is: 0 or 1 an offset commit, 2 a classic group's metadata, the kinds
of `consumer_group_records` a part of a group whose partitions the coordinator assigns, those of `share_group_records`
and `streams_group_records` a part of such a group, 10,000 an offset that a transaction commits and that waits for its
end. A null value deletes what the key names. Values are written in the last version that older readers understand too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from uuid import UUID

from mainstem.model import Buffer
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.consumer_group_records import MODERN_RECORDS, ModernKey
from mainstem.protocol.messages.share_group_records import (
    SHARE_RECORDS,
    ShareKey,
)
from mainstem.protocol.messages.streams_group_records import STREAMS_RECORDS, StreamsKey
from mainstem.protocol.messages.versioned import (
    read_version,
    read_versioned,
    read_versioned_in_slices,
    write_versioned,
    write_versioned_in_slices,
)
from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
    binary,
    int16,
    int32,
    int64,
    message,
    nested,
    string,
    uuid,
    wire,
)

OFFSET_COMMIT_KEY_VERSION = 1
GROUP_METADATA_KEY_VERSION = 2

VALUE_VERSION = 3
"""Version 4 only made the values flexible, which Kafka before 3.5 cannot read."""

OFFSET_WITH_TOPIC_ID_VERSION = 4
"""Of an offset commit's value: here there is room for the id of the topic it was committed for."""

_KEPT_UNTIL_TAG = 10_000
"""Far from those that Kafka may give out; its readers pass over tags they do not know."""

_COORDINATOR_EPOCH_TAG = 10_000
"""Versions that do not know it pass over it."""


@message(versions="0-1")
class OffsetCommitKey:
    group: str = wire(string)
    topic: str = wire(string)
    partition: int = wire(int32)


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    offset: int = wire(int64)
    leader_epoch: int = wire(int32, "3+", default=-1, ignorable=True)
    metadata: str = wire(string)
    commit_timestamp: int = wire(int64)
    expire_timestamp: int = wire(int64, "1", default=-1, ignorable=True)
    topic_id: UUID = wire(uuid, "4+", tag=0, default=ZERO_UUID, ignorable=True)
    """Zero: not known."""
    kept_until: int = wire(int64, "4+", tag=_KEPT_UNTIL_TAG, default=-1, ignorable=True)
    """`expire_timestamp`, in the versions that have no place for it: on the wire alone."""


@message(versions="2")
class GroupMetadataKey:
    group: str = wire(string)


@nested
class MemberMetadata:
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None, ignorable=True)
    client_id: str = wire(string)
    client_host: str = wire(string)
    rebalance_timeout: int = wire(int32, "1+", default=0, ignorable=True)
    session_timeout: int = wire(int32)
    subscription: bytes = wire(binary)
    assignment: bytes = wire(binary)


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    protocol_type: str = wire(string)
    generation: int = wire(int32)
    protocol: str | None = wire(string, nullable="0+")
    leader: str | None = wire(string, nullable="0+")
    current_state_timestamp: int = wire(int64, "2+", default=-1, ignorable=True)
    members: tuple[MemberMetadata, ...] = wire(array(MemberMetadata))


PENDING_OFFSET_KEY_VERSION = 10_000
"""Far from those that Kafka may give out; its readers pass over keys they do not know."""


@message(versions="10000")
class PendingOffsetKey:
    group: str = wire(string)
    topic: str = wire(string)
    partition: int = wire(int32)
    producer_id: int = wire(int64)


@message(versions="0", flexible="0+")
class PendingOffsetValue:
    producer_epoch: int = wire(int16)
    offset: int = wire(int64)
    leader_epoch: int = wire(int32)
    metadata: str = wire(string)
    commit_timestamp: int = wire(int64)
    topic_id: UUID = wire(uuid)
    coordinator_epoch: int = wire(int32, tag=_COORDINATOR_EPOCH_TAG, default=-1)
    """That of the coordinator that knew the transaction to be open, or of a later one; -1: it did not say."""


RecordKey = OffsetCommitKey | GroupMetadataKey | ModernKey | PendingOffsetKey | ShareKey | StreamsKey


def read_key(buffer: Buffer) -> RecordKey:
    """Decode a record's key. Raises `UnsupportedVersion` for kinds of records this version does not know
    (skip those when replaying) and `MalformedMessage`."""
    version = read_version(buffer)
    if version <= OFFSET_COMMIT_KEY_VERSION:
        return read_versioned(OffsetCommitKey, buffer)
    if version == GROUP_METADATA_KEY_VERSION:
        return read_versioned(GroupMetadataKey, buffer)
    if version == PENDING_OFFSET_KEY_VERSION:
        return read_versioned(PendingOffsetKey, buffer)
    of_group = MODERN_RECORDS.keys.get(version) or SHARE_RECORDS.keys.get(version) or STREAMS_RECORDS.keys.get(version)
    if of_group is not None:
        return read_versioned(of_group, buffer)
    raise UnsupportedVersion(f"a record of __consumer_offsets has a key of version {version}")


def write_key(key: RecordKey) -> bytes:
    if isinstance(key, OffsetCommitKey):
        return write_versioned(key, OFFSET_COMMIT_KEY_VERSION)
    if isinstance(key, GroupMetadataKey):
        return write_versioned(key, GROUP_METADATA_KEY_VERSION)
    if isinstance(key, PendingOffsetKey):
        return write_versioned(key, PENDING_OFFSET_KEY_VERSION)
    if isinstance(key, ShareKey):
        return SHARE_RECORDS.write_key(key)
    if isinstance(key, StreamsKey):
        return STREAMS_RECORDS.write_key(key)
    return MODERN_RECORDS.write_key(key)


def read_offset_commit_value(buffer: Buffer) -> OffsetCommitValue:
    """Decode the value behind an `OffsetCommitKey`. Raises `ProtocolError`."""
    value = read_versioned(OffsetCommitValue, buffer)
    if value.kept_until >= 0:
        return replace(value, expire_timestamp=value.kept_until, kept_until=-1)
    return value


def read_group_metadata_value(buffer: Buffer) -> GroupMetadataValue:
    """Decode the value behind a `GroupMetadataKey`. Raises `ProtocolError`."""
    return read_versioned(GroupMetadataValue, buffer)


def is_group_metadata_key(key: bytes | None) -> bool:
    return key is not None and key.startswith(GROUP_METADATA_KEY_VERSION.to_bytes(2, "big"))


def read_group_metadata_in_slices(buffer: bytes) -> Generator[None, None, GroupMetadataValue]:
    """`read_group_metadata_value` of a large group, in slices of a millisecond."""
    return read_versioned_in_slices(GroupMetadataValue, buffer)


def write_value(value: OffsetCommitValue | GroupMetadataValue) -> bytes:
    return write_versioned(value, VALUE_VERSION)


def write_group_metadata_in_slices(value: GroupMetadataValue) -> Generator[None, None, bytes]:
    """`write_value` of a large group, in slices of a millisecond."""
    return write_versioned_in_slices(value, VALUE_VERSION)


def write_offset_with_topic_id(value: OffsetCommitValue) -> bytes:
    return write_versioned(replace(value, kept_until=value.expire_timestamp), OFFSET_WITH_TOPIC_ID_VERSION)
