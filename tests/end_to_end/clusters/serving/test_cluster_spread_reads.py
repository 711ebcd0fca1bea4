"""Consumers that are sent away from the leader of what they read: those of a topic whose readers are spread, and those
of records that memory has no more. librdkafka asks for all partitions anew each time, kafka-python keeps fetch
sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka import TopicPartition as Position
from kafka import TopicPartition
from tests.clients.drivers import kafka_python, librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster, well
from tests.end_to_end.spread_readers import nodes_of_spread_readers

CACHE_BYTES = 64 << 10
MESSAGES, MESSAGE_BYTES = 300, 4_000
"""Far more than the cache holds."""

READERS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = ("pipeline.mode=off", "broker.catch_up_from_replicas=true", f"storage.write_cache_bytes={CACHE_BYTES}")
    with well(Cluster(tmp_path_factory.mktemp("cluster"), *settings)) as cluster:
        yield cluster


def fill(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    librdkafka.produce(cluster.bootstrap, topic, [Message(b"%d" % it * MESSAGE_BYTES) for it in range(MESSAGES)])


def served_bytes(cluster: Cluster) -> dict[int, float]:
    """Bytes of batches that each node has answered readers with."""
    return {it: cluster.nodes[it].metric("mainstem_fetch_bytes_total") for it in sorted(cluster.running)}


def served_since(cluster: Cluster, before: dict[int, float]) -> dict[int, float]:
    return {node_id: served - before[node_id] for node_id, served in served_bytes(cluster).items()}


def test_readers_of_old_records_are_served_by_others_than_the_leader(cluster: Cluster) -> None:
    fill(cluster, "old")
    leader, before = cluster.leader("old", 0), served_bytes(cluster)
    with ExitStack() as ending:
        first = librdkafka.consumer(cluster.bootstrap, "unused", **{"client.rack": "here"})
        ending.callback(first.close)
        first.assign([Position("old", 0, 0)])
        assert [it.offset() for it in librdkafka.take(first, MESSAGES)] == list(range(MESSAGES))
        second = kafka_python.consumer(cluster.bootstrap, client_rack="here")
        ending.callback(partial(second.close, autocommit=False))
        second.assign([TopicPartition("old", 0)])
        assert [it.offset for it in kafka_python.take(second, MESSAGES)] == list(range(MESSAGES))
        served = served_since(cluster, before)
        assert sum(served.values()) - served[leader] >= 2 * MESSAGES * MESSAGE_BYTES - 2 * CACHE_BYTES


def test_who_names_no_rack_is_served_by_the_leader(cluster: Cluster) -> None:
    fill(cluster, "stay")
    leader, before = cluster.leader("stay", 0), served_bytes(cluster)
    assert [it.offset for it in librdkafka.consume(cluster.bootstrap, "stay", MESSAGES)] == list(range(MESSAGES))
    served = served_since(cluster, before)
    assert served[leader] >= MESSAGES * MESSAGE_BYTES


def test_readers_of_a_spread_topic_are_served_by_several_nodes_also_at_its_end(cluster: Cluster) -> None:
    assert len(nodes_of_spread_readers(cluster, "spread", READERS)) >= 2
