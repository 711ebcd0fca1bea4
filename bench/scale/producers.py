"""The cost of idempotent producers to one node: memory, checkpoint, start, and the longest that its event loop is held.

A storage role takes one batch of each of many producer ids, what a node does without its sockets. Then it saves a
checkpoint, and is opened again. Beside it a task looks how much of the loop thread's own processor time passes between
two of its turns. The same batches without producers, in a process of their own, say what of the memory is not theirs.

    python -m bench.scale.producers --producers 1000000

`--level 1` has everything in memory and in the checkpoint, as before there were files of producers. Every wait is
bounded; a million takes about two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from mainstem.kernel import crc32c
from mainstem.model import SLOTS, BatchAppend, FeatureLevel, Outcome, QueueRange, Topic, TopicSettings
from mainstem.process.heap import Heap
from mainstem.storage.config import StorageConfig
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.role import Storage
from mainstem.storage.setup import StorageSetup

GROUPS = 4
PARTITIONS = 64
BATCHES_PER_TURN = 200
"""As many as a burst of requests brings."""

RUN_SECONDS_MAX = 600.0

BUSY_TRIES_MAX = 1_000
"""Of a batch that is refused for now; a run that hangs ends."""


class WallClock:
    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        return time.monotonic()


def resident_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def batch_of(number: int, *, plain: bool) -> BatchAppend:
    producer_id, epoch, sequence = (-1, -1, -1) if plain else (number, 0, 0)
    rest = struct.pack(">hiqqqhii", 0, 0, 1, 1, producer_id, epoch, sequence, 1) + b"\x0c\0\0\0\x01\0\0"
    checksum = crc32c(rest)
    data = struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, checksum) + rest
    queue_id = (1 << 32) + number % PARTITIONS
    return BatchAppend(queue_id, memoryview(data), 1, 0, 1, producer_id, epoch, sequence, 0, checksum)


class Turns:
    """The longest turn of the loop, by the processor time of its thread."""

    def __init__(self) -> None:
        self._longest = 0.0

    async def run(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self._longest = max(self._longest, now - before)
            before = now

    def longest_ms(self) -> float:
        longest, self._longest = self._longest, 0.0
        return round(1000 * longest, 2)


async def opened(directory: Path, level: FeatureLevel, wanted: Topic) -> Storage:
    (directory / "store").mkdir(parents=True, exist_ok=True)
    storage = await Storage.open(StorageSetup(
        write_files=DiskFiles(directory / "write"), store_files=DiskFiles(directory / "store"), clock=WallClock(),
        config=StorageConfig(write_cache_bytes=0), store_config=QueueStoreConfig(read_cache_bytes=0),
        journal_config=JournalConfig(pool_segments=0), manifest_path=str(directory / "manifest.sqlite"),
        journal_path=str(directory / "write/journal"), slots=[slot % GROUPS for slot in range(SLOTS)],
        topics=lambda: [wanted], was_deleted=lambda number: False, feature_level=lambda: level,
    ))  # fmt: skip
    await storage.start()
    return storage


async def filled(storage: Storage, producers: int, *, plain: bool) -> int:
    """Take a batch of each; how many were told to come again."""
    refused = 0
    for first in range(0, producers, BATCHES_PER_TURN):
        numbers = range(first, min(first + BATCHES_PER_TURN, producers))
        batches = [batch_of(number, plain=plain) for number in numbers]
        for _ in range(BUSY_TRIES_MAX):
            results = await storage.messages.append(batches, -1)
            batches = [
                batch for batch, result in zip(batches, results, strict=True)
                if result.outcome is not Outcome.OK
            ]  # fmt: skip
            if not batches:
                break
            refused += len(batches)
            await asyncio.sleep(0.05)
        else:
            raise SystemExit(f"{len(batches)} batches are refused for ever: {results[0]}")
    return refused


async def measured(directory: Path, producers: int, level: FeatureLevel, *, plain: bool) -> dict[str, float]:
    wanted = Topic(name="t", number=1, topic_id=uuid.UUID(int=1), partitions=PARTITIONS, settings=TopicSettings())
    storage = await opened(directory, level, wanted)
    await storage.queues.create([QueueRange(1, 0, PARTITIONS)])
    Heap().started()  # as a node does; with Python's own thresholds a full collection is the longest turn, of 40 ms
    before = resident_bytes()
    turns = Turns()
    watching = asyncio.get_running_loop().create_task(turns.run())
    begun = time.perf_counter()
    refused = await filled(storage, producers, plain=plain)
    found: dict[str, float] = {"producers": producers, "level": level, "refused for a moment": refused}
    found["batches 1/s"] = round(producers / (time.perf_counter() - begun))
    found["longest turn while filling, ms of CPU"] = turns.longest_ms()
    await asyncio.sleep(2)  # the looks at memory
    turns.longest_ms()
    begun = time.perf_counter()
    await storage.checkpointer.save()
    found["checkpoint, s"] = round(time.perf_counter() - begun, 3)
    found["longest turn of the checkpoint, ms of CPU"] = turns.longest_ms()
    gc.collect()
    found["memory, MB"] = round((resident_bytes() - before) / 1e6, 1)
    if plain:
        watching.cancel()
        await storage.close()
        return found
    found["in memory"] = sum(len(group.producers) for group in storage.groups)
    files = list((directory / "write/producers").glob("*"))
    found["files"] = len(files)
    found["files, MB"] = round(sum(file.stat().st_size for file in files) / 1e6, 1)
    sample = [batch_of(number, plain=False) for number in range(0, producers, max(1, producers // 2000))]
    begun = time.perf_counter()
    results = await storage.messages.append(sample, -1)
    found["duplicates found of 2000"] = sum(result.outcome is Outcome.OK for result in results)
    found["a producer read back, us"] = round(1e6 * (time.perf_counter() - begun) / len(sample), 1)
    watching.cancel()
    await storage.close()
    begun = time.perf_counter()
    storage = await opened(directory, level, wanted)
    found["start, s"] = round(time.perf_counter() - begun, 3)
    await storage.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", type=int, default=1_000_000)
    parser.add_argument("--level", type=int, default=int(FeatureLevel.HARDENED))
    parser.add_argument("--plain", action="store_true", help="the same batches without producers")
    arguments = parser.parse_args()
    beside = 0.0
    if not arguments.plain:
        command = [sys.executable, "-m", "bench.scale.producers", "--plain", "--producers", str(arguments.producers)]
        done = subprocess.run(command, check=True, capture_output=True, timeout=RUN_SECONDS_MAX)
        beside = json.loads(done.stdout)["memory, MB"]
    directory = Path(tempfile.mkdtemp(prefix="producers-"))
    try:
        found = asyncio.run(
            measured(directory, arguments.producers, FeatureLevel(arguments.level), plain=arguments.plain)
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if not arguments.plain:
        found["memory of the producers, MB"] = round(found["memory, MB"] - beside, 1)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
