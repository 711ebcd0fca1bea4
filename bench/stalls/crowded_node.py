"""A storage role that has much of everything, put together in memory: queues, producers, runs, sealed segments.

State that takes a node days to come by is put in its place at once. Files that are only named are never read: the cases
ask for what a node has in memory at such times."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from mainstem.kernel import COMMITTED_END, NEXT_OFFSET
from mainstem.kernel.pure.producer_states import ProducerState, SeenBatch
from mainstem.model import SLOTS, Topic, TopicSettings
from mainstem.storage.config import StorageConfig
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.extents.extent_index import ExtentIndex, QueueFilter
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.format import FIRST_BLOCK, position_of, segment_name
from mainstem.storage.journal.journal_map import Mark
from mainstem.storage.journal.segments.inventory import SegmentInfo
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupPosition
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.mirror import columns_of
from mainstem.storage.queue_store.reading.file_summaries import FileSummary
from mainstem.storage.role import Storage
from mainstem.storage.setup import StorageSetup
from mainstem.storage.state.queue_scan import chunks
from mainstem.storage.store_files.store_file import StoreFile

GROUPS = 4
PARTITIONS = 100
"""Of a topic."""

ROWS_PER_SEGMENT = 1_000
INDEX_CACHE_BYTES = 1 << 30
"""Holds the indexes of all segments: they are made in memory alone, and one that is dropped could not be made again."""

MARKS_PER_SEGMENT = 64
"""As a segment of 64 MiB has."""

PIECE = 1_000
"""Producers put in at a time."""


class Crowd(NamedTuple):
    queues: int = 1_000_000
    producers: int = 200_000
    runs: int = 10_000
    segments: int = 1_000


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class CrowdedNode:
    """`storage`, its `topics`, and those that were `deleted`."""

    def __init__(self, storage: Storage, topics: tuple[Topic, ...], deleted: set[int]) -> None:
        self.storage = storage
        self.topics = topics
        self.deleted = deleted

    @property
    def absent_queue(self) -> int:
        """One that no run and no segment has."""
        return (len(self.topics) << 32) + PARTITIONS - 1


@asynccontextmanager
async def crowded_node(directory: Path, crowd: Crowd) -> Any:
    topics = tuple(
        Topic(
            name=f"topic-{number}", number=number, topic_id=uuid.UUID(int=number), partitions=PARTITIONS,
            settings=TopicSettings(retention_bytes=1 << 40),
        )
        for number in range(1, crowd.queues // PARTITIONS + 1)
    )  # fmt: skip
    deleted: set[int] = set()
    disk1, disk2 = DiskFiles(directory / "write"), DiskFiles(directory / "store")
    try:
        storage = await Storage.open(StorageSetup(
            write_files=disk1, store_files=disk2, clock=Clock(),
            config=StorageConfig(prune_seconds=1e6, retention_check_seconds=1e9, disk_check_seconds=1e6),
            journal_config=JournalConfig(segment_bytes=1 << 20, pool_segments=0, index_cache_bytes=INDEX_CACHE_BYTES),
            store_config=QueueStoreConfig(),
            manifest_path=str(directory / "manifest.sqlite"), journal_path=str(directory / "write/journal"),
            slots=[slot % GROUPS for slot in range(SLOTS)], topics=lambda: topics, was_deleted=deleted.__contains__,
        ))  # fmt: skip
        await storage.start()
        try:
            _have_queues(storage, topics)
            _have_producers(storage, crowd, topics)
            _have_runs(storage, crowd)
            _have_segments(storage, crowd)
            yield CrowdedNode(storage, topics, deleted)
        finally:
            storage.journal._segments.clear()  # they are nowhere
            await storage.close()
    finally:
        await disk1.close()
        await disk2.close()


def _have_queues(storage: Storage, topics: tuple[Topic, ...]) -> None:
    for topic in topics:
        storage.table.create(topic.number, 0, topic.partitions)
    for cells in chunks(storage.table):
        used = cells[:, 0] != 0
        cells[used, COMMITTED_END] = cells[used, NEXT_OFFSET] = 10


def _queue_ids(topics: tuple[Topic, ...]) -> Iterator[int]:
    while True:
        for topic in topics:
            yield topic.number << 32


def _have_producers(storage: Storage, crowd: Crowd, topics: tuple[Topic, ...]) -> None:
    queue_ids = _queue_ids(topics)
    batches = tuple(SeenBatch(10 * number, 10 * number + 9, 10 * number, 1) for number in range(5))
    state = ProducerState(0, batches, 1)
    for group in storage.groups:
        for first in range(0, crowd.producers // GROUPS, PIECE):
            group.producers.load([(next(queue_ids), first + number, state) for number in range(PIECE)])


def _have_runs(storage: Storage, crowd: Crowd) -> None:
    store = storage.queue_store
    manifest = store.manifest
    known = QueueFilter(numpy.arange(1 << 40, (1 << 40) + 100, dtype=numpy.uint64))
    ranges, rows = [], {}
    for number in range(crowd.runs):
        name = f"{number:012d}-0000004096-{uuid.UUID(int=number).hex}.run"
        rows[name] = manifest.files.add(StoreFile(
            name=name, retention_class="7d", bytes=1 << 20, batch_bytes=1 << 20, batch_count=100, record_count=100,
            queue_count=100, min_timestamp=1, max_timestamp=1 << 60,
        ))  # fmt: skip
        ranges.append(FileRange(number + 1, 0, number, number + 1, name))
        store.stored.open_files.summaries.keep(name, FileSummary(known, None))
        manifest.files.witness(name, (1 << 32, 5))
    manifest._mirror.load_ranges(columns_of(ranges, rows))
    manifest._positions[0] = WriteGroupPosition(crowd.runs, crowd.runs)


def _have_segments(storage: Storage, crowd: Crowd) -> None:
    journal = storage.journal
    first = max(0, journal.oldest_sequence) + 1_000_000
    infos = []
    for number in range(crowd.segments):
        sequence = first + number
        rows = numpy.zeros(ROWS_PER_SEGMENT, EXTENT_ROW)
        rows["queue_id"] = (1 << 32) + numpy.arange(ROWS_PER_SEGMENT) % PARTITIONS
        rows["base_offset"] = rows["last_offset"] = number
        rows["length"] = 100
        rows.sort(order=["queue_id", "base_offset"])
        rows["last_offset"] = rows["base_offset"] = numpy.arange(ROWS_PER_SEGMENT)
        journal._indexes._cached.put(sequence, ExtentIndex(rows, segment_name(sequence)))
        start = position_of(sequence, FIRST_BLOCK)
        infos.append(SegmentInfo(sequence, segment_name(sequence), start, start + 1000, True, 1, True, 1 << 20))
    journal._segments[:] = infos
    journal.durable_end = max(journal.durable_end, infos[-1].end)
    storage.state.journal_map._kept[:] = _marks(storage, infos)


def _marks(storage: Storage, infos: list[SegmentInfo]) -> list[Mark]:
    none = (0,) * GROUPS
    return [
        Mark(info.first + step * 8, info.first + step * 8 + 8, none, none, none, 1)
        for info in infos
        for step in range(MARKS_PER_SEGMENT)
    ]
