"""Which replica a consumer reads that names its rack."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata

from mainstem.broker.fetching.nearer_replicas import NearerReplicas
from mainstem.broker.queue_routing import SETTLED_SECONDS, QueueRouting
from mainstem.kernel import FollowersRead
from mainstem.model import ListenerAddress, Node, NodeRole, QueueRange, queue_id_of
from mainstem.ports import OF_ALL_TOPICS, SENT_ON

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
    catch_up: bool = False
    apart: bool = False

    def nearer(self, rack: str, listener: str = LISTENER) -> dict[int, int] | None:
        return self.choice().of(rack, listener)

    def are_here(self, rack: str, *, spread: bool = False) -> FollowersRead:
        return self.choice().are_here(rack, spread=spread)

    def choice(self) -> NearerReplicas:
        routing = QueueRouting(1, self.metadata, self.leadership, apart=self.apart)
        for now in (0.0, SETTLED_SECONDS):
            routing.look(now)
        return NearerReplicas(
            1, self.rack, self.metadata, self.leadership, routing,
            enabled=self.enabled, catch_up=self.catch_up, apart=self.apart,
        )  # fmt: skip


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
    assert not world.are_here("west"), "it has no replicas"


def test_a_node_without_a_rack_has_no_consumers_of_its_own(world: World) -> None:
    world.rack = ""
    assert not world.are_here("")
    assert not world.are_here("west")
    assert world.nearer("west") == dict.fromkeys(QUEUES, 2)


READERS = range(2, 200, 2)
"""Connections: a client that has two of them, one after the other, may read by each second one."""


def test_readers_of_old_records_go_to_a_replica_in_their_rack_or_to_any_other(world: World) -> None:
    world.enabled = False
    assert world.choice().for_history("east", LISTENER, 7) is None, "unless leaders are set to send them"
    assert not world.are_here("west")
    world.catch_up = True
    assert world.are_here("west") == FollowersRead.ALL, "wherever a leader sends them from"
    choice = world.choice()
    assert choice.for_history("", LISTENER, 7) is None, "it may not know what it is told"
    assert {node for reader in READERS for node in (choice.for_history("west", LISTENER, reader) or {}).values()} == {
        2,
        3,
    }
    found = [(choice.for_history("east", LISTENER, reader) or {})[QUEUES[0]] for reader in READERS]
    assert {it: found.count(it) > len(READERS) / 8 for it in found} == dict.fromkeys((2, 3, 4, 5), True)
    world.leadership.replica_nodes = dict.fromkeys(QUEUES, (1,))
    assert world.choice().for_history("east", LISTENER, 7) is None


def test_readers_of_a_spread_topic_go_to_all_replicas_the_leader_included(world: World) -> None:
    assert world.are_here("west", spread=True) == FollowersRead.SPREAD
    choice = world.choice()
    assert choice.share("", LISTENER, 7) is None
    found = [(choice.share("nowhere", LISTENER, reader) or {}).get(QUEUES[0], 1) for reader in READERS]
    assert {it: found.count(it) > len(READERS) / 10 for it in found} == dict.fromkeys((1, 2, 3, 4, 5), True)
    world.metadata.dead |= {2, 4, 5}
    found = [(world.choice().share("nowhere", LISTENER, reader) or {}).get(QUEUES[0], 1) for reader in READERS]
    assert set(found) == {1, 3}


def test_where_racks_come_first_nobody_is_sent_out_of_the_leaders(world: World) -> None:
    world.catch_up = True
    choice = world.choice()
    assert [choice.for_history("east", LISTENER, reader) for reader in READERS] == [None] * len(READERS)
    assert [choice.share("east", LISTENER, reader) for reader in READERS] == [None] * len(READERS)
    world.enabled = False
    choice = world.choice()
    assert all(choice.for_history("east", LISTENER, reader) for reader in READERS)
    assert any(choice.share("east", LISTENER, reader) for reader in READERS)


def test_a_reader_of_a_spread_topic_stays_where_it_is_whichever_replica_has_most(world: World) -> None:
    before = [world.choice().share("nowhere", LISTENER, reader) for reader in READERS]
    world.leadership.replica_nodes = dict.fromkeys(QUEUES, (1, 5, 4, 3, 2))
    assert [world.choice().share("nowhere", LISTENER, reader) for reader in READERS] == before


def test_brokers_without_storage_share_the_readers_of_a_spread_topic(world: World) -> None:
    assert {world.choice().broker_for("east", LISTENER, reader) for reader in READERS} == {-1}
    world.metadata.nodes_known = [node(it, None, roles=frozenset({NodeRole.BROKER})) for it in (1, 6, 7)]
    world.metadata.nodes_known.append(node(2, "west"))
    world.apart = True
    assert world.choice().share("east", LISTENER, 7) is None, "it leads nothing"
    assert not world.are_here("west", spread=True)
    choice = world.choice()
    assert choice.broker_for("", LISTENER, 7) == -1
    found = [choice.broker_for("nowhere", LISTENER, reader) for reader in READERS]
    assert {it: found.count(it) > len(READERS) / 6 for it in found} == dict.fromkeys((-1, 6, 7), True)
    world.metadata.dead |= {6, 7}
    assert {world.choice().broker_for("nowhere", LISTENER, reader) for reader in READERS} == {-1}


def test_ports_and_kernel_mean_the_same() -> None:
    assert (FollowersRead.ALL, FollowersRead.SENT) == (OF_ALL_TOPICS, SENT_ON)


def brokers_in_racks(world: World) -> None:
    """Node 1, in the east, is a broker without storage, as nodes 6 to 9 are."""
    racks = {1: "east", 6: "west", 7: "west", 8: "east", 9: None}
    world.metadata.nodes_known = [node(it, rack, roles=frozenset({NodeRole.BROKER})) for it, rack in racks.items()]
    world.metadata.nodes_known.append(node(2, "north"))
    world.apart = True


def test_brokers_without_storage_send_readers_to_those_in_their_rack(world: World) -> None:
    brokers_in_racks(world)
    choice = world.choice()
    found = [choice.broker_near("west", LISTENER, reader) for reader in READERS]
    assert {it: found.count(it) > len(READERS) / 4 for it in found} == dict.fromkeys((6, 7), True)
    assert [choice.broker_near(rack, LISTENER, 7) for rack in ("east", "north", "nowhere", "")] == [-1] * 4
    assert world.are_here("east") == FollowersRead.ALL, "it may have been sent here by another broker"
    assert not world.are_here("west")
    world.metadata.dead |= {6, 7}
    assert world.choice().broker_near("west", LISTENER, 7) == -1
    world.metadata.dead.clear()
    world.enabled = False
    assert world.choice().broker_near("west", LISTENER, 7) == -1
    assert not world.are_here("east"), "who comes has old metadata"
    world.enabled, world.apart = True, False
    assert world.choice().broker_near("west", LISTENER, 7) == -1


def test_readers_of_a_spread_topic_stay_with_the_brokers_in_their_rack_where_racks_come_first(world: World) -> None:
    brokers_in_racks(world)
    assert {world.choice().broker_for("east", LISTENER, reader) for reader in READERS} == {-1, 8}
    world.enabled = False
    assert {world.choice().broker_for("east", LISTENER, reader) for reader in READERS} == {-1, 6, 7, 8, 9}
