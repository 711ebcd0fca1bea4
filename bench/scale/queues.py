"""The cost of idle queues to one node: memory, creation, Metadata, start.

For each shape (topics × partitions) a node is started on an empty directory, the topics are created, Metadata is
asked for one topic and for all of them, and the node is started again after a clean stop and after SIGKILL. The
load speaks raw Kafka requests, so that no client library is part of what is measured. Beside it a second process asks
for ApiVersions without pause on its own connection: its longest wait is the longest time the node's event loop
was held, plus what this machine adds (the row `idle` shows how much that is).

    python bench/scale/queues.py --shape 10x100000 --shape 100000x10

Every wait is bounded; a run takes one to three minutes a shape.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mainstem.protocol import codec
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages.api_versions import ApiVersionsRequest
from mainstem.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from mainstem.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

WAIT_SECONDS_MAX = 300.0
"""For one answer, and for a node to be ready: a run that hangs ends."""

TOPICS_PER_REQUEST = 1_000
"""The topics that an admin tool puts into one CreateTopics request."""

PARTITIONS_PER_REQUEST = 100_000

API_VERSIONS, METADATA, CREATE_TOPICS, LIST_OFFSETS, DESCRIBE_LOG_DIRS = 18, 3, 19, 2, 35


Measured = TypeVar("Measured")


class Node(NamedTuple):
    process: subprocess.Popen[str]
    host: str
    port: int
    http: str
    ready_seconds: float
    """From the start of the process to the line that says it is ready."""

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> float:
        """Seconds until the process was gone."""
        begun = time.perf_counter()
        self.process.send_signal(how)
        try:
            self.process.wait(WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return time.perf_counter() - begun


def start(directory: Path, *settings: str) -> Node:
    """`settings`: KEY=VALUE, as of `--set`."""
    command = [
        sys.executable, "-m", "mainstem.cli.main", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
        "--rpc", "127.0.0.1:0", "--write-dir", str(directory / "write"), "--store-dir", str(directory / "store"),
        "--set", "pipeline.mode=off",
    ]  # fmt: skip
    for setting in settings:
        command += ["--set", setting]
    begun = time.perf_counter()
    errors = (directory / "node.log").open("a")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            addresses = dict(word.split("=", 1) for word in line.split()[1:])
            host, _, port = addresses["kafka"].rpartition(":")
            return Node(process, host, int(port), addresses["http"], time.perf_counter() - begun)
    raise SystemExit(f"the node did not start; see {directory / 'node.log'}")


class Client:
    """One connection, one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), WAIT_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, api_key: int, version: int, body: bytes) -> bytearray:
        """The response frame, its length left out."""
        self._socket.sendall(request_frame(RequestHeader(api_key, version, 1, "queues"), body))
        length = int.from_bytes(self._read(4), "big")
        return self._read(length)

    def ask(self, api_key: int, version: int, request: Any, response_class: type[Any]) -> Any:
        frame = self.exchange(api_key, version, codec.write(request, version))
        _, position = parse_response_header(bytes(frame[:16]), api_key, version)
        return codec.read(response_class, version, frame, position)

    def close(self) -> None:
        self._socket.close()

    def _read(self, length: int) -> bytearray:
        buffer = bytearray(length)
        view = memoryview(buffer)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise SystemExit("the node closed the connection")
            view = view[received:]
        return buffer


def probe(host: str, port: int, pipe: multiprocessing.connection.Connection) -> None:
    """Ask without pause; send the longest wait (seconds) whenever the pipe has a word, end on None."""
    client = Client(host, port)
    body = codec.write(ApiVersionsRequest(client_software_name="probe", client_software_version="1"), 3)
    longest = 0.0
    while True:
        begun = time.perf_counter()
        client.exchange(API_VERSIONS, 3, body)
        longest = max(longest, time.perf_counter() - begun)
        time.sleep(0.0005)
        if pipe.poll():
            if pipe.recv() is None:
                return
            pipe.send(longest)
            longest = 0.0


