"""Batches without the records that go.

Which records stay is told by offsets (`Kept`). In a batch that lies below the offset up to which its queue is
compacted, a record with a key stays if its offset is among those, and goes otherwise. These stay in any case: records
without a key, control batches, and batches whose records cannot be read.

A batch of which nothing goes keeps its bytes, and one of which everything goes is left out. Else it keeps base and last
offset, producer and sequence, leader epoch and compression, and gets the number of its records, the largest of their
timestamps and a checksum anew. A batch in which a tombstone stays gets a delete horizon, as Kafka writes it, unless it
has one (docs/formats.md). The checksum of a batch that changes is looked at first, so that damage never gets a valid
one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from mainstem.kernel import (
    RECORD_BYTES_MIN,
    RECORD_GROWTH_MAX,
    RULING_FIELDS,
    SIEVED_FIELDS,
    crc32c,
    sieve_batches,
    sieve_records,
)
from mainstem.kernel.batch_header import (
    CHECKED_FROM,
    CHECKSUM,
    CHECKSUM_AT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH,
    LENGTH_AT,
    LENGTH_EXCLUDES,
)
from mainstem.model import Buffer
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.records.compression import compress
from mainstem.storage.compacting.window import Integers, Window
from mainstem.storage.errors import FormatError

_AS_IT_IS = -1
_DIFFERS = -2


class Rewritten(NamedTuple):
    content: memoryview
    """The remainder, batch after batch."""
    batches: Integers
    """A row of `BATCH_FIELDS` for each."""
    sources: Integers
    """The number that each had among the batches of the input."""
    dropped_records: int


def rewrite(content: Buffer, offsets: Integers, rulings: Integers) -> Rewritten:
    """Whole batches, of any compression, without the records that go. `offsets`: of the records with keys that stay.
    `rulings`: three numbers per batch, as `Kept.rulings` has them: a range of `offsets`, or `NOT_JUDGED`; and from when
    on the tombstones in it may go that have no horizon yet, or `NO_HORIZON`: they get none.

    Raises FormatError naming the position of what is no batch, of a batch that changes and fails its checksum, and of
    one that lacks a record that stays: it is not the batch that was scanned."""
    window = Window.of(content)
    assert rulings.shape == (len(window.batches), RULING_FIELDS)
    pieces: list[Buffer] = []
    tables: list[Integers] = [numpy.empty((0, SIEVED_FIELDS), numpy.int64)]
    size = 0
    for first, end, compressed in window.stretches():
        sieved = _sieve_compressed if compressed else _sieve_plain
        made, table = sieved(window, first, end, offsets, rulings)
        table[:, 0] += size
        table[:, 7] += first
        pieces += made
        tables.append(table)
        size += int(table[:, 1].sum())
    table = numpy.concatenate(tables)
    joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    dropped = int(window.batches[:, 5].sum() - table[:, 5].sum())
    return Rewritten(memoryview(joined), table[:, :7].copy(), table[:, 7].copy(), dropped)


def _sieve_plain(
    window: Window, first: int, end: int, offsets: Integers, rulings: Integers
) -> tuple[list[Buffer], Integers]:
    """The remainder of batches that are not compressed, and rows of `SIEVED_FIELDS` that count from it."""
    batches = window.batches[first:end]
    lengths = batches[:, 1]
    room = int(lengths.sum())
    records = numpy.minimum(batches[:, 5], (lengths - HEADER_BYTES) // RECORD_BYTES_MIN)
    room += RECORD_GROWTH_MAX * int(records[rulings[first:end, 2] >= 0].sum())
    out = numpy.empty(room, numpy.uint8)
    table = numpy.empty((len(batches), SIEVED_FIELDS), numpy.int64)
    count = sieve_batches(
        window.content,
        batches.data,
        rulings[first:end].data,
        offsets.data,
        out.data,
        table.data,
    )
    if count < 0:
        raise _differs(window, first - 1 - count)
    table = table[:count]
    return [out[: int(table[:, 1].sum())].data], table


def _sieve_compressed(
    window: Window, first: int, end: int, offsets: Integers, rulings: Integers
) -> tuple[list[Buffer], Integers]:
    made: list[Buffer] = []
    rows: list[tuple[int, ...]] = []
    control = window.control()
    size = 0
    for number, (begin, stop, horizon_ms) in enumerate(rulings[first:end].tolist(), first):
        batch: Buffer | None = window.batch(number)
        if begin >= 0 and not control[number]:
            batch = _sieve_one(window, number, offsets[begin:stop], horizon_ms)
        if batch is not None:
            fields = HEADER.unpack_from(batch)
            last_offset = fields[0] + fields[6]
            row = (size, len(batch), fields[0], last_offset, fields[8], fields[12], fields[2], number - first)
            rows.append(row)
            made.append(batch)
            size += len(batch)
    return made, numpy.array(rows, numpy.int64).reshape(-1, SIEVED_FIELDS)


def _sieve_one(window: Window, number: int, offsets: Integers, horizon_ms: int) -> Buffer | None:
    """The remainder of a compressed batch; None: nothing stays."""
    batch = window.batch(number)
    marks = horizon_ms >= 0 and not window.attributes[number] & DELETE_HORIZON_BIT
    if len(offsets) == window.batches[number, 5] and not marks:
        return batch
    try:
        records = window.inflated(number)
    except ProtocolError:
        if len(offsets):
            raise _differs(window, number) from None
        return batch
    room = HEADER_BYTES + len(records)
    if marks:
        room += RECORD_GROWTH_MAX * min(int(window.batches[number, 5]), len(records) // RECORD_BYTES_MIN)
    out = numpy.empty(room, numpy.uint8)
    size = sieve_records(batch, records, offsets.data, horizon_ms, out.data)
    if size == _AS_IT_IS:
        return batch
    (checksum,) = CHECKSUM.unpack_from(batch, CHECKSUM_AT)
    if size == _DIFFERS or crc32c(batch[CHECKED_FROM:]) != checksum:
        raise _differs(window, number)
    if not size:
        return None
    made = bytearray(out[:HEADER_BYTES])
    made += compress(window.compression(number), out[HEADER_BYTES:size].tobytes())
    LENGTH.pack_into(made, LENGTH_AT, len(made) - LENGTH_EXCLUDES)
    CHECKSUM.pack_into(made, CHECKSUM_AT, crc32c(memoryview(made)[CHECKED_FROM:]))
    return made


def _differs(window: Window, number: int) -> FormatError:
    position, length, base_offset, last_offset = window.batches[number, :4].tolist()
    return FormatError(
        f"the batch at byte {position} ({length} bytes, offsets {base_offset} to {last_offset}) is not what was "
        "scanned: it fails its checksum, or lacks a record that stays"
    )
