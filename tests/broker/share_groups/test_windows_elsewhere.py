"""The window of a share group has one owner, which all nodes find: over a store that several brokers write, in which
the write group lets the newest owner of a log write it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy
import pytest
from numpy import int64, uint64
from numpy.typing import NDArray
from tests.contracts.test_message_store import GROUPS, Linked
from tests.fakes.clock import LoopClock
from tests.fakes.metadata import FakeMetadata
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.coordinator_topic import InternalTopic
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.served_states import STATE_TOPIC, STATE_TOPIC_CONFIGS, ServedStates
from mainstem.broker.share_groups.share_partition import Acquired, BatchSpan
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.broker.share_groups.state_machine import LogBounds, NextRead, ReadBatches, WantedRecords
from mainstem.broker.share_groups.window_events import Acknowledge, Acquire, Begin, LookFor, Read, Release, WindowEvent
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import ACCEPT, RECORD_LIMIT, AcknowledgementBatch
from mainstem.storage_link.remote_leadership import RemoteLeadership
from mainstem.storage_link.remote_message_store import RemoteMessageStore

T = TypeVar("T")

A, B = 2, 3
BEGIN = Begin(LogBounds(0, 10))
NEW_GROUP = 99
"""A write group that was added after the topic of states was made."""

WRITE_GROUPS = (*range(GROUPS), NEW_GROUP)


def acquire(member_id: str) -> Acquire:
    return Acquire(member_id, ReadBatches(0, [BatchSpan(0, 9)], 10), WantedRecords(4, RECORD_LIMIT))


class Places:
    """The places of queues, of which tests say that they have moved, or that they are in an added write group."""

    groups = GROUPS

    def __init__(self, group_of: Callable[[int], int]) -> None:
        self.first_group_of = group_of
        self.moved: set[int] = set()
        self.added: set[int] = set()

    def group_of(self, queue_id: int) -> int:
        return NEW_GROUP if queue_id in self.added else self.first_group_of(queue_id)

    def has_moved(self, queue_id: int) -> bool:
        return queue_id in self.moved

    def groups_of(self, queue_ids: NDArray[uint64]) -> NDArray[int64]:
        return numpy.array([self.group_of(queue_id) for queue_id in queue_ids.tolist()], numpy.int64)


class Belief:
    """A node's knowledge of places: a deaf one has heard of no move."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.deaf = False

    @property
    def groups(self) -> int:
        return self._places.groups

    def group_of(self, queue_id: int) -> int:
        return self._places.first_group_of(queue_id) if self.deaf else self._places.group_of(queue_id)

    def has_moved(self, queue_id: int) -> bool:
        return not self.deaf and self._places.has_moved(queue_id)

    def groups_of(self, queue_ids: NDArray[uint64]) -> NDArray[int64]:
        return self._places.groups_of(queue_ids)


class Leadership(RemoteLeadership):
    async def confirm(self, group: int) -> None:
        """The storage node is the only one, so that it leads."""


class Routing(QueueRouting):
    """One node's belief: partitions of the topic of states take turns among the brokers that it holds alive."""

    alive: tuple[int, ...] = (A, B)

    def brokers(self) -> tuple[int, ...]:
        return self.alive

    def broker_of(self, queue_id: int) -> int:
        return self.alive[queue_id % len(self.alive)]


class Others:
    def __init__(self, nodes: dict[int, ServedStates]) -> None:
        self._nodes = nodes

    async def ask(self, node_id: int, index: int, key: WindowKey, event: WindowEvent) -> Any:
        return await self._nodes[node_id].submit_here(index, key, event)


