"""A broker's appends to one write group: all of a turn travel as one message, and messages come to the leader in order.

    waiting     what was appended in this turn of the event loop; at its end, messages are cut from it
    queue       messages that wait for room among those under way
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
from typing import Any

from mainstem.model import AppendResult, Outcome
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.errors import CallFailed, NotServed, Overloaded, RpcError
from mainstem.rpc.messages.brokers import APPEND, AppendBatches, AppendPart
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
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
        self._refused: list[_Message] = []
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, pending: PendingPart) -> None:
        """Append these batches behind all that were added before."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._waiting.append(pending)

    async def close(self) -> None:
        """Appends under way are given up."""
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

    def _send(self) -> None:
        while self._queue and not self._refused and self._under_way < UNDER_WAY_MAX:
            self._under_way += 1
            self._begin(self._deliver(self._queue.popleft()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, message: _Message) -> None:
        leader = self._leaders.now(self._group)
        try:
            await self._ask(leader, message)
        except NoLeader:
            self._refused.append(message)
        except asyncio.CancelledError:
            self._end(message, Outcome.UNDECIDED, "the broker stops")
            raise
        except Exception as error:
            log.error("write group %d: an append failed unexpectedly", self._group, exc_info=error)
            self._end(message, Outcome.UNDECIDED, str(error))
        finally:
            self._under_way -= 1
        if self._refused:
            if not self._under_way:
                await self._send_again(leader)
        else:
            self._send()

    async def _ask(self, leader: LeaderAt, message: _Message) -> None:
        """Have a node append a message, and settle it. Raises `NoLeader` when nothing of it was appended."""
        if leader.node_id == -1:
            raise NoLeader(f"write group {self._group} has no leader")
        message.sent_to.append(leader)
        request = AppendBatches(self._group, [pending.part for pending in message.parts])
        try:
            reply = await self._leaders.calls.call(
                leader.node_id,
                APPEND,
                request,
                [pending.data for pending in message.parts],
                timeout_seconds=APPEND_SECONDS_MAX,
            )
        except (WriteGroupsNotLed, NotServed) as error:
            raise NoLeader(str(error)) from error
        except Overloaded as error:
            self._end(message, Outcome.STORAGE_BUSY, str(error))
        except CallFailed as error:
            self._end(message, Outcome.UNDECIDED, str(error))
        except RpcError as error:
            if never_arrived(error):
                raise NoLeader(str(error)) from error
            log.info("write group %d: node %d did not answer an append: %s", self._group, leader.node_id, error)
            self._end(message, Outcome.UNDECIDED, str(error))
        else:
            if reply.message.lacks_memory:
                self._lacks_memory(leader.node_id)
            for number, wait_ms in reply.message.waits:
                if number < len(message.parts) and (client := message.parts[number].part.client) is not None:
                    self._told_to_wait(client.principal, wait_ms / 1000)
            self._let_go(message.size)
            for pending, results in zip(message.parts, reply.message.parts, strict=True):
                pending.settle(results)

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
