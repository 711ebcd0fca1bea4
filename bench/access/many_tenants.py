"""A thousand tenants with a thousand queues each on one node, beside ten with ten: what they cost, and what each feels.

    python -m bench.access.many_tenants --tenants 1000 --queues 1000 --seconds 5

Each tenant has one user, one topic, and a ceiling that its queues just reach. The users come by SASL, with a thousand
connections in all, however many tenants there are, and each connection writes a record a second to a queue of its own
tenant, with access rules on. The node starts once more after SIGKILL in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.access.attacks import produce_request
from bench.access.authenticated_crowd import Client, admitted
from bench.errors import BenchError
from bench.nodes.members import Member
from bench.process_tree import ProcessTree
from bench.scale.queues import Client as Wire
from bench.systems.system import free_ports
from mainstem.cli.clients.sasl import Login
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.produce import ProduceResponse
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

FEW = 10
CONNECTIONS = 1_000
AT_ONCE = 100
"""Half of what a node takes of one address before they have shown who they are."""
PARTITIONS_PER_REQUEST = 100_000
RECORD_BYTES = 1_000
CREATE_TOPICS, CREATE_PARTITIONS, PRODUCE_VERSION = 19, 37, 9
MIB = 1 << 20

Measured = TypeVar("Measured")


def user(number: int) -> str:
    return f"user-{number}"


def topic(number: int) -> str:
    return f"tenant-{number}.events"


class Life:
    """A node and its rows."""

    def __init__(self, directory: Path, tenants: int, queues: int) -> None:
        self.tenants, self.queues = tenants, queues
        users = directory / "users"
        users.write_text("".join(f"{user(number)}:a password\n" for number in range(tenants)))
        users.chmod(0o600)
        *self._addresses, self.outside = (f"127.0.0.1:{port}" for port in free_ports(4))
        self._settings = {
            "server.listeners.OUTSIDE": json.dumps({"listen": self.outside, "protocol": "SASL_PLAINTEXT"}),
            "sasl.mechanisms": "PLAIN",
            "sasl.plain_users_file": str(users),
            "authorizer.enabled": "true",
            "authorizer.super_users": "User:ANONYMOUS",
            "server.connections_max": str(2 * CONNECTIONS),
            "server.connections_per_host_max": str(2 * CONNECTIONS),
            "pipeline.mode": "off",
        }
        self._directory = directory
        self.member = self._started()

    def _started(self) -> Member:
        member = Member(1, self._directory, self._addresses, {}, self._settings)
        member.await_started(1)
        return member

    def row(self, what: str, work: Callable[[], Measured]) -> Measured:
        tree = ProcessTree(self.member.pid)
        cpu, held, begun = tree.cpu_seconds(), tree.memory().proportional, time.perf_counter()
        found = work()
        seconds = time.perf_counter() - begun
        cpu, held = tree.cpu_seconds() - cpu, tree.memory().proportional - held
        print(f"{self.tenants:>6} × {self.queues:<6} {what:34} {seconds:8.2f} s {cpu:8.2f} CPU s {held / MIB:+8.1f} MiB"
              f"{'' if found is None else f'  {found}'}", flush=True)  # fmt: skip
        return found

    def start_again(self) -> None:
        self.member.kill()
        begun = time.perf_counter()
        self.member = self._started()
        print(f"{self.tenants:>6} × {self.queues:<6} {'started after SIGKILL':34} {time.perf_counter() - begun:8.2f} s")

    def make_tenants(self) -> None:
        for number in range(self.tenants):
            body = {"name": f"tenant-{number}", "prefix": f"tenant-{number}.", "users": [user(number)],
                    "queues_max": self.queues}  # fmt: skip
            request = urllib.request.Request(
                f"http://{self.member.http}/v1/tenants/set", json.dumps(body).encode(),
                {"content-type": "application/json", "authorization": f"Bearer {self.member.token}"}, method="POST",
            )  # fmt: skip
            urllib.request.urlopen(request, timeout=30).close()

    def make_topics(self, wire: Wire) -> None:
        together = max(1, PARTITIONS_PER_REQUEST // self.queues)
        for first in range(0, self.tenants, together):
            numbers = range(first, min(self.tenants, first + together))
            topics = tuple(CreatableTopic(name=topic(it), num_partitions=self.queues, replication_factor=1,
                                          assignments=(), configs=()) for it in numbers)  # fmt: skip
            request = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
            answer = wire.ask(CREATE_TOPICS, 5, request, CreateTopicsResponse)
            refused = [it.name for it in answer.topics if it.error_code]
            if refused:
                raise BenchError(f"{len(refused)} topics were refused, the first of them {refused[0]}")

    def one_too_many(self, wire: Wire) -> str:
        """One more queue than the ceiling of a tenant: POLICY_VIOLATION, or INVALID_PARTITIONS in a cluster that has as
        many as it takes."""
        topics = (CreatePartitionsTopic(name=topic(0), count=self.queues + 1, assignments=None),)
        request = CreatePartitionsRequest(topics=topics, timeout_ms=60_000, validate_only=False)
        answer = wire.ask(CREATE_PARTITIONS, 1, request, CreatePartitionsResponse)
        return ErrorCode(answer.results[0].error_code).name

    def usage(self) -> str:
        return f"{len(self.member.get('/v1/tenants/usage')['tenants'])} tenants"


async def admit(life: Life) -> list[Client]:
    places = asyncio.Semaphore(AT_ONCE)
    logins = [Login("PLAIN", user(number % life.tenants), "a password") for number in range(CONNECTIONS)]
    return list(await asyncio.gather(*(admitted(life.outside, login, places) for login in logins)))


async def publish(life: Life, clients: list[Client], seconds: float) -> str:
    """Each client a record a second, evenly spread over the second; what they felt."""
    took: list[float] = []
    begun = time.perf_counter()

    async def one(number: int, client: Client) -> None:
        request = produce_request(
            topic(number % life.tenants), bytes(RECORD_BYTES), number // life.tenants % life.queues
        )
        for second in range(int(seconds)):
            due = begun + second + number / CONNECTIONS
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answer = await client.ask(request, PRODUCE_VERSION)
            assert isinstance(answer, ProduceResponse)
            if error := answer.responses[0].partition_responses[0].error_code:
                raise BenchError(f"a record of {user(number % life.tenants)} was refused: {ErrorCode(error).name}")
            took.append(time.perf_counter() - due)

    await asyncio.gather(*(one(number, client) for number, client in enumerate(clients)))
    took.sort()
    p50, p99 = (1000 * took[int(part * len(took))] for part in (0.5, 0.99))
    return f"{len(took)} records, p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def live(directory: Path, tenants: int, queues: int, seconds: float) -> None:
    life = Life(directory, tenants, queues)
    try:
        host, _, port = life.member.kafka.rpartition(":")
        wire = Wire(host, int(port))
        life.row("tenants made", life.make_tenants)
        life.row("topics made", lambda: life.make_topics(wire))
        life.row("one queue more than a ceiling", lambda: life.one_too_many(wire))
        wire.close()
        with asyncio.Runner() as runner:
            found: list[Client] = []
            life.row(f"{CONNECTIONS} connections let in", lambda: found.extend(runner.run(admit(life))))
            life.row("each a record a second", lambda: runner.run(publish(life, found, seconds)))
            life.row("the usage of all tenants", life.usage)
            for client in found:
                client.close()
        life.start_again()
    finally:
        life.member.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description="What very many tenants cost a node.")
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=1_000, help="of each tenant")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for tenants, queues in ((FEW, FEW), (given.tenants, given.queues)):
        with tempfile.TemporaryDirectory() as name:
            live(Path(name), tenants, queues, given.seconds)


if __name__ == "__main__":
    main()
