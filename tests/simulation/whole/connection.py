"""Connections of clients to nodes: request frames to the dispatcher of a node and responses back, in order, with delays
on the way, and broken off at any time. The server's part is played here: of a connection the next request is
dispatched when the one before is answered, unless that one is pipelined.

A frame is given to the dispatcher in memory that is overwritten when `dispatch` returns, as a server's buffer is.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.cluster.network import caused
from tests.simulation.oracle import Violation

from mainstem.broker.errors import BrokerError
from mainstem.errors import MainstemError
from mainstem.model import Buffer
from mainstem.ports import Dispatcher, LastReply, Reply, Scattered, Session, joined
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.schema import declaration_of

LENGTH_BYTES = 4

TOGETHER = 0.3
"""How likely a request is not dispatched as it arrives, but with those that come in the next…"""
TOGETHER_SECONDS = 0.002

REQUESTS_MAX = 100
"""In a burst."""


class NoAnswer(Exception):
    """The connection broke, or the client's patience is over: whatever was asked for may have been done, or not."""


@dataclass
class ClientQuality:
    """How the way between clients and nodes is today."""

    delay_seconds: float = 0.001
    breaks: float = 0.0
    """How likely a connection breaks when something is sent on it, on either way."""


class ClientNetwork:
    """All ways between clients and nodes. `trouble` is told of what must never happen."""

    def __init__(self, loop: ClusterLoop, rng: random.Random, trouble: Callable[[Exception], None]) -> None:
        self.loop = loop
        self.rng = rng
        self.trouble = trouble
        self.quality = ClientQuality()
        self.cut: set[int] = set()
        """Nodes that no client reaches, and that reach none."""
        self.requests = 0
        self.bursts = 0
        """How often several requests were dispatched together."""
        self.errors: dict[str, int] = {}
        """How often each error was answered, by API."""
        self._doors: dict[int, tuple[Life, Dispatcher]] = {}
        self._connections = 0

    def open_door(self, life: Life, dispatcher: Dispatcher) -> None:
        """A node accepts connections from now on."""
        self._doors[life.node_id] = (life, dispatcher)

    def close_door(self, life: Life) -> None:
        if self._doors.get(life.node_id, (None,))[0] is life:
            del self._doors[life.node_id]

    def accepts(self, life: Life) -> bool:
        return life.alive and self._doors.get(life.node_id, (None,))[0] is life

    def connect(self, node_id: int) -> Connection | None:
        life, dispatcher = self._doors.get(node_id, (None, None))
        if life is None or dispatcher is None or not life.alive or node_id in self.cut:
            return None
        self._connections += 1
        session = Session(f"10.1.0.{self._connections % 250}", 40_000, self._connections)
        return Connection(self, life, dispatcher, session)

    def breaks(self) -> bool:
        return self.quality.breaks > 0 and self.rng.random() < self.quality.breaks


class _Pending:
    """A request, or several together, that were dispatched, and wait for their turn to be answered."""

    __slots__ = ("answers", "reply")

    def __init__(self, answers: list[asyncio.Future[bytes | None]], reply: Any) -> None:
        self.answers = answers
        self.reply = reply


