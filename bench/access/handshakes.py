"""The cost of TLS handshakes to a node: full ones, and ones that resume a session.

    python -m bench.access.handshakes --seconds 4

Clients of TLS 1.3 connect, ask one ApiVersions, and leave, from several threads on a core of their own. Per system and
kind: connections a second while the node has the other cores, and the node's processor time for each; `plain` is a
connection without TLS, which the others have to be compared with.
"""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.machine import share_cores
from bench.nodes.timed_node import Wire
from bench.systems import all_systems
from bench.systems.guard import Guard
from bench.systems.system import Durability, Node, Setup
from mainstem.protocol.messages.api_versions import ApiVersionsRequest

HOME = Path(__file__).parents[2] / ".bench"
CACHE = Path.home() / ".cache" / "mainstem-bench"
THREADS = 8
ANSWER_SECONDS_MAX = 30.0
WARM_SECONDS = 3.0
"""Before anything is counted: Kafka's node compiles what it runs."""
FULL, RESUMED, PLAIN = "full", "resumed", "plain"


class Visitor:
    """Comes again and again, in one way."""

    def __init__(self, node: Node, kind: str) -> None:
        assert node.setup.guard is not None
        assert node.guarded is not None
        self._context = None if kind == PLAIN else node.setup.guard.client_context()
        self._address = node.address if kind == PLAIN else node.guarded
        self._resumes = kind == RESUMED
        self._session: ssl.SSLSession | None = None
        self.visits = 0
        self.resumed = 0

    def visit(self) -> None:
        wire = Wire(self._address, ANSWER_SECONDS_MAX, tls=self._context, session=self._session)
        wire.call(ApiVersionsRequest(client_software_name="bench", client_software_version="1"), 3)
        if isinstance(wire.socket, ssl.SSLSocket):
            self.resumed += bool(wire.socket.session_reused)
            if self._resumes:
                self._session = wire.socket.session  # the ticket came with the answer
        wire.close()
        self.visits += 1


def measure(node: Node, kind: str, seconds: float) -> str:
    visitors = [Visitor(node, kind) for _ in range(THREADS)]
    for visitor in visitors:
        visitor.visit()
    ended = threading.Event()
    threads = [threading.Thread(target=_visits, args=(visitor.visit, ended)) for visitor in visitors]
    before, spent, begun = sum(one.visits for one in visitors), node.tree.cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    ended.set()
    for thread in threads:
        thread.join()
    took, spent = time.perf_counter() - begun, node.tree.cpu_seconds() - spent
    count = sum(one.visits for one in visitors) - before
    share = sum(one.resumed for one in visitors) / (count + THREADS)
    return f"{count / took:7.0f} a second  {1e6 * spent / count:7.0f} µs of the node each  {100 * share:4.0f} % resumed"


def _visits(visit: Callable[[], None], ended: threading.Event) -> None:
    while not ended.is_set():
        visit()


def main() -> None:
    parser = argparse.ArgumentParser(description="What handshakes cost.")
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    cpus = share_cores()
    for name, system in all_systems(CACHE).items():
        system.prepare()
        HOME.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="handshakes-", dir=HOME) as directory:
            home = Path(directory)
            node = system.start(Setup(
                directory=home / "node", cpus=cpus.both, cores_count=len(cpus.broker), durability=Durability.ASYNC,
                guard=Guard(home / "guard", users=False),
            ))  # fmt: skip
            try:
                node.tree.pin(cpus.broker)
                os.sched_setaffinity(0, cpus.load)
                measure(node, FULL, WARM_SECONDS)
                for kind in (PLAIN, FULL, RESUMED):
                    print(f"{name:9} {kind:8} {measure(node, kind, seconds)}", flush=True)
            finally:
                os.sched_setaffinity(0, cpus.both)
                node.stop()


if __name__ == "__main__":
    main()
