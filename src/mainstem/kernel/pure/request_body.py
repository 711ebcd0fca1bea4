"""Reading the fields of a request's body in place: every length is checked against the bytes that remain, every array
count against the smallest size of its elements, before anything is made of it.

Each function takes the frame and a position and returns a value and the position behind it. A malformed field raises
MalformedBody; reading past the end raises IndexError or struct.error. The caller translates both, as it knows which
request it is.
"""

from __future__ import annotations

import struct

from mainstem.kernel.errors import MalformedBody

TEXT_BYTES_MAX = 32767
"""The most bytes of a string, in every version: its length was once an int16."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


def read_i32(frame: memoryview, position: int) -> tuple[int, int]:
    (value,) = _I32.unpack_from(frame, position)
    return value, position + 4


def read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedBody("a variable-length number exceeds 32 bits")


def read_length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """A length of 32 bits (-1: null), unchecked."""
    if flexible:
        value, position = read_unsigned_varint(frame, position)
        return value - 1, position
    value, position = read_i32(frame, position)
    if value < -1:
        raise MalformedBody(f"a length is {value}")
    return value, position


def read_text_length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of a string (-1: null)."""
    if flexible:
        value, position = read_unsigned_varint(frame, position)
        value -= 1
    else:
        (value,) = _I16.unpack_from(frame, position)
        position += 2
    if not -1 <= value <= len(frame) - position:
        raise MalformedBody(f"a string claims {value} bytes, {len(frame) - position} remain")
    if value > TEXT_BYTES_MAX:
        raise MalformedBody(f"a string has {value} bytes, more than a string may have")
    return value, position


def read_records_length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of records, 0 where there are none."""
    value, position = read_length(frame, position, flexible)
    if value > len(frame) - position:
        raise MalformedBody(f"records claim {value} bytes, {len(frame) - position} remain")
    return max(value, 0), position


def read_count(frame: memoryview, position: int, flexible: bool, bytes_min: int) -> tuple[int, int]:
    """The count of an array whose elements take `bytes_min` or more."""
    value, position = read_length(frame, position, flexible)
    if value < 0 or value * bytes_min > len(frame) - position:
        raise MalformedBody(f"an array claims {value} elements in {len(frame) - position} bytes")
    return value, position


def skip_tags(frame: memoryview, position: int) -> int:
    if frame[position] == 0:  # no tags, as nearly always
        return position + 1
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):  # each turn consumes two bytes or more, so the input bounds the loop
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        if size > len(frame) - position:
            raise MalformedBody(f"a tagged field claims {size} bytes, {len(frame) - position} remain")
        position += size
    return position