class Brokers:
    """Two brokers over one storage node."""

    def __init__(self, store: Linked, config: ShareGroupsConfig, replicas: tuple[int, ...]) -> None:
        self.metadata = FakeMetadata()
        self.places = Places(store.group_of)
        self.beliefs = {node_id: Belief(self.places) for node_id in (A, B)}
        placed = dict.fromkeys(WRITE_GROUPS, replicas)
        self.nodes: dict[int, ServedStates] = {}
        self.routing: dict[int, Routing] = {}
        self._stores: list[RemoteMessageStore] = []
        topic = InternalTopic(STATE_TOPIC, 4, 1, "share groups", STATE_TOPIC_CONFIGS)
        for node_id in (A, B):
            leadership = Leadership(self.beliefs[node_id], store.leaders, lambda: placed)
            messages = RemoteMessageStore(GROUPS, store.group_of, store.leaders, random.Random(node_id))
            self._stores.append(messages)
            routing = self.routing[node_id] = Routing(node_id, self.metadata, leadership, apart=True)
            node = ServingNode(
                node_id=node_id,
                metadata=self.metadata,
                metadata_admin=self.metadata,
                leadership=leadership,
                routing=routing,
                store=messages,
                queue_admin=store.queues,
                clock=LoopClock(),
            )
            self.nodes[node_id] = ServedStates(
                node, config, topic, available=lambda key: None, counts=ShareCounts(), others=Others(self.nodes)
            )

    async def close(self) -> None:
        for served in self.nodes.values():
            await served.close()
        for messages in self._stores:
            await messages.close()

    def owners(self, key: WindowKey) -> set[int]:
        """The nodes that hold the window."""
        return {
            node_id
            for node_id, served in self.nodes.items()
            for partition in served.partitions.values()
            if partition.machine is not None and key in partition.machine.windows
        }

    async def ask(self, node_id: int, queue_id: int, key: WindowKey, event: WindowEvent) -> Any:
        """Of one node, again while the window is being loaded."""
        while True:
            try:
                return await self.nodes[node_id].submit(queue_id, key, event)
            except CoordinatorRefusal as refusal:
                if refusal.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                await asyncio.sleep(0.01)


@asynccontextmanager
async def brokers(directory: Path, replicas: tuple[int, ...] = (1,)) -> AsyncIterator[Brokers]:
    store = Linked(directory, simulated=False)
    await store.start()
    made = Brokers(store, ShareGroupsConfig(auto_offset_reset="earliest"), replicas)
    try:
        for served in made.nodes.values():
            served.start()
        yield made
    finally:
        await made.close()
        await store.close()


def in_time(story: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await story

    return asyncio.run(bounded())


def queues(made: Brokers, count: int) -> list[tuple[int, WindowKey]]:
    topic = made.metadata.add_topic("shared", count)
    return [(topic.queue_id(index), WindowKey("group", topic.topic_id, index)) for index in range(count)]


def accepted(member_id: str, first: int, last: int) -> Acknowledge:
    return Acknowledge(
        member_id, [AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=(ACCEPT,))]
    )


@pytest.mark.parametrize("added", [False, True], ids=["old write groups", "added write group"])
def test_members_on_all_nodes_get_each_record_once_from_one_owner(tmp_path: Path, added: bool) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as made:
            found = queues(made, 8)
            made.places.added.update(queue_id for queue_id, _ in found if added)
            owners: set[int] = set()
            for queue_id, key in found:
                begun = [await made.ask(node_id, queue_id, key, BEGIN) for node_id in (A, B)]
                assert {each.offset for each in begun} == {0}
                assert sorted(each.here for each in begun) == [False, True], "one of them serves it"
                assert await made.ask(A, queue_id, key, acquire("a")) == [Acquired(0, 3, 1)]
                assert await made.ask(B, queue_id, key, acquire("b")) == [Acquired(4, 7, 1)]
                taken = await made.ask(B, queue_id, key, accepted("b", 0, 3))
                assert taken is ErrorCode.INVALID_RECORD_STATE, "they are the other member's"
                assert await made.ask(B, queue_id, key, accepted("a", 0, 3)) is ErrorCode.NONE
                assert await made.ask(A, queue_id, key, Release("b")) == 1
                assert await made.ask(A, queue_id, key, acquire("a")) == [Acquired(4, 7, 2)]
                [state] = await made.ask(A, queue_id, key, Read())
                assert state.start == 4
                owning = made.owners(key)
                assert len(owning) == 1
                owners |= owning
            assert owners == {A, B}, "windows spread over the brokers"

    in_time(story())


@pytest.mark.parametrize("event", [acquire("late"), accepted("first", 0, 3)], ids=["acquire", "acknowledge"])
def test_an_owner_that_was_taken_for_dead_gives_out_and_takes_nothing(tmp_path: Path, event: WindowEvent) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as made:
            [(queue_id, key), *_] = queues(made, 1)
            for routing in made.routing.values():
                routing.alive = (B,)
            assert (await made.ask(B, queue_id, key, BEGIN)).offset == 0
            assert await made.ask(B, queue_id, key, acquire("first")) == [Acquired(0, 3, 1)]
            made.routing[A].alive = (A,)
            assert await made.ask(A, queue_id, key, BEGIN) == NextRead(0)
            assert await made.ask(A, queue_id, key, acquire("second")) == [Acquired(0, 3, 1)]
            with pytest.raises(CoordinatorRefusal):  # both nodes hold themselves for the owner now
                await made.nodes[B].submit(queue_id, key, event)
            assert await made.ask(A, queue_id, key, accepted("second", 0, 3)) is ErrorCode.NONE
            made.routing[B].alive = (A,)
            [state] = await made.ask(B, queue_id, key, Read())
            assert state.start == 4

    in_time(story())


