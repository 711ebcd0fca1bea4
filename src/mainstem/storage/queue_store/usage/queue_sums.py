"""How much queues have in the files of a store that is far away, as rows that `Usage` adds up.

The manifest tells it of every file that has one queue alone. Of files that queues share, the index tells it, and to
read one is a request: so each is read once, and what it says of each queue is kept, as long as there is room. One
answer reads indexes for `LOOK_SECONDS_MAX`, those of the largest files first; what it has not looked at does not count
yet, and the next one goes on from there. The store is never listed, and while it is out, answers are made of what is
known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress

import numpy
import numpy.typing

from mainstem.ports import Clock
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.queue_store.manifest.in_memory.file_table import Page
from mainstem.storage.queue_store.reading.stored_files import StoredFiles, WriteGroupsAt
from mainstem.storage.store_files.store_file import MANY_GROUPS, StoreFile

LOOK_SECONDS_MAX = 5.0
"""For one answer: somebody waits for it."""

INDEXES_AT_ONCE = 8
"""Each waits for the store once or twice."""

ROWS_KEPT_MAX = 1 << 21
"""Rows of sums, a row per queue and file: 48 MiB."""

FILES_PER_TURN = 256
"""Files whose rows are looked up in one turn of the event loop: about a millisecond."""

SUM = numpy.dtype([("queue_id", "<u8"), ("length", "<i8"), ("last_offset", "<i8")])
"""The share of a queue in a file: bytes of batches, and the last offset."""

UNKNOWN_LAST = int(numpy.iinfo(numpy.int64).max) - 1
"""For files of which only the index knows the last offset: the file counts as long as the queue is not deleted."""


class KeptQueueSums:
    """Tells how many bytes each queue has in each file of a store."""

    def __init__(self, stored: StoredFiles, clock: Clock, *, rows_kept_max: int = ROWS_KEPT_MAX) -> None:
        self._stored = stored
        self._clock = clock
        self._rows_kept_max = rows_kept_max
        self._kept: dict[str, Rows] = {}
        """Of shared files, by name."""
        self._kept_rows = 0
        self.unread_bytes = 0
        """Of batches in files that the last answer left out."""

    async def all_rows(self, groups_at: WriteGroupsAt) -> AsyncIterator[Rows]:
        """Yield rows of `SUM`, in no order. A file in such a store has queues of the write group that it counts for,
        and no other, so that `groups_at` is not asked."""
        give_up = self._clock.monotonic() + LOOK_SECONDS_MAX
        self._forget_gone()
        unread: list[StoreFile] = []
        async for page in self._stored.manifest.files.each_page():
            places = page.places()
            first, last = (page.rows.column(end)[places] for end in ("first_queue", "last_queue"))
            alone = (page.rows.column("group")[places] != MANY_GROUPS) & (first == last)
            yield _of_page(page, places[alone], first[alone])
            shared = places[~alone].tolist()
            for start in range(0, len(shared), FILES_PER_TURN):
                kept: list[Rows] = []
                for at in shared[start : start + FILES_PER_TURN]:
                    file = page.rows.file(at)
                    if file.name in self._kept:
                        kept.append(self._kept[file.name])
                    else:
                        unread.append(file)
                if kept:
                    yield numpy.concatenate(kept)
                await asyncio.sleep(0)
        unread.sort(key=lambda file: -file.batch_bytes)
        left = sum(file.batch_bytes for file in unread)
        for wanted in self._chosen(unread):
            for file, found in zip(wanted, await self._read(wanted, give_up), strict=True):
                if found is not None:
                    left -= file.batch_bytes
                    yield found
        self.unread_bytes = left

    def _chosen(self, unread: Sequence[StoreFile]) -> Iterator[Sequence[StoreFile]]:
        """Files whose sums there is room for, some at a time."""
        wanted: list[StoreFile] = []
        rows = self._kept_rows
        for file in unread:
            if rows + file.queue_count <= self._rows_kept_max:
                rows += file.queue_count
                wanted.append(file)
        for start in range(0, len(wanted), INDEXES_AT_ONCE):
            yield wanted[start : start + INDEXES_AT_ONCE]

    async def _read(self, files: Sequence[StoreFile], give_up: float) -> list[Rows | None]:
        """The sums of some shared files, kept from then on; None: it is gone, cannot be read, or not in time."""
        seconds = give_up - self._clock.monotonic()
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*map(self._keep, files))
        return [self._kept.get(file.name) for file in files]

    async def _keep(self, file: StoreFile) -> None:
        try:
            index = await self._stored.open_files.index(self._stored.search.known(file.name), keep=False)
        except (StorageError, OSError):  # noted there
            return
        sums = await asyncio.to_thread(_of_rows, index.rows)
        if file.name not in self._kept and file.name in self._stored.manifest.files:
            self._kept[file.name] = sums
            self._kept_rows += len(sums)

    def _forget_gone(self) -> None:
        gone = [name for name in self._kept if name not in self._stored.manifest.files]
        for name in gone:
            self._kept_rows -= len(self._kept.pop(name))


def _of_page(page: Page, places: numpy.typing.NDArray[numpy.intp], queues: numpy.typing.NDArray[numpy.int64]) -> Rows:
    """The sums of files of a page that have one queue each."""
    sums = numpy.empty(len(places), SUM)
    sums["queue_id"], sums["last_offset"] = queues, UNKNOWN_LAST
    sums["length"] = page.rows.column("batch_bytes")[places]
    return sums


def _of_rows(rows: Rows) -> Rows:
    """The sums of an index, whose rows are sorted by queue and offset."""
    if not len(rows):
        return numpy.empty(0, SUM)
    firsts = numpy.flatnonzero(numpy.diff(rows["queue_id"], prepend=~rows["queue_id"][0]) != 0)
    sums = numpy.empty(len(firsts), SUM)
    sums["queue_id"] = rows["queue_id"][firsts]
    sums["length"] = numpy.add.reduceat(rows["length"].astype(numpy.int64), firsts)
    sums["last_offset"] = rows["last_offset"][numpy.append(firsts[1:], len(rows)) - 1]
    return sums
