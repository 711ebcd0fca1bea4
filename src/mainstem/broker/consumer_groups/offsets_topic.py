"""The topic `__consumer_offsets`: how it is made, and the form of the records of groups in it.

Records are Kafka's own, so that public tools can read the topic. Records of kinds or versions that this program does
not know are handed on as they are: a later version wrote them, and will want them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.offset_scan import key_bytes, written_offset
from mainstem.broker.consumer_groups.step import (
    ConsumerGroupRecord,
    LogRecord,
    ModernRecord,
    OffsetRecord,
    PendingRecord,
    ReadRecord,
    ShareRecord,
    StreamsRecord,
    WrittenOffset,
)
from mainstem.broker.machines.coordinator_topic import InternalTopic
from mainstem.broker.machines.machine_log import LogLimits
from mainstem.broker.machines.result import UnknownRecord
from mainstem.kernel import untrack
from mainstem.model import FeatureLevel
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.consumer_group_records import MODERN_RECORDS
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetKey,
    PendingOffsetValue,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
    write_key,
    write_offset_with_topic_id,
    write_value,
)
from mainstem.protocol.messages.share_group_records import (
    SHARE_RECORDS,
    ShareKey,
    ShareValue,
)
from mainstem.protocol.messages.streams_group_records import (
    STREAMS_RECORDS,
    StreamsKey,
    StreamsValue,
)
from mainstem.protocol.messages.versioned import read_versioned, write_versioned
from mainstem.protocol.records import NewRecord, Record, StoredBatch, scan_records

OFFSETS_TOPIC = "__consumer_offsets"

_EXPIRE_TIMESTAMP_VERSION = 1
"""The one version of an offset commit's value that has a time to live."""


def offsets_topic(config: ConsumerGroupsConfig) -> InternalTopic:
    return InternalTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_partitions,
        config.offsets_topic_replication_factor,
        keeper="consumer group coordinator",
    )


def limits_of(config: ConsumerGroupsConfig) -> LogLimits:
    """The bounds of a partition's log."""
    return LogLimits(config.load_bytes, config.append_bytes_max, config.offsets_commit_timeout_ms / 1000)


class OffsetsTopicCodec:
    """`machines.machine_log.RecordCodec` of the consumer groups."""

    def encode(self, record: ReadRecord, timestamp_ms: int, level: FeatureLevel) -> NewRecord:
        return encode(record, timestamp_ms, level)

    def decode(self, record: Record) -> LogRecord | None:
        return decode(record)

    def decode_all(self, batch: StoredBatch) -> Iterator[ReadRecord]:
        return scan_records(batch, written_offset, decode)


def encode(record: ReadRecord, timestamp_ms: int, level: FeatureLevel) -> NewRecord:
    """A record in the form of the topic, as programs of this level read it. Raises `ProtocolError` on a value
    that has no encoding."""
    if isinstance(record, WrittenOffset):
        if level >= FeatureLevel.HARDENED:  # as it was when this was written
            return NewRecord(timestamp_ms, key_bytes(record), record.value)
        key = OffsetCommitKey(group=record.group, topic=record.topic, partition=record.partition)
        record = OffsetRecord(key, read_offset_commit_value(record.value))
    if isinstance(record, UnknownRecord):
        return NewRecord(record.timestamp_ms, record.key, record.value, record.headers)
    value = record.value
    if value is None:
        body = None
    elif isinstance(value, PendingOffsetValue):
        body = write_versioned(value, 0)
    elif isinstance(value, ShareValue):
        body = SHARE_RECORDS.write_value(value)
    elif isinstance(value, StreamsValue):
        body = STREAMS_RECORDS.write_value(value)
    elif not isinstance(value, OffsetCommitValue | GroupMetadataValue):
        body = MODERN_RECORDS.write_value(value)
    elif isinstance(value, OffsetCommitValue) and level >= FeatureLevel.HARDENED:
        body = write_offset_with_topic_id(value)
    elif isinstance(value, OffsetCommitValue) and value.expire_timestamp >= 0:
        body = write_versioned(value, _EXPIRE_TIMESTAMP_VERSION)
    else:
        body = write_value(value)
    return NewRecord(timestamp_ms, write_key(record.key), body)


def decode(record: Record) -> LogRecord | None:
    """The content of a record of the topic; None for a record without a key, which has no meaning. Raises
    `ProtocolError`."""
    if record.key is None:
        return None
    try:
        key = read_key(record.key)
        if isinstance(key, OffsetCommitKey):
            offset = OffsetRecord(key, None if record.value is None else read_offset_commit_value(record.value))
            untrack(offset)  # of messages; some hundred thousand are read together while a node starts
            return offset
        if isinstance(key, PendingOffsetKey):
            pending = None if record.value is None else read_versioned(PendingOffsetValue, record.value)
            return PendingRecord(key, pending)
        if isinstance(key, ShareKey):
            return ShareRecord(key, None if record.value is None else SHARE_RECORDS.read_value(key, record.value))
        if isinstance(key, StreamsKey):
            return StreamsRecord(key, None if record.value is None else STREAMS_RECORDS.read_value(key, record.value))
        if not isinstance(key, GroupMetadataKey):
            return ModernRecord(key, None if record.value is None else MODERN_RECORDS.read_value(key, record.value))
        return ConsumerGroupRecord(key, None if record.value is None else read_group_metadata_value(record.value))
    except UnsupportedVersion:
        return UnknownRecord(record.key, record.value, record.timestamp, record.headers)
