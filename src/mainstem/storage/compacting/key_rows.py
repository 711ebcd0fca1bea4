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

INFLATED_BYTES_MAX = 1 << 20
"""Bytes of records that are put beside each other, plain, unless a single batch has more: they stay in the
processor's cache."""

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
    horizons, control = window.horizons(), window.control()
    pieces = _mixed_pieces(window, rows_max) if window.compressed().any() else _plain_pieces(window, rows_max)
    for piece in pieces:
        first, end = piece.first, piece.first + len(piece.places)
        batches = window.batches[first:end]
        places = numpy.empty((len(batches), KEY_PLACE_FIELDS), numpy.int64)
        places[:, :2] = piece.places
        places[:, 2], places[:, 3] = batches[:, 5], batches[:, 2]
        places[:, 4], places[:, 5] = batches[:, 3] - batches[:, 2], control[first:end]
        rows = numpy.empty(int(_rows_max(places[:, 1], places[:, 2]).sum()), KEY_ROW)
        counts = numpy.empty(len(batches), numpy.int64)
        found = key_rows(piece.records, places.data, key, rows.view(numpy.uint8).data, counts.data)
        unreadable = counts < 0
        counts[unreadable] = 0
        yield KeyRows(rows[:found], first, counts, horizons[first:end], int(unreadable.sum()))


class _Piece(NamedTuple):
    """Batches whose rows are made at once."""

    first: int
    """The number of the first."""
    records: Buffer
    """Of all of them, plain."""
    places: Integers
    """Position and length of the records of each; length -1: they cannot be inflated."""


def _rows_max(lengths: Integers, record_counts: Integers) -> Integers:
    """How many records batches with so many bytes of plain records, and so many by their headers, have at the most."""
    found: Integers = numpy.minimum(record_counts, numpy.maximum(lengths, 0) // RECORD_BYTES_MIN)
    return found


def _plain_pieces(window: Window, rows_max: int) -> Iterator[_Piece]:
    places = window.batches[:, :2] + (HEADER_BYTES, -HEADER_BYTES)
    ends = numpy.cumsum(_rows_max(places[:, 1], window.batches[:, 5]))
    first = done = 0
    while first < len(ends):
        end = max(first + 1, int(ends.searchsorted(done + rows_max, side="right")))
        yield _Piece(first, window.content, places[first:end])
        first, done = end, int(ends[end - 1])


def _mixed_pieces(window: Window, rows_max: int) -> Iterator[_Piece]:
    """If some batches are compressed the records of all are put beside each other, a few at a time."""
    bodies: list[Buffer] = []
    places: list[tuple[int, int]] = []
    first = size = rows = 0
    for number, (record_count, compressed) in enumerate(
        zip(window.batches[:, 5].tolist(), window.compressed().tolist(), strict=True)
    ):
        body: Buffer = b""
        length = -1
        try:
            body = window.inflated(number) if compressed else window.batch(number)[HEADER_BYTES:]
            length = len(body)
        except ProtocolError:
            pass
        more = min(record_count, max(length, 0) // RECORD_BYTES_MIN)
        if places and (rows + more > rows_max or size + len(body) > INFLATED_BYTES_MAX):
            yield _Piece(first, b"".join(bodies), numpy.array(places, numpy.int64))
            bodies, places = [], []
            first, size, rows = number, 0, 0
        bodies.append(body)
        places.append((size, length))
        size += len(body)
        rows += more
    yield _Piece(first, b"".join(bodies), numpy.array(places, numpy.int64))
