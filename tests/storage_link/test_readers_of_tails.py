"""A leader that tells a broker of a queue is asked nothing more for the queue's readers, but where the tail leaves
something open: the end of an earlier epoch, and what became of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import cast

import pytest
from tests.broker.fetching.test_fetch import Ask, append, ask, parts, records, request_for
from tests.broker.harness import batch, make_broker
from tests.fakes.clock import LoopClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.harness.handler_of import handler_of
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.errors import MainstemError
from mainstem.model import AbortedRange, Buffer, Outcome, QueueOffsets, QueueSlice
from mainstem.ports import CommittedReads, MessageStore, QueueAdmin, TransactionMarkers
from mainstem.prompt_future import PromptFuture
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import READ_COMMITTED
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.brokers import EPOCH_END, OFFSETS
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
from mainstem.rpc.messages.transactions import ABORTED, AbortedTold, AskAborted, RecordsGone
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.other_nodes import CallsWithBytes
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT
from mainstem.storage.errors import RecordsDeleted
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage.serving.tail_sessions import TailSessions
from mainstem.storage.serving.transaction_service import TransactionService
from mainstem.storage_link.errors import AbortedUntold, NoLeader
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.leader_transactions import LeaderCommittedReads
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.storage_link.remote_queues import RemoteQueueAdmin
from mainstem.storage_link.tail_cache import TailCache

QUEUE = 7


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

    def begin(
        self,
        node_id: int,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> PromptFuture[Reply[ReplyT]] | None:
        self.methods.append(method.name)
        return self._calls.begin(node_id, method, request, attachment, timeout_seconds=timeout_seconds)

    def stream(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[ReplyT], None]:
        return self._calls.stream(node_id, method, request, timeout_seconds=timeout_seconds)

    def taken(self) -> list[str]:
        methods, self.methods = self.methods, []
        return methods


def test_a_hundred_readers_of_a_tail_ask_the_leader_nothing() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        queue_id = topic.queue_id(0)
        handlers = Handlers()
        BrokerService(fakes.store, fakes.store, fakes.leadership, lacks_memory=lambda: False).register(handlers)
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
            queues = RemoteQueueAdmin(1, lambda queue_id: 0, leaders)
            fakes.broker.store, fakes.broker.queue_admin = messages, cast("QueueAdmin", queues)
            fakes.broker.committed_reads = LeaderCommittedReads(lambda queue_id: 0, leaders, messages.is_plain)

            await append(fakes, topic, 0, batch(b"a"))
            reader = request_for(topic, Ask(0, 1, last_fetched_epoch=0))
            assert parts(await ask(fakes, reader))[0].diverging_epoch.epoch == -1
            assert noted.taken()[:1] == [OFFSETS.name], "nobody tells this broker of the queue yet"

            await messages.wait({queue_id: 0}, 1, PATIENCE_SECONDS)  # so the tail begins
            news = messages.wait({queue_id: 1}, 1, PATIENCE_SECONDS)
            await append(fakes, topic, 0, batch(b"b"))
            await news
            noted.taken()
            reader = request_for(topic, Ask(0, 1, last_fetched_epoch=0), isolation_level=READ_COMMITTED)
            for part in [parts(await ask(fakes, reader))[0] for _ in range(100)]:
                assert (part.error_code, part.diverging_epoch.epoch) == (ErrorCode.NONE, -1)
                assert (part.high_watermark, part.aborted_transactions) == (2, ())
                assert records(part)[16:] == batch(b"b")[16:]
            assert noted.taken() == []

            fakes.store.leader_epoch = 2
            news = messages.wait({queue_id: 2}, 1, PATIENCE_SECONDS)
            await append(fakes, topic, 0, batch(b"c"))
            await news
            noted.taken()
            left = parts(await ask(fakes, request_for(topic, Ask(0, 3, last_fetched_epoch=1))))[0].diverging_epoch
            assert (left.epoch, left.end_offset) == (0, 2)
            assert noted.taken() == [EPOCH_END.name]
            left = parts(await ask(fakes, request_for(topic, Ask(0, 4, last_fetched_epoch=2))))[0].diverging_epoch
            assert (left.epoch, left.end_offset) == (2, 3), "it has read what the queue does not have"
            assert noted.taken() == [EPOCH_END.name]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_a_tail_knows_where_nothing_is_part_of_a_transaction() -> None:
    async def scenario() -> None:
        def told(first: int, *transactional: bool) -> None:
            batches: list[Buffer] = []
            for number, one in enumerate(transactional, first):
                built = bytes(build_batch([NewRecord(1000, None, b"v")], transactional=one).data)
                batches.append(number.to_bytes(8, "big") + built[8:])
            end = first + len(batches)
            cache.told(QueueSlice(QUEUE, Outcome.OK, batches, QueueOffsets(0, end, end, 0, end), None, end))

        cache = TailCache()
        assert not cache.is_plain(QUEUE, 3, 3)
        cache.begin(QUEUE)
        told(3, False, False, True, False)
        told(7, False)
        assert cache.is_plain(QUEUE, 6, 8)
        assert cache.is_plain(QUEUE, 7, 8)
        assert not cache.is_plain(QUEUE, 5, 6), "a batch of a transaction"
        assert not cache.is_plain(QUEUE, 4, 7), "one in between"
        assert not cache.is_plain(QUEUE, 6, 9), "beyond the end"
        told(20, False)
        assert not cache.is_plain(QUEUE, 7, 21), "the leader left something out"
        assert cache.is_plain(QUEUE, 20, 21)

    asyncio.run(scenario())


def test_readers_of_transactions_ask_for_these_alone() -> None:
    async def scenario() -> None:
        asked: list[object] = []

        class Leader:
            """A leader's `call`, which says that nothing was aborted."""

            async def call(self, group: int, method: object, request: AskAborted) -> Reply[AbortedTold]:
                asked.append(request.ranges)
                return Reply(AbortedTold([[] for _ in request.ranges]))

        reads = LeaderCommittedReads(
            lambda queue_id: 0, cast("LeaderCalls", Leader()), lambda queue_id, first, end: queue_id == QUEUE
        )
        assert reads.aborted_at_once([]) == []
        assert reads.aborted_at_once([(QUEUE, 1, 2), (QUEUE, 5, 9)]) == [[], []]
        assert reads.aborted_at_once([(QUEUE, 1, 2), (8, 5, 9)]) is None
        assert await reads.aborted([(QUEUE, 1, 2), (8, 5, 9)]) == [[], []]
        assert asked == [[(8, 5, 9)]]

    asyncio.run(scenario())


