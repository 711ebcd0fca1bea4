"""The keys of records: where each stands and what it hashes to, for whoever looks for the latest record of each key.

Keys are compared by a keyed hash of 128 bits. Two keys of one hash would be taken for one, and the older record would
go: among ten thousand million keys the chance of such a pair is below 2^-60, and no client can make one, as it does not
know the hash's own key, which is drawn for each pass.

A batch whose records cannot be read, or inflate to more than they may, has no rows, and `rewrite` leaves it as it is.
In a topic that was always compacted there is none: its producers are refused such batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import KEY_PLACE_FIELDS, KEY_ROW_BYTES, RECORD_BYTES_MIN, key_rows
from mainstem.kernel.batch_header import HEADER_BYTES
from mainstem.model import Buffer
from mainstem.protocol.errors import ProtocolError
from mainstem.storage.compacting.window import Integers, Window

KEY_ROW = numpy.dtype([("offset", "<i8"), ("high", "<u8"), ("low", "<u8"), ("kind", "u1")])
"""A record: its offset in its queue, the two halves of its key's hash (0 where it has none), its `RecordKind`."""
assert KEY_ROW.itemsize == KEY_ROW_BYTES

ROWS_MAX = 1 << 18
"""Rows at once, 6 MiB, unless a single batch has more. A batch of 64 KiB may inflate to 64 MiB, and so have nine
million records."""

Rows = numpy.typing.NDArray[numpy.void]


class KeyRows(NamedTuple):
    """The records of batches that follow each other in a window."""

    rows: Rows
    """A `KEY_ROW` for each record, in their order."""
    first_batch: int
    """The number of the first of these batches in the window."""
    counts: Integers
    """Rows of each batch."""
    horizons: Integers
    """From when on the tombstones of each batch may go, in ms; -1: that is not decided yet."""
    unreadable: int
    """Batches without rows, as their records cannot be read."""


def scan_keys(content: Buffer, key: bytes, rows_max: int = ROWS_MAX) -> Iterator[KeyRows]:
    """All records of whole batches, of any compression, in pieces of no more than `rows_max` unless one batch has more.
    `key`: 16 bytes, the same wherever hashes are compared. Raises FormatError naming the position of what is no
    batch."""
    window = Window.of(content)
    horizons = window.horizons()
    for first, end, compressed in window.stretches():
        if compressed:
            pieces = [(number, number + 1) for number in range(first, end)]
        else:
            pieces = _pieces(window.batches[:, 5], first, end, rows_max)
        for begin, stop in pieces:
            rows, counts = _scan(window, begin, stop, compressed, key)
            unreadable = counts < 0
            counts[unreadable] = 0
            yield KeyRows(rows, begin, counts, horizons[begin:stop], int(unreadable.sum()))


def _pieces(record_counts: Integers, first: int, end: int, rows_max: int) -> list[tuple[int, int]]:
    """Batches in pieces of about `rows_max` records."""
    ends = numpy.cumsum(record_counts[first:end])
    pieces: list[tuple[int, int]] = []
    begin = done = 0
    while begin < len(ends):
        stop = max(begin + 1, int(ends.searchsorted(done + rows_max, side="right")))
        pieces.append((first + begin, first + stop))
        begin, done = stop, int(ends[stop - 1])
    return pieces


def _scan(window: Window, first: int, end: int, compressed: bool, key: bytes) -> tuple[Rows, Integers]:
    """The rows of these batches, one batch if they are compressed, and how many each has; -1: it cannot be read."""
    batches = window.batches[first:end]
    places = numpy.empty((len(batches), KEY_PLACE_FIELDS), numpy.int64)
    body: Buffer = window.content
    places[:, 0], places[:, 1] = batches[:, 0] + HEADER_BYTES, batches[:, 1] - HEADER_BYTES
    if compressed:
        try:
            body = window.inflated(first)
            places[0, :2] = 0, len(body)
        except ProtocolError:
            places[0, :2] = 0, -1
    places[:, 2], places[:, 3] = batches[:, 5], batches[:, 2]
    places[:, 4], places[:, 5] = batches[:, 3] - batches[:, 2], window.control()[first:end]
    room = numpy.minimum(places[:, 2], numpy.maximum(places[:, 1], 0) // RECORD_BYTES_MIN)
    rows = numpy.empty(int(room.sum()), KEY_ROW)
    counts = numpy.empty(len(batches), numpy.int64)
    found = key_rows(body, places.data, key, rows.view(numpy.uint8).data, counts.data)
    return rows[:found], counts
