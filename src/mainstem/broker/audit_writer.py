"""Writes audit records to the internal topic, and to a file if one is named: in the background, no request waits.

A node writes to partitions that it serves itself, and hands its records to another node where it serves none. Records
that cannot be written now are tried again, so many of each lane; beyond that the oldest are dropped and counted, and a
record tells how many. Records whose append ended without an answer may come twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mainstem.bounded_log import BoundedLog
from mainstem.broker.admin.topic_admin import create_topic
from mainstem.broker.broker import Broker
from mainstem.errors import MainstemError
from mainstem.model import Outcome, Topic
from mainstem.nameserver.errors import TopicExists
from mainstem.ports import SideWork
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.security.audit.audit_log import AUDIT_TOPIC, WAITING_MAX, AuditLane, AuditLog, AuditRecord
from mainstem.security.audit.config import AuditConfig

PARTITIONS = 16
"""Of which each node of a small cluster leads some."""

CONFIGS = {"cleanup.policy": "delete", "retention.ms": str(90 * 24 * 60 * 60 * 1000)}
"""An internal topic loses records only with a policy of its own."""

PAUSE_SECONDS = 0.5
AUDIT_RECORDS_MAX = 500
"""Records of one batch, and of one call to another node: a megabyte."""

FILE_MODE = 0o600

log = logging.getLogger(__name__)

Elsewhere = Callable[[int, Sequence[bytes]], Awaitable[bool]]
"""Hands records to a node; whether it has them in the topic. Raises MainstemError where it cannot be reached."""


async def nowhere(node_id: int, records: Sequence[bytes]) -> bool:
    """There are no other nodes."""
    return False


class AuditWriter:
    """`work`: does what a disk may hold up."""

    def __init__(
        self, broker: Broker, audit: AuditLog, config: AuditConfig, work: SideWork, elsewhere: Elsewhere = nowhere
    ) -> None:
        self._broker = broker
        self._audit = audit
        self._config = config
        self._work = work
        self._elsewhere = elsewhere
        self._troubles = BoundedLog(log, broker.clock)
        self._unsent: list[AuditRecord] = []
        """Records that the topic has not taken yet."""
        self._next = 0
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Write from time to time, until cancelled: a write that has begun goes on then, as it has records in hand."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.shield(asyncio.ensure_future(self.write()))

    async def write(self) -> None:
        """Write what there is, behind a write that is under way."""
        async with self._turn:
            await self._write()

    async def _write(self) -> None:
        records = self._audit.take()
        if not self._unsent:  # of those that wait more may be dropped: it is told once they are through
            records += self._audit.take_missing()
        if records and self._config.file:
            await self._to_file(records)
        if not self._config.topic:
            return
        self._unsent += records
        self._bound()
        while self._unsent and await self._to_topic([it.content for it in self._unsent[:AUDIT_RECORDS_MAX]]):
            del self._unsent[:AUDIT_RECORDS_MAX]

    def _bound(self) -> None:
        """Drop the oldest records of lanes that have too many."""
        beyond = Counter[AuditLane](record.lane for record in self._unsent)
        beyond.subtract(dict.fromkeys(beyond, WAITING_MAX))
        if all(count <= 0 for count in beyond.values()):
            return
        kept = []
        for record in self._unsent:
            if beyond[record.lane] > 0:
                beyond[record.lane] -= 1
                self._audit.drop(record)
            else:
                kept.append(record)
        self._unsent = kept

    async def _to_file(self, records: Sequence[AuditRecord]) -> None:
        lines = b"".join(record.content + b"\n" for record in records)
        path, config = Path(self._config.file), self._config
        try:
            await self._work.run(lambda: _append(path, lines, config.file_bytes_max, config.files_max))
        except OSError as error:
            for record in records:
                self._audit.drop(record)
            self._troubles.report(
                logging.WARNING, f"audit records are not written to {path}: {error.strerror or error}"
            )

    async def _to_topic(self, records: Sequence[bytes]) -> bool:
        """Whether the topic has taken the records."""
        try:
            topic = self._broker.metadata.topic(AUDIT_TOPIC) or await self._made()
            if topic is None:
                return False
            if (queue_id := self._served_here(topic)) is not None:
                return await self._append(queue_id, records)
            if (node_id := self._leader_elsewhere(topic)) is not None:
                return await self._elsewhere(node_id, records)
        except (MainstemError, OSError) as error:
            self._troubles.report(logging.WARNING, f"audit records wait, {AUDIT_TOPIC} does not take them: {error}")
        return False

    async def take_over(self, records: Sequence[bytes]) -> bool:
        """Append the records of a node that serves no partition. False: this node serves none either, now."""
        topic = self._broker.metadata.topic(AUDIT_TOPIC)
        queue_id = None if topic is None else self._served_here(topic)
        return queue_id is not None and await self._append(queue_id, records)

    async def _append(self, queue_id: int, records: Sequence[bytes]) -> bool:
        now_ms = self._broker.clock.now_ms()
        batch = build_batch([NewRecord(timestamp=now_ms, key=None, value=record) for record in records])
        (result,) = await self._broker.store.append([batch.to_append(queue_id)], -1)
        return result.outcome is Outcome.OK

    async def _made(self) -> Topic | None:
        broker = self._broker
        copies = max(1, min(broker.facts.replication_factor, sum(node.stores for node in broker.metadata.nodes())))
        try:
            return await create_topic(broker, AUDIT_TOPIC, PARTITIONS, copies, CONFIGS, internal=True)
        except TopicExists:
            return broker.metadata.topic(AUDIT_TOPIC)

    def _served_here(self, topic: Topic) -> int | None:
        """The next partition whose appends come to this node; None: it serves none."""
        for number in range(self._next, self._next + topic.partitions):
            queue_id = topic.queue_id(number % topic.partitions)
            if self._broker.routing.serves_here(queue_id):
                self._next = number % topic.partitions + 1
                return queue_id
        return None

    def _leader_elsewhere(self, topic: Topic) -> int | None:
        """The node that leads the next partition which has a leader; None: none has, as far as this node knows."""
        leadership = self._broker.leadership
        for number in range(self._next, self._next + topic.partitions):
            leader = leadership.replicas(leadership.group_of(topic.queue_id(number % topic.partitions))).leader
            if leader >= 0 and leader != self._broker.node_id:
                self._next = number % topic.partitions + 1
                return leader
        return None


def _append(path: Path, lines: bytes, bytes_max: int, files_max: int) -> None:
    """Append to a file that only its owner reads. One that would get too large is `path.1` from then on, and so on."""
    if path.exists() and path.stat().st_size + len(lines) > bytes_max:
        path.with_name(f"{path.name}.{files_max - 1}").unlink(missing_ok=True)
        for number in range(files_max - 2, -1, -1):
            older = path if number == 0 else path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.rename(path.with_name(f"{path.name}.{number + 1}"))
        if files_max == 1:
            path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE), "ab") as file:
        file.write(lines)
