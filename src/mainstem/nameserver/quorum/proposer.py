"""The leader's only writer: it makes, checks, logs and applies one change before it looks at the next.

Nothing comes between a check and the change that rests on it: while this node serves as leader, all that was ever
committed is applied, and no other node logs entries. A caller that goes away does not stop a change that was begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from mainstem.nameserver.disk.log_format import PAYLOAD_BYTES_MAX
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.state.changes import Made
from mainstem.nameserver.state.commands import LoggedChange, encode_change
from mainstem.nameserver.state.replica import ChangeOutcome, MetadataReplica, refused

log = logging.getLogger(__name__)


class NotLeading(NameserverError):
    """This node does not lead the metadata quorum; nothing was done."""


class Unsettled(NameserverError):
    """The leadership ended while a change was being logged: other nodes may commit it, or not."""


class ProposingQuorum(Protocol):
    """The writer's view of the Raft group."""

    @property
    def serves(self) -> bool: ...

    @property
    def term(self) -> int: ...

    def propose(self, payload: bytes) -> int:
        """Returns the entry's index. Raises `NotLeading`, `MetadataUnavailable`."""
        ...


Make = Callable[[], Awaitable[Made]]


class _Waiting(NamedTuple):
    make: Make
    request: bytes
    done: asyncio.Future[ChangeOutcome]


class Proposer:
    """Holds the queue of changes. `run` is the one task that works on it; callers use `propose`."""

    def __init__(
        self, group: ProposingQuorum, replica: MetadataReplica, now_ms: Callable[[], int], waiting_max: int
    ) -> None:
        self.refused_count = 0
        self._group = group
        self._replica = replica
        self._now_ms = now_ms
        self._waiting_max = waiting_max
        self._queue: asyncio.Queue[_Waiting | None] = asyncio.Queue()  # bounded in `propose`
        self._closed: str | None = None
        self.ended = asyncio.Event()

    async def propose(self, make: Make, request: bytes) -> ChangeOutcome:
        """Make, check, log and apply a change. `request` is empty where no caller can ask again. Raises
        `NotLeading`, `Unsettled`, `MetadataUnavailable`, and whatever `make` raises."""
        if self._closed is not None:
            raise MetadataUnavailable(self._closed)
        if self._queue.qsize() >= self._waiting_max:
            raise MetadataUnavailable("too many changes of the metadata wait for the disk; try again")
        done: asyncio.Future[ChangeOutcome] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Waiting(make, request, done))
        return await done

    async def run(self) -> None:
        """Work until `refuse`. A fault of this program in one change fails that change alone."""
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
        """Take no more changes; accepted ones are finished."""
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
            if not isinstance(error, NameserverError):  # this program's fault, in this change: no state has changed yet
                log.error("a change of the metadata could not be made", exc_info=error)
        else:
            if not waiting.done.done():
                waiting.done.set_result(outcome)

    async def _propose(self, waiting: _Waiting) -> ChangeOutcome:
        group, replica = self._group, self._replica
        if not group.serves:
            raise NotLeading("this node does not lead the metadata quorum")
        if (outcome := replica.recall(waiting.request)) is not None:
            return outcome
        term = group.term
        made = await waiting.make()
        self.refused_count += len(made.refusals)
        if not made.commands:
            return refused(made.refusals)
        change = LoggedChange(made.commands, waiting.request, self._now_ms() if waiting.request else 0, made.refusals)
        payload = encode_change(change)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise NameserverError(f"a change of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
        if group.term != term:
            raise NotLeading("another term began while the change was made")
        outcome = await replica.expect_index(group.propose(payload))
        if made.logged is not None:
            made.logged()
        return outcome
