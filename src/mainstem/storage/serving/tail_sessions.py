"""Tells brokers without storage what is appended to the queues that they serve.

A broker has one session with each node that leads write groups, and says in it which queues it serves (`ChangeTails`).
The session streams the batches of each of them as they are confirmed, once, however many consumers the broker has. The
told records lie below the high watermark: a broker holds nothing that may be taken back.

A session holds one answer at a time: a broker that takes them slowly gets more in each, up to `READ_BYTES_MAX`, and no
more is read for it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from mainstem.model import Buffer, ForwardedClient, Outcome, QueueOffsets, QueueRead, QueueSlice
from mainstem.ports import ForwardedClients, MessageStore, QueueLeadership, UnknownClients
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.brokers import (
    CHANGE_TAILS,
    FOLLOW_TAILS,
    ChangeTails,
    FollowTails,
    NoSuchSession,
    TailsTold,
)
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.serving.broker_service import NO_OFFSETS, READ_BYTES_MAX, slice_read

SESSION_QUEUES_MAX = 10_000
"""Queues of one session: more than these are polled by their broker."""

SESSIONS_MAX = 256
"""Sessions of one node: one per broker, and some that have broken and are not noticed yet."""

KEEP_ALIVE_SECONDS = 1.0
"""After so long without news an empty answer says that the session goes on."""

MANY_QUEUES = 200
PAUSE_SECONDS = 0.005
"""A session of many queues looks at all of them this often at the most: a millisecond for ten thousand."""


class TailSessions:
    """All sessions of brokers with this node."""

    def __init__(
        self, messages: MessageStore, leadership: QueueLeadership, clients: ForwardedClients | None = None
    ) -> None:
        """`clients`: whose readings of tails are counted; None: nobody's."""
        self._messages = messages
        self._leadership = leadership
        self._clients = clients or UnknownClients()
        self._sessions: dict[tuple[int, int], TailSession] = {}

    def register(self, handlers: Handlers) -> None:
        handlers.stream(FOLLOW_TAILS, self._follow)
        handlers.unary(CHANGE_TAILS, self._change)

    async def _follow(self, call: RpcCall[FollowTails]) -> AsyncIterator[Reply[TailsTold]]:
        assert call.node is not None, "the method is for nodes only"
        key = call.node.node_id, call.request.session
        if len(self._sessions) >= SESSIONS_MAX:
            raise NoSuchSession(f"this node has {SESSIONS_MAX} sessions with brokers, the most it takes")
        session = self._sessions[key] = TailSession(self._messages, self._leadership)
        try:
            yield Reply(TailsTold([]))  # the session is known from now on
            while True:
                yield await session.news()
        finally:
            if self._sessions.get(key) is session:
                del self._sessions[key]

    async def _change(self, call: RpcCall[ChangeTails]) -> Reply[Nothing]:
        assert call.node is not None, "the method is for nodes only"
        request = call.request
        session = self._sessions.get((call.node.node_id, request.session))
        if session is None:
            raise NoSuchSession(f"there is no session {request.session} of node {call.node.node_id}")
        if len(session.positions) + len(request.begun) > SESSION_QUEUES_MAX + len(request.ended):
            raise NoSuchSession(f"a session takes {SESSION_QUEUES_MAX} queues")
        session.change(request.begun, request.ended)
        for taken in request.taken:
            self._clients.took(ForwardedClient(taken.principal, ""), taken.size_bytes)
        return Reply(Nothing())

    def __len__(self) -> int:
        return len(self._sessions)


class TailSession:
    """The queues of one session, and how far each was told."""

    def __init__(self, messages: MessageStore, leadership: QueueLeadership) -> None:
        self.positions: dict[int, int] = {}
        """Queue id → the offset behind what was told."""
        self._known: dict[int, QueueOffsets] = {}
        """The offsets that were told last."""
        self._messages = messages
        self._leadership = leadership
        self._changed = asyncio.Event()
        self._begun: dict[int, None] = {}

    def change(self, begun: list[int], ended: list[int]) -> None:
        for queue_id in ended:
            self.positions.pop(queue_id, None)
            self._known.pop(queue_id, None)
            self._begun.pop(queue_id, None)
        for queue_id in begun:
            self._begun[queue_id] = None
        self._changed.set()

    async def news(self) -> Reply[TailsTold]:
        """The new records of some queues, as soon as anything is."""
        while True:
            slices = await self._begin() + await self._read()
            if slices:
                attached: list[Buffer] = [batch for found in slices for batch in found.batches]
                return Reply(TailsTold(list(map(slice_read, slices))), attached)
            if not await self._wait():
                return Reply(TailsTold([]))

    async def _begin(self) -> list[QueueSlice]:
        """The first slice of each new queue: without batches, from its end on."""
        begun, self._begun = list(self._begun), {}
        slices = []
        for queue_id, offsets in zip(begun, await self._messages.offsets(begun), strict=True):
            slices.append(self._told(queue_id, offsets, []))
        return slices

    async def _read(self) -> list[QueueSlice]:
        """The changes of the queues since they were told of."""
        queue_ids = list(self.positions)
        reads: list[QueueRead] = []
        slices: list[QueueSlice] = []
        for queue_id, offsets in zip(queue_ids, await self._messages.offsets(queue_ids), strict=True):
            position = self.positions.get(queue_id)
            if position is None:
                continue
            if offsets is None or not self._leads(queue_id) or position < offsets.log_start:
                slices.append(self._told(queue_id, offsets, []))
            elif offsets.high_watermark > position:
                reads.append(QueueRead(queue_id, position, READ_BYTES_MAX))
            elif offsets != self._known.get(queue_id):
                slices.append(self._told(queue_id, offsets, []))
        for found in await self._messages.read(reads, READ_BYTES_MAX) if reads else ():
            if found.outcome is not Outcome.OK:
                slices.append(self._ended(found.queue_id, found.outcome))
            elif found.batches and found.queue_id in self.positions:
                self.positions[found.queue_id] = found.next_offset
                self._known[found.queue_id] = found.offsets
                slices.append(found)
        return slices

    def _told(self, queue_id: int, offsets: QueueOffsets | None, batches: list[Buffer]) -> QueueSlice:
        if offsets is None:
            return self._ended(queue_id, Outcome.UNKNOWN_QUEUE)
        if not self._leads(queue_id):
            return self._ended(queue_id, Outcome.NOT_LEADER)
        position = max(self.positions.get(queue_id, offsets.high_watermark), offsets.log_start)
        self.positions[queue_id] = position
        self._known[queue_id] = offsets
        return QueueSlice(queue_id, Outcome.OK, batches, offsets, None, position)

    def _ended(self, queue_id: int, outcome: Outcome) -> QueueSlice:
        self.positions.pop(queue_id, None)
        self._known.pop(queue_id, None)
        return QueueSlice(queue_id, outcome, [], NO_OFFSETS)

    def _leads(self, queue_id: int) -> bool:
        return self._leadership.serves_here(queue_id)

    async def _wait(self) -> bool:
        """Wait until there may be news; False: there was none for long."""
        if len(self.positions) > MANY_QUEUES:
            await asyncio.sleep(PAUSE_SECONDS)
        waiting = self._messages.wait(dict(self.positions), 1, 2 * KEEP_ALIVE_SECONDS) if self.positions else None
        if waiting is not None:
            waiting.add_done_callback(lambda _: self._changed.set())
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await self._changed.wait()
            return True
        except TimeoutError:
            return False
        finally:
            if waiting is not None:
                waiting.cancel()
            self._changed.clear()
