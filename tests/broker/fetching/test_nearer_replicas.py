"""Which replica a consumer reads that names its rack."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata

from mainstem.broker.fetching.nearer_replicas import NearerReplicas
from mainstem.broker.queue_routing import QueueRouting
from mainstem.model import ListenerAddress, Node, NodeRole, QueueRange, queue_id_of

RACKS = {1: "east", 2: "west", 3: "west", 4: "north", 5: None}
QUEUES = [queue_id_of(7, partition) for partition in range(3)]
LISTENER = "PLAINTEXT"


def node(node_id: int, rack: str | None, **how: object) -> Node:
    return Node(node_id=node_id, host="h", port=1, rack=rack, **how)  # type: ignore[arg-type]


@dataclass
class World:
    """Node 1 leads all queues; nodes 2 to 5 have replicas of all of them."""

    metadata: FakeMetadata
    leadership: FakeLeadership
    rack: str = "east"
    enabled: bool = True
    apart: bool = False

    def nearer(self, rack: str, listener: str = LISTENER) -> dict[int, int] | None:
        return self._choice().of(rack, listener)

    def are_here(self, rack: str) -> bool:
        return self._choice().are_here(rack)

    def _choice(self) -> NearerReplicas:
        routing = QueueRouting(1, self.metadata, self.leadership, apart=self.apart)
        return NearerReplicas(
            1, self.rack, self.metadata, self.leadership, routing, enabled=self.enabled, apart=self.apart
        )


@pytest.fixture
def world() -> World:
    metadata = FakeMetadata([node(node_id, rack) for node_id, rack in RACKS.items()])
    store = MemoryStore()
    asyncio.run(store.create([QueueRange(7, 0, 3)]))
    metadata.leaders = dict.fromkeys(QUEUES, 1)
    leadership = FakeLeadership(metadata, store)
    leadership.replica_nodes = dict.fromkeys(QUEUES, (1, 2, 3, 4, 5))
    return World(metadata, leadership)


def test_a_consumer_is_sent_to_the_replica_in_its_rack_that_has_most(world: World) -> None:
    assert world.nearer("north") == dict.fromkeys(QUEUES, 4)
    assert world.nearer("west") == dict.fromkeys(QUEUES, 2), "the first of those that have most"


def test_a_consumer_of_the_leaders_rack_or_of_none_stays(world: World) -> None:
    assert world.nearer("east") is None
    assert world.nearer("") is None
    assert world.nearer("nowhere") is None


def test_leaders_send_nobody_away_unless_they_are_set_to(world: World) -> None:
    world.enabled = False
    assert world.nearer("west") is None
    assert world.are_here("east"), "whoever was sent here by another node is served"


def test_replicas_that_lag_and_nodes_that_are_dead_are_passed_over(world: World) -> None:
    world.leadership.out_of_sync = {QUEUES[0]: {2}, QUEUES[1]: {2, 3}}
    assert world.nearer("west") == {QUEUES[0]: 3, QUEUES[2]: 2}, "one queue has none"
    world.metadata.dead.add(2)
    assert world.nearer("west") == {QUEUES[0]: 3, QUEUES[2]: 3}
    world.metadata.dead.add(3)
    assert world.nearer("west") is None


def test_queues_without_a_replica_in_the_rack_stay(world: World) -> None:
    world.leadership.replica_nodes[QUEUES[1]] = (1, 2, 3)
    assert world.nearer("north") == {QUEUES[0]: 4, QUEUES[2]: 4}
    world.leadership.replica_nodes = dict.fromkeys(QUEUES, (1, 2, 3))
    assert world.nearer("north") is None


def test_queues_that_another_node_leads_are_its_concern(world: World) -> None:
    world.metadata.leaders[QUEUES[0]] = 3
    assert world.nearer("north") == {QUEUES[1]: 4, QUEUES[2]: 4}


def test_a_node_that_the_client_cannot_come_to_is_passed_over(world: World) -> None:
    addresses = (ListenerAddress("INSIDE", "h", 2),)
    world.metadata.nodes_known = [
        node(node_id, rack, endpoints=addresses if node_id == 2 else (ListenerAddress(LISTENER, "h", 1), *addresses))
        for node_id, rack in RACKS.items()
    ]
    assert world.nearer("west") == dict.fromkeys(QUEUES, 3)
    assert world.nearer("west", "INSIDE") == dict.fromkeys(QUEUES, 2)


def test_where_queues_spread_over_brokers_without_storage_nobody_is_sent_to_nodes_with_it(world: World) -> None:
    world.metadata.nodes_known.append(node(6, "west", roles=frozenset({NodeRole.BROKER})))
    assert world.nearer("west") is None
    world.apart = True
    assert not world.are_here("east"), "it has no replicas"


def test_a_node_without_a_rack_has_no_consumers_of_its_own(world: World) -> None:
    world.rack = ""
    assert not world.are_here("")
    assert not world.are_here("west")
    assert world.nearer("west") == dict.fromkeys(QUEUES, 2)
