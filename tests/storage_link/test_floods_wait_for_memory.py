"""A leader whose journal lacks memory has brokers apart from it hold back those of their producers that can wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import msgspec
from tests.fakes.clock import LoopClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.small_node import new_batch

from mainstem.broker.dispatch.dispatcher import SHARED_BACKLOG_PART
from mainstem.model import AppendResult, Outcome, QueueRange, queue_id_of
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.brokers import BatchesAppended
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.remote_message_store import RemoteMessageStore

QUEUE = queue_id_of(1, 0)
LEADER, BROKER = 1, 2


class Apart:
    """A broker, and a leader that lacks memory when a test says so."""

    def __init__(self, leader: NodeEnd, broker: NodeEnd) -> None:
        self.lacks_memory = False
        self.leader = leader
        self.store = RemoteMessageStore(
            1, lambda queue_id: 0, LeaderCalls(broker.record_calls, lambda group: (LEADER, 1)), Random(1)
        )

    async def append(self) -> None:
        (result,) = await self.store.append([new_batch(QUEUE)], -1)
        assert result.outcome is Outcome.OK

    def lets_floods_in(self) -> bool:
        """As the dispatcher asks for producers that bring much, while tenants share the node."""
        return self.store.has_room(SHARED_BACKLOG_PART)

    async def floods_are_let_in(self) -> None:
        while not self.lets_floods_in():  # noqa: ASYNC110  # nobody is told
            await asyncio.sleep(0.001)


def told(story: Callable[[Apart], Awaitable[None]]) -> None:
    async def run() -> None:
        store, handlers = MemoryStore(LoopClock()), Handlers()
        await store.create([QueueRange(1, 0, 1)])
        ends = [
            NodeEnd(Identity("c", node_id, bytes([node_id]) * 16), served, random=Random(node_id))
            for node_id, served in ((LEADER, handlers), (BROKER, Handlers()))
        ]
        apart = Apart(*ends)
        leadership = FakeLeadership(FakeMetadata(), store)
        BrokerService(store, store, leadership, lacks_memory=lambda: apart.lacks_memory).register(handlers)
        ends[1].calls.know(LEADER, "{}:{}".format(*await ends[0].start("127.0.0.1", 0)))
        try:
            await story(apart)
        finally:
            await apart.store.close()
            for end in ends:
                await end.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_producers_that_bring_much_wait_until_the_leader_has_memory() -> None:
    async def story(apart: Apart) -> None:
        await apart.append()
        assert apart.lets_floods_in()
        for _ in range(2):
            apart.lacks_memory = True
            await apart.append()
            assert not apart.lets_floods_in()
            assert apart.store.has_room(), "who brings little does not wait"
            await apart.append()
            assert not apart.lets_floods_in()
            apart.lacks_memory = False
            await apart.floods_are_let_in()

    told(story)


def test_nobody_waits_for_the_memory_of_a_leader_that_is_gone() -> None:
    async def story(apart: Apart) -> None:
        apart.lacks_memory = True
        await apart.append()
        assert not apart.lets_floods_in()
        await apart.leader.close()
        await apart.floods_are_let_in()

    told(story)


def test_a_leader_of_the_version_before_lacks_no_memory() -> None:
    class BatchesAppendedBefore(msgspec.Struct, frozen=True):
        parts: list[list[AppendResult]]

    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    results = [[AppendResult(Outcome.OK, 0)]]
    assert decode(encode(BatchesAppendedBefore(results)), type=BatchesAppended) == BatchesAppended(results)
    assert decode(encode(BatchesAppended(results, True)), type=BatchesAppendedBefore) == BatchesAppendedBefore(results)
