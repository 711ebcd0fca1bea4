"""The keys of records: where each stands, and what it hashes to. The records lie plain, batch after batch.

The hash is SipHash-2-4 with 128 bits of output (Aumasson, Bernstein: "SipHash: a fast short-input PRF"). A client that
does not know its key makes no two keys of one hash."""

from __future__ import annotations

import struct

from mainstem.kernel.layout import KEY_PLACE_FIELDS, KEY_ROW_BYTES, RECORD_BYTES_MIN, RecordKind
from mainstem.kernel.pure.placed_record import read_record
from mainstem.model import Buffer

_HASH_KEY = struct.Struct("<QQ")
_KEY_ROW = struct.Struct("<qQQB")
assert _KEY_ROW.size == KEY_ROW_BYTES
_MASK = (1 << 64) - 1


def key_rows(data: Buffer, places: Buffer, key: Buffer, rows: Buffer, counts: Buffer) -> int:
    """Write a row of `KEY_ROW_BYTES` for each record of some batches into `rows`, in order; how many there are.

    `places` has a row of `KEY_PLACE_FIELDS` native i64 per batch. `counts` (native i64) gets the rows of each; -1 for a
    batch whose records cannot be read, or whose offsets do not rise within what it spans, or whose length is negative.
    Such a batch has no rows. `key`: 16 bytes. ValueError when a batch lies outside of `data`, or `rows` has less room
    than the batches say they have records, as far as their lengths allow for those."""
    view, out = memoryview(data).cast("B"), memoryview(rows).cast("B")
    batches, found = memoryview(places).cast("B").cast("q"), memoryview(counts).cast("B").cast("q")
    if len(batches) != len(found) * KEY_PLACE_FIELDS:
        raise ValueError("as many counts as places, which have six fields")
    if len(key) != _HASH_KEY.size or len(out) % KEY_ROW_BYTES:
        raise ValueError("the key has 16 bytes, and each row 25")
    done = 0
    for number in range(len(found)):
        at = number * KEY_PLACE_FIELDS
        position, length, records, base_offset, last_delta, control = batches[at : at + KEY_PLACE_FIELDS]
        found[number] = -1
        if length < 0:
            continue
        if position < 0 or length > len(view) - position:
            raise ValueError("a batch lies outside of the data")
        if not 0 <= records <= length // RECORD_BYTES_MIN:
            continue
        if records > len(out) // KEY_ROW_BYTES - done:
            raise ValueError("there is no room for the rows of a batch's records")
        body = view[position : position + length]
        try:
            made = _rows_of(body, records, base_offset, last_delta, bool(control), key)
        except (IndexError, ValueError):
            continue
        out[done * KEY_ROW_BYTES : (done + records) * KEY_ROW_BYTES] = made
        found[number] = records
        done += records
    return done


def _rows_of(body: memoryview, records: int, base_offset: int, last_delta: int, control: bool, key: Buffer) -> bytes:
    """Raises IndexError or ValueError for what cannot be read."""
    made = bytearray()
    position, previous = 0, -1
    for _ in range(records):
        record = read_record(body, position)
        if not previous < record.offset_delta <= last_delta:
            raise ValueError
        previous, position = record.offset_delta, record.stop
        high = low = 0
        if control:
            kind = RecordKind.CONTROL
        elif record.key_size < 0:
            kind = RecordKind.NO_KEY
        else:
            kind = RecordKind.TOMBSTONE if record.valueless else RecordKind.VALUE
            high, low = keyed_hash(key, body[record.key_at : record.key_at + record.key_size])
        made += _KEY_ROW.pack(base_offset + record.offset_delta, high, low, kind)
    if position != len(body):
        raise ValueError
    return bytes(made)


def keyed_hash(key: Buffer, data: Buffer) -> tuple[int, int]:
    """The upper and the lower half of the hash: its last and its first eight bytes, little-endian. `key`: 16 bytes."""
    if len(key) != _HASH_KEY.size:
        raise ValueError("the key has 16 bytes")
    first, second = _HASH_KEY.unpack(key)
    a, b = first ^ 0x736F6D6570736575, second ^ 0x646F72616E646F6D ^ 0xEE
    c, d = first ^ 0x6C7967656E657261, second ^ 0x7465646279746573
    content = bytes(data)
    whole = len(content) & ~7
    words = [*struct.unpack_from(f"<{whole // 8}Q", content)]
    words.append((len(content) & 0xFF) << 56 | int.from_bytes(content[whole:], "little"))
    for word in words:
        a, b, c, d = _rounds(a, b, c, d ^ word, 2)
        a ^= word
    a, b, c, d = _rounds(a, b, c ^ 0xEE, d, 4)
    low = a ^ b ^ c ^ d
    a, b, c, d = _rounds(a, b ^ 0xDD, c, d, 4)
    return a ^ b ^ c ^ d, low


def _rounds(a: int, b: int, c: int, d: int, count: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        a, c = a + b & _MASK, c + d & _MASK
        b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
        a = _turned(a, 32)
        a, c = a + d & _MASK, c + b & _MASK
        d, b = _turned(d, 21) ^ a, _turned(b, 17) ^ c
        c = _turned(c, 32)
    return a, b, c, d


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK
