"""A dispatcher that the test controls, behind a server over real sockets.

A request of this dispatcher is one byte that says what becomes of it, and a payload.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.fakes.clock import LoopClock
from tests.harness.patience import PATIENCE_SECONDS
from tests.server.tls.over_tls import OVER_TLS

from mainstem.errors import MainstemError
from mainstem.kernel import ScatteredBytes
from mainstem.model import Buffer
from mainstem.ports import Burst, Clock, Exchange, Reply, Session, always
from mainstem.process.event_loop import new_event_loop
from mainstem.prompt_future import PromptFuture
from mainstem.server.config import ServerConfig
from mainstem.server.kafka_server import KafkaServer
from mainstem.server.listener_config import ListenerConfig

ECHO, PENDING, PIPELINED, SILENT, REFUSED, BROKEN, LARGE = b"e", b"n", b"p", b"s", b"r", b"b", b"l"
PROMPT = b"t"
FINAL, LATE_FINAL = b"f", b"g"
SCATTERED = b"c"
TOGETHER = b"+"

LARGE_REPLY_BYTES = 1_000_000


PIECE_BYTES = 10_000
"""Of a scattered reply of `LARGE_REPLY_BYTES`; each piece is of one letter."""


class WatchedBytes:
    """A scattered reply that notes how much of it leaves in which way."""

    def __init__(self, content: bytes) -> None:
        view = memoryview(content)
        self._bytes = ScatteredBytes(view[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES))
        self.sent: list[int] = []
        """The bytes that the socket took, each time it was asked."""
        self.taken = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def take(self, size: int) -> Sequence[Buffer]:
        views = self._bytes.take(size)
        self.taken += sum(map(len, views))
        return views

    def send(self, descriptor: int, size: int) -> int:
        self.sent.append(self._bytes.send(descriptor, size))
        return self.sent[-1]


class RefusedRequest(MainstemError):
    pass


class ScriptedDispatcher:
    """`ports.Dispatcher` that answers by the request's first byte, and keeps pending replies for the test."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.pending: list[tuple[bytes, asyncio.Future[Reply] | PromptFuture[Reply]]] = []
        self.bursts: list[tuple[bytes, Burst]] = []
        self.bursts_looked_for = 0
        self.gone: list[Session] = []
        self.sessions: set[Session] = set()
        """That requests came with, or bursts."""
        self.room = True
        self.room_for_light = False
        """Whether there is room for them even without `room`."""
        self.takes_turns = False
        self.waiting_for_room: list[Callable[[], object]] = []
        self.ends_with: bytes | None = None
        """A burst that contains this is the last on its connection."""
        self.scattered: list[WatchedBytes] = []
        self.arrived = asyncio.Event()

    def dispatch_burst(
        self,
        frames: memoryview,
        start: int,
        stop: int,
        requests_max: int,
        frame_bytes_max: int,
        session: Session,
    ) -> Burst | None:
        """Takes those at the front that begin with `TOGETHER`, and answers each with itself, when told to."""
        self.sessions.add(session)
        self.bursts_looked_for += 1
        taken, at = bytearray(), start
        count = 0
        while count < requests_max and stop - at > 4 and bytes(frames[at + 4 : at + 5]) == TOGETHER:
            (length,) = struct.unpack_from(">i", frames, at)
            if at + 4 + length > stop or length > frame_bytes_max:
                break
            taken += frames[at : at + 4 + length]
            at += 4 + length
            count += 1
        if not count:
            return None
        self.seen.append(bytes(taken))
        self.arrived.set()
        burst = Burst(count, at - start)
        burst.last = self.ends_with is not None and self.ends_with in taken
        self.bursts.append((bytes(taken), burst))
        return burst

    def dispatch(
        self, frame: memoryview, session: Session, may_hold: Callable[[int], bool] = always
    ) -> Exchange | None:
        content = bytes(frame)
        self.sessions.add(session)
        self.seen.append(content)
        self.arrived.set()
        kind = content[:1]
        if kind == REFUSED:
            raise RefusedRequest("the dispatcher does not like this")
        if kind == BROKEN:
            raise ZeroDivisionError("a fault of ours")
        if kind == FINAL:
            return Exchange(reply_to(content), last=True)
        if kind in (PENDING, PIPELINED, LATE_FINAL):
            future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self.pending.append((content, future))
            holds = len(content) if kind == PENDING else 0
            return Exchange(future, pipelined=kind == PIPELINED, last=kind == LATE_FINAL, holds=holds)
        if kind == PROMPT:
            reply: PromptFuture[Reply] = PromptFuture()
            self.pending.append((content, reply))
            return Exchange(reply, pipelined=True)
        if kind == SILENT:
            return Exchange(None)
        if kind == LARGE:
            return Exchange([struct.pack(">i", LARGE_REPLY_BYTES), memoryview(bytes(LARGE_REPLY_BYTES))])
        if kind == SCATTERED:
            self.scattered.append(WatchedBytes(struct.pack(">i", LARGE_REPLY_BYTES) + scattered_content()))
            return Exchange([self.scattered[-1]])
        return Exchange(reply_to(content))

    def has_room(self, light: bool = False) -> bool:
        return self.room or (light and self.room_for_light)

    def shared(self) -> bool:
        return self.takes_turns

    def brings_batches(self, frames: memoryview, start: int, stop: int) -> bool:
        return stop - start > 4 and bytes(frames[start + 4 : start + 5]) in (TOGETHER, PIPELINED)

    def tell_of_room(self, told: Callable[[], object]) -> None:
        self.waiting_for_room.append(told)

    def make_room(self) -> None:
        """As much as there is asked for now."""
        self.room = True
        waiting, self.waiting_for_room = self.waiting_for_room, []
        for told in waiting:
            told()

    def disconnected(self, session: Session) -> None:
        self.gone.append(session)

    def resolve(self, index: int) -> None:
        content, future = self.pending[index]
        future.set_result(reply_to(content))

    def resolve_burst(self, index: int) -> None:
        content, burst = self.bursts[index]
        burst.set_result([content])

    async def until_seen(self, count: int) -> None:
        while len(self.seen) < count:
            self.arrived.clear()
            await self.arrived.wait()


