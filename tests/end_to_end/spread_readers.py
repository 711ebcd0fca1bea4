"""Consumers of a topic whose readers are spread, and which nodes served them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from confluent_kafka import TopicPartition
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster

AT_ONCE = 50


def served_bytes(cluster: Cluster, node_ids: Iterable[int] = ()) -> dict[int, float]:
    """Bytes of batches that each of these nodes has answered readers with; of all that run where none is named."""
    asked = sorted(node_ids or cluster.running)
    return {it: cluster.nodes[it].metric("mainstem_fetch_bytes_total") for it in asked}


def served_since(cluster: Cluster, before: dict[int, float]) -> dict[int, float]:
    return {node_id: served - before[node_id] for node_id, served in served_bytes(cluster, before).items()}


def served_to_spread_readers(
    cluster: Cluster, topic: str, count: int, node_ids: Iterable[int] = ()
) -> dict[int, float]:
    """Bytes that the nodes serve to so many consumers of one queue, all of which read each record once and in order,
    and go on at the queue's end."""
    cluster.create_topic(topic, 1, read_spread_enable="true")
    before = served_bytes(cluster, node_ids)
    with ExitStack() as ending:
        readers = []
        for number in range(count):
            reader = librdkafka.consumer(cluster.bootstrap, "unused", **{"client.rack": f"rack-{number}"})
            ending.callback(reader.close)
            reader.assign([TopicPartition(topic, 0, 0)])
            readers.append(reader)
        for first in (0, AT_ONCE):
            sent = [b"%d" % it * 100 for it in range(first, first + AT_ONCE)]
            librdkafka.produce(cluster.bootstrap, topic, [Message(value) for value in sent])
            for reader in readers:
                found = [(it.offset(), it.value()) for it in librdkafka.take(reader, AT_ONCE)]
                assert found == list(enumerate(sent, first))
        return served_since(cluster, before)
