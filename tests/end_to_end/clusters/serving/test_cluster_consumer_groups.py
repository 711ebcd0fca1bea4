"""Consumer groups whose coordinator dies: they go on from what they committed, on whatever node that is then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.cluster import Cluster, well
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

PARTITIONS = 4
PER_PARTITION = 60
COORDINATOR_MOVES = {
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with well(Cluster(tmp_path_factory.mktemp("cluster"), "pipeline.mode=off")) as cluster:
        yield cluster


def fill(cluster: Cluster, topic: str) -> None:
    sender = librdkafka.producer(cluster.bootstrap, **{"enable.idempotence": True})
    for number in range(PARTITIONS * PER_PARTITION):
        sender.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert sender.flush(PATIENCE_SECONDS) == 0


def coordinator(cluster: Cluster, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
    found: int = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS).coordinator.id
    return found


def test_a_group_goes_on_from_what_it_committed_when_its_coordinator_is_killed(cluster: Cluster) -> None:
    """Once with a member that lives through it, once with one that comes afterwards."""
    cluster.create_topic("grouped", PARTITIONS)
    fill(cluster, "grouped")
    seen: list[tuple[int, int]] = []
    first = librdkafka.consumer(cluster.bootstrap, "survivors")
    first.subscribe(["grouped"])
    seen += [(message.partition(), message.offset()) for message in librdkafka.take(first, 100)]
    first.commit(asynchronous=False)
    lost = coordinator(cluster, "survivors")
    cluster.kill(lost)
    seen += [(message.partition(), message.offset()) for message in librdkafka.take(first, 60)]
    commit(first)
    at = {one.partition: max(one.offset, 0) for one in first.committed(all_partitions(), PATIENCE_SECONDS)}
    first.close()
    assert coordinator(cluster, "survivors") != lost
    second = librdkafka.consumer(cluster.bootstrap, "survivors")
    second.subscribe(["grouped"])
    rest = PARTITIONS * PER_PARTITION - sum(at.values())
    after = [(message.partition(), message.offset()) for message in librdkafka.take(second, rest)]
    second.close()
    assert sorted(set(seen)) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(at[partition])
    ]
    assert sorted(after) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(at[partition], PER_PARTITION)
    ]
    cluster.start(lost)
    cluster.wait_until_well()


def commit(reader: Consumer) -> None:
    """The messages that the reader has taken, with whatever coordinator there is."""

    def committed() -> bool:
        try:
            reader.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_MOVES:
                raise
            return False
        return True

    eventually(committed, seconds=PATIENCE_SECONDS, what="a coordinator")


def all_partitions() -> list[TopicPartition]:
    return [TopicPartition("grouped", partition) for partition in range(PARTITIONS)]
