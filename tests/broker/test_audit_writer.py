"""Audit records on their way to the topic and the file, over a fake store and a real disk."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
from tests.broker.harness import Fakes, make_broker

from mainstem.broker.audit_writer import PARTITIONS, AuditWriter, Elsewhere
from mainstem.model import QueueRead, Topic
from mainstem.protocol.records import read_records, stored_batches
from mainstem.security.audit.audit_log import AUDIT_TOPIC, AuditEvent, AuditLog
from mainstem.security.audit.config import ADMIN, AuditConfig
from mainstem.side_thread import AtOnce


class Written:
    def __init__(self, config: AuditConfig) -> None:
        self.fakes: Fakes = make_broker()
        self.audit = AuditLog(config, self.fakes.broker.clock)
        self._config = config
        self.writer = AuditWriter(self.fakes.broker, self.audit, config, AtOnce())
        self._added = 0

    def write_elsewhere(self, elsewhere: Elsewhere, leader: int) -> None:
        """From now on another node leads all partitions, and records are handed to it so."""
        self.writer = AuditWriter(self.fakes.broker, self.audit, self._config, AtOnce(), elsewhere)
        topic = self.topic() or self.fakes.metadata.add_topic(AUDIT_TOPIC, PARTITIONS, internal=True)
        queues = [topic.queue_id(partition) for partition in range(topic.partitions)]
        self.fakes.store.led_elsewhere |= set(queues)
        self.fakes.metadata.leaders |= dict.fromkeys(queues, leader)

    def topic(self) -> Topic | None:
        return self.fakes.metadata.topic(AUDIT_TOPIC)

    def add(self, count: int) -> None:
        for _ in range(count):
            self._added += 1
            self.audit.add(AuditEvent(ADMIN, "User:an", "h", "CreateTopics", f"topic:{self._added}", "allowed"))

    def fail(self, count: int) -> None:
        for _ in range(count):
            self._added += 1
            self.audit.add(AuditEvent(ADMIN, "User:an", "h", "CreateTopics", f"topic:{self._added}", "INVALID_REQUEST"))

    async def in_topic(self) -> list[str]:
        """The resources in the topic's records, sorted."""
        topic = self.topic()
        assert topic is not None
        assert topic.internal
        found = []
        for partition in range(topic.partitions):
            (slice_,) = await self.fakes.store.read([QueueRead(topic.queue_id(partition), 0, 2**30)], 2**30)
            for data in slice_.batches:
                for batch in stored_batches(data):
                    found += [json.loads(record.value or b"").get("resource", "") for record in read_records(batch)]
        return sorted(found)


def resources(path: Path) -> list[str]:
    return [json.loads(line)["resource"] for line in path.read_text().splitlines()]


def test_records_come_to_a_topic_of_the_brokers_own() -> None:
    async def story() -> None:
        written = Written(AuditConfig(records_per_second=10_000))
        await written.writer.write()
        assert written.fakes.metadata.topic(AUDIT_TOPIC) is None, "without records there is no topic"
        written.add(3)
        await written.writer.write()
        written.add(1200)
        await written.writer.write()
        assert await written.in_topic() == sorted(f"topic:{number}" for number in range(1, 1204))
        assert not written.audit.dropped

    asyncio.run(story())


def test_records_wait_for_a_leader_and_are_bounded_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.broker.audit_writer.WAITING_MAX", 5)

    async def story() -> None:
        written = Written(AuditConfig())
        written.add(1)
        await written.writer.write()
        topic = written.fakes.metadata.topic(AUDIT_TOPIC)
        assert topic is not None
        queues = {topic.queue_id(partition) for partition in range(topic.partitions)}
        written.fakes.store.led_elsewhere |= queues
        written.add(8)
        for _ in range(10):  # what tells of dropped records takes no room from those that wait
            await written.writer.write()
        assert written.audit.dropped == 3
        written.fail(7)
        await written.writer.write()
        assert written.audit.dropped == 5
        written.fakes.store.led_elsewhere -= queues
        await written.writer.write()
        await written.writer.write()
        waited = [*range(5, 10), *range(12, 17)]
        assert await written.in_topic() == sorted(["", "", "topic:1", *(f"topic:{number}" for number in waited)])
        assert not any(record.missing for record in written.audit.take_missing())

    asyncio.run(story())


def test_a_file_has_the_same_records_and_is_replaced_when_it_is_long(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "audit"
        written = Written(AuditConfig(topic=False, file=str(path), file_bytes_max=1024, files_max=3))
        for _ in range(10):
            written.add(4)
            await written.writer.write()

    asyncio.run(story())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit", "audit.1", "audit.2"]
    newest = [*resources(tmp_path / "audit.2"), *resources(tmp_path / "audit.1"), *resources(tmp_path / "audit")]
    assert newest == [f"topic:{number}" for number in range(41 - len(newest), 41)]
    for file in tmp_path.iterdir():
        assert file.stat().st_size <= 1024
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_costs_records_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        written = Written(AuditConfig(topic=False, file=str(tmp_path / "nowhere" / "audit")))
        written.add(2)
        for _ in range(3):
            await written.writer.write()
        assert written.audit.dropped == 2
        (tmp_path / "nowhere").mkdir()
        await written.writer.write()
        assert json.loads((tmp_path / "nowhere" / "audit").read_text())["count"] == 2

    asyncio.run(story())
