"""How long is a partition without a leader when its leader dies?

Three nodes of `mainstem serve` with default settings, on this machine. Time after time a node that leads something is
killed (SIGKILL), and when everybody has recovered it is started again and the cluster is well again. Measured from the
kill, for every write group that the victim led:

    cluster      a client of no patience: it asks the survivors for an append (acks=all) to a partition of the group
                 every millisecond, until one acknowledges it
    librdkafka   an idempotent producer with default settings under a steady trickle: its longest time between two
                 acknowledgements of a partition
    kafka-python the same of a client that is made like the Java client (100 ms between retries)

    python -m bench.failover --kills 100

Prints a table, and with `--json FILE` writes every figure. Some six seconds per kill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from mainstem.cli.dev.cluster import START_SECONDS_MAX, DevNode
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from mainstem.protocol.records import NewRecord, build_batch

NODES = 3
TOPIC = "failover"
PARTITIONS = 32
"""Enough that every write group has one."""
PRODUCE, PRODUCE_VERSION = 0, 9
KNOCK_SECONDS = 0.001
KNOCK_ANSWER_SECONDS_MAX = 5.0
RECOVERY_SECONDS_MAX = 60.0
TRICKLE_SECONDS = 0.01
"""Between two messages of a partition."""
PORTS = range(10_000, 29_000)
TARGET_MEDIAN_SECONDS = 1.0
TARGET_P99_SECONDS = 3.0


class Pauses:
    """Longest time between two acknowledgements per partition since `mark`, which starts from the last one before."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self._last = dict.fromkeys(partitions, time.monotonic())
        self._longest: dict[int, float] = {}
        self._lock = threading.Lock()
        self._marked = 0.0

    def mark(self) -> None:
        with self._lock:
            self._longest = {}
            self._marked = time.monotonic()

    def acknowledged(self, partition: int) -> None:
        now = time.monotonic()
        with self._lock:
            self._longest[partition] = max(self._longest.get(partition, 0.0), now - self._last[partition])
            self._last[partition] = now

    def pauses(self) -> dict[int, float]:
        with self._lock:
            return dict(self._longest)

    def heard_since(self, partition: int, moment: float) -> bool:
        return self._last[partition] > moment


class ClientLoad:
    """A client library under a trickle, in a thread of its own."""

    def __init__(self, name: str, partitions: Sequence[int], pauses: Pauses) -> None:
        self.name = name
        self.pauses = pauses
        self._partitions = partitions
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, partitions: Sequence[int], moment: float) -> None:
        """Until each of the partitions had an acknowledgement after this moment."""
        wait_until(
            lambda: all(self.pauses.heard_since(partition, moment) for partition in partitions),
            f"an acknowledgement of partitions {partitions} for {self.name}",
        )

    def close(self) -> None:
        self._ending.set()
        self._thread.join(RECOVERY_SECONDS_MAX)

    def _run(self) -> None:
        while not self._ending.wait(TRICKLE_SECONDS):
            for partition in self._partitions:
                self.send(partition)
            self.poll()
        self.end()

    def send(self, partition: int) -> None:
        raise NotImplementedError

    def poll(self) -> None:
        """Give the client the time it needs from this thread."""

    def end(self) -> None:
        raise NotImplementedError


class Librdkafka(ClientLoad):
    def __init__(self, bootstrap: str, partitions: Sequence[int]) -> None:
        super().__init__("librdkafka", partitions, Pauses(partitions))
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def send(self, partition: int) -> None:
        self._producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=self._delivered)

    def poll(self) -> None:
        self._producer.poll(0)

    def end(self) -> None:
        self._producer.flush(RECOVERY_SECONDS_MAX)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.pauses.acknowledged(message.partition())


class KafkaPython(ClientLoad):
    def __init__(self, bootstrap: str, partitions: Sequence[int]) -> None:
        super().__init__("kafka-python", partitions, Pauses(partitions))
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, retry_backoff_ms=100
        )

    def send(self, partition: int) -> None:
        future = self._producer.send(TOPIC, b"x" * 100, partition=partition)
        future.add_callback(lambda _meta: self.pauses.acknowledged(partition))
        future.add_errback(lambda error: self.failures.append(str(error)))

    def end(self) -> None:
        self._producer.close(timeout=RECOVERY_SECONDS_MAX)


