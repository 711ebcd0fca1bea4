"""Nodes that exchange Raft messages over loopback sockets: an exchange, a server, and groups that write down what
they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import msgspec
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.raft.entry import Entry
from mainstem.raft.messages import Append, Heartbeat, Message
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.raft.raft_exchange import Address, Bounds, Carried, RaftExchange
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.client_connection import Connect, connect_tcp
from mainstem.rpc.wire.hello import PROTOCOL_VERSION
from mainstem.rpc.wire.identity import Identity


class Recorder:
    """A group's member. Entries carry bytes; those in `cold` are not in memory."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.calls: list[list[Message]] = []
        self.unreachable_nodes: list[int] = []
        self.gone_nodes: list[int] = []
        self.cold: set[int] = set()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.load_error: Exception | None = None
        self.loads = 0
        self._changed = asyncio.Event()

    def received(self, messages: Sequence[Message]) -> None:
        self.calls.append(list(messages))
        self.messages.extend(messages)
        self._changed.set()

    def carried(self, entry: Entry) -> Carried | None:
        return None if entry.index in self.cold else self._of(entry)

    async def load(self, entries: Sequence[Entry]) -> list[Carried]:
        self.loads += 1
        await self.may_load.wait()
        if self.load_error is not None:
            raise self.load_error
        return [self._of(entry) for entry in entries]

    def _of(self, entry: Entry) -> Carried:
        assert isinstance(entry.data, bytes)
        half = len(entry.data) // 2
        return Carried((entry.size, -entry.index), [entry.data[:half], memoryview(entry.data)[half:]])

    def entry(self, term: int, index: int, kind: int, numbers: tuple[int, ...], attachment: memoryview) -> Entry:
        size, negative = numbers
        if negative != -index:
            raise ValueError(f"numbers {numbers} in entry {index}")
        return Entry(term, index, kind, size, attachment)

    def unreachable(self, node_id: int) -> None:
        self.unreachable_nodes.append(node_id)
        self._changed.set()

    def gone(self, node_id: int) -> None:
        self.gone_nodes.append(node_id)
        self._changed.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something about this member is so."""
        while not true():
            self._changed.clear()
            await self._changed.wait()


class Node:
    """One end: exchange and server of a node."""

    def __init__(
        self,
        node_id: int,
        *,
        cluster_id: str = "cluster",
        incarnation: bytes | None = None,
        bounds: Bounds | None = None,
        connect: Connect = connect_tcp,
    ) -> None:
        self.identity = Identity(cluster_id, node_id, incarnation or node_id.to_bytes(16, "big"))
        self.exchange = RaftExchange(self.identity, random=Random(node_id), bounds=bounds, connect=connect)
        self.handlers = Handlers()
        self.exchange.register(self.handlers)
        self.members: dict[int, Recorder] = {}
        self.server: RpcServer | None = None
        self.newest = PROTOCOL_VERSION
        """The newest version that its server speaks."""
        self.address = Address("127.0.0.1", 0)

    def join(self, *groups: int) -> None:
        for group in groups:
            self.members[group] = Recorder()
            self.exchange.join(group, self.members[group])

    async def listen(self) -> None:
        """Serve, at the same address each time."""
        self.server = RpcServer(self.handlers, name=f"node {self.identity.node_id}", node=self.identity)
        self.server.hello = msgspec.structs.replace(self.server.hello, newest=self.newest)
        self.address = Address(*await self.server.start(*self.address))

    async def stop_listening(self) -> None:
        assert self.server is not None
        await self.server.close()

    async def close(self) -> None:
        await self.exchange.close()
        if self.server is not None:
            await self.server.close()


@asynccontextmanager
async def connected(*nodes: Node, groups: Sequence[int] = (0,)) -> AsyncIterator[None]:
    """Nodes that all know each other, with members of these groups; everything must have ended afterwards."""
    tasks = len(asyncio.all_tasks())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for node in nodes:
                node.join(*groups)
                await node.listen()
            for node in nodes:
                node.exchange.set_peers({other.identity.node_id: other.address for other in nodes})
            yield
    finally:
        for node in nodes:
            await node.close()
        assert len(asyncio.all_tasks()) == tasks, "tasks outlive the nodes"


def heartbeat(sender: int, to: int, commit_index: int = 0) -> Heartbeat:
    return Heartbeat(sender, to, 1, commit_index)


def append(sender: int, to: int, previous_index: int, *data: bytes, term: int = 1) -> Append:
    entries = tuple(Entry(term, previous_index + 1 + place, 0, len(found), found) for place, found in enumerate(data))
    return Append(sender, to, term, previous_index, term if previous_index else 0, 0, entries)


def entries_of(messages: Sequence[Message]) -> list[tuple[int, bytes]]:
    """(index, bytes) of all entries that arrived."""
    return [
        (entry.index, bytes(entry.data))  # type: ignore[call-overload]
        for message in messages
        if isinstance(message, Append)
        for entry in message.entries
    ]


async def until(true: Callable[[], bool]) -> None:
    """Wait for what nobody announces."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
