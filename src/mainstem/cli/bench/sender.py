"""The clients that a measurement sends with.

Deliveries are served by the thread that sends, between two records, or by a thread per client. The first gets the
most through by far; the second hears of an acknowledgement when it comes, also while the sender sleeps until the
next record is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from mainstem.cli.bench.tally import Tally
from mainstem.cli.clients import kafka_node
from mainstem.cli.terminal.connection_news import LOST_SECONDS_MAX

RECORD_BYTES_MAX = 100 * 1024 * 1024
"""The largest record the client lets through: the node's own limit is to decide."""
BUFFER_BYTES = 32 * 1024 * 1024
"""The Java client holds as much. More raises latency under full load and nothing else."""
_BUFFER_RECORDS_MAX = 200_000
"""Small records cost the client more than their bytes."""
_FULL_SECONDS = 0.01
"""How long a full buffer is waited for at once."""
_TURNS_SECONDS = 0.001
"""The same where several clients take turns."""
_THREAD_POLL_SECONDS = 0.1
"""How long closing may take."""


def client_settings(record_bytes: int, buffer_bytes: int, producers: int) -> dict[str, object]:
    """The memory that each of `producers` clients needs to take records of this size, and `buffer_bytes` between
    them."""
    # A buffer that one record does not fit into would be full forever.
    each = max(buffer_bytes // producers, 2 * record_bytes)
    return {
        "message.max.bytes": RECORD_BYTES_MAX,
        "queue.buffering.max.kbytes": each // 1024 + 1,
        "queue.buffering.max.messages": max(_BUFFER_RECORDS_MAX // producers, 1000),
        "delivery.timeout.ms": int(LOST_SECONDS_MAX * 1000),
        "socket.nagle.disable": True,
    }


class BenchSender:
    """`producers` clients of confluent-kafka with the same settings, taking turns. Close it."""

    def __init__(self, topic: str, settings: dict[str, Any], *, producers: int, threads: bool) -> None:
        self._topic = topic
        self._producers: list[Any] = [Producer(settings) for _ in range(producers)]
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._deliver, args=(producer,), daemon=True)
            for producer in (self._producers if threads else [])
        ]
        for thread in self._threads:
            thread.start()

    def connect(self) -> None:
        """Have the clients find the topic, so that the first record does not wait for that. A node that does not
        answer is left for the records to find."""
        for producer in self._producers:
            try:
                producer.list_topics(self._topic, timeout=kafka_node.CONNECT_SECONDS)
            except KafkaException:
                return

    def send(
        self, number: int, partition: int, value: bytes, due_ns: int, tally: Tally, waits: Callable[[], bool]
    ) -> None:
        """Queue one record with the client whose turn it is, its outcome to be told to the tally. While the buffer
        of the client is full it waits, and lets go of the record when `waits` says no."""
        producer = self._producers[number % len(self._producers)]
        delivered = partial(tally.outcome, due_ns)
        tally.sending()
        while True:
            try:
                producer.produce(self._topic, value, partition=partition, on_delivery=delivered)
                return
            except BufferError:
                if not waits():
                    tally.sent -= 1
                    return
                self.serve(_FULL_SECONDS)
            except KafkaException as error:
                tally.fail(error.args[0])
                return

    def serve(self, seconds: float) -> None:
        """Let deliveries come for up to so long; 0 takes those that are there."""
        if self._threads:
            time.sleep(seconds)
            return
        served = sum(producer.poll(0) for producer in self._producers)
        if seconds and not served:
            # One can be waited for; the others' deliveries come in the meantime and must not wait long.
            self._producers[0].poll(min(seconds, _TURNS_SECONDS) if len(self._producers) > 1 else seconds)

    def close(self) -> None:
        """Drop what is still in flight and let go of the clients."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        for producer in self._producers:
            if len(producer):
                producer.purge()
        # A client ends with the last reference to it; the threads had others.
        self._threads.clear()
        self._producers.clear()

    def _deliver(self, producer: Any) -> None:
        while not self._closing.is_set():
            producer.poll(_THREAD_POLL_SECONDS)
