"""A broker's appends to one write group: all of a turn travel as one message, and messages come to the leader in order.

    waiting     what was appended in this turn of the event loop; at its end, messages are cut from it
    queue       messages that wait for room among those under way; those that are small leave as one
    under way   a few messages, so that the next one is sent while the one before becomes durable
    refused     messages whose node did not lead; nothing of them was appended

When a message is refused, the lane stops until nothing is under way any more; then what was refused goes to the next
leader, once, in its order, before anything else. A message whose answer is lost is not sent again: it may have been
appended, and only the producer's own sequence numbers can tell a repetition. Its batches are UNDECIDED.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from mainstem.model import AppendResult, Outcome
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.errors import CallFailed, NotServed, Overloaded, RpcError
from mainstem.rpc.messages.brokers import APPEND, AppendBatches, AppendPart, BatchesAppended
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
from mainstem.rpc.wire.method import Reply
from mainstem.storage_link.errors import NoLeader
from mainstem.storage_link.leader_calls import LeaderAt, LeaderCalls, never_arrived

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""A message takes no more batches when it has so many bytes: a quarter of a frame, so that a batch of any size that a
journal takes still fits."""

UNDER_WAY_MAX = 4
"""Messages of one lane that are not answered: one is written, one replicated, one on the wire in each direction."""

APPEND_SECONDS_MAX = 30.0
"""As long as clients wait for an answer by default."""

STOPS = "the broker stops"

Settle = Callable[[Sequence[AppendResult]], None]


class PendingPart:
    """The batches of one append that belong to one write group. `settle` is called once, with a result for each."""

    __slots__ = ("data", "part", "settle", "size")

    def __init__(self, part: AppendPart, data: bytes, settle: Settle) -> None:
        self.part = part
        self.data = data
        self.settle = settle
        self.size = len(data)

    def fail(self, outcome: Outcome, why: str | None = None) -> None:
        self.settle([AppendResult(outcome, message=why)] * len(self.part.batches))


class _Message:
    __slots__ = ("number", "parts", "sent_to", "size")

    def __init__(self, number: int, parts: list[PendingPart]) -> None:
        self.number = number
        self.parts = parts
        self.size = sum(pending.size for pending in parts)
        self.sent_to: list[LeaderAt] = []

    @property
    def data(self) -> list[bytes]:
        return [pending.data for pending in self.parts]

    def join(self, later: _Message) -> None:
        """Take in the parts of the message behind this one; neither was sent."""
        self.parts += later.parts
        self.size += later.size

    def fail(self, outcome: Outcome, why: str | None = None) -> None:
        for pending in self.parts:
            pending.fail(outcome, why)


