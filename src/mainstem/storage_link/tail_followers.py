"""Keeps one session with each storage node that leads queues of this broker: a stream of what is new in them.

A queue joins the session of its leader when a consumer waits at its end, and leaves it when nobody has read it for a
while. When a session breaks, or a node leads a queue no more, the queue's tail goes, its readers look for themselves,
and the next wait begins it anew at its leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from random import Random

from mainstem.model import Buffer, QueueSlice
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.brokers import (
    CHANGE_TAILS,
    FOLLOW_TAILS,
    QUEUES_MAX,
    ChangeTails,
    FollowTails,
    SliceRead,
)
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.tail_cache import TailCache
from mainstem.storage_link.tail_takings import TailTakings

log = logging.getLogger(__name__)

SESSION_SECONDS_MAX = 24 * 3600.0
"""Even a session without faults ends after this long, and begins anew."""

SILENCE_SECONDS_MAX = 3.0
"""Three times as long as a storage node is silent: then it, or the way to it, is gone."""

PAUSE_SECONDS = 0.2
IDLE_SECONDS = 30.0
"""After so long without a reader a queue leaves its session."""
IDLE_LOOKS = 10
"""The seconds between two looks for such queues."""

CHANGE_SECONDS_MAX = 5.0

TAKINGS_SECONDS = 1.0
"""Between two messages about what clients were given."""


class TailFollowers:
    """The sessions of one broker, by node. `run` is a task: it ends idle queues, and has nodes told of `takings`."""

    def __init__(
        self,
        cache: TailCache,
        takings: TailTakings,
        leaders: LeaderCalls,
        group_of: Callable[[int], int],
        random: Random,
    ) -> None:
        self._cache = cache
        self._takings = takings
        self._leaders = leaders
        self._group_of = group_of
        self._random = random
        self._followers: dict[int, _Follower] = {}

    def follow(self, queue_id: int) -> bool:
        """Have the leader of a queue tell of it, whose tail has begun; False: no leader is known."""
        leader = self._leaders.now(self._group_of(queue_id))
        if leader.node_id == -1:
            return False
        follower = self._followers.get(leader.node_id)
        if follower is None:
            follower = self._followers[leader.node_id] = _Follower(
                leader.node_id, self._cache, self._takings, self._leaders, self._random
            )
        follower.begin(queue_id)
        self._cache.tails[queue_id].node_id = leader.node_id
        return True

    async def run(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(TAKINGS_SECONDS)
            for node_id in self._takings.nodes():
                if (follower := self._followers.get(node_id)) is not None:
                    follower.tell_takings()
            looks += 1
            if looks % IDLE_LOOKS == 0:
                for queue_id in self._cache.idle(IDLE_SECONDS):
                    self._cache.drop(queue_id)
                for follower in self._followers.values():
                    follower.forget_dropped()

    async def close(self) -> None:
        for follower in self._followers.values():
            await follower.close()


class _Follower:
    """The session with one node."""

    def __init__(
        self, node_id: int, cache: TailCache, takings: TailTakings, leaders: LeaderCalls, random: Random
    ) -> None:
        self._node_id = node_id
        self._cache = cache
        self._takings = takings
        self._leaders = leaders
        self._random = random
        self._queues: dict[int, None] = {}
        """The queues that the node is to tell of."""
        self._begun: dict[int, None] = {}
        """Of these, the ones that it was not asked for yet…"""
        self._ended: dict[int, None] = {}
        """…and those that it need tell of no more."""
        self._session: int | None = None
        """Known to the node; None: there is none."""
        self._takings_due = False
        """Whether the node is to hear what clients were given."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, queue_id: int) -> None:
        self._queues[queue_id] = self._begun[queue_id] = None
        self._ended.pop(queue_id, None)
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tails of node {self._node_id}")

    def forget_dropped(self) -> None:
        """Queues whose tails are gone leave the session."""
        for queue_id in [queue_id for queue_id in self._queues if queue_id not in self._cache.tails]:
            del self._queues[queue_id]
            self._begun.pop(queue_id, None)
            self._ended[queue_id] = None
            self._news.set()

    def tell_takings(self) -> None:
        """Have the node told, with the session's next change, what clients were given."""
        self._takings_due = True
        self._news.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Hold a session as long as there are queues for it."""
        while self._queues:
            session = self._random.getrandbits(63)
            changing: asyncio.Task[None] | None = None
            stream = self._leaders.calls.stream(
                self._node_id, FOLLOW_TAILS, FollowTails(session), timeout_seconds=SESSION_SECONDS_MAX
            )
            try:
                async with aclosing(stream) as replies:
                    while True:
                        async with asyncio.timeout(SILENCE_SECONDS_MAX):
                            reply = await anext(replies)
                        if changing is None:
                            changing = asyncio.get_running_loop().create_task(self._change(session))
                        elif changing.done():
                            changing.result()
                        for found in slices_of(reply.message.slices, reply.buffers):
                            # copies: one small batch that stays must not keep a whole answer
                            self._cache.told(found._replace(batches=[bytes(batch) for batch in found.batches]))
            except (RpcError, TimeoutError, StopAsyncIteration) as error:
                log.info("node %d tells of its queues no more: %s", self._node_id, error or type(error).__name__)
            finally:
                if changing is not None:
                    changing.cancel()
                    await asyncio.gather(changing, return_exceptions=True)
                self._end()
            await asyncio.sleep(PAUSE_SECONDS)

    def _end(self) -> None:
        """The session is over: its tails go."""
        queues, self._queues = list(self._queues), {}
        self._begun.clear()
        self._ended.clear()
        for queue_id in queues:
            self._cache.drop(queue_id)

    async def _change(self, session: int) -> None:
        """Tell the node which queues the session is about, whenever that changes, and what clients were given."""
        while True:
            begun, ended = list(self._begun)[:QUEUES_MAX], list(self._ended)[:QUEUES_MAX]
            taken = self._takings.due(self._node_id) if self._takings_due else []
            self._takings_due = bool(taken)  # there may be more than a message takes
            if begun or ended or taken:
                for queue_id in begun:
                    del self._begun[queue_id]
                for queue_id in ended:
                    del self._ended[queue_id]
                change = ChangeTails(session, begun, ended, taken)
                await self._leaders.calls.call(self._node_id, CHANGE_TAILS, change, timeout_seconds=CHANGE_SECONDS_MAX)
                continue
            self._news.clear()
            await self._news.wait()


def slices_of(told: Sequence[SliceRead], attachment: Sequence[Buffer]) -> list[QueueSlice]:
    """Slices, whose batches are views of the attachment, as they came in one piece."""
    view = memoryview(attachment[0] if len(attachment) == 1 else b"".join(attachment))
    slices: list[QueueSlice] = []
    position = 0
    for one in told:
        batches: list[Buffer] = []
        for size in one.sizes:
            batches.append(view[position : position + size])
            position += size
        slices.append(QueueSlice(one.queue_id, one.outcome, batches, one.offsets, one.tier, one.next_offset))
    return slices
