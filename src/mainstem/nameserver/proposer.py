"""The leader's only writer: one change at a time is made, checked, logged, and applied before the next is looked at.

Nothing comes between a check and the change that rests on it: while this node serves as leader, all that was ever
committed is applied, and nobody else logs anything. A caller that goes away does not stop a change that was begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from mainstem.nameserver.changes import Made
from mainstem.nameserver.commands import LoggedChange, encode_change
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.log_format import PAYLOAD_BYTES_MAX
from mainstem.nameserver.replica import Outcome, Replica, refused


class NotLeading(NameserverError):
    """This node does not lead the metadata group; nothing was done."""


class Unsettled(NameserverError):
    """The leadership ended while a change was being logged: others may commit it, or not."""


class Group(Protocol):
    """What the writer needs of the Raft group."""

    @property
    def serves(self) -> bool: ...

    @property
    def term(self) -> int: ...

    def propose(self, payload: bytes) -> int:
        """The entry's index. Raises `NotLeading`, `MetadataUnavailable`."""
        ...


Make = Callable[[], Awaitable[Made]]


class _Waiting(NamedTuple):
    make: Make
    request: bytes
    done: asyncio.Future[Outcome]


class Proposer:
    """`run` is the task; `propose` for everybody else."""

    def __init__(self, group: Group, replica: Replica, now_ms: Callable[[], int], waiting_max: int) -> None:
        self.refused_count = 0
        self._group = group
        self._replica = replica
        self._now_ms = now_ms
        self._waiting_max = waiting_max
        self._queue: asyncio.Queue[_Waiting | None] = asyncio.Queue()  # bounded in `propose`
        self._closed: str | None = None
        self.ended = asyncio.Event()

    async def propose(self, make: Make, request: bytes) -> Outcome:
        """Make, check, log and apply. `request` is empty where nobody can ask again. Raises `NotLeading`,
        `Unsettled`, `MetadataUnavailable`, and what `make` raises."""
        if self._closed is not None:
            raise MetadataUnavailable(self._closed)
        if self._queue.qsize() >= self._waiting_max:
            raise MetadataUnavailable("too many changes of the metadata wait for the disk; try again")
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Waiting(make, request, done))
        return await done

    async def run(self) -> None:
        """Until `close`, or until a fault of our own."""
        try:
            while (waiting := await self._queue.get()) is not None:
                if not waiting.done.done():
                    await self._answer(waiting)
        finally:
            self.ended.set()
            self.refuse("the metadata takes no more changes")
            while not self._queue.empty():
                left = self._queue.get_nowait()
                if left is not None and not left.done.done():
                    left.done.set_exception(MetadataUnavailable(self._closed))

    def refuse(self, reason: str) -> None:
        """Take no more changes; those accepted are finished."""
        if self._closed is None:
            self._closed = reason
            self._queue.put_nowait(None)

    async def _answer(self, waiting: _Waiting) -> None:
        try:
            outcome = await self._propose(waiting)
        except Exception as error:
            self.refused_count += 1
            if not waiting.done.done():
                waiting.done.set_exception(error)
            if not isinstance(error, NameserverError):
                raise
        else:
            if not waiting.done.done():
                waiting.done.set_result(outcome)

    async def _propose(self, waiting: _Waiting) -> Outcome:
        group, replica = self._group, self._replica
        if not group.serves:
            raise NotLeading("this node does not lead the metadata group")
        if (outcome := replica.recall(waiting.request)) is not None:
            return outcome
        term = group.term
        made = await waiting.make()
        self.refused_count += len(made.refusals)
        if not made.commands:
            return refused(made.refusals)
        change = LoggedChange(
            made.commands, waiting.request, self._now_ms() if waiting.request else 0, made.refusals
        )
        payload = encode_change(change)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise NameserverError(f"a change of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
        if group.term != term:
            raise NotLeading("another term began while the change was made")
        return await replica.expect_index(group.propose(payload))
