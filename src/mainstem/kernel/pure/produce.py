"""The scan of a Produce body: from bytes to a flat list of checked batches, without an object per field.

Pure-Python twin of the compiled scan; both are one function, `scan_produce`, of the same signature.

Two kinds of wrong are kept apart. A body whose own structure is wrong (lengths beyond the end, trailing
bytes) raises `MalformedProduce`. A partition whose records are wrong gets a `Verdict`, and the others are not
concerned. Every length is checked against the bytes that remain, every array count against the smallest size
of its elements, before anything is made of it.

Records are exactly one batch of format 2, as Kafka demands from version 3 on. What Kafka answers to the
rest, and so do we: nothing, an older format, or more than one batch is an invalid record; a batch that is
shorter than it says, or whose checksum is wrong, is a corrupt message.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import numpy

from mainstem.kernel.errors import MalformedProduce
from mainstem.kernel.layout import Verdict

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13

_COMPRESSION_MASK = 0x07
_COMPRESSION_LAST = 4  # none, gzip, snappy, lz4, zstd
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20

_BATCH = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, base timestamp, max
timestamp, producer id, producer epoch, base sequence, record count."""
_MAGIC_POSITION = 16
_CHECKED_FROM = 21
_LENGTH_OVERHEAD_BYTES = 12
"""What a batch's length field leaves out: the base offset and itself."""

_LARGE_BYTES = 64 * 1024
"""The checksum library takes `bytes` or an array: below this size a copy is the cheaper of the two."""

_TOPIC_BYTES_MIN = 3  # flexible: an empty name, no partitions, no tags
_PARTITION_BYTES_MIN = 6  # flexible: index, null records, no tags

_ENTRIES_MAX = 100_000
"""Topics and partitions of one request. Clients send a few hundred, by their default size (1 MiB) 15,000 at most;
an entry without records is six bytes and costs the event loop some microseconds."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")


class ScannedBatch(NamedTuple):
    """One partition of the request. Everything after `stop` is 0 unless the verdict is OK."""

    partition: int
    verdict: int
    start: int
    """Where the records start in the frame."""
    stop: int
    record_count: int = 0
    last_offset_delta: int = 0
    max_timestamp: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    base_sequence: int = 0
    attributes: int = 0
    crc: int = 0


class ScannedTopic(NamedTuple):
    key: bytes
    """The name in UTF-8 (unchecked), or from version 13 the 16 bytes of the topic id."""
    batch_count: int
    """How many of the scanned batches, in order, are this topic's."""


class ProduceScan(NamedTuple):
    transactional: bool
    """The request names a transactional id."""
    acks: int
    timeout_ms: int
    topics: list[ScannedTopic]
    batches: list[ScannedBatch]


def scan_produce(frame: memoryview, position: int, version: int) -> ProduceScan:
    """Scan the Produce body of a version from 3 to 13 that fills `frame` from `position`.

    Raises MalformedProduce. The result holds no part of the frame but the topic keys, which are copies.
    """
    try:
        scan, stop = _scan(frame, position, version)
    except (IndexError, struct.error):
        raise MalformedProduce(f"a Produce v{version} request of {len(frame)} bytes ends early") from None
    if stop != len(frame):
        raise MalformedProduce(f"a Produce v{version} request has {len(frame) - stop} bytes too many")
    return scan


def _scan(frame: memoryview, position: int, version: int) -> tuple[ProduceScan, int]:
    flexible = version >= FLEXIBLE_FROM
    by_id = version >= TOPIC_IDS_FROM
    topics: list[ScannedTopic] = []
    batches: list[ScannedBatch] = []
    size, position = _text_length(frame, position, flexible)
    transactional = size >= 0
    position += max(size, 0)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    position += _ACKS_AND_TIMEOUT.size
    topic_count, position = _count(frame, position, flexible, _TOPIC_BYTES_MIN)
    if topic_count > _ENTRIES_MAX:
        raise MalformedProduce(f"{topic_count} topics, more than the {_ENTRIES_MAX} a request may have")
    for _ in range(topic_count):
        if by_id:
            size = 16
        else:
            size, position = _text_length(frame, position, flexible)
            if size < 0:
                raise MalformedProduce("a topic name is null")
        key = bytes(frame[position : position + size])
        position += size
        partition_count, position = _count(frame, position, flexible, _PARTITION_BYTES_MIN)
        topics.append(ScannedTopic(key, partition_count))
        if topic_count + len(batches) + partition_count > _ENTRIES_MAX:
            raise MalformedProduce(f"more than {_ENTRIES_MAX} topics and partitions in a request")
        for _ in range(partition_count):
            (partition,) = _I32.unpack_from(frame, position)
            size, position = _length(frame, position + 4, flexible)
            if size > len(frame) - position:
                raise MalformedProduce(f"records claim {size} bytes, {len(frame) - position} remain")
            stop = position + max(size, 0)
            batches.append(_check(frame, partition, position, stop))
            position = _skip_tags(frame, stop) if flexible else stop
        if flexible:
            position = _skip_tags(frame, position)
    if flexible:
        position = _skip_tags(frame, position)
    return ProduceScan(transactional, acks, timeout_ms, topics, batches), position


