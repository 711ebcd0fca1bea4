"""Batches that only the journal's sealed segments still hold: found through the segments' indexes.

A queue's rows lie in some of the segments, in offset order over them. Segments are searched by bisection on the
last offset a queue has in each; a segment without rows of the queue is stepped over. Batches of one queue lie
scattered in a segment, so neighbours within `GAP_BYTES` are read in one go.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c

from mainstem.model import Buffer
from mainstem.storage.errors import CorruptJournal, SegmentGone
from mainstem.storage.journal.format import offset_of, position_of, segment_name, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.queue_store.extent_index import ExtentIndex

GAP_BYTES = 64 * 1024
"""Reading this much in vain is cheaper than another trip to the reading thread."""

SPAN_BYTES_MAX = 4 << 20
"""One read of the journal at most."""

BATCH_START = struct.Struct(">qi5xI")
"""Base offset, length and CRC32C of a batch (Kafka's record batch v2)."""
LENGTH_EXCLUDES = 12
CRC_COVERS_FROM = 21


class Place(NamedTuple):
    """A batch in the journal: position, length in bytes, offsets of its first and last record."""

    position: int
    length: int
    base_offset: int
    last_offset: int


class SealedSegments:
    """Look-ups over the sealed, indexed segments of a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def places(self, queue_id: int, offset: int, bytes_max: int) -> list[Place]:
        """The queue's batches from the one that holds `offset`, or the next behind it, on: those of one
        segment, about `bytes_max` bytes of them, at least one. Empty when there is none. Segments that are
        recycled under the search count as not there.

        Raises `SegmentGone` when a file has vanished, `CorruptJournal` when an index cannot be made, `OSError`."""
        while True:
            sequences = self._sequences()
            try:
                return await self._search(sequences, queue_id, offset, bytes_max)
            except SegmentGone:
                if self._sequences()[:1] == sequences[:1]:
                    raise

    def _sequences(self) -> list[int]:
        return [segment.sequence for segment in self._journal.segments() if segment.index_ready]

    async def _search(
        self, sequences: Sequence[int], queue_id: int, offset: int, bytes_max: int
    ) -> list[Place]:
        low, high = 0, len(sequences)
        best: tuple[int, ExtentIndex, int] | None = None
        while low < high:
            probe = (low + high) // 2
            while probe >= low:
                index = await self._journal.index(sequences[probe])
                first, end = index.queue_rows(queue_id)
                if end > first:
                    break
                probe -= 1
            if probe < low:
                low = (low + high) // 2 + 1
            elif int(index.rows["last_offset"][end - 1]) >= offset:
                row = index.find(queue_id, offset)
                assert row is not None
                best = (sequences[probe], index, row)
                high = probe
            else:
                low = (low + high) // 2 + 1
        if best is None:
            return []
        sequence, index, row = best
        return places_from(sequence, index, queue_id, row, bytes_max)

    async def read(self, places: Sequence[Place]) -> list[Buffer]:
        """The batches at these places, checked against their CRC.

        Raises `SegmentGone` when a segment was recycled meanwhile, `CorruptJournal` on a bad CRC."""
        batches: list[Buffer] = []
        for span in spans(places):
            start = span[0].position
            length = span[-1].position + span[-1].length - start
            view = memoryview(await self._journal.read(start, length))
            if len(view) < length:
                raise SegmentGone(
                    f"{segment_name(sequence_of(start))}: ends before {offset_of(start) + length}"
                )
            for place in span:
                batch = view[place.position - start : place.position - start + place.length]
                check(batch, place)
                batches.append(batch)
        return batches


def places_from(sequence: int, index: ExtentIndex, queue_id: int, row: int, bytes_max: int) -> list[Place]:
    """Rows of one queue in a segment's index, from `row` on, up to about `bytes_max` bytes, as places."""
    _first, end = index.queue_rows(queue_id)
    places: list[Place] = []
    for entry in index.rows[row : min(end, row + 4096)]:
        length = int(entry["length"])
        if places and length > bytes_max:
            break
        bytes_max -= length
        places.append(
            Place(
                position_of(sequence, int(entry["position"])),
                length,
                int(entry["base_offset"]),
                int(entry["last_offset"]),
            )
        )
    return places


def spans(places: Sequence[Place]) -> list[list[Place]]:
    """Places grouped into stretches worth one read each."""
    result: list[list[Place]] = []
    for place in places:
        if result:
            start, last = result[-1][0], result[-1][-1]
            if (
                sequence_of(last.position) == sequence_of(place.position)
                and 0 <= place.position - (last.position + last.length) <= GAP_BYTES
                and place.position + place.length - start.position <= SPAN_BYTES_MAX
            ):
                result[-1].append(place)
                continue
        result.append([place])
    return result


def check(batch: memoryview, place: Place) -> None:
    """The CRC does not cover where the batch belongs, so that is compared with the index."""
    base_offset, length, crc = BATCH_START.unpack_from(batch)
    here = base_offset == place.base_offset and length + LENGTH_EXCLUDES == place.length
    if not here or google_crc32c.value(bytes(batch[CRC_COVERS_FROM:])) != crc:
        raise CorruptJournal(
            f"{segment_name(sequence_of(place.position))}: batch at byte {offset_of(place.position)} (offsets "
            f"{place.base_offset} to {place.last_offset}) fails its CRC; restore the segment or read a replica"
        )
