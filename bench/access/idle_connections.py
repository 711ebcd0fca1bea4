"""The memory that a node keeps for each connection that does nothing, in the clear and over TLS 1.3.

    python -m bench.access.idle_connections --connections 2000

Each connection asks one ApiVersions and then stays. The row of a kind is the node's memory (PSS) with all of them less
that with a tenth of them, for each of the others: what the first connections of a node have it load and reserve counts
for none.
"""

from __future__ import annotations

import argparse
import resource
import signal
import socket
import ssl
import tempfile
import time
from pathlib import Path

from bench.machine import share_cores
from bench.systems import all_systems
from bench.systems.guard import Guard
from bench.systems.system import Durability, Node, Setup
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, request_frame
from mainstem.protocol.messages.api_versions import ApiVersionsRequest

HOME = Path(__file__).parents[2] / ".bench"
CACHE = Path.home() / ".cache" / "mainstem-bench"
API_VERSIONS, VERSION = 18, 3
CLEAR, ENCRYPTED = "in the clear", "over TLS"
ANSWER_SECONDS_MAX = 30.0
SETTLING_SECONDS = 4.0
"""A node makes spare buffers smaller once a second."""


def connected(address: str, context: ssl.SSLContext | None) -> socket.socket:
    """A connection that was of use once."""
    host, _, port = address.rpartition(":")
    stream = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX)
    if context is not None:
        stream = context.wrap_socket(stream, server_hostname=host)
    asked = ApiVersionsRequest(client_software_name="idle", client_software_version="1")
    stream.sendall(request_frame(RequestHeader(API_VERSIONS, VERSION, 1, "idle"), codec.write(asked, VERSION)))
    left = int.from_bytes(stream.recv(4, socket.MSG_WAITALL) if context is None else stream.recv(4), "big")
    while left > 0:
        left -= len(stream.recv(left)) or left
    return stream


def measure(node: Node, kind: str, context: ssl.SSLContext | None, count: int) -> None:
    address = node.address if context is None else node.guarded
    assert address is not None
    held: list[socket.socket] = []
    memory = []
    for much in (count // 10, count):
        held += [connected(address, context) for _ in range(much - len(held))]
        time.sleep(SETTLING_SECONDS)
        memory.append(node.tree.memory().proportional)
    each = (memory[1] - memory[0]) / (count - count // 10)
    print(f"{kind:12} {count} connections: {each / 1024:.1f} KiB each", flush=True)
    for stream in held:
        stream.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What idle connections hold of a node's memory.")
    parser.add_argument("--connections", type=int, default=2_000)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    HOME.mkdir(exist_ok=True)
    for kind in (CLEAR, ENCRYPTED):  # each has a node of its own: what one gives back would be there for the next
        with tempfile.TemporaryDirectory(prefix="idle-", dir=HOME) as directory:
            live(Path(directory), kind, given.connections)


def live(home: Path, kind: str, connections: int) -> None:
    cpus = share_cores()
    system = all_systems(CACHE)["mainstem"]
    system.prepare()
    guard = Guard(home / "guard", users=False)
    node = system.start(Setup(
        directory=home / "node", cpus=cpus.both, cores_count=len(cpus.broker), durability=Durability.ASYNC, guard=guard,
    ))  # fmt: skip
    try:
        measure(node, kind, None if kind == CLEAR else guard.client_context(), connections)
    finally:
        node.stop()


if __name__ == "__main__":
    main()
