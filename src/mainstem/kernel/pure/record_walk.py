"""Walks the inflated records of a batch in place, to find their timestamps and whether all have a key.

A walk goes over the whole batch once; a malformed record ends it there, and the records before the damage still count.

Timestamps are told as differences from the batch's base timestamp, offsets as differences from its base offset.
"""

from __future__ import annotations

from typing import NamedTuple

from mainstem.kernel.pure.placed_record import read_record
from mainstem.model import Buffer

Place = tuple[int, int]
"""The offset delta and the timestamp delta of a record."""


class TimestampWalk(NamedTuple):
    found: Place | None
    """The first record looked for; None: there is none."""
    greatest: Place | None
    """The first of those with the greatest timestamp; None: there are no records."""
    rising: tuple[Place, ...]
    """The records later than all before them. For every timestamp, the first record that has it, or more, is one of
    these."""
    all_rising: bool
    """There were no more of these than were asked for."""
    damaged_at: int
    """The position of the first record that cannot be read, or bytes behind the last one; -1: all is well."""


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
            record = read_record(view, position)
        except (IndexError, ValueError):
            return TimestampWalk(found, greatest, tuple(rising), all_rising, position)
        position = record.stop
        if record.offset_delta < offset_delta_min:
            continue
        place = record.offset_delta, record.timestamp_delta
        if found is None and record.timestamp_delta >= timestamp_delta_min:
            found = place
        if greatest is None or record.timestamp_delta > greatest[1]:
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
            record = read_record(view, position)
        except (IndexError, ValueError):
            return -1, position
        if record.key_size < 0:
            return number, -1
        position = record.stop
    return -1, -1 if position == len(view) else position
