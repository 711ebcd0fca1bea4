"""Two brokers that both believe to coordinate what lies in one queue: the write group lets the newer one write, over
calls as in one process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.test_message_store import GROUPS, QUEUE, TOPIC, Linked
from tests.fakes.clock import LoopClock
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.broker.errors import LogUnavailable
from mainstem.broker.machines.machine_log import LogLimits, MachineLog
from mainstem.errors import LeaderMissing
from mainstem.model import FeatureLevel, QueueRange
from mainstem.protocol.records import NewRecord, Record, StoredBatch, read_records
from mainstem.storage_link.remote_message_store import RemoteMessageStore


class Texts:
    """Records that are their own content."""

    def encode(self, record: bytes, timestamp_ms: int, level: FeatureLevel) -> NewRecord:
        return NewRecord(timestamp=timestamp_ms, key=None, value=record)

    def decode(self, record: Record) -> bytes | None:
        return record.value

    def decode_all(self, batch: StoredBatch) -> Iterator[bytes]:
        return (found for record in read_records(batch) if (found := self.decode(record)) is not None)


async def contents(log: MachineLog[bytes]) -> list[object]:
    return [record async for record in log.read()]


def test_the_one_that_read_the_log_last_is_its_only_writer(tmp_path: Path) -> None:
    async def story() -> None:
        node = Linked(tmp_path, simulated=False)
        await node.start()
        await node.queues.create([QueueRange(TOPIC, 0, 1)])
        other = RemoteMessageStore(GROUPS, node.group_of, node.leaders, random.Random(2))
        limits = LogLimits(1 << 20, 1 << 16, 1.0)
        one, two = (
            MachineLog(QUEUE, Texts(), limits, store, node.queues, LoopClock()) for store in (node.messages, other)
        )
        try:
            assert await contents(one) == []
            await one.append([b"first"])
            await one.confirm_owner()
            assert await contents(two) == [b"first"]
            with pytest.raises(LogUnavailable, match="queue fenced"):
                await one.append([b"late"])
            with pytest.raises(LeaderMissing, match="another writer owns"):
                await one.confirm_owner()
            await two.append([b"second"])
            assert await contents(one) == [b"first", b"second"], "it owns the log again"
            with pytest.raises(LeaderMissing):
                await two.confirm_owner()
        finally:
            await other.close()
            await node.close()

    async def in_time() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story()

    asyncio.run(in_time())
