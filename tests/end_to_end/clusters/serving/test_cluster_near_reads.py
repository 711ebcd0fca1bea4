"""Consumers that name their rack: they read from the node there, whoever leads, and lose and repeat nothing when that
node is killed and comes back. librdkafka asks for all partitions anew each time, kafka-python keeps fetch sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kafka import KafkaConsumer, TopicPartition
from tests.clients.drivers import kafka_python, librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster, well
from tests.end_to_end.cluster_load import PARTITIONS, goes_on, load_on
from tests.end_to_end.load import Queue
from tests.end_to_end.readers import SlowReader
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

RACKS = {1: "east", 2: "west", 3: "north"}
NEAR = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), "pipeline.mode=off", "broker.rack_aware_reads=true")
    for node_id, rack in RACKS.items():
        cluster.nodes[node_id].settings += (f"rack={rack}",)
    with well(cluster):
        yield cluster


def served_bytes(cluster: Cluster, node_id: int) -> float:
    """Bytes of batches that a node has answered readers with."""
    return cluster.nodes[node_id].metric("mainstem_fetch_bytes_total")


def test_a_reader_stays_in_its_rack_and_loses_nothing_when_the_node_there_dies(cluster: Cluster) -> None:
    topic = "near"
    queues = [Queue(topic, partition) for partition in range(PARTITIONS)]
    others = [node_id for node_id in RACKS if node_id != NEAR]
    with ExitStack() as ending:
        with load_on(cluster, topic) as load:
            reader = SlowReader(cluster.bootstrap, queues, **{"client.rack": RACKS[NEAR]})
            ending.callback(reader.stop)
            reader.start()
            reads_on(reader)
            before = {node_id: served_bytes(cluster, node_id) for node_id in RACKS}
            for _ in range(3):
                goes_on(load, topic)
                reads_on(reader)
            after = {node_id: served_bytes(cluster, node_id) for node_id in RACKS}
            more = {node_id: after[node_id] - before[node_id] for node_id in RACKS}
            assert sum(more[node_id] for node_id in others) < more[NEAR], "leaders send it away, unless the node lags"
            cluster.kill(NEAR)
            goes_on(load, topic)
            reads_on(reader)
            cluster.start(NEAR)
            cluster.wait_until_well()
            eventually(lambda: served_bytes(cluster, NEAR) > 0, what="reads in the reader's rack again")
        expected = load.expected()
        whole = sum(map(len, expected.values()))
        eventually(lambda: reader.count >= whole, seconds=PATIENCE_SECONDS, what=f"{whole} records")
    assert not reader.failures
    assert reader.found == expected


def test_a_consumer_with_fetch_sessions_goes_to_its_rack_and_back(cluster: Cluster) -> None:
    topics = [f"sessions-{number}" for number in range(PARTITIONS)]
    for topic in topics:
        cluster.create_topic(topic, 1)
    topic = eventually(
        lambda: next((topic for topic in topics if cluster.leader(topic, 0) not in (NEAR, -1)), ""),
        seconds=PATIENCE_SECONDS,
        what="a queue that is led in another rack",
    )
    reader = kafka_python.consumer(cluster.bootstrap, client_rack=RACKS[NEAR])
    try:
        reader.assign([TopicPartition(topic, 0)])
        before = served_bytes(cluster, NEAR)
        assert read_more(cluster, reader, topic, 0) == list(range(100))
        assert served_bytes(cluster, NEAR) > before
        cluster.kill(NEAR)
        assert read_more(cluster, reader, topic, 100) == list(range(100, 200))
    finally:
        reader.close()
    cluster.start(NEAR)


def read_more(cluster: Cluster, reader: KafkaConsumer, topic: str, first: int) -> list[int]:
    """The offsets of a hundred messages that are sent to partition 0 now."""
    librdkafka.produce(cluster.bootstrap, topic, [Message(b"%d" % number) for number in range(first, first + 100)])
    return [message.offset for message in kafka_python.take(reader, 100)]


def reads_on(reader: SlowReader) -> None:
    """Wait until more has come of every queue."""
    before = {queue: len(records) for queue, records in reader.found.items()}
    eventually(
        lambda: all(len(records) > before[queue] for queue, records in reader.found.items()),
        seconds=PATIENCE_SECONDS,
        what=f"more records of every queue than {before}",
    )
