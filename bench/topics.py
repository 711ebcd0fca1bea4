"""Creating the topics of a run, and waiting until every queue of them can be written."""

from __future__ import annotations

import dataclasses
import time

from confluent_kafka.admin import AdminClient, NewTopic

from bench.errors import BenchError

CREATE_SECONDS_MAX = 120.0
PARTITIONS_PER_REQUEST = 9_000
"""Kafka refuses requests of 10,000 and more. A topic with more, which Mainstem takes, has a request to itself."""
_TOPICS_PER_REQUEST_MAX = 1_000
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Queues:
    """The topics PREFIX-0 … PREFIX-(topics - 1) with `partitions` each."""

    prefix: str
    topics: int
    partitions: int

    @property
    def count(self) -> int:
        return self.topics * self.partitions

    @property
    def names(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(self.topics)]


def create(address: str, queues: Queues, configs: dict[str, str] | None = None, *, replicas: int = 1) -> float:
    """Seconds it took until the last queue had a leader. Raises BenchError when it did not come to that."""
    admin = AdminClient(
        {"bootstrap.servers": address, "socket.timeout.ms": int(CREATE_SECONDS_MAX * 1000), "log_level": 0}
    )
    begun = time.perf_counter()
    names = queues.names
    step = max(1, min(_TOPICS_PER_REQUEST_MAX, PARTITIONS_PER_REQUEST // queues.partitions))
    for start in range(0, len(names), step):
        wanted = [
            NewTopic(name, queues.partitions, replicas, config=configs or {}) for name in names[start : start + step]
        ]
        for name, future in admin.create_topics(wanted, request_timeout=CREATE_SECONDS_MAX).items():
            try:
                future.result()
            except Exception as error:
                raise BenchError(f"{name} with {queues.partitions} partitions: {error}") from error
    while not _has_leaders(admin, names[-1], queues.partitions):
        if time.perf_counter() - begun > CREATE_SECONDS_MAX:
            raise BenchError(f"{names[-1]} has queues without a leader after {CREATE_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
    return time.perf_counter() - begun


def delete(address: str, queues: Queues) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in admin.delete_topics(queues.names, request_timeout=CREATE_SECONDS_MAX).values():
        future.result()


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    found = admin.list_topics(topic, timeout=CREATE_SECONDS_MAX).topics[topic].partitions
    return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())
