"""Signed variable-length integers of records: zigzag, seven bits a byte, up to ten bytes (64 bits)."""

from __future__ import annotations

from mainstem.protocol.errors import CorruptBatch

_SHIFT_END = 70  # ten bytes of seven bits


def read_signed_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it. An end of input raises IndexError, which readers
    of records turn into their own error."""
    value = 0
    start = position
    for shift in range(0, _SHIFT_END, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return (value >> 1) ^ -(value & 1), position
    raise CorruptBatch("a variable-length number exceeds 64 bits", start)


def append_signed_varint(out: bytearray, value: int) -> None:
    """Append `value` (64 bits signed) to `out`."""
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
