"""What a nameserver needs of its node to be one of several: Raft messages, calls, time, and who it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from mainstem.model import OWN_LEVELS, LevelRange
from mainstem.ports import Clock
from mainstem.raft import Message
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.identity import Identity
from mainstem.rpc.method import Method, Reply, ReplyT, RequestT
from mainstem.rpc.raft_member import Member


class Exchange(Protocol):
    """Carries the messages of Raft groups; `rpc.raft_exchange.RaftExchange` in a node."""

    def join(self, group: int, member: Member) -> None: ...

    def leave(self, group: int) -> None: ...

    def send(self, group: int, messages: Iterable[Message]) -> None: ...


class Calls(Protocol):
    """Calls to other nodes by their id. What cannot be reached raises `RpcError`."""

    async def call(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> Reply[ReplyT]: ...

    def stream(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[ReplyT], None]: ...

    def know(self, node_id: int, address: str) -> None:
        """Where a node is reached from now on, for calls and messages."""
        ...


class ClusterPorts(NamedTuple):
    exchange: Exchange
    calls: Calls
    handlers: Handlers
    """Where the nameserver's methods are to be found; the node's server answers with them."""
    clock: Clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


Connect = Callable[[Identity], Awaitable[ClusterPorts]]
"""Called once the directory has told who this node is."""


class Facts(NamedTuple):
    """What a node registers of itself besides its Kafka address."""

    rpc: str = ""
    """`host:port` for other nodes."""
    roles: tuple[str, ...] = ()
    version: str = ""
    levels: LevelRange = OWN_LEVELS
    """The feature levels its program can work at."""


NO_FACTS = Facts()