def serving_of(store: object) -> TransactionService:
    """A leader's service over a store that tells offsets and what was aborted."""
    leadership = FakeLeadership(FakeMetadata(), MemoryStore(LoopClock()))
    return TransactionService(
        cast("TransactionMarkers", None), cast("CommittedReads", store), cast("MessageStore", store), leadership
    )


class ServedHere:
    """Calls to the leader of every write group but the second, which has none."""

    def __init__(self, serving: TransactionService) -> None:
        self._answer = handler_of(serving, ABORTED)

    async def call(self, group: int, method: object, request: AskAborted) -> Reply[AbortedTold]:
        if group == 1:
            raise NoLeader("write group 1 has no leader")
        reply: Reply[AbortedTold] = await self._answer(RpcCall(request, b"", "a broker"))
        return reply


def test_what_cannot_be_told_of_one_queue_is_told_of_the_others() -> None:
    class Store:
        """Queues that are stable up to an offset, the first of which is trimmed meanwhile."""

        def offsets(self, queue_ids: Sequence[int]) -> PromptFuture[list[QueueOffsets | None]]:
            return PromptFuture.settled([QueueOffsets(0, 9, 9, 1, 9) for _ in queue_ids])

        async def aborted(
            self, ranges: Sequence[tuple[int, int, int]]
        ) -> list[list[AbortedRange] | MainstemError | OSError]:
            return [RecordsDeleted("read again") if it[0] == QUEUE else [AbortedRange(7, 2, 4)] for it in ranges]

    async def scenario() -> None:
        serving = serving_of(Store())
        reads = LeaderCommittedReads(lambda queue_id: queue_id == 8, cast("LeaderCalls", ServedHere(serving)))
        gone, unled, told = await reads.aborted([(QUEUE, 1, 5), (8, 1, 5), (9, 1, 5)])
        assert isinstance(gone, AbortedUntold)
        assert "read again" in str(gone)
        assert isinstance(unled, NoLeader)
        assert told == [AbortedRange(7, 2, 4)]
        with pytest.raises(RecordsGone, match="read again"):  # a broker of before takes what is not told for nothing
            await handler_of(serving, ABORTED)(RpcCall(AskAborted([(QUEUE, 1, 5), (9, 1, 5)]), b"", "a broker"))

    asyncio.run(scenario())


def test_a_leader_that_knows_less_of_a_queue_than_was_read_does_not_say_what_was_aborted() -> None:
    """Another one leads, and has told the broker of more."""

    class Store:
        """A queue that is stable up to an offset, below which one transaction was aborted."""

        stable = 0

        def offsets(self, queue_ids: Sequence[int]) -> PromptFuture[list[QueueOffsets | None]]:
            known = QueueOffsets(0, 9, 9, 1, self.stable)
            return PromptFuture.settled([known if queue_id == QUEUE else None for queue_id in queue_ids])

        async def aborted(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[AbortedRange]]:
            return [[AbortedRange(7, 2, 4)] if queue_id == QUEUE else [] for queue_id, _, _ in ranges]

    async def scenario() -> None:
        store = Store()
        answer = handler_of(serving_of(store), ABORTED)

        async def asked(*ranges: tuple[int, int, int]) -> list[list[AbortedRange]]:
            reply: Reply[AbortedTold] = await answer(RpcCall(AskAborted(list(ranges)), b"", "a broker"))
            return reply.message.ranges

        store.stable = 5
        assert await asked((QUEUE, 1, 5), (8, 5, 9)) == [[AbortedRange(7, 2, 4)], []]
        store.stable = 2
        assert await asked((QUEUE, 1, 2)) == [[AbortedRange(7, 2, 4)]]
        with pytest.raises(WriteGroupsNotLed, match="is read to 3, and stable here to 2: another node leads"):
            await asked((QUEUE, 1, 3))

    asyncio.run(scenario())
