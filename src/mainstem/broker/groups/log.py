"""One partition of `__consumer_offsets` as a log: append records, read them all back, drop a prefix.

Records are Kafka's own, so that public tools can read the topic. Only this log's owner writes to it: an
append that does not land where the last one ended means that somebody else does, and is an error. Records of kinds or
versions that this program does not know are handed on as they are: a later version wrote them, and will want them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from mainstem.broker.groups.config import GroupsConfig
from mainstem.broker.groups.errors import LogUnavailable
from mainstem.broker.groups.result import GroupRecord, LogRecord, OffsetRecord, UnknownRecord
from mainstem.errors import MainstemError
from mainstem.model import AppendResult, BatchAppend, FeatureLevel, Outcome, QueueOffsets, QueueRead
from mainstem.ports import Clock, MessageStore, QueueAdmin
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.consumer_offsets import (
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
    write_key,
    write_offset_with_topic_id,
    write_value,
)
from mainstem.protocol.messages.versioned import write_versioned
from mainstem.protocol.records import (
    NewBatch,
    NewRecord,
    Record,
    build_batch,
    read_records,
    stored_batches,
    verify_checksum,
)

ALL_REPLICAS = -1

BUSY_PAUSE_SECONDS = 0.05
"""Between two tries of an append that the storage is too busy for."""

COMMIT_WAIT_SECONDS = 1.0
"""How long to wait at a time for what was appended before to be committed."""

_EXPIRE_TIMESTAMP_VERSION = 1
"""The one version of an offset commit's value that has a time to live."""

_RECORD_BYTES = 24
"""Lengths and deltas around key and value in a batch, rounded up."""

_CODE_OF_OUTCOME = {
    Outcome.UNKNOWN_QUEUE: ErrorCode.NOT_COORDINATOR,
    Outcome.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    Outcome.FENCED: ErrorCode.NOT_COORDINATOR,
    Outcome.STORAGE_FAILED: ErrorCode.NOT_COORDINATOR,
}
"""What clients are told when an append fails; as in Kafka, COORDINATOR_NOT_AVAILABLE for anything else."""


def encode(record: LogRecord, timestamp_ms: int, level: FeatureLevel) -> NewRecord:
    """A record as it stands in the topic, as programs of this level read it. Raises `ProtocolError` on a value that has
    no encoding."""
    if isinstance(record, UnknownRecord):
        return NewRecord(record.timestamp_ms, record.key, record.value, record.headers)
    value = record.value
    if value is None:
        body = None
    elif isinstance(value, OffsetCommitValue) and level >= FeatureLevel.HARDENED:
        body = write_offset_with_topic_id(value)
    elif isinstance(value, OffsetCommitValue) and value.expire_timestamp >= 0:
        body = write_versioned(value, _EXPIRE_TIMESTAMP_VERSION)
    else:
        body = write_value(value)
    return NewRecord(timestamp_ms, write_key(record.key), body)


def decode(record: Record) -> LogRecord | None:
    """What a record of the topic says; None for one without a key, which can mean nothing. Raises `ProtocolError`."""
    if record.key is None:
        return None
    try:
        key = read_key(record.key)
        if isinstance(key, OffsetCommitKey):
            return OffsetRecord(key, None if record.value is None else read_offset_commit_value(record.value))
        return GroupRecord(key, None if record.value is None else read_group_metadata_value(record.value))
    except UnsupportedVersion:
        return UnknownRecord(record.key, record.value, record.timestamp, record.headers)


