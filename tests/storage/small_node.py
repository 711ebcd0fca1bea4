"""A storage role on simulated disks and simulated time, small enough that a test sees every segment."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy
from tests.fakes.files import SimulatedFiles
from tests.fakes.simulated_loop import SimulatedLoop
from tests.fakes.splitting.run_target import dying_writers

from mainstem.model import (
    SLOTS,
    AppendResult,
    BatchAppend,
    FeatureLevel,
    QueueOffsets,
    QueueRange,
    QueueRead,
    QueueSlice,
    Topic,
    TopicSettings,
)
from mainstem.pipeline.slices.journal_slice import places_of
from mainstem.pipeline.slices.split_slice import SplitSlice, split_slice
from mainstem.ports import Clock, ObjectStore
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.rpc.messages.split import Slice
from mainstem.storage.cluster.write_group_replication import Consensus
from mainstem.storage.config import StorageConfig
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.remote.config import ReadCacheConfig
from mainstem.storage.role import Storage
from mainstem.storage.setup import StorageSetup
from mainstem.storage.split.split_service import SplitLog
from mainstem.turns import Turns

T = TypeVar("T")

QUEUE = 1 << 32
"""The first partition of the topic that is there from the start."""

SEGMENT_BYTES = 16 * 1024
PATIENCE_SECONDS = 600


def new_batch(
    queue_id: int,
    size: int = 1000,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp: int = 1000,
    records: int = 1,
) -> BatchAppend:
    """A batch whose records have `size` bytes each."""
    new = build_batch(
        [NewRecord(timestamp, None, b"%d" % number + bytes(size)) for number in range(records)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    return new.to_append(queue_id)


def topic(number: int = 1, partitions: int = 2, **settings: Any) -> Topic:
    return Topic(
        name=f"topic-{number}",
        number=number,
        topic_id=uuid.UUID(int=number),
        partitions=partitions,
        settings=TopicSettings(**settings),
    )


class SmallNode:
    """Disks, metadata and the storage role of the day."""

    def __init__(self, loop: SimulatedLoop, directory: Path) -> None:
        self.clock: Clock = loop
        self.founders: dict[int, tuple[int, ...]] = {}
        """Per write group that was added, the nodes that begin it."""
        self.consensus = Consensus(founders=lambda: self.founders)
        self.disk1 = SimulatedFiles(1)
        self.disk2 = SimulatedFiles(2)
        self.manifest_path = directory / "manifest.sqlite"
        self.topics: list[Topic] = [topic()]
        self.deleted: set[int] = set()
        self.groups = 1
        self.slots: Sequence[int] | None = None
        """The write group of each slot, where they are not in turns."""
        self.remote_store: ObjectStore | None = None
        self.shared = False
        """The remote store is the queue store of the cluster."""
        self.level = FeatureLevel.newest()
        """The feature level of the cluster."""
        self.turns = Turns()
        self.config = StorageConfig(write_cache_bytes=0, prune_seconds=1.0, retention_check_seconds=1e9)
        self.journal_config = JournalConfig(segment_bytes=SEGMENT_BYTES, pool_segments=0, segment_age_seconds=1e6)
        self.store_config = QueueStoreConfig(read_cache_bytes=0)
        self.read_cache_config = ReadCacheConfig()
        self.storage: Storage
        self.opened: Callable[[], None] = lambda: None
        """Called before the storage role of each start begins its work."""

    async def start(self) -> None:
        self.storage = await Storage.open(
            StorageSetup(
                write_files=self.disk1,
                store_files=self.disk2,
                clock=self.clock,
                config=self.config,
                journal_config=self.journal_config,
                store_config=self.store_config,
                manifest_path=str(self.manifest_path),
                journal_path="journal",
                slots=self.slots or [slot % self.groups for slot in range(SLOTS)],
                topics=lambda: self.topics,
                was_deleted=self.deleted.__contains__,
                consensus=self.consensus,
                feature_level=lambda: self.level,
                turns=self.turns,
                remote_store=self.remote_store,
                shared=self.shared,
                read_cache_config=self.read_cache_config,
            )
        )
        self.opened()
        await self.storage.start()
        for known in self.topics:
            await self.storage.queues.create([QueueRange(known.number, 0, known.partitions)])

    async def crash(self) -> None:
        """Cut the power, lose what was not synced."""
        self.disk1.cut_power(after=1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        self.disk1.crash(keep_bytes=0)
        self.disk2.crash(keep_bytes=0)

    async def restart(self) -> None:
        await self.storage.close()
        await self.start()

    # --- clients ------------------------------------------------------------------------------------------

    async def append(self, *batches: BatchAppend, acks: int = -1) -> list[AppendResult]:
        return await self.storage.messages.append(batches, acks)

    async def fill(self, count: int, queue_id: int = QUEUE, size: int = 1000) -> None:
        """Append so many batches, one per block."""
        for _ in range(count):
            await self.append(new_batch(queue_id, size))

    async def read(self, offset: int, queue_id: int = QUEUE, bytes_max: int = 1 << 20) -> QueueSlice:
        (found,) = await self.storage.messages.read([QueueRead(queue_id, offset, bytes_max)], bytes_max)
        return found

    async def read_offsets(self, queue_id: int = QUEUE) -> list[int]:
        """The base offsets of all batches, from the log start on, read as a consumer does."""
        offsets = self.offsets(queue_id)
        position, found = offsets.log_start, []
        while position < offsets.high_watermark:
            part = await self.read(position, queue_id)
            assert part.batches, part
            found += [int.from_bytes(batch[:8], "big") for batch in part.batches]
            position = part.next_offset
        return found

    def offsets(self, queue_id: int = QUEUE) -> QueueOffsets:
        (offsets,) = self.storage.messages.offsets([queue_id]).result()
        assert offsets is not None
        return offsets

    # --- background ---------------------------------------------------------------------------------------

    async def slices(self) -> list[SplitSlice]:
        """Runs of everything that is not split, on disk 2, uncommitted."""
        log = self.storage.split_log
        after = {group.group: group.split for group in log.positions()}
        slices = log.slices(after, log.limit(after, 1 << 40), 1 << 40)
        return [await split(log, work, self.disk2) for work in slices]

    async def split(self) -> list[str]:
        outcomes = []
        for done in await self.slices():
            outcomes += await self.storage.split_log.record(done.ranges, done.files)
        return outcomes

    async def rounds(self, count: int = 3) -> None:
        """Let maintenance go round a few times."""
        await asyncio.sleep(count * (self.config.prune_seconds + self.config.checkpoint_seconds))

    def segments(self) -> list[int]:
        return [segment.sequence for segment in self.storage.journal.segments()]


async def split(log: SplitLog, work: Slice, disk2: SimulatedFiles) -> SplitSlice:
    """Runs of one slice, made as a splitter on another host makes them."""
    *places, size = places_of(work.extents)
    buffer = numpy.zeros(size, numpy.uint8)
    for part, place in zip(work.extents, places, strict=True):
        content = await log.read(part.sequence, part.start, part.end - part.start)
        buffer[place : place + len(content)] = numpy.frombuffer(content, numpy.uint8)
    return split_slice(work, buffer, await log.retention_classes(), dying_writers(disk2))


def simulated(
    directory: Path, story: Callable[[SmallNode], Awaitable[T]], prepare: Callable[[SmallNode], None] | None = None
) -> T:
    """Run a story on a fresh node; no task may be left behind."""
    loop = SimulatedLoop()

    async def told() -> Any:
        node = SmallNode(loop, directory)
        if prepare is not None:
            prepare(node)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await node.start()
            result = await story(node)
            await node.storage.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    try:
        result: T = loop.run_until_complete(told())
        return result
    finally:
        loop.close()


def outcomes(results: Sequence[AppendResult]) -> set[Any]:
    return {result.outcome for result in results}
