"""Nodes hear, once and by user, what consumers get of the tails that they told a broker of."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest
from tests.fakes.clock import LoopClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.harness.patience import PATIENCE_SECONDS
from tests.kernel.fetch.fetch_world import asking, at, number_of
from tests.storage.small_node import new_batch

from mainstem import kernel
from mainstem.model import ForwardedClient, QueueRange, queue_id_of
from mainstem.ports import UnknownClients
from mainstem.protocol import codec
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.brokers import ChangeTails
from mainstem.rpc.messages.forwarded import CLIENTS_MAX, TEXT_LENGTH_MAX, ClientTook
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage.serving.tail_sessions import TailSessions
from mainstem.storage_link import tail_followers
from mainstem.storage_link.client_store import RemoteClientStore
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.storage_link.tail_takings import CLIENTS_KEPT_MAX, TailTakings

QUEUE = queue_id_of(1, 0)
AN, BO = ForwardedClient("User:an", "10.0.0.1", 7), ForwardedClient("User:bo", "10.0.0.2", 7)


class Counted(UnknownClients):
    """`ForwardedClients` that add up what clients took, and tell of each number that comes."""

    def __init__(self) -> None:
        self.taken_by: dict[str, int] = {}
        self.told = asyncio.Event()

    def took(self, client: ForwardedClient, size_bytes: int) -> None:
        self.taken_by[client.principal] = self.taken_by.get(client.principal, 0) + size_bytes
        self.told.set()


def plan_from(offset: int) -> kernel.FetchPlan:
    return kernel.scan_fetch(memoryview(codec.write(asking(12, (1, [at(0, offset, 1 << 20)])), 12)), 0, 12).plan


def begin(plan: kernel.FetchPlan) -> None:
    plan.begin(lambda key: kernel.PlannedTopic(number_of(key), 1), 1 << 20)


def test_storage_counts_what_consumers_get_of_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_followers, "TAKINGS_SECONDS", 0.02)

    async def scenario() -> None:
        clients, store = Counted(), MemoryStore(LoopClock())
        await store.create([QueueRange(1, 0, 1)])
        handlers, leadership = Handlers(), FakeLeadership(FakeMetadata(), store)
        BrokerService(store, store, leadership, clients, lacks_memory=lambda: False).register(handlers)
        TailSessions(store, leadership, clients).register(handlers)
        ends = [
            NodeEnd(Identity("c", node_id, bytes([node_id]) * 16), served, random=Random(node_id))
            for node_id, served in ((1, handlers), (2, Handlers()))
        ]
        ends[1].calls.know(1, "{}:{}".format(*await ends[0].start("127.0.0.1", 0)))
        leaders = LeaderCalls(ends[1].record_calls, lambda group: (1, 1))
        messages = RemoteMessageStore(1, lambda queue_id: 0, leaders, Random(1))
        running = asyncio.create_task(messages.run())

        batch = new_batch(QUEUE)
        size = len(batch.data)

        async def publish(end: int) -> None:
            """One more batch, which the tail has when this is over."""
            news = messages.wait({QUEUE: end}, 1, PATIENCE_SECONDS)
            await messages.append([batch], -1)
            await news

        messages.wait({QUEUE: 0}, 1, PATIENCE_SECONDS)  # so the tail begins
        while not (known := messages.offsets([QUEUE], lately=True)).done():
            await known
        await publish(0)
        for_an, for_bo = RemoteClientStore(messages, AN), RemoteClientStore(messages, BO)
        plan, other = plan_from(0), plan_from(0)
        for store_of, asked in ((for_an, plan), (for_bo, other), (messages, plan_from(0))):
            begin(asked)
            store_of.read_at_once(asked)
            assert asked.settled
            assert asked.bytes == size
        await publish(1)
        begin(plan)  # there was not enough for it: of two rounds of one request the last counts
        for_an.read_at_once(plan)
        assert plan.bytes == 2 * size
        while clients.taken_by != {"User:an": 2 * size, "User:bo": size}:
            assert clients.taken_by.get("User:an", 0) <= 2 * size
            clients.told.clear()
            await clients.told.wait()

        begin(again := plan_from(1))
        RemoteClientStore(messages, AN).read_at_once(again)
        while clients.taken_by != {"User:an": 3 * size, "User:bo": size}:
            clients.told.clear()
            await clients.told.wait()
        assert list(messages.takings.nodes()) == []
        running.cancel()
        await messages.close()
        for end in ends:
            await end.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_sums_are_bounded_told_in_parts_and_never_below_zero() -> None:
    takings = TailTakings()
    for number in range(CLIENTS_KEPT_MAX + 7):
        takings.add(1, f"User:{number}", 10)
    takings.add(1, "User:0", -10)  # a round that did not count
    takings.add(2, "User:an", -5)
    assert [sample.value for sample in takings.samples()] == [70]
    assert list(takings.nodes()) == [1]
    parts = []
    while part := takings.due(1):
        assert len(part) <= CLIENTS_MAX
        parts += part
    assert len(parts) == CLIENTS_KEPT_MAX - 1
    assert {one.size_bytes for one in parts} == {10}
    assert takings.due(2) == []
    takings.add(2, "User:an", 8)
    takings.add(2, 5_000 * "x", 1)
    assert takings.due(2) == [ClientTook("User:an", 3), ClientTook(TEXT_LENGTH_MAX * "x", 1)]


def test_nodes_of_the_version_before_understand_changes_of_sessions() -> None:
    class ChangeTailsBefore(msgspec.Struct, frozen=True):
        session: int
        begun: list[int] = []
        ended: list[int] = []

    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    now, before = ChangeTails(1, [2], [3], [ClientTook("User:an", 4)]), ChangeTailsBefore(1, [2], [3])
    assert decode(encode(now), type=ChangeTailsBefore) == before
    assert decode(encode(before), type=ChangeTails) == ChangeTails(1, [2], [3])
    assert decode(encode(now), type=ChangeTails) == now
