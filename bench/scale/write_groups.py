"""How many write groups serve small durable writes best on one node?

Starts a node per setting on an empty directory, alternating over several rounds, and loads it with one 100-byte
record per Produce request (acks=all, synced) from 64 connections over 64 partitions. Prints median rate and
latency per setting, and the ratio to one group. Bounded: `--rounds` × settings × `--seconds`.

    python bench/scale/write_groups.py --groups 1 4 16 --rounds 3 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, write_request_header
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from mainstem.protocol.records import NewRecord, build_batch

PRODUCE, CREATE_TOPICS = 0, 19
PRODUCE_VERSION, CREATE_VERSION = 9, 7
PARTITIONS = 64


class Measured(NamedTuple):
    rate: float
    p50_ms: float
    p99_ms: float


def frame(api_key: int, version: int, message: object) -> bytes:
    """A whole request frame."""
    header = write_request_header(RequestHeader(api_key, version, 1, "bench"))
    body = bytes(header) + codec.write(message, version)
    return struct.pack(">i", len(body)) + body


async def call(address: tuple[str, int], request: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(length)
    writer.close()


async def load(address: tuple[str, int], connections: int, seconds: float) -> Measured:
    topic = CreatableTopic(name="bench", num_partitions=PARTITIONS, replication_factor=-1, assignments=(), configs=())
    create = CreateTopicsRequest(topics=(topic,), timeout_ms=10_000, validate_only=False)
    await call(address, frame(CREATE_TOPICS, CREATE_VERSION, create))
    batch = bytes(build_batch([NewRecord(timestamp=1, key=None, value=b"x" * 100)]).data)
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        data = PartitionProduceData(index=number % PARTITIONS, records=batch)
        produce = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=(TopicProduceData(name="bench", partition_data=(data,)),),
        )
        request = frame(PRODUCE, PRODUCE_VERSION, produce)
        reader, writer = await asyncio.open_connection(*address)
        while (begun := time.perf_counter()) < end:
            writer.write(request)
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(length)
            latencies.append(time.perf_counter() - begun)
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    latencies.sort()
    return Measured(
        len(latencies) / seconds,
        latencies[len(latencies) // 2] * 1000,
        latencies[len(latencies) * 99 // 100] * 1000,
    )


def measure(groups: int, connections: int, seconds: float) -> Measured:
    directory = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
    command = [
        sys.executable, "-m", "mainstem.cli.main", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
        "--rpc", "127.0.0.1:0", "--write-dir", str(directory / "write"), "--store-dir", str(directory / "store"),
        "--set", f"nameserver.write_groups={groups}", "--set", "pipeline.mode=off",
    ]  # fmt: skip
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert node.stdout is not None
        for line in node.stdout:
            if line.startswith("ready "):
                break
        else:
            raise SystemExit("the node did not start")
        host, _, port = dict(word.split("=", 1) for word in line.split()[1:])["kafka"].rpartition(":")
        return asyncio.run(load((host, int(port)), connections, seconds))
    finally:
        node.terminate()
        node.wait()
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs: dict[int, list[Measured]] = {groups: [] for groups in options.groups}
    for _ in range(options.rounds):
        for groups in options.groups:
            runs[groups].append(measure(groups, options.connections, options.seconds))
    medians = {
        groups: Measured(*(statistics.median(column) for column in zip(*measured, strict=True)))
        for groups, measured in runs.items()
    }
    if options.json:
        print(json.dumps({str(groups): measured._asdict() for groups, measured in medians.items()}))
        return
    base = medians[options.groups[0]].rate
    print(f"{'groups':>6} {'requests/s':>11} {'ratio':>6} {'p50 ms':>7} {'p99 ms':>7}")
    for groups, measured in medians.items():
        ratio = measured.rate / base
        print(f"{groups:>6} {measured.rate:>11.0f} {ratio:>6.2f} {measured.p50_ms:>7.2f} {measured.p99_ms:>7.2f}")


if __name__ == "__main__":
    main()
