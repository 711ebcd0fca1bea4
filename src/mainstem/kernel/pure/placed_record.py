"""One record of a batch, read in place, and numbers of seven bits a byte as records have them.

Every length is checked against the record it stands in, every record against the bytes that are there. The names of
headers are lengths here, not text.
"""

from __future__ import annotations

from typing import NamedTuple

_SHIFT_END = 70
"""A number has ten bytes of seven bits at the most."""


class PlacedRecord(NamedTuple):
    """The positions of a record and its parts, from the first byte of the batch's records on."""

    start: int
    stop: int
    attributes_at: int
    timestamp_delta: int
    timestamp_end: int
    """The position behind it."""
    offset_delta: int
    key_at: int
    key_size: int
    """-1: it has none."""
    valueless: bool


def read_record(view: memoryview, start: int) -> PlacedRecord:
    """Raises IndexError or ValueError for what is no record."""
    size, attributes_at = read_signed(view, start)
    stop = attributes_at + size
    if size < 0 or stop > len(view):
        raise ValueError
    timestamp_delta, timestamp_end = read_signed(view, attributes_at + 1)
    offset_delta, position = read_signed(view, timestamp_end)
    key_size, position = _skip_bytes(view, position, stop)
    key_at = position - key_size
    value_size, position = _skip_bytes(view, position, stop)
    header_count, position = read_signed(view, position)
    if not 0 <= header_count <= stop - position:
        raise ValueError
    for _ in range(header_count):
        name_size, position = _skip_bytes(view, position, stop)
        if name_size == -1:
            raise ValueError
        _, position = _skip_bytes(view, position, stop)
    if position != stop:
        raise ValueError
    return PlacedRecord(
        start, stop, attributes_at, timestamp_delta, timestamp_end, offset_delta, key_at, key_size, value_size == -1
    )


def _skip_bytes(view: memoryview, position: int, stop: int) -> tuple[int, int]:
    """Their size, -1 for null, and the position behind them."""
    size, position = read_signed(view, position)
    if size == -1:
        return size, position
    if size < 0 or position + size > stop:
        raise ValueError
    return size, position + size


def read_signed(view: memoryview, position: int) -> tuple[int, int]:
    """The number, of 64 bits, and the position behind it. Raises IndexError at the end of the data, ValueError beyond
    64 bits."""
    value = 0
    for shift in range(0, _SHIFT_END, 7):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return (value >> 1) ^ -(value & 1), position
    raise ValueError


def signed_bytes(value: int) -> bytes:
    """A number of 64 bits as `read_signed` reads it."""
    bits = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)
