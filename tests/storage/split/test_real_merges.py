"""Merges of real files: what tasks write is what the node reads, checks, and serves."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.changes.test_merged_files import groups_at
from tests.storage.queue_store.runs import Batch, make_batch, write
from tests.storage.queue_store.test_store import log_starts, read_all

from mainstem.model import Topic, TopicSettings
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.extents.offset_gaps import NO_GAPS, OffsetGaps
from mainstem.storage.merging.merge_files import merge_files
from mainstem.storage.merging.merge_inputs import InputFile
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import Liveness, LiveOffsets
from mainstem.storage.merging.merge_measure import facts_of, measure
from mainstem.storage.queue_store.changes.aged_runs import AgedOf, none_aged
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.split.merge_log import LocalMergeLog
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import FileKind, StoreFile, index_path_of, kind_of, path_of

QUEUES = 9
NEVER = numpy.iinfo(numpy.int64).max
LINES = MergeLines(
    packed_bytes=40_000, level_one_bytes=60_000, wait_bytes_max=200_000, level_two_bytes=200_000, task_bytes=100_000
)


class RealStore:
    """A queue store in a directory, into which random slices are split, and in which all is merged that is worth it."""

    def __init__(
        self,
        root: Path,
        seed: int,
        classes: Sequence[str] = ("forever",),
        settings: TopicSettings = TopicSettings(segment_bytes=40000),  # noqa: B008 - it is frozen
    ) -> None:
        """`classes`: the retention classes of its topics, which have their number as a part of their name."""
        self.root = root / "store"
        self.root.mkdir()
        self.database = str(root / "manifest.sqlite")
        self.choice = random.Random(seed)
        self.clock = FakeClock()
        self.classes = list(classes)
        self.run_class = "forever"
        """The retention class of its runs."""
        self.settings = settings
        self.queues = [number << 32 | partition for partition in range(QUEUES) for number in range(len(classes))]
        self.logs: dict[int, list[Batch]] = {queue_id: [] for queue_id in self.queues}
        self.starts: dict[int, int] = dict.fromkeys(self.queues, 0)
        self.slices = 0
        self.kinds: set[FileKind] = set()
        self.files = DiskFiles(self.root)
        self.store: QueueStore
        self.log: LocalMergeLog

    async def open(self) -> None:
        self.store = await QueueStore.open(self.files, self.database, QueueStoreConfig(), self.clock)
        topics = [
            Topic(
                name=f"orders-{number}",
                number=number,
                topic_id=uuid.UUID(int=number + 1),
                partitions=QUEUES,
                settings=self.settings,
            )
            for number in range(len(self.classes))
        ]
        self.log = LocalMergeLog(
            self.store, 2, self.bounds_in, lambda queue_ids: log_starts(self.starts)(queue_ids), self.confirm,
            lambda: topics, lambda one: self.classes[one.number], lambda: True, LINES, borders=self.borders,
            ages=self.ages, gaps_in=self.gaps_in,
        )  # fmt: skip

    def borders(self, group: int) -> Sequence[int]:
        """As far as a remote tier has come: there is none."""
        return ()

    async def ages(self) -> AgedOf:
        """For how long runs wait for a remote tier: there is none."""
        return none_aged

    async def confirm(self) -> None:
        """They are never taken back here."""

    def bounds_in(self, group: int, queue_ids: QueueIds) -> tuple[numpy.ndarray, numpy.ndarray]:
        here = groups_at(queue_ids, queue_ids) == group
        return numpy.where(here, 0, NEVER), numpy.where(here, NEVER, 0)

    def gaps_in(self, group: int, queue_ids: QueueIds) -> OffsetGaps:
        return NO_GAPS

    def target(self, path: str) -> LocalRunTarget:
        whole = self.root / path
        return LocalRunTarget(whole.parent, whole.name)

    async def split(self) -> None:
        batches = []
        for _ in range(self.choice.randint(5, 60)):
            queue_id = self.queues[min(self.choice.randrange(len(self.queues)) for _ in range(2))]
            log = self.logs[queue_id]
            records = self.choice.randint(1, 3)
            base_offset = log[-1].last_offset + 1 if log else 0
            log.append(make_batch(queue_id, base_offset, records=records, size=self.choice.choice([80, 900, 9000])))
            batches.append(log[-1])
        await self._record(batches)

    async def split_small(self) -> None:
        """Split twelve slices in which the last queue has a batch of 4,000 bytes, and each of the others three of 80
        bytes with one record, one, and two."""
        for _ in range(12):
            batches = []
            for queue_id, log in self.logs.items():
                for records in (1, 1, 2) if queue_id < QUEUES - 1 else (1,):
                    base_offset = log[-1].last_offset + 1 if log else 0
                    size = 80 if queue_id < QUEUES - 1 else 4_000
                    log.append(make_batch(queue_id, base_offset, records=records, size=size))
                    batches.append(log[-1])
            await self._record(batches)

    async def _record(self, batches: list[Batch]) -> None:
        name = f"{self.slices}.run"
        summary = await asyncio.to_thread(write, RunWriter(name, self.target(f"runs/{name}")), batches)
        run = StoreFile(retention_class=self.run_class, **summary._asdict())
        for group in (0, 1):
            await self.store.splits.record(group, self.slices, self.slices + 1, [run], applied_index=self.slices)
        self.slices += 1

    async def merge(self, *, drain: bool, joined: bool = False) -> bool:
        """Make the next merge as a splitter does. False: there is none. `joined`: its segments are one file each."""
        work = await self.log.work(lambda: True, (), drain=drain)
        if not work.merge_id:
            assert not work.more
            return False
        loop = asyncio.get_running_loop()

        def ask(queue_ids: QueueIds) -> LiveOffsets:
            asked = self.log.live(work.merge_id, queue_ids)
            return LiveOffsets(*asyncio.run_coroutine_threadsafe(asked, loop).result())

        def made() -> list[StoreFile]:
            names = [one.file.name for one in work.inputs]
            inputs = [
                InputFile(name, str(self.root / path_of(name)), str(self.root / index_path_of(name))) for name in names
            ]
            topics = facts_of(work.topics)
            lines = LINES._replace(packed_bytes=work.packed_bytes, task_bytes=work.task_bytes)
            liveness = Liveness(ask)
            found: list[StoreFile] = []
            for task in measure(inputs, liveness, topics, lines).tasks:
                found += merge_files(
                    task, inputs, liveness, self.target, group=work.group, level=work.level, joined=joined
                )
            return found

        files = await asyncio.to_thread(made)
        self.kinds |= {kind_of(file.name) for file in files}
        assert await self.log.record(work.merge_id, [file.message() for file in files]) == "merged"
        return True

    def paths(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", range(6))
def test_what_tasks_write_is_what_the_node_checks_and_serves(tmp_path: Path, seed: int) -> None:
    async def story(real: RealStore) -> None:
        await real.open()
        for _ in range(12):
            for _ in range(real.choice.randint(1, 3)):
                await real.split()
            queue_id = real.choice.randrange(QUEUES)
            if real.logs[queue_id] and real.choice.random() < 0.4:
                moved = real.choice.choice(real.logs[queue_id]).last_offset
                real.starts[queue_id] = max(real.starts[queue_id], moved)
            drain = real.choice.random() < 0.3
            for _ in range(real.choice.randint(0, 3)):
                if not await real.merge(drain=drain):
                    break
            if real.choice.random() < 0.3:
                await real.store.close()
                await real.open()
        while await real.merge(drain=True):
            assert real.slices < 1000
        assert not [path for path in real.paths() if path.startswith("runs/")], "all runs are merged"
        for queue_id, log in real.logs.items():
            start = real.starts[queue_id]
            expected = [batch.data for batch in log if batch.last_offset >= start]
            assert await read_all(real.store, queue_id, queue_id % 2, start, 20_000) == expected
        for name in real.store.manifest.files:
            found = await real.store.mending.examine(name)
            assert found.extents is not None
            assert found.bad_rows == []
        assert real.kinds == {FileKind.PACKED, FileKind.SEGMENT}
        await real.store.close()
        await real.files.close()

    asyncio.run(story(RealStore(tmp_path, seed)))


RECORDS = 12
"""Of a segment."""


def test_segments_by_count_are_full_and_are_not_merged_again(tmp_path: Path) -> None:
    """Segments of twelve records of 80 bytes are tiny for `segment.bytes`, and lie among others that go by that; each
    round of splits is merged once, and what was merged before is left alone."""

    async def story(real: RealStore) -> None:
        await real.open()
        settled: set[str] = set()
        for round_ in range(10):
            await real.split_small()
            made = 0
            while await real.merge(drain=True):
                made += 1
                assert made <= 2, "one of each write group"
            files = real.store.manifest.files
            segments = {name: files[name] for name in files if kind_of(name) is FileKind.SEGMENT}
            assert settled <= segments.keys(), "what is full stays as it is"
            counted = [file for file in segments.values() if file.last_queue < QUEUES - 1]
            assert [file.record_count for file in counted] == [RECORDS] * (4 * (QUEUES - 1) * (round_ + 1))
            by_bytes = [file.batch_bytes for file in segments.values() if file.last_queue == QUEUES - 1]
            assert by_bytes == [48_000] * (round_ + 1)
            settled = set(segments)
        for queue_id, log in real.logs.items():
            assert await read_all(real.store, queue_id, queue_id % 2, 0, 20_000) == [batch.data for batch in log]
        await real.store.close()
        await real.files.close()

    asyncio.run(story(RealStore(tmp_path, 1, settings=TopicSettings(segment_bytes=40000, segment_records=RECORDS))))
