"""The port through which the bench asks of a system: to start on an empty directory and given cores, and to say what it
cost.

A `Node` is one, or a cluster of several on this machine, measured as one. Its processes are started in sessions of
their own, so that Ctrl-C at the terminal reaches the bench alone, which then ends them by process id. Being ready
means the same for every system: its Metadata names a broker, or as many as the cluster has.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from bench import page_cache
from bench.errors import SystemFailed
from bench.process_tree import Memory, ProcessTree
from bench.systems.guard import Guard

START_SECONDS_MAX = 120.0
"""Recovery after a kill with thousands of queues included."""
STOP_SECONDS_MAX = 20.0
OWN_NUMBER = "{node}"
OUTPUT = "output"
"""The file in a setup's directory to which its processes print."""
_PROBE_SECONDS = 0.01
_METADATA_OF_NO_TOPIC = struct.pack(">ihhih5si", 0, 3, 1, 1, 5, b"bench", 0)


class Durability(enum.Enum):
    """The promise of an acknowledgement, in the words of the tables."""

    SYNC = "on disk"
    """Each acknowledged record was fdatasync'ed."""
    ASYNC = "page cache"
    """Each acknowledged record was handed to the kernel, which writes it when it sees fit."""
    NONE = ""
    """Nothing is written: of measurements without a node."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a node is to be started. `settings` are the system's own keys; each system takes those meant for it, and
    `{node}` in a value stands for the number of the node that takes it."""

    directory: Path
    cpus: tuple[int, ...]
    """To start on."""
    cores_count: int
    """How many of them it will be left with: for what sizes itself by that at the start."""
    durability: Durability
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    heap: str = "1g"
    """Of a JVM."""
    splitter: bool = False
    """Whether Mainstem may run its background split."""
    nodes: int = 1
    """More than one: a cluster, every topic of which has that many replicas at the most."""
    guard: Guard | None = None
    """Of a single node: what clients meet at a second listener."""
    ports: Sequence[int] = ()
    """On which the nodes serve clients, in order; empty: any that are free."""
    advertised: Sequence[str] = ()
    """HOST:PORT of each node that clients are told, for who stands between; empty: where it listens."""

    def setting(self, value: str, node: int) -> str:
        """A value of `settings` for the node of this number."""
        return value.replace(OWN_NUMBER, str(node))


class Node:
    """A running system. `stop` or `kill` must be called; both may be called twice."""

    def __init__(
        self,
        setup: Setup,
        processes: Sequence[subprocess.Popen[bytes]],
        addresses: Sequence[str],
        http: str | None = None,
        reserves: tuple[str, ...] = (),
        guarded: str | None = None,
    ) -> None:
        """`addresses`: HOST:PORT for Kafka clients, of each process; `guarded`: of the listener behind the guard."""
        self.setup = setup
        self.address = addresses[0]
        self.guarded = guarded
        self.http = http
        self.start_seconds = 0.0
        self.tree = ProcessTree(*(process.pid for process in processes))
        self._addresses = addresses
        self._processes = processes
        self._reserves = reserves

    def await_ready(self, begun: float) -> None:
        """Returns when the Metadata of each process names all of them; sets `start_seconds`. Raises SystemFailed when
        one ends first."""
        deadline = begun + START_SECONDS_MAX
        while any(brokers_of(address) < len(self._addresses) for address in self._addresses):
            if not self.lives:
                codes = [process.returncode for process in self._processes if process.returncode is not None]
                raise SystemFailed(f"a node ended while it started, with code {codes[0]}; "
                                   f"its output is in {self.setup.directory / OUTPUT}")  # fmt: skip
            if time.perf_counter() > deadline:
                raise SystemFailed(f"a node was not ready after {START_SECONDS_MAX:.0f} s")
            time.sleep(_PROBE_SECONDS)
        self.start_seconds = time.perf_counter() - begun

    @property
    def lives(self) -> bool:
        """All of it."""
        return all(process.poll() is None for process in self._processes)

    def memory(self) -> Memory:
        return self.tree.memory()

    def cached_bytes(self) -> int:
        """Page cache held by the node's files."""
        return page_cache.resident_bytes(self.setup.directory)

    def forget_past(self) -> None:
        """Drop from the page cache what was written; files held in reserve for writing (`reserves` ends their names)
        stay, as no reader of the past touches them."""
        page_cache.evict(self.setup.directory, self._reserves)

    @property
    def addresses(self) -> Sequence[str]:
        """HOST:PORT for Kafka clients, of each process."""
        return self._addresses

    def kill_one(self, address: str) -> None:
        """End the process that has this address, at once, and leave the others."""
        process = self._processes[self._addresses.index(address)]
        ProcessTree(process.pid).kill()
        process.wait()

    def stop_one(self, address: str) -> None:
        """Ask the process that has this address to end, and wait for that; one that has ended stays so."""
        process = self._processes[self._addresses.index(address)]
        process.terminate()
        process.wait(START_SECONDS_MAX)

    def start_one(self, address: str) -> None:
        """Start the process that has this address again, on its data, if it does not run; nobody waits for it."""
        at = self._addresses.index(address)
        ended = self._processes[at]
        if ended.poll() is None:
            return
        processes = list(self._processes)
        processes[at] = launch_again(self.setup, ended)
        self._processes = processes
        self.tree = ProcessTree(*(process.pid for process in processes))

    def stop(self) -> None:
        """Ask it to end, as an operator would; kill what is left after a while."""
        if self.lives:
            pids = self.tree.pids()
            for process in self._processes:
                process.terminate()
            until = time.monotonic() + STOP_SECONDS_MAX
            for process in self._processes:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
            for pid in pids[len(self._processes) :]:
                ProcessTree(pid).kill()
        self.kill()

    def kill(self) -> None:
        living = [process for process in self._processes if process.poll() is None]
        if living:
            ProcessTree(*(process.pid for process in living)).kill()
        for process in living:
            process.wait()


class System(Protocol):
    """One kind of broker. Both are started from what is on this machine: `prepare` fetches what is missing."""

    @property
    def name(self) -> str: ...

    def prepare(self) -> None: ...

    def version(self) -> str: ...

    def start(self, setup: Setup) -> Node:
        """On `setup.directory`: an empty one makes a new node, one used before continues it."""
        ...


def launch(setup: Setup, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a pinned process that writes to `output` in its directory."""
    return _launched(setup, ["taskset", "-c", ",".join(map(str, setup.cpus)), *command], environment)


def launch_again(setup: Setup, ended: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Start what `launch` had started, in the environment of the bench but for Mainstem's settings in it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAINSTEM_")}
    return _launched(setup, cast(Sequence[str], ended.args), environment)


def _launched(setup: Setup, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    setup.directory.mkdir(parents=True, exist_ok=True)
    with (setup.directory / OUTPUT).open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            start_new_session=True,
        )


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has. Another process may take one first; then the start fails."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def brokers_of(address: str) -> int:
    """How many brokers the Metadata of `address` names; 0 when nobody answers."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            body = _METADATA_OF_NO_TOPIC[4:]
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as answer:
                head = answer.read(12)
    except OSError:
        return 0
    if len(head) < 12:
        return 0
    _, _, brokers = struct.unpack(">iii", head)
    return int(brokers)
