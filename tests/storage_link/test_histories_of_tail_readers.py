"""Readers that say which leader epoch they read last are compared with what a leader tells of its queues: it is asked
about an epoch only where that leaves something open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from random import Random

from tests.broker.fetching.test_fetch import Ask, append, ask, parts, request_for
from tests.broker.harness import batch, make_broker
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.model import Buffer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.brokers import EPOCH_END, OFFSETS
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.other_nodes import CallsWithBytes
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage.serving.tail_sessions import TailSessions
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.storage_link.remote_queues import RemoteQueueAdmin


class NotedCalls:
    """`CallsWithBytes` that notes which methods are called."""

    def __init__(self, calls: CallsWithBytes) -> None:
        self._calls = calls
        self.methods: list[str] = []

    async def call(
        self,
        node_id: int,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[ReplyT]:
        self.methods.append(method.name)
        return await self._calls.call(node_id, method, request, attachment, timeout_seconds=timeout_seconds)

    def stream(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> AsyncIterator[Reply[ReplyT]]:
        return self._calls.stream(node_id, method, request, timeout_seconds=timeout_seconds)

    def taken(self) -> list[str]:
        methods, self.methods = self.methods, []
        return methods


def test_a_hundred_readers_of_the_present_epoch_ask_the_leader_nothing() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        queue_id = topic.queue_id(0)
        handlers = Handlers()
        BrokerService(fakes.store, fakes.store, fakes.leadership).register(handlers)
        TailSessions(fakes.store, fakes.leadership).register(handlers)
        async with AsyncExitStack() as stack:
            ends = [
                NodeEnd(Identity("c", node_id, bytes([node_id]) * 16), served, random=Random(node_id))
                for node_id, served in ((1, handlers), (2, Handlers()))
            ]
            for end in ends:
                stack.push_async_callback(end.close)
            ends[1].calls.know(1, "{}:{}".format(*await ends[0].start("127.0.0.1", 0)))
            noted = NotedCalls(ends[1].record_calls)
            leaders = LeaderCalls(noted, lambda group: (1, 1))
            messages = RemoteMessageStore(1, lambda queue_id: 0, leaders, Random(1))
            stack.push_async_callback(messages.close)
            fakes.broker.store, fakes.broker.queue_admin = messages, RemoteQueueAdmin(1, lambda queue_id: 0, leaders)

            await append(fakes, topic, 0, batch(b"a"))
            reader = request_for(topic, Ask(0, 1, last_fetched_epoch=0))
            assert parts(await ask(fakes, reader))[0].diverging_epoch.epoch == -1
            assert noted.taken()[:1] == [OFFSETS.name], "nobody tells this broker of the queue yet"

            await messages.wait({queue_id: 0}, 1, PATIENCE_SECONDS)
            noted.taken()
            for part in [parts(await ask(fakes, reader))[0] for _ in range(100)]:
                assert (part.error_code, part.diverging_epoch.epoch) == (ErrorCode.NONE, -1)
                assert part.high_watermark == 1
            assert noted.taken() == []

            fakes.store.leader_epoch = 2
            news = messages.wait({queue_id: 1}, 1, PATIENCE_SECONDS)
            await append(fakes, topic, 0, batch(b"b"))
            await news
            noted.taken()
            left = parts(await ask(fakes, request_for(topic, Ask(0, 2, last_fetched_epoch=1))))[0].diverging_epoch
            assert (left.epoch, left.end_offset) == (0, 1)
            assert noted.taken() == [EPOCH_END.name]
            left = parts(await ask(fakes, request_for(topic, Ask(0, 3, last_fetched_epoch=2))))[0].diverging_epoch
            assert (left.epoch, left.end_offset) == (2, 2), "it has read what the queue does not have"
            assert noted.taken() == [EPOCH_END.name]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
