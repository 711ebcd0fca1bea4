"""The other nodes, as the rooms of a node see them: calls to one of them, and Raft messages for them.

The node's own ends are `rpc.node_calls.NodeCalls` and `rpc.raft.raft_exchange.RaftExchange`; the tests have a simulated
network.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Protocol

from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture
from mainstem.raft import Message
from mainstem.rpc.raft.raft_member import RaftMember
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT


class SingleCalls(Protocol):
    """Calls to other nodes by their id. A node that cannot be reached raises `RpcError`."""

    async def call(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> Reply[ReplyT]: ...


class Calls(SingleCalls, Protocol):
    """Calls that are answered in one piece, or in several."""

    def stream(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[ReplyT], None]: ...


class CallsWithBytes(Calls, Protocol):
    """Calls that may have bytes attached."""

    async def call(
        self,
        node_id: int,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[ReplyT]: ...

    def begin(
        self,
        node_id: int,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> PromptFuture[Reply[ReplyT]] | None:
        """A call that is made at once, and answered by a future that may be cancelled. None: it can only be awaited;
        nothing was sent. Raises ValueError for a message that is too large."""
        ...


class RaftTransport(Protocol):
    """Carries the messages of Raft groups, which may get lost on the way."""

    def join(self, group: int, member: RaftMember) -> None: ...

    def leave(self, group: int) -> None: ...

    def send(self, group: int, messages: Iterable[Message]) -> None: ...
