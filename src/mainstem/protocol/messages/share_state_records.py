"""The records of the internal topic `__share_group_state`, in Kafka's own format: how far a share group is with each
partition that it reads.

The version in front of a key tells what the record is: 0 a snapshot of a share partition, 1 an update to it. A null
value forgets the share partition.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.model import Buffer
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.versioned import read_version, read_versioned, write_versioned
from mainstem.protocol.schema import array, int8, int16, int32, int64, message, nested, string, uuid, wire

_VALUE_VERSION = 0


@message(versions="0")
class ShareSnapshotKey:
    group_id: str = wire(string)
    topic_id: UUID = wire(uuid)
    partition: int = wire(int32)


@message(versions="1")
class ShareUpdateKey:
    group_id: str = wire(string)
    topic_id: UUID = wire(uuid)
    partition: int = wire(int32)


@nested
class ShareStateBatch:
    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    delivery_state: int = wire(int8)
    delivery_count: int = wire(int16)


@message(versions="0", flexible="0+")
class ShareSnapshotValue:
    snapshot_epoch: int = wire(int32)
    state_epoch: int = wire(int32)
    leader_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    create_timestamp: int = wire(int64)
    write_timestamp: int = wire(int64)
    state_batches: tuple[ShareStateBatch, ...] = wire(array(ShareStateBatch))


@message(versions="0", flexible="0+")
class ShareUpdateValue:
    snapshot_epoch: int = wire(int32)
    leader_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    state_batches: tuple[ShareStateBatch, ...] = wire(array(ShareStateBatch))


ShareStateKey = ShareSnapshotKey | ShareUpdateKey
ShareStateValue = ShareSnapshotValue | ShareUpdateValue


def read_share_state_key(buffer: Buffer) -> ShareStateKey:
    """Decode a record's key. Raises `UnsupportedVersion` for kinds of records that this version does not know, and
    `MalformedMessage`."""
    version = read_version(buffer)
    if version == 0:
        return read_versioned(ShareSnapshotKey, buffer)
    if version == 1:
        return read_versioned(ShareUpdateKey, buffer)
    raise UnsupportedVersion(f"a record of __share_group_state has a key of version {version}")


def write_share_state_key(key: ShareStateKey) -> bytes:
    return write_versioned(key, 0 if isinstance(key, ShareSnapshotKey) else 1)


def read_share_state_value(key: ShareStateKey, buffer: Buffer) -> ShareStateValue:
    """Decode the value behind a key. Raises `ProtocolError`."""
    if isinstance(key, ShareSnapshotKey):
        return read_versioned(ShareSnapshotValue, buffer)
    return read_versioned(ShareUpdateValue, buffer)


def write_share_state_value(value: ShareStateValue) -> bytes:
    return write_versioned(value, _VALUE_VERSION)
