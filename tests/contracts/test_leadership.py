"""`ports.BrokerLeadership`: whoever leads, follows or hears of no leader is told so by the fakes as by the write groups
of three nodes.

The questions here are about a node when nothing moves; its answers meanwhile have tests of its own
(`storage/write_groups/test_replicated_group.py`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import numpy
import pytest
from tests.fakes.clock import LoopClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.fakes.moving_store import MovingStore, NodeStore
from tests.fakes.simulated_loop import SimulatedLoop
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.write_groups.test_replicated_write_group import NODES, Cluster

from mainstem.errors import LeaderMissing
from mainstem.model import SLOTS, QueueRange, queue_id_of
from mainstem.ports import BrokerLeadership
from mainstem.storage.cluster.queue_leadership import WriteGroupLeadership
from mainstem.storage.placement import Placement

TOPIC = 1
QUEUES = [queue_id_of(TOPIC, partition) for partition in range(2)]


class Nodes(ABC):
    """Several nodes, of which one leads all write groups, or none leads any."""

    leader_id: int

    @abstractmethod
    async def elect(self) -> None:
        """Have one lead that was not elected before, or not since."""

    @abstractmethod
    def leaderless(self) -> BrokerLeadership:
        """The answers of a node while nobody is elected."""

    @abstractmethod
    def leader(self) -> BrokerLeadership: ...

    @abstractmethod
    def follower(self) -> BrokerLeadership: ...

    async def confirmed(self, leadership: BrokerLeadership, group: int) -> None:
        await leadership.confirm(group)


class Fakes(Nodes):
    """Queues are write groups of their own."""

    leader_id = 1

    def __init__(self) -> None:
        self._metadata = FakeMetadata()
        self._store = MemoryStore()

    async def elect(self) -> None:
        await self._store.create([QueueRange(TOPIC, 0, 2)])
        self._store.leader_epoch += 1

    def leaderless(self) -> BrokerLeadership:
        self._metadata.leaders = dict.fromkeys(QUEUES, -1)
        leadership = FakeLeadership(self._metadata, self._store)
        leadership.leaderless = True
        return leadership

    def leader(self) -> BrokerLeadership:
        return FakeLeadership(self._metadata, self._store)

    def follower(self) -> BrokerLeadership:
        return FakeLeadership(self._metadata, self._store, node_id=2)


class Moving(Nodes):
    leader_id = 1

    def __init__(self) -> None:
        self._shared = MovingStore(LoopClock(), 1, (1, 2), lambda: 0.0)
        self._shared.move(0, -1)

    async def elect(self) -> None:
        self._shared.move(0, 1)

    def leaderless(self) -> BrokerLeadership:
        return NodeStore(self._shared, 2)

    def leader(self) -> BrokerLeadership:
        return NodeStore(self._shared, 1)

    def follower(self) -> BrokerLeadership:
        return NodeStore(self._shared, 2)


class Replicas(Nodes):
    """Write groups that vote, without disks."""

    def __init__(self) -> None:
        self._cluster = Cluster(NODES)
        self.leader_id = -1

    async def elect(self) -> None:
        if self.leader_id > 0:
            self._cluster.cut = {self.leader_id}
        self.leader_id = self._cluster.leader().node_id
        self._cluster.cut = set()
        members = self._cluster.members.values()
        self._cluster.until(lambda: all(it.group.consensus.leader_id == self.leader_id for it in members))
        for _ in range(5):
            self._cluster.turn()  # those behind are in sync again

    def leaderless(self) -> BrokerLeadership:
        return self._of(1)

    def leader(self) -> BrokerLeadership:
        return self._of(self.leader_id)

    def follower(self) -> BrokerLeadership:
        return self._of(next(node_id for node_id in NODES if node_id != self.leader_id))

    def _of(self, node_id: int) -> BrokerLeadership:
        return WriteGroupLeadership(node_id, Placement([0] * SLOTS), [self._cluster.members[node_id].group])

    async def confirmed(self, leadership: BrokerLeadership, group: int) -> None:
        confirming = asyncio.ensure_future(leadership.confirm(group))
        while not confirming.done():
            await asyncio.sleep(0)
            self._cluster.turn()
        await confirming


KINDS: dict[str, Callable[[], Nodes]] = {"fake": Fakes, "moving": Moving, "replicas": Replicas}
Story = Callable[[Nodes], Awaitable[None]]


@pytest.fixture(params=KINDS)
def tell(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    def told(story: Story) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await story(KINDS[request.param]())

        loop = SimulatedLoop()
        try:
            loop.run_until_complete(bounded())
        finally:
            loop.close()

    return told


Tell = Callable[[Story], None]


def test_one_queue_and_many_are_of_the_same_write_groups(tell: Tell) -> None:
    async def story(nodes: Nodes) -> None:
        await nodes.elect()
        for leadership in (nodes.leader(), nodes.follower()):
            groups = leadership.groups_of(numpy.array(QUEUES, numpy.uint64))
            assert groups.dtype == numpy.int64
            assert groups.tolist() == list(map(leadership.group_of, QUEUES))

    tell(story)


def test_who_leads_knows_it_and_says_so(tell: Tell) -> None:
    async def story(nodes: Nodes) -> None:
        await nodes.elect()
        leadership = nodes.leader()
        for queue_id in QUEUES:
            group = leadership.group_of(queue_id)
            assert leadership.leads(group)
            assert leadership.serves_here(queue_id)
            replicas = leadership.replicas(group)
            assert replicas.leader == nodes.leader_id
            assert nodes.leader_id in replicas.in_sync
            assert set(replicas.in_sync) == set(replicas.replicas), "nobody is behind"
            await nodes.confirmed(leadership, group)
            others = leadership.abreast()[group]
            assert sorted(others) == sorted(set(replicas.replicas) - {nodes.leader_id}), "they lack nothing"
        assert not leadership.leaderless
        assert leadership.in_sync_fewest({0}) == len(replicas.in_sync)

    tell(story)


def test_who_follows_names_the_leader_and_confirms_nothing(tell: Tell) -> None:
    async def story(nodes: Nodes) -> None:
        await nodes.elect()
        leadership = nodes.follower()
        for queue_id in QUEUES:
            group = leadership.group_of(queue_id)
            assert not leadership.leads(group)
            assert not leadership.serves_here(queue_id)
            assert leadership.replicas(group).leader == nodes.leader_id
            assert leadership.replicas(group).leader_epoch == nodes.leader().replicas(group).leader_epoch, (
                "of the same epoch"
            )
            with pytest.raises(LeaderMissing):
                await nodes.confirmed(leadership, group)
        assert not leadership.leaderless
        assert leadership.in_sync_fewest({0}) == 0, "of those that it leads"
        assert not leadership.abreast(), "the leader knows"

    tell(story)


def test_where_nobody_leads_that_is_told(tell: Tell) -> None:
    async def story(nodes: Nodes) -> None:
        leadership = nodes.leaderless()
        group = leadership.group_of(QUEUES[0])
        assert not leadership.leads(group)
        assert not leadership.serves_here(QUEUES[0])
        assert leadership.replicas(group).leader == -1
        assert leadership.leaderless
        assert leadership.in_sync_fewest({0}) == 0
        with pytest.raises(LeaderMissing):
            await nodes.confirmed(leadership, group)

    tell(story)


def test_epochs_grow_with_elections(tell: Tell) -> None:
    async def story(nodes: Nodes) -> None:
        epochs = []
        for _ in range(3):
            await nodes.elect()
            leadership = nodes.leader()
            epochs.append(leadership.replicas(leadership.group_of(QUEUES[0])).leader_epoch)
        assert epochs == sorted(set(epochs))
        assert epochs[0] > 0

    tell(story)
