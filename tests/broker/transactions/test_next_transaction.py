"""A producer's next transaction waits for the end of its last one, for a while; on simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tests.broker.serving_node_of import serving_node_of
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.broker import BrokerTransactions
from mainstem.broker.machines.runtime import LATE_SECONDS
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.served_transactions import ServedTransactions
from mainstem.broker.transactions.state_topic import STATE_TOPIC
from mainstem.broker.transactions.transaction import TopicPartition, Transaction, TransactionState
from mainstem.broker.transactions.transaction_coordinator import COMPLETION_SECONDS_MAX, TransactionCoordinator
from mainstem.broker.transactions.transitions import Initialization, Producer
from mainstem.broker.transactions.verification import CoordinatorVerification, Verified
from mainstem.node.broker_role.broker_calls import NodeBrokerCalls
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.records import stored_batches
from mainstem.rpc.handlers import Handlers

ID = "orders"
PARTITION = ("sales", 0)


class HeldMarkers:
    """Writes no marker before it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[Transaction] = []

    async def write(
        self, transaction: Transaction, coordinator_epoch: int, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        self.asked.append(transaction)
        await self.go.wait()
        return set()


class Cluster:
    """A transaction coordinator on a memory store."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.store = MemoryStore(loop)
        self.metadata = FakeMetadata()
        self.markers = HeldMarkers()
        config = TransactionsConfig(topic_partitions=1)
        self.node = serving_node_of(self.metadata, FakeLeadership(self.metadata, self.store), self.store, loop)
        self.served = ServedTransactions(self.node, config, self.markers)
        self.coordinator = TransactionCoordinator(self.served, config, self._new_id)

    async def _new_id(self) -> int:
        return 7

    async def begun(self) -> Producer:
        """A producer that has written nothing yet."""
        await self.coordinator.leader_of(ID)
        while (producer := await self.coordinator.initialize(Initialization(ID, 60_000))) is not None:
            if isinstance(producer, Producer):
                break
            assert producer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(0.1)
        return producer

    async def committing(self) -> Producer:
        """A producer whose transaction is prepared, and has no markers yet."""
        producer = await self.begun()
        assert await self.coordinator.add(ID, producer, [PARTITION], 0) is ErrorCode.NONE
        assert (await self.coordinator.end(ID, producer, commit=True, version=0)).code is ErrorCode.NONE
        return producer

    async def state(self) -> TransactionState:
        [found] = await self.coordinator.describe([ID])
        assert isinstance(found, Transaction)
        return found.state

    def records_of_last_append(self) -> int:
        topic = self.metadata.topic(STATE_TOPIC)
        assert topic is not None
        [batch] = stored_batches(self.store.queues[topic.queue_id(0)].batches[-1].data)
        return batch.header.record_count


def simulated(story: Callable[[Cluster], Awaitable[Any]]) -> None:
    loop = SimulatedLoop()

    async def told() -> None:
        cluster = Cluster(loop)
        cluster.served.start()
        try:
            async with asyncio.timeout(3_600):
                await story(cluster)
        finally:
            await cluster.served.close()

    try:
        loop.run_until_complete(told())
        assert not asyncio.all_tasks(loop)
    finally:
        loop.close()


async def waiting(cluster: Cluster, producer: Producer) -> asyncio.Task[ErrorCode]:
    """The request that begins the next transaction, under way."""
    adding = asyncio.create_task(cluster.coordinator.add(ID, producer, [PARTITION], 0))
    await asyncio.sleep(COMPLETION_SECONDS_MAX / 2)
    assert not adding.done()
    return adding


def test_it_begins_in_the_append_that_completes_the_last_one() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await cluster.committing()
        adding = await waiting(cluster, producer)
        cluster.markers.go.set()
        assert await adding is ErrorCode.NONE
        assert await cluster.state() is TransactionState.ONGOING
        assert cluster.records_of_last_append() == 2, "one of them completes, the other one begins"

    simulated(story)


def test_who_asks_about_a_transaction_is_told_the_epoch_of_its_coordinator() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await cluster.begun()
        calls = NodeBrokerCalls(cluster.node.node_id, None)
        asking = CoordinatorVerification(cluster.metadata, lambda number: None, cluster.node.routing, calls)
        groups: Any = None
        calls.serve(Handlers(), BrokerTransactions(cluster.coordinator, asking), groups)
        for adds in (True, False):
            answer = await asking.ask(ID, producer, [PARTITION], adds=adds)
            assert answer == Verified({PARTITION: ErrorCode.NONE}, 0), "of its first reign"

    simulated(story)


def test_it_is_refused_when_the_markers_take_too_long_and_comes_again() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await cluster.committing()
        begun = cluster.loop.time()
        assert await cluster.coordinator.add(ID, producer, [PARTITION], 0) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert cluster.loop.time() - begun == COMPLETION_SECONDS_MAX
        cluster.markers.go.set()
        assert await cluster.coordinator.add(ID, producer, [PARTITION], 0) is ErrorCode.NONE

    simulated(story)


def test_nobody_waits_for_a_coordinator_that_stops() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await cluster.committing()
        adding = await waiting(cluster, producer)
        begun = cluster.loop.time()
        await cluster.served.close()
        assert await adding is not ErrorCode.NONE
        assert cluster.loop.time() == begun

    simulated(story)


def test_markers_of_an_earlier_transaction_that_hang_hold_up_no_later_one_of_the_same_epoch() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await cluster.committing()
        await asyncio.sleep(0.1)
        [first] = cluster.markers.asked
        partition = await cluster.served.led_for(ID)
        elsewhere = partition.submit(lambda machine, ticket, now: machine.complete(ticket, first, now))
        assert await elsewhere, "another coordinator has written them meanwhile"
        assert await cluster.coordinator.add(ID, producer, [PARTITION], 0) is ErrorCode.NONE
        assert (await cluster.coordinator.end(ID, producer, commit=True, version=0)).code is ErrorCode.NONE
        await asyncio.sleep(0.1)
        assert [one.producer_epoch for one in cluster.markers.asked] == [producer.producer_epoch] * 2
        cluster.markers.go.set()
        await asyncio.sleep(0.1)
        assert await cluster.state() is TransactionState.COMPLETE_COMMIT

    simulated(story)


def test_nobody_waits_longer_for_the_journal_than_the_configuration_says() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await cluster.begun()
        seconds = cluster.coordinator.config.commit_timeout_ms / 1000 + LATE_SECONDS
        cluster.store.hold()
        begun = cluster.loop.time()
        first = asyncio.create_task(cluster.coordinator.add(ID, producer, [PARTITION], 0))
        await asyncio.sleep(seconds / 2)
        behind = asyncio.create_task(cluster.coordinator.add(ID, producer, [("sales", 1)], 0))
        assert await first is await behind is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert cluster.loop.time() - begun == seconds
        later = await cluster.coordinator.add(ID, producer, [("sales", 2)], 0)
        assert later is ErrorCode.COORDINATOR_NOT_AVAILABLE, "it waits for the same append"
        assert cluster.loop.time() - begun == 2 * seconds
        cluster.store.release()
        assert await cluster.coordinator.add(ID, producer, [PARTITION], 0) is ErrorCode.NONE
        [found] = await cluster.coordinator.describe([ID])
        assert isinstance(found, Transaction)
        assert found.state is TransactionState.ONGOING
        assert found.partitions == {("sales", index) for index in range(3)}, "all of them were taken"

    simulated(story)