class GroupLog:
    """The log of one partition. `end` is where the next record goes; it is known after `read`."""

    def __init__(
        self,
        queue_id: int,
        config: GroupsConfig,
        store: MessageStore,
        queue_admin: QueueAdmin,
        clock: Clock,
        feature_level: Callable[[], FeatureLevel] = FeatureLevel.newest,
    ) -> None:
        self.queue_id = queue_id
        self.end = 0
        self.bytes_read = 0
        self._config = config
        self._store = store
        self._queue_admin = queue_admin
        self._clock = clock
        self._feature_level = feature_level

    @property
    def exists(self) -> bool:
        """Whether there is a queue to keep it in."""
        return self._store.offsets([self.queue_id])[0] is not None

    @property
    def tells_topics(self) -> bool:
        """Whether what is written now says which topic an offset was committed for."""
        return self._feature_level() >= FeatureLevel.HARDENED

    async def read(self) -> AsyncIterator[LogRecord]:
        """Every record, oldest first, once all that was ever appended is either committed or gone.

        Raises `LogUnavailable`, and `ProtocolError` when the log is damaged."""
        offsets = await self._settled()
        position = offsets.log_start
        self.bytes_read = 0
        while position < offsets.high_watermark:
            bytes_max = self._config.load_bytes
            [found] = await self._store.read([QueueRead(self.queue_id, position, bytes_max)], bytes_max)
            if found.outcome is not Outcome.OK or not found.batches:
                raise LogUnavailable(f"reading at offset {position}: {found.outcome.value}")
            for data in found.batches:
                self.bytes_read += len(data)
                for batch in stored_batches(data):
                    verify_checksum(batch.data, batch.header)
                    if batch.header.is_control:
                        continue
                    for record in read_records(batch):
                        known = decode(record) if record.offset >= position else None
                        if known is not None:
                            yield known
            position = found.next_offset
        self.end = position

    async def append(self, records: Sequence[LogRecord]) -> int:
        """Append records and wait until they are committed; returns their size in bytes.

        A busy storage is tried again for a while. Raises `LogUnavailable` when anything may be missing from
        the log then, and `ProtocolError` for a record that has no encoding (nothing is appended then)."""
        batches = list(self._batches(records))
        size_bytes = sum(len(batch.data) for batch in batches)
        deadline = self._clock.monotonic() + self._config.offsets_commit_timeout_ms / 1000
        while True:
            results = await self._store.append([self._append(batch) for batch in batches], ALL_REPLICAS)
            for batch, result in zip(batches, results, strict=True):
                if result.outcome is Outcome.OK:
                    self._landed(batch, result)
            refused = [result.outcome for result in results if result.outcome is not Outcome.OK]
            if not refused:
                return size_bytes
            in_order = all(result.outcome is Outcome.OK for result in results[: -len(refused)])
            busy = all(outcome is Outcome.STORAGE_BUSY for outcome in refused)
            if not (in_order and busy and self._clock.monotonic() < deadline):
                code = _CODE_OF_OUTCOME.get(refused[0], ErrorCode.COORDINATOR_NOT_AVAILABLE)
                raise LogUnavailable(f"appending at offset {self.end}: {refused[0].value}", code)
            batches = batches[-len(refused) :]
            await asyncio.sleep(BUSY_PAUSE_SECONDS)

    async def drop_before(self, offset: int) -> bool:
        """Forget what stands before an offset; False when that was not possible, which does no harm."""
        try:
            starts = await self._queue_admin.truncate({self.queue_id: offset})
        except (MainstemError, OSError):
            return False
        return starts.get(self.queue_id) is not None

    async def _settled(self) -> QueueOffsets:
        """The log's offsets, when nothing is in flight: an append whose fate is unknown may still arrive."""
        while True:
            [offsets] = self._store.offsets([self.queue_id])
            if offsets is None:
                raise LogUnavailable("the queue is not here", ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if offsets.high_watermark >= offsets.end:
                return offsets
            waiting = self._store.wait({self.queue_id: offsets.high_watermark}, 1, COMMIT_WAIT_SECONDS)
            try:
                await waiting
            finally:
                waiting.cancel()

    def _landed(self, batch: NewBatch, result: AppendResult) -> None:
        if result.base_offset != self.end:
            what = f"records meant for offset {self.end} landed at {result.base_offset}: another writer"
            raise LogUnavailable(what, ErrorCode.NOT_COORDINATOR)
        self.end += batch.header.record_count

    def _batches(self, records: Iterable[LogRecord]) -> Iterable[NewBatch]:
        timestamp_ms, level = self._clock.now_ms(), self._feature_level()
        waiting: list[NewRecord] = []
        size_bytes = 0
        for record in records:
            encoded = encode(record, timestamp_ms, level)
            record_bytes = len(encoded.key or b"") + len(encoded.value or b"") + _RECORD_BYTES
            if waiting and size_bytes + record_bytes > self._config.append_bytes_max:
                yield build_batch(waiting)
                waiting, size_bytes = [], 0
            waiting.append(encoded)
            size_bytes += record_bytes
        if waiting:
            yield build_batch(waiting)

    def _append(self, batch: NewBatch) -> BatchAppend:
        header = batch.header
        return BatchAppend(
            queue_id=self.queue_id,
            data=memoryview(batch.data),
            record_count=header.record_count,
            last_offset_delta=header.last_offset_delta,
            max_timestamp=header.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            attributes=header.attributes,
            crc=header.checksum,
        )
