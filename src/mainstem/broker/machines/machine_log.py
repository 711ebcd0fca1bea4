"""One partition of an internal topic as a log: append records, read them all back, drop a prefix.

Only this log's owner writes to it: reading the log
makes the reader its owner, and an append of an owner before is refused before any of it lands (`QueueAdmin.own`). As a
second check, an append that does not land where the last one ended is an error.

The log has every offset from its start on, so a skipped offset is as lost as an unreadable one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mainstem.broker.errors import LogUnavailable, Unreadable
from mainstem.errors import LeaderMissing, MainstemError
from mainstem.model import AppendResult, FeatureLevel, Outcome, QueueOffsets, QueueRead
from mainstem.ports import Clock, MessageStore, QueueAdmin
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.records import (
    NewBatch,
    NewRecord,
    Record,
    StoredBatch,
    build_batch,
    read_records,
    stored_batches,
    verify_checksum,
)

ALL_REPLICAS = -1

BUSY_PAUSE_SECONDS = 0.05
"""Between two tries of an append that the storage is too busy for."""

COMMIT_WAIT_SECONDS = 1.0
"""How long to wait at a time until earlier appends are committed."""

SMALLER = 16
"""The size of a read is divided by this where part of it cannot be read, down to a batch, and then doubles
again."""

ENCODED_AT_ONCE = 500
"""Records encoded in one turn of the event loop: about five milliseconds."""
DECODED_AT_ONCE = 256
"""Records decoded in one turn of the event loop: about four milliseconds."""
_RECORD_BYTES = 24
"""Lengths and deltas around key and value in a batch, rounded up."""

_CODE_OF_OUTCOME = {
    Outcome.UNKNOWN_QUEUE: ErrorCode.NOT_COORDINATOR,
    Outcome.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    Outcome.FENCED: ErrorCode.NOT_COORDINATOR,
    Outcome.STORAGE_FAILED: ErrorCode.NOT_COORDINATOR,
}
"""The codes that clients get when an append fails; as in Kafka, COORDINATOR_NOT_AVAILABLE for all other
outcomes."""


R = TypeVar("R")
"""A machine's records."""


class Pause:
    """Stands between two slices of one long record."""


PAUSE = Pause()


class RecordCodec(Protocol[R]):
    """The form of a machine's records in its topic."""

    def encode(self, record: R, timestamp_ms: int, level: FeatureLevel) -> NewRecord | Generator[None, None, NewRecord]:
        """A record as programs of this level read it; a generator of it, which yields whenever it is time for a turn of
        the event loop, where that takes long. Raises `ProtocolError` on a value that has no encoding."""
        ...

    def decode(self, record: Record) -> R | None:
        """The content of a record of the topic; None for one without a meaning. Raises `ProtocolError`."""
        ...

    def decode_all(self, batch: StoredBatch) -> Iterator[Any]:
        """The contents of all records of a batch that have a meaning, in order, in any form that the machine replays;
        a `Pause` wherever it is time for a turn of the event loop in the middle of a record.
        Raises `ProtocolError`."""
        ...


class LogLimits(NamedTuple):
    """The bounds of one log's reads and appends."""

    load_bytes: int
    """Read at once."""
    append_bytes_max: int
    """In one batch, unless a single record is larger."""
    commit_seconds: float
    """For how long an append is repeated while the storage is busy, and requests wait for one that is under way."""


class Gap(NamedTuple):
    """The offsets from `start` to before `end`, which cannot be read."""

    start: int
    end: int
    why: str


class _Piece(NamedTuple, Generic[R]):
    """Records of whole batches, with the offset behind them."""

    records: list[R]
    next_offset: int
    bytes_read: int


