"""`mainstem serve --processes`: real nodes of one machine, clients of librdkafka, and a node that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.free_port import free_ports
from tests.harness.patience import PATIENCE_SECONDS

MAINSTEM = [sys.executable, "-m", "mainstem.cli.main"]
PORTS = [0, *(kind + index for kind in (10, 20, 30) for index in (0, 1, 2))]
RECORDS = 300


@contextmanager
def served(directory: Path, port: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [*MAINSTEM, "serve", "--processes", "3", "--listen", f"127.0.0.1:{port + 10}",
             "--rpc", f"127.0.0.1:{port + 20}", "--http", f"127.0.0.1:{port + 30}", "--write-dir", "d1",
             "--store-dir", "d2", "--set", "pipeline.mode=off", "--set", "journal.segment_bytes=4194304",
             "--set", "machine=box-7", "--set", f"server.bootstrap_listen=127.0.0.1:{port}", *more],
            cwd=directory, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


def line_of(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"ended without {pattern!r}")


def produce(bootstrap: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(first, first + RECORDS):
        producer.produce("t", str(number).encode(), partition=number % 6)
    assert producer.flush(PATIENCE_SECONDS) == 0


def consumed(bootstrap: str, count: int) -> set[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found: set[int] = set()
    while len(found) < count:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, f"{len(found)} of {count}"
        assert message.error() is None
        value = message.value()
        assert value is not None
        found.add(int(value))
    consumer.close()
    return found


def test_clients_find_all_nodes_by_one_port_and_a_killed_one_returns(tmp_path: Path) -> None:
    port = free_ports(PORTS)
    bootstrap = f"127.0.0.1:{port}"
    with served(tmp_path, port) as supervisor:
        line_of(supervisor, "ready processes=3")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        brokers = admin.list_topics(timeout=PATIENCE_SECONDS).brokers
        own = {node_id: port + 9 + node_id for node_id in (1, 2, 3)}
        assert {node_id: broker.port for node_id, broker in brokers.items()} == own, "nobody is sent to the shared port"
        admin.create_topics([NewTopic("t", 6, 3)])["t"].result(PATIENCE_SECONDS)
        produce(bootstrap, 0)
        os.kill(node_of(supervisor.pid, 1), signal.SIGKILL)
        line_of(supervisor, "ready .*node=2")
        produce(bootstrap, RECORDS)
        assert consumed(bootstrap, 2 * RECORDS) == set(range(2 * RECORDS))
        supervisor.terminate()
        assert supervisor.wait(PATIENCE_SECONDS) == 0
    log = (tmp_path / "log").read_text().splitlines()
    assert all(re.match(r"node [123] \| |\d{4}-.* supervisor: ", line) for line in log), "each line names its node"
    assert sum("node 2 ended with SIGKILL; it is started again in 1 s" in line for line in log) == 1
    stopped = [line.split()[1] for line in log if line.endswith("mainstem: stopped")]
    assert stopped == ["3", "2", "1"]
    for disk in ("d1", "d2"):
        assert sorted(path.name for path in (tmp_path / disk).glob("node-*")) == ["node-1", "node-2", "node-3"]


def node_of(supervisor: int, index: int) -> int:
    """The process of a supervisor's node."""
    wanted = f"--process\0{index}\0--supervisor\0{supervisor}".encode()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and wanted in (process / "cmdline").read_bytes():
                return int(process.name)
        except OSError:
            continue  # it has ended
    raise AssertionError(f"no process of node {index}")
