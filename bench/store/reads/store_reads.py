"""Measures the processor time of reading a small queue among months of data, merged, with nothing of it in memory.

    python -m bench.store.reads.store_reads --runs 10000

A queue store of full size is put together: a million queues in four write groups, each merged from 8 GiB at a time
into packed files of 128 MiB, as many as so many runs of 64 MiB come to. Every file has its whole index. Of the
batches only those of the queues that are read are there; for the others the files have holes. The store is opened
anew, each file that is to be read is looked at once, as after each start, and then queue after queue is read from its
first offset to its last. Indexes that one queue brought into memory are not those of the next.

Per queue: milliseconds of this process's processor time, all threads; on the clock; batches are 1.1 KB. The rest of the
cost, of the request and its answer, is in workload 8 and 9 of the bench."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy

from bench.errors import BenchError
from mainstem.kernel import crc32c
from mainstem.protocol.records.builder import NewRecord, build_batch
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.extents.aborted import no_rows, section_of
from mainstem.storage.extents.extent_format import (
    ABORTED_VERSION,
    EXTENT_ROW,
    FRAME_BYTES,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import RUN_SUFFIX, StoreFile, path_of

MEBIBYTE = 1 << 20
RUN_BYTES = 64 * MEBIBYTE
WRITE_GROUPS = 4
GROUP_QUEUES = 250_000
SPAN_BYTES = 8 << 30
PACKED_BYTES = 128 * MEBIBYTE
FILES = SPAN_BYTES // PACKED_BYTES
"""Of a span."""
FILE_QUEUES = GROUP_QUEUES // FILES
QUEUE_BYTES = 600_000
READ_QUEUE = FILE_QUEUES // 3
"""The place of the one queue of each file that is read."""
CONFIG = QueueStoreConfig(index_cache_bytes=4 * MEBIBYTE, read_cache_bytes=8 * MEBIBYTE)
"""Memory for what one queue needs at once."""
FETCH_BYTES = 1 << 20
STARTED_MS = 1_700_000_000_000
GROUP = 0


class Clock:
    def now_ms(self) -> int:
        return STARTED_MS

    def monotonic(self) -> float:
        return time.monotonic()


class Figures(NamedTuple):
    """Per queue, medians but for the processor time."""

    runs: int
    spans: int
    files: int
    queue_bytes: float
    cpu_ms: float
    clock_ms: float
    first_cpu_ms: float
    """When nothing of the files had been looked at since the start."""


class Months:
    """The files of one write group in a directory; the others fare the same."""

    def __init__(self, root: Path, runs: int) -> None:
        self.root = root
        self.runs = runs
        self.spans = max(1, runs * RUN_BYTES // WRITE_GROUPS // SPAN_BYTES)
        batch = bytes(build_batch([NewRecord(STARTED_MS, None, random.Random(1).randbytes(1024))]).data)
        self._batch = numpy.frombuffer(batch, numpy.uint8)
        self.batches = max(1, QUEUE_BYTES // self.spans // len(batch))
        """Of a queue that is read, in each span."""

    @property
    def queue_bytes(self) -> int:
        return self.spans * self.batches * len(self._batch)

    def read_queues(self) -> list[int]:
        """One amid each file, in no order."""
        queues = [file * FILE_QUEUES + READ_QUEUE for file in range(FILES)]
        random.Random(2).shuffle(queues)
        return queues

    def write_packed(self, span: int, file: int) -> StoreFile:
        """Write a packed file with holes, and describe it."""
        name = f"{GROUP}-{file * FILE_QUEUES:016x}-{span:032x}.pack"
        rows = numpy.zeros(FILE_QUEUES, EXTENT_ROW)
        rows["queue_id"] = file * FILE_QUEUES + numpy.arange(FILE_QUEUES)
        rows["batch_count"] = rows["record_count"] = self.batches
        rows["base_offset"] = span * self.batches
        rows["last_offset"] = rows["base_offset"] + self.batches - 1
        rows["max_timestamp"] = STARTED_MS
        rows["length"] = PACKED_BYTES // FILE_QUEUES
        content = numpy.tile(self._batch, (self.batches, 1))
        content[:, :8] = (
            (span * self.batches + numpy.arange(self.batches)).astype(">i8").view(numpy.uint8).reshape(-1, 8)
        )
        content[:, 12:16] = 0  # leader epoch
        rows["length"][READ_QUEUE] = content.size
        rows["crc"][READ_QUEUE] = crc32c(content.reshape(-1).data)
        lengths = rows["length"].astype(numpy.uint64)
        rows["position"] = FRAME_BYTES + numpy.cumsum(lengths) - lengths
        size, index, name_crc = int(lengths.sum()), rows.tobytes(), name_crc_of(name)
        aborted = section_of(no_rows(), FRAME_BYTES + size + len(index), name_crc)
        footer = FileFrame(
            RUN_MAGIC,
            crc32c(index),
            FRAME_BYTES + size,
            len(rows),
            size,
            STARTED_MS,
            STARTED_MS,
            name_crc,
            ABORTED_VERSION,
        )
        end = index + aborted + footer.pack()
        path = self.root / path_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as target:
            target.write(FileFrame(RUN_MAGIC, version=ABORTED_VERSION).pack())
            target.seek(int(rows["position"][READ_QUEUE]))
            target.write(content.reshape(-1).data)
            target.seek(FRAME_BYTES + size)
            target.write(end)
            target.flush()
            os.fdatasync(target.fileno())
            os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        count = FILE_QUEUES * self.batches
        return StoreFile(
            name=name, retention_class="forever", bytes=FRAME_BYTES + size + len(end), batch_bytes=size,
            batch_count=count, record_count=count, queue_count=FILE_QUEUES,
            min_timestamp=STARTED_MS, max_timestamp=STARTED_MS, level=1,
            group=GROUP, first_queue=int(rows["queue_id"][0]), last_queue=int(rows["queue_id"][-1]),
            first_offset=int(rows["base_offset"][0]),
        )  # fmt: skip

    async def record(self, store: QueueStore) -> None:
        """Have the store's manifest name all files, span by span, as merges of a run each."""
        for span in range(self.spans):
            name = f"{span}{RUN_SUFFIX}"
            summary = RunWriter(name, LocalRunTarget(self.root / "runs", name)).finish()
            run = StoreFile(retention_class="forever", **summary._asdict())
            await store.splits.record(GROUP, span, span + 1, [run], applied_index=span)
            files = [self.write_packed(span, file) for file in range(FILES)]
            (recorded,) = [one for one in store.manifest.spans(GROUP) if one.after == span]
            await store.changes.merge(GROUP, list(recorded), files)


