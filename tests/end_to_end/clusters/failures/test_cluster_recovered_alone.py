"""A cluster whose majority is lost for good: one node goes on alone, and new nodes take the places of the lost ones
until the survivor itself can be spared. A lost one that turns up again is given no part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.load import Queue
from tests.end_to_end.odd_nodes.hasty_node import HASTY_NODE
from tests.end_to_end.readers import read_all
from tests.end_to_end.shell import mainstem, replace_member
from tests.harness.free_port import HOST, free_port
from tests.harness.serving import Serving, eventually

TOPIC = "outlived"
SURVIVOR, LOST, NEW = 3, (1, 2), (4, 5)
SETTINGS = ("pipeline.mode=off",)
EACH = 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, *SETTINGS)
    try:
        yield cluster.start()
    finally:
        cluster.close()


def newcomer(cluster: Cluster, node_id: int, directory: Path) -> Serving:
    """A node that is told of the same `nameserver.peers` as the founders, most of which are gone."""
    peers = {str(founder): cluster.nodes[founder].rpc for founder in (*LOST, SURVIVOR) if founder in cluster.nodes}
    node = Serving(directory, f"node_id={node_id}", f"nameserver.peers={json.dumps(peers)}", *SETTINGS)
    node.program = HASTY_NODE  # it waits for the lost ones
    node.kafka, node.http, node.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
    return node


def voters(cluster: Cluster, asked: int) -> list[set[int]]:
    """Per write group the nodes that vote and lack nothing."""
    return [
        {it["node"] for it in group["replicas"] if it["voter"] and it["active"] and it["lag_blocks"] == 0}
        for group in cluster.get("/v1/cluster", asked)["write_groups"]
    ]


def test_new_nodes_take_the_places_of_the_lost_ones_until_the_survivor_can_be_spared(
    cluster: Cluster, tmp_path: Path
) -> None:
    expected: list[bytes] = []

    def produce() -> None:
        values = [b"%d" % number for number in range(len(expected), len(expected) + EACH)]
        librdkafka.produce(cluster.bootstrap, TOPIC, [Message(value) for value in values])
        expected.extend(values)

    def everything_is_there() -> None:
        queue = Queue(TOPIC, 0)
        found = read_all(cluster.bootstrap, {queue: len(expected)})[queue]
        assert [record.value for record in found] == expected

    cluster.create_topic(TOPIC, 1)
    produce()
    cluster.wait_until_well()
    cluster.kill(*cluster.nodes)
    survivor = cluster.nodes[SURVIVOR]
    mainstem(survivor, "cluster", "recover", "--alone", "--yes", "--write-dir", str(survivor.write_dir))
    cluster.start(SURVIVOR)
    produce()

    newcomers = {node_id: newcomer(cluster, node_id, tmp_path / f"node-{node_id}") for node_id in NEW}
    lost = {node_id: cluster.nodes.pop(node_id) for node_id in LOST}
    cluster.nodes.update(newcomers)
    cluster.start(*NEW)  # together: each asks the lost ones first, for some seconds
    wanted = {SURVIVOR}
    for old, new in zip(LOST, NEW, strict=True):
        replace_member(survivor, old, new)
        wanted = {*wanted, new}
        eventually(
            lambda wanted=wanted: all(them == wanted for them in voters(cluster, SURVIVOR)),  # type: ignore[misc]
            what=f"replicas of every write group on nodes {sorted(wanted)}",
        )
        produce()

    cluster.kill(SURVIVOR)
    produce()
    everything_is_there()
    cluster.create_topic("made-without-the-survivor", 4)
    cluster.start(SURVIVOR)
    eventually(lambda: all(them == set(cluster.nodes) for them in voters(cluster, SURVIVOR)), what="three replicas")
    cluster.kill(NEW[0])
    produce()
    cluster.start(NEW[0])
    everything_is_there()

    turned_up = lost[LOST[0]]
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(turned_up.start)
        try:
            told = "it runs on an older copy of its directories"
            eventually(lambda: starting.done() or turned_up.output_lines(told), what="a node that knows what it is")
            produce()
            everything_is_there()
            assert not starting.done(), "a node that was given up serves"
        finally:
            eventually(lambda: turned_up.pid, what="a process")
            turned_up.kill()
        assert starting.exception() is not None
