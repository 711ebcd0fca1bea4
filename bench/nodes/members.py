"""The members of a cluster one by one, for benches that lose some and add others: each a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.errors import BenchError
from bench.process_tree import ProcessTree
from bench.systems.system import Durability, Setup, brokers_of, free_ports, launch
from mainstem.console.token_file import read_token

START_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1
ANSWER_SECONDS_MAX = 10.0
OUTPUT_SHOWN = 2_000
"""The last characters of what a node wrote that ended by itself."""


class Member:
    """A node. It is started by the constructor; `kill` must be called, and may be called twice."""

    def __init__(
        self,
        node_id: int,
        directory: Path,
        addresses: Sequence[str],
        peers: Mapping[int, str],
        settings: Mapping[str, str],
        program: Sequence[str] = ("mainstem.cli.main",),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`addresses`: of Kafka, HTTP and RPC. `peers`: node id → RPC address. `program`: the module that is run, and
        what comes before `serve`. `environment`: more than this process's, as of another tree."""
        self.node_id = node_id
        self.directory = directory
        self.kafka, self.http, self.rpc = addresses
        given = {
            "write_dir": str(directory / "write"),
            "store_dir": str(directory / "store"),
            "node_id": str(node_id),
            "nameserver.peers": json.dumps({str(peer): address for peer, address in peers.items()}),
            **settings,
        }
        command = [sys.executable, "-m", *program, "serve"]
        command += ["--listen", self.kafka, "--http", self.http, "--rpc", self.rpc]
        command += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        setup = Setup(directory=directory, cpus=cpus, cores_count=len(cpus), durability=Durability.SYNC)
        own = {key: value for key, value in os.environ.items() if not key.startswith("MAINSTEM_")}
        self._process = launch(setup, command, {**own, **environment})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def token(self) -> str:
        """The state that it asks for before it changes anything. Raises BenchError before it has started."""
        token = read_token(self.directory / "write")
        if token is None:
            raise BenchError(f"node {self.node_id} has made no token yet")
        return token

    def await_started(self, brokers: int) -> None:
        """Returns when its Metadata names so many brokers. Raises BenchError."""
        wait_until(lambda: self._lives() and brokers_of(self.kafka) >= brokers, f"node {self.node_id} has not started")

    def _lives(self) -> bool:
        if self._process.poll() is not None:
            output = (self.directory / "output").read_text(errors="replace")
            raise BenchError(f"node {self.node_id} ended: {output[-OUTPUT_SHOWN:]}")
        return True

    def get(self, path: str) -> Any:
        """A JSON answer."""
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=ANSWER_SECONDS_MAX) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        """The sum over all labels; 0 where the node has no such metric."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=ANSWER_SECONDS_MAX) as answer:
            return metric_in(answer.read().decode(), name)

    def kill(self) -> None:
        if self._process.poll() is None:
            ProcessTree(self._process.pid).kill()
        self._process.wait()


def metric_in(text: str, name: str) -> float:
    """The sum of a metric's samples, whatever their labels, in Prometheus's format."""
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
    return sum(float(value) for _, _, value in rows)


def start_members(directory: Path, count: int, settings: Mapping[str, str]) -> list[Member]:
    """Nodes 1 to `count` of a new cluster, all of whose write groups are led. Raises BenchError."""
    ports = free_ports(3 * count)
    addresses = [[f"127.0.0.1:{port}" for port in ports[3 * at : 3 * at + 3]] for at in range(count)]
    peers = {at + 1: addresses[at][2] for at in range(count)}
    members: list[Member] = []
    try:
        for at in range(count):
            members.append(Member(at + 1, directory / f"node-{at + 1}", addresses[at], peers, settings))
        for member in members:
            member.await_started(count)
        wait_until(lambda: all(leaders(members[0])), "a write group has no leader")
    except BaseException:
        for member in members:
            member.kill()
        raise
    return members


def leaders(asked: Member) -> list[int]:
    """The node ids of the write groups' leaders, in the order of the groups; 0: none is known. Empty without an
    answer, and then as if no group was led: [0]."""
    try:
        groups = asked.get("/v1/cluster")["write_groups"]
    except (OSError, urllib.error.URLError):
        groups = []
    return [max(0, group["leader"]) for group in groups] or [0]


def wait_until(done: Any, otherwise: str, seconds_max: float = START_SECONDS_MAX) -> None:
    """Returns when `done()` is true. Raises BenchError with `otherwise`."""
    deadline = time.monotonic() + seconds_max
    while not done():
        if time.monotonic() > deadline:
            raise BenchError(f"{otherwise} after {seconds_max:.0f} s")
        time.sleep(LOOK_SECONDS)
