"""A flood of librdkafka's clients, of a user of their own over SASL_SSL: processes that produce as fast as they can,
and one that reads from the beginning what they wrote.

The flood has begun once all that it is to do flows: its reader needs seconds where it shares a core with what produces.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.errors import BenchError
from bench.systems.system import Node
from bench.topics import Queues
from mainstem.cli.dev.secured import MECHANISM

FLOOD = Queues("flood", 1, 16)
RECORD_BYTES = 10_000
PROCESSES = 2
LEAD_SECONDS = 2.0
"""From the flood's start to the first window, at the least."""
LEAD_SECONDS_MAX = 20.0
"""A flood that has not begun then does not count: five times as long as a reader takes on a busy machine."""
READ_AT_ONCE = 1_000
"""Records that a reader takes in one call: ten megabytes, a fifth of what it has fetched ahead."""
ALONE, BURNING = "alone", "beside a busy core"
PRODUCING, READING = "beside producing", "beside producing and catching up"


class Flow(NamedTuple):
    """Bytes that the flood has sent, those included that wait to be sent, and has read; or MB/s."""

    sent: float
    read: float


class Counted(Protocol):
    """Memory that a process of the flood shares with this one."""

    value: int


def produce(settings: Mapping[str, str], ended: Event, sent: Counted) -> None:
    producer = Producer({**settings, "linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 65_536})
    value = os.urandom(RECORD_BYTES)
    number = 0
    while not ended.is_set():
        try:
            producer.produce(FLOOD.names[0], value, partition=number % FLOOD.partitions)
            number += 1
            sent.value += RECORD_BYTES
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    producer.flush(5)


class OldRecords:
    """The records of partitions from their beginnings; one that was read to its end begins again.

    Nothing else makes a partition begin again. A reader that did so whenever nothing had come for a while dropped what
    was on its way, and read nothing beside a flood that it had to wait for."""

    def __init__(self, settings: Mapping[str, str], partitions: Sequence[tuple[str, int]]) -> None:
        self._consumer = Consumer({
            **settings, "group.id": "flood", "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        })  # fmt: skip
        self._consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in partitions])

    def read(self, seconds: float) -> list[Message]:
        """The next records, at most so long after the call; none: they have not come yet."""
        records = []
        for message in self._consumer.consume(READ_AT_ONCE, timeout=seconds):
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._consumer.seek(TopicPartition(message.topic() or "", message.partition() or 0, 0))
            elif not error.retriable():
                raise KafkaException(error)
        return records

    def close(self) -> None:
        self._consumer.close()


def catch_up(settings: Mapping[str, str], ended: Event, read: Counted) -> None:
    old = OldRecords(settings, [(FLOOD.names[0], partition) for partition in range(FLOOD.partitions)])
    while not ended.is_set():
        read.value += RECORD_BYTES * len(old.read(0.2))
    old.close()


def burn(settings: Mapping[str, str], ended: Event, nothing: Counted) -> None:
    """Nothing but processor time."""
    while not ended.is_set():
        sum(range(10_000))


WORKS: dict[str, list[Callable[[Mapping[str, str], Event, Counted], None]]] = {
    ALONE: [],
    BURNING: [burn] * PROCESSES,
    PRODUCING: [produce] * PROCESSES,
    READING: [*[produce] * PROCESSES, catch_up],
}


@contextmanager
def flood(node: Node, kind: str, cpus: tuple[int, ...]) -> Iterator[Callable[[], Flow]]:
    """Gives the way to learn how much has flowed. Raises BenchError if it does not begin."""
    guard = node.setup.guard
    assert guard is not None
    assert node.guarded is not None
    settings = {"bootstrap.servers": node.guarded, **guard.librdkafka(), "sasl.mechanism": MECHANISM}
    spawning = multiprocessing.get_context("spawn")
    ended = spawning.Event()
    counts = [(work, spawning.Value("Q", lock=False)) for work in WORKS[kind]]
    processes = [
        spawning.Process(target=_flooding, args=(work, count, settings, ended, cpus)) for work, count in counts
    ]

    def flow() -> Flow:
        sums = [sum(count.value for work, count in counts if work is which) for which in (produce, catch_up)]
        return Flow(*sums)

    for process in processes:
        process.start()
    began = time.monotonic()
    try:
        ended.wait(LEAD_SECONDS)
        while not all(count.value for work, count in counts if work is not burn):
            if time.monotonic() - began > LEAD_SECONDS_MAX:
                raise BenchError(f"the flood {kind} has not begun after {LEAD_SECONDS_MAX:.0f} s: {flow()}")
            ended.wait(0.1)
        yield flow
    finally:
        ended.set()
        for process in processes:
            process.join(20)
            process.kill()


def _flooding(work: object, count: Counted, settings: Mapping[str, str], ended: Event, cpus: tuple[int, ...]) -> None:
    assert callable(work)
    os.sched_setaffinity(0, cpus)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    work(settings, ended, count)
