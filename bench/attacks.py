"""What attacks on the front door do to an honest client beside them, and to the node's memory.

    .venv/bin/python -m bench.attacks [attack ...]

Each attack meets a node of its own, in a process of its own whose loop times its callbacks with the thread's own
processor time. An honest client writes a message and reads it back, over and over, from before the attack to its end.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.config import NodeConfig
from mainstem.node import RunningNode
from mainstem.pipeline.config import PipelineConfig
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from mainstem.protocol.messages.metadata import MetadataRequest
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.protocol.schema import declaration_of
from mainstem.server.config import ServerConfig

MIB = 1 << 20
ALONE_SECONDS = 2.0
BESIDE_SECONDS = 6.0
AFTERWARDS_SECONDS = 13.0
"""Until memory is given back: a sweep and some."""
ANSWER_SECONDS_MAX = 20.0
"""Who waits longer is not served."""
PRODUCE, FETCH, JOIN, METADATA, CREATE = 9, 11, 3, 9, 5
CONNECTIONS_MAX = 4_000


# the node, in a process of its own


async def serve(directory: Path) -> None:
    longest = 0.0
    run = asyncio.events.Handle._run

    def timed(handle: Any) -> Any:
        nonlocal longest
        started = time.thread_time()
        try:
            return run(handle)
        finally:
            longest = max(longest, time.thread_time() - started)

    config = NodeConfig(
        server=ServerConfig(listen=("127.0.0.1:0",)), http="127.0.0.1:0", rpc="127.0.0.1:0",
        write_dir=str(directory / "write"), store_dir=str(directory / "store"), pipeline=PipelineConfig(mode="off"),
    )  # fmt: skip
    node = RunningNode(config)
    addresses = await node.start()
    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    print(addresses.kafka, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(longest, flush=True)
        longest = 0.0
    await node.close()


class Node:
    """Use as `with`."""

    def __init__(self, directory: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.attacks", "--node", directory],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "MAINSTEM_LOOP": "asyncio"},
        )  # fmt: skip
        self.address = self._line()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def longest_turn(self) -> float:
        """Milliseconds of the longest callback since this was asked last."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return 1000 * float(self._line())

    def memory(self, field: str) -> float:
        """MiB; VmRSS is now, VmHWM the most so far."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
        raise AssertionError(field)


# clients


class Wire:
    def __init__(self, address: str, receive_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_SECONDS_MAX)
        self.socket.connect((host, int(port)))
        self._number = 0

    def frame(self, message: Any, version: int) -> bytes:
        self._number += 1
        key = declaration_of(type(message)).api_key
        assert key is not None
        return request_frame(RequestHeader(key, version, self._number, "bench"), codec.write(message, version))

    def call(self, message: Any, version: int) -> Any:
        self.socket.sendall(self.frame(message, version))
        key = declaration_of(type(message)).api_key
        assert key is not None
        frame = self.receive()
        _, position = parse_response_header(frame, key, version)
        return codec.read(API_MESSAGES[key].response, version, frame, position)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the node closed")
            received += part
        return bytes(received)


def create(address: str, topic: str, partitions: int = 1) -> None:
    wanted = CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    Wire(address).call(CreateTopicsRequest(topics=(wanted,), timeout_ms=60_000), CREATE)


def produce_request(topic: str, value: bytes, partition: int = 0) -> ProduceRequest:
    batch = build_batch([NewRecord(timestamp=1_700_000_000_000, key=None, value=value)])
    data = PartitionProduceData(index=partition, records=bytes(batch.data))
    return ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=30_000,
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
    )  # fmt: skip


def fetch_request(topic: str, offset: int, bytes_max: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(
        replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=bytes_max,
        topics=(FetchTopic(topic=topic, partitions=(wanted,)),), session_epoch=-1,
    )  # fmt: skip


class Honest(threading.Thread):
    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        create(address, "honest")
        self._wire = Wire(address)
        self.latencies: list[float] = []
        self.started = time.monotonic()
        self.ending = False

    def run(self) -> None:
        """Latencies of rounds, in seconds; infinite when it is not served any more."""
        try:
            while not self.ending:
                self.started = started = time.monotonic()
                written = self._wire.call(produce_request("honest", b"v" * 100), PRODUCE)
                (answer,) = written.responses[0].partition_responses
                if answer.error_code:
                    raise ConnectionError(f"refused: {answer.error_code}")
                self._wire.call(fetch_request("honest", answer.base_offset, MIB), FETCH)
                self.latencies.append(time.monotonic() - started)
        except OSError as error:
            print(f"the honest client is not served: {error!r}", file=sys.stderr, flush=True)
            self.latencies.append(float("inf"))

    def p99(self, first: int) -> float:
        """Milliseconds, of all rounds from the given one on."""
        rounds = sorted(self.latencies[first:]) or [float("inf")]
        return 1000 * rounds[min(len(rounds) - 1, int(0.99 * len(rounds)))]


    def longest(self, first: int) -> float:
        """Milliseconds, of all rounds from the given one on, that under way included."""
        return 1000 * max([*self.latencies[first:], time.monotonic() - self.started])


# attacks: each returns what it wants closed afterwards


def pour(wire: Wire, content: bytes) -> None:
    """As far as the node reads it."""
    try:
        wire.socket.sendall(content)
    except OSError:
        pass


def pour_all(wires: list[Wire], content: bytes) -> list[Wire]:
    for wire in wires:
        threading.Thread(target=pour, args=(wire, content), daemon=True).start()
    return wires


def join_request(group: str, size: int) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=300_000, member_id="",
        protocol_type="consumer", protocols=(JoinGroupRequestProtocol(name="range", metadata=bytes(size)),),
    )  # fmt: skip


def joins(address: str) -> list[Wire]:
    wires = [Wire(address) for _ in range(6)]
    return pour_all(wires, wires[0].frame(join_request("large", 90_000_000), JOIN))


def halves(address: str) -> list[Wire]:
    return pour_all([Wire(address) for _ in range(16)], struct.pack(">i", 90_000_000) + bytes(45_000_000))


def groups(address: str) -> list[Wire]:
    wires = [Wire(address) for _ in range(10)]

    def fill(wire: Wire, number: int) -> None:
        for each in range(100):
            try:
                wire.call(join_request(f"g{number}-{each}", 900_000), JOIN)
            except OSError:
                return

    for number, wire in enumerate(wires):
        threading.Thread(target=fill, args=(wire, number), daemon=True).start()
    return wires


def fill_topic(address: str) -> None:
    """Small batches of eight partitions in turn: responses are copies."""
    create(address, "full", 8)
    wire = Wire(address)
    requests = [wire.frame(produce_request("full", bytes(1000), number % 8), PRODUCE) for number in range(24_000)]
    threading.Thread(target=pour, args=(wire, b"".join(requests)), daemon=True).start()
    for _ in requests:
        wire.receive()


def deaf(address: str) -> list[Wire]:
    wires = []
    for _ in range(1_000):
        wire = Wire(address, receive_bytes=4096)
        wire.socket.sendall(b"".join(wire.frame(fetch_request("full", 0, 2 * MIB), FETCH) for _ in range(4)))
        wires.append(wire)
    return wires


def many_partitions(address: str) -> None:
    for number in range(9):
        create(address, f"wide-{number}", 100_000)


def patterns(address: str) -> list[Wire]:
    wires = [Wire(address, receive_bytes=4096) for _ in range(60)]
    for wire in wires:
        wire.socket.sendall(wire.frame(MetadataRequest(topics=None), METADATA))
    return wires


def pipelines(address: str) -> list[Wire]:
    wires = [Wire(address) for _ in range(4)]

    def drain(wire: Wire) -> None:
        try:
            while True:
                wire.receive()
        except (OSError, ValueError):
            pass

    for number, wire in enumerate(wires):
        create(address, f"pipeline-{number}")
        request = wire.frame(produce_request(f"pipeline-{number}", bytes(900_000)), PRODUCE)
        threading.Thread(target=drain, args=(wire,), daemon=True).start()
        threading.Thread(target=pour, args=(wire, request * 300), daemon=True).start()
    return wires


class Attack(NamedTuple):
    what: str
    begin: Callable[[str], list[Wire]]
    prepare: Callable[[str], None] = lambda address: None


ATTACKS = {
    "joins": Attack("6 JoinGroups of 90 MB in a rebalance", joins),
    "halves": Attack("16 halves of requests of 90 MB", halves),
    "groups": Attack("1,000 groups of 900 KB of metadata", groups),
    "deaf": Attack("1,000 connections that fetch 2 MB and do not read", deaf, fill_topic),
    "patterns": Attack("60 consumers that ask for 900,000 partitions", patterns, many_partitions),
    "pipelines": Attack("4 producers that send 1 GB as fast as they can", pipelines),
}


def measure(name: str) -> str:
    attack = ATTACKS[name]
    with tempfile.TemporaryDirectory() as directory, Node(directory) as node:
        attack.prepare(node.address)
        honest = Honest(node.address)
        honest.start()
        time.sleep(1.0)
        node.longest_turn()
        first = len(honest.latencies)
        time.sleep(ALONE_SECONDS)
        alone, before = honest.p99(first), node.memory("VmRSS")
        first = len(honest.latencies)
        wires = attack.begin(node.address)
        time.sleep(BESIDE_SECONDS)
        served = len(honest.latencies) - first
        beside, longest = honest.p99(first) if served else float("inf"), honest.longest(first)
        for wire in wires:
            wire.socket.close()
        time.sleep(AFTERWARDS_SECONDS)
        honest.ending = True
        turn = node.longest_turn() if served else float("nan")
        most, after = node.memory("VmHWM"), node.memory("VmRSS")
    return (
        f"| {attack.what} | {alone:.1f} | {beside:.1f} | {beside / alone:.1f} | {longest:.0f} | {served} | {turn:.0f} "
        f"| {before:.0f} | {most:.0f} | {after:.0f} |"
    )


def main(chosen: list[str]) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, CONNECTIONS_MAX), limit))
    print("| attack | p99 alone, ms | beside | ratio | longest | rounds | turn, CPU ms | RSS MiB | most | after |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in chosen or ATTACKS:
        print(measure(name), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        asyncio.run(serve(Path(sys.argv[2])))
    else:
        main(sys.argv[1:])
