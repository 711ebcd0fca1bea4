"""Ten thousand clients that show who they are, on one node: how long that takes, what each holds, and what a publisher
feels.

    python -m bench.access.authenticated_crowd --clients 10000

All clients come over SASL_PLAINTEXT by the mechanism given, a hundred at a time, which is half of what the node takes
of one address before they have shown who they are, and stay. The node has all cores but one, on which all clients are.
Those of the crowd are processes that run there only when nobody else wants to (`SCHED_IDLE`), and hash the password
once, not ten thousand times: on machines of their own they would take nothing of the node's.

The publisher has a connection of its own, and sends 200 records a second, in windows of a second. Its latency is from
when the kernel was given a request until it had the answer, by the kernel's own notes: nothing that a client does is in
it, nor is the disk. Told are windows from which the host took next to no processor time (`stolen_time`), all where
there are none. `--before TREE` measures another work tree's node before this one's.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import multiprocessing
import os
import resource
import secrets
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from bench import load as loads
from bench import topics
from bench.load import Produce, Result
from bench.machine import CpuSets, share_cores
from bench.metrics import pooled_ms
from bench.nodes.members import Member
from bench.process_tree import ProcessTree
from bench.short_windows import ShortWindow
from bench.stolen_time import StolenTime
from bench.systems.other_tree import OtherTree
from bench.systems.system import free_ports
from bench.topics import Queues
from mainstem.cli.clients.sasl import AUTHENTICATE_VERSION, HANDSHAKE_VERSION, Login, login_of
from mainstem.model import SCRAM_MECHANISMS
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from mainstem.protocol.schema import declaration_of
from mainstem.security.sasl import plain
from mainstem.security.sasl.credentials import keys_of

HOME = Path(__file__).parents[2] / ".bench"
AT_ONCE = 100
USER, PASSWORD = "crowd", "the password of the crowd"
FELT = Queues("felt", 1, 1)
PUBLISHED_PER_SECOND = 200.0
RECORD_BYTES = 1000
WINDOW_SECONDS = 1.0
QUIET_WINDOWS = 8
MIB = 1 << 20


class Client:
    """A connection that authenticates, and stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, message: object, version: int) -> Any:
        key = declaration_of(type(message)).api_key
        assert key is not None
        self._writer.write(request_frame(RequestHeader(key, version, 1, "crowd"), codec.write(message, version)))
        frame = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        _, position = parse_response_header(frame, key, version)
        return codec.read(API_MESSAGES[key].response, version, frame, position)

    async def token(self, token: bytes) -> bytes:
        """The node's answer to a token."""
        answer = await self.ask(SaslAuthenticateRequest(auth_bytes=token), AUTHENTICATE_VERSION)
        assert not answer.error_code, answer.error_message
        return bytes(answer.auth_bytes)

    def close(self) -> None:
        self._writer.transport.abort()


async def admitted(address: str, login: Login, places: asyncio.Semaphore) -> Client:
    """A client that is authenticated."""
    host, _, port = address.rpartition(":")
    async with places:
        client = Client(*await asyncio.open_connection(host, int(port)))
        await client.ask(SaslHandshakeRequest(mechanism=login.mechanism), HANDSHAKE_VERSION)
        if login.mechanism == plain.NAME:
            await client.token(f"\0{login.user}\0{login.password}".encode())
        else:
            await _scram(client, login)
        return client


async def _scram(client: Client, login: Login) -> None:
    mechanism = SCRAM_MECHANISMS[login.mechanism]
    first = f"n={login.user},r={secrets.token_urlsafe(24)}"
    challenge = (await client.token(f"n,,{first}".encode())).decode()
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    salted = _salted(mechanism.digest, login.password, fields["s"], int(fields["i"]))
    last = f"c=biws,r={fields['r']}"
    signed = ",".join((first, challenge, last)).encode()
    signature = hmac.digest(keys_of(mechanism, salted)[0], signed, mechanism.digest)
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    await client.token(f"{last},p={base64.b64encode(proof).decode()}".encode())


@cache
def _salted(digest: str, password: str, salt: str, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(salt), iterations)


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
        "journal.durability": "async",  # or the disk's stalls decide what is felt
    }


class Crowd:
    """A process with all the clients."""

    def __init__(self, address: str, login: Login, clients: int, cpus: CpuSets) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._seconds, tells = spawning.Pipe(duplex=False)
        self._ended = spawning.Event()
        given = (address, login, clients, cpus.load, tells, self._ended)
        self._process = spawning.Process(target=_come, args=given)
        self._process.start()
        self._seconds.recv()  # the clients are about to come

    def has_come(self) -> bool:
        return self._seconds.poll()

    def seconds(self) -> float:
        """How long it took until all were let in."""
        return float(self._seconds.recv())

    def leave(self) -> None:
        self._ended.set()
        self._process.join()