class Probe:
    """The second process."""

    def __init__(self, node: Node) -> None:
        self._pipe, other = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=probe, args=(node.host, node.port, other), daemon=True)
        self._process.start()

    def longest(self) -> float:
        """The longest wait since this was last asked, in seconds."""
        self._pipe.send("longest")
        if not self._pipe.poll(WAIT_SECONDS_MAX):
            raise SystemExit("the node does not answer any more")
        seconds: float = self._pipe.recv()
        return seconds

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(WAIT_SECONDS_MAX)


class Table:
    """Rows as they come: what was done, how long it took, how long the loop was held at most, what came of it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        print(f"{'':34} {'seconds':>9} {'CPU s':>7} {'stall ms':>9} {'RSS MB':>8}", flush=True)

    def add(self, what: str, node: Node, seconds: float, cpu: float, stall: float | None, note: str) -> None:
        resident = node.resident_bytes
        stalled = "" if stall is None else f"{stall * 1000:.1f}"
        print(f"{what:34} {seconds:>9.3f} {cpu:>7.2f} {stalled:>9} {resident / 1e6:>8.1f}  {note}", flush=True)
        self.rows.append(
            {
                "what": what,
                "seconds": seconds,
                "cpu_seconds": cpu,
                "stall_seconds": stall,
                "resident_bytes": resident,
                "note": note,
            }
        )


def create(client: Client, topics: int, partitions: int) -> None:
    per_request = max(1, min(TOPICS_PER_REQUEST, PARTITIONS_PER_REQUEST // partitions))
    for first in range(0, topics, per_request):
        wanted = tuple(
            CreatableTopic(
                name=f"idle-{number:06d}", num_partitions=partitions, replication_factor=1, assignments=(), configs=()
            )
            for number in range(first, min(topics, first + per_request))
        )  # fmt: skip
        request = CreateTopicsRequest(topics=wanted, timeout_ms=60_000)
        response: CreateTopicsResponse = client.ask(CREATE_TOPICS, 7, request, CreateTopicsResponse)
        refused = [topic for topic in elements(response.topics) if topic.error_code]
        if refused or len(elements(response.topics)) != len(wanted):
            raise SystemExit(f"topics were refused: {refused[:3]}")


def metadata(client: Client, names: tuple[str, ...] | None) -> bytearray:
    asked = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
    return client.exchange(METADATA, 12, codec.write(MetadataRequest(topics=asked), 12))


def check_metadata(frame: bytearray, topics: int, partitions: int) -> str:
    _, position = parse_response_header(bytes(frame[:16]), METADATA, 12)
    response = codec.read(MetadataResponse, 12, frame, position)
    idle = [topic for topic in elements(response.topics) if (topic.name or "").startswith("idle-")]
    if len(idle) != topics or any(len(elements(topic.partitions)) != partitions for topic in idle):
        raise SystemExit(f"Metadata lists {len(idle)} of {topics} topics, or not all of their partitions")
    if any(partition.error_code for topic in idle for partition in elements(topic.partitions)):
        raise SystemExit("Metadata has partitions with errors")
    return f"{len(frame) / 1e6:.1f} MB"


def list_offsets(client: Client, topic: str, partitions: int) -> str:
    asked = tuple(
        ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
        for partition in range(partitions)
    )
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=(ListOffsetsTopic(name=topic, partitions=asked),)
    )
    response: ListOffsetsResponse = client.ask(LIST_OFFSETS, 7, request, ListOffsetsResponse)
    answers = response.topics[0].partitions
    if len(answers) != partitions or any(answer.error_code or answer.offset for answer in answers):
        raise SystemExit("ListOffsets does not answer 0 for every partition")
    return f"{partitions} partitions"


def describe_log_dirs(client: Client) -> str:
    frame = client.exchange(DESCRIBE_LOG_DIRS, 4, codec.write(DescribeLogDirsRequest(topics=None), 4))
    return f"{len(frame) / 1e6:.1f} MB"


def console_topics(node: Node) -> str:
    with urllib.request.urlopen(f"http://{node.http}/v1/topics", timeout=WAIT_SECONDS_MAX) as answer:
        return f"{len(answer.read()) / 1e6:.1f} MB"


def files_note(directory: Path) -> str:
    def size(pattern: str) -> float:
        return sum(path.stat().st_size for path in (directory / "write").glob(pattern)) / 1e6

    return f"metadata {size('metadata/*'):.1f} MB, checkpoint {size('checkpoint/*'):.1f} MB"


@contextmanager
def probing(node: Node) -> Iterator[Probe]:
    watcher = Probe(node)
    try:
        yield watcher
    finally:
        if node.process.poll() is None:
            watcher.close()


def run_shape(topics: int, partitions: int, table: Table, directory: Path) -> None:
    node = start(directory)
    try:
        with probing(node) as watcher:
            client = Client(node.host, node.port)

            def measured(what: str, action: Callable[[], Measured], note: str = "") -> Measured:
                """The result of the action; a string is the note of its row unless one is given."""
                watcher.longest()
                before, begun = node.cpu_seconds, time.perf_counter()
                result = action()
                seconds = time.perf_counter() - begun
                said = note or (result if isinstance(result, str) else "")
                table.add(what, node, seconds, node.cpu_seconds - before, watcher.longest(), said)
                return result

            idle = node.resident_bytes
            table.add("start, empty", node, node.ready_seconds, node.cpu_seconds, None, "")
            measured("idle for a second", lambda: time.sleep(1))
            measured(f"create {topics} × {partitions}", lambda: create(client, topics, partitions))
            time.sleep(0.5)
            grown = node.resident_bytes - idle
            queues = topics * partitions
            name = (f"idle-{topics - 1:06d}",)
            note = f"{grown / 1e6:.0f} MB more, {grown / queues:.0f} bytes a queue, {grown / topics:.0f} a topic"
            measured("idle for a second", lambda: time.sleep(1), note)
            frame = measured("Metadata of one topic", lambda: metadata(client, name))
            print(f"{'':34} {check_metadata(frame, 1, partitions)}")
            frame = measured("Metadata of all topics", lambda: metadata(client, None))
            print(f"{'':34} {check_metadata(frame, topics, partitions)}")
            measured("Metadata of all topics, again", lambda: metadata(client, None))
            measured("ListOffsets of one topic", lambda: list_offsets(client, name[0], partitions))
            measured("DescribeLogDirs of everything", lambda: describe_log_dirs(client))
            measured("console: list of topics", lambda: console_topics(node))
            client.close()
        seconds = node.stop(signal.SIGKILL)
        node = start(directory)
        table.add("start after SIGKILL", node, node.ready_seconds, node.cpu_seconds, None, files_note(directory))
        seconds = node.stop()
        node = start(directory)
        note = f"the stop took {seconds:.2f} s; {files_note(directory)}"
        table.add("start after a clean stop", node, node.ready_seconds, node.cpu_seconds, None, note)
        with probing(node) as watcher:
            client = Client(node.host, node.port)
            frame = measured("Metadata of all topics", lambda: metadata(client, None))
            print(f"{'':34} {check_metadata(frame, topics, partitions)}")
            client.close()
    finally:
        node.stop()


def shape_of(text: str) -> tuple[int, int]:
    topics, _, partitions = text.partition("x")
    return int(topics), int(partitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=shape_of, action="append", help="TOPICSxPARTITIONS")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    results: dict[str, object] = {}
    for topics, partitions in options.shape or [(10, 100_000), (100_000, 10)]:
        print(f"\n{topics} topics × {partitions} partitions")
        directory = Path(tempfile.mkdtemp(prefix="mainstem-queues-"))
        table = Table()
        try:
            run_shape(topics, partitions, table, directory)
        finally:
            shutil.rmtree(directory)
        results[f"{topics}x{partitions}"] = table.rows
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
