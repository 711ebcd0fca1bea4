"""Unsigned variable-length integers: seven bits a byte, lowest first, at most five bytes (32 bits).

Lengths and tags of flexible versions are written so. The bound matters: without it a run of 0xff bytes
would be read as one number as long as the input.
"""

from __future__ import annotations

from mainstem.protocol.errors import MalformedMessage

UNSIGNED_VARINT_MAX = 0xFFFFFFFF

TAGGED_FIELDS_MAX = 16
"""Of one structure. Kafka has up to five; newer clients may send some that are unknown here. Two bytes are enough for
one, which takes a microsecond to pass over."""

_TABLE_SIZE = 1 << 10  # covers the lengths of practically all names and small arrays


def read_unsigned_varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it. An end of input raises IndexError: the readers
    that call this turn it into their own error."""
    value = 0
    start = position
    for shift in (0, 7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UNSIGNED_VARINT_MAX:
                break
            return value, position
    raise MalformedMessage("a variable-length number exceeds 32 bits", start)


def skip_tagged_fields(buffer: bytes | memoryview, position: int, end: int) -> int:
    """The position after a section of tagged fields, none of which the reader knows."""
    count, position = read_unsigned_varint(buffer, position)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedMessage(f"{count} tagged fields, more than {TAGGED_FIELDS_MAX}", position)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        if size > end - position:
            raise MalformedMessage(f"a tagged field of {size} bytes exceeds the input", position)
        position += size
    return position


def _compute_unsigned_varint(value: int) -> bytes:
    assert 0 <= value <= UNSIGNED_VARINT_MAX
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_TABLE = tuple(_compute_unsigned_varint(value) for value in range(_TABLE_SIZE))


def unsigned_varint(value: int) -> bytes:
    """`value` (0 to 2**32 - 1) encoded."""
    return _TABLE[value] if value < _TABLE_SIZE else _compute_unsigned_varint(value)
