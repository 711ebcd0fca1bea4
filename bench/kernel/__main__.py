"""See the package."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import struct
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import mainstem.kernel.compiled as compiled
import mainstem.kernel.pure as pure
from mainstem.model import SLOTS_OF_ALL

HERE = Path(__file__).parent
HEADERS = HERE.parent.parent / "src/mainstem/kernel/compiled"
VERSION = 7
TOPICS_MAX = 10
BATCHES_PER_REQUEST = 1000
CACHE_BYTES = 256 << 20
REPEATS = 9
REQUEST_BYTES_MAX = 2 << 30


class Place(NamedTuple):
    """The fields that the index asks of a block's header."""

    position: int
    payload_position: int
    end: int
    batch_count: int


@dataclass(frozen=True)
class OpenBlock:
    index: int
    builder: Any


def batch_of(size: int, seed: int) -> bytes:
    """A record batch of `size` bytes that says it has one record; nothing here looks into the records."""
    rest = struct.pack(">hiqqqhii", 0, 0, 1, 1, -1, -1, -1, 1) + bytes((seed + n) % 251 for n in range(size - 61))
    return struct.pack(">qiibI", 0, size - 12, -1, 2, compiled.crc32c(rest)) + rest


def requests_of(queues: int, size: int) -> tuple[list[bytes], list[bytes], int]:
    """Produce bodies that together name every queue at least once, in an order that jumps about, as many producers'
    do; the topics' names; partitions per topic."""
    topics = min(TOPICS_MAX, queues)
    partitions = queues // topics
    names = [b"topic%03d" % number for number in range(topics)]
    batches = [batch_of(size, seed) for seed in range(64)]
    bodies = []
    total = max(queues, 4 * BATCHES_PER_REQUEST)
    stride = 7919  # coprime to the number of queues: every queue's turn comes once per round
    for first in range(0, total, BATCHES_PER_REQUEST):
        chosen: dict[int, list[int]] = {}
        for number in range(first, min(first + BATCHES_PER_REQUEST, total)):
            topic, partition = divmod(number * stride % queues, partitions)
            chosen.setdefault(min(topic, topics - 1), []).append(partition % partitions)
        parts = [struct.pack(">hhii", -1, -1, 1000, len(chosen))]
        for topic, wanted in chosen.items():
            parts.append(struct.pack(">h", len(names[topic])) + names[topic] + struct.pack(">i", len(wanted)))
            for partition in wanted:
                data = batches[(first + partition) % len(batches)]
                parts += (struct.pack(">ii", partition, len(data)), data)
        bodies.append(b"".join(parts))
    return bodies, names, partitions


def kernel_loop(kernel: ModuleType, bodies: list[bytes], names: list[bytes], partitions: int) -> Callable[[], int]:
    """A function that sends every body once through a kernel, and returns the number of batches."""
    table, producers = kernel.QueueTable(), kernel.ProducerStates()
    topics = {}
    for number, name in enumerate(names):
        table.create(number, 0, partitions)
        topics[name] = kernel.ProduceTopic(number=number, partitions=partitions, message_bytes_max=1 << 20)
    index = kernel.RecentIndex(table, CACHE_BYTES)
    arena = kernel.Arena()
    blocks: list[OpenBlock] = []

    def open_block() -> OpenBlock:
        blocks.append(OpenBlock(len(blocks) + 1, kernel.BlockBuilder(arena)))
        return blocks[-1]

    log = kernel.WriteGroupLog(0, table, producers, open_block, block_bytes_max=4 << 20, batch_bytes_max=4 << 20)
    slots = memoryview(array("H", [0] * SLOTS_OF_ALL))
    errors = [(0, None)] * 64
    applied = 0
    position = 4096

    def apply() -> None:
        nonlocal applied, position
        log.close()
        while applied < len(blocks):
            block = blocks[applied]
            applied += 1
            directory, payload = block.builder.directory, block.builder.payload
            end = position + len(payload) + len(directory)
            log.apply(directory, block.index, 0)
            index.add(Place(position, position, end, block.builder.batch_count), directory, payload)
            index.release(end)
            position = end
            blocks[applied - 1] = None  # type: ignore[call-overload]

    frames = [memoryview(bytearray(body)) for body in bodies]

    def run() -> int:
        count = 0
        for frame in frames:
            scan = kernel.scan_produce(frame, 0, VERSION, topics.__getitem__)
            results, _ = kernel.append_all(scan, [log], slots, 0)
            if results is not scan:
                scan.settle(results)
            scan.release()
            count += scan.accepted_count
            scan.response(1, errors)
            if count % 4000 < BATCHES_PER_REQUEST:
                apply()
        apply()
        return count

    return run


