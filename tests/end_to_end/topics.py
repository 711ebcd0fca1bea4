"""Topics as an administrator changes them, and messages of a known size to put into them."""

from __future__ import annotations

import random
from collections.abc import Mapping

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.clients.drivers import librdkafka
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

VALUE_BYTES = 4_000


def value_of(number: int) -> bytes:
    return random.Random(number).randbytes(VALUE_BYTES)


class Topics:
    """One administrator of one node. All topics have one partition."""

    def __init__(self, node: Serving) -> None:
        self._node = node
        self._admin = AdminClient({"bootstrap.servers": node.kafka, **librdkafka.KEEP_TRYING})

    def create(self, topic: str, configs: Mapping[str, str] | None = None) -> None:
        futures = self._admin.create_topics([NewTopic(topic, 1, 1, config=dict(configs or {}))])
        futures[topic].result(PATIENCE_SECONDS)

    def fill(self, topic: str, count: int) -> None:
        """`count` acknowledged messages, no two in a batch, so that they can leave one by one."""
        failures: list[KafkaError] = []
        sender = librdkafka.producer(self._node.kafka, **{"batch.num.messages": 1, "linger.ms": 0})
        for number in range(count):
            sender.produce(
                topic,
                value_of(number),
                partition=0,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
        assert sender.flush(PATIENCE_SECONDS) == 0, "not everything was acknowledged"
        assert not failures, failures[0]

    def alter(self, topic: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)

    def delete_records(self, topic: str, before: int) -> int:
        """The new log start."""
        where = TopicPartition(topic, 0, before)
        low: int = self._admin.delete_records([where])[where].result(PATIENCE_SECONDS).low_watermark
        return low

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)

    def offsets(self, topic: str) -> tuple[int, int]:
        """Log start and high watermark."""
        reader = librdkafka.consumer(self._node.kafka, "unused")
        try:
            low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_SECONDS)
            return low, high
        finally:
            reader.close()

    def check(self, topic: str, first: int, count: int) -> None:
        """The remainder of a filled topic, byte for byte, read from its first offset."""
        found = librdkafka.consume(self._node.kafka, topic, count - first, offset=first)
        assert [message.offset for message in found] == list(range(first, count))
        assert [message.value for message in found] == [value_of(number) for number in range(first, count)]
