"""The view that client libraries have of a failover: the longest pause between two acknowledgements of a partition."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer
from kafka import KafkaProducer

from bench.failover.topic import TOPIC
from bench.failover.waiting import RECOVERY_SECONDS_MAX, wait_until

TRICKLE_SECONDS = 0.01
"""Between two messages of a partition."""


class Pauses:
    """Longest time between two acknowledgements per partition since `mark`, which starts from the last one before."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self._last = dict.fromkeys(partitions, time.monotonic())
        self._longest: dict[int, float] = {}
        self._lock = threading.Lock()
        self._marked = 0.0

    def mark(self) -> None:
        with self._lock:
            self._longest = {}
            self._marked = time.monotonic()

    def acknowledged(self, partition: int) -> None:
        now = time.monotonic()
        with self._lock:
            self._longest[partition] = max(self._longest.get(partition, 0.0), now - self._last[partition])
            self._last[partition] = now

    def pauses(self) -> dict[int, float]:
        with self._lock:
            return dict(self._longest)

    def heard_since(self, partition: int, moment: float) -> bool:
        return self._last[partition] > moment


class ClientLoad(ABC):
    """A client library under a trickle, in a thread of its own."""

    def __init__(self, name: str, partitions: Sequence[int], pauses: Pauses) -> None:
        self.name = name
        self.pauses = pauses
        self._partitions = partitions
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, partitions: Sequence[int], moment: float) -> None:
        """Until each of the partitions had an acknowledgement after this moment."""
        wait_until(
            lambda: all(self.pauses.heard_since(partition, moment) for partition in partitions),
            f"an acknowledgement of partitions {partitions} for {self.name}",
        )

    def close(self) -> None:
        self._ending.set()
        self._thread.join(RECOVERY_SECONDS_MAX)

    def _run(self) -> None:
        while not self._ending.wait(TRICKLE_SECONDS):
            for partition in self._partitions:
                self.send(partition)
            self.poll()
        self.end()

    @abstractmethod
    def send(self, partition: int) -> None: ...

    @abstractmethod
    def poll(self) -> None:
        """Give the client the time it needs from this thread."""

    @abstractmethod
    def end(self) -> None: ...


class Librdkafka(ClientLoad):
    def __init__(self, bootstrap: str, partitions: Sequence[int]) -> None:
        super().__init__("librdkafka", partitions, Pauses(partitions))
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def send(self, partition: int) -> None:
        self._producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=self._delivered)

    def poll(self) -> None:
        self._producer.poll(0)

    def end(self) -> None:
        self._producer.flush(RECOVERY_SECONDS_MAX)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.pauses.acknowledged(message.partition())


class KafkaPython(ClientLoad):
    def __init__(self, bootstrap: str, partitions: Sequence[int]) -> None:
        super().__init__("kafka-python", partitions, Pauses(partitions))
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, retry_backoff_ms=100
        )

    def send(self, partition: int) -> None:
        future = self._producer.send(TOPIC, b"x" * 100, partition=partition)
        future.add_callback(lambda _meta: self.pauses.acknowledged(partition))
        future.add_errback(lambda error: self.failures.append(str(error)))

    def poll(self) -> None:
        """It has a thread of its own."""

    def end(self) -> None:
        self._producer.close(timeout=RECOVERY_SECONDS_MAX)
