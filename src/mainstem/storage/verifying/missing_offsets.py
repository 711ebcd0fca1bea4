"""Which offsets files had that cannot be read any more, as far as the files beside them tell: those that lie between
the offsets of the others, and that no other write group has, where a queue may have been meanwhile. Compaction leaves
such gaps as well: these offsets may be lost, and some of them may never have been there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy

from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.verifying.findings import Affected

AFFECTED_PER_FILE_MAX = 1_000
"""An operator who loses more than so many partitions at once looks at the file's blocks."""


class PresentOffsets:
    """Collects, queue by queue, the offsets of one write group that can be read."""

    def __init__(self, only: Collection[int] | None = None) -> None:
        """`only`: of these queues; None: of all."""
        self._only = None if only is None else numpy.array(sorted(only), numpy.uint64)
        self._found: dict[int, list[tuple[int, int]]] = {}
        """Stretches as (first offset, the one behind the last)."""

    def add(self, index: ExtentIndex) -> None:
        """Add all that a file has. Files in the order of their blocks take the least memory."""
        rows = index.rows
        if self._only is not None:
            rows = rows[numpy.isin(rows["queue_id"], self._only)]
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

    def without(self, affected: Iterable[Affected], goes_on: Collection[int]) -> Iterator[Affected]:
        """These offsets but for those that were added. `goes_on`: the queues that may have more behind all of these;
        of others nothing is behind that."""
        for one in affected:
            place, last = one.first_offset, one.last_offset
            behind = [it for it in sorted(self._found.get(one.queue_id, ())) if it[1] > place]
            for first, end in behind:
                if last is not None and first > last:
                    break
                if first > place:
                    yield Affected(one.queue_id, place, first - 1)
                place = max(place, end)
            if last is None and (not behind or one.queue_id in goes_on):
                yield Affected(one.queue_id, place, None)
            elif last is not None and place <= last:
                yield Affected(one.queue_id, place, last)
