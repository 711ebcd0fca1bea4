"""Readers of whole queues without a group: one that takes its time, and one that reads all there is."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as ConfluentMessage
from tests.clients.drivers import librdkafka
from tests.end_to_end.load import Queue, Record

Reading = dict[Queue, list[Record]]


def record_of(message: ConfluentMessage) -> Record:
    return Record(message.offset(), message.key(), message.value())


def read_all(bootstrap: str, ends: dict[Queue, int]) -> Reading:
    """Every queue from its beginning to the end given, and that nothing lies behind it."""
    reader = librdkafka.consumer(bootstrap, "unused")
    found: Reading = {queue: [] for queue in ends}
    try:
        reader.assign([TopicPartition(*queue, 0) for queue in ends])
        for message in librdkafka.take(reader, sum(ends.values())):
            found[Queue(message.topic(), message.partition())].append(record_of(message))
        reader.unassign()  # else each question below waits behind a fetch that waits for more
        for queue, end in ends.items():
            assert librdkafka.watermarks(reader, *queue)[1] == end
    finally:
        reader.close()
    return found


class SlowReader:
    """Reads queues from the beginning whenever it is let, so that what it comes to read has moved on from tier to
    tier meanwhile. Keeps everything in the order it came, repeats included."""

    def __init__(self, bootstrap: str, queues: Iterable[Queue], **settings: Any) -> None:
        # Small buffers in the client: what it holds in advance would not be read from the node later.
        self._reader = librdkafka.consumer(
            bootstrap,
            "unused",
            **{"queued.max.messages.kbytes": 256, "fetch.message.max.bytes": 16_384, "fetch.queue.backoff.ms": 5},
            **settings,
        )
        self._reader.assign([TopicPartition(*queue, 0) for queue in queues])
        self._stopping = threading.Event()
        self._reading = threading.Event()
        self._reading.set()
        self._thread = threading.Thread(target=self._run, name="slow reader", daemon=True)
        self.found: Reading = {queue: [] for queue in queues}
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def rest(self) -> None:
        self._reading.clear()

    def go_on(self) -> None:
        self._reading.set()

    def stop(self) -> None:
        self._stopping.set()
        self._reading.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._reader.close()

    @property
    def count(self) -> int:
        return sum(len(records) for records in self.found.values())

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._reading.wait()
                self._take(self._reader.consume(200, 0.2))
        except KafkaException as error:
            self.failures.append(str(error))

    def _take(self, messages: list[ConfluentMessage]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                self.found[Queue(message.topic(), message.partition())].append(record_of(message))
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaException(error)
