"""The local `QueueAdmin`: creating, deleting and trimming queues through the logs of their write groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from mainstem.model import QueueUsage, queue_id_of
from mainstem.storage import control
from mainstem.storage.errors import StorageFailed
from mainstem.storage.offset_lookup import OffsetLookup
from mainstem.storage.queue_table import COMMITTED_END, LOG_START, NO_SLOT, QueueTable
from mainstem.storage.usage import Usage
from mainstem.storage.write_group import WriteGroup
from mainstem.storage.write_loop import WriteLoop

SAMPLED_PARTITIONS = 4096
"""A range of more partitions than this has some in every group, near enough to log it in all of them."""


class LocalQueueAdmin:
    """`ports.QueueAdmin` over the write groups of this node."""

    def __init__(
        self,
        groups: Sequence[WriteGroup],
        group_of: Callable[[int], int],
        table: QueueTable,
        write_loop: WriteLoop,
        lookup: OffsetLookup,
        usage: Usage,
    ) -> None:
        self._groups = groups
        self._group_of = group_of
        self._table = table
        self._write_loop = write_loop
        self._lookup = lookup
        self._usage = usage

    async def create(self, topic_number: int, first_partition: int, count: int) -> None:
        last = queue_id_of(topic_number, first_partition + count - 1)
        first = queue_id_of(topic_number, first_partition)
        if self._table.find(first) != NO_SLOT and self._table.find(last) != NO_SLOT:
            return
        partitions = range(first_partition, first_partition + min(count, SAMPLED_PARTITIONS))
        concerned = {self._group_of(queue_id_of(topic_number, partition)) for partition in partitions}
        await self._propose(concerned, control.QueuesCreated(topic_number, first_partition, count))

    async def delete(self, topic_number: int) -> None:
        if self._table.ranges(topic_number):
            await self._propose(range(len(self._groups)), control.QueuesDeleted(topic_number))

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | None]:
        answers: dict[int, int | None] = {}
        moves: dict[int, list[tuple[int, int]]] = {}
        for queue_id, offset in before.items():
            slot = self._table.find(queue_id)
            if slot == NO_SLOT:
                answers[queue_id] = None
                continue
            high_watermark = self._table.get(slot, COMMITTED_END)
            start = high_watermark if offset == -1 else offset
            if not 0 <= start <= high_watermark:
                answers[queue_id] = None
                continue
            current = self._table.get(slot, LOG_START)
            answers[queue_id] = max(start, current)
            if start > current:
                moves.setdefault(self._group_of(queue_id), []).append((queue_id, start))
        await self.move_log_starts(moves)
        return answers

    async def move_log_starts(self, moves: Mapping[int, list[tuple[int, int]]]) -> None:
        """Log new log starts, (queue id, offset) pairs per write group."""
        moves = {group: pairs for group, pairs in moves.items() if pairs}
        if not moves:
            return
        self._check()
        futures = [
            self._groups[group].propose([control.LogStartMoved(tuple(pairs))])
            for group, pairs in moves.items()
        ]
        self._write_loop.wake()
        await asyncio.gather(*futures)

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None:
        current = self._groups[self._group_of(queue_id)].term
        return await self._lookup.epoch_end(queue_id, leader_epoch, current)

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        return await self._usage.of(queue_ids)

    async def _propose(self, groups: Iterable[int], command: control.Command) -> None:
        self._check()
        futures = [self._groups[group].propose([command]) for group in groups]
        self._write_loop.wake()
        await asyncio.gather(*futures)

    def _check(self) -> None:
        if self._write_loop.failure is not None:
            raise StorageFailed(f"no more writes: {self._write_loop.failure}")
