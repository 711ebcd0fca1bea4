"""Nodes that die, freeze, are cut off and come back, while an idempotent load runs: what was acknowledged is there,
once and in order, whoever leads.

All stories share one cluster, which has to be well after each; every story has a topic of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.clients.drivers import asyncio_client
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import GIVES_UP_SOON_MS, NEVER, PARTITIONS, goes_on, load_on
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.raw_producer import RawProducer
from tests.end_to_end.readers import read_all
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.protocol.error_codes import ErrorCode


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), "pipeline.mode=off")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    shared.wait_until_well()
    return shared


def test_a_leader_is_killed(cluster: Cluster) -> None:
    with load_on(cluster, "killed") as load:
        leader = cluster.leader("killed", 0)
        cluster.kill(leader)
        goes_on(load, "killed")
        cluster.start(leader)


def test_all_nodes_are_killed_at_once(cluster: Cluster) -> None:
    with load_on(cluster, "blackout"):
        cluster.kill(*cluster.nodes)
        cluster.start()


def test_a_frozen_leader_wakes_to_find_that_it_leads_no_more(cluster: Cluster) -> None:
    """Nothing it was asked meanwhile, or asks the others to believe, counts."""
    with load_on(cluster, "zombie", gives_up_ms=GIVES_UP_SOON_MS) as load:
        zombie = cluster.leader("zombie", 0)
        with RawProducer(cluster.nodes[zombie].kafka) as producer:
            producer.send("zombie", PARTITIONS, NEVER)
            assert producer.answer() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # but the connection is there
            cluster.freeze(zombie)
            producer.send("zombie", 0, NEVER)
            heir = cluster.leader_other_than(zombie, "zombie", 0, asked=cluster.others(zombie)[0])
            goes_on(load, "zombie")
            cluster.thaw(zombie)
            assert producer.answer() == ErrorCode.NOT_LEADER_OR_FOLLOWER
            producer.send("zombie", 0, NEVER)
            assert producer.answer() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert heir != zombie


def test_rolling_restart_without_a_failed_message(cluster: Cluster) -> None:
    """`Load.finish` asserts that no message failed; retries are the client's."""
    with load_on(cluster, "rolling"):
        for node_id in cluster.nodes:
            cluster.stop(node_id)
            cluster.start(node_id)
            cluster.wait_until_well()


def test_a_node_that_missed_data_gets_it_and_can_be_relied_on(cluster: Cluster) -> None:
    """It counts as well only when it has everything; then another node may be lost instead of it."""
    with load_on(cluster, "missed") as load:
        absent, next_lost = cluster.others(cluster.leader("missed", 0))[0], cluster.leader("missed", 0)
        cluster.kill(absent)
        for _ in range(3):
            goes_on(load, "missed")
        cluster.start(absent)
        cluster.wait_until_well()
        cluster.kill(next_lost)
        goes_on(load, "missed")
        cluster.start(next_lost)


def test_an_asyncio_producer_sails_through_a_killed_leader(cluster: Cluster) -> None:
    """aiokafka, idempotent: its codec, metadata and retries are its own."""
    cluster.create_topic("sailing", PARTITIONS)

    async def sail() -> list[int]:
        async with asyncio_client.producer(
            cluster.bootstrap, acks="all", enable_idempotence=True, linger_ms=5
        ) as producer:
            sent = []
            for number in range(900):
                sent.append(await producer.send("sailing", b"%d" % number, partition=number % PARTITIONS))
                if number == 300:
                    await asyncio.wait(sent)
                    leader = await asyncio.to_thread(cluster.leader, "sailing", 0)
                    await asyncio.to_thread(cluster.kill, leader)
                if number == 600:
                    await asyncio.wait(sent, timeout=PATIENCE_SECONDS)
                    await asyncio.to_thread(cluster.start, leader)
            return [result.offset for result in await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_SECONDS)]

    offsets = asyncio.run(sail())
    cluster.wait_until_well()
    expected: dict[Queue, list[Record]] = {Queue("sailing", partition): [] for partition in range(PARTITIONS)}
    for number, offset in enumerate(offsets):
        expected[Queue("sailing", number % PARTITIONS)].append(Record(offset, None, b"%d" % number))
    ends = {queue: len(records) for queue, records in expected.items()}
    assert read_all(cluster.bootstrap, ends) == expected
