"""Finds where the batches of each queue lie in the objects of a cluster, by the indexes of its files.

It holds all indexes (of `store_survey.survey`): 64 bytes for 64 KiB of batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import numpy

from mainstem.model import Buffer
from mainstem.ports import ObjectRange
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_index import ExtentIndex, Rows

STRETCH_BYTES = 8 << 20
"""The bytes that one request brings; an extent alone may have more."""


class Stretch(NamedTuple):
    """Neighbouring extents of a queue in one object."""

    name: str
    """Of the object."""
    rows: Rows

    @property
    def range(self) -> ObjectRange:
        first, last = int(self.rows["position"][0]), self.rows[-1]
        return ObjectRange(first, int(last["position"]) + int(last["length"]) - first)

    def check(self, content: Buffer) -> None:
        """Raises `FormatError` naming the object and the extent of which these are not the bytes."""
        view, first = memoryview(content), int(self.rows["position"][0])
        for row in self.rows:
            begin = int(row["position"]) - first
            if google_crc32c.value(bytes(view[begin : begin + int(row["length"])])) != int(row["crc"]):
                raise FormatError(f"{self.name}: the extent at {int(row['position'])} fails its CRC")


class StoredQueues:
    """Collects extents by their queues."""

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[str, Rows]]] = {}

    def add(self, name: str, index: ExtentIndex) -> None:
        """Add all that lies in an object."""
        rows = index.rows
        begins = numpy.flatnonzero(numpy.diff(rows["queue_id"]) != 0) + 1
        for part in numpy.split(rows, begins) if len(rows) else ():
            self._found.setdefault(int(part["queue_id"][0]), []).append((name, part))

    def stretches(self, queue_id: int) -> Iterator[Stretch]:
        """All that a queue has, by offsets. Files may overlap while one takes the place of another."""
        for name, rows in sorted(self._found.get(queue_id, ()), key=lambda found: int(found[1]["base_offset"][0])):
            begin = size = 0
            for at, row in enumerate(rows):
                length = int(row["length"])
                if at > begin and size + length > STRETCH_BYTES:
                    yield Stretch(name, rows[begin:at])
                    begin, size = at, 0
                size += length
            yield Stretch(name, rows[begin:])
