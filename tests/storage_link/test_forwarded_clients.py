"""For which clients brokers ask storage: it is told, counts it, and refuses what was judged by old rules."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
from tests.fakes.clock import LoopClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.small_node import new_batch

from mainstem.acted_for import acted_for, acting_for
from mainstem.model import ForwardedClient, Outcome, QueueRange, QueueRead, queue_id_of
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.brokers import AppendedBatch, AppendPart
from mainstem.rpc.messages.forwarded import TEXT_LENGTH_MAX, ClientTold, client_told
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage_link.client_store import RemoteClientStore
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.storage_link.remote_queues import RemoteQueueAdmin

QUEUE = queue_id_of(1, 0)
AN, BO = ForwardedClient("User:an", "10.0.0.1", 7), ForwardedClient("User:bo", "10.0.0.2", 3)


class Clients:
    """`ForwardedClients` that refuse what was judged before 5, and remember what they are told."""

    def __init__(self) -> None:
        self.brought_by: dict[ForwardedClient, int] = {}
        self.taken_by: dict[ForwardedClient, int] = {}
        self.changes: list[tuple[str, int, str, str | None]] = []
        self.waits_seconds = 0.0
        """For so long whoever brings batches is to bring no more."""

    def refusal(self, client: ForwardedClient) -> str | None:
        return "judged by old rules" if client.judged_at < 5 else None

    def brought(self, client: ForwardedClient, size_bytes: int) -> float:
        self.brought_by[client] = self.brought_by.get(client, 0) + size_bytes
        return self.waits_seconds

    def took(self, client: ForwardedClient, size_bytes: int) -> None:
        self.taken_by[client] = self.taken_by.get(client, 0) + size_bytes

    def changed(self, client: ForwardedClient, node_id: int, what: str, refusal: str | None) -> None:
        self.changes.append((client.principal, node_id, what, refusal))


def test_storage_counts_for_whom_brokers_ask_and_refuses_what_old_rules_allowed() -> None:
    async def scenario() -> None:
        clients, store = Clients(), MemoryStore(LoopClock())
        await store.create([QueueRange(1, 0, 1)])
        handlers = Handlers()
        leadership = FakeLeadership(FakeMetadata(), store)
        BrokerService(store, store, leadership, clients, lacks_memory=lambda: False).register(handlers)
        ends = [
            NodeEnd(Identity("c", node_id, bytes([node_id]) * 16), served, random=Random(node_id))
            for node_id, served in ((1, handlers), (2, Handlers()))
        ]
        ends[1].calls.know(1, "{}:{}".format(*await ends[0].start("127.0.0.1", 0)))
        leaders = LeaderCalls(ends[1].record_calls, lambda group: (1, 1))
        messages = RemoteMessageStore(1, lambda queue_id: 0, leaders, Random(1))
        queues = RemoteQueueAdmin(1, lambda queue_id: 0, leaders)
        for_an, for_bo = (RemoteClientStore(messages, client) for client in (AN, BO))

        batch = new_batch(QUEUE)
        size = len(batch.data)
        both = await asyncio.gather(*(it.append([batch], -1) for it in (for_an, for_bo, for_an, messages)))
        assert [result.outcome for (result,) in both] == [
            Outcome.OK, Outcome.STORAGE_BUSY, Outcome.OK, Outcome.OK,
        ]  # fmt: skip
        (refused,) = both[1]
        assert refused.message == "judged by old rules"
        assert len(store.queues[QUEUE].batches) == 3  # of four
        assert clients.brought_by == {AN: 2 * size}

        waits: list[tuple[str, float]] = []
        messages.told_to_wait = lambda principal, seconds: waits.append((principal, seconds))
        await for_an.append([batch], -1)
        assert not waits
        clients.waits_seconds = 1.5
        for store_of_client in (messages, for_bo, for_an):
            await store_of_client.append([batch], -1)
        assert waits == [("User:an", 1.5)]
        clients.waits_seconds = 0.0
        await for_an.append([batch], -1)
        assert len(waits) == 1

        read = QueueRead(QUEUE, 0, 1 << 20)
        (found,) = await messages.read([read], 1 << 20, client=AN)
        assert len(found.batches) == 7
        (found,) = await messages.read([read], 1 << 20, client=BO)
        assert (found.outcome, found.batches) == (Outcome.NOT_LEADER, [])
        (found,) = await messages.read([read], 1 << 20)
        assert len(found.batches) == 7
        assert clients.taken_by == {AN: 7 * size}

        with acting_for(BO):
            answers = await queues.truncate({QUEUE: 1})
        assert "judged by old rules" in str(answers[QUEUE])
        with acting_for(AN):
            assert await queues.truncate({QUEUE: 1}) == {QUEUE: 1}
        assert await queues.truncate({QUEUE: 2}) == {QUEUE: 2}
        assert clients.changes == [
            ("User:bo", 2, "DeleteRecords", "judged by old rules"),
            ("User:an", 2, "DeleteRecords", None),
        ]
        await messages.close()
        for end in ends:
            await end.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_nodes_of_the_version_before_understand_each_other() -> None:
    class AppendPartBefore(msgspec.Struct, frozen=True, array_like=True):
        acks: int
        copies_min: int
        owner_epoch: int | None
        batches: list[AppendedBatch]

    told = client_told(AN)
    now = AppendPart(-1, 0, None, [], told)
    before = AppendPartBefore(-1, 0, None, [])
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    assert decode(encode(now), type=AppendPartBefore) == before
    assert decode(encode(before), type=AppendPart) == AppendPart(-1, 0, None, [])
    assert decode(encode(now), type=AppendPart) == now
    assert len(encode(now)) - len(encode(before)) < 30


def test_a_principal_of_any_length_passes() -> None:
    told = client_told(ForwardedClient("User:" + 5_000 * "a", "10.0.0.1"))
    assert told is not None
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=ClientTold)
    assert again == told
    assert len(again.principal) == TEXT_LENGTH_MAX


def test_a_task_acts_for_a_client_until_the_request_ends() -> None:
    async def scenario() -> None:
        ended = asyncio.Event()

        async def longer() -> tuple[ForwardedClient | None, ForwardedClient | None]:
            during = acted_for()
            await ended.wait()
            return during, acted_for()

        assert acted_for() is None
        with acting_for(AN):
            task = asyncio.create_task(longer())
            await asyncio.sleep(0)
            assert acted_for() == AN
        ended.set()
        assert acted_for() is None
        assert await task == (AN, None)

    asyncio.run(scenario())
