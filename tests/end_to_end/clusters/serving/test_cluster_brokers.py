"""Brokers without storage in front of nodes that serve no clients: brokers and leaders die under an idempotent load,
and what was acknowledged is there, once and in order.

All stories share one cluster, which has to be well after each; every story has a topic of its own.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import goes_on, load_on
from tests.end_to_end.spread_readers import SpreadReader, nodes_of_spread_readers
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

from mainstem.broker.queue_routing import SETTLED_SECONDS
from mainstem.cli.main import run

STORES, BROKERS = (1, 2, 3), (4, 5)
RACKS = {4: "east", 5: "west"}
ROLES = dict.fromkeys(STORES, "storage,nameserver") | dict.fromkeys(BROKERS, "broker")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = ("pipeline.mode=off", "groups.rebalance_delay_ms=0", "broker.rack_aware_reads=true")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), *settings, count=5, roles=ROLES)
    for node_id, rack in RACKS.items():
        cluster.nodes[node_id].settings += (f"rack={rack}",)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    shared.wait_until_well()
    return shared


def led_by(cluster: Cluster, topic: str) -> dict[int, int]:
    """Partition → the broker that clients are sent to, as any of them is told."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
    partitions = admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions
    return {number: partition.leader for number, partition in partitions.items()}


def test_clients_are_sent_to_brokers_alone_and_a_broker_that_dies_takes_nothing_along(cluster: Cluster) -> None:
    with load_on(cluster, "brokers") as load:
        before = led_by(cluster, "brokers")
        assert set(before.values()) == set(BROKERS)
        cluster.kill(4)
        goes_on(load, "brokers")
        assert set(led_by(cluster, "brokers").values()) == {5}
        cluster.start(4)
        eventually(
            lambda: led_by(cluster, "brokers") == before,
            seconds=PATIENCE_SECONDS,
            what="each queue at its broker again",
        )


@pytest.mark.long
def test_brokers_and_leaders_die_one_after_the_other_for_a_minute(cluster: Cluster) -> None:
    """Brokers that are back get their queues back while the load runs."""
    with load_on(cluster, "minute") as load:
        for victim in (4, 1, 5, 2, 4, 3, 5, 4):
            cluster.kill(victim)
            goes_on(load, "minute")
            cluster.start(victim)
            time.sleep(2 * SETTLED_SECONDS if victim in BROKERS else 1.0)
            goes_on(load, "minute")


def test_a_leader_of_write_groups_dies_behind_the_brokers(cluster: Cluster) -> None:
    with load_on(cluster, "behind") as load:
        leader = cluster.leader("behind", 0, asked=4)
        assert leader in STORES
        cluster.kill(leader)
        goes_on(load, "behind")
        cluster.start(leader)


def test_a_consumer_group_goes_on_at_the_next_broker(cluster: Cluster) -> None:
    cluster.create_topic("grouped", 4)
    sender = librdkafka.producer(cluster.bootstrap, **{"enable.idempotence": True})
    for number in range(200):
        sender.produce("grouped", b"%d" % number, partition=number % 4)
    assert sender.flush(PATIENCE_SECONDS) == 0
    reader = librdkafka.consumer(cluster.bootstrap, "movers")
    reader.subscribe(["grouped"])
    seen = [int(message.value() or b"") for message in librdkafka.take(reader, 100)]
    reader.commit(asynchronous=False)
    reader.close()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
    coordinator = admin.describe_consumer_groups(["movers"])["movers"].result(PATIENCE_SECONDS).coordinator.id
    assert coordinator in BROKERS
    cluster.kill(coordinator)
    reader = librdkafka.consumer(cluster.bootstrap, "movers")
    reader.subscribe(["grouped"])
    seen += [int(message.value() or b"") for message in librdkafka.take(reader, 100)]
    reader.close()
    assert sorted(seen) == list(range(200)), "each record once: what was committed is committed"
    cluster.start(coordinator)


def test_readers_of_a_spread_topic_are_served_by_both_brokers(cluster: Cluster) -> None:
    number = itertools.count()

    def both_serve() -> bool:
        return nodes_of_spread_readers(cluster, f"spread-{next(number)}", 8) == set(BROKERS)

    eventually(both_serve, seconds=PATIENCE_SECONDS, what="readers at both brokers, once these know that both stay")


def read_at(reader: SpreadReader, node_id: int) -> bool:
    return reader.reads_at() == node_id


def test_consumers_read_at_the_broker_in_their_rack(cluster: Cluster) -> None:
    topics = (f"rack-{number}" for number in itertools.count())
    while True:
        topic = next(topics)
        cluster.create_topic(topic, 1)
        if led_by(cluster, topic)[0] == 5:
            break
    sent = [Message(b"%d" % number) for number in range(100)]
    librdkafka.produce(cluster.bootstrap, topic, sent)
    with ExitStack() as ending:
        readers = {rack: SpreadReader(cluster, topic, rack) for rack in ("east", "west", "north")}
        for reader in readers.values():
            ending.callback(reader.consumer.close)
            assert [it.offset() for it in librdkafka.take(reader.consumer, 100)] == list(range(100))
        for rack, node_id in (("east", 4), ("west", 5), ("north", 5)):
            what = f"the reader in {rack} at broker {node_id}"
            eventually(partial(read_at, readers[rack], node_id), seconds=PATIENCE_SECONDS, what=what)
        librdkafka.produce(cluster.bootstrap, topic, sent)
        for reader in readers.values():
            assert [it.offset() for it in librdkafka.take(reader.consumer, 100)] == list(range(100, 200))


def test_nodes_that_store_count_what_brokers_bring_for_tenants(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tenant", "create", "counted", "--user", "ANONYMOUS", "--http", cluster.nodes[1].http]) == 0
    cluster.create_topic("counted.t", 8)

    def counted() -> int:
        """Bytes that all of them were brought."""
        usage = [cluster.get("/v1/tenants/usage/counted", node_id)["tenants"] for node_id in STORES]
        return sum(each["produced_bytes"] for (each,) in usage)

    sender = librdkafka.producer(cluster.bootstrap)
    for number in range(80):
        sender.produce("counted.t", bytes(1_000), partition=number % 8)
    assert sender.flush(PATIENCE_SECONDS) == 0
    assert counted() >= 80_000

    def usage() -> dict[str, int]:
        """The usage of all nodes together, as the command line tells it."""
        capsys.readouterr()
        assert run(["tenant", "usage", "counted", "--json", "--http", cluster.nodes[2].http]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["nodes"], answer["silent"]) == ([*STORES, *BROKERS], [])
        whole: dict[str, int]
        (whole,) = answer["tenants"]
        return whole

    assert 80_000 <= usage()["produced_bytes"] < 160_000, "brokers and nodes that store count the same bytes"
    eventually(
        lambda: usage()["journal_bytes"] >= 80_000 * len(STORES),
        seconds=PATIENCE_SECONDS,
        what="the bytes of each replica: followers have theirs a moment later",
    )
