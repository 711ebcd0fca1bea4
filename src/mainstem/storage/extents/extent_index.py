"""Lookups in the rows of an index: which extent of a queue holds an offset, and which queues may be in it at all.

The rows lie sorted by (queue, offset), so a lookup is two binary searches. The two columns that are searched
are kept as contiguous arrays beside the rows (16 bytes per row): searching a field of a structured array
would copy the whole column every time. Nothing here touches a disk; an index is checked once, when loaded,
and never changes afterwards.
"""

from __future__ import annotations

import google_crc32c
import numpy
import numpy.typing

from mainstem.model import Buffer
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_ROW, EXTENT_ROW_BYTES, FileFrame

Rows = numpy.typing.NDArray[numpy.void]
"""A one-dimensional array of `EXTENT_ROW`."""

QueueIds = numpy.typing.NDArray[numpy.uint64]


class ExtentIndex:
    """The index of one file, or neighbouring rows of it. `where` names the file in errors."""

    def __init__(self, rows: Rows, where: str, position: int = 0) -> None:
        """`position`: where the rows begin in the file that they were read from, if they were."""
        assert rows.dtype == EXTENT_ROW
        self.rows = numpy.ascontiguousarray(rows)
        self.where = where
        self.position = position
        self._queue_ids: QueueIds = numpy.ascontiguousarray(rows["queue_id"])
        self._last_offsets: numpy.typing.NDArray[numpy.int64] = numpy.ascontiguousarray(rows["last_offset"])

    @classmethod
    def load(cls, frame: FileFrame, rows: Buffer, where: str) -> ExtentIndex:
        """The index whose footer is `frame` from the bytes of its rows.

        Raises `FormatError` naming `where` when rows are missing, fail their CRC or are not in order."""
        if len(rows) != frame.row_count * EXTENT_ROW_BYTES:
            raise FormatError(
                f"{where}: index at {frame.rows_position} has {len(rows)} bytes, its footer says "
                f"{frame.row_count} rows of {EXTENT_ROW_BYTES}"
            )
        content = bytes(rows)
        if google_crc32c.value(content) != frame.rows_crc:
            raise FormatError(f"{where}: index at {frame.rows_position} fails its CRC")
        index = cls(numpy.frombuffer(content, EXTENT_ROW), where, frame.rows_position)
        index._check_order()
        return index

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content(self) -> memoryview:
        """The bytes of the rows."""
        return self.rows.view(numpy.uint8).data

    @property
    def memory_bytes(self) -> int:
        return self.rows.nbytes + self._queue_ids.nbytes + self._last_offsets.nbytes

    def find(self, queue_id: int, offset: int) -> int | None:
        """The row of the extent that holds `offset` or, failing that, of the queue's next extent behind it;
        None when the queue has neither here."""
        return self.find_among(self.queue_rows(queue_id), offset)

    def find_among(self, rows: tuple[int, int], offset: int) -> int | None:
        """As `find`, of the queue whose rows these are."""
        first, end = rows
        row = first + int(self._last_offsets[first:end].searchsorted(offset))
        return row if row < end else None

    def queue_rows(self, queue_id: int) -> tuple[int, int]:
        """(first, end) of the queue's rows; an empty range when it has none."""
        key = numpy.uint64(queue_id)  # any other type makes numpy convert (copy) the column
        first = int(self._queue_ids.searchsorted(key))
        if first == len(self._queue_ids) or self._queue_ids[first] != key:
            return first, first
        return first, int(self._queue_ids.searchsorted(key, side="right"))

    def rows_within(self, rows: tuple[int, int], first_offset: int, end_offset: int) -> tuple[int, int]:
        """(first, end) of the extents among these rows of a queue that have offsets from the one up to before the
        other."""
        first, end = rows
        first += int(self._last_offsets[first:end].searchsorted(first_offset))
        behind = first + int(self._last_offsets[first:end].searchsorted(end_offset))
        if behind < end and int(self.rows["base_offset"][behind]) < end_offset:
            behind += 1
        return first, behind

    def end_of(self, queue_id: int) -> int:
        """Return the place in the file where the extents of the queues up to this one end."""
        end = int(self._queue_ids.searchsorted(numpy.uint64(queue_id), side="right"))
        return int(self.rows["position"][end - 1]) + int(self.rows["length"][end - 1]) if end else 0

    def queues(self) -> tuple[QueueIds, numpy.typing.NDArray[numpy.intp]]:
        """The ids of the queues in the file, ascending, and the first row of each."""
        if not len(self.rows):
            return self._queue_ids, numpy.empty(0, numpy.intp)
        firsts = numpy.concatenate(([0], numpy.flatnonzero(self._queue_ids[1:] != self._queue_ids[:-1]) + 1))
        return self._queue_ids[firsts], firsts

    def last_offsets(self) -> tuple[QueueIds, numpy.typing.NDArray[numpy.int64]]:
        """The ids of the queues in the file, ascending, and the last offset of each."""
        queue_ids, firsts = self.queues()
        ends = numpy.concatenate((firsts[1:], [len(self.rows)])).astype(numpy.intp)[: len(firsts)]
        return queue_ids, self._last_offsets[ends - 1]

    def _check_order(self) -> None:
        queue_ids, base, last = self._queue_ids, self.rows["base_offset"], self._last_offsets
        bad = base > last
        bad[1:] |= queue_ids[1:] < queue_ids[:-1]
        bad[1:] |= (queue_ids[1:] == queue_ids[:-1]) & (base[1:] <= last[:-1])
        if bad.any():
            raise FormatError(f"{self.where}: index row {int(bad.argmax())} is out of order")


FILTER_BITS_MAX = 1 << 20
"""128 KiB per run. It suffices for 100,000 queues in a run; with more, nearly every run has every queue."""

_SPREAD = 0x9E3779B97F4A7C15
_SPREAD_MASK = 0xFFFFFFFFFFFFFFFF


class QueueFilter:
    """Tells which queues may be in a run; a "no" is always right. About 8 bits per queue, one hash."""

    __slots__ = ("_bits", "_shift")

    def __init__(self, queue_ids: QueueIds) -> None:
        size = min(max(64, 1 << (8 * len(queue_ids)).bit_length()), FILTER_BITS_MAX)
        self._shift = 65 - size.bit_length()
        hashes = (queue_ids * numpy.uint64(_SPREAD)) >> numpy.uint64(self._shift)
        bits = numpy.zeros(size // 8, numpy.uint8)
        marks = (1 << (hashes & numpy.uint64(7)).astype(numpy.uint8)).astype(numpy.uint8)
        numpy.bitwise_or.at(bits, (hashes >> numpy.uint64(3)).astype(numpy.intp), marks)
        self._bits = bits.tobytes()

    @property
    def memory_bytes(self) -> int:
        return len(self._bits)

    def __contains__(self, queue_id: int) -> bool:
        place = (queue_id * _SPREAD & _SPREAD_MASK) >> self._shift
        return bool(self._bits[place >> 3] >> (place & 7) & 1)
