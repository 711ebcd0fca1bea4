"""Queues of both kernels with the same batches, and plans that ask for them."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import Any, NamedTuple

import google_crc32c
from tests.kernel.fetch.fetch_requests import KERNELS, key_of

from mainstem.kernel import COMMITTED_END, FIRST_UNSTABLE, LOG_START, NEXT_OFFSET, FollowedLog, Verdict
from mainstem.model import SLOTS_OF_ALL, BatchAppend, slot_of
from mainstem.ports import joined
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    BlockHeader,
    aligned,
)

CODES = tuple(range(100, 200))
"""Of verdicts: any numbers will do, as long as they differ. That of OK is never asked for."""

LARGE = 10_000
"""More bytes than are copied."""


def plan_of(kernel: ModuleType, version: int, request: FetchRequest) -> Any:
    return kernel.scan_fetch(memoryview(codec.write(request, version)), 0, version).plan


def asking(version: int, *topics: tuple[int, list[FetchPartition]]) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=tuple(FetchTopic(**key_of(version, number), partitions=tuple(asked)) for number, asked in topics),
    )


def at(partition: int, offset: int = 0, bytes_max: int = 1 << 20, leader_epoch: int = -1) -> FetchPartition:
    return FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=bytes_max,
        current_leader_epoch=leader_epoch,
    )


def number_of(key: str | bytes) -> int:
    return int(key.rsplit("-", 1)[1]) if isinstance(key, str) else key[-1]


def records_of(part: PartitionData) -> bytes:
    """Of a response that was read."""
    return b"".join(part.records) if isinstance(part.records, tuple) else bytes(part.records or b"")


def record_batch(base: int, records: int, filling: bytes) -> bytes:
    """A batch as the store stamps it, as long as `filling` is, with a CRC that holds."""
    covered = filling[21:23] + (records - 1).to_bytes(4, "big") + filling[27:]
    crc: int = google_crc32c.value(covered)
    return (
        base.to_bytes(8, "big")
        + (len(filling) - 12).to_bytes(4, "big")
        + (1).to_bytes(4, "big")
        + b"\x02"
        + crc.to_bytes(4, "big")
        + covered
    )


class World:
    """Topics 0 to 3 have five partitions, topic 4 is unknown. Queues of both kernels with the same batches."""

    def __init__(self, cache_bytes: int, groups: int = 3) -> None:
        self.tables = [kernel.QueueTable() for kernel in KERNELS]
        for table in self.tables:
            for topic in range(4):
                table.create(topic, 0, 4)  # the store does not know the last partition
        self.indexes = [
            kernel.RecentIndex(table, cache_bytes) for kernel, table in zip(KERNELS, self.tables, strict=True)
        ]
        self.batches: dict[int, list[tuple[int, int, bytes]]] = {}
        """First offset, next offset and bytes of each batch, by queue id."""
        self.log_start: dict[int, int] = {}
        self.appended_ahead: dict[int, int] = {}
        self.slots = bytes(2 * SLOTS_OF_ALL)
        self.logs: list[Any] = []
        self.position = 4096
        self.blocks = 0
        self._place(groups)

    def _place(self, groups: int) -> None:
        self.slots = b"".join((slot % groups).to_bytes(2, "little") for slot in range(SLOTS_OF_ALL))
        self.logs = [Log(7 + group) for group in range(groups - 1)] + [None]  # another node leads the last

    def led(self, queue_id: int) -> bool:
        return self.logs[slot_of(queue_id) % len(self.logs)] is not None

    def group(self, queue_id: int) -> int:
        return slot_of(queue_id) % len(self.logs)

    def follow(self, groups: set[int]) -> None:
        """Have other nodes lead these write groups, whose replicas here may be read."""
        for group in groups & set(range(len(self.logs))):
            self.logs[group] = FollowedLog(7 + group)

    def followed(self, queue_id: int) -> bool:
        return isinstance(self.logs[self.group(queue_id)], FollowedLog)

    def term(self, queue_id: int) -> int:
        term: int = self.logs[slot_of(queue_id) % len(self.logs)].term
        return term

    def add_block(self, rows: list[tuple[int, int, int]]) -> None:
        """(queue id, records, bytes) of each batch."""
        added = []
        for queue_id, records, size in rows:
            stored = self.batches.setdefault(queue_id, [])
            base = stored[-1][1] if stored else 0
            data = record_batch(base, records, bytes([self.blocks % 251, len(stored) % 251]) * (size // 2))
            stored.append((base, base + records, data))
            added.append((queue_id, base, records, data))
        self.blocks += 1
        for kernel, table, index in zip(KERNELS, self.tables, self.indexes, strict=True):
            builder = kernel.BlockBuilder(kernel.Arena(1 << 20))
            for queue_id, base, records, data in added:
                batch = BatchAppend(queue_id, memoryview(data), records, records - 1, 5, -1, -1, -1, 0, 0)
                builder.add(batch, base, 1)
                slot = table.find(queue_id)
                table.set(slot, COMMITTED_END, base + records)
                table.set(slot, NEXT_OFFSET, base + records)
            self._index(index, builder)

    def _index(self, index: Any, builder: Any) -> None:
        size = len(builder.payload)
        length = aligned(BLOCK_HEADER_BYTES + DIRECTORY_ROW_BYTES * builder.batch_count + size)
        header = BlockHeader(KIND_DATA, 0, 1, self.blocks, length, builder.batch_count, size, 0, self.position, 0, 0, 0)
        index.add(header, builder.directory, builder.payload)

    def move_log_start(self, queue_id: int, offset: int) -> None:
        end = self.high_watermark(queue_id)
        self.log_start[queue_id] = min(max(offset, self.log_start.get(queue_id, 0)), end)
        self._set(queue_id, LOG_START, self.log_start[queue_id])

    def append_ahead(self, queue_id: int, records: int) -> None:
        """Records that are appended and not committed."""
        self.appended_ahead[queue_id] = records
        self._set(queue_id, NEXT_OFFSET, self.high_watermark(queue_id) + records)

    def open_transaction(self, queue_id: int, first_offset: int) -> None:
        """Let the oldest open transaction begin at this offset; -1: none is open."""
        self._set(queue_id, FIRST_UNSTABLE, first_offset + 1)

    def _set(self, queue_id: int, cell: int, value: int) -> None:
        for table in self.tables:
            table.set(table.find(queue_id), cell, value)

    def known(self, queue_id: int) -> bool:
        return bool(self.tables[0].find(queue_id) >= 0)

    def high_watermark(self, queue_id: int) -> int:
        stored = self.batches.get(queue_id)
        return stored[-1][1] if stored else 0

    def read(self, queue_id: int, offset: int, budget: int, whole_first: bool) -> tuple[list[bytes], int]:
        """The answer of a store that has everything at hand, and the offset behind it."""
        found: list[bytes] = []
        for base, following, data in self.batches.get(queue_id, []):
            if following <= offset:
                continue
            if len(data) > budget and (found or not whole_first):
                return found, base if found else offset
            found.append(data)
            budget -= len(data)
        return found, self.high_watermark(queue_id)


class Log(NamedTuple):
    term: int


def resolver(kernel: ModuleType, spread: Collection[int] = ()) -> Any:
    topics = {number: kernel.PlannedTopic(number, 5, spread=number in spread) for number in range(4)}
    unknown = kernel.PlannedTopic(0, 0, Verdict.UNKNOWN_TOPIC)
    return lambda key: topics.get(number_of(key), unknown)


def whole(plan: Any, version: int = 12, **how: Any) -> bytes:
    return joined(plan.response(version, 5, CODES, **how))
