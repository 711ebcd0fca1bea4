"""Measures what compaction costs per byte: keys of records scanned, and batches written without the records that go.

    python -m bench.store.compact --mebibytes 256

Windows of 8 MiB, as a pass moves them, of batches of 16 KiB and of single records; half of the records go, all over. A
line per kind of load: megabytes of batches per second of processor time, of the scan, of the rewrite (with the search
for the offsets that stay), and of both together, also counted in bytes before compression; and how much is left. The
values of records are words, which compress by about two. With `--kafka` Kafka's own `kafka-dump-log`, whose jars come
by Maven, reads what is left of random batches, and is compared with what should be.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy

from bench.errors import BenchError
from bench.systems import kafka_jars
from mainstem.protocol.records import (
    Compression,
    NewBatch,
    NewRecord,
    build_batch,
    read_records,
    stamp_log_append_time,
    stored_batches,
)
from mainstem.storage.compacting.kept import Kept
from mainstem.storage.compacting.key_rows import scan_keys
from mainstem.storage.compacting.rewrite import Rewritten, rewrite
from mainstem.storage.compacting.window import Window

CACHE = Path.home() / ".cache" / "mainstem-bench"
MEBIBYTE = 1 << 20
WINDOW_BYTES = 8 * MEBIBYTE
BATCH_BYTES = 16 * 1024
HASH_KEY = bytes(range(16))
KEY_BYTES = 16
STARTED_MS = 1_700_000_000_000
HORIZON_MS = STARTED_MS + 86_400_000
TOMBSTONE_EVERY = 50
"""Every so many records one has no value, and its batch gets a horizon."""
_TOLD = re.compile(
    r"\| offset: (\d+) (?:Create|LogAppend)Time: (\d+) .* headerKeys: \[.*?\](?: key: (\w+))?(?: payload: (.*))?"
)
WORDS = [random.Random(number).randbytes(4).hex().encode() for number in range(512)]


class Load(NamedTuple):
    name: str
    record_bytes: int
    records: int
    """Per batch."""
    compression: Compression
    tombstones: bool = True


LOADS = (
    Load("records of 100 B", 100, BATCH_BYTES // 100, Compression.NONE),
    Load("records of 1 KB", 1000, BATCH_BYTES // 1000, Compression.NONE),
    Load("records of 1 KB, none a tombstone", 1000, BATCH_BYTES // 1000, Compression.NONE, False),
    Load("records of 1 KB, one per batch", 1000, 1, Compression.NONE),
    Load("records of 100 B, one per batch", 100, 1, Compression.NONE),
    Load("records of 100 B, lz4", 100, BATCH_BYTES // 100, Compression.LZ4),
    Load("records of 1 KB, lz4", 1000, BATCH_BYTES // 1000, Compression.LZ4),
    Load("records of 1 KB, zstd", 1000, BATCH_BYTES // 1000, Compression.ZSTD),
)


class Figures(NamedTuple):
    bytes: int
    plain_bytes: int
    """Before compression."""
    scan_seconds: float
    rewrite_seconds: float
    bytes_after: int


def window_of(load: Load, seed: int) -> tuple[bytes, int]:
    """A window of batches, and how many bytes it would have without compression."""
    chance = random.Random(seed)
    content = bytearray()
    offset = plain = 0
    while len(content) < WINDOW_BYTES:
        records = []
        for number in range(load.records):
            size = load.record_bytes - KEY_BYTES - 8
            tombstone = load.tombstones and (offset + number) % TOMBSTONE_EVERY == 0
            value = None if tombstone else b"".join(chance.choices(WORDS, k=size // 8 + 1))[:size]
            records.append(NewRecord(STARTED_MS + number, chance.randbytes(KEY_BYTES), value))
            plain += len(value or b"") + KEY_BYTES + 8
        content += build_batch(records, compression=load.compression).stored(offset, 0).data
        offset += load.records
    return bytes(content), plain


def measured(load: Load, size: int) -> Figures:
    content, plain = window_of(load, 1)
    scan_seconds = rewrite_seconds = 0.0
    left = 0
    windows = max(1, size // len(content))
    chance = numpy.random.default_rng(1)
    for _ in range(windows):
        began = time.process_time()
        rows = [piece.rows for piece in scan_keys(content, HASH_KEY)]
        scanned = time.process_time()
        offsets = numpy.concatenate([piece["offset"] for piece in rows])
        offsets = offsets[chance.random(len(offsets)) < 0.5]
        kept = Kept(numpy.zeros(len(offsets), numpy.uint64), offsets)
        chosen = time.process_time()
        made = rewritten(content, kept, int(offsets[-1]))
        done = time.process_time()
        scan_seconds += scanned - began
        rewrite_seconds += done - chosen
        left += len(made.content)
    return Figures(len(content) * windows, plain * windows, scan_seconds, rewrite_seconds, left)


def rewritten(content: bytes, kept: Kept, end: int) -> Rewritten:
    """The batches of one queue, compacted up to an offset."""
    batches = Window.of(content).batches
    count = len(batches)
    rulings = kept.rulings(
        batches,
        numpy.zeros(count, numpy.uint64),
        numpy.full(count, end, numpy.int64),
        numpy.full(count, HORIZON_MS, numpy.int64),
    )
    return rewrite(content, kept.offsets, rulings)


def random_batches(count: int) -> bytes:
    """Batches of one queue with all that batches may have."""
    chance = random.Random(5)
    content = bytearray()
    offset = 0
    for _ in range(count):
        records = [
            NewRecord(
                STARTED_MS + chance.randint(-5000, 5000),
                chance.choice([None, b"a", b"b", b"key"]),
                chance.choice([None, b"value", b"a longer value"]),
                chance.choice([(), (("name", b"content"), ("other", None))]),
            )
            for _ in range(chance.randint(1, 9))
        ]
        compression = chance.choice(list(Compression))
        built = build_batch(records, compression=compression, producer_id=7, producer_epoch=1, base_sequence=offset)
        data = bytearray(built.data)
        if chance.random() < 0.2:
            stamp_log_append_time(data, STARTED_MS + 9999)
        batch = NewBatch.parse(data).stored(offset, 3)
        content += batch.data
        offset = batch.header.next_offset
    return bytes(content)


def check_with_kafka() -> str:
    """Has Kafka read what is left of batches. Raises BenchError with what it sees otherwise."""
    jars = kafka_jars.fetch(CACHE)
    content = random_batches(400)
    batches = list(stored_batches(content))
    chance = random.Random(6)
    offsets = [record.offset for batch in batches for record in read_records(batch) if record.key is not None]
    chosen = numpy.array(sorted(chance.sample(offsets, len(offsets) // 3)), numpy.int64)
    made = rewritten(content, Kept(numpy.zeros(len(chosen), numpy.uint64), chosen), offsets[-1] + 1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{0:020d}.log"
        path.write_bytes(made.content)
        command = ["java", "-Xmx512m", "-cp", f"{jars}/*", "org.apache.kafka.tools.DumpLogSegments"]
        done = subprocess.run([*command, "--print-data-log", "--files", str(path)], capture_output=True, text=True)
    stays = set(chosen.tolist())
    expected = [
        (record.offset, record.timestamp, record.key, record.value)
        for batch in batches
        for record in read_records(batch)
        if record.key is None or record.offset in stays
    ]
    found = [_as_told(line) for line in done.stdout.splitlines() if line.startswith("| offset: ")]
    valid = done.stdout.count("isvalid: true")
    marked = done.stdout.count(f"deleteHorizonMs: OptionalLong[{HORIZON_MS}]")
    if found != expected or valid != len(made.batches) or not marked:
        raise BenchError(f"kafka-dump-log sees other records: {done.stdout[:2000]}{done.stderr[-500:]}")
    return (
        f"Kafka {kafka_jars.VERSION} reads the {len(found)} records that are left of "
        f"{len(found) + made.dropped_records}, each as it was, in {valid} batches; {marked} have a delete horizon"
    )


def _as_told(line: str) -> tuple[int, int, bytes | None, bytes | None]:
    """Offset, timestamp, key and value of a record in a line of `kafka-dump-log`."""
    told = _TOLD.fullmatch(line)
    if told is None:
        raise BenchError(f"kafka-dump-log says {line!r}")
    key, value = (None if text is None else text.encode() for text in told.group(3, 4))
    return int(told[1]), int(told[2]), key, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=256, help="of batches, for each load")
    parser.add_argument("--only", default="", help="loads whose name has this in it")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--kafka", action="store_true", help="have Kafka check what is left, and measure nothing")
    options = parser.parse_args()
    if options.kafka:
        print(check_with_kafka())
        return
    columns = ("load", "scan MB/s", "rewrite MB/s", "both MB/s", "both, plain", "left %")
    print(f"{columns[0]:36}" + "".join(f"{column:>14}" for column in columns[1:]))
    for load in (one for one in LOADS if options.only in one.name):
        profile = cProfile.Profile()
        if options.profile:
            figures = profile.runcall(measured, load, options.mebibytes * MEBIBYTE)
        else:
            figures = measured(load, options.mebibytes * MEBIBYTE)
        both = figures.scan_seconds + figures.rewrite_seconds
        print(
            f"{load.name:36}{figures.bytes / figures.scan_seconds / 1e6:14,.0f}"
            f"{figures.bytes / figures.rewrite_seconds / 1e6:14,.0f}{figures.bytes / both / 1e6:14,.0f}"
            f"{figures.plain_bytes / both / 1e6:14,.0f}{100 * figures.bytes_after / figures.bytes:14,.0f}",
            flush=True,
        )
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
