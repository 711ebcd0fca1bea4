"""The topic `__consumer_offsets`: how it is made, and the form of the records of groups in it.

Records are Kafka's own, so that public tools can read the topic. Records of kinds or versions that this program does
not know are handed on as they are: a later version wrote them, and will want them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.offset_scan import key_bytes, written_offset
from mainstem.broker.consumer_groups.step import (
    ConsumerGroupRecord,
    LogRecord,
    MemberRead,
    ModernRecord,
    OffsetRecord,
    PendingRecord,
    ReadRecord,
    ShareRecord,
    StreamsRecord,
    WrittenOffset,
)
from mainstem.broker.machines.coordinator_topic import InternalTopic
from mainstem.broker.machines.machine_log import PAUSE, LogLimits, Pause
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
    is_group_metadata_key,
    read_group_metadata_in_slices,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
    write_group_metadata_in_slices,
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

LONG_RECORD_BYTES = 64 * 1024
"""Of a group of some five hundred members: a millisecond to decode, and two to replay."""

LONG_RECORD_MEMBERS = 500
"""A millisecond to encode, unless they subscribe to very much."""

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

    def encode(
        self, record: ReadRecord, timestamp_ms: int, level: FeatureLevel
    ) -> NewRecord | Generator[None, None, NewRecord]:
        if isinstance(record, ConsumerGroupRecord):
            value = record.value
            if value is not None and len(value.members) >= LONG_RECORD_MEMBERS:
                return _encode_long(record.key, value, timestamp_ms)
        return encode(record, timestamp_ms, level)

    def decode(self, record: Record) -> LogRecord | None:
        return decode(record)

    def decode_all(self, batch: StoredBatch) -> Iterator[ReadRecord | MemberRead | Pause]:
        found: Iterator[ReadRecord | Record] = scan_records(batch, written_offset, _decode_if_short)
        for read in found:
            if isinstance(read, Record):
                yield from _decode_long(read)
            else:
                yield read


def _decode_if_short(record: Record) -> LogRecord | Record | None:
    """The record itself where it takes more than a turn of the event loop to decode it and to replay it."""
    if record.value is None or len(record.value) < LONG_RECORD_BYTES or not is_group_metadata_key(record.key):
        return decode(record)
    return record


def _decode_long(record: Record) -> Iterator[LogRecord | MemberRead | Pause]:
    """The record of a large group, behind its members."""
    assert record.key is not None
    assert record.value is not None
    slices = read_group_metadata_in_slices(record.value)
    try:
        while True:
            try:
                next(slices)
            except StopIteration as end:
                value: GroupMetadataValue = end.value
                break
            yield PAUSE
    except UnsupportedVersion:
        yield UnknownRecord(record.key, record.value, record.timestamp, record.headers)
        return
    key = read_versioned(GroupMetadataKey, record.key)
    for number in range(len(value.members)):
        yield MemberRead(key, value, number)
    yield ConsumerGroupRecord(key, value)


def _encode_long(
    key: GroupMetadataKey, value: GroupMetadataValue, timestamp_ms: int
) -> Generator[None, None, NewRecord]:
    body = yield from write_group_metadata_in_slices(value)
    return NewRecord(timestamp_ms, write_key(key), body)


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
