"""Consumers of a topic whose readers are spread over nodes, and where each of them reads."""

from __future__ import annotations

import json
from contextlib import ExitStack

from confluent_kafka import Consumer, TopicPartition
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

AT_ONCE = 50
TOLD_MS = 200
"""How often librdkafka tells what it does."""


class SpreadReader:
    """A librdkafka consumer of partition 0 that names a rack."""

    def __init__(self, cluster: Cluster, topic: str, rack: str) -> None:
        self._topic = topic
        self._read_at = -1
        telling = {"statistics.interval.ms": TOLD_MS, "stats_cb": self._told}
        self.consumer: Consumer = librdkafka.consumer(cluster.bootstrap, "unused", **{"client.rack": rack}, **telling)
        self.consumer.assign([TopicPartition(topic, 0, 0)])

    def _told(self, statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(self._topic, {}).get("partitions", {})
        self._read_at = partitions.get("0", {}).get("broker", -1)

    def reads_at(self) -> int:
        """The node that it reads from now."""
        self._read_at = -1

        def told() -> bool:
            self.consumer.poll(TOLD_MS / 1000)
            return self._read_at != -1

        eventually(told, seconds=PATIENCE_SECONDS, what="where a consumer reads")
        return self._read_at


def nodes_of_spread_readers(cluster: Cluster, topic: str, count: int) -> set[int]:
    """The nodes that so many consumers of one queue read from, all of which read each record once and in order, and
    go on at the queue's end."""
    cluster.create_topic(topic, 1, read_spread_enable="true")
    with ExitStack() as ending:
        readers = [SpreadReader(cluster, topic, f"rack-{number}") for number in range(count)]
        for reader in readers:
            ending.callback(reader.consumer.close)
        for first in (0, AT_ONCE):
            sent = [b"%d" % it * 100 for it in range(first, first + AT_ONCE)]
            librdkafka.produce(cluster.bootstrap, topic, [Message(value) for value in sent])
            for reader in readers:
                found = [(it.offset(), it.value()) for it in librdkafka.take(reader.consumer, AT_ONCE)]
                assert found == list(enumerate(sent, first))
        return {reader.reads_at() for reader in readers}