def scattered_content() -> bytes:
    """Of the answer to `SCATTERED`."""
    return b"".join(bytes([at % 251]) * PIECE_BYTES for at in range(LARGE_REPLY_BYTES // PIECE_BYTES))


def reply_to(content: bytes) -> Reply:
    return [struct.pack(">i", len(content)), content]


@asynccontextmanager
async def serving(
    clock: Clock | None = None, *, listeners: Mapping[str, ListenerConfig] | None = None, **limits: int | str
) -> AsyncIterator[tuple[KafkaServer, ScriptedDispatcher]]:
    """A server with the named listeners, else with one. That is of the protocol that the test runs over
    (`over_tls.OVER_TLS`)."""
    dispatcher = ScriptedDispatcher()
    if listeners is None and OVER_TLS:
        listeners = {"TLS": OVER_TLS[0].listener()}
    config = ServerConfig(
        listen=() if listeners else ("127.0.0.1:0",),
        listeners=dict(listeners or {}),
        **limits,  # type: ignore[arg-type]
    )
    config.validate()
    server = KafkaServer(config, clock or LoopClock())
    server.bind()
    await server.start(dispatcher)
    try:
        yield server, dispatcher
    finally:
        for _, future in dispatcher.pending:
            if not future.done():
                future.set_result(None)
        await server.close()


async def until(condition: object) -> None:
    """Let the loop run until a condition holds; the suite's timeout is the only limit."""
    while not condition():  # type: ignore[operator]  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def run(test: object) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, PATIENCE_SECONDS))  # type: ignore[arg-type]


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(content)) + content for content in contents)
