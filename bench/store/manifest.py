"""`python -m bench.store.manifest`: a manifest of a million files: start, changes, questions about all files, memory.

A synthetic database is written in rows, as it is before any page is; it is opened, put into pages, and opened again.
The files themselves are nowhere: only what the manifest knows of them is asked for. Nineteen of twenty are queue
segments of merges, each of a queue of its own within its span; the others are runs that count for all write groups.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy

from bench.stalls.turns import MeasuredLoop
from mainstem.ports import Clock
from mainstem.process.heap import Heap
from mainstem.rpc.messages.snapshots import RANGES_PER_PART, DescribedRange
from mainstem.storage.compacting.compact_plan import Rules
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_measure import TopicFacts
from mainstem.storage.merging.segment_lines import SegmentLines
from mainstem.storage.queue_store.changes.compactions import CompactionRules
from mainstem.storage.queue_store.changes.merge_facts import ENDLESS, LiveBounds
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.copies.kept_history import choose as choose_kept
from mainstem.storage.queue_store.copies.kept_history import own_spans
from mainstem.storage.queue_store.manifest.database.manifest_database import Database, WriteGroupSplit
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.manifest.store_mark import StoreMark, write_mark
from mainstem.storage.queue_store.reading.file_search import FileSearch
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.store_file import StoreFile

GROUPS = 4
SPAN_FILES = 1_000
"""Queue segments of one merge."""
RUN_PART = 20
"""One of so many files is a run."""
OFFSETS = 100
"""Of a queue segment."""
TOPIC_QUEUES = 100
COMMITS = 200
SEEN_MS = 1_700_000_000_000

_KEYS = """
CREATE TABLE keys (
    name TEXT PRIMARY KEY REFERENCES files (name) ON DELETE CASCADE, level INTEGER NOT NULL,
    write_group INTEGER NOT NULL, first_queue INTEGER NOT NULL, last_queue INTEGER NOT NULL,
    first_offset INTEGER NOT NULL, clean_ms INTEGER NOT NULL, horizon_ms INTEGER NOT NULL
) WITHOUT ROWID
"""


Case = Callable[[], Awaitable[dict[str, object]]]
"""Something that is asked; it returns figures beside those of the loop's turns."""


class WallClock(Clock):
    def now_ms(self) -> int:
        return SEEN_MS

    def monotonic(self) -> float:
        return time.monotonic()


def queue_id_of(place: int) -> int:
    return ((place // TOPIC_QUEUES + 1) << 32) + place % TOPIC_QUEUES


def rows(files: int) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...] | None, list[tuple[int, int, int]]]]:
    """(row of `files`, row of `keys`, (write group, after, upto) of its ranges), a file after the other."""
    runs = files // RUN_PART
    upto = 0
    for number in range(files - runs):
        group, rest = number % GROUPS, number // GROUPS
        span, place = divmod(rest, SPAN_FILES)
        upto = max(upto, span + 1)
        topic, partition = divmod(place, TOPIC_QUEUES)
        name = f"topic-{topic}/{partition}/{uuid.UUID(int=number).hex}/{span * OFFSETS:020d}.log"
        size = 100_000_000 + number * 7919 % 1_000_000
        queue_id = queue_id_of(place)
        yield (
            (name, "7d", size, size, OFFSETS, 10 * OFFSETS, 1, SEEN_MS - 1000, SEEN_MS),
            (name, 2, group, queue_id, queue_id, span * OFFSETS, -1, -1),
            [(group, span, span + 1)],
        )
    for number in range(runs):
        name = f"{number:012d}-0000004096-{uuid.UUID(int=files + number).hex}.run"
        yield (
            (name, "7d", 1 << 24, 1 << 24, 1000, 10_000, 100, SEEN_MS - 1000, SEEN_MS), None,
            [(group, upto + number, upto + number + 1) for group in range(GROUPS)],
        )  # fmt: skip


