"""Apache Kafka 4.x, KRaft: each node is broker and controller in one process.

Its defaults, and the flags its own start script gives the JVM, with these exceptions: one replica where there is one
node, and where there are more `min.insync.replicas` of a majority; for rows "on disk" a flush after every message; and
a second of delay instead of a minute before the files of deleted topics go, so that runs do not pay for each other. It
writes no log: no logging backend is on the class path.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.errors import BenchError
from bench.systems import kafka_jars
from bench.systems.system import Durability, Node, Setup, free_ports, launch

JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
FORMAT_SECONDS_MAX = 60.0


class Layout(NamedTuple):
    """Of the nodes of a cluster, in order."""

    commands: Sequence[Sequence[str]]
    addresses: Sequence[str]
    """HOST:PORT for Kafka clients."""
    guarded: str | None
    """The same, behind the guard."""


class Ports(NamedTuple):
    """Of one node."""

    clients: int
    among: int
    """For the other nodes, where clients are told of somebody who stands between."""
    controllers: Sequence[int]
    """Of all nodes."""


class Kafka:
    name = "kafka"

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def prepare(self) -> None:
        """Raises BenchError without Java 17 or without the jars."""
        if shutil.which("java") is None:
            raise BenchError("Kafka needs Java 17, and there is no java on the PATH")
        kafka_jars.fetch(self._cache)

    def version(self) -> str:
        return f"Apache Kafka {kafka_jars.VERSION}"

    @property
    def class_path(self) -> str:
        """For Kafka's own tools."""
        return f"{kafka_jars.fetch(self._cache)}/*"

    def start(self, setup: Setup) -> Node:
        layout = self.lay_out(setup)
        begun = time.perf_counter()
        processes = [launch(setup, command, os.environ) for command in layout.commands]
        node = Node(setup, processes, layout.addresses, guarded=layout.guarded)
        try:
            node.await_ready(begun)
        except BaseException:
            node.kill()
            raise
        return node

    def lay_out(self, setup: Setup) -> Layout:
        """Directories and configurations, formatted unless they were used before."""
        *ports, guarded_port = free_ports(3 * setup.nodes + 1)
        kafka, controllers, among = ([*ports[kind::3]] for kind in range(3))
        kafka = list(setup.ports) or kafka
        guarded = f"127.0.0.1:{guarded_port}" if setup.guard is not None else None
        numbers = range(1, setup.nodes + 1)
        data = [setup.directory / f"data-{number}" for number in numbers]
        files = [setup.directory / f"server-{number}.properties" for number in numbers]
        for number, directory, file in zip(numbers, data, files, strict=True):
            directory.mkdir(parents=True, exist_ok=True)
            own = Ports(kafka[number - 1], among[number - 1], controllers)
            file.write_text(_properties(setup, number, directory, own, guarded))
        java = ["java", f"-Xms{setup.heap}", f"-Xmx{setup.heap}", *JVM_FLAGS,
                f"-XX:ActiveProcessorCount={setup.cores_count}", "-cp", self.class_path]  # fmt: skip
        if not (data[0] / "meta.properties").exists():
            self._format(files, [] if setup.guard is None else setup.guard.format_words())
        commands = [[*java, "kafka.Kafka", str(file)] for file in files]
        return Layout(commands, [f"127.0.0.1:{port}" for port in kafka], guarded)

    def _format(self, properties: Sequence[Path], words: Sequence[str]) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for file in properties:
            command = ["java", "-cp", self.class_path, "kafka.tools.StorageTool", "format",
                       f"--cluster-id={cluster}", "-c", str(file), *words]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_SECONDS_MAX)
            if done.returncode != 0:
                raise BenchError(f"Kafka could not format its directory: {done.stderr.strip()[-800:]}")


def _properties(setup: Setup, number: int, data: Path, ports: Ports, guarded: str | None) -> str:
    voters = (f"{one}@127.0.0.1:{port}" for one, port in enumerate(ports.controllers, 1))
    controller = f"CONTROLLER://127.0.0.1:{ports.controllers[number - 1]}"
    clients = f"PLAINTEXT://127.0.0.1:{ports.clients}"
    in_sync = str(setup.nodes // 2 + 1)
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(voters),
        "listeners": f"{clients},{controller}",
        "advertised.listeners": clients,
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": str(setup.nodes),
        "transaction.state.log.replication.factor": str(setup.nodes),
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": str(setup.nodes),
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "file.delete.delay.ms": "1000",
    }
    if setup.durability is Durability.SYNC:
        settings["log.flush.interval.messages"] = "1"
    if setup.advertised:
        among = f"AMONG://127.0.0.1:{ports.among}"
        settings |= {
            "listeners": f"{clients},{among},{controller}",
            "advertised.listeners": f"PLAINTEXT://{setup.advertised[number - 1]},{among}",
            "inter.broker.listener.name": "AMONG",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,AMONG:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
    if setup.guard is not None and guarded is not None:
        settings |= setup.guard.of_kafka(guarded, settings)
    own = "kafka."
    settings |= {
        key.removeprefix(own): setup.setting(value, number)
        for key, value in setup.settings.items()
        if key.startswith(own)
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
