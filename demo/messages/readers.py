"""The demo's readers: a group member that follows, and a reading of whole topics from their beginning."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from demo.messages.ledger import Reading

_BATCH = 2_000
_POLL_SECONDS = 0.2
_LOOK_UP_SECONDS_MAX = 30.0


class GroupMember:
    """One consumer of a group, in a thread of its own, until `stop`."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.reading = Reading()
        self.fault: Exception | None = None
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self.assigned = threading.Event()
        self._consumer.subscribe([topic], on_assign=lambda consumer, queues: self.assigned.set())
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take()
        except Exception as error:
            # Kept for the story's thread, which ends the demo with it.
            self.fault = error
        finally:
            self._consumer.close()

    def _take(self) -> None:
        messages = [message for message in self._consumer.consume(_BATCH, _POLL_SECONDS) if _is_record(message)]
        for message in messages:
            self.reading.add(message)
        if messages:
            try:
                self._consumer.commit(asynchronous=False)
            except KafkaException as error:
                # The node is down, or the group rebalances: what was not committed is read again.
                if not (error.args[0].retriable() or error.args[0].code() in _PASSING):
                    raise


class Follower(threading.Thread):
    """Follows one topic from its beginning, without a group, until `stop`: it goes on from where it is, whatever
    happens to the node."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.reading = Reading()
        self.fault: Exception | None = None
        self._stopping = threading.Event()
        self._consumer = _plain_consumer(bootstrap)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                for message in self._consumer.consume(_BATCH, _POLL_SECONDS):
                    if _is_record(message):
                        self.reading.add(message)
        except Exception as error:
            # Kept for the story's thread, which ends the demo with it.
            self.fault = error
        finally:
            self._consumer.close()


_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}
"""The view of a client while its node is away or its group changes; it comes back by itself."""


def read_whole(bootstrap: str, partitions: Mapping[str, int], seconds_max: float) -> dict[str, Reading]:
    """Every record of topics (name -> partitions) from the beginning to the end, without a group.
    Raises TimeoutError."""
    consumer = _plain_consumer(bootstrap)
    unread = {(topic, partition) for topic, count in partitions.items() for partition in range(count)}
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in unread])
    readings = {topic: Reading() for topic in partitions}
    deadline = time.monotonic() + seconds_max
    try:
        while unread:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(unread)} partitions were not read to their end in {seconds_max:.0f} s")
            for message in consumer.consume(_BATCH, _POLL_SECONDS):
                if _is_record(message):
                    readings[message.topic()].add(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    unread.discard((message.topic(), message.partition()))
    finally:
        consumer.close()
    return readings


def _plain_consumer(bootstrap: str) -> Consumer:
    """Without a group: it commits nothing."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )


def count_between(bootstrap: str, topic: str, partitions: int, start_ms: int, end_ms: int) -> int:
    """How many offsets of a topic lie between two times (the later one excluded), by ListOffsets alone."""
    consumer = _plain_consumer(bootstrap)
    try:
        ends = []
        for time_ms in (start_ms, end_ms):
            asked = [TopicPartition(topic, partition, time_ms) for partition in range(partitions)]
            found = consumer.offsets_for_times(asked, timeout=_LOOK_UP_SECONDS_MAX)
            ends.append(
                sum(queue.offset if queue.offset >= 0 else consumer.get_watermark_offsets(queue)[1] for queue in found)
            )
    finally:
        consumer.close()
    return int(ends[1] - ends[0])


def _is_record(message: object) -> bool:
    error = message.error()  # type: ignore[attr-defined]
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF or error.code() in _PASSING or error.retriable():
        return False
    raise KafkaException(error)
