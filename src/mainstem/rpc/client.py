"""The calling end on asyncio: many calls at a time over one connection, made when first needed.

A call that fails with `ConnectionLost` may have taken effect; the caller decides whether to repeat it.
The next call connects again. Cancelling the task that calls cancels the call at the peer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from mainstem.address import Address
from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture
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

BEGUN_MAX = 32
"""Calls in flight besides that have no task here; with the others three quarters of what a server accepts."""

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
        self._begun = 0
        self._waiting = 0
        """Calls that wait for a slot or the connection. No other passes them: messages arrive in the order of calls."""

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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        connection = self._connection
        if connection is None or connection.lost is not None or self._waiting or self._slots.locked():
            connection = await self._taken(method, deadline, timeout_seconds)
        else:
            await self._slots.acquire()  # at once
        try:
            answered: asyncio.Future[CallAnswer] = loop.create_future()
            request_id = connection.open(
                method, request, attachment, _left_ms(deadline, loop.time()), partial(_settle, answered)
            )
            timer = loop.call_at(
                deadline + DEADLINE_GRACE_SECONDS, _give_up, answered, self._unanswered(method, timeout_seconds)
            )
            try:
                answer = await answered
            finally:
                timer.cancel()
                connection.abandon(request_id)
        finally:
            self._slots.release()
        if answer.error is not None:
            raise answer.error
        assert answer.reply is not None, "a call has one answer"
        return answer.reply

    def begin(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> PromptFuture[Reply[ReplyT]] | None:
        """The same at once and without a task, over the connection that there is. None: there is none, or much is under
        way on it, and nothing was sent. Cancelling the answer cancels the call. Raises ValueError when the message is
        larger than the peer accepts."""
        connection = self._connection
        if connection is None or connection.lost is not None or self._waiting or self._begun >= BEGUN_MAX:
            return None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        answer: PromptFuture[Reply[ReplyT]] = PromptFuture()
        request_id = connection.open(
            method, request, attachment, _left_ms(deadline, loop.time()), partial(_settle_begun, answer)
        )
        timer = loop.call_at(
            deadline + DEADLINE_GRACE_SECONDS, _give_up, answer, self._unanswered(method, timeout_seconds)
        )
        self._begun += 1
        answer.add_done_callback(partial(self._is_over, connection, request_id, timer))
        return answer

    def _is_over(
        self, connection: ClientConnection, request_id: int, timer: asyncio.TimerHandle, _: PromptFuture[Any]
    ) -> None:
        self._begun -= 1
        timer.cancel()
        connection.abandon(request_id)

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
        connection = await self._taken(method, deadline, timeout_seconds)
        try:
            answers: asyncio.Queue[CallAnswer] = asyncio.Queue()  # bounded by the stream's window
            request_id = connection.open(
                method, request, attachment, _left_ms(deadline, loop.time()), answers.put_nowait
            )
            try:
                while True:
                    try:
                        async with asyncio.timeout_at(give_up):
                            answer = await answers.get()
                    except TimeoutError:
                        raise self._unanswered(method, timeout_seconds) from None
                    if answer.error is not None:
                        raise answer.error
                    if answer.reply is not None:
                        connection.took(request_id)
                        yield answer.reply
                    if answer.ends:
                        return
            finally:
                connection.abandon(request_id)
        finally:
            self._slots.release()

    async def _taken(self, method: Method[Any, Any], deadline: float, timeout_seconds: float) -> ClientConnection:
        """A connection, and one of the slots, which the caller then gives back. Raises `RpcError`."""
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
                try:
                    return await self._connected()
                except BaseException:
                    self._slots.release()
                    raise
        except TimeoutError:
            message = f"{method.name}: no connection to {self.address} within {timeout_seconds} s"
            raise DeadlineExceeded(message) from None
        finally:
            self._waiting -= 1

    def _unanswered(self, method: Method[Any, Any], timeout_seconds: float) -> DeadlineExceeded:
        return DeadlineExceeded(f"{method.name}: no answer from {self.address} within {timeout_seconds} s")

    async def _connected(self) -> ClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.lost is not None:
                self._connection = await open_connection(self._hello, self._host, self._port, self._connect)
            return self._connection


def _left_ms(deadline: float, now: float) -> int:
    return max(1, round((deadline - now) * 1000))


def _settle(answered: asyncio.Future[CallAnswer], answer: CallAnswer) -> None:
    if not answered.done():
        answered.set_result(answer)


def _settle_begun(answered: PromptFuture[Reply[Any]], answer: CallAnswer) -> None:
    if answered.done():
        return
    if answer.error is not None:
        answered.set_exception(answer.error)
    else:
        assert answer.reply is not None, "a call has one answer"
        answered.set_result(answer.reply)


def _give_up(answered: asyncio.Future[CallAnswer] | PromptFuture[Reply[Any]], error: DeadlineExceeded) -> None:
    if not answered.done():
        answered.set_exception(error)
