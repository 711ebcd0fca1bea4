"""The records of `__consumer_offsets` about share groups (KIP-932), in Kafka's own format.

The version in front of a key is the kind of the record. A null value deletes what the key names. Kind 15 (which
partitions a group has begun to read) is not written: the state of a partition begins where it is read first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mainstem.model import Buffer
from mainstem.protocol.messages.consumer_group_records import RecordedTopicPartitions
from mainstem.protocol.messages.versioned import read_versioned, write_versioned
from mainstem.protocol.schema import array, declaration_of, int8, int32, int64, message, string, wire


@message(versions="10")
class ShareGroupMemberMetadataKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupMemberMetadataValue:
    rack_id: str | None = wire(string, nullable="0+", default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    subscribed_topic_names: tuple[str, ...] = wire(array(string))


@message(versions="11")
class ShareGroupMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupMetadataValue:
    epoch: int = wire(int32)
    metadata_hash: int = wire(int64)
    """Of the topics that the members subscribe to, as of this epoch."""


@message(versions="12")
class ShareGroupTargetAssignmentMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = wire(int32)


@message(versions="13")
class ShareGroupTargetAssignmentMemberKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[RecordedTopicPartitions, ...] = wire(array(RecordedTopicPartitions))


@message(versions="14")
class ShareGroupCurrentMemberAssignmentKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: int = wire(int32)
    previous_member_epoch: int = wire(int32)
    state: int = wire(int8)
    assigned_partitions: tuple[RecordedTopicPartitions, ...] = wire(array(RecordedTopicPartitions))


ShareKey = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
)
ShareValue = (
    ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
)

_VALUE_VERSION = 0


def _version_of(key_class: type[Any]) -> int:
    return declaration_of(key_class).versions.last


_VALUES: Mapping[type[Any], type[Any]] = MappingProxyType(
    {
        ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
        ShareGroupMetadataKey: ShareGroupMetadataValue,
        ShareGroupTargetAssignmentMetadataKey: ShareGroupTargetAssignmentMetadataValue,
        ShareGroupTargetAssignmentMemberKey: ShareGroupTargetAssignmentMemberValue,
        ShareGroupCurrentMemberAssignmentKey: ShareGroupCurrentMemberAssignmentValue,
    }
)
"""Key → value, of each kind."""

SHARE_KEYS: Mapping[int, type[ShareKey]] = MappingProxyType({_version_of(key): key for key in _VALUES})
"""The classes of keys by their kinds."""


def write_share_key(key: ShareKey) -> bytes:
    return write_versioned(key, _version_of(type(key)))


def read_share_value(key: ShareKey, buffer: Buffer) -> ShareValue:
    """Decode the value behind a key. Raises `ProtocolError`."""
    value: ShareValue = read_versioned(_VALUES[type(key)], buffer)
    return value


def write_share_value(value: ShareValue) -> bytes:
    return write_versioned(value, _VALUE_VERSION)
