"""Calls between the nodes of a cluster, as `rpc.NodeCalls` makes them: requests and answers become bytes on the way.

The callee answers in a task of its own life. A call breaks off when either end dies or nothing gets through between
them, and then the callee's task is cancelled, as it is when a connection is lost.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from tests.fakes.begun_calls import begun
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.cluster.network import SimulatedNetwork

from mainstem.model import Buffer
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.errors import CallFailed, ConnectionLost, DeadlineExceeded, NotServed, Refused
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Reply

WATCH_SECONDS = 0.1
"""How often is looked whether the two ends are there."""

WINDOW_ITEMS = 4


class Switchboard:
    """All nodes that can be called."""

    def __init__(self, loop: ClusterLoop, network: SimulatedNetwork) -> None:
        self.loop = loop
        self.network = network
        self.served: dict[int, tuple[Life, Handlers]] = {}

    def of(self, life: Life, identity: Identity | None = None) -> SimulatedCalls:
        """`identity`: who this node is to those it calls."""
        return SimulatedCalls(self, life, identity or Identity("cluster", life.node_id, bytes([life.node_id]) * 16))

    def serve(self, life: Life, handlers: Handlers) -> None:
        """The answers of a node from now on."""
        self.served[life.node_id] = (life, handlers)

    def passes(self, one: Life, other: Life) -> bool:
        cut = self.network.cut & {(one.node_id, other.node_id), (other.node_id, one.node_id)}
        return one.alive and other.alive and not cut


class SimulatedCalls:
    """`storage.snapshot_image.Calls` of one life, and the nameserver's `Calls`."""

    def __init__(self, board: Switchboard, life: Life, identity: Identity) -> None:
        self._board = board
        self._life = life
        self._identity = identity

    def know(self, node_id: int, address: str) -> None:
        """Everybody knows where everybody is."""

    async def call(
        self,
        node_id: int,
        method: Method[Any, Any],
        request: Any,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[Any]:
        attached = b"".join(map(bytes, attachment))
        async with aclosing(self._replies(node_id, method, request, timeout_seconds, attached)) as replies:
            return await anext(replies)

    def begin(
        self,
        node_id: int,
        method: Method[Any, Any],
        request: Any,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> PromptFuture[Reply[Any]] | None:
        callee, _ = self._board.served.get(node_id, (None, None))
        if callee is None or not self._board.passes(self._life, callee):
            return None
        return begun(self.call(node_id, method, request, attachment, timeout_seconds=timeout_seconds))

    def stream(
        self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[Any], None]:
        return self._replies(node_id, method, request, timeout_seconds)

    async def _replies(
        self, node_id: int, method: Method[Any, Any], request: Any, timeout_seconds: float, attached: bytes = b""
    ) -> AsyncGenerator[Reply[Any], None]:
        board, life = self._board, self._life
        callee, handlers = board.served.get(node_id, (None, None))
        if callee is None or handlers is None or not board.passes(life, callee):
            raise ConnectionLost(f"cannot reach node {node_id}")
        body = msgspec.msgpack.encode(request)
        answers: asyncio.Queue[Any] = asyncio.Queue(WINDOW_ITEMS)
        answering = board.loop.run_in(callee, self._answer(method, body, attached, handlers, answers), name=method.name)
        watching = board.loop.create_task(
            self._watch(callee, answering, answers), name="watch", context=contextvars.Context()
        )
        deadline = board.loop.time() + timeout_seconds
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):  # not around the yield: what the caller does is its own
                        item = await answers.get()
                        await asyncio.sleep(board.network.quality.delay_seconds * board.network.rng.random())
                except TimeoutError:
                    raise DeadlineExceeded(f"{method.name}: no answer from node {node_id}") from None
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                content, attachment = item
                yield Reply(method.decode_reply(content), attachment)
        finally:
            watching.cancel()
            answering.cancel()

    async def _answer(
        self,
        method: Method[Any, Any],
        body: bytes,
        attached: bytes,
        handlers: Handlers,
        answers: asyncio.Queue[Any],
    ) -> None:
        found = handlers.find(method.number)
        life = self._life
        if found is None:
            await answers.put(NotServed(f"{method.name} is not served here"))
            return
        try:
            call = RpcCall(method.decode_request(body), attached, f"node {life.node_id}", self._identity)
            if method.streams:
                async with aclosing(found.handler(call)) as replies:
                    async for reply in replies:
                        await answers.put(encoded(reply))
            else:
                await answers.put(encoded(found.handler(call) if found.prompt else await found.answer(call)))
        except Refused as error:
            await answers.put(error if isinstance(error, method.refusals) else CallFailed(str(error)))
        except TimeoutError as error:
            await answers.put(DeadlineExceeded(f"{method.name}: {error}"))
        except Exception as error:
            await answers.put(CallFailed(f"{method.name}: {type(error).__name__}: {error}"))
        else:
            await answers.put(None)

    async def _watch(self, callee: Life, answering: asyncio.Task[None], answers: asyncio.Queue[Any]) -> None:
        """End the call once the two ends cannot reach each other."""
        while self._board.passes(self._life, callee):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(WATCH_SECONDS)
        answering.cancel()
        while not answers.empty():
            answers.get_nowait()
        answers.put_nowait(ConnectionLost(f"the connection to node {callee.node_id} broke"))


def encoded(reply: Reply[Any]) -> tuple[bytes, bytes]:
    return msgspec.msgpack.encode(reply.message), b"".join(bytes(buffer) for buffer in reply.buffers)
