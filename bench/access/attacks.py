"""The effect of attacks on the front door on an honest client beside them, and on the node's memory.

    .venv/bin/python -m bench.access.attacks [attack ...]

Each attack meets a node of its own, in a process of its own (`timed_node.py`). An honest client writes a message and
reads it back, over and over, from before the attack to its end.
"""

from __future__ import annotations

import resource
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.nodes.timed_node import MIB, TimedNode, create
from bench.nodes.timed_node import Wire as AnyWire
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.group_membership import JoinGroupRequest, JoinGroupRequestProtocol
from mainstem.protocol.messages.metadata import MetadataRequest
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import NewRecord, build_batch

ALONE_SECONDS = 2.0
BESIDE_SECONDS = 6.0
AFTERWARDS_SECONDS = 13.0
"""Until memory is given back: a sweep and some."""
ANSWER_SECONDS_MAX = 20.0
"""A client that waits longer is not served."""
PRODUCE, FETCH, JOIN, METADATA = 9, 11, 3, 9
CONNECTIONS_MAX = 4_000


class Wire(AnyWire):
    def __init__(self, address: str, receive_bytes: int | None = None) -> None:
        super().__init__(address, ANSWER_SECONDS_MAX, receive_bytes)


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
        create(Wire(address), "honest")
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
    wire = Wire(address)
    create(wire, "full", 8)
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
        create(Wire(address), f"wide-{number}", 100_000)


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
        create(Wire(address), f"pipeline-{number}")
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
    with tempfile.TemporaryDirectory() as directory, TimedNode(directory) as node:
        attack.prepare(node.address)
        honest = Honest(node.address)
        honest.start()
        time.sleep(1.0)
        node.turns()
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
        turn = node.turns().longest if served else float("nan")
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
    main(sys.argv[1:])
