"""Kafka Connect: a source with exactly-once support, whose worker is killed half-way. Each line of a file must be a
message once, in the file's order."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.interop.languages import JAVA, applications_class_path
from bench.interop.programs.scenario import SECONDS_MAX, new_name

SCENARIO = "Connect, an exactly-once source"
WORKER_SECONDS_MAX = 3 * SECONDS_MAX
LINES = 4_000
SPARE_LINES = 400
"""At the end of the file: the source keeps lines that it has read until the file grows."""


class _Failed(Exception):
    """The scenario failed; the message says why."""


class _Worker:
    """A worker of a Connect cluster of one; leaving the context kills it."""

    def __init__(self, directory: Path, address: str, name: str) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self._url = f"http://127.0.0.1:{one.getsockname()[1]}"
        settings = {
            "bootstrap.servers": address, "group.id": name, "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": self._url, "offset.flush.interval.ms": "200", "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000", "scheduled.rebalance.max.delay.ms": "0",
        }  # fmt: skip
        for kind in ("offset", "status", "config"):
            settings |= {f"{kind}.storage.topic": f"{name}-{kind}", f"{kind}.storage.replication.factor": "1"}
            settings |= {} if kind == "config" else {f"{kind}.storage.partitions": "1"}
        self._said = directory / "worker.txt"
        file = directory / "worker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._command = [*JAVA, applications_class_path(), "org.apache.kafka.connect.cli.ConnectDistributed", str(file)]

    def __enter__(self) -> _Worker:
        with self._said.open("a") as said:
            self._process = subprocess.Popen(self._command, stdout=said, stderr=said)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer, once the worker gives one: it refuses calls while it starts and while its group changes."""
        deadline = time.monotonic() + WORKER_SECONDS_MAX
        while True:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(self._url + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                    return json.load(answer)
            except (urllib.error.URLError, OSError) as refused:
                if self._process.poll() is not None:
                    raise _Failed(f"the worker ended: {self._said.read_text()[-400:]}") from refused
                if time.monotonic() > deadline:
                    raise _Failed(f"{method} {path}: {refused}") from refused
                time.sleep(0.3)

    def runs(self, connector: str) -> bool:
        """Whether the connector has a task that runs. Raises _Failed when a task failed."""
        tasks = self.ask("GET", f"/connectors/{connector}/status")["tasks"]
        for task in tasks:
            if task["state"] == "FAILED":
                raise _Failed(f"the task failed: {task.get('trace', '')[:400]}")
        return any(task["state"] == "RUNNING" for task in tasks)


def outcome(address: str) -> str:
    """Why the scenario failed; empty when it did not."""
    with tempfile.TemporaryDirectory(prefix="interop-connect-") as directory:
        try:
            _play(Path(directory), address)
        except (_Failed, KafkaException) as error:
            return f"{type(error).__name__.strip('_')}: {error}".replace("\n", " ")
    return ""


def _play(directory: Path, address: str) -> None:
    topic, name, file = new_name("topic"), new_name("connect"), directory / "lines.txt"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)
    lines = [f"line {number}" for number in range(LINES + SPARE_LINES)]
    half = LINES // 2
    file.write_text("".join(f"{line}\n" for line in lines[:half]))
    settings = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
        "file": str(file), "topic": topic, "batch.size": "50", "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }  # fmt: skip
    reader = Consumer({
        "bootstrap.servers": address, "group.id": name, "isolation.level": "read_committed",
        "enable.auto.commit": False,
    })  # fmt: skip
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[str] = []
    try:
        with _Worker(directory, address, name) as worker:
            worker.ask("PUT", f"/connectors/{name}/config", settings)
            _follow(reader, found, half // 4, worker, name)
        with file.open("a") as more:
            more.writelines(f"{line}\n" for line in lines[half:])
        with _Worker(directory, address, name) as worker:
            _follow(reader, found, LINES, worker, name)
    finally:
        reader.close()
    wrong = next((number for number, (one, line) in enumerate(zip(found, lines, strict=False)) if one != line), None)
    if wrong is not None:
        raise _Failed(f"message {wrong} is {found[wrong]!r}")


def _follow(reader: Consumer, found: list[str], count: int, worker: _Worker, connector: str) -> None:
    deadline = time.monotonic() + WORKER_SECONDS_MAX
    while len(found) < count:
        messages = _values(reader.consume(count - len(found), timeout=0.5))
        found += messages
        if not messages:
            worker.runs(connector)
            if time.monotonic() > deadline:
                raise _Failed(f"{len(found)} of {count} messages came within {WORKER_SECONDS_MAX:.0f} s")


def _values(messages: list[Any]) -> list[str]:
    for message in messages:
        if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
    return [(message.value() or b"").decode() for message in messages if message.error() is None]
