"""Walks the inflated records of a batch in place, to find their timestamps and whether all have a key.

No object is made per record. A walk goes over the whole batch once; a malformed record ends it there, and the records
before the damage still count. Every length is checked against the record it stands in, every record against the bytes
that are there. The names of headers are lengths here, not text.

Timestamps are told as differences from the batch's base timestamp, offsets as differences from its base offset.
"""

from __future__ import annotations

from typing import NamedTuple

from mainstem.model import Buffer

Place = tuple[int, int]
"""The offset delta and the timestamp delta of a record."""

_SHIFT_END = 70
"""A number has ten bytes of seven bits at the most."""


class TimestampWalk(NamedTuple):
    found: Place | None
    """The first record looked for; None: there is none."""
    greatest: Place | None
    """The first of those with the greatest timestamp; None: there are no records."""
    rising: tuple[Place, ...]
    """The records later than all before them. Whatever timestamp is looked for, the first record that has it, or
    more, is one of these."""
    all_rising: bool
    """There were no more of these than were asked for."""
    damaged_at: int
    """Where the first record stands that cannot be read, or bytes behind the last one; -1: all is well."""


def walk_timestamps(
    body: Buffer, record_count: int, timestamp_delta_min: int, offset_delta_min: int, rising_max: int
) -> TimestampWalk:
    """Look for the first record with at least this timestamp, from `offset_delta_min` on; records before that one are
    passed over in all answers."""
    view = memoryview(body).cast("B")
    found: Place | None = None
    greatest: Place | None = None
    rising: list[Place] = []
    all_rising = True
    position = 0
    for _ in range(record_count):
        try:
            stop, timestamp_delta, offset_delta, _ = _read_record(view, position)
        except (IndexError, ValueError):
            return TimestampWalk(found, greatest, tuple(rising), all_rising, position)
        position = stop
        if offset_delta < offset_delta_min:
            continue
        place = offset_delta, timestamp_delta
        if found is None and timestamp_delta >= timestamp_delta_min:
            found = place
        if greatest is None or timestamp_delta > greatest[1]:
            greatest = place
            if len(rising) < rising_max:
                rising.append(place)
            else:
                all_rising = False
    damaged_at = -1 if position == len(view) else position
    return TimestampWalk(found, greatest, tuple(rising), all_rising, damaged_at)


def first_keyless(body: Buffer, record_count: int) -> tuple[int, int]:
    """(The number of the first record without a key, or -1; where the first record stands that cannot be read, or bytes
    behind the last one, or -1). The walk ends at the first of the two."""
    view = memoryview(body).cast("B")
    position = 0
    for number in range(record_count):
        try:
            stop, _, _, keyless = _read_record(view, position)
        except (IndexError, ValueError):
            return -1, position
        if keyless:
            return number, -1
        position = stop
    return -1, -1 if position == len(view) else position


def _read_record(view: memoryview, position: int) -> tuple[int, int, int, bool]:
    """(Where it ends, timestamp delta, offset delta, whether it has no key). Raises IndexError or ValueError for what
    is no record."""
    size, start = _read_signed(view, position)
    stop = start + size
    if size < 0 or stop > len(view):
        raise ValueError
    timestamp_delta, position = _read_signed(view, start + 1)  # behind the attributes, which say nothing so far
    offset_delta, position = _read_signed(view, position)
    keyless, position = _skip_bytes(view, position, stop)
    _, position = _skip_bytes(view, position, stop)
    header_count, position = _read_signed(view, position)
    if not 0 <= header_count <= stop - position:
        raise ValueError
    for _ in range(header_count):
        nameless, position = _skip_bytes(view, position, stop)
        if nameless:
            raise ValueError
        _, position = _skip_bytes(view, position, stop)
    if position != stop:
        raise ValueError
    return stop, timestamp_delta, offset_delta, keyless


def _skip_bytes(view: memoryview, position: int, stop: int) -> tuple[bool, int]:
    """Whether they are null, and the position behind them."""
    size, position = _read_signed(view, position)
    if size == -1:
        return True, position
    if size < 0 or position + size > stop:
        raise ValueError
    return False, position + size


def _read_signed(view: memoryview, position: int) -> tuple[int, int]:
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
