"""librdkafka as a load: a process of its own, so that it can be pinned; `python -m bench.librdkafka --help`.

Messages are handed over from Python, which costs more than the library does; what is compared is the broker's CPU
time for requests as this library sends them, and the rate where the broker is slower than the client. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import uuid

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

FLUSH_SECONDS_MAX = 60.0
_MESSAGES_AT_ONCE = 10_000
_WAITING_MAX = 500_000


def produce(address: str, topic: str, partitions: int, record_bytes: int, seconds: float) -> dict[str, float]:
    """acks=all, idempotent, 5 ms linger. Raises KafkaException when a message was not taken."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({
        "bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5,
        "queue.buffering.max.messages": _WAITING_MAX, "on_delivery": delivered,
    })  # fmt: skip
    value = os.urandom(record_bytes)
    count = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for number in range(count, count + _MESSAGES_AT_ONCE):
            while True:
                try:
                    producer.produce(topic, value, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.01)
        count += _MESSAGES_AT_ONCE
        producer.poll(0)
    producer.flush(FLUSH_SECONDS_MAX)
    if failed:
        raise KafkaException(failed[0])
    return {"seconds": time.perf_counter() - begun, "records": count, "bytes": count * record_bytes}


def consume(address: str, topic: str, partitions: int) -> dict[str, float]:
    """Everything there is, from the beginning; timed from the first message."""
    consumer = Consumer({
        "bootstrap.servers": address, "group.id": uuid.uuid4().hex, "enable.auto.commit": False,
        "enable.partition.eof": True, "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    count = size = ended = 0
    begun = last = 0.0
    while ended < partitions:
        for message in consumer.consume(_MESSAGES_AT_ONCE, timeout=1.0):
            error = message.error()
            if error is None:
                begun = begun or time.perf_counter()
                count += 1
                size += len(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise KafkaException(error)
        last = time.perf_counter()
    consumer.close()
    return {"seconds": last - begun, "records": count, "bytes": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["produce", "consume"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    if options.what == "produce":
        figures = produce(options.address, options.topic, options.partitions, options.record_bytes, options.seconds)
    else:
        figures = consume(options.address, options.topic, options.partitions)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
