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
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.extents.offset_gaps import OffsetGaps
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.queue_store.reading.open_files import KnownFile
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
            slot = slot_of(queue_id)
            self.placement.place(slot, 1 - here, self.placement.placed.get(slot, (here, 0))[1] + 1)

    def forget_first_stay(self, queue_id: int) -> None:
        """Retention passes what a queue had in the first of its write groups, which may be in files there still."""
        stays = self.placement.history(queue_id)
        if len(stays) > 1:
            self.starts[queue_id] = stays[1].first_offset
            self.placement.cut(queue_id, self.starts[queue_id])

    async def check(self) -> None:
        """…of what is behind the log starts."""
        records = self.records
        self.records = {
            queue_id: [one for one in told if one.offset >= self.starts[queue_id]] for queue_id, told in records.items()
        }
        try:
            await super().check()
        finally:
            self.records = records

    async def read(self, queue_id: int) -> list[Told]:
        told = []
        for group, offset, end in self.placement.stretches_from(queue_id, self.starts[queue_id]):
            while offset < end:
                stored = await self.store.history.read(queue_id, group, offset, 20_000)
                if stored is None:
                    break
                for data in map(bytes, stored.batches):
                    for record in read_records(StoredBatch(data, read_batch_header(data))):
                        if offset <= record.offset < end:  # runs have batches of both write groups
                            told.append(Told(record.offset, record.timestamp, record.key, record.value))
                offset = stored.next_offset
        return told


async def story(real: MovedStore, *, returns: bool, forgets: bool = False) -> None:
    await real.open()
    moved: set[int] = set()
    for _ in range(8):
        for _ in range(real.choice.randint(1, 3)):
            await real.split()
        for queue_id in range(QUEUES):
            if real.choice.random() < 0.25 and (returns or queue_id not in moved):
                real.move(queue_id)
                moved.add(queue_id)
            if forgets and real.choice.random() < 0.25:
                real.forget_first_stay(queue_id)
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


@pytest.mark.parametrize("seed", [0, 1, *map(at_length, range(2, 12))])
def test_what_comes_behind_a_return_is_not_taken_for_what_was_before_that(tmp_path: Path, seed: int) -> None:
    """Retention passes the first stay in a write group while its files have records of both."""
    real = MovedStore(tmp_path, seed)
    asyncio.run(story(real, returns=True, forgets=True))
    assert any(real.starts.values())


def test_no_extent_goes_on_over_what_a_queue_had_elsewhere_before_its_history_begins(tmp_path: Path) -> None:
    """A file has both stays of a queue in its write group, and retention has passed the first one."""
    queue_id = 0

    async def told(real: MovedStore) -> None:
        await real.open()
        for stay in range(3):
            if stay:
                real.move(queue_id)
            for _ in range(3):
                await real.split()
        (_first, away, back) = real.placement.history(queue_id)
        while await real.merge(drain=True):
            pass
        real.forget_first_stay(queue_id)
        assert real.placement.history(queue_id) == (Stay(away.group, 0), back)
        await real.settle()
        assert real.passes
        files = [await rows_of(real, name, queue_id) for name in real.store.manifest.files]
        beside = [(rows["base_offset"] < back.first_offset).sum() for rows in files if len(rows)]
        assert any(early > 0 for early in beside)
        for rows in files:
            assert not ((rows["base_offset"] < back.first_offset) & (rows["last_offset"] >= back.first_offset)).any()
        await real.store.close()
        await real.files.close()

    asyncio.run(told(MovedStore(tmp_path, 4)))


async def rows_of(real: MovedStore, name: str, queue_id: int) -> Rows:
    """The extents of a queue in a file."""
    index = await real.store.stored.open_files.index(KnownFile(name), keep=False)
    first, end = index.queue_rows(queue_id)
    rows: Rows = index.rows[first:end]
    return rows


def test_without_moves_to_mind_deleted_keys_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCompactionLog, "_whole_in", lambda log, group, ids: numpy.ones(len(ids), numpy.bool_))
    real = MovedStore(tmp_path, 1)
    with pytest.raises(AssertionError, match=r"b'key-.*of queue"):
        asyncio.run(story(real, returns=False))


def test_without_returns_to_mind_deleted_keys_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue deletes keys that it wrote elsewhere, between two times in a write group."""
    monkeypatch.setattr(MovedStore, "were_twice", lambda real: ())
    real = MovedStore(tmp_path, 1)
    with pytest.raises(AssertionError, match=r"b'key-.*of queue"):
        asyncio.run(story(real, returns=True))
