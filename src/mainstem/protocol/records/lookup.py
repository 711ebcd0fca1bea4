"""Finding records by timestamp, for ListOffsets; and whether all records of a batch have a key (`keys_of`), which
compacted topics ask for, as compaction keeps the latest record of each.

Batches whose max timestamp rules them out are skipped by their header. Of one that decides, the kernel walks the
records in place; only a compressed one is inflated. The findings of a walk answer every later question for a time in
most batches, and is small: the records that are later than all before them, of which one is the answer.

A batch that cannot be read, or inflates to more than it may, counts as a whole: it is answered with its first offset
and the timestamp its header claims. A reader that goes there begins earlier than it need, and misses nothing.

Control batches hold no messages: a search for a time passes them over. The latest record of a queue may be one, as in
Kafka, since an index that has a batch's largest timestamp does not tell the kind of the batch.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mainstem.kernel import KEY_ROW_BYTES, RecordKind, first_keyless, key_rows, walk_timestamps
from mainstem.kernel.batch_header import HEADER_BYTES
from mainstem.model import Buffer, TimestampType
from mainstem.protocol.errors import ProtocolError, RecordsTooLarge
from mainstem.protocol.records.batch import StoredBatch
from mainstem.protocol.records.compression import Compression, decompress, inflated_bytes_max
from mainstem.protocol.records.header import read_batch_header

RISING_MAX = 16
"""Kept of a batch: about 2 KB. A batch that was produced within 16 ms has no more, whatever its size."""

_ANY_TIMESTAMP = -(1 << 63)


class RecordPosition(NamedTuple):
    """The offset of a record and the timestamp (ms) by which it was found."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The findings of one walk over the records of a batch, from some offset on."""

    found: RecordPosition | None
    """The record that was looked for."""
    greatest: RecordPosition | None
    rising: tuple[RecordPosition, ...]
    """The records later than all before them, at most `RISING_MAX`."""
    complete: bool
    """`rising` has all of them."""
    damaged: bool = False
    """Behind these there is more, which cannot be read."""

    def answers(self, timestamp: int) -> bool:
        """Whether `first` is right for this timestamp, too."""
        if self.complete:
            return True
        if not self.damaged and (self.greatest is None or timestamp > self.greatest.timestamp):
            return True
        return bool(self.rising) and timestamp <= self.rising[-1].timestamp

    def first(self, timestamp: int) -> RecordPosition | None:
        """The first record with at least this timestamp."""
        return next((position for position in self.rising if position.timestamp >= timestamp), None)


def look_into(batch: StoredBatch, timestamp: int, offset_min: int) -> BatchTimes:
    """Walk the records of a batch for the first one at `offset_min` or later with at least this timestamp."""
    header = batch.header
    base = header.base_offset
    log_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    try:
        payload = memoryview(batch.data)[HEADER_BYTES:]
        body = decompress(header.compression, payload, inflated_bytes_max(len(payload)))
    except ProtocolError:
        return _as_a_whole(batch, offset_min)
    first_at = header.max_timestamp if log_append_time else header.base_timestamp
    looked_for = _ANY_TIMESTAMP if log_append_time else timestamp - header.base_timestamp
    walk = walk_timestamps(body, header.record_count, looked_for, max(offset_min - base, 0), RISING_MAX)
    if walk.damaged_at >= 0 and walk.found is None:
        return _as_a_whole(batch, offset_min)

    def position(place: tuple[int, int]) -> RecordPosition:
        return RecordPosition(base + place[0], first_at if log_append_time else first_at + place[1])

    found = None if walk.found is None else position(walk.found)
    if log_append_time:  # all records have one time, so the first is the answer to everything
        late_enough = found is not None and found.timestamp >= timestamp
        return BatchTimes(found if late_enough else None, found, () if found is None else (found,), True)
    rising = tuple([position(place) for place in walk.rising])
    greatest = None if walk.greatest is None else position(walk.greatest)
    damaged = walk.damaged_at >= 0
    return BatchTimes(found, greatest, rising, walk.all_rising and not damaged, damaged)


def find_timestamp(batches: Iterable[StoredBatch], timestamp: int, offset_min: int = 0) -> RecordPosition | None:
    """The first record at `offset_min` or later whose timestamp is at least `timestamp`; None if there is none."""
    for batch in batches:
        if may_have(batch, timestamp, offset_min):
            found = look_into(batch, timestamp, offset_min).found
            if found is not None:
                return found
    return None