def plain_loop(bodies: list[bytes], names: list[bytes], partitions: int) -> Callable[[], int]:
    """The same in plain C."""
    built = Path(tempfile.mkdtemp(prefix="mainstem-plain-")) / "plain.so"
    flags = ["-O3", "-fno-strict-aliasing", "-shared", "-fPIC", f"-I{HEADERS}"]
    subprocess.run(["cc", *flags, str(HERE / "plain.c"), "-o", str(built)], check=True)
    library = ctypes.CDLL(str(built))
    library.plain_new.restype = ctypes.c_void_p
    library.plain_new.argtypes = [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]
    library.plain_produce.restype = ctypes.c_int64
    library.plain_produce.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
    state = library.plain_new(b"".join(names), len(names), partitions, max(map(len, bodies)))
    built.unlink()
    built.parent.rmdir()

    def run() -> int:
        count = 0
        for body in bodies:
            appended = library.plain_produce(state, body, len(body))
            assert appended > 0, appended
            count += appended
        return count

    return run


def nanoseconds(loops: dict[str, Callable[[], int]], batch_bytes: int, seconds: float) -> dict[str, list[float]]:
    """Per loop, nanoseconds per batch of several rounds; the loops take turns."""
    figures: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():  # until every block of the cache has been written to: fresh memory is another story
        warmed = 0
        while warmed * batch_bytes < 1.2 * CACHE_BYTES:
            warmed += loop()
    for _ in range(REPEATS):
        for name, loop in loops.items():
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < seconds / REPEATS:
                count += loop()
            figures[name].append((time.perf_counter() - began) / count * 1e9)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, nargs="+", default=[16, 1_000_000])
    parser.add_argument("--batch-bytes", type=int, nargs="+", default=[170, 1024])
    parser.add_argument("--seconds", type=float, default=2.0, help="per kernel and row")
    parser.add_argument("--compiled-only", action="store_true", help="leave the pure kernel out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = []
    for queues in options.queues:
        for size in options.batch_bytes:
            if queues * size > REQUEST_BYTES_MAX:
                raise SystemExit(f"{queues} queues of {size} bytes need over {REQUEST_BYTES_MAX} bytes of requests")
            bodies, names, partitions = requests_of(queues, size)
            loops = {
                "plain C": plain_loop(bodies, names, partitions),
                "compiled": kernel_loop(compiled, bodies, names, partitions),
            }
            if queues <= 10_000 and not options.compiled_only:
                loops["python"] = kernel_loop(pure, bodies, names, partitions)
            figures = nanoseconds(loops, size, options.seconds)
            medians = {name: statistics.median(values) for name, values in figures.items()}
            rows.append({"queues": queues, "batch_bytes": size, "ns_per_batch": medians, "rounds": figures,
                         "compiled_to_c": medians["compiled"] / medians["plain C"]})  # fmt: skip
            if not options.json:
                shown = "  ".join(f"{name} {value:8.1f}" for name, value in medians.items())
                ratio = medians["compiled"] / medians["plain C"]
                print(f"{queues:>9} queues  {size:>5} B  ns per batch: {shown}   compiled / C {ratio:.2f}")
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