class Connection:
    """One client's, to one life of a node."""

    def __init__(self, network: ClientNetwork, life: Life, dispatcher: Dispatcher, session: Session) -> None:
        self.life = life
        self.open = True
        self._network = network
        self._dispatcher = dispatcher
        self._session = session
        self._stuck = False
        """Something was lost: nothing behind it gets through either."""
        self._correlation_id = 0
        self._last_arrival = [0.0, 0.0]
        """Of what is under way to the node, and back: nothing overtakes anything."""
        self._inbox: deque[tuple[bytes, asyncio.Future[bytes | None]]] = deque()
        """The bytes in the node's receive buffer."""
        self._exclusive = False
        self._ending = False
        """The node dispatches nothing more, and ends the connection once it has answered."""
        self._outbox: deque[_Pending] = deque()
        self._waiting: dict[asyncio.Future[bytes | None], None] = {}
        """In order."""

    # --- the client's end ---------------------------------------------------------------------------------

    def send(self, request: Any, version: int) -> asyncio.Future[bytes | None]:
        """Send a request; the future brings the frame of its response, None when the connection broke."""
        self._correlation_id += 1
        self._network.requests += 1
        api_key = declaration_of(type(request)).api_key
        assert api_key is not None
        header = RequestHeader(api_key, version, self._correlation_id, "simulated")
        frame = request_frame(header, codec.write(request, version))[LENGTH_BYTES:]
        answer: asyncio.Future[bytes | None] = self._network.loop.create_future()
        self._waiting[answer] = None
        answer.add_done_callback(lambda answer: self._waiting.pop(answer, None))
        if not self.open:
            answer.set_result(None)
        else:
            self._later(0, self._arrive, frame, answer, context=self.life.context)
        return answer

    async def ask(self, request: Any, version: int, *, patience: float) -> Any:
        """One request, one response. Raises `NoAnswer`."""
        return self.read(request, version, await self.answered(self.send(request, version), patience))

    async def answered(self, answer: asyncio.Future[bytes | None], patience: float) -> bytes:
        """Raises `NoAnswer`, and closes the connection, when nothing comes for so long."""
        loop = self._network.loop
        over = loop.create_task(self.life.over.wait())
        either: list[asyncio.Future[Any]] = [answer, over]
        try:
            await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        frame = answer.result() if answer.done() else None
        if frame is None:
            self.close()
            raise NoAnswer
        return frame

    def read(self, request: Any, version: int, frame: bytes) -> Any:
        api_key = declaration_of(type(request)).api_key
        assert api_key is not None
        _, position = parse_response_header(frame, api_key, version)
        return codec.read(API_MESSAGES[api_key].response, version, frame, position)

    def close(self) -> None:
        """Requests that were not dispatched yet never will be."""
        if not self.open:
            return
        self.open = False
        self._network.loop.call_soon(self._disconnected, context=self.life.context)
        for answer in list(self._waiting):
            if not answer.done():
                answer.set_result(None)

    # --- on the way ---------------------------------------------------------------------------------------

    def _later(self, way: int, what: Callable[..., None], *args: Any, context: contextvars.Context) -> None:
        network = self._network
        delay = network.quality.delay_seconds * network.rng.random()
        at = self._last_arrival[way] = max(self._last_arrival[way], network.loop.time() + delay)
        network.loop.call_at(at, what, *args, context=context)

    def _lost(self) -> bool:
        """Whether what arrives now is lost, and the connection with it."""
        if self.life.node_id in self._network.cut:
            self._stuck = True  # neither end hears of it
        elif self.open and self._network.breaks():
            self.close()
        return self._stuck or not self.open

    # --- the node's end -----------------------------------------------------------------------------------

    def _disconnected(self) -> None:
        self._inbox.clear()
        self._dispatcher.disconnected(self._session)

    def _arrive(self, frame: bytes, answer: asyncio.Future[bytes | None]) -> None:
        if self._lost():
            return
        if not self._network.accepts(self.life):
            self.close()
            return
        self._inbox.append((frame, answer))
        if self._network.rng.random() < TOGETHER:  # it is read together with what comes soon
            self._network.loop.call_later(TOGETHER_SECONDS, self._advance, context=self.life.context)
        else:
            self._advance()

    def _advance(self) -> None:
        if not self._network.accepts(self.life):  # it stops
            self.close()
            return
        while self._inbox and not self._exclusive and not self._ending and self.open:
            if self._dispatch_burst():
                continue
            frame, answer = self._inbox.popleft()
            memory = bytearray(frame)
            view = memoryview(memory)
            try:
                exchange = self._dispatcher.dispatch(view, self._session)
            except MainstemError as error:
                self._closed_by_node(error)
                return
            except Exception as error:
                self._network.trouble(caused(f"node {self.life.node_id} dispatches", error))
                raise
            assert exchange is not None, "there is memory for every request"
            memory[:] = b"\xff" * len(memory)
            self._outbox.append(_Pending([answer], exchange.reply))
            self._ending = exchange.last
            if isinstance(exchange.reply, asyncio.Future | PromptFuture):
                if not exchange.pipelined:
                    self._exclusive = True
                exchange.reply.add_done_callback(partial(self._replied, exchange.pipelined))
            else:
                self._flush()

    def _dispatch_burst(self) -> bool:
        """Have the dispatcher take what it likes to take together. Whether it took anything."""
        memory = bytearray(b"".join(len(frame).to_bytes(LENGTH_BYTES, "big") + frame for frame, _ in self._inbox))
        try:
            burst = self._dispatcher.dispatch_burst(
                memoryview(memory), 0, len(memory), REQUESTS_MAX, 1 << 20, self._session
            )
        except MainstemError as error:
            self._closed_by_node(error)
            return True
        if burst is None:
            return False
        taken = [self._inbox.popleft() for _ in range(burst.requests)]
        size = sum(LENGTH_BYTES + len(frame) for frame, _ in taken)
        if size != burst.bytes_taken:
            raise Violation(f"{burst.requests} requests of {size} bytes are taken for {burst.bytes_taken} bytes")
        memory[:] = b"\xff" * len(memory)
        self._network.bursts += len(taken) > 1
        self._outbox.append(_Pending([answer for _, answer in taken], burst))
        self._ending = burst.last
        burst.add_done_callback(lambda _burst: self._done(pipelined=True))
        return True

    def _replied(self, pipelined: bool, reply: asyncio.Future[Reply] | PromptFuture[Reply]) -> None:
        if not reply.cancelled() and reply.exception() is None and type(reply.result()) is LastReply:
            self._ending = True
        self._done(pipelined)

    def _done(self, pipelined: bool) -> None:
        if not pipelined:
            self._exclusive = False
        self._flush()
        self._advance()

    def _flush(self) -> None:
        """Write the responses whose turn has come."""
        while self._outbox and self.open:
            reply = self._outbox[0].reply
            if hasattr(reply, "add_done_callback"):
                if not reply.done():
                    return
                if reply.cancelled():
                    self._closed_by_node(None)
                    return
                if (error := reply.exception()) is not None:
                    self._closed_by_node(error)
                    return
                reply = reply.result()
            self._write(self._outbox.popleft().answers, reply)
        if self._ending and not self._outbox:
            self._later(1, self.close, context=contextvars.Context())

    def _write(self, answers: Sequence[asyncio.Future[bytes | None]], reply: Reply) -> None:
        frames = [b""] * len(answers) if reply is None else frames_of(reply)
        for answer, frame in zip(answers, frames, strict=True):
            self._later(1, self._deliver, answer, frame, context=contextvars.Context())

    def _closed_by_node(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, BrokerError):
            self._network.trouble(caused(f"node {self.life.node_id} answers", error))  # type: ignore[arg-type]
        self.close()

    def _deliver(self, answer: asyncio.Future[bytes | None], frame: bytes) -> None:
        if not self._lost() and not answer.done():
            answer.set_result(frame)


def frames_of(reply: Sequence[Buffer | Scattered]) -> list[bytes]:
    """Responses without their lengths. Raises `Violation` when those are not right."""
    whole = joined(reply)
    frames, position = [], 0
    while position < len(whole):
        end = position + LENGTH_BYTES + int.from_bytes(whole[position : position + LENGTH_BYTES], "big")
        if end > len(whole):
            raise Violation(f"{len(whole) - position} bytes of a response of {end - position}")
        frames.append(whole[position + LENGTH_BYTES : end])
        position = end
    return frames