class Knocker:
    """Asks for appends until one is acknowledged, over connections that are there before they are needed."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    async def until_acknowledged(self, node_ids: Sequence[int], partition: int, deadline: float) -> float:
        """The moment at which the first of the nodes acknowledged an append. Raises TimeoutError."""
        tasks = [asyncio.create_task(self._knock(node_id, partition)) for node_id in node_ids]
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return min(task.result() for task in done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _knock(self, node_id: int, partition: int) -> float:
        request = append_request(partition)
        host, _, port = self._addresses[node_id].rpartition(":")
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(KNOCK_SECONDS)
                continue
            try:
                while True:
                    writer.write(request)
                    async with asyncio.timeout(KNOCK_ANSWER_SECONDS_MAX):
                        (size,) = struct.unpack(">i", await reader.readexactly(4))
                        answer = await reader.readexactly(size)
                    if error_of(answer) == 0:
                        return time.monotonic()
                    await asyncio.sleep(KNOCK_SECONDS)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.sleep(KNOCK_SECONDS)
            finally:
                writer.transport.abort()


def append_request(partition: int) -> bytes:
    batch = bytes(build_batch([NewRecord(timestamp=1, key=None, value=b"knock")]).data)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=round(KNOCK_ANSWER_SECONDS_MAX * 1000),
        topic_data=(
            TopicProduceData(
                name=TOPIC, partition_data=(PartitionProduceData(index=partition, records=batch),)
            ),
        ),
    )
    header = RequestHeader(PRODUCE, PRODUCE_VERSION, 1, "failover")
    return bytes(request_frame(header, codec.write(request, PRODUCE_VERSION)))


def error_of(answer: bytes) -> int:
    _, position = parse_response_header(answer, PRODUCE, PRODUCE_VERSION)
    response = codec.read(ProduceResponse, PRODUCE_VERSION, answer, position)
    return int(response.responses[0].partition_responses[0].error_code)


class Kill(NamedTuple):
    """Seconds, by write group that the victim led."""

    victim: int
    metadata_leader: bool
    cluster: dict[int, float]
    clients: dict[str, dict[int, float]]
    well_again_seconds: float
    """From the start of the victim's successor to a cluster in which nobody lacks anything."""


class Cluster:
    def __init__(self, directory: Path, settings: Sequence[str]) -> None:
        port = random.choice(PORTS)
        self.nodes = {
            node_id: DevNode(directory, node_id, port, NODES, ("pipeline.mode=off", *settings))
            for node_id in range(1, NODES + 1)
        }
        self.partitions: dict[int, int] = {}
        """Write group -> a partition of it."""

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes.values())

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            for node in self.nodes.values():
                node.start()
            for node in self.nodes.values():
                node.wait_ready(time.monotonic() + START_SECONDS_MAX)
            yield
        finally:
            for node in self.nodes.values():
                node.stop()
            for node in self.nodes.values():
                node.wait_stopped(time.monotonic() + 10)

    def get(self, node_id: int, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.nodes[node_id].http}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(RECOVERY_SECONDS_MAX)
        for one in self.get(1, f"/v1/topics/{TOPIC}")["partitions"]:
            self.partitions.setdefault(one["write_group"], one["partition"])

    def leaders(self, asked: int) -> dict[int, int]:
        return {one["group"]: one["leader"] for one in self.get(asked, "/v1/cluster")["write_groups"]}

    def is_well(self) -> bool:
        """All nodes say: all live, all groups are led, nobody lacks anything but the newest blocks."""
        for asked in self.nodes:
            view = self.get(asked, "/v1/cluster")
            if any(node["state"] != "alive" for node in view["nodes"]) or len(view["nodes"]) != NODES:
                return False
            for group in view["write_groups"]:
                if group["leader"] <= 0 or not all(replica["active"] for replica in group["replicas"]):
                    return False
                if any(replica["lag_blocks"] > 10 for replica in group["replicas"]):
                    return False
        return True

    def wait_until_well(self) -> None:
        wait_until(self.is_well, "a well cluster")

    def kill(self, node_id: int) -> float:
        process = self.nodes[node_id].process
        assert process is not None
        moment = time.monotonic()
        process.send_signal(signal.SIGKILL)
        return moment

    def start_again(self, node_id: int) -> None:
        node = self.nodes[node_id]
        assert node.process is not None
        node.process.wait()
        node.start()
        node.wait_ready(time.monotonic() + START_SECONDS_MAX)