async def read_whole(store: QueueStore, queue_id: int, wanted: int) -> None:
    """As a consumer that is given a mebibyte at a time. Raises BenchError unless all of it comes."""
    offset = size = 0
    while size < wanted:
        found = await store.history.read(queue_id, GROUP, offset, FETCH_BYTES)
        if found is None:
            raise BenchError(f"queue {queue_id} ends at offset {offset}, after {size} of {wanted} bytes")
        offset, size = found.next_offset, size + sum(map(len, found.batches))


async def measured(root: Path, runs: int) -> Figures:
    months = Months(root / "store", runs)
    months.root.mkdir()
    files, manifest = DiskFiles(months.root), str(root / "manifest.sqlite")
    store = await QueueStore.open(files, manifest, CONFIG, Clock())
    await months.record(store)
    await store.close()
    store = await QueueStore.open(files, manifest, CONFIG, Clock())
    try:
        passes = []
        for _ in range(2):
            cpu, clock = [], []
            for queue_id in months.read_queues():
                begun, at = time.process_time(), time.perf_counter()
                await read_whole(store, queue_id, months.queue_bytes)
                cpu.append(1000 * (time.process_time() - begun))
                clock.append(1000 * (time.perf_counter() - at))
            passes.append((statistics.mean(cpu), statistics.median(clock)))
    finally:
        await store.close()
        await files.close()
    (first, _), (cpu_ms, clock_ms) = passes
    return Figures(runs, months.spans, months.spans * FILES, months.queue_bytes, cpu_ms, clock_ms, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="of 64 MiB, that were merged")
    parser.add_argument("--directory", type=Path, help="on the disk to write to; a temporary one unless said")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = asyncio.run(measured(Path(directory), options.runs))
    if options.json:
        print(json.dumps(figures._asdict()))
        return
    print(
        f"{figures.runs:,} runs in {figures.files:,} packed files of a write group, {figures.spans} deep: "
        f"{figures.queue_bytes / 1e3:.0f} KB in {figures.cpu_ms:.2f} ms of CPU, {figures.clock_ms:.1f} on the clock; "
        f"{figures.first_cpu_ms:.2f} ms of CPU where the files were not looked at before"
    )


if __name__ == "__main__":
    main()
