"""The records of one partition of `__share_group_state`, as its machine has them, and their form in the topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.machines.machine_log import LogLimits
from mainstem.broker.machines.result import UnknownRecord
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.model import FeatureLevel
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.share_state_records import (
    ShareSnapshotKey,
    ShareStateKey,
    ShareStateValue,
    ShareUpdateKey,
    read_share_state_key,
    read_share_state_value,
    write_share_state_key,
    write_share_state_value,
)
from mainstem.protocol.records import NewRecord, Record, StoredBatch, read_records


class SharedPartition(NamedTuple):
    """A partition that share groups read."""

    topic_id: UUID
    partition: int


class WindowKey(NamedTuple):
    """A share group and a partition that it reads."""

    group_id: str
    topic_id: UUID
    partition: int

    def of_snapshot(self) -> ShareSnapshotKey:
        return ShareSnapshotKey(group_id=self.group_id, topic_id=self.topic_id, partition=self.partition)

    def of_update(self) -> ShareUpdateKey:
        return ShareUpdateKey(group_id=self.group_id, topic_id=self.topic_id, partition=self.partition)


class StateRecord(NamedTuple):
    """A window, or a change of it; without a value: the window is forgotten."""

    key: ShareStateKey
    value: ShareStateValue | None

    @property
    def window(self) -> WindowKey:
        return WindowKey(self.key.group_id, self.key.topic_id, self.key.partition)


StateLogRecord = StateRecord | UnknownRecord


class ShareStateCodec:
    """`machines.machine_log.RecordCodec` of the share groups."""

    def encode(self, record: StateLogRecord, timestamp_ms: int, level: FeatureLevel) -> NewRecord:
        if isinstance(record, UnknownRecord):
            return NewRecord(record.timestamp_ms, record.key, record.value, record.headers)
        value = None if record.value is None else write_share_state_value(record.value)
        return NewRecord(timestamp_ms, write_share_state_key(record.key), value)

    def decode(self, record: Record) -> StateLogRecord | None:
        if record.key is None:
            return None
        try:
            key = read_share_state_key(record.key)
            return StateRecord(key, None if record.value is None else read_share_state_value(key, record.value))
        except UnsupportedVersion:
            return UnknownRecord(record.key, record.value, record.timestamp, record.headers)

    def decode_all(self, batch: StoredBatch) -> Iterator[StateLogRecord]:
        return (found for record in read_records(batch) if (found := self.decode(record)) is not None)


def limits_of(config: ShareGroupsConfig) -> LogLimits:
    """The bounds of a partition's log."""
    return LogLimits(config.load_bytes, config.append_bytes_max, config.append_timeout_ms / 1000)
