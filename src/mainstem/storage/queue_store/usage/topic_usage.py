"""Which topic has how much on which level of a queue store, or of the remote tier.

The manifest tells it of every queue segment, and of packed files whose first and last queue are of one topic. Of files
that topics share, the index tells it: its rows say how many bytes of batches each queue has. A file never changes, so
each index is read once for that; the sums of what was read are kept, as many as `ROWS_KEPT_MAX`. One answer reads
indexes for `LOOK_SECONDS_MAX` and tells how much it has not looked at; the next one goes on from there.

Bytes are those of batches as they lie in files, live or dead; a file counts for every topic that it has. All that grows
with topics or with rows is done in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import PARTITION_BITS
from mainstem.ports import Clock
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.in_memory.file_pages import KIND_LETTERS
from mainstem.storage.queue_store.manifest.in_memory.file_table import Level, Page
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.queue_store.usage import topic_sums
from mainstem.storage.queue_store.usage.topic_sums import Integers, TopicSums
from mainstem.storage.store_files.store_file import MANY_GROUPS, StoreFile, kind_of

LOOK_SECONDS_MAX = 5.0
"""For one answer: somebody waits for it."""

SHARED_PER_TURN = 256
"""Files of several topics in one turn of the event loop where none is read: about a millisecond."""

ROWS_KEPT_MAX = 1 << 20
"""Rows of sums, a row per topic and file: 24 MiB."""


class StoreUsage(NamedTuple):
    """The shares of all topics in a store."""

    levels: dict[Level, TopicSums]
    unread_files: int
    """Shared files that were not looked at yet, or cannot be read."""
    unread_bytes: int


NOTHING = StoreUsage({}, 0, 0)


class TopicShare(NamedTuple):
    """The share of one topic, or of several together."""

    topic: int
    """Its number; -1: several."""
    journal_bytes: int
    levels: list[tuple[Level, int, int]]
    """Level, files and bytes, lowest level first."""
    remote_levels: Sequence[tuple[Level, int, int]] = ()
    """The same in the remote tier."""


class Ranking(NamedTuple):
    largest: list[TopicShare]
    """The topics with the most bytes, most first."""
    others: TopicShare
    others_count: int


class TopicUsage:
    """Adds up what topics have in the files of one store."""

    def __init__(self, stored: StoredFiles, clock: Clock, *, rows_kept_max: int = ROWS_KEPT_MAX) -> None:
        self._stored = stored
        self._clock = clock
        self._rows_kept_max = rows_kept_max
        self._kept: dict[str, TopicSums] = {}
        """Of shared files, by name."""
        self._kept_rows = 0
        self._looks: SingleFlight[None, StoreUsage] = SingleFlight()

    async def of_store(self) -> StoreUsage:
        """Add up the store, as far as that is done in `LOOK_SECONDS_MAX`. Callers at the same time get one answer."""
        return await self._looks.run(None, self._look)

    async def _look(self) -> StoreUsage:
        give_up = self._clock.monotonic() + LOOK_SECONDS_MAX
        self._forget_gone()
        parts: dict[Level, list[TopicSums]] = {}
        shared: list[StoreFile] = []
        async for page in self._stored.manifest.files.each_page():
            places = page.places()
            first, last = (page.rows.column(end)[places] >> PARTITION_BITS for end in ("first_queue", "last_queue"))
            alone = (page.rows.column("group")[places] != MANY_GROUPS) & (first == last)
            for at in places[~alone].tolist():
                file = page.rows.file(at)
                kept = self._kept.get(file.name)
                if kept is None:
                    shared.append(file)
                else:
                    parts.setdefault((file.level, kind_of(file.name)), []).append(kept)
            for level, found in _of_page(page, places[alone], first[alone]):
                parts.setdefault(level, []).append(found)
        unread_files = unread_bytes = 0
        for number, file in enumerate(shared, 1):
            if number % SHARED_PER_TURN == 0:
                await asyncio.sleep(0)
            sums = await self._read(file) if self._clock.monotonic() < give_up else None
            if sums is not None:
                parts.setdefault((file.level, kind_of(file.name)), []).append(sums)
            elif file.name in self._stored.manifest.files:  # otherwise replaced or dropped meanwhile
                unread_files += 1
                unread_bytes += file.batch_bytes
        return StoreUsage(await asyncio.to_thread(_added_up, parts), unread_files, unread_bytes)

    async def _read(self, file: StoreFile) -> TopicSums | None:
        """The sums of a shared file; None when it cannot be read."""
        try:
            index = await self._stored.open_files.index(self._stored.search.known(file.name), keep=False)
        except (StorageError, OSError):  # noted there
            return None
        sums = await asyncio.to_thread(topic_sums.of_rows, index.rows)
        if self._kept_rows + len(sums.topics) <= self._rows_kept_max:
            self._kept[file.name] = sums
            self._kept_rows += len(sums.topics)
        return sums

    def _forget_gone(self) -> None:
        gone = [name for name in self._kept if name not in self._stored.manifest.files]
        for name in gone:
            self._kept_rows -= len(self._kept.pop(name).topics)


def _of_page(
    page: Page, places: numpy.typing.NDArray[numpy.intp], topics: Integers
) -> Iterator[tuple[Level, TopicSums]]:
    """The sums of files of a page that have one topic each, by level."""
    levels, sizes = page.rows.column("level")[places], page.rows.column("batch_bytes")[places]
    kinds = page.rows.kinds()[places]
    for level in numpy.unique(levels).tolist():
        for kind, letter in KIND_LETTERS.items():
            mine = (levels == level) & (kinds == letter)
            if mine.any():
                yield (level, kind), TopicSums(topics[mine], numpy.ones(int(mine.sum()), numpy.int64), sizes[mine])


def _added_up(parts: dict[Level, list[TopicSums]]) -> dict[Level, TopicSums]:
    return {level: topic_sums.together(parts[level]) for level in sorted(parts, key=lambda it: (it[0], it[1].value))}


def ranking(usage: StoreUsage, journal: TopicSums, count: int, remote: StoreUsage = NOTHING) -> Ranking:
    """The topics that have most on both disks and in the remote tier, at most `count` of them, and the others together.
    Made for a thread."""
    everywhere = topic_sums.together([journal, *usage.levels.values(), *remote.levels.values()])
    order = numpy.argsort(-everywhere.bytes, kind="stable")
    chosen, rest = order[:count], numpy.sort(order[count:])
    return Ranking(
        [share(usage, journal, topic, remote) for topic in everywhere.topics[chosen].tolist()],
        _share_of_many(usage, journal, everywhere.topics[rest], remote),
        len(rest),
    )


def share(usage: StoreUsage, journal: TopicSums, topic: int, remote: StoreUsage = NOTHING) -> TopicShare:
    """The share of one topic."""

    def levels(of: StoreUsage) -> list[tuple[Level, int, int]]:
        found = ((level, *topic_sums.of_topic(sums, topic)) for level, sums in of.levels.items())
        return [row for row in found if row[1]]

    return TopicShare(topic, topic_sums.of_topic(journal, topic)[1], levels(usage), tuple(levels(remote)))


def _share_of_many(usage: StoreUsage, journal: TopicSums, topics: Integers, remote: StoreUsage) -> TopicShare:
    def bytes_of(sums: TopicSums) -> tuple[int, int]:
        there = numpy.isin(sums.topics, topics, assume_unique=True)
        return int(sums.files[there].sum()), int(sums.bytes[there].sum())

    def levels(of: StoreUsage) -> list[tuple[Level, int, int]]:
        found: Sequence[tuple[Level, int, int]] = [(level, *bytes_of(sums)) for level, sums in of.levels.items()]
        return [row for row in found if row[1]]

    return TopicShare(-1, bytes_of(journal)[1], levels(usage), tuple(levels(remote)))
