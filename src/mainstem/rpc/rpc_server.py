"""The called end on asyncio: a listener that hands requests to the handlers it was given.

Every call runs in a task owned by its connection: cancelled when the caller cancels, its deadline passes or the
connection goes, and awaited by `RpcServer.close`. A connection's open requests are bounded in number and in bytes; a
request beyond that is answered `Overloaded` at once, which keeps cancels and credits flowing. A peer that does not read
its answers is no longer read from. If there are as many connections as there may be, a new one takes the place of one
that waits for nothing here, so that idle clients keep no node out.

A prompt method is answered without a task, while its bytes are being received: in the order of arrival, and
without the cost of a task, as frequent small messages need it (`PromptAnswers`). An answer that a handler begins at
once and ends later has no task either (`BegunAnswers`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from mainstem.bounded_log import BoundedLog
from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.begun_answers import BegunAnswers
from mainstem.rpc.errors import (
    IdentityMissing,
    IdentityRefused,
    ProtocolViolation,
    RpcError,
    VersionMismatch,
)
from mainstem.rpc.handlers import BoundMethod, Handlers, RpcCall
from mainstem.rpc.prompt_answers import PromptAnswers
from mainstem.rpc.wire.call_state import STREAM_WINDOW_ITEMS, CalleeConnection
from mainstem.rpc.wire.door import Door
from mainstem.rpc.wire.frames import FRAME_BYTES_MAX, Frame, FrameKind, RpcErrorCode
from mainstem.rpc.wire.hello import Hello, duplicate
from mainstem.rpc.wire.identity import CLIENT, NODE, Identity
from mainstem.rpc.wire.keep_alive import find_dead_peers, give_up_on_dead_peers
from mainstem.rpc.wire.method import Method, Reply
from mainstem.rpc.wire.node_certificate import NodeCertificate
from mainstem.rpc.wire.tls import names_in
from mainstem.socket_memory import bound_unsent
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)

_REQUEST, _CANCEL, _TELL = int(FrameKind.REQUEST), int(FrameKind.CANCEL), int(FrameKind.TELL)

CONNECTIONS_MAX = 512
"""A cluster of a hundred nodes with a few connections each, and the executors of a large split."""

CALLS_MAX = 128
"""Calls one connection may have open: twice what `Client` keeps in flight."""

CALL_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of open requests of one connection."""

FAREWELL_SECONDS_MAX = 1.0
"""How long a refused peer has to read why and to close the connection itself."""

DISCARDED_BYTES = 4096
"""Bytes per read from a peer that is closed already; they are thrown away."""

HELLO_SECONDS_MAX = 10.0
"""A connection that has not introduced itself by then is closed."""


class RpcServer:
    """A listener and its connections. `start`, then `close`; each once."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        name: str = "",
        node: Identity | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        certificate: NodeCertificate | None = None,
        met: Callable[[Hello], None] = lambda _hello: None,
        supervision: Supervision | None = None,
    ) -> None:
        """`met` is called with the hello of each node that connects. `certificate`: what it shows and whom it lets
        in over TLS; None: no TLS."""
        self.handlers = handlers
        self.met = met
        self.hello = Hello(name=name, frame_bytes_max=frame_bytes_max, role=CLIENT if node is None else NODE, node=node)
        self.connections: set[ServerConnection] = set()
        self.accepted = 0
        self.supervision = supervision or Supervision()
        self.lines = BoundedLog(log, time)
        """The lines with which peers that are no nodes can fill the log."""
        self.certificate = certificate
        self._watch: asyncio.Task[None] | None = None
        self._door: Door | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 picks a free one. Returns the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        if (certificate := self.certificate) is not None:
            self._watch = self.supervision.start(certificate.watch, "files of certificates are looked at")
            self._door = Door(lambda: certificate.answering, self.connection, self.supervision)
            return await self._door.open(host, port)
        self._listener = await loop.create_server(self.connection, host, port)
        for listener in self._listener.sockets:
            bound_unsent(listener)
        address = self._listener.sockets[0].getsockname()
        return address[0], address[1]

    def connection(self) -> ServerConnection:
        """The protocol of one accepted connection."""
        return ServerConnection(self)

    def make_room(self) -> bool:
        """Whether one more connection may stay. If there are as many as there may be, one without a call that is no
        node's makes way: the one that has been silent longest, peers without a hello before clients."""
        if len(self.connections) < CONNECTIONS_MAX:
            return True
        idle = [one for one in self.connections if one.is_idle]
        if not idle:
            return False
        min(idle, key=lambda one: (one.is_known, one.heard_at)).make_way()
        return True

    async def close(self) -> None:
        """Stop listening, cancel the running calls, and wait until all of them have ended."""
        if self._watch is not None:
            self._watch.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._door is not None:
            await self._door.close()
        for connection in list(self.connections):
            await connection.close()


