"""Batches without the records that go, and tombstones' delete horizons.

Whether a record stays is told by its offset. Of a batch that is judged, a record with a key stays when its offset is
among those given, and one without a key always. A batch of which nothing goes keeps its bytes, and so does one whose
records cannot be read; one of which everything goes is left out. Else it keeps all of its header but the length, the
checksum, the number of records and, unless the log's clock stamped it, the largest timestamp, which is of those left.

If a tombstone stays in a batch without a delete horizon, the batch gets one: bit 6 of its attributes, and the horizon
as its base timestamp. The timestamps of its records are then told as differences from that (modulo 2^64, as Java reads
them) and stay what they are."""

from __future__ import annotations

import enum

from mainstem.kernel.batch_header import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CHECKED_FROM,
    CHECKSUM,
    CHECKSUM_AT,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH,
    LENGTH_AT,
    LENGTH_EXCLUDES,
    LOG_APPEND_TIME_BIT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT,
    RECORD_COUNT_AT,
    TIMESTAMP,
)
from mainstem.kernel.layout import RECORD_BYTES_MIN, RULING_FIELDS, SIEVED_FIELDS
from mainstem.kernel.pure.checksum import crc32c
from mainstem.kernel.pure.extent_moves import WALK_FIELDS
from mainstem.kernel.pure.placed_record import PlacedRecord, read_record, signed_bytes
from mainstem.model import Buffer

_BATCH_BYTES_MAX = (1 << 31) - 1


class _Outcome(enum.Enum):
    AS_IT_IS = enum.auto()
    CHANGES = enum.auto()
    GOES = enum.auto()
    DIFFERS = enum.auto()


def sieve_batches(content: Buffer, batches: Buffer, rulings: Buffer, kept: Buffer, out: Buffer, results: Buffer) -> int:
    """Write what stays of plain batches into `out`, one after the other, and a row of `SIEVED_FIELDS` native i64 into
    `results` for each batch of which something does. The number of these; minus one, minus the number of a batch that
    is not what was scanned: it lacks a record that stays, or changes and fails its checksum.

    `batches`: rows as `walk_batches` writes them. `rulings`: a row of `RULING_FIELDS` native i64 per batch: a range of
    `kept`, the offsets that stay, rising within a batch; its first negative: the batch is not judged; and the delete
    horizon in ms that its tombstones get unless they have one, negative: none. Control batches are not judged. `out`
    has room for all batches, and for `RECORD_GROWTH_MAX` more for each record of those that may get a horizon.
    ValueError when something lies outside of what there is."""
    view, target = memoryview(content).cast("B"), memoryview(out).cast("B")
    rows, ruled = (memoryview(numbers).cast("B").cast("q") for numbers in (batches, rulings))
    offsets, found = (memoryview(numbers).cast("B").cast("q") for numbers in (kept, results))
    if len(rows) % WALK_FIELDS or len(ruled) * WALK_FIELDS != RULING_FIELDS * len(rows):
        raise ValueError("batches have seven fields, and rulings three")
    if len(found) // SIEVED_FIELDS < len(rows) // WALK_FIELDS:
        raise ValueError("results have eight fields, and offsets 8 bytes")
    done = staying = 0
    for number in range(len(rows) // WALK_FIELDS):
        position, length = rows[number * WALK_FIELDS], rows[number * WALK_FIELDS + 1]
        first, end, horizon_ms = ruled[RULING_FIELDS * number : RULING_FIELDS * (number + 1)]
        if position < 0 or length < HEADER_BYTES or length > len(view) - position:
            raise ValueError("a batch lies outside of the content")
        batch = view[position : position + length]
        made: Buffer | None = batch
        if first >= 0 and not ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)[0] & CONTROL_BIT:
            if end < first or end > len(offsets):
                raise ValueError("a batch's offsets are not among those that stay")
            outcome, plain = _sieve(batch, batch[HEADER_BYTES:], offsets[first:end], horizon_ms)
            if outcome in (_Outcome.CHANGES, _Outcome.GOES):
                (checksum,) = CHECKSUM.unpack_from(batch, CHECKSUM_AT)
                if crc32c(batch[CHECKED_FROM:]) != checksum or len(plain) > _BATCH_BYTES_MAX:
                    outcome = _Outcome.DIFFERS
            if outcome is _Outcome.DIFFERS:
                return -1 - number
            if outcome is _Outcome.CHANGES:
                LENGTH.pack_into(plain, LENGTH_AT, len(plain) - LENGTH_EXCLUDES)
                CHECKSUM.pack_into(plain, CHECKSUM_AT, crc32c(plain[CHECKED_FROM:]))
                made = plain
            elif outcome is _Outcome.GOES:
                made = None
        if made is None:
            continue
        if len(made) > len(target) - done:
            raise ValueError("there is no room for a batch")
        target[done : done + len(made)] = made
        fields = HEADER.unpack_from(made)
        result = (done, len(made), fields[0], fields[0] + fields[6], fields[8], fields[12], fields[2], number)
        for at, value in enumerate(result):
            found[staying * SIEVED_FIELDS + at] = value
        staying += 1
        done += len(made)
    return staying


