"""The calling end on asyncio: many calls at a time over one connection, made when first needed.

A call that fails with `ConnectionLost` may have taken effect; the caller decides whether to repeat it.
The next call connects again. Cancelling the task that calls cancels the call at the peer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

from mainstem.address import Address
from mainstem.model import Buffer
from mainstem.rpc.errors import ConnectionLost, DeadlineExceeded
from mainstem.rpc.wire.call_state import CallAnswer
from mainstem.rpc.wire.client_connection import (
    ClientConnection,
    Connect,
    connect_tcp,
    connect_tls,
    open_connection,
)
from mainstem.rpc.wire.frames import FRAME_BYTES_MAX
from mainstem.rpc.wire.hello import Hello
from mainstem.rpc.wire.identity import ANY_NODE, CLIENT, NODE, Identity
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT

CALLS_MAX = 64
"""Calls in flight on one connection; further calls wait. Half of what a server accepts."""

DEADLINE_GRACE_SECONDS = 1.0
"""The callee reports a missed deadline itself; the caller waits for that report this much longer, then
stops."""


class Client:
    """Calls to one peer. Use as `async with`. `node` is the caller's identity, None for a client; a node
    other than `seeks` at the address is refused (`IdentityRefused`). `tls` replaces `connect`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str = "",
        node: Identity | None = None,
        seeks: int = ANY_NODE,
        tls: ssl.SSLContext | None = None,
        connect: Connect = connect_tcp,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.address = str(Address(host, port))
        self._host, self._port = host, port
        self._hello = Hello(
            name=name,
            frame_bytes_max=frame_bytes_max,
            role=CLIENT if node is None else NODE,
            node=node,
            seeks=seeks,
        )
        self._connect = connect if tls is None else connect_tls(tls)
        self._connecting = asyncio.Lock()
        self._connection: ClientConnection | None = None
        self._slots = asyncio.Semaphore(CALLS_MAX)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Calls in flight fail with `ConnectionLost`."""
        if self._connection is not None:
            self._connection.drop(ConnectionLost(f"connection to {self.address} closed"))

    async def call(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[ReplyT]:
        """One request, one answer. Raises the method's refusals and `RpcError`."""
        assert not method.streams, f"{method.name} streams"
        async with aclosing(self._replies(method, request, attachment, timeout_seconds)) as replies:
            return await anext(replies)

    def stream(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> AsyncGenerator[Reply[ReplyT], None]:
        """One request, any number of answers. Raises the method's refusals and `RpcError`. A consumer that
        stops early closes the iterator (`contextlib.aclosing`), which cancels the call."""
        assert method.streams, f"{method.name} does not stream"
        return self._replies(method, request, attachment, timeout_seconds)

    async def _replies(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer],
        timeout_seconds: float,
    ) -> AsyncGenerator[Reply[ReplyT], None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        give_up = deadline + DEADLINE_GRACE_SECONDS
        async with AsyncExitStack() as slot:
            try:
                async with asyncio.timeout_at(deadline):
                    await slot.enter_async_context(self._slots)
                    connection = await self._connected()
            except TimeoutError:
                message = f"{method.name}: no connection to {self.address} within {timeout_seconds} s"
                raise DeadlineExceeded(message) from None
            left_ms = max(1, round((deadline - loop.time()) * 1000))
            answers: asyncio.Queue[CallAnswer] = asyncio.Queue()  # bounded by the stream's window
            request_id = connection.open(method, request, attachment, left_ms, answers.put_nowait)
            try:
                while True:
                    try:
                        async with asyncio.timeout_at(give_up):
                            answer = await answers.get()
                    except TimeoutError:
                        message = f"{method.name}: no answer from {self.address} within {timeout_seconds} s"
                        raise DeadlineExceeded(message) from None
                    if answer.error is not None:
                        raise answer.error
                    if answer.reply is not None:
                        connection.took(request_id)
                        yield answer.reply
                    if answer.ends:
                        return
            finally:
                connection.abandon(request_id)

    async def _connected(self) -> ClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.lost is not None:
                self._connection = await open_connection(self._hello, self._host, self._port, self._connect)
            return self._connection
