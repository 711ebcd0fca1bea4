"""Which offsets files had that cannot be read any more, as far as the files beside them tell: those that lie between
the offsets of the others. Compaction leaves such gaps as well, and so does a queue's stay in another write group: these
offsets may be lost, and some of them may never have been there."""

from __future__ import annotations

import numpy

from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.verifying.findings import Affected

AFFECTED_PER_FILE_MAX = 1_000
"""An operator who loses more than so many partitions at once looks at the file's blocks."""


class PresentOffsets:
    """Collects, queue by queue, the offsets of one write group that can be read."""

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[int, int]]] = {}
        """Stretches as (first offset, the one behind the last)."""

    def add(self, index: ExtentIndex) -> None:
        """Add all that a file has. Files in the order of their blocks take the least memory."""
        rows = index.rows
        if not len(rows):
            return
        queues, firsts, ends = (rows[name].astype(numpy.int64) for name in ("queue_id", "base_offset", "last_offset"))
        ends += 1
        begins = numpy.flatnonzero(numpy.append(True, (queues[1:] != queues[:-1]) | (firsts[1:] != ends[:-1])))
        behind = numpy.append(begins[1:], len(rows)) - 1
        for queue_id, first, end in zip(
            queues[begins].tolist(), firsts[begins].tolist(), ends[behind].tolist(), strict=True
        ):
            known = self._found.setdefault(queue_id, [])
            if known and known[-1][1] == first:
                known[-1] = (known[-1][0], end)
            else:
                known.append((first, end))

    def missing(self, file: StoreFile) -> list[Affected]:
        """The offsets that only this file can have had, which is none of those that were added."""
        queues = sorted(self._found)
        if file.is_merged:
            within = {one for one in queues if file.first_queue <= one <= file.last_queue}
            queues = sorted(within | {file.first_queue})
        found: list[Affected] = []
        for queue_id in queues:
            begins = file.first_offset if file.is_merged and queue_id == file.first_queue else None
            found += self._gaps(queue_id, begins)
            if len(found) >= AFFECTED_PER_FILE_MAX:
                break
        return found[:AFFECTED_PER_FILE_MAX]

    def _gaps(self, queue_id: int, begins: int | None) -> list[Affected]:
        """`begins`: the offset that the file has first; None: that is not known."""
        stretches = sorted(self._found.get(queue_id, ()))
        place = begins if begins is not None else stretches[0][0]
        found: list[Affected] = []
        for first, end in stretches:
            if first > place:
                found.append(Affected(queue_id, place, first - 1))
            place = max(place, end)
        if begins is not None and place == begins:
            found.append(Affected(queue_id, begins, None))
        return found