@dataclass(slots=True, eq=False)
class _Running:
    task: asyncio.Task[None]
    credit: asyncio.Semaphore
    size: int


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection: owns the tasks of its open calls."""

    def __init__(self, server: RpcServer) -> None:
        self._server = server
        self._core = CalleeConnection(server.hello)
        self._calls: dict[int, _Running] = {}
        self._call_bytes = 0
        self._begun = BegunAnswers(self._settled, self._late)
        self._writable = asyncio.Event()
        self._writable.set()
        self.where = "?"
        """HOST:PORT of the caller, once it is connected."""
        self.node: Identity | None = None
        """The calling node; None: a client, or no hello came yet."""
        self._number = 0
        self.dropped = False
        """It ends for what its peer did, or for being one too many; whatever else comes is not looked at."""
        self._hello_timer: asyncio.TimerHandle | None = None
        self._prompt_answers = PromptAnswers(self._write)
        self._told_failed: dict[int, Exception] = {}
        """By method: the error of the first told request that failed since the last answer, which the next answer
        brings."""
        self.heard_at = time.monotonic()
        """When the peer was heard last, by the monotonic clock."""

    @property
    def is_known(self) -> bool:
        """Whether the peer has introduced itself."""
        return self._core.peer is not None

    @property
    def is_idle(self) -> bool:
        """Whether the peer is no node, and has no call under way."""
        return self.node is None and not self._calls and not self._begun

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.where = self._core.where = f"{address[0]}:{address[1]}" if address else "?"
        self._core.certificate_names = names_in(transport.get_extra_info("peercert"))
        if not self._server.make_room():
            self._refuse(f"{CONNECTIONS_MAX} are open, all of them of nodes or busy")
            return
        certificate = self._server.certificate
        if certificate is not None and not certificate.admits(transport.get_extra_info("ssl_object"), self._revoked):
            self._refuse("the certificate that it shows is revoked")
            return
        self._server.accepted += 1
        self._number = self._server.accepted
        self._server.connections.add(self)
        find_dead_peers(transport)
        self._write(self._core.hello())
        self._hello_timer = asyncio.get_running_loop().call_later(HELLO_SECONDS_MAX, self._expect_hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(DISCARDED_BYTES)) if self.dropped else self._core.writable()

    def buffer_updated(self, nbytes: int) -> None:
        if self.dropped:
            return
        self.heard_at = time.monotonic()
        stranger = self._core.peer is None
        try:
            for frame in self._core.received(nbytes):
                if stranger:
                    stranger = False
                    self._meet()
                if frame.kind == _REQUEST:
                    self._open(frame)
                elif frame.kind == _TELL:
                    self._hear(frame)
                elif frame.kind == _CANCEL and frame.request_id in self._begun:
                    self._begun.cancel(frame.request_id)
                elif running := self._calls.get(frame.request_id):
                    if frame.kind == _CANCEL:
                        running.task.cancel()
                    else:
                        running.credit.release()
            if stranger and self._core.peer is not None:
                self._meet()
        except (ProtocolViolation, VersionMismatch, IdentityRefused) as error:
            self._prompt_answers.send()
            self._write(self._core.farewell(error))
            self._drop(error)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._server.certificate is not None:
            self._server.certificate.forget(self._revoked)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._prompt_answers.forget()
        self._begun.drop()
        for running in self._calls.values():
            running.task.cancel()
        self._forget()

    # calls

    def _meet(self) -> None:
        """The peer's hello has arrived: refuse a second node of the same id. Raises `DuplicateNode`."""
        assert self._core.peer is not None
        if (newcomer := self._core.peer.node) is None:
            return
        self.node = newcomer
        give_up_on_dead_peers(self._transport)
        for other in self._server.connections:
            if other is not self and other.node is not None and not other.dropped:
                refused = duplicate(newcomer, self.where, other.node, other.where)
                if refused is not None:
                    raise refused
        self._server.met(self._core.peer)

    def _open(self, request: Frame) -> None:
        if request.request_id in self._calls or request.request_id in self._begun:
            raise ProtocolViolation(f"request id {request.request_id} is still in use")
        found = self._server.handlers.find(request.code)
        if found is None:
            self._write(
                self._core.fail(
                    request.request_id,
                    RpcErrorCode.UNKNOWN_METHOD,
                    f"method {request.code} is not served here",
                )
            )
        elif found.method.nodes_only and self.node is None:
            self._write(
                self._core.fail(
                    request.request_id,
                    RpcErrorCode.IDENTITY,
                    f"only nodes of this cluster may call it, and {self.where} does not say which node it is",
                    IdentityMissing.kind,
                )
            )
        elif found.prompt:
            self._answer_promptly(request, found)
        elif self._has_room(request) and not (found.begin and self._begin(request, found.method, found.begin)):
            self._answer_by_task(request, found)

    def _has_room(self, request: Frame) -> bool:
        """Whether one more call may be open. If not, that is answered."""
        count, held = len(self._calls) + len(self._begun), self._call_bytes + self._begun.bytes
        if count < CALLS_MAX and held + _size_of(request) <= CALL_BYTES_MAX:
            return True
        what = f"{count} calls with {held} bytes are open"
        self._write(self._core.fail(request.request_id, RpcErrorCode.OVERLOADED, what))
        return False

    def _begin(
        self,
        request: Frame,
        method: Method[Any, Any],
        begin: Callable[[RpcCall[Any]], PromptFuture[Reply[Any]] | None],
    ) -> bool:
        """Whether the answer is begun, or given."""
        try:
            answer = begin(self._call(request, method))
        except msgspec.DecodeError as error:
            self._write(self._core.fail(request.request_id, RpcErrorCode.MALFORMED, f"malformed: {error}"))
        except Exception as error:
            self._write(self._failure(request.request_id, method, error))
        else:
            if answer is None:
                return False
            self._begun.add(request.request_id, _size_of(request), method, answer, request.time_left_ms / 1000)
        return True

    def _settled(self, request_id: int, method: Method[Any, Any], answer: PromptFuture[Reply[Any]]) -> None:
        """Send the answer, also to a peer that does not read: nothing is read from it meanwhile, so these are few."""
        try:
            buffers = self._core.reply(request_id, answer.result(), streams=False)
        except asyncio.CancelledError:
            buffers = self._core.fail(request_id, RpcErrorCode.FAILED, "cancelled")
        except Exception as error:
            buffers = self._failure(request_id, method, error)
        self._write(buffers)

    def _late(self, request_id: int, seconds: float) -> None:
        self._write(self._core.fail(request_id, RpcErrorCode.DEADLINE, f"not done within {seconds} s"))

    def _answer_by_task(self, request: Frame, found: BoundMethod) -> None:
        size = _size_of(request)
        credit = asyncio.Semaphore(STREAM_WINDOW_ITEMS)
        task = asyncio.get_running_loop().create_task(self._run(request, found.method, found.handler, credit))
        self._calls[request.request_id] = _Running(task, credit, size)
        self._call_bytes += size
        task.add_done_callback(lambda task: self._finish(request.request_id, task))

    def _hear(self, told: Frame) -> None:
        """Do what a request wants that is not answered. Raises `ProtocolViolation` where nothing is told like that."""
        found = self._server.handlers.find(told.code)
        if found is None or not found.prompt or (found.method.nodes_only and self.node is None):
            raise ProtocolViolation(f"method {told.code} without a wish for an answer, which is not for this caller")
        self._prompt_answers.requests += 1
        try:
            found.handler(self._call(told, found.method))
        except Exception as error:
            self._told_failed.setdefault(told.code, error)

    def _answer_promptly(self, request: Frame, found: BoundMethod) -> None:
        try:
            call = self._call(request, found.method)
            reply = found.handler(call)
            if self._told_failed and (failed := self._told_failed.pop(request.code, None)) is not None:
                raise failed
            answer = self._core.reply(request.request_id, reply, streams=False)
        except msgspec.DecodeError as error:
            answer = self._core.fail(request.request_id, RpcErrorCode.MALFORMED, f"malformed: {error}")
        except Exception as error:
            answer = self._failure(request.request_id, found.method, error)
        self._prompt_answers.add(answer, len(request.attachment))

    def _call(self, request: Frame, method: Method[Any, Any]) -> RpcCall[Any]:
        """Raises `msgspec.DecodeError`."""
        message = method.decode_request(request.body)
        return RpcCall(message, request.attachment, self.where, self.node, self._number)

    def _finish(self, request_id: int, task: asyncio.Task[None]) -> None:
        self._call_bytes -= self._calls.pop(request_id).size
        if task.cancelled():
            # Answered here, not in the task: a task cancelled before its first step runs none of its code.
            self._write(self._core.fail(request_id, RpcErrorCode.FAILED, "cancelled"))
        elif (error := task.exception()) is not None:
            log.error("answering %s failed", self.where)
            self._server.supervision.errand_died("answer to another node", error)
        self._forget()

    def _forget(self) -> None:
        """Remove this connection from the server once the transport is gone and the last call has ended."""
        if self._transport.is_closing() and not self._calls:
            self._server.connections.discard(self)

    async def _run(
        self,
        request: Frame,
        method: Method[Any, Any],
        handler: Callable[..., Any],
        credit: asyncio.Semaphore,
    ) -> None:
        """Run one call to its one answer. A cancelled call is answered by `_finish`."""
        seconds = request.time_left_ms / 1000 or None
        answer: list[Buffer]
        try:
            call = self._call(request, method)
        except msgspec.DecodeError as error:
            self._write(self._core.fail(request.request_id, RpcErrorCode.MALFORMED, f"malformed: {error}"))
            return
        try:
            async with asyncio.timeout(seconds):
                if method.streams:
                    await self._stream(request.request_id, handler(call), credit)
                    answer = self._core.end(request.request_id)
                else:
                    answer = self._core.reply(request.request_id, await handler(call), streams=False)
        except TimeoutError:
            answer = self._core.fail(request.request_id, RpcErrorCode.DEADLINE, f"not done within {seconds} s")
        except Exception as error:
            answer = self._failure(request.request_id, method, error)
        await self._writable.wait()
        self._write(answer)

    async def _stream(
        self,
        request_id: int,
        replies: AsyncIterator[Reply[Any]],
        credit: asyncio.Semaphore,
    ) -> None:
        async with aclosing(cast(Any, replies)) as items:
            async for reply in items:
                await credit.acquire()
                await self._writable.wait()
                self._write(self._core.reply(request_id, reply, streams=True))

    def _failure(self, request_id: int, method: Method[Any, Any], error: Exception) -> list[Buffer]:
        if isinstance(error, method.refusals):
            return self._core.refuse(request_id, error)
        log.error("%s, called by %s, failed", method.name, self.where, exc_info=error)
        return self._core.fail(request_id, RpcErrorCode.FAILED, f"{type(error).__name__}: {error}")

    def _write(self, buffers: list[Buffer]) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(buffers)

    def _expect_hello(self) -> None:
        if self._core.peer is None:
            self._drop(ProtocolViolation(f"no hello within {HELLO_SECONDS_MAX:.0f} s"))

    def _drop(self, reason: RpcError) -> None:
        """Close once all that was written has left. Until then, and a little longer, read what still arrives
        and throw it away: closing a socket with unread bytes could take the last message from the peer."""
        stranger = isinstance(reason, ProtocolViolation) and self._core.peer is None
        hint = "; nodes and splitters come here, Kafka clients and HTTP have ports of their own" if stranger else ""
        self._tell(f"closed: {reason}{hint}")
        self.dropped = True
        if isinstance(reason, ProtocolViolation):
            self._transport.close()
        else:
            asyncio.get_running_loop().call_later(FAREWELL_SECONDS_MAX, self._transport.close)

    def make_way(self) -> None:
        """End now, for another connection."""
        self._tell(f"closed to make room for another: {CONNECTIONS_MAX} are open, and this one was idle")
        self.dropped = True
        self._transport.abort()
        self._forget()

    def _refuse(self, why: str) -> None:
        self._tell(f"refused: {why}")
        self.dropped = True
        self._transport.abort()

    def _revoked(self) -> None:
        """End now: the peer's certificate is in a list that has come meanwhile."""
        self._tell("closed: its certificate was revoked meanwhile")
        self.dropped = True
        self._transport.abort()

    def _tell(self, what: str) -> None:
        self._server.lines.report(logging.WARNING, f"node connection from {self.where} {what}")

    async def close(self) -> None:
        """Cancel the open calls, wait for them, close."""
        self._begun.drop()
        tasks = [running.task for running in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._transport.abort()


def _size_of(request: Frame) -> int:
    return len(request.body) + len(request.attachment)