class AppendLane:
    """The lane of one write group. `let_go` is told of bytes that the lane does not hold any more, `lacks_memory` of a
    node that says so in its answer, and `told_to_wait` of principals whose tenants are to bring nothing for so many
    seconds."""

    def __init__(
        self,
        group: int,
        leaders: LeaderCalls,
        let_go: Callable[[int], None],
        lacks_memory: Callable[[int], None],
        told_to_wait: Callable[[str, float], None],
    ) -> None:
        self._group = group
        self._leaders = leaders
        self._let_go = let_go
        self._lacks_memory = lacks_memory
        self._told_to_wait = told_to_wait
        self._waiting: list[PendingPart] = []
        self._queue: deque[_Message] = deque()
        self._under_way = 0
        self._sends_soon = False
        self._delivering = 0
        """Of these, the ones that tasks deliver: what comes next must not pass them."""
        self._refused: list[_Message] = []
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[PromptFuture[Reply[BatchesAppended]]] = set()
        """Answers that come without a task."""

    def add(self, pending: PendingPart) -> None:
        """Append these batches behind all that were added before."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._waiting.append(pending)

    async def close(self) -> None:
        """Appends under way are given up."""
        for answer in tuple(self._begun):
            answer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for message in (*self._refused, *self._queue):
            message.fail(Outcome.NOT_LEADER)
        for pending in self._waiting:
            pending.fail(Outcome.NOT_LEADER)
        self._refused, self._waiting = [], []
        self._queue.clear()

    def _end_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        parts: list[PendingPart] = []
        size = 0
        for pending in waiting:
            if parts and size + pending.size > MESSAGE_BYTES_MAX:
                self._cut(parts)
                parts, size = [], 0
            parts.append(pending)
            size += pending.size
        if parts:
            self._cut(parts)
        self._send()

    def _cut(self, parts: list[PendingPart]) -> None:
        self._numbers += 1
        self._queue.append(_Message(self._numbers, parts))

    def _send_soon(self) -> None:
        """Send in the next turn: answers come several at a time, and so do appends, which then leave together."""
        if not self._sends_soon and self._queue:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._sends_soon = False
        while self._queue and not self._refused and self._under_way < UNDER_WAY_MAX:
            self._under_way += 1
            message, leader = self._next(), self._leaders.now(self._group)
            try:
                begun = self._asked_at_once(leader, message)
            except Exception as error:
                self._under_way -= 1
                self._settle(message, leader, error)
                if self._refused and not self._under_way:
                    self._begin(self._send_again(leader))
                continue
            if begun is None:
                self._delivering += 1
                self._begin(self._deliver(message, leader))
            else:
                self._begun.add(begun)
                begun.add_done_callback(partial(self._answered, message, leader))

    def _next(self) -> _Message:
        """The next message, with those behind it that waited as well, as far as they fit."""
        message = self._queue.popleft()
        while self._queue and not message.sent_to and not self._queue[0].sent_to:
            if message.size + self._queue[0].size > MESSAGE_BYTES_MAX:
                break
            message.join(self._queue.popleft())
        return message

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _asked_at_once(self, leader: LeaderAt, message: _Message) -> PromptFuture[Reply[BatchesAppended]] | None:
        """Have a node append a message. None: nobody was asked, and nobody can be without a task. Raises `NoLeader`."""
        if leader.node_id == -1:
            raise NoLeader(f"write group {self._group} has no leader")
        if self._delivering:
            return None
        begun = self._leaders.calls.begin(
            leader.node_id, APPEND, self._request(message), message.data, timeout_seconds=APPEND_SECONDS_MAX
        )
        if begun is not None:
            message.sent_to.append(leader)
        return begun

    def _request(self, message: _Message) -> AppendBatches:
        return AppendBatches(self._group, [pending.part for pending in message.parts])

    def _answered(self, message: _Message, leader: LeaderAt, begun: PromptFuture[Reply[BatchesAppended]]) -> None:
        self._begun.discard(begun)
        try:
            reply: Reply[BatchesAppended] | Exception = begun.result()
        except asyncio.CancelledError:
            self._end(message, Outcome.UNDECIDED, STOPS)
            return
        except Exception as error:
            reply = error
        self._over(message, leader, reply)

    async def _deliver(self, message: _Message, leader: LeaderAt) -> None:
        message.sent_to.append(leader)
        try:
            reply: Reply[BatchesAppended] | Exception = await self._leaders.calls.call(
                leader.node_id, APPEND, self._request(message), message.data, timeout_seconds=APPEND_SECONDS_MAX
            )
        except asyncio.CancelledError:
            self._end(message, Outcome.UNDECIDED, STOPS)
            raise
        except Exception as error:
            reply = error
        self._delivering -= 1
        self._over(message, leader, reply)

    def _over(self, message: _Message, leader: LeaderAt, reply: Reply[BatchesAppended] | Exception) -> None:
        self._under_way -= 1
        self._settle(message, leader, reply)
        if not self._refused:
            self._send_soon()
        elif not self._under_way:
            self._begin(self._send_again(leader))

    def _settle(self, message: _Message, leader: LeaderAt, reply: Reply[BatchesAppended] | Exception) -> None:
        """Settle a message, or take it for refused when nothing of it was appended."""
        if isinstance(reply, Reply) and len(reply.message.parts) != len(message.parts):
            reply = ValueError(f"{len(reply.message.parts)} results of {len(message.parts)} appends")
        if isinstance(reply, Reply):
            if reply.message.lacks_memory:
                self._lacks_memory(leader.node_id)
            for number, wait_ms in reply.message.waits:
                if number < len(message.parts) and (client := message.parts[number].part.client) is not None:
                    self._told_to_wait(client.principal, wait_ms / 1000)
            self._let_go(message.size)
            for pending, results in zip(message.parts, reply.message.parts, strict=True):
                pending.settle(results)
        elif isinstance(reply, (NoLeader, WriteGroupsNotLed, NotServed)) or (
            isinstance(reply, RpcError) and never_arrived(reply)
        ):
            self._refused.append(message)
        elif isinstance(reply, Overloaded):
            self._end(message, Outcome.STORAGE_BUSY, str(reply))
        else:
            if not isinstance(reply, RpcError):
                log.error("write group %d: an append failed unexpectedly", self._group, exc_info=reply)
            elif not isinstance(reply, CallFailed):
                log.info("write group %d: node %d did not answer an append: %s", self._group, leader.node_id, reply)
            self._end(message, Outcome.UNDECIDED, str(reply))

    def _end(self, message: _Message, outcome: Outcome, why: str | None = None) -> None:
        self._let_go(message.size)
        message.fail(outcome, why)

    async def _send_again(self, refused_by: LeaderAt) -> None:
        """Nothing is under way: what was refused goes to the next leader, in its order; what was refused twice goes
        back to its producers."""
        try:
            await self._leaders.moved(self._group, refused_by)
        except NoLeader as error:
            given_up, self._refused = self._refused, []
            for message in given_up:
                self._end(message, Outcome.NOT_LEADER, str(error))
        else:
            refused, self._refused = sorted(self._refused, key=lambda message: message.number), []
            for message in refused:
                if len(message.sent_to) >= 2:
                    self._end(message, Outcome.NOT_LEADER)
            self._queue.extendleft(message for message in reversed(refused) if len(message.sent_to) < 2)
        self._send()


class AppendTicket(PromptFuture[list[AppendResult]]):
    """An append whose batches went to several lanes: settled when the last of them is."""

    __slots__ = ("_left", "_results")

    def __init__(self, count: int) -> None:
        super().__init__()
        self._results: list[AppendResult] = [AppendResult(Outcome.UNDECIDED)] * count
        self._left = 1

    def expect(self, places: Sequence[int]) -> Settle:
        """The results at these places will come together."""
        self._left += 1

        def settle(results: Sequence[AppendResult]) -> None:
            for place, result in zip(places, results, strict=True):
                self._results[place] = result
            self.one_settled()

        return settle

    def one_settled(self) -> None:
        self._left -= 1
        if not self._left and not self.done():
            self.set_result(self._results)
