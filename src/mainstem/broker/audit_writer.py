"""Writes audit records to the internal topic, and to a file if one is named: in the background, no request waits.

A node writes to partitions that it leads itself. Records that cannot be written now are tried again, so many of each
lane; beyond that the oldest are dropped and counted, and a record tells how many.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Sequence
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
BATCH_RECORDS_MAX = 500
FILE_MODE = 0o600

log = logging.getLogger(__name__)


class AuditWriter:
    """`work`: does what a disk may hold up."""

    def __init__(self, broker: Broker, audit: AuditLog, config: AuditConfig, work: SideWork) -> None:
        self._broker = broker
        self._audit = audit
        self._config = config
        self._work = work
        self._troubles = BoundedLog(log, broker.clock)
        self._unsent: list[AuditRecord] = []
        """Records that the topic has not taken yet."""
        self._next = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write what there is."""
        records = self._audit.take()
        if records and self._config.file:
            await self._to_file(records)
        if not self._config.topic:
            return
        self._unsent += records
        self._bound()
        while self._unsent and await self._to_topic(self._unsent[:BATCH_RECORDS_MAX]):
            del self._unsent[:BATCH_RECORDS_MAX]

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
                self._audit.drop(record.lane)
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
                self._audit.drop(record.lane)
            self._troubles.report(
                logging.WARNING, f"audit records are not written to {path}: {error.strerror or error}"
            )

    async def _to_topic(self, records: Sequence[AuditRecord]) -> bool:
        """Whether the topic has taken the records."""
        try:
            topic = self._broker.metadata.topic(AUDIT_TOPIC) or await self._made()
            queue_id = None if topic is None else self._led_here(topic)
            if queue_id is None:
                return False
            now_ms = self._broker.clock.now_ms()
            batch = build_batch([NewRecord(timestamp=now_ms, key=None, value=record.content) for record in records])
            (result,) = await self._broker.store.append([batch.to_append(queue_id)], -1)
        except (MainstemError, OSError) as error:
            self._troubles.report(logging.WARNING, f"audit records wait, {AUDIT_TOPIC} does not take them: {error}")
            return False
        return result.outcome is Outcome.OK

    async def _made(self) -> Topic | None:
        broker = self._broker
        copies = max(1, min(broker.facts.replication_factor, sum(node.stores for node in broker.metadata.nodes())))
        try:
            return await create_topic(broker, AUDIT_TOPIC, PARTITIONS, copies, CONFIGS, internal=True)
        except TopicExists:
            return broker.metadata.topic(AUDIT_TOPIC)

    def _led_here(self, topic: Topic) -> int | None:
        """The next partition that this node leads; None: it leads none."""
        leadership = self._broker.leadership
        for number in range(self._next, self._next + topic.partitions):
            queue_id = topic.queue_id(number % topic.partitions)
            if leadership.serves_here(queue_id) and leadership.leads(leadership.group_of(queue_id)):
                self._next = number % topic.partitions + 1
                return queue_id
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
