"""Ten thousand clients that show who they are, on one node: how long that takes, what each holds, and what a publisher
feels.

    python -m bench.access.authenticated_crowd --clients 10000

All clients come over SASL_PLAINTEXT by the mechanism given, a hundred at a time, which is half of what the node takes
of one address before they have shown who they are, and stay. The publisher has a connection of its own, and sends 200
records a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Message, Producer

from bench.nodes.members import Member
from bench.process_tree import ProcessTree
from bench.systems.system import free_ports
from mainstem.cli.clients.sasl import Login, login_of
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.schema import declaration_of

AT_ONCE = 100
USER, PASSWORD = "crowd", "the password of the crowd"
PUBLISHED_PER_SECOND = 200
RECORD_BYTES = 1000
QUIET_SECONDS = 10.0
MIB = 1 << 20


class Client:
    """A connection that authenticates, and stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, message: object, version: int) -> object:
        key = declaration_of(type(message)).api_key
        assert key is not None
        self._writer.write(request_frame(RequestHeader(key, version, 1, "crowd"), codec.write(message, version)))
        frame = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        _, position = parse_response_header(frame, key, version)
        return codec.read(API_MESSAGES[key].response, version, frame, position)

    def close(self) -> None:
        self._writer.transport.abort()


async def admitted(address: str, login: Login, places: asyncio.Semaphore) -> Client:
    """A client that is authenticated. Its steps are those of the command line's, taken in a thread of their own."""
    host, _, port = address.rpartition(":")
    async with places:
        client = Client(*await asyncio.open_connection(host, int(port)))
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(
            login.authenticate,
            lambda message, version: asyncio.run_coroutine_threadsafe(client.ask(message, version), loop).result(30),
        )
        return client


def published(address: str, seconds: float, ended: threading.Event | None = None) -> float:
    """The 99th percentile, in ms, of the time until a record is acknowledged, for so long or until the event."""
    took: list[float] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        took.append(message.latency() or 0.0)

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "on_delivery": delivered})
    begun = time.monotonic()
    number = 0
    while time.monotonic() - begun < seconds if ended is None else not ended.is_set():
        producer.produce("felt", bytes(RECORD_BYTES))
        number += 1
        while (left := begun + number / PUBLISHED_PER_SECOND - time.monotonic()) > 0:
            producer.poll(left)
    producer.flush(30)
    took.sort()
    return 1000 * took[int(len(took) * 0.99)]


def settings_of(mechanism: str, listen: str, directory: Path, clients: int) -> Mapping[str, str]:
    password = directory / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    return {
        "server.listeners.CROWD": json.dumps({"listen": listen, "protocol": "SASL_PLAINTEXT"}),
        "sasl.mechanisms": mechanism,
        "sasl.bootstrap_user": USER,
        "sasl.bootstrap_password_file": str(password),
        "server.connections_max": str(clients + 1_000),
        "server.connections_per_host_max": str(clients + 1_000),
        "pipeline.mode": "off",
    }


async def crowd(address: str, login: Login, clients: int) -> list[Client]:
    places = asyncio.Semaphore(AT_ONCE)
    return list(await asyncio.gather(*(admitted(address, login, places) for _ in range(clients))))


def main() -> None:
    parser = argparse.ArgumentParser(description="What a crowd of authenticated clients costs.")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--mechanism", default="SCRAM-SHA-256")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        *addresses, listen = (f"127.0.0.1:{port}" for port in free_ports(4))
        member = Member(1, directory, addresses, {}, settings_of(given.mechanism, listen, directory, given.clients))
        try:
            member.await_started(1)
            asyncio.run(_measure(member, listen, given.mechanism, given.clients))
        finally:
            member.kill()


async def _measure(member: Member, listen: str, mechanism: str, count: int) -> None:
    tree = ProcessTree(member.pid)
    login = login_of({
        "security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism, "sasl.username": USER,
        "sasl.password": PASSWORD,
    })  # fmt: skip
    assert login is not None
    alone = await asyncio.to_thread(published, member.kafka, QUIET_SECONDS)
    before = tree.memory().proportional
    ended = threading.Event()
    beside = asyncio.create_task(asyncio.to_thread(published, member.kafka, 0.0, ended))
    begun = time.monotonic()
    clients = await crowd(listen, login, count)
    seconds = time.monotonic() - begun
    ended.set()
    while_they_come = await beside
    afterwards = await asyncio.to_thread(published, member.kafka, QUIET_SECONDS)
    held = tree.memory().proportional - before
    print(f"{count} clients by {mechanism}: {seconds:.1f} s, {count / seconds:.0f} a second")
    print(f"memory of the node: {held / MIB:.0f} MiB more, {held / count / 1024:.1f} KiB each")
    print(f"publish p99 beside them: {while_they_come / alone:.2f} x while they come, {afterwards / alone:.2f} x after")
    for client in clients:
        client.close()


if __name__ == "__main__":
    main()