class MachineLog(Generic[R]):
    """The log of one partition. `end` is the offset of the next record; it is known after `read`."""

    def __init__(
        self,
        queue_id: int,
        codec: RecordCodec[R],
        limits: LogLimits,
        store: MessageStore,
        queue_admin: QueueAdmin,
        clock: Clock,
        feature_level: Callable[[], FeatureLevel] = FeatureLevel.newest,
    ) -> None:
        self.queue_id = queue_id
        self.end = 0
        self.bytes_read = 0
        self._owner_epoch: int | None = None
        self._decoded = 0
        self._codec = codec
        self._limits = limits
        self._store = store
        self._queue_admin = queue_admin
        self._clock = clock
        self._feature_level = feature_level

    @property
    def commit_seconds(self) -> float:
        """For how long an append may take before those that wait for it are told to come again."""
        return self._limits.commit_seconds

    async def exists(self) -> bool:
        """Whether the log's queue exists."""
        return (await self._store.offsets([self.queue_id]))[0] is not None

    async def read(self, *, over_gaps: bool = False) -> AsyncIterator[R | Gap]:
        """Own the log, then yield every record, oldest first, once each earlier append is either committed or gone.
        With `over_gaps` a `Gap` stands for what cannot be read; else `Unreadable` is raised.

        Raises `LogUnavailable`."""
        self._owner_epoch = await self._own()
        offsets = await self._settled()
        position, end = offsets.log_start, offsets.high_watermark
        self.bytes_read = 0
        bytes_max = self._limits.load_bytes
        while position < end:
            try:
                piece = await self._piece(position, bytes_max)
            except Unreadable as damage:
                if not over_gaps:
                    raise
                if bytes_max > 1:  # the damage may lie further on, in the bytes read together
                    bytes_max = max(bytes_max // SMALLER, 1)
                    continue
                readable = await self._next_readable(position, end)
                yield Gap(position, readable, damage.why)
                position = readable
                continue
            self.bytes_read += piece.bytes_read
            bytes_max = min(2 * bytes_max, self._limits.load_bytes)
            for record in piece.records:
                yield record
            position = piece.next_offset
        self.end = position

    async def confirm_owner(self) -> None:
        """Raises `LeaderMissing` where the log that was read here has another owner by now."""
        if self._owner_epoch is not None:
            await self._queue_admin.own(self.queue_id, held=self._owner_epoch)

    async def readable(self, offset: int) -> bool:
        """Whether the batch that holds this offset can be read. Raises `LogUnavailable` where nothing can be
        read now."""
        try:
            await self._piece(offset, 1)
        except Unreadable:
            return False
        return True

    async def append(self, records: Sequence[R]) -> int:
        """Append records and wait until they are committed; returns their size in bytes.

        The append is repeated for a while if the storage is busy. Raises `LogUnavailable` when the log may lack any
        of the records after that, and `ProtocolError` for a record that has no encoding (nothing is appended
        then)."""
        batches = await self._batches(records)
        size_bytes = sum(len(batch.data) for batch in batches)
        deadline = self._clock.monotonic() + self._limits.commit_seconds
        while True:
            appends = [batch.to_append(self.queue_id) for batch in batches]
            results = await self._store.append(appends, ALL_REPLICAS, owner_epoch=self._owner_epoch)
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
        """Drop the records before an offset; False when that was not possible, which does no harm."""
        try:
            starts = await self._queue_admin.truncate({self.queue_id: offset})
        except (MainstemError, OSError):
            return False
        return isinstance(starts.get(self.queue_id), int)

    async def _piece(self, position: int, bytes_max: int) -> _Piece[R]:
        """The whole batches from the one that holds this offset on; at least that one."""
        [found] = await self._store.read([QueueRead(self.queue_id, position, bytes_max)], bytes_max)
        if found.outcome is Outcome.STORAGE_FAILED or (found.outcome is Outcome.OK and not found.batches):
            raise Unreadable(position, found.outcome.value)
        if found.outcome is not Outcome.OK:
            raise LogUnavailable(f"reading at offset {position}: {found.outcome.value}")
        records: list[R] = []
        next_offset = position
        bytes_read = 0
        try:
            for data in found.batches:
                for batch in stored_batches(data):
                    header = batch.header
                    if header.base_offset > next_offset:
                        raise Unreadable(next_offset, f"what follows begins at offset {header.base_offset}")
                    records += await self._records(batch, position)
                    next_offset = header.base_offset + header.last_offset_delta + 1
                bytes_read += len(data)
        except Unreadable:
            if next_offset == position:
                raise
        except ProtocolError as error:
            if next_offset == position:
                raise Unreadable(position, str(error)) from error
        return _Piece(records, next_offset, bytes_read)

    async def _records(self, batch: StoredBatch, position: int) -> list[R]:
        """The records of a batch from an offset on, decoded in turns of the event loop. Raises `ProtocolError` when it
        is damaged."""
        verify_checksum(batch.data, batch.header)
        if batch.header.is_control:
            return []
        found: list[R] = []
        all_of_it = batch.header.base_offset >= position
        for decoded in self._codec.decode_all(batch) if all_of_it else self._decoded_from(batch, position):
            if decoded is PAUSE:
                await asyncio.sleep(0)
            elif decoded is not None:
                found.append(decoded)
            self._decoded += 1  # over all batches, most of which may have few records
            if self._decoded % DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def _decoded_from(self, batch: StoredBatch, position: int) -> Iterator[R | None]:
        """The records of a batch from an offset within it on."""
        for record in read_records(batch):
            yield self._codec.decode(record) if record.offset >= position else None

    async def _next_readable(self, position: int, end: int) -> int:
        """The first offset behind a damage from which on the log can be read; `end`: no offset behind it can.
        The search takes ever larger steps, so a few batches between two damages may count as lost with
        them."""
        unreadable, step = position, 1
        while True:
            candidate = min(position + step, end)
            if candidate == end or await self.readable(candidate):
                break
            unreadable, step = candidate, 2 * step
        while candidate - unreadable > 1:
            middle = (unreadable + candidate) // 2
            if await self.readable(middle):
                candidate = middle
            else:
                unreadable = middle
        return candidate

    async def _own(self) -> int:
        try:
            return await self._queue_admin.own(self.queue_id)
        except LeaderMissing as elsewhere:
            raise LogUnavailable(f"the log cannot be owned: {elsewhere}", ErrorCode.NOT_COORDINATOR) from elsewhere
        except (MainstemError, OSError) as error:
            raise LogUnavailable(f"the log cannot be owned: {error}") from error

    async def _settled(self) -> QueueOffsets:
        """The log's offsets, once nothing is in flight: an append whose fate is unknown may still arrive."""
        while True:
            [offsets] = await self._store.offsets([self.queue_id])
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

    async def _batches(self, records: Sequence[R]) -> list[NewBatch]:
        """The records encoded, in turns of the event loop: one event may have one for each of thousands of members."""
        timestamp_ms, level = self._clock.now_ms(), self._feature_level()
        batches: list[NewBatch] = []
        waiting: list[NewRecord] = []
        size_bytes = 0
        for count, record in enumerate(records, 1):
            encoded = await _in_turns(self._codec.encode(record, timestamp_ms, level))
            record_bytes = len(encoded.key or b"") + len(encoded.value or b"") + _RECORD_BYTES
            if waiting and size_bytes + record_bytes > self._limits.append_bytes_max:
                batches.append(build_batch(waiting))
                waiting, size_bytes = [], 0
            waiting.append(encoded)
            size_bytes += record_bytes
            if count % ENCODED_AT_ONCE == 0 and count < len(records):
                await asyncio.sleep(0)
        if waiting:
            batches.append(build_batch(waiting))
        return batches


async def _in_turns(encoded: NewRecord | Generator[None, None, NewRecord]) -> NewRecord:
    if isinstance(encoded, NewRecord):
        return encoded
    while True:
        try:
            next(encoded)
        except StopIteration as end:
            record: NewRecord = end.value
            return record
        await asyncio.sleep(0)
