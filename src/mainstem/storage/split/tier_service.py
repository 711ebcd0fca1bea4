"""The tier service answers a splitter that has nothing to split and nothing to merge: which files to upload to the
remote tier, and the recording of what was uploaded. It works as the merge service does, with the splitter's lease.
It also takes the names that tasks are about to write to a shared store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from mainstem.errors import MainstemError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.tier import (
    INTEND_FILES,
    RECORD_TIER,
    TIER_WORK,
    AskTier,
    IntendFiles,
    IntendReply,
    RecordTier,
    TierReply,
    TierWork,
)
from mainstem.rpc.wire.method import Reply
from mainstem.storage.split.split_lease import SplitLease
from mainstem.supervised import Errands, Supervision

INTENDED_MAX = 1_000
"""Names in one call: some hundred kilobytes of the log."""


class TierLog(Protocol):
    """The queue store and the remote tier as uploads see them; implemented by the storage role."""

    async def work(self, in_force: Callable[[], bool], *, drain: bool, joins: bool) -> TierWork:
        """The work to upload next, held while `in_force`, or until it is recorded. Work that was given before, to
        merge, to compact or to upload, is given up. `joins`: whoever asks can upload a queue segment as one object."""
        ...

    async def record(self, tier_id: str, names: Sequence[str], failure: str) -> str:
        """Take in what was uploaded: 'recorded', 'kept' or 'refused: …'. Durable when it returns 'recorded'."""
        ...

    async def intend(self, group: int, names: Sequence[str]) -> str:
        """Have the log of a write group say that files of these names are about to be written to a shared store.
        Returns why they may not; empty: it says so, durably."""
        ...


class TierService:
    """The node's tier service. `register` it with a server; `close` it after the server."""

    def __init__(
        self, log: TierLog, lease: SplitLease, turn: asyncio.Lock, supervision: Supervision | None = None
    ) -> None:
        """`turn`: held while work is chosen, the merge service's."""
        self._log = log
        self._lease = lease
        self._turn = turn
        self._recordings = Errands(supervision, "recording of an upload", answers=(MainstemError,))

    def register(self, handlers: Handlers) -> None:
        handlers.unary(TIER_WORK, self._work)
        handlers.unary(RECORD_TIER, self._record)
        handlers.unary(INTEND_FILES, self._intend)

    async def close(self) -> None:
        """Wait for recordings that were begun."""
        await self._recordings.ended()

    async def _work(self, call: RpcCall[AskTier]) -> Reply[TierWork]:
        request = call.request
        async with self._turn:
            self._lease.check(request.lease)
            in_force = partial(self._lease.is_in_force, request.lease)
            return Reply(await self._log.work(in_force, drain=request.drain, joins=request.joins))

    async def _record(self, call: RpcCall[RecordTier]) -> Reply[TierReply]:
        # A recording that has begun runs to its end, even when its caller hangs up: the caller will ask again.
        request = call.request
        self._lease.check(request.lease)
        task = self._recordings.start(self._log.record(request.tier_id, request.names, request.failure))
        return Reply(TierReply(await asyncio.shield(task)))

    async def _intend(self, call: RpcCall[IntendFiles]) -> Reply[IntendReply]:
        # Tasks have no lease: a name that comes to nothing is deleted in its time.
        request = call.request
        if len(request.names) > INTENDED_MAX:
            return Reply(IntendReply(f"{len(request.names)} names in one call, {INTENDED_MAX} is the most"))
        task = self._recordings.start(self._log.intend(request.group, request.names))
        return Reply(IntendReply(await asyncio.shield(task)))
