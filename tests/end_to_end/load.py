"""Messages that flow while a node is mistreated, and the ledger of what was acknowledged.

A message is its number: topic, key and value follow from it, so the ledger keeps numbers only and a reader can
check every byte. One thread sends, so within a partition numbers rise with offsets.

librdkafka knows no offset of a batch whose first answer it never got when a later batch is acknowledged: it takes the
earlier one for acknowledged, too, and reports its messages as delivered. The order of numbers tells which offsets those
must have, and a reader has to find them there.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError
from tests.clients.drivers import librdkafka
from tests.harness.patience import PATIENCE_SECONDS

KEYS = 97
BURST = 20
GIVES_UP_MS = 10_000
"""After so long the client takes a node that does not answer for lost."""


class Queue(NamedTuple):
    topic: str
    partition: int


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def key_of(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


def value_of(number: int) -> bytes:
    """The number and 0 to 1,999 bytes that follow from it and that nothing compresses."""
    return b"%d:" % number + random.Random(number).randbytes(number * 7919 % 2000)


class Load:
    """An idempotent producer of keyed messages over several topics, at a steady pace, until `finish`."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], messages_per_second: int, gives_up_ms: int = GIVES_UP_MS
    ) -> None:
        self._sender = librdkafka.producer(
            bootstrap,
            **{
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 40,
                "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
                "socket.timeout.ms": gives_up_ms,
            },
        )
        self._topics = topics
        self._seconds_per_burst = BURST / messages_per_second
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._flow, name="load", daemon=True)
        self.sent = 0
        self.failures: list[str] = []
        self.acknowledged: dict[Queue, dict[int, int]] = {}
        """queue -> offset -> number"""
        self._without_offset: dict[Queue, list[int]] = {}
        """queue -> numbers"""

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Send no more; every message sent is acknowledged when this returns."""
        self.stop()
        unsent = self._sender.flush(PATIENCE_SECONDS)
        assert unsent == 0, f"{unsent} messages were not acknowledged"
        assert not self.failures, self.failures[:3]
        self._place()
        assert self.acknowledged_count == self.sent

    def stop(self) -> None:
        self._finishing.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def acknowledged_count(self) -> int:
        return sum(map(self.count, self.acknowledged.keys() | self._without_offset.keys()))

    def count(self, queue: Queue) -> int:
        """How many messages of the queue were acknowledged."""
        return len(self.acknowledged.get(queue, ())) + len(self._without_offset.get(queue, ()))

    def expected(self) -> dict[Queue, list[Record]]:
        """The records that a reader of each queue must see: everything that was acknowledged, by offset."""
        return {
            queue: [Record(offset, key_of(number), value_of(number)) for offset, number in sorted(offsets.items())]
            for queue, offsets in self.acknowledged.items()
        }

    def check_order(self) -> None:
        """Offsets are gapless, and numbers rise with them: nothing was lost, repeated or reordered."""
        for queue, offsets in self.acknowledged.items():
            missing = sorted(set(range(max(offsets) + 1)) - offsets.keys())
            around = {one: offsets[one] for gap in missing[:5] for one in range(gap - 3, gap + 4) if one in offsets}
            assert not missing, f"{queue}: nobody was told of offsets {missing}; numbers by offset around: {around}"
            numbers = [number for _, number in sorted(offsets.items())]
            assert numbers == sorted(set(numbers)), queue
        every = [number for offsets in self.acknowledged.values() for number in offsets.values()]
        assert sorted(every) == list(range(self.sent))

    def _flow(self) -> None:
        next_burst = time.monotonic()
        while not self._finishing.is_set():
            for _ in range(BURST):
                self._send(self.sent)
            next_burst = max(next_burst + self._seconds_per_burst, time.monotonic() - 1.0)
            while (left := next_burst - time.monotonic()) > 0:
                self._sender.poll(left)

    def _send(self, number: int) -> None:
        topic = self._topics[number % len(self._topics)]
        while True:
            try:
                self._sender.produce(topic, value_of(number), key_of(number), on_delivery=self._delivered(number))
                break
            except BufferError:
                self._sender.poll(0.1)
        self.sent += 1

    def _delivered(self, number: int) -> Any:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.failures.append(f"message {number}: {error}")
                return
            queue = Queue(message.topic(), message.partition())
            if message.offset() is None:
                self._without_offset.setdefault(queue, []).append(number)
                return
            known = self.acknowledged.setdefault(queue, {}).setdefault(message.offset(), number)
            if known != number:
                self.failures.append(f"{queue} offset {message.offset()} is both message {known} and {number}")

        return delivered

    def _place(self) -> None:
        """Give the messages without an offset those that are free, in order; `check_order` sees whether they fit."""
        while self._without_offset:
            queue, numbers = self._without_offset.popitem()
            offsets = self.acknowledged.setdefault(queue, {})
            free = sorted(set(range(len(offsets) + len(numbers))) - offsets.keys())
            offsets.update(zip(free, sorted(numbers), strict=True))
