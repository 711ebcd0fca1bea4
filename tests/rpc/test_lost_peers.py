"""Peers that stop, vanish or hang: calls end at their deadline or at once, links come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.harness.free_port import free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.rpc.raft_nodes import Node, Recorder, append, connected, heartbeat, until

from mainstem.rpc.blocking import BlockingClient
from mainstem.rpc.client import Client
from mainstem.rpc.errors import ConnectionLost, DeadlineExceeded
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.raft.raft_exchange import Address, Bounds
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.keep_alive import IDLE_SECONDS, PROBE_SECONDS, PROBES_MAX, UNACKNOWLEDGED_MS_MAX
from mainstem.rpc.wire.method import Method, Nothing, Reply

HANG = Method(3, "test.hang", Nothing, Nothing)
PING = Method(200, "test.ping", Nothing, Nothing)

PEER = """
import asyncio
from mainstem.rpc.wire.method import Method, Nothing, Reply
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.rpc_server import RpcServer
from tests.rpc.raft_nodes import Node
from tests.rpc.test_lost_peers import HANG, PING

async def hang(call):
    await asyncio.Event().wait()

async def main():
    node = Node(2)
    node.join(0)
    node.handlers.unary(HANG, hang)
    node.handlers.prompt(PING, lambda call: Reply(Nothing()))
    await node.listen()
    print(node.address.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def peer_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, Address]]:
    """Node 2 in a process of its own, to be stopped and killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            port = int(await process.stdout.readline())
            yield process, Address("127.0.0.1", port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def test_a_call_to_a_stopped_process_ends_at_its_deadline() -> None:
    async def test() -> None:
        async with peer_process() as (process, address), Client(*address) as client:
            await client.call(PING, Nothing(), timeout_seconds=20)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(DeadlineExceeded, match=r"test\.ping: no answer from"):
                await client.call(PING, Nothing(), timeout_seconds=0.1)
            process.send_signal(signal.SIGCONT)
            await client.call(PING, Nothing(), timeout_seconds=20)

    asyncio.run(test())


def test_calls_to_a_killed_process_fail_at_once() -> None:
    async def test() -> None:
        async with peer_process() as (process, address), Client(*address) as client:
            await client.call(PING, Nothing(), timeout_seconds=20)
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(_outcome(client)) for _ in range(3)]
                await asyncio.sleep(0)
                process.kill()
            assert [type(call.result()) for call in calls] == [ConnectionLost] * 3
            await process.wait()
            with pytest.raises(ConnectionLost, match="cannot reach"):
                await client.call(PING, Nothing(), timeout_seconds=600)

    asyncio.run(test())


async def _outcome(client: Client) -> Exception | None:
    try:
        await client.call(HANG, Nothing(), timeout_seconds=600)
    except ConnectionLost as error:
        return error
    return None


def test_a_stopped_node_ends_the_link_at_the_deadline_and_is_found_again() -> None:
    async def test() -> None:
        one = Node(1, bounds=Bounds(delivery_seconds=0.5))
        one.join(0)
        async with peer_process() as (process, address):
            one.exchange.set_peers({2: address})
            link = one.exchange.links[2]
            one.exchange.send(0, [heartbeat(1, 2)])
            await until(lambda: link.counters.round_trip_counts != [0] * len(link.counters.round_trip_counts))
            process.send_signal(signal.SIGSTOP)
            one.exchange.send(0, [append(1, 2, place, bytes(1 << 20)) for place in range(20)])
            await one.members[0].until(lambda: 2 in one.members[0].unreachable_nodes)
            assert "takes nothing in for 0.5 s" in link.trouble
            connects = link.counters.connects
            process.send_signal(signal.SIGCONT)
            await until(lambda: link.counters.connects > connects)
            one.exchange.send(0, [heartbeat(1, 2)])
            await until(lambda: not link.trouble)
        await one.close()

    asyncio.run(test())


class Endless(Random):
    """Makes every wait before another attempt endless."""

    def uniform(self, a: float, b: float) -> float:
        return 1e6


def test_a_node_that_calls_is_called_back_at_once() -> None:
    async def test() -> None:
        ends = [NodeEnd(Identity("cluster", node_id, bytes([node_id] * 16)), Handlers(), random=Endless())
                for node_id in (1, 2)]  # fmt: skip
        one, two = ends
        port = free_port()
        address = Address(*await one.start("127.0.0.1", 0))
        member = Recorder()
        one.exchange.join(0, member)
        one.calls.know(2, f"127.0.0.1:{port}")
        link = one.exchange.links[2]
        await until(lambda: link.counters.connect_failures == 1)
        one.exchange.send(0, [heartbeat(1, 2)])
        await member.until(lambda: member.unreachable_nodes == [2])  # between two attempts nothing is kept

        received = Recorder()
        two.exchange.join(0, received)
        await two.start("127.0.0.1", port)
        two.calls.know(1, str(address))
        two.exchange.send(0, [heartbeat(2, 1)])
        await member.until(lambda: bool(member.messages))
        one.exchange.send(0, [heartbeat(1, 2)])  # an answer
        await received.until(lambda: bool(received.messages))
        assert member.unreachable_nodes == [2]
        for end in ends:
            await end.close()

    async def in_time() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await test()

    asyncio.run(in_time())


def test_a_peer_that_accepts_and_says_nothing_takes_no_longer_than_the_deadline() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with Client(*silent.getsockname()) as client:
                with pytest.raises(DeadlineExceeded, match="no connection to"):
                    await client.call(PING, Nothing(), timeout_seconds=0.1)
            blocking = BlockingClient(*silent.getsockname())
            with pytest.raises(DeadlineExceeded, match="no answer"):
                await asyncio.to_thread(blocking.call, PING, Nothing(), timeout_seconds=0.1)

    asyncio.run(test())


@contextmanager
def ends_of(port: int) -> Iterator[list[socket.socket]]:
    """Copies of the sockets of this process that are connected with a port of it: both ends of each connection."""
    with contextlib.ExitStack() as copies:
        ends = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # gone, or not connected
                if os.readlink(descriptor).startswith("socket:"):
                    end = copies.enter_context(socket.socket(fileno=os.dup(int(descriptor.name))))
                    if end.family == socket.AF_INET and port in (end.getsockname()[1], end.getpeername()[1]):
                        ends.append(end)
        yield ends


@pytest.mark.parametrize(
    ("identity", "unacknowledged"), [(Identity("cluster", 3, bytes(16)), UNACKNOWLEDGED_MS_MAX), (None, 0)]
)
def test_connections_look_for_dead_peers(identity: Identity | None, unacknowledged: int) -> None:
    """A cable cannot be pulled here: the options are there, and only nodes give up on unacknowledged bytes."""

    def options(connection: socket.socket) -> tuple[int, ...]:
        return (
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )

    async def test() -> None:
        node = Node(2)
        node.handlers.prompt(PING, lambda call: Reply(Nothing()))
        probing = (1, IDLE_SECONDS, PROBE_SECONDS, PROBES_MAX)
        async with connected(node), Client(*node.address, node=identity) as client:
            await client.call(PING, Nothing(), timeout_seconds=20)
            with ends_of(node.address.port) as ends:
                found = [options(end) for end in ends]
            assert found == [(*probing, unacknowledged)] * 2, "one end here, one there"

    asyncio.run(test())
