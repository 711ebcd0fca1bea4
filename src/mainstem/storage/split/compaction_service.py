"""The compaction service answers a splitter that has nothing to split and nothing to merge: what to compact, and the
recording of what was compacted. It works as the merge service does, with the splitter's lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from mainstem.errors import MainstemError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.compact import (
    COMPACT_WORK,
    RECORD_COMPACTION,
    AskCompaction,
    CompactedFile,
    CompactionReply,
    CompactionWork,
    RecordCompaction,
)
from mainstem.rpc.messages.split import EarlierSplitter
from mainstem.rpc.wire.method import Reply
from mainstem.storage.split.compaction_log import OfferedPass
from mainstem.storage.split.earlier_splitters import ToldSplitters
from mainstem.storage.split.split_lease import SplitLease
from mainstem.supervised import Errands, Supervision


class CompactionLog(Protocol):
    """The queue store as compactions see it; implemented by the storage role."""

    async def work(self, in_force: Callable[[], bool], *, drain: bool, covers: bool, joins: bool) -> OfferedPass:
        """The work to compact next, held while `in_force`, or until it is recorded. Work that was given before, to
        merge or to compact, is given up. `covers`: whoever does it knows how to leave no batch of a covered topic
        out; `joins`: and queue segments of one file. Raises `EarlierSplitter` if all that there is takes the latter."""
        ...

    async def record(self, pass_id: str, files: Sequence[CompactedFile]) -> str:
        """Put these files in the place of the inputs: 'compacted', or 'refused: …'. Durable when it returns."""
        ...


class CompactionService:
    """The node's compaction service. `register` it with a server; `close` it after the server."""

    def __init__(
        self, log: CompactionLog, lease: SplitLease, turn: asyncio.Lock, supervision: Supervision | None = None
    ) -> None:
        """`turn`: held while work is chosen, the merge service's."""
        self._log = log
        self._lease = lease
        self._turn = turn
        self._told = ToldSplitters()
        self._recordings = Errands(supervision, "recording of a compaction", answers=(MainstemError,))

    def register(self, handlers: Handlers) -> None:
        handlers.unary(COMPACT_WORK, self._work)
        handlers.unary(RECORD_COMPACTION, self._record)

    async def close(self) -> None:
        """Wait for recordings that were begun."""
        await self._recordings.ended()

    async def _work(self, call: RpcCall[AskCompaction]) -> Reply[CompactionWork]:
        request = call.request
        async with self._turn:
            self._lease.check(request.lease)
            in_force = partial(self._lease.is_in_force, request.lease)
            try:
                offered = await self._log.work(
                    in_force, drain=request.drain, covers=request.covers, joins=request.joins
                )
            except EarlierSplitter as refusal:
                self._told.tell(refusal, request.lease, call.peer, drain=request.drain)
                return Reply(CompactionWork())
        return Reply(offered.work) if offered.queues is None else Reply(offered.work, offered.queues.tobytes())

    async def _record(self, call: RpcCall[RecordCompaction]) -> Reply[CompactionReply]:
        # A recording that has begun runs to its end, even when its caller hangs up: the caller will ask again.
        self._lease.check(call.request.lease)
        task = self._recordings.start(self._log.record(call.request.pass_id, call.request.files))
        return Reply(CompactionReply(await asyncio.shield(task)))