def find_max_timestamp(batches: Iterable[StoredBatch], offset_min: int = 0) -> RecordPosition | None:
    """The record at `offset_min` or later with the greatest timestamp, the first of them if there are several; None if
    there are no records. A marker of a transaction is one."""
    best: RecordPosition | None = None
    for batch in batches:
        if may_be_latest(batch, _ANY_TIMESTAMP if best is None else best.timestamp + 1, offset_min):
            greatest = look_into(batch, _ANY_TIMESTAMP, offset_min).greatest
            if greatest is not None and (best is None or greatest.timestamp > best.timestamp):
                best = greatest
    return best


def may_have(batch: StoredBatch, timestamp: int, offset_min: int) -> bool:
    """Whether a batch's header allows for a message at `offset_min` or later with at least this timestamp."""
    return not batch.header.is_control and may_be_latest(batch, timestamp, offset_min)


def may_be_latest(batch: StoredBatch, timestamp: int, offset_min: int) -> bool:
    """Whether a batch's header allows for a record at `offset_min` or later, be it a message or a marker, with at least
    this timestamp."""
    return batch.header.max_timestamp >= timestamp and batch.header.last_offset >= offset_min


def _as_a_whole(batch: StoredBatch, offset_min: int) -> BatchTimes:
    header = batch.header
    position = RecordPosition(max(header.base_offset, offset_min), header.max_timestamp)
    return BatchTimes(position, position, (position,), True)


class Keys(enum.Enum):
    ALL = "all records have one"
    MISSING = "a record has none"
    UNREADABLE = "the records cannot be read"
    TOO_LARGE = "the records inflate to more than may be"


def is_compressed(data: Buffer) -> bool:
    """Whether the batch, whose header was checked before, is compressed."""
    return read_batch_header(data).compression_code != Compression.NONE


def keys_of(data: Buffer, bytes_max: int | None = None) -> tuple[Keys, int]:
    """Look into a batch, inflating at most so many bytes; None: as many as a batch of its size may inflate to. Also
    returns how many bytes of records there were to look into."""
    try:
        header = read_batch_header(data)
        payload = memoryview(data)[HEADER_BYTES:]
        allowed = inflated_bytes_max(len(payload))
        body = decompress(header.compression, payload, allowed if bytes_max is None else min(bytes_max, allowed))
    except RecordsTooLarge:
        return Keys.TOO_LARGE, 0
    except ProtocolError:
        return Keys.UNREADABLE, 0
    keyless, damaged_at = first_keyless(body, header.record_count)
    if damaged_at >= 0:
        return Keys.UNREADABLE, len(body)
    return (Keys.MISSING if keyless >= 0 else Keys.ALL), len(body)


KEYLESS_NAMED_MAX = 1_000
"""Records of a batch that are told by their numbers: some KB of an answer."""
_RECORDS_LOOKED_INTO_MAX = 100_000
"""Of a batch whose records are told one by one; a row of `KEY_ROW_BYTES` each is held meanwhile."""
_PLACE = struct.Struct("=6q")
_ANY_KEY = bytes(16)


def keyless_records(data: Buffer) -> tuple[int, ...]:
    """The numbers of the records of a batch that have no key, the first `KEYLESS_NAMED_MAX` of them; of a batch that
    cannot be read, or has too many records, none are told."""
    try:
        header = read_batch_header(data)
        if header.record_count > _RECORDS_LOOKED_INTO_MAX:
            return ()
        payload = memoryview(data)[HEADER_BYTES:]
        body = decompress(header.compression, payload, inflated_bytes_max(len(payload)))
    except ProtocolError:
        return ()
    place = _PLACE.pack(0, len(body), header.record_count, 0, header.last_offset_delta, 0)
    rows, counts = bytearray(max(header.record_count, 0) * KEY_ROW_BYTES), bytearray(8)
    if key_rows(body, place, _ANY_KEY, rows, counts) != header.record_count:
        return ()
    kinds = bytes(rows[KEY_ROW_BYTES - 1 :: KEY_ROW_BYTES])
    found: list[int] = []
    number = kinds.find(RecordKind.NO_KEY)
    while number >= 0 and len(found) < KEYLESS_NAMED_MAX:
        found.append(number)
        number = kinds.find(RecordKind.NO_KEY, number + 1)
    return tuple(found)
