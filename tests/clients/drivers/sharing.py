"""librdkafka's share consumer, as tests use it: it says of every record what becomes of it, and remembers what the node
has confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType

from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from tests.clients.drivers.librdkafka import KEEP_TRYING

Record = tuple[int, int]
"""Partition and offset."""


def accept(message: Message) -> AcknowledgeType:
    return AcknowledgeType.ACCEPT


class Sharing:
    """One member; leaving the context closes it."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
        self._consumer = ShareConsumer({**settings, **KEEP_TRYING})
        self._consumer.subscribe([topic])
        self.seen: Counter[Record] = Counter()
        """How often each record came."""
        self.accepted: set[Record] = set()
        """The records whose acceptance the node has confirmed."""

    def __enter__(self) -> Sharing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._consumer.close()

    def take(self, say: Callable[[Message], AcknowledgeType] = accept, seconds: float = 0.5) -> list[Record]:
        """One poll, and an acknowledgement of all that it brings, once that is confirmed."""
        taken: list[Record] = []
        accepted: dict[int, set[Record]] = {}
        for message in self._consumer.poll(seconds):
            if message.error() is not None:
                continue
            record = message.partition(), message.offset()
            taken.append(record)
            self.seen[record] += 1
            said = say(message)
            self._consumer.acknowledge(message, said)
            if said is AcknowledgeType.ACCEPT:
                accepted.setdefault(message.partition(), set()).add(record)
        if taken:
            for at, failure in self._consumer.commit_sync(30).items():
                if failure is None:
                    self.accepted |= accepted.get(at.partition, set())
        return taken
