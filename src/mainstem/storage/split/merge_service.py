"""The merge service answers a splitter that has nothing to split: what to merge, which offsets to keep, and the
recording of what was merged.

It has the splitter's lease: work is given to its holder only, and is held for as long as the lease is in force. The
recording checks for itself that the inputs still count, so one that has begun runs to its end, whoever has the lease
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy

from mainstem.errors import MainstemError
from mainstem.kernel import crc32c
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.merge import (
    MERGE_DAMAGED,
    MERGE_LIVE,
    MERGE_WORK,
    RECORD_MERGE,
    AskLive,
    AskMerge,
    LiveReply,
    MergeDamage,
    MergeReply,
    MergeWork,
    RecordMerge,
)
from mainstem.rpc.messages.split import EarlierSplitter, FileDescription
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.queue_store.changes.merge_facts import LiveBounds
from mainstem.storage.split.earlier_splitters import ToldSplitters
from mainstem.storage.split.split_lease import SplitLease
from mainstem.supervised import Errands, Supervision

QUEUES_MAX = 1 << 17
"""Queues of one question: an answer of 2 MiB, and some milliseconds of the event loop if all of them were deleted."""


class MergeLog(Protocol):
    """The queue store as merges see it; implemented by the storage role."""

    async def work(self, in_force: Callable[[], bool], kept: Sequence[str], *, drain: bool, joins: bool) -> MergeWork:
        """The work to merge next, held while `in_force`, or until it is recorded. Work that was given before is given
        up, except for `kept`. `joins`: whoever does it knows queue segments of one file. Raises `EarlierSplitter` if
        all that there is takes that."""
        ...

    async def live(self, merge_id: str, queue_ids: QueueIds) -> LiveBounds:
        """Which offsets of these queues the merge keeps. Raises `MergeGone`."""
        ...

    async def record(self, merge_id: str, files: Sequence[FileDescription]) -> str:
        """Put these files in the place of the inputs: 'merged', or 'refused: …'. Durable when it returns."""
        ...

    def damaged(self, merge_id: str, name: str, reason: str) -> None:
        """Note an input that cannot be read. Raises `MergeGone`."""
        ...


class MergeService:
    """The node's merge service. `register` it with a server; `close` it after the server."""

    def __init__(self, log: MergeLog, lease: SplitLease, supervision: Supervision | None = None) -> None:
        self._log = log
        self._lease = lease
        self._told = ToldSplitters()
        self.turn = asyncio.Lock()
        """Held while work is chosen: one answer at a time."""
        self._recordings = Errands(supervision, "recording of a merge", answers=(MainstemError,))

    def register(self, handlers: Handlers) -> None:
        handlers.unary(MERGE_WORK, self._work)
        handlers.unary(MERGE_LIVE, self._live)
        handlers.unary(RECORD_MERGE, self._record)
        handlers.unary(MERGE_DAMAGED, self._damaged)

    async def close(self) -> None:
        """Wait for recordings that were begun."""
        await self._recordings.ended()

    async def _work(self, call: RpcCall[AskMerge]) -> Reply[MergeWork]:
        request = call.request
        async with self.turn:
            self._lease.check(request.lease)
            in_force = partial(self._lease.is_in_force, request.lease)
            try:
                work = await self._log.work(in_force, request.kept, drain=request.drain, joins=request.joins)
            except EarlierSplitter as refusal:
                self._told.tell(refusal, request.lease, call.peer, drain=request.drain)
                return Reply(MergeWork())
        return Reply(work)

    async def _live(self, call: RpcCall[AskLive]) -> Reply[LiveReply]:
        queue_ids = numpy.frombuffer(bytes(call.attachment), "<u8")
        if len(queue_ids) > QUEUES_MAX:
            raise ValueError(f"{len(queue_ids)} queues in one question, {QUEUES_MAX} is the most")
        found = await self._log.live(call.request.merge_id, queue_ids)
        content = found.starts.astype("<i8").tobytes() + found.ends.astype("<i8").tobytes()
        content += found.gaps.packed()
        return Reply(LiveReply(crc32c(content), len(found.gaps.queue_ids)), content)

    async def _record(self, call: RpcCall[RecordMerge]) -> Reply[MergeReply]:
        # A recording that has begun runs to its end, even when its caller hangs up: the caller will ask again.
        self._lease.check(call.request.lease)
        task = self._recordings.start(self._log.record(call.request.merge_id, call.request.files))
        return Reply(MergeReply(await asyncio.shield(task)))

    async def _damaged(self, call: RpcCall[MergeDamage]) -> Reply[Nothing]:
        request = call.request
        self._log.damaged(request.merge_id, request.name, request.reason)
        return Reply(Nothing())
