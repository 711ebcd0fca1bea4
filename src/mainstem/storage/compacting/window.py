"""The batches of a window: whole record batches one after the other, of one queue or of several.

The fields of their headers are read with numpy, of all at once, so that Python runs per window, and per batch only
where one must be inflated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import walk_batches
from mainstem.kernel.batch_header import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from mainstem.model import Buffer
from mainstem.protocol.records.compression import Compression, compression_of, decompress, inflated_bytes_max
from mainstem.storage.errors import FormatError
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS
from mainstem.storage.store_files.store_file import NO_HORIZON

Integers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]

NOT_JUDGED = -1
"""In place of a range of offsets: all records of the batch stay."""


class Window(NamedTuple):
    content: memoryview
    batches: Integers
    """A row of `BATCH_FIELDS` for each."""
    attributes: numpy.typing.NDArray[numpy.uint8]
    """The lower byte of each batch's; the upper one says nothing."""

    @classmethod
    def of(cls, content: Buffer) -> Window:
        """Raises FormatError naming the position of what is no batch of format 2."""
        view = memoryview(content).cast("B")
        room = numpy.empty((len(view) // HEADER_BYTES + 1, len(BATCH_FIELDS)), numpy.int64)
        count = walk_batches(view, room.data.cast("B"))
        if count < 0:
            raise FormatError(f"no whole record batch begins at byte {-1 - count} of {len(view)}")
        batches = room[:count]
        octets = numpy.frombuffer(view, numpy.uint8)
        positions = batches[:, 0]
        foreign = (octets[positions + MAGIC_AT] != MAGIC) | (batches[:, 5] < 0)
        if foreign.any():
            raise FormatError(f"what begins at byte {positions[foreign.argmax()]} is no record batch of format {MAGIC}")
        return cls(view, batches, octets[positions + (ATTRIBUTES_AT + 1)])

    def control(self) -> Flags:
        found: Flags = (self.attributes & CONTROL_BIT) != 0
        return found

    def transactional(self) -> Flags:
        found: Flags = (self.attributes & TRANSACTIONAL_BIT) != 0
        return found

    def compressed(self) -> Flags:
        found: Flags = (self.attributes & COMPRESSION_MASK) != 0
        return found

    def horizons(self) -> Integers:
        """From when on the tombstones of each batch may go, in ms; `NO_HORIZON`: that is not decided yet."""
        found = numpy.full(len(self.batches), NO_HORIZON, numpy.int64)
        marked = numpy.flatnonzero(self.attributes & DELETE_HORIZON_BIT)
        if len(marked):
            octets = numpy.frombuffer(self.content, numpy.uint8)
            places = self.batches[marked, 0, None] + numpy.arange(BASE_TIMESTAMP_AT, BASE_TIMESTAMP_AT + 8)
            found[marked] = octets[places].view(">i8")[:, 0]
        return found

    def stretches(self) -> Iterator[tuple[int, int, bool]]:
        """(First, end, whether they are compressed) of neighbours that all are, or all are not."""
        if not len(self.batches):
            return
        compressed = self.compressed()
        edges = [0, *(numpy.flatnonzero(compressed[1:] != compressed[:-1]) + 1).tolist(), len(compressed)]
        for first, end in pairwise(edges):
            yield first, end, bool(compressed[first])

    def batch(self, number: int) -> memoryview:
        position, length = self.batches[number, :2].tolist()
        return self.content[position : position + length]

    def compression(self, number: int) -> Compression:
        """Raises `UnsupportedCompression`."""
        return compression_of(int(self.attributes[number]) & COMPRESSION_MASK)

    def inflated(self, number: int) -> Buffer:
        """The records of a compressed batch, which may inflate to as much as one whose keys are checked when it is
        produced. Raises ProtocolError."""
        body = self.batch(number)[HEADER_BYTES:]
        return decompress(self.compression(number), body, inflated_bytes_max(len(body)))
