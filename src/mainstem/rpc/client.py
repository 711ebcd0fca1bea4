"""The calling end on asyncio: many calls at a time over one connection, made when first needed.

A call that fails with `ConnectionLost` may have taken effect; whether to repeat it is the caller's business.
The next call connects again. Cancelling the task that calls cancels the call at the peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, cast

from mainstem.model import Buffer
from mainstem.rpc.connection import Answer, CallerConnection
from mainstem.rpc.errors import ConnectionLost, DeadlineExceeded, RpcError
from mainstem.rpc.frames import FRAME_BYTES_MAX
from mainstem.rpc.method import Method, Reply, ReplyT, RequestT

CALLS_MAX = 64
"""Calls in flight on one connection; the next ones wait. Half of what a server accepts."""

CONNECT_SECONDS_MAX = 5.0
"""Nodes are near; one that does not greet by then is down."""

DEADLINE_GRACE_SECONDS = 1.0
"""The callee reports a missed deadline itself; this long after it the caller stops waiting for that."""

Connect = Callable[[Callable[[], asyncio.Protocol], str, int], Coroutine[Any, Any, tuple[Any, Any]]]
"""How a connection is made: (protocol factory, host, port) as `loop.create_connection` takes them."""


async def connect_tcp(factory: Callable[[], asyncio.Protocol], host: str, port: int) -> tuple[Any, Any]:
    return await asyncio.get_running_loop().create_connection(factory, host, port)


class Client:
    """Calls to one peer. Use as `async with`."""

    def __init__(
        self, host: str, port: int, *, name: str = "", connect: Connect = connect_tcp,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port, self._name = host, port, name
        self._frame_bytes_max = frame_bytes_max
        self._connect = connect
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
        self, method: Method[RequestT, ReplyT], request: RequestT, attachment: Sequence[Buffer] = (), *,
        timeout_seconds: float,
    ) -> Reply[ReplyT]:
        """One request, one answer. Raises the method's refusals and `RpcError`."""
        assert not method.streams, f"{method.name} streams"
        async with aclosing(self._replies(method, request, attachment, timeout_seconds)) as replies:
            return await anext(replies)

    def stream(
        self, method: Method[RequestT, ReplyT], request: RequestT, attachment: Sequence[Buffer] = (), *,
        timeout_seconds: float,
    ) -> AsyncGenerator[Reply[ReplyT], None]:
        """One request, any number of answers. Raises the method's refusals and `RpcError`. A consumer that
        stops early closes the iterator (`contextlib.aclosing`), which cancels the call."""
        assert method.streams, f"{method.name} does not stream"
        return self._replies(method, request, attachment, timeout_seconds)

    async def _replies(
        self, method: Method[RequestT, ReplyT], request: RequestT, attachment: Sequence[Buffer],
        timeout_seconds: float,
    ) -> AsyncGenerator[Reply[ReplyT], None]:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_seconds + DEADLINE_GRACE_SECONDS
        async with self._slots:
            connection = await self._connected()
            left_ms = max(1, round(timeout_seconds * 1000))
            request_id, answers = connection.open(method, request, attachment, left_ms)
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
                core = CallerConnection(self._name, self._frame_bytes_max)
                connection = ClientConnection(core, self.address)
                try:
                    async with asyncio.timeout(CONNECT_SECONDS_MAX):
                        await self._connect(lambda: connection, self._host, self._port)
                        await connection.greeted
                except (OSError, TimeoutError) as error:
                    connection.drop(ConnectionLost(str(error)))
                    raise ConnectionLost(f"cannot reach {self.address}: {error or 'no answer'}") from error
                except asyncio.CancelledError:
                    connection.drop(ConnectionLost("nobody waits for this connection any more"))
                    raise
                self._connection = connection
            return self._connection


class ClientConnection(asyncio.Protocol):
    """One connection. Ends once: `lost` then says why, and every open call has failed with it."""

    def __init__(self, core: CallerConnection, address: str) -> None:
        self.lost: RpcError | None = None
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._core = core
        self._address = address
        self._answers: dict[int, asyncio.Queue[Answer]] = {}
        self._transport: asyncio.Transport | None = None

    def open(
        self, method: Method[Any, Any], request: Any, attachment: Sequence[Buffer], time_left_ms: int
    ) -> tuple[int, asyncio.Queue[Answer]]:
        """Send a request; its answers arrive in the queue, which the stream's window bounds."""
        if self.lost is not None:
            raise self.lost
        request_id, buffers = self._core.call(method, request, attachment, time_left_ms=time_left_ms)
        answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._answers[request_id] = answers
        self._write(buffers)
        return request_id, answers

    def took(self, request_id: int) -> None:
        self._write(self._core.take(request_id))

    def abandon(self, request_id: int) -> None:
        """The caller waits no longer; cancels the call unless it has been answered."""
        if self._answers.pop(request_id, None) is not None and self.lost is None:
            self._write(self._core.cancel(request_id))

    def drop(self, reason: RpcError) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        if not self.greeted.done():
            self.greeted.set_exception(reason)
            self.greeted.exception()  # marks it as seen: nobody waits when connecting itself failed
        for request_id, answers in self._answers.items():
            answers.put_nowait(Answer(request_id, error=reason))
        if self._transport is not None:
            self._transport.abort()

    def _write(self, buffers: list[Buffer]) -> None:
        assert self._transport is not None
        if buffers and not self._transport.is_closing():
            self._transport.writelines(buffers)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write(self._core.hello())

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._core.receive(data)
        except RpcError as error:
            self.drop(error)
            return
        if self._core.peer is not None and not self.greeted.done():
            self.greeted.set_result(None)
        for answer in answers:
            if (queue := self._answers.get(answer.request_id)) is not None:
                queue.put_nowait(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(ConnectionLost(f"connection to {self._address} lost: {exc or 'closed by the peer'}"))
