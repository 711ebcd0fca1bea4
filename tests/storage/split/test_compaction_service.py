"""Compactions as a splitter asks for them: work is given to the holder of the lease only, and recorded for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy
import pytest
from tests.fakes.clock import FakeClock
from tests.harness.handler_of import handler_of

from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.compact import (
    COMPACT_WORK,
    RECORD_COMPACTION,
    AskCompaction,
    CompactedFile,
    CompactionWork,
    RecordCompaction,
)
from mainstem.rpc.messages.split import EarlierSplitter, HeldLease, LeaseLost
from mainstem.storage.compacting.compact_plan import QUEUE_ROW
from mainstem.storage.split.compaction_log import OfferedPass
from mainstem.storage.split.compaction_service import CompactionService
from mainstem.storage.split.earlier_splitters import without_joined
from mainstem.storage.split.split_lease import LEASE_SECONDS, SplitLease


class OnePass:
    """`CompactionLog` with one pass to give."""

    def __init__(self) -> None:
        self.in_force: Callable[[], bool] = lambda: False
        self.covers: bool | None = None
        self.joined = False
        """Whether the pass has queue segments of one file."""
        self.recorded: list[tuple[str, Sequence[CompactedFile]]] = []
        self.queues = numpy.ones(2, QUEUE_ROW)

    async def work(self, in_force: Callable[[], bool], *, drain: bool, covers: bool, joins: bool) -> OfferedPass:
        self.in_force, self.covers = in_force, covers
        if self.joined and not joins:
            raise without_joined("compact", [0])
        return OfferedPass(CompactionWork(pass_id="a"), self.queues) if drain else OfferedPass(CompactionWork())

    async def record(self, pass_id: str, files: Sequence[CompactedFile]) -> str:
        self.recorded.append((pass_id, files))
        return "compacted"


def test_the_holder_of_the_lease_gets_work_for_as_long_as_it_holds_it() -> None:
    async def story() -> None:
        log, clock = OnePass(), FakeClock()
        lease = SplitLease(clock, 1, lambda: "lease")
        service = CompactionService(log, lease, asyncio.Lock())
        work, commit = handler_of(service, COMPACT_WORK), handler_of(service, RECORD_COMPACTION)
        granted = lease.acquire("splitter", yields=False)
        held = HeldLease(granted.lease_id, granted.epoch)
        reply = await work(RpcCall(AskCompaction(lease=held), b"", "splitter"))
        assert (reply.message.pass_id, b"".join(map(bytes, reply.buffers))) == ("", b"")
        assert log.covers is False, "one of an earlier version says nothing of it"
        reply = await work(RpcCall(AskCompaction(lease=held, drain=True, covers=True), b"", "splitter"))
        assert reply.message.pass_id == "a"
        assert log.covers is True
        assert b"".join(map(bytes, reply.buffers)) == log.queues.tobytes()
        assert log.in_force()
        done = RecordCompaction(lease=held, pass_id="a", files=(CompactedFile("x.pack", ()),))
        assert (await commit(RpcCall(done, b"", "splitter"))).message.outcome == "compacted"
        assert log.recorded == [("a", done.files)]
        log.joined = True
        for drain, told in ((False, True), (False, False), (True, True), (False, False)):
            with pytest.raises(EarlierSplitter) if told else nullcontext():
                reply = await work(RpcCall(AskCompaction(lease=held, drain=drain), b"", "splitter"))
                assert reply.message == CompactionWork()
        reply = await work(RpcCall(AskCompaction(lease=held, drain=True, joins=True), b"", "splitter"))
        assert reply.message.pass_id == "a"
        clock.advance(LEASE_SECONDS)
        assert not log.in_force()
        with pytest.raises(LeaseLost):
            await commit(RpcCall(done, b"", "splitter"))
        with pytest.raises(LeaseLost):
            await work(RpcCall(AskCompaction(lease=held), b"", "splitter"))
        assert len(log.recorded) == 1
        await service.close()

    asyncio.run(story())
