"""Measures cold catch-up from the remote tier against what obstore alone brings from the same place.

    python -m bench.store.reads.remote_reads --readers 100 --latency-ms 20

A process of its own serves objects as S3 does, out of memory, each answer so much later than the request. In the bucket
lie files, as merges leave them. In turn, again and again: readers of as many queues as said read all of it
through the remote tier's history, a mebibyte at a time and with nothing of it in memory, every extent checked; and
obstore alone reads the same bytes, in ranges of one and of four mebibytes, with 4 to 64 requests on their way, of which
the fastest counts. Both run in a process that is set up as a node's is: its event loop, its collection of garbage, how
long its threads keep the interpreter and a processor, and how many arenas its allocator has. The clients of the store,
and the history that reads by way of one, are made once, as at a node's start, and a first round of each way is not
counted, so that connections are there; before each round of the readers their cache is filled with other data, as it is
in a node that has been up for a while, whose memory is not new. Nobody looks at what obstore brings; the way that is
fastest as a rule is measured once more with the CRC32C of all of it computed, which is the least that a reader does.

On one machine the store sends as fast as memory copies, and takes a good part of the same processors for it. With
`--link-megabytes-per-second` it sends no faster than a network card, over all connections together: 10 Gbit/s are 1250.

With `--apart` the store has a processor of its own and those who read have the others, as on machines of their own:
otherwise a reader that needs more processor time takes it from the store, too, which then sends later.

Every round begins with another way, so that none always follows the same one and what that leaves in caches. Per way:
MB/s, and the processor time of this process; of the tier, how many bytes it asked the store for. The ratios are of
medians; beside them stand the least and the most of any round's own. One reader and a hundred, at 20 ms and without a
bound of the link, are judged by the targets; `--results FILE` keeps that as a result file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy
import obstore
from obstore.store import S3Store

from bench.errors import BenchError
from bench.report.document import targets_table
from bench.results import Results, Row
from bench.scale import rows
from bench.store.reads.store_reads import STARTED_MS, Clock
from bench.systems.mainstem import Mainstem
from mainstem.kernel import crc32c
from mainstem.node.node import SWITCH_INTERVAL_SECONDS
from mainstem.process.event_loop import new_event_loop
from mainstem.process.free_memory import use_few_arenas
from mainstem.process.heap import Heap
from mainstem.protocol.records.builder import NewRecord, build_batch
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.extents.extent_format import ABORTED_VERSION
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.guards.metered import Metered
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupPosition
from mainstem.storage.read_cache.readers_crowd import CROWD_SECONDS
from mainstem.storage.remote.config import ReadCacheConfig
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.run_writer import BATCH_ROW, RunWriter
from mainstem.storage.store_files.store_file import StoreFile, path_of, segment_name
from mainstem.time_slices import SHORT_SECONDS, set_slice

MEBIBYTE = 1 << 20
GROUP = 0
TOPIC = 1 << 32
BATCH_BYTES = 16 * 1024
FETCH_BYTES = MEBIBYTE
WAYS = ((MEBIBYTE, 8), (MEBIBYTE, 16), (MEBIBYTE, 32), (MEBIBYTE, 64), (4 << 20, 4), (4 << 20, 8), (4 << 20, 16))
"""In which obstore reads alone: bytes of a request, and requests on their way."""
OTHER_BYTES = 192 << 20
"""Half as much again as the cache has memory for."""
CHECKED_WAY = WAYS[-1]
CHECKED_BYTES = 64 * 1024
"""Of an extent, about."""
LINK_PIECE_BYTES = 128 * 1024
"""A store that has a link sends so much in one go, so that answers on several connections share the link."""
LINK_BURST_SECONDS = 0.002
"""How far the store may be ahead of its link: timers of the event loop are no finer than a millisecond."""
OPTIONS = {"access_key_id": "bench", "secret_access_key": "bench", "region": "us-east-1"}


class Figures(NamedTuple):
    readers: int
    latency_ms: float
    apart: bool
    """The store has a processor of its own."""
    link_megabytes_per_second: float
    """Of the store, over all connections; 0: no bound."""
    megabytes: float
    tier_mb_s: float
    obstore_mb_s: float
    obstore_request_bytes: int
    obstore_in_flight: int
    tier_read_mb: float
    ratio: float
    least_ratio: float
    """Of any round, to the way that is fastest as a rule."""
    most_ratio: float
    checking_mb_s: float
    """Of obstore with checksums."""
    ratio_to_checking: float
    tier_cpu_s: float
    obstore_cpu_s: float
    checking_cpu_s: float


class Took(NamedTuple):
    """The bytes and the time of one way in one round."""

    bytes: int
    seconds: float
    cpu_s: float

    def speed(self, least: int) -> tuple[float, float]:
        """MB/s and seconds of processor time. Raises BenchError unless at least so many bytes came."""
        if self.bytes < least:
            raise BenchError(f"{self.bytes} of {least} bytes came")
        return self.bytes / self.seconds / 1e6, self.cpu_s


# --- the store ----------------------------------------------------------------------------------------------


class Link:
    """A link that all connections of the store share: a token bucket. With `bytes_per_second` 0 it has no bound."""

    def __init__(self, bytes_per_second: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._sent_at = monotonic()
        """When the link has sent what was taken so far."""

    def wait_for(self, length: int) -> float:
        """Take the link for so many bytes, and return the seconds until they may be written."""
        now = self._monotonic()
        self._sent_at = max(self._sent_at, now) + length / self.bytes_per_second
        return max(0.0, self._sent_at - now - LINK_BURST_SECONDS)


class StoreConnection(asyncio.Protocol):
    """Answers GET with a range, and HEAD, out of files below a directory."""

    def __init__(self, root: Path, latency_seconds: float, link: Link, files: dict[str, memoryview]) -> None:
        self._root = root
        self._latency_seconds = latency_seconds
        self._link = link
        self._files = files
        self._unsent: deque[memoryview] = deque()
        """Bytes that wait for the link, in order."""
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class
        self._transport.set_write_buffer_limits(high=64 * MEBIBYTE)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            asyncio.get_running_loop().call_later(self._latency_seconds, self._answer, head.decode())

    def _answer(self, head: str) -> None:
        if self._transport.is_closing():  # who asked has gone
            return
        first, *lines = head.split("\r\n")
        method, path, _version = first.split(" ")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        content = self._content(path.partition("?")[0])
        start, stop, status = 0, len(content), "200 OK"
        about = ""
        if "range" in headers:
            begin, _, end = headers["range"].removeprefix("bytes=").partition("-")
            start, stop, status = int(begin), min(int(end) + 1, len(content)), "206 Partial Content"
            about = f"Content-Range: bytes {start}-{stop - 1}/{len(content)}\r\n"
        self._send(
            f'HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\n{about}ETag: "tag"\r\n'
            "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n\r\n".encode()
        )
        if method == "GET":
            self._send(content[start:stop])

    def _send(self, content: bytes | memoryview) -> None:
        if not self._link.bytes_per_second:
            self._transport.write(content)
            return
        view, idle = memoryview(content), not self._unsent
        self._unsent.extend(view[at : at + LINK_PIECE_BYTES] for at in range(0, len(view), LINK_PIECE_BYTES))
        if idle and self._unsent:
            self._pace()

    def _pace(self) -> None:
        """Have the first of what waits written once the link is free for it, and so on."""
        loop = asyncio.get_running_loop()
        loop.call_later(self._link.wait_for(len(self._unsent[0])), self._write_next)

    def _write_next(self) -> None:
        if self._unsent:
            self._transport.write(self._unsent.popleft())
        if self._unsent:
            self._pace()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unsent.clear()

    def _content(self, path: str) -> memoryview:
        if path not in self._files:
            with (self._root / path.lstrip("/")).open("rb") as file:
                self._files[path] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return self._files[path]


async def serve(root: Path, latency_seconds: float, bytes_per_second: float = 0) -> None:
    """Serve what lies below `root`, its buckets, on a free port, which is printed. `bytes_per_second` 0: no bound."""
    files: dict[str, memoryview] = {}
    link = Link(bytes_per_second)
    server = await asyncio.get_running_loop().create_server(
        lambda: StoreConnection(root, latency_seconds, link, files), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# --- what lies in it ----------------------------------------------------------------------------------------


def write_file(bucket: Path, number: int, queues: range, queue_bytes: int) -> StoreFile:
    """A merged file with the whole history of some queues, as an object: of one queue alone a queue segment."""
    alone = len(queues) == 1
    name = segment_name("bench", queues[0], str(number), 0, joined=True) if alone else f"bench-{number}.pack"
    target = bucket / object_of(GROUP, path_of(name))
    target.parent.mkdir(parents=True, exist_ok=True)
    chance = random.Random(number)
    records = [NewRecord(STARTED_MS, None, chance.randbytes(1000)) for _ in range(BATCH_BYTES // 1000)]
    batch = numpy.frombuffer(bytes(build_batch(records).data), numpy.uint8)
    count = max(1, queue_bytes // len(batch))
    writer = RunWriter(name, LocalRunTarget(target.parent, target.name), ABORTED_VERSION)
    with writer:
        for queue in queues:
            offsets = numpy.arange(count, dtype=numpy.int64) * len(records)
            content = numpy.tile(batch, (count, 1))
            content[:, :8] = offsets.astype(">i8").view(numpy.uint8).reshape(-1, 8)
            content[:, 12:16] = 0  # leader epoch
            rows = numpy.zeros(count, BATCH_ROW)
            rows["queue_id"], rows["base_offset"] = TOPIC + queue, offsets
            rows["last_offset"], rows["length"] = offsets + len(records) - 1, len(batch)
            rows["record_count"], rows["max_timestamp"] = len(records), STARTED_MS
            writer.append([content.reshape(-1).data], rows)
        summary = writer.finish()
    return StoreFile(
        retention_class="forever", **summary._asdict(), level=1 + alone, group=GROUP,
        first_queue=TOPIC + queues[0], last_queue=TOPIC + queues[-1], first_offset=0,
    )  # fmt: skip


# --- the readers --------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, directory: Path, endpoint: str, files: list[StoreFile], other: StoreFile, readers: int) -> None:
        """`other`: has what fills the cache between two rounds."""
        self._directory = directory
        self._config = ObjectStoreConfig(endpoint=endpoint, options=OPTIONS)
        self._alone = S3Store("bucket", config={**OPTIONS, "endpoint": endpoint}, client_options={"allow_http": True})
        self._files = files
        self._other = other
        self._readers = readers
        self._tier: RemoteTier
        self._disk: DiskFiles
        self._metered: Metered
        self._history: RemoteHistory
        self.read_bytes = 0
        """That the last `tier` asked the store for."""

    async def open(self) -> None:
        self._tier = await RemoteTier.open(str(self._directory / "remote.sqlite"), Clock().now_ms)
        for number, file in enumerate([*self._files, self._other]):
            entries = [(number, number + 1, file)]
            await self._tier.manifest.change(GROUP, (), entries, WriteGroupPosition(number + 1, 0), ())
        store = open_object_store("s3://bucket", self._config)
        self._metered = store.metered
        self._disk = DiskFiles(self._directory / "disk2")
        self._history = await RemoteHistory.open(self._tier, store, ReadCacheConfig(), Clock(), self._disk)

    async def close(self) -> None:
        await self._history.close()
        await self._disk.close()
        await self._tier.close()

    async def tier(self) -> Took:
        """All readers together."""
        for file in self._files:
            await self._history.whole_again(file.name, "it is read from the beginning once more")
        await self._read(self._other.first_queue)
        await asyncio.sleep(CROWD_SECONDS)  # the readers of the last round are no crowd any more

        async def read() -> int:
            return sum(await asyncio.gather(*(self._read(TOPIC + queue) for queue in range(self._readers))))

        before = self._metered.read_bytes
        took = await timed(read)
        self.read_bytes = self._metered.read_bytes - before
        return took

    async def _read(self, queue_id: int) -> int:
        offset = size = 0
        while (found := await self._history.read(queue_id, GROUP, offset, FETCH_BYTES)) is not None:
            offset, size = found.next_offset, size + sum(map(len, found.batches))
        return size

    async def obstore(self, request_bytes: int, in_flight: int, checks: bool = False) -> Took:
        """The same files, as obstore alone brings them. `checks`: their checksums are computed."""
        ranges = [
            (object_of(GROUP, path_of(file.name)), start, min(request_bytes, file.bytes - start))
            for file in self._files
            for start in range(0, file.bytes, request_bytes)
        ]

        async def take() -> int:
            size = 0
            while ranges:
                name, start, length = ranges.pop(0)
                content = await obstore.get_range_async(self._alone, name, start=start, length=length)
                view = memoryview(content)
                size += len(view)
                for begin in range(0, len(view) if checks else 0, CHECKED_BYTES):
                    crc32c(view[begin : begin + CHECKED_BYTES])
            return size

        async def read() -> int:
            return sum(await asyncio.gather(*(take() for _ in range(in_flight))))

        return await timed(read)


async def timed(work: Callable[[], Awaitable[int]]) -> Took:
    began, cpu = time.perf_counter(), time.process_time()
    size = await work()
    return Took(size, time.perf_counter() - began, time.process_time() - cpu)


async def measured(
    directory: Path, endpoint: str, files: list[StoreFile], other: StoreFile, readers: int, rounds: int
) -> dict[str, Any]:
    bench = Bench(directory, endpoint, files, other, readers)
    await bench.open()
    least = sum(file.batch_bytes for file in files)
    tier: list[tuple[float, float]] = []
    checking: list[tuple[float, float]] = []
    alone: dict[tuple[int, int], list[tuple[float, float]]] = {way: [] for way in WAYS}
    try:
        turns: list[tuple[list[tuple[float, float]], Callable[[], Awaitable[Took]]]] = [
            (tier, bench.tier),
            (checking, partial(bench.obstore, *CHECKED_WAY, checks=True)),
            *((alone[way], partial(bench.obstore, *way)) for way in WAYS),
        ]
        for _found, work in turns:  # what is served is in memory, and connections are there
            await work()
        for _ in range(rounds):
            for found, work in turns:
                found.append((await work()).speed(least))
            turns.append(turns.pop(0))
    finally:
        await bench.close()
    speeds = {way: statistics.median(speed for speed, _cpu in found) for way, found in alone.items()}
    fastest = max(speeds, key=speeds.__getitem__)
    speed = statistics.median(speed for speed, _cpu in tier)
    ratios = [one / other for (one, _), (other, _) in zip(tier, alone[fastest], strict=True)]
    checking_speed = statistics.median(speed for speed, _cpu in checking)
    return {
        "megabytes": least / 1e6,
        "tier_mb_s": speed,
        "obstore_mb_s": speeds[fastest],
        "obstore_request_bytes": fastest[0],
        "obstore_in_flight": fastest[1],
        "tier_read_mb": bench.read_bytes / 1e6,
        "ratio": speed / speeds[fastest],
        "least_ratio": min(ratios),
        "most_ratio": max(ratios),
        "checking_mb_s": checking_speed,
        "ratio_to_checking": speed / checking_speed,
        "tier_cpu_s": statistics.median(cpu for _speed, cpu in tier),
        "obstore_cpu_s": statistics.median(cpu for _speed, cpu in alone[fastest]),
        "checking_cpu_s": statistics.median(cpu for _speed, cpu in checking),
    }


def as_a_node_is() -> None:
    """Set this process up as `mainstem serve` and the node do theirs, but for the collector of garbage, and after the
    store has started, which would inherit some of it."""
    use_few_arenas()
    set_slice(SHORT_SECONDS)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)


@contextmanager
def set_apart(server: int) -> Iterator[None]:
    """Give the store, a process that has just started, a processor of its own, and this thread and those that it starts
    meanwhile the others. Raises BenchError where there is one only."""
    allowed = os.sched_getaffinity(0)
    first, *others = sorted(allowed)
    if not others:
        raise BenchError("--apart needs two processors, and this process may use only one: leave it out")
    os.sched_setaffinity(server, {first})
    os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def run(
    directory: Path,
    readers: int,
    latency_ms: float,
    mebibytes: int,
    file_count: int,
    rounds: int,
    link_megabytes_per_second: float = 0,
    apart: bool = False,
) -> Figures:
    bucket = directory / "objects" / "bucket"
    queue_bytes = mebibytes * MEBIBYTE // readers
    per_file = -(-readers // file_count)
    files = [
        write_file(bucket, number, queues, queue_bytes)
        for number in range(file_count)
        if (queues := range(number * per_file, min(readers, (number + 1) * per_file)))
    ]
    other = write_file(bucket, len(files), range(readers, readers + 1), OTHER_BYTES)
    serving = ["--serve", str(directory / "objects"), "--latency-ms", str(latency_ms)]
    serving += ["--link-megabytes-per-second", str(link_megabytes_per_second)]
    command = [sys.executable, "-m", "bench.store.reads.remote_reads", *serving]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            with closing(server.stdout):
                port = int(server.stdout.readline())
            as_a_node_is()
            with (
                set_apart(server.pid) if apart else nullcontext(),
                asyncio.Runner(loop_factory=new_event_loop) as runner,
            ):
                found = runner.run(measured(directory, f"http://127.0.0.1:{port}", files, other, readers, rounds))
        finally:
            server.terminate()
    return Figures(
        readers=readers,
        latency_ms=latency_ms,
        apart=apart,
        link_megabytes_per_second=link_megabytes_per_second,
        **found,
    )


def as_results(figures: Figures) -> Results:
    """A row for the targets, if they are about such readers."""
    results = Results()
    if figures.latency_ms == rows.OBJECT_LATENCY_MS and not figures.link_megabytes_per_second:
        measures = {rows.TO_OBSTORE: figures.ratio, "mb_per_s": figures.tier_mb_s, "mb": figures.megabytes}
        results.add(
            Row(rows.OBJECTS, rows.object_readers(figures.readers, apart=figures.apart)), Mainstem.name, measures
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1, help="each of a queue of its own")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument(
        "--link-megabytes-per-second", type=float, default=0.0, help="that the store sends at most; 0: no bound"
    )
    parser.add_argument("--apart", action="store_true", help="the store has a processor of its own")
    parser.add_argument("--mebibytes", type=int, default=256, help="of all queues together")
    parser.add_argument("--files", type=int, default=4, help="that the queues lie in, if there are as many queues")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="on the disk to write to; a temporary one unless said")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(options.serve, options.latency_ms / 1000, options.link_megabytes_per_second * 1e6))
        return
    Heap().started()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = run(
            Path(directory),
            options.readers,
            options.latency_ms,
            options.mebibytes,
            options.files,
            options.rounds,
            options.link_megabytes_per_second,
            options.apart,
        )
    results = as_results(figures)
    if options.results is not None:
        results.save(options.results)
    if options.json:
        print(json.dumps(figures._asdict()))
        return
    link = f", {figures.link_megabytes_per_second:g} MB/s at most" if figures.link_megabytes_per_second else ""
    apart = ", the store apart" if figures.apart else ""
    print(
        f"{figures.readers} readers, {figures.latency_ms:g} ms{link}{apart}, {figures.megabytes:.0f} MB: "
        f"{figures.tier_mb_s:.0f} MB/s with {figures.tier_cpu_s:.2f} s of CPU, "
        f"{figures.tier_read_mb:.0f} MB asked for; "
        f"obstore alone {figures.obstore_mb_s:.0f} MB/s with {figures.obstore_cpu_s:.2f} s "
        f"({figures.obstore_in_flight} requests of {figures.obstore_request_bytes >> 20} MiB at once): "
        f"{figures.ratio:.2f} times ({figures.least_ratio:.2f} to {figures.most_ratio:.2f}); "
        f"with checksums {figures.checking_mb_s:.0f} MB/s with "
        f"{figures.checking_cpu_s:.2f} s: {figures.ratio_to_checking:.2f} times"
    )
    if results.rows:
        print(targets_table(results, measured_only=True))


if __name__ == "__main__":
    main()
