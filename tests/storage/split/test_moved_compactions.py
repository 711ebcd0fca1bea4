"""Compactions of queues that move between two write groups, of real files, without Spark: however parts of both are
merged and compacted, a reader of all comes to the latest record of each key; a planted bug is found by a key that has
come back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from tests.simulation.find import at_length
from tests.storage.split.test_real_compactions import RETENTION_MS, CompactStore, Told
from tests.storage.split.test_real_merges import QUEUES

from mainstem.model import SLOTS, slot_of
from mainstem.protocol.records import StoredBatch, read_batch_header, read_records
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.extents.offset_gaps import OffsetGaps
from mainstem.storage.placement import Placement
from mainstem.storage.split.compaction_log import LocalCompactionLog


class MovedStore(CompactStore):
    """Its queues go from one write group to the other and back, between two slices."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        slots = [0] * SLOTS
        for queue_id in range(QUEUES):
            slots[slot_of(queue_id)] = queue_id % 2
        self.placement = Placement(slots)

    def were_twice(self) -> Sequence[int]:
        return self.placement.returned()

    def gaps_in(self, group: int, queue_ids: QueueIds) -> OffsetGaps:
        return self.placement.gaps_in(group, queue_ids)

    def bounds_in(self, group: int, queue_ids: QueueIds) -> tuple[numpy.ndarray, numpy.ndarray]:
        return self.placement.bounds_in(group, queue_ids)

    def move(self, queue_id: int) -> None:
        told = self.records[queue_id]
        if told:
            here = self.placement.history(queue_id)[-1].group
            self.placement.arrive(queue_id, here, 1 - here, told[-1].offset + 1)

    async def read(self, queue_id: int) -> list[Told]:
        told = []
        for group, offset, end in self.placement.stretches_from(queue_id, 0):
            while offset < end:
                stored = await self.store.history.read(queue_id, group, offset, 20_000)
                if stored is None:
                    break
                for data in map(bytes, stored.batches):
                    for record in read_records(StoredBatch(data, read_batch_header(data))):
                        if record.offset < end:  # runs have batches of both write groups
                            told.append(Told(record.offset, record.timestamp, record.key, record.value))
                offset = stored.next_offset
        return told


async def story(real: MovedStore, *, returns: bool) -> None:
    await real.open()
    moved: set[int] = set()
    for _ in range(8):
        for _ in range(real.choice.randint(1, 3)):
            await real.split()
        for queue_id in range(QUEUES):
            if real.choice.random() < 0.25 and (returns or queue_id not in moved):
                real.move(queue_id)
                moved.add(queue_id)
        for _ in range(real.choice.randint(0, 3)):
            if not await real.merge(drain=real.choice.random() < 0.5):
                break
        while real.choice.random() < 0.7:
            if not await real.compact(drain=real.choice.random() < 0.5):
                break
        await real.check()
        real.clock.advance(real.choice.choice([0, 1, RETENTION_MS / 500]))
    for _ in range(3):  # the records, the horizons of tombstones, and the tombstones that may go
        await real.settle()
        await real.check()
        real.clock.advance(RETENTION_MS / 1000 + 1)
    assert real.passes
    await real.store.close()
    await real.files.close()


@pytest.mark.parametrize("seed", [0, 1, *map(at_length, range(2, 12))])
@pytest.mark.parametrize("returns", [False, True])
def test_of_each_key_the_latest_record_stays_where_queues_move(tmp_path: Path, seed: int, returns: bool) -> None:
    real = MovedStore(tmp_path, seed)
    asyncio.run(story(real, returns=returns))
    assert real.placement.moved
    assert bool(real.placement.returned()) is returns


def test_without_moves_to_mind_deleted_keys_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCompactionLog, "_whole_in", lambda log, group, ids: numpy.ones(len(ids), numpy.bool_))
    real = MovedStore(tmp_path, 1)
    with pytest.raises(AssertionError, match=r"b'key-.*of queue"):
        asyncio.run(story(real, returns=False))