@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)], ids=["one replica", "three replicas"])
def test_a_window_is_found_where_it_is_after_slots_have_moved(tmp_path: Path, replicas: tuple[int, ...]) -> None:
    async def story() -> None:
        async with brokers(tmp_path, replicas) as made:
            found = queues(made, 8)
            for queue_id, key in found:
                assert (await made.ask(A, queue_id, key, BEGIN)).offset == 0
                assert await made.ask(B, queue_id, key, acquire("a")) == [Acquired(0, 3, 1)]
                assert await made.ask(A, queue_id, key, accepted("a", 0, 3)) is ErrorCode.NONE
            made.places.moved.update(queue_id for queue_id, _ in found)
            made.places.added.update(queue_id for queue_id, _ in found)
            for queue_id, key in found:
                for node_id in (A, B):
                    [state] = await made.ask(node_id, queue_id, key, Read())
                    assert state.start == 4
                assert len(made.owners(key)) == 1

    in_time(story())


def test_no_window_begins_while_a_partition_that_may_have_it_cannot_be_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as made:
            [(queue_id, key), *_] = queues(made, 1)
            await made.ask(A, queue_id, key, Read())
            made.places.moved.add(queue_id)
            await made.nodes[B].close()
            with pytest.raises(CoordinatorRefusal):
                await made.nodes[A].submit(queue_id, key, BEGIN)
            assert made.owners(key) == set()

    in_time(story())


async def begins(made: Brokers, node_id: int, queue_id: int, key: WindowKey) -> bool:
    """Whether a node has a window begun; otherwise it was told to wait."""
    try:
        await made.nodes[node_id].submit(queue_id, key, BEGIN)
    except CoordinatorRefusal as refusal:
        if refusal.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        return False
    return True


@pytest.mark.parametrize(
    "first", [A, B, None], ids=["who has not heard begins", "who has heard begins", "both at once"]
)
def test_a_window_begins_once_though_a_broker_has_yet_to_hear_of_a_move(tmp_path: Path, first: int | None) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as made:
            found = queues(made, 12)
            for queue_id, _ in found:  # all partitions of the topic of states are loaded
                await made.ask(A, queue_id, WindowKey("other", uuid4(), 0), Read())
            made.places.moved.update(queue_id for queue_id, _ in found)
            made.places.added.update(queue_id for queue_id, _ in found)
            made.beliefs[A].deaf = True
            for queue_id, key in found:
                order = [first, A + B - first] if first is not None else []
                begun = [await begins(made, node_id, queue_id, key) for node_id in order]
                begun += await asyncio.gather(
                    *(begins(made, node_id, queue_id, key) for node_id in (A, B) if not order)
                )
                assert any(begun)
                assert len(made.owners(key)) == 1
            made.beliefs[A].deaf = False
            for queue_id, key in found:
                for node_id in (A, B):
                    await made.ask(node_id, queue_id, key, BEGIN)
                assert len(made.owners(key)) == 1
                assert await made.ask(A, queue_id, key, acquire("a")) == [Acquired(0, 3, 1)]
                assert await made.ask(B, queue_id, key, acquire("b")) == [Acquired(4, 7, 1)]

    in_time(story())


def test_once_somebody_looked_for_a_window_after_a_move_it_begins_in_one_partition_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as made:
            found = queues(made, 4)
            for belief in made.beliefs.values():
                belief.deaf = True
            states = await made.nodes[A].open()
            owners = [made.nodes[made.routing[A].broker_of(states.queue_id(index))] for index in range(4)]
            for queue_id, key in found:
                await made.ask(A, queue_id, WindowKey("other", key.topic_id, key.partition), BEGIN)  # all are loaded
                for index, owner in enumerate(owners):
                    assert await asked(owner, index, key, LookFor()) is False
                begun = [await asked(owner, index, key, BEGIN) for index, owner in enumerate(owners)]
                assert len([answer for answer in begun if answer is not None]) == 1
                assert len(made.owners(key)) == 1

    async def asked(owner: ServedStates, index: int, key: WindowKey, event: WindowEvent) -> Any:
        """None: it was refused, and not for want of the log."""
        while True:
            try:
                return await owner.submit_here(index, key, event)
            except CoordinatorRefusal:
                if (partition := owner.partitions.get(index)) is not None and partition.machine is not None:
                    return None
                await asyncio.sleep(0.01)

    in_time(story())
