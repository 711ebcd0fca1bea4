"""The processor time of a merge: seconds of it per byte, for few large and many small queues.

    python -m bench.store.merge --mebibytes 1024

Inputs are written, read once so that they lie in the page cache, and merged as tasks of Spark would merge them, in this
process. A line per kind of load: megabytes per second of processor time of the tasks (system time included), and with
the measuring before them; seconds on the clock; extents before and after; memory at most. With `--profile` the
costliest functions follow. With `--kafka` the segments are checked by Kafka's own `kafka-dump-log`, whose jars come by
Maven.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy

from bench.store import kafka_dump
from mainstem.protocol.records.builder import NewRecord, build_batch
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_files import merge_files
from mainstem.storage.merging.merge_inputs import InputFile, index_pieces
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import NO_END, Liveness, LiveOffsets
from mainstem.storage.merging.merge_measure import TopicFacts, measure
from mainstem.storage.merging.merge_spans import FINAL
from mainstem.storage.store_files.extents_writer import BATCH_ROW
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import FileKind, StoreFile, index_path_of, kind_of, path_of

MEBIBYTE = 1 << 20
RUN_BYTES = 64 * MEBIBYTE
TOPIC = "orders"
SEGMENT_BYTES = 128 * MEBIBYTE
STARTED_MS = 1_700_000_000_000


class Load(NamedTuple):
    name: str
    queues: int
    record_bytes: int
    records: int
    """Per batch."""


LOADS = (
    Load("4 queues, batches of 16 KiB", 4, 1_000, 16),
    Load("4 queues, batches of 1.1 KB", 4, 1_000, 1),
    Load("20,000 queues, batches of 1.1 KB", 20_000, 1_000, 1),
    Load("a million queues, batches of 1.1 KB", 1_000_000, 1_000, 1),
    Load("a million queues, batches of 170 B", 1_000_000, 80, 1),
)


class Figures(NamedTuple):
    bytes: int
    measure_seconds: float
    """Of the processor."""
    merge_seconds: float
    clock_seconds: float
    rows_before: int
    rows_after: int
    memory_bytes: int
    files: list[StoreFile]


class Inputs:
    """Runs of a load in a directory."""

    def __init__(self, root: Path, load: Load) -> None:
        self._root = root
        self._load = load
        self._offsets = numpy.zeros(load.queues, numpy.int64)
        self._random = numpy.random.default_rng(1)
        value = random.Random(1).randbytes(load.record_bytes)
        records = [NewRecord(STARTED_MS + at, None, value) for at in range(load.records)]
        self._batch = numpy.frombuffer(bytes(build_batch(records).data), numpy.uint8)
        self.files: list[InputFile] = []

    def write(self, size: int) -> None:
        """One more run, of about so many bytes."""
        count = max(1, size // len(self._batch))
        queues = numpy.sort(self._random.integers(0, self._load.queues, count))
        firsts = numpy.concatenate(([0], numpy.flatnonzero(queues[1:] != queues[:-1]) + 1))
        counts = numpy.diff(firsts, append=count)
        within = numpy.arange(count) - numpy.repeat(firsts, counts)
        rows = numpy.zeros(count, BATCH_ROW)
        rows["queue_id"] = queues
        rows["base_offset"] = (self._offsets[queues] + within) * self._load.records
        rows["last_offset"] = rows["base_offset"] + self._load.records - 1
        rows["max_timestamp"] = STARTED_MS + self._load.records - 1
        rows["length"] = len(self._batch)
        rows["record_count"] = self._load.records
        self._offsets[queues[firsts]] += counts
        name = f"{len(self.files)}.run"
        with RunWriter(name, LocalRunTarget(self._root / "runs", name)) as writer:
            for at in range(0, count, 8192):
                some = rows[at : at + 8192]
                content = numpy.tile(self._batch, (len(some), 1))
                content[:, :8] = some["base_offset"].astype(">i8").view(numpy.uint8).reshape(-1, 8)
                content[:, 12:16] = 0  # leader epoch
                writer.append([content.reshape(-1).data], some)
            writer.finish()
        self.files.append(InputFile(name, str(self._root / path_of(name)), str(self._root / index_path_of(name))))


def merged(root: Path, load: Load, size: int) -> Figures:
    inputs = Inputs(root, load)
    for _ in range(max(2, size // RUN_BYTES)):
        inputs.write(min(RUN_BYTES, size // 2))
    for file in inputs.files:
        Path(file.path).read_bytes()  # into the page cache
    liveness = Liveness(_all_live)
    topics = {0: TopicFacts(TOPIC, "default", SEGMENT_BYTES)}
    cpu, clock = time.process_time(), time.perf_counter()
    measured = measure(inputs.files, liveness, topics, MergeLines())
    planned = time.process_time()
    files = [
        file
        for task in measured.tasks
        for file in merge_files(
            task,
            inputs.files,
            Liveness(_all_live),
            lambda path: LocalRunTarget((root / path).parent, (root / path).name),
            group=0,
            level=FINAL,
        )
    ]
    done = time.process_time()
    return Figures(
        measured.bytes,
        planned - cpu,
        done - planned,
        time.perf_counter() - clock,
        sum(len(rows) for file in inputs.files for rows in index_pieces(file)),
        sum(_rows_of(root, file) for file in files),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        files,
    )


def _all_live(queue_ids: QueueIds) -> LiveOffsets:
    return LiveOffsets(numpy.zeros(len(queue_ids), numpy.int64), numpy.full(len(queue_ids), NO_END, numpy.int64))


def _rows_of(root: Path, file: StoreFile) -> int:
    found = InputFile(file.name, str(root / path_of(file.name)), str(root / index_path_of(file.name)))
    return sum(len(rows) for rows in index_pieces(found))


def check_with_kafka(root: Path, files: list[StoreFile]) -> str:
    """Has Kafka read the segments and their indexes. Raises BenchError with what it says is wrong."""
    segments = [file for file in files if kind_of(file.name) is FileKind.SEGMENT]
    return kafka_dump.check([root / path_of(file.name) for file in segments], sum(it.batch_count for it in segments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024, help="of inputs")
    parser.add_argument("--only", default="", help="loads whose name has this in it")
    parser.add_argument("--directory", type=Path, help="on the disk to write to; a temporary one unless said")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--kafka", action="store_true", help="have Kafka check the segments")
    options = parser.parse_args()
    columns = ("load", "MB/s", "measured too", "clock s", "extents", "after", "files", "MiB")
    print(f"{columns[0]:38}" + "".join(f"{column:>13}" for column in columns[1:]))
    for load in (one for one in LOADS if options.only in one.name):
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            profile = cProfile.Profile()
            if options.profile:
                figures = profile.runcall(merged, Path(directory), load, options.mebibytes * MEBIBYTE)
            else:
                figures = merged(Path(directory), load, options.mebibytes * MEBIBYTE)
            print(
                f"{load.name:38}{figures.bytes / figures.merge_seconds / 1e6:13,.0f}"
                f"{figures.bytes / (figures.merge_seconds + figures.measure_seconds) / 1e6:13,.0f}"
                f"{figures.clock_seconds:13.1f}{figures.rows_before:13,}{figures.rows_after:13,}"
                f"{len(figures.files):13}{figures.memory_bytes / MEBIBYTE:13,.0f}",
                flush=True,
            )
            if options.profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(18)
            if options.kafka and any(kind_of(file.name) is FileKind.SEGMENT for file in figures.files):
                print(check_with_kafka(Path(directory), figures.files))


if __name__ == "__main__":
    main()