def _come(
    address: str, login: Login, clients: int, cpus: Sequence[int], tells: Connection, ended: Event
) -> None:  # fmt: skip
    os.sched_setaffinity(0, cpus)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    async def come() -> None:
        places = asyncio.Semaphore(AT_ONCE)
        tells.send(0.0)
        begun = time.monotonic()
        there = await asyncio.gather(*(admitted(address, login, places) for _ in range(clients)))
        tells.send(time.monotonic() - begun)
        await asyncio.to_thread(ended.wait)
        for client in there:
            client.close()

    asyncio.run(come())


class Felt:
    """A publisher, and its latencies window by window."""

    def __init__(self, program: Path, address: str, cpus: CpuSets) -> None:
        self._cpus = cpus
        topics.create(address, FELT)
        load = Produce(
            address=address,
            topics=f"{FELT.prefix}:1",
            partitions=FELT.partitions,
            record_bytes=RECORD_BYTES,
            batch_records=1,
            rate=PUBLISHED_PER_SECOND,
            poisson=True,
            seconds=WINDOW_SECONDS,
            kernel_times=True,
        )
        self._run = partial(loads.run, program, load, cpus=",".join(map(str, cpus.load)))
        self._run()  # the first records of a node are not counted

    def windows(self, goes_on: Callable[[int], bool]) -> list[ShortWindow]:
        """As long as it goes on, by the number of windows there are."""
        found: list[ShortWindow] = []
        while goes_on(len(found)):
            stolen = StolenTime(self._cpus.both)
            found.append(ShortWindow(self._run(), stolen.most_seconds()))
        return found


def whole(windows: Sequence[ShortWindow]) -> list[Result]:
    return [one.result for one in windows if one.whole] or [one.result for one in windows]


def window_p99_ms(results: Sequence[Result]) -> float:
    """The median of the windows' own: one stall of a tenth of a second decides that of all together."""
    return statistics.median(one["served_us"]["p99"] for one in results) / 1000


def measure(label: str, environment: Mapping[str, str], mechanism: str, clients: int) -> None:
    cpus = share_cores()
    with tempfile.TemporaryDirectory(prefix="crowd-", dir=HOME) as name:
        directory = Path(name)
        *addresses, listen = (f"127.0.0.1:{port}" for port in free_ports(4))
        settings = settings_of(mechanism, listen, directory, clients)
        member = Member(1, directory, addresses, {}, settings, environment=environment)
        try:
            member.await_started(1)
            tree = ProcessTree(member.pid)
            tree.pin(cpus.broker)
            felt = Felt(loads.build(HOME), member.kafka, cpus)
            _measure(label, tree, felt, partial(Crowd, listen, login_by(mechanism), clients, cpus), clients)
        finally:
            member.kill()


def login_by(mechanism: str) -> Login:
    login = login_of({
        "security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism, "sasl.username": USER,
        "sasl.password": PASSWORD,
    })  # fmt: skip
    assert login is not None
    return login


def _measure(label: str, tree: ProcessTree, felt: Felt, comes: Callable[[], Crowd], clients: int) -> None:
    alone = felt.windows(lambda number: number < QUIET_WINDOWS)
    memory, cpu = tree.memory().proportional, tree.cpu_seconds()
    crowd = comes()
    beside = felt.windows(lambda _: not crowd.has_come())
    seconds = crowd.seconds()
    cpu, held = tree.cpu_seconds() - cpu, tree.memory().proportional - memory
    after = felt.windows(lambda number: number < QUIET_WINDOWS)
    crowd.leave()
    print(f"{label}: {clients} clients: {seconds:.1f} s, {clients / seconds:.0f} a second, "
          f"{1e6 * cpu / clients:.0f} µs of the node each, {held / clients / 1024:.1f} KiB each")  # fmt: skip
    p99_alone = window_p99_ms(whole(alone))
    for name, windows in (("alone", alone), ("while they come", beside), ("afterwards", after)):
        results = whole(windows)
        p50, p99, window_p99 = pooled(results, 0.5), pooled(results, 0.99), window_p99_ms(results)
        print(f"    publishing {name:16} p50 {p50:6.2f} p99 {p99:7.2f} ms; p99 of a window {window_p99:6.2f} ms "
              f"{window_p99 / p99_alone:6.2f} x  {len(results)}/{len(windows)} whole", flush=True)  # fmt: skip


def pooled(results: Sequence[Result], fraction: float) -> float:
    return pooled_ms(results, fraction, "served_buckets")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a crowd of authenticated clients costs.")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--mechanism", default="SCRAM-SHA-256")
    parser.add_argument("--before", type=Path, metavar="TREE", help="a work tree to measure before this one")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    HOME.mkdir(exist_ok=True)
    if given.before is not None:
        other = OtherTree(given.before)
        other.prepare()
        measure("before", other.environment(), given.mechanism, given.clients)
    measure("after" if given.before else "mainstem", {}, given.mechanism, given.clients)


if __name__ == "__main__":
    main()
