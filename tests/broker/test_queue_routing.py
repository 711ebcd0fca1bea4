"""Which broker clients are sent to for a queue."""

from __future__ import annotations

from collections import Counter

import numpy
import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.leadership import FakeLeadership
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata

from mainstem.broker.queue_routing import (
    GO_BY_THE_LIST,
    LISTED_SECONDS,
    SETTLED_SECONDS,
    STORAGE_LISTED_SECONDS,
    BrokerList,
    QueueRouting,
)
from mainstem.model import Node, NodeRole, queue_id_of

STORES, BROKERS = (1, 2, 3), (4, 5, 6)
QUEUES = [queue_id_of(topic, partition) for topic in range(1, 40) for partition in range(25)]


def known(node_id: int, *, dead: tuple[int, ...] = (), apart: bool = True) -> tuple[FakeMetadata, QueueRouting]:
    nodes = [Node(node_id=number, host="h", port=1) for number in STORES]
    nodes += [Node(node_id=number, host="h", port=1, roles=frozenset({NodeRole.BROKER})) for number in BROKERS]
    metadata = FakeMetadata(nodes)
    metadata.dead.update(dead)
    return metadata, QueueRouting(node_id, metadata, FakeLeadership(metadata, MemoryStore()), apart=apart)


def routed(node_id: int, *, dead: tuple[int, ...] = (), apart: bool = True) -> QueueRouting:
    return known(node_id, dead=dead, apart=apart)[1]


def test_queues_spread_over_the_brokers_without_storage_alike_on_every_node() -> None:
    places = [routed(4).broker_of(queue_id) for queue_id in QUEUES]
    assert places == [routed(1, apart=False).broker_of(queue_id) for queue_id in QUEUES]
    shares = Counter(places)
    assert set(shares) == set(BROKERS)
    assert all(abs(share - len(QUEUES) / 3) < len(QUEUES) / 12 for share in shares.values())
    routing = routed(5)
    brokers = routing.brokers()
    many = routing.choices(numpy.array(QUEUES, numpy.uint64), brokers)
    assert [brokers[place] for place in many] == places, "many at once as one by one"


def test_a_broker_that_goes_moves_its_own_queues_alone() -> None:
    before = [routed(4).broker_of(queue_id) for queue_id in QUEUES]
    after = [routed(4, dead=(5,)).broker_of(queue_id) for queue_id in QUEUES]
    assert all(now == then for now, then in zip(after, before, strict=True) if then != 5)
    assert set(after) == {4, 6}


def test_without_such_brokers_leaders_serve_their_queues() -> None:
    routing = routed(1, dead=BROKERS, apart=False)
    assert routing.broker_of(QUEUES[0]) == 1
    assert routing.serves_here(QUEUES[0])
    assert not routed(1, apart=False).serves_here(QUEUES[0]), "another node is where clients go"


def test_a_broker_that_others_hold_for_dead_serves_what_it_would_serve() -> None:
    assert routed(4, dead=BROKERS).serves_here(QUEUES[0])


def test_clients_are_sent_on_to_a_broker_that_has_been_there_for_a_while() -> None:
    routing = routed(4)
    elsewhere = next(queue_id for queue_id in QUEUES if routing.broker_of(queue_id) != 4)
    here = next(queue_id for queue_id in QUEUES if routing.broker_of(queue_id) == 4)
    assert routing.look(0.0)
    assert not routing.is_misplaced(elsewhere), "others may not have heard of it yet"
    assert not routing.look(SETTLED_SECONDS)
    assert routing.is_misplaced(elsewhere)
    assert not routing.is_misplaced(here)


def test_nobody_is_sent_on_to_a_broker_that_has_just_gone() -> None:
    metadata, routing = known(4)
    elsewhere = next(queue_id for queue_id in QUEUES if routing.broker_of(queue_id) == 5)
    routing.look(0.0)
    routing.look(SETTLED_SECONDS)
    assert routing.is_misplaced(elsewhere)
    metadata.dead.add(5)
    assert not routing.is_misplaced(elsewhere), "although no look has told yet that it is gone"


def test_nodes_that_go_are_listed_a_while_longer_than_queues_are_sent_to_them() -> None:
    clock = FakeClock()
    stores = [Node(node_id=number, host="h", port=1) for number in STORES]
    brokers = [Node(node_id=number, host="h", port=1, roles=frozenset({NodeRole.BROKER})) for number in BROKERS]
    metadata = FakeMetadata([*stores, *brokers])
    listed = BrokerList(metadata, clock.monotonic)

    def told() -> set[int]:
        return {node.node_id for node in listed.nodes("librdkafka")}

    assert told() == {*STORES, *BROKERS}
    clock.advance(600)  # nobody asked for a long time
    metadata.dead |= {4, 1}
    assert told() == {*STORES, *BROKERS}
    clock.advance(LISTED_SECONDS - 0.5)
    assert 4 in told()
    clock.advance(0.5)
    assert told() == {1, 2, 3, 5, 6}
    clock.advance(STORAGE_LISTED_SECONDS - LISTED_SECONDS - 0.5)
    assert 1 in told(), "producers still go by what they know of it"
    clock.advance(0.5)
    assert told() == {2, 3, 5, 6}
    metadata.dead.clear()
    metadata.nodes_known = [node for node in metadata.nodes_known if node.node_id != 5]
    metadata.nodes_known.append(Node(node_id=5, host="elsewhere", port=2, roles=frozenset({NodeRole.BROKER})))
    assert [node.host for node in listed.nodes("librdkafka") if node.node_id == 5] == ["elsewhere"], "where it is now"
    metadata.dead.add(5)
    assert 5 in told()
    metadata.dead.clear()
    assert sorted(node.node_id for node in listed.nodes("librdkafka")) == [*STORES, *BROKERS], "once"


@pytest.mark.parametrize("client", sorted(GO_BY_THE_LIST))
def test_a_client_that_a_dead_node_holds_up_is_told_of_it_no_more(client: str) -> None:
    clock = FakeClock()
    stores = [Node(node_id=number, host="h", port=1) for number in STORES]
    brokers = [Node(node_id=number, host="h", port=1, roles=frozenset({NodeRole.BROKER})) for number in BROKERS]
    metadata = FakeMetadata([*stores, *brokers])
    listed = BrokerList(metadata, clock.monotonic)

    def told(name: str) -> set[int]:
        return {node.node_id for node in listed.nodes(name)}

    assert told(client) == {*STORES, *BROKERS}
    metadata.dead |= {4, 1}
    assert told(client) == {2, 3, *BROKERS}, "queues of a broker without storage move first, for every client"
    assert told("") == told("a program's own name") == {*STORES, *BROKERS}, "librdkafka may be in it"
    metadata.dead.clear()
    assert told(client) == {*STORES, *BROKERS}
