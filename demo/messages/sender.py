"""The demos' producer: idempotent, in batches, with a book of what it was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from demo.errors import DemoFailed
from demo.messages.ledger import Sent

FLUSH_SECONDS_MAX = 90.0


class Sender:
    """Sends to some topics; `sent` has what was handed in, by topic."""

    def __init__(self, bootstrap: str, topics: Iterable[str], compression: str = "lz4") -> None:
        self.sent = {topic: Sent() for topic in topics}
        self.refused: list[str] = []
        self.acknowledged = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": compression,
                "linger.ms": 20,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )

    @property
    def rows(self) -> int:
        """Messages handed in, of all topics."""
        return sum(sent.rows for sent in self.sent.values())

    @property
    def in_flight(self) -> int:
        self._producer.poll(0)
        return len(self._producer)

    def send(self, topic: str, key: bytes, value: bytes | None, timestamp_ms: int | None = None) -> None:
        """Hand in a message; without a timestamp it gets the present time. Waits while the client's queue is full."""
        stamp = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=self._delivered, **stamp)
                break
            except BufferError:
                self._producer.poll(0.1)
        self.sent[topic].add(key, value)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all is acknowledged. Raises DemoFailed."""
        if unsent := self._producer.flush(FLUSH_SECONDS_MAX):
            raise DemoFailed(f"{unsent} messages were not acknowledged within {FLUSH_SECONDS_MAX:.0f} s")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused.append(error.str())
        else:
            self.acknowledged += 1