def sieve_records(header: Buffer, records: Buffer, kept: Buffer, horizon_ms: int, out: Buffer) -> int:
    """The same for one batch whose records were compressed: write its new header, but for length and checksum, and
    behind it the records that stay, plain, into `out`. The bytes of both; 0: nothing stays; -1: the batch stays as it
    is; -2: it is not what was scanned. `header`: the batch, or the beginning of it. `records`: plain. `kept`: offsets
    of this batch, native i64. `horizon_ms` and the room in `out` as above. ValueError when there is no room."""
    view, target = memoryview(records).cast("B"), memoryview(out).cast("B")
    if len(header) < HEADER_BYTES:
        raise ValueError("a header has 61 bytes, and an offset 8")
    outcome, made = _sieve(memoryview(header).cast("B"), view, memoryview(kept).cast("B").cast("q"), horizon_ms)
    if outcome is _Outcome.AS_IT_IS:
        return -1
    if outcome is _Outcome.DIFFERS:
        return -2
    if len(made) > len(target):
        raise ValueError("there is no room for the batch")
    target[: len(made)] = made
    return len(made)


def _sieve(header: memoryview, body: memoryview, kept: memoryview, horizon_ms: int) -> tuple[_Outcome, bytearray]:
    """The fate of the batch, and header and records of one that changes."""
    fields = HEADER.unpack_from(header)
    base_offset, attributes, last_delta, base_timestamp, count = fields[0], fields[5], fields[6], fields[7], fields[12]
    try:
        records = _read_all(body, count, last_delta)
    except (IndexError, ValueError):
        return (_Outcome.DIFFERS if len(kept) else _Outcome.AS_IT_IS), bytearray()
    chosen = set(kept)
    if not chosen <= {base_offset + record.offset_delta for record in records}:
        return _Outcome.DIFFERS, bytearray()
    left = [record for record in records if record.key_size < 0 or base_offset + record.offset_delta in chosen]
    marked = horizon_ms >= 0 and not attributes & DELETE_HORIZON_BIT
    marked = marked and any(record.key_size >= 0 and record.valueless for record in left)
    if len(left) == len(records) and not marked:
        return _Outcome.AS_IT_IS, bytearray()
    if not left:
        return _Outcome.GOES, bytearray()
    made = bytearray(header[:HEADER_BYTES])
    if marked:
        ATTRIBUTES.pack_into(made, ATTRIBUTES_AT, attributes | DELETE_HORIZON_BIT)
        TIMESTAMP.pack_into(made, BASE_TIMESTAMP_AT, horizon_ms)
    if not attributes & LOG_APPEND_TIME_BIT:
        largest = max(_wrapped(base_timestamp + record.timestamp_delta) for record in left)
        TIMESTAMP.pack_into(made, MAX_TIMESTAMP_AT, largest)
    RECORD_COUNT.pack_into(made, RECORD_COUNT_AT, len(left))
    for record in left:
        if marked:
            delta = signed_bytes(_wrapped(base_timestamp + record.timestamp_delta - horizon_ms))
            rest = body[record.timestamp_end : record.stop]
            made += signed_bytes(1 + len(delta) + len(rest))
            made.append(body[record.attributes_at])
            made += delta
            made += rest
        else:
            made += body[record.start : record.stop]
    return _Outcome.CHANGES, made


def _read_all(body: memoryview, count: int, last_delta: int) -> list[PlacedRecord]:
    """Raises IndexError or ValueError unless the body is so many records whose offsets rise within what the batch
    spans."""
    if not 0 <= count <= len(body) // RECORD_BYTES_MIN:
        raise ValueError
    records: list[PlacedRecord] = []
    position, previous = 0, -1
    for _ in range(count):
        record = read_record(body, position)
        if not previous < record.offset_delta <= last_delta:
            raise ValueError
        previous, position = record.offset_delta, record.stop
        records.append(record)
    if position != len(body):
        raise ValueError
    return records


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