def _check(frame: memoryview, partition: int, start: int, stop: int) -> ScannedBatch:
    """Judge the records between two positions of the frame."""
    size = stop - start
    if size == 0:
        return ScannedBatch(partition, Verdict.NO_BATCH, start, stop)
    if size <= _MAGIC_POSITION:
        return ScannedBatch(partition, Verdict.BAD_LENGTH, start, stop)
    if frame[start + _MAGIC_POSITION] < 2:
        return ScannedBatch(partition, Verdict.OLD_FORMAT, start, stop)
    if size < _BATCH.size:
        return ScannedBatch(partition, Verdict.BAD_LENGTH, start, stop)
    (
        base_offset, length, _, magic, crc, attributes, last_offset_delta, _, max_timestamp,
        producer_id, producer_epoch, base_sequence, record_count,
    ) = _BATCH.unpack_from(frame, start)  # fmt: skip
    batch_size = length + _LENGTH_OVERHEAD_BYTES
    unnumbered = producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0)
    verdict = Verdict.OK
    if batch_size > size or batch_size < _BATCH.size or magic != 2:
        verdict = Verdict.BAD_LENGTH
    elif batch_size < size:
        verdict = Verdict.MANY_BATCHES
    elif crc != _crc32c(frame, start + _CHECKED_FROM, stop):
        verdict = Verdict.BAD_CHECKSUM
    elif record_count < 1 or record_count != last_offset_delta + 1:
        verdict = Verdict.BAD_COUNT
    elif base_offset != 0 or producer_id < -1 or unnumbered:
        verdict = Verdict.BAD_FIELD
    elif attributes & _COMPRESSION_MASK > _COMPRESSION_LAST:
        verdict = Verdict.BAD_COMPRESSION
    elif attributes & _CONTROL_BIT:
        verdict = Verdict.CONTROL
    elif attributes & _TRANSACTIONAL_BIT:
        verdict = Verdict.TRANSACTIONAL
    if verdict is not Verdict.OK:
        return ScannedBatch(partition, verdict, start, stop)
    return ScannedBatch(
        partition, Verdict.OK, start, stop, record_count, last_offset_delta, max_timestamp,
        producer_id, producer_epoch, base_sequence, attributes, crc,
    )  # fmt: skip


def _crc32c(frame: memoryview, start: int, stop: int) -> int:
    if stop - start < _LARGE_BYTES:
        checksum: int = google_crc32c.value(bytes(frame[start:stop]))
    else:
        checksum = google_crc32c.value(numpy.frombuffer(frame[start:stop], numpy.uint8))
    return checksum


def _unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedProduce("a variable-length number exceeds 32 bits")


def _length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of records (-1: null) and the position after it."""
    if flexible:
        value, position = _unsigned_varint(frame, position)
        return value - 1, position
    (value,) = _I32.unpack_from(frame, position)
    if value < -1:
        raise MalformedProduce(f"a length is {value}")
    return value, position + 4


def _text_length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of a string (-1: null), checked against the end, and the position after it."""
    if flexible:
        value, position = _unsigned_varint(frame, position)
        value -= 1
    else:
        (value,) = _I16.unpack_from(frame, position)
        position += 2
    if not -1 <= value <= len(frame) - position:
        raise MalformedProduce(f"a string claims {value} bytes, {len(frame) - position} remain")
    return value, position


def _count(frame: memoryview, position: int, flexible: bool, bytes_min: int) -> tuple[int, int]:
    """The count of an array whose elements take `bytes_min` or more, and the position after it."""
    value, position = _length(frame, position, flexible)
    if value < 0 or value * bytes_min > len(frame) - position:
        raise MalformedProduce(f"an array claims {value} elements in {len(frame) - position} bytes")
    return value, position


def _skip_tags(frame: memoryview, position: int) -> int:
    if frame[position] == 0:  # no tags, as nearly always
        return position + 1
    count, position = _unsigned_varint(frame, position)
    for _ in range(count):  # each turn consumes two bytes or more, so the input bounds the loop
        _, position = _unsigned_varint(frame, position)
        size, position = _unsigned_varint(frame, position)
        if size > len(frame) - position:
            raise MalformedProduce(f"a tagged field claims {size} bytes, {len(frame) - position} remain")
        position += size
    return position
