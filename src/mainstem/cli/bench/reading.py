"""Consumers that read a topic as fast as they can, a thread each.

A member is done when each of its partitions was read to the end that it had at the start; the reading is over when
every member is, none earlier: one that left its group would have its partitions move to the others while they are
measured. Each attribute is written under `_lock`, by the members' threads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from mainstem.cli.clients import kafka_node
from mainstem.cli.terminal.connection_news import LOST_SECONDS_MAX, ConnectionNews

_BATCH_RECORDS = 1000
"""Taken from a client at once: past this a record does not get cheaper."""
_TAKE_SECONDS = 0.01
"""How long a client waits for a full batch, and so by how much a reading may look longer than it was."""


class BenchMember:
    """One consumer's part of the reading."""

    def __init__(self, open_partitions: set[int] | None) -> None:
        self.open_partitions = open_partitions
        """Assigned and not at their end; None while nothing is assigned, as before a group's first assignment."""

    @property
    def is_done(self) -> bool:
        return self.open_partitions is not None and not self.open_partitions


class BenchReading:
    """One run. `assign` or `join` begins it; `finish` must end it."""

    def __init__(
        self, topic: str, *, ends: Mapping[int, int], follows: bool, records_max: int | None, news: ConnectionNews
    ) -> None:
        """`ends`: partition -> the offset to read up to. With `follows` they are no end."""
        self.records = 0
        self.bytes = 0
        """Of keys and values."""
        self.failure: str | None = None
        self.members: list[BenchMember] = []
        self._topic = topic
        self._ends = ends
        self._follows = follows
        self._records_max = sys.maxsize if records_max is None else records_max
        self._done: set[int] = set()
        """Partitions that any member read to the end: whoever is assigned one later need not hear of its end again."""
        self._news = news
        self._lock = threading.Lock()
        self._stopping = False
        self._begun_at: float | None = None
        self._last_record_at: float | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._futures: list[Future[None]] = []

    @property
    def seconds(self) -> float:
        """From the first assignment to the last record."""
        if self._begun_at is None or self._last_record_at is None:
            return 0.0
        return self._last_record_at - self._begun_at

    def assign(self, settings: dict[str, Any], offsets: Mapping[int, int], consumers: int) -> None:
        """Read these partitions from these offsets; no more of the consumers than there are partitions to read."""
        chosen = [partition for partition, offset in offsets.items() if self._follows or offset < self._ends[partition]]
        shares = [chosen[first::consumers] for first in range(min(consumers, len(chosen)))]
        self.members = [BenchMember(set(share)) for share in shares]
        clients = []
        self._begun_at = time.monotonic()
        for number, share in enumerate(shares):
            client = Consumer(self._settings(settings, number))
            client.assign([TopicPartition(self._topic, partition, offsets[partition]) for partition in share])
            clients.append(client)
        self._start(clients)

    def join(self, settings: dict[str, Any], consumers: int) -> None:
        """Read as so many members of the settings' group."""
        self.members = [BenchMember(None) for _ in range(consumers)]
        clients = []
        for number, member in enumerate(self.members):
            client = Consumer(self._settings(settings, number))
            client.subscribe(
                [self._topic],
                on_assign=lambda _, queues, member=member: self._assigned(member, queues),
                on_revoke=lambda _, queues, member=member: self._revoked(member),
            )
            clients.append(client)
        self._start(clients)

    def wait(self, seconds: float) -> bool:
        """Whether the reading came to its end within so long."""
        return not wait(self._futures, seconds).not_done

    def finish(self) -> None:
        """End the reading and let go of the consumers."""
        self._stopping = True
        if self._threads is not None:
            self._threads.shutdown()
        for future in self._futures:
            future.result()

    def _settings(self, settings: dict[str, Any], number: int) -> dict[str, Any]:
        # The clients lose and find the same node: one tells.
        return {**settings, "error_cb": self._news.on_error} if number == 0 else settings

    def _start(self, clients: list[Any]) -> None:
        if clients:
            self._threads = ThreadPoolExecutor(len(clients))
            self._futures = [
                self._threads.submit(self._read, client, member)
                for client, member in zip(clients, self.members, strict=True)
            ]

    def _read(self, client: Any, member: BenchMember) -> None:
        try:
            while not self._is_over():
                wanted = min(_BATCH_RECORDS, self._records_max - self.records)
                # The others may have taken the last since.
                self._count(client.consume(max(wanted, 1), _TAKE_SECONDS), member)
        finally:
            client.close()

    def _is_over(self) -> bool:
        if self._stopping or self.failure is not None or self.records == self._records_max:
            return True
        if not self._follows and self._news.lost_for() > LOST_SECONDS_MAX:
            self.failure = f"the node did not come back within {LOST_SECONDS_MAX:.0f} s"
        if not self._follows and all(member.is_done for member in self.members):
            # For good: the first member to leave its group has the partitions of the others move.
            self._stopping = True
        return self._stopping

    def _count(self, messages: list[Any], member: BenchMember) -> None:
        sizes: list[int] = []
        reached: dict[int, int] = {}
        at_end: set[int] = set()
        for message in messages:
            error = message.error()
            if error is not None:
                self._heard(error, message.partition(), at_end)
                continue
            sizes.append(len(message) + len(message.key() or b""))
            reached[message.partition()] = message.offset()
        if sizes or at_end:
            self._news.is_back()
        at_end |= {queue for queue, offset in reached.items() if offset + 1 >= self._ends.get(queue, 0)}
        with self._lock:
            # What several members took past the limit between them was read and does not count.
            del sizes[self._records_max - self.records :]
            self.records += len(sizes)
            self.bytes += sum(sizes)
            if sizes:
                self._last_record_at = time.monotonic()
            self._done |= at_end
            if member.open_partitions is not None:
                member.open_partitions -= at_end

    def _heard(self, error: Any, partition: int, at_end: set[int]) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            at_end.add(partition)
        elif not kafka_node.is_passing(error):
            self.failure = self.failure or f"reading failed: {error.str()} ({error.name()})"

    def _assigned(self, member: BenchMember, queues: list[Any]) -> None:
        with self._lock:
            self._begun_at = self._begun_at or time.monotonic()
            member.open_partitions = {queue.partition for queue in queues} - self._done

    def _revoked(self, member: BenchMember) -> None:
        with self._lock:
            member.open_partitions = None