def write_rows(path: Path, files: int) -> None:
    """A database as version 2 of it is, with its files in rows."""
    made = Database(str(path))
    made.open()
    made.adopt(uuid.UUID(int=1), 0)
    made.close()
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    database.execute("BEGIN")
    database.execute("DROP TABLE seal")  # as a version without seals left it
    database.execute(_KEYS)
    database.execute("PRAGMA user_version = 2")
    parts, last = rows(files), [0] * GROUPS
    while part := list(islice(parts, 10_000)):
        database.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [row for row, _keys, _at in part])
        database.executemany(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [keys for _row, keys, _at in part if keys is not None]
        )
        ranges = [(*blocks, row[0]) for row, _keys, held in part for blocks in held]
        database.executemany("INSERT INTO ranges (write_group, after, upto, name) VALUES (?, ?, ?, ?)", ranges)
        database.executemany("INSERT INTO seen VALUES (?, ?)", [(row[0], SEEN_MS) for row, _keys, _at in part])
        for group, _after, upto, _name in ranges:
            last[group] = max(last[group], upto)
    for group, upto in enumerate(last):
        database.execute("INSERT INTO positions VALUES (?, ?, ?)", (group, upto, upto))
    database.execute("COMMIT")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


class Indexes:
    """Stands for the files: the index of a queue segment has its one queue. Counts how many are asked for."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.loads = 0

    @property
    def summaries(self) -> Indexes:
        return self

    def may_hold(self, _name: str, _queue_id: int) -> bool:
        return True

    def has_small_queues(self, _known: KnownFile) -> bool:
        return False

    async def rows_with(self, known: KnownFile, _queue_id: int) -> ExtentIndex:
        self.loads += 1
        await asyncio.sleep(0)
        file = self._manifest.files[known.name]
        found = numpy.zeros(1, EXTENT_ROW)
        found["queue_id"], found["base_offset"] = max(file.first_queue, 0), max(file.first_offset, 0)
        found["last_offset"] = found["base_offset"] + OFFSETS - 1
        return ExtentIndex(found, known.name)


SEGMENT_LINES = SegmentLines(
    dict.fromkeys(range(SPAN_FILES // TOPIC_QUEUES + 1), TopicFacts("", "forever", 1 << 30)), MergeLines()
)


def all_is_live(_group: int, queue_ids: QueueIds) -> LiveBounds:
    return LiveBounds(numpy.zeros(len(queue_ids), numpy.int64), numpy.full(len(queue_ids), ENDLESS, numpy.int64))


class Cases:
    """Asks a store for one thing after the other; the files themselves are nowhere, so no index is read."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._manifest = store.manifest

    def all(self) -> dict[str, Case]:
        return {
            "choice of merges": self.choice,
            "the same again": self.choice,
            "commit": self.commit,
            "merge of 1,000 files": self.merge,
            "retention": self.retention,
            "first seen": self.first_seen,
            "usage": self.usage,
            "metrics": self.metrics,
            "snapshot listing": self.listing,
            "cold look-up": self.look_up,
            "begin of a merge": self.begin,
            "choice of compactions": self.compactions,
            "what a replica keeps": self.kept,
        }

    async def commit(self) -> dict[str, object]:
        times: list[float] = []
        for number in range(COMMITS):
            name = f"{number:012d}-0000000001-{uuid.uuid4().hex}.run"
            file = StoreFile(
                name=name, retention_class="7d", bytes=9, batch_bytes=9, batch_count=1, record_count=1, queue_count=1,
                min_timestamp=1, max_timestamp=1,
            )  # fmt: skip
            positions = [self._manifest.position(group).position for group in range(GROUPS)]
            began = time.perf_counter()
            await self._manifest.record_splits(
                [WriteGroupSplit(group, after, after + 1, (file,), after) for group, after in enumerate(positions)]
            )
            times.append(1000 * (time.perf_counter() - began))
        return {"p50_ms": round(statistics.median(times), 2), "max_ms": round(max(times), 2)}

    async def merge(self) -> dict[str, object]:
        spans = self._manifest.spans(1)
        inputs = list(spans[0])
        outputs = [
            StoreFile(
                name=f"{uuid.uuid4().hex}.pack", retention_class="7d", bytes=9, batch_bytes=9, batch_count=1,
                record_count=1, queue_count=1, min_timestamp=1, max_timestamp=1, level=1, group=1,
                first_queue=queue_id_of(10 * at), last_queue=queue_id_of(10 * at + 9), first_offset=0,
            )
            for at in range(SPAN_FILES // 10)
        ]  # fmt: skip
        await asyncio.sleep(0)
        await self._manifest.merge(1, inputs, outputs)
        return {"inputs": len(inputs)}

    async def retention(self) -> dict[str, object]:
        """A look at files that are all live."""
        for page in self._manifest.files.pages.values():
            page.witness = numpy.ones(len(page.alive), numpy.uint64)
            page.witness_last = numpy.ones(len(page.alive), numpy.int64)
        await asyncio.sleep(0)
        dropped = await self._store.retention.retain(lambda queue_ids: numpy.zeros(len(queue_ids), numpy.int64))
        assert not dropped
        return {}

    async def first_seen(self) -> dict[str, object]:
        await self._store.retention.first_seen(SEEN_MS + 1)
        return {}

    async def usage(self) -> dict[str, object]:
        self._store.stored.open_files.index = self._no_index  # type: ignore[method-assign]
        found = await self._store.topic_usage.of_store()
        return {"levels": len(found.levels)}

    @staticmethod
    async def _no_index(known: KnownFile, *, keep: bool = True) -> ExtentIndex:
        raise FileNotFoundError(known.name)

    async def metrics(self) -> dict[str, object]:
        return {"samples": len(list(self._store.samples()))}

    async def listing(self) -> dict[str, object]:
        """As a snapshot of a write group lists its files."""
        count = 0
        described = (
            DescribedRange(after, upto, file.message()) for after, upto, file in self._manifest.spans(0).described()
        )
        while part := list(islice(described, RANGES_PER_PART)):
            count += len(part)
            await asyncio.sleep(0)
        return {"files": count}

    async def choice(self) -> dict[str, object]:
        """All spans are looked at, and none is worth it: runs cannot be read, queue segments are live."""
        self._store.stored.open_files.index = self._no_index  # type: ignore[method-assign]
        before = self._store.merges.facts.added_up
        waits = await self._store.merges.waits(GROUPS, MergeLines(), SEGMENT_LINES, all_is_live)
        return {
            "worth": waits.bytes,
            "chunks": self._store.merges.facts.added_up - before,
            "facts_bytes": self._store.merges.facts.held_bytes,
        }

    async def begin(self) -> dict[str, object]:
        """As many runs as a merge may have are chosen and held, each with a queue of its own."""
        self._store.stored.open_files.index = self._an_index  # type: ignore[method-assign]
        begun, _more = await self._store.merges.begin(
            "a merge", GROUPS, MergeLines(), SEGMENT_LINES, all_is_live, lambda: True
        )
        self._store.merges.give_up()
        return {"inputs": len(begun.inputs) if begun is not None else 0}

    async def compactions(self) -> dict[str, object]:
        """Files are looked at for as long as an answer may take; none of them has a queue that is compacted."""
        self._store.stored.open_files.index = self._an_index  # type: ignore[method-assign]

        def rules_of(queue_ids: QueueIds) -> Rules:
            none = numpy.zeros(len(queue_ids), numpy.int64)
            return Rules(none != 0, none.astype(numpy.float64), none, none, none, none)

        rules = CompactionRules(frozenset([1]), frozenset(), rules_of, lambda _group, queue_ids: queue_ids >= 0)
        waits = await self._store.compactions.waits(GROUPS, rules, SEEN_MS)
        return {"worth": waits.bytes}

    async def kept(self) -> dict[str, object]:
        """As a replica chooses that takes a snapshot of a write group."""
        described, theirs = self._manifest.spans(0).described(), list[tuple[int, int, StoreFile]]()
        while part := list(islice(described, RANGES_PER_PART)):
            theirs += part
            await asyncio.sleep(0)
        own = await own_spans(self._manifest.spans(0), lambda name: self._manifest.files[name].bytes > 0)
        found = await asyncio.to_thread(choose_kept, own, own[-1].upto, theirs, parts=True)
        return {"wanted": len(found.wanted)}

    @staticmethod
    async def _an_index(known: KnownFile, *, keep: bool = True) -> ExtentIndex:
        found = numpy.zeros(1, EXTENT_ROW)
        found["queue_id"], found["length"] = abs(hash(known.name)) % (1 << 40), 1 << 20
        return ExtentIndex(found, known.name)

    async def look_up(self) -> dict[str, object]:
        """Offsets in the merged spans that have a file of each queue; the last of them may not."""
        indexes = Indexes(self._manifest)
        search = FileSearch(self._manifest, indexes)  # type: ignore[arg-type]
        spans = self._manifest.spans(2)
        merged = 0
        while not spans[merged].runs and len([*spans[merged]]) >= SPAN_FILES:
            merged += 1
            await asyncio.sleep(0)  # it is the look-ups that are measured
        most = 0
        for number in range(50):
            before = indexes.loads
            offset = number * 7919 % (merged * OFFSETS)
            found = await search.find(queue_id_of(number * 13 % SPAN_FILES), spans[:merged], offset)
            assert found is not None
            most = max(most, indexes.loads - before)
        return {"files_max": most}


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def stored(path: Path, directory: Path) -> AsyncIterator[tuple[QueueStore, float, int]]:
    """Open the store once, and yield it with the seconds and the bytes of memory that took."""
    files = DiskFiles(directory)
    gc.collect()
    before, began = memory_bytes(), time.perf_counter()
    store = await QueueStore.open(files, str(path), QueueStoreConfig(), WallClock())
    seconds = time.perf_counter() - began
    gc.collect()
    try:
        yield store, seconds, memory_bytes() - before
    finally:
        await store.close()
        await files.close()


async def measure(loop: MeasuredLoop, files: int, directory: Path) -> dict[str, dict[str, object]]:
    path = directory / "manifest.sqlite"
    await asyncio.to_thread(write_rows, path, files)
    results: dict[str, dict[str, object]] = {}
    disk = DiskFiles(directory / "store")
    await write_first_mark(disk)
    await disk.close()
    async for store, seconds, size in stored(path, directory / "store"):
        results["start from rows"] = {"seconds": round(seconds, 2), "bytes_per_file": size // files}
        began = time.perf_counter()
        largest, turns = await loop.measured(store.changes.fold())
        seconds = time.perf_counter() - began
        results["into pages"] = {"largest_ms": round(1000 * largest, 2), "turns": turns, "seconds": round(seconds, 2)}
    async for store, seconds, size in stored(path, directory / "store"):
        results["start"] = {"seconds": round(seconds, 2), "bytes_per_file": size // files}
        heap = Heap()
        heap.started()  # as a node's, which collects in quiet moments from now on
        keeping = asyncio.get_running_loop().create_task(heap.keep(lambda: 0))
        for name, case in Cases(store).all().items():
            found: dict[str, object] = {}
            began = time.perf_counter()
            largest, turns = await loop.measured(_noted(case, found))
            seconds = time.perf_counter() - began
            results[name] = {
                "largest_ms": round(1000 * largest, 2),
                "turns": turns,
                "seconds": round(seconds, 2),
                **found,
            }
        keeping.cancel()
    return results


async def _noted(case: Case, found: dict[str, object]) -> None:
    found.update(await case())


async def write_first_mark(files: DiskFiles) -> None:
    """The mark that goes with the database, which was made beside it."""
    await write_mark(files, StoreMark(uuid.UUID(int=1), 0))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.store.manifest", description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loop = MeasuredLoop()
    asyncio.set_event_loop(loop)
    try:
        with tempfile.TemporaryDirectory() as directory:
            results = loop.run_until_complete(measure(loop, options.files, Path(directory)))
    finally:
        loop.close()
    if options.json:
        print(json.dumps({"files": options.files, "cases": results}, indent=2))
        return
    print(f"{options.files:,} files")
    for name, result in results.items():
        print(f"{name:22} " + ", ".join(f"{key} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