def wait_until(check: Callable[[], bool], what: str, seconds: float = RECOVERY_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come about within {seconds:.0f} s")
        time.sleep(0.05)


def kill_once(cluster: Cluster, clients: Sequence[ClientLoad], randomness: random.Random) -> Kill:
    leaders = cluster.leaders(min(cluster.nodes))
    victim = randomness.choice(sorted(set(leaders.values())))
    survivors = [node_id for node_id in cluster.nodes if node_id != victim]
    led = [group for group, leader in leaders.items() if leader == victim and group in cluster.partitions]
    metadata_leader = cluster.get(survivors[0], "/v1/cluster")["metadata_leader"] == victim
    for client in clients:
        client.pauses.mark()
    killed_at = cluster.kill(victim)

    async def knock() -> dict[int, float]:
        knocker = Knocker({node_id: cluster.nodes[node_id].kafka for node_id in survivors})
        moments = await asyncio.gather(
            *(
                knocker.until_acknowledged(
                    survivors, cluster.partitions[group], killed_at + RECOVERY_SECONDS_MAX
                )
                for group in led
            )
        )
        return {group: moment - killed_at for group, moment in zip(led, moments, strict=True)}

    seen = asyncio.run(knock())
    recovered_at = killed_at + max(seen.values())  # an answer from before the kill may be read after it
    for client in clients:
        client.wait_for([cluster.partitions[group] for group in led], recovered_at)
    paused = {client.name: client.pauses.pauses() for client in clients}
    begun = time.monotonic()
    cluster.start_again(victim)
    cluster.wait_until_well()
    return Kill(
        victim,
        metadata_leader,
        seen,
        {
            name: {group: pauses[cluster.partitions[group]] for group in led}
            for name, pauses in paused.items()
        },
        time.monotonic() - begun,
    )


class Figures(NamedTuple):
    """Seconds."""

    samples: int
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figures:
        ordered = sorted(values)
        at = min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)
        return cls(len(ordered), statistics.median(ordered), ordered[at], ordered[-1])


def figures(kills: Sequence[Kill], names: Sequence[str]) -> dict[str, Figures]:
    """By what was measured."""
    table = {"cluster": Figures.of([value for kill in kills for value in kill.cluster.values()])}
    for name in names:
        table[name] = Figures.of([value for kill in kills for value in kill.clients[name].values()])
    table["all groups of a kill"] = Figures.of([max(kill.cluster.values()) for kill in kills])
    table["well again"] = Figures.of([kill.well_again_seconds for kill in kills])
    return table


def show(table: Mapping[str, Figures], kills: int) -> None:
    print(f"\n{kills} kills; seconds without a leader, per write group that the victim led")
    print(f"{'':<22}{'samples':>8}{'median':>9}{'p99':>9}{'max':>9}")
    for name, row in table.items():
        print(f"{name:<22}{row.samples:>8}{row.median:>9.3f}{row.p99:>9.3f}{row.most:>9.3f}")
    seen = table["cluster"]
    met = seen.median <= TARGET_MEDIAN_SECONDS and seen.p99 <= TARGET_P99_SECONDS
    print(f"target: median <= {TARGET_MEDIAN_SECONDS:g} s, p99 <= {TARGET_P99_SECONDS:g} s: "
          f"{'met' if met else 'MISSED'}{'' if kills >= 100 else ' (so far: it asks for 100 kills)'}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    randomness = random.Random(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="mainstem-failover-"))
    cluster = Cluster(directory, options.settings)
    kills: list[Kill] = []
    clients: list[ClientLoad] = []
    try:
        with cluster.running():
            cluster.make_topic()
            cluster.wait_until_well()
            partitions = sorted(cluster.partitions.values())
            clients = [Librdkafka(cluster.bootstrap, partitions), KafkaPython(cluster.bootstrap, partitions)]
            for client in clients:
                client.start()
            for client in clients:
                client.wait_for(partitions, time.monotonic())
            try:
                for number in range(options.kills):
                    kill = kill_once(cluster, clients, randomness)
                    kills.append(kill)
                    print(line(number, kill), flush=True)
            finally:
                for client in clients:
                    client.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if kills:
            table = figures(kills, [client.name for client in clients])
            show(table, len(kills))
            for client in clients:
                if client.failures:
                    print(
                        f"{client.name}: {len(client.failures)} messages failed, first: {client.failures[0]}"
                    )
            if options.json is not None:
                content = {"kills": [kill._asdict() for kill in kills],
                           "figures": {name: row._asdict() for name, row in table.items()},
                           "failures": {client.name: client.failures[:10] for client in clients}}  # fmt: skip
                options.json.write_text(json.dumps(content, indent=1))


def line(number: int, kill: Kill) -> str:
    parts = [f"{number + 1:>4} node {kill.victim}{' (metadata leader)' if kill.metadata_leader else ''}:"]
    for name, values in (("cluster", kill.cluster), *kill.clients.items()):
        parts.append(f"{name} {max(values.values()):.3f}")
    return "  ".join([*parts, f"well again after {kill.well_again_seconds:.1f}"])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    main()
