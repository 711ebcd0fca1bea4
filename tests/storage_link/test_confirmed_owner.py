"""A broker without storage confirms a coordinator once it knows of the metadata what the write group's leader knows."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
from tests.fakes.clock import LoopClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.model import QueueRange, queue_id_of
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.brokers import Owned
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.remote_queues import RemoteQueueAdmin

QUEUE = queue_id_of(1, 0)


def test_an_owner_is_confirmed_behind_what_the_leader_knows_of_the_metadata() -> None:
    async def scenario() -> None:
        store, handlers = MemoryStore(LoopClock()), Handlers()
        await store.create([QueueRange(1, 0, 1)])
        leadership = FakeLeadership(FakeMetadata(), store)
        BrokerService(store, store, leadership, lacks_memory=lambda: False, metadata_index=lambda: applied).register(
            handlers
        )
        ends = [
            NodeEnd(Identity("c", node_id, bytes([node_id]) * 16), served, random=Random(node_id))
            for node_id, served in ((1, handlers), (2, Handlers()))
        ]
        ends[1].calls.know(1, "{}:{}".format(*await ends[0].start("127.0.0.1", 0)))
        waited: list[int] = []
        heard = asyncio.Event()

        async def followed(index: int) -> None:
            waited.append(index)
            await heard.wait()

        queues = RemoteQueueAdmin(
            1, lambda queue_id: 0, LeaderCalls(ends[1].record_calls, lambda group: (1, 1)), followed
        )
        applied = 7
        epoch = await queues.own(QUEUE)
        assert waited == [], "a log is read before anything is told from it"
        applied = 8
        confirming = asyncio.create_task(queues.own(QUEUE, held=epoch))
        while not waited:  # noqa: ASYNC110  # the call goes over a socket
            await asyncio.sleep(0.001)
        assert waited == [8]
        assert not confirming.done()
        heard.set()
        assert await confirming == epoch
        for end in ends:
            await end.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_a_leader_of_the_version_before_names_no_entry() -> None:
    class OwnedBefore(msgspec.Struct, frozen=True):
        epoch: int

    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    assert decode(encode(OwnedBefore(3)), type=Owned) == Owned(3, 0)
    assert decode(encode(Owned(3, 9)), type=OwnedBefore) == OwnedBefore(3)
