"""Damaged files of compacted queues are mended from replicas that have compacted further, or less."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from tests.fakes.clock import FakeClock
from tests.harness.handler_of import handler_of
from tests.storage.queue_store.runs import Batch, WatchedFiles, make_batch, write_run
from tests.storage.queue_store.test_store import read_all

from mainstem.kernel import COMMITTED_END, QueueTable
from mainstem.model import Buffer, Topic, TopicSettings
from mainstem.rpc.errors import ConnectionLost
from mainstem.rpc.messages.repair import FETCH_STRETCH_BATCHES, FETCH_STRETCHES, RepairRefused
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.repair.file_repair import FileRepair
from mainstem.storage.repair.stretch_giving import StretchGiving

ONE, TWO, THREE = 1, 2, 7
"""Queues."""

HERE = [
    make_batch(ONE, 0, records=2),
    make_batch(ONE, 2),
    make_batch(ONE, 3, records=3),
    make_batch(ONE, 9),
    make_batch(TWO, 4),
    make_batch(TWO, 5),
    make_batch(THREE, 6),
]
"""The batches that the damaged run has, as this node has compacted it."""

THERE = [
    make_batch(ONE, 0, records=2),
    make_batch(ONE, 3, records=3, seed=1),
    make_batch(ONE, 8),
    make_batch(ONE, 9),
    make_batch(TWO, 5),
    make_batch(THREE, 6),
]
"""The batches that another replica has of the same: less here, more there, and other bytes."""

WHOLE = [*(make_batch(ONE, offset) for offset in range(20)), make_batch(TWO, 5), make_batch(THREE, 6)]
"""Queues of which no offset was ever compacted away."""

BEHIND = [make_batch(queue, 20) for queue in (ONE, TWO, THREE)]
"""The batches that all have in a newer run."""


USUAL = Topic(name="t", number=0, topic_id=uuid.UUID(int=0), partitions=8)
"""All queues of these tests are of it."""
COMPACTED = replace(USUAL, settings=TopicSettings(cleanup_policy=frozenset({"compact"})))


class Replica:
    """The queue store of a node with one write group, and what mends it."""

    def __init__(self, number: int, root: Path, others: dict[int, Replica]) -> None:
        self.number = number
        self.files = WatchedFiles()
        self.database = str(root / f"{number}.sqlite")
        self.others = others
        self.gives_batches = True
        self.is_up = True
        self.topics: list[Topic]
        """All that there are."""
        self.table = QueueTable()
        self.table.create(0, 0, 8)
        for queue in (ONE, TWO, THREE):
            self.table.set(self.table.find(queue), COMMITTED_END, 21)
        self.store: QueueStore
        self.repair: FileRepair
        self.giving: StretchGiving

    async def open(self, batches: Sequence[Batch], retention_class: str) -> None:
        self.topics = [COMPACTED if retention_class == "compact" else USUAL]
        self.store = await QueueStore.open(self.files, self.database, QueueStoreConfig(read_cache_bytes=0), FakeClock())
        older = write_run(self.files, f"older-{self.number}.run", batches, retention_class)
        newer = write_run(self.files, f"newer-{self.number}.run", BEHIND, retention_class)
        await self.store.splits.record(0, 0, 10, [older], applied_index=10)
        await self.store.splits.record(0, 10, 20, [newer], applied_index=20)
        placement: Any = SimpleNamespace(
            group_at=lambda queue, offset: 0, groups_at=lambda queues, offsets: numpy.zeros(len(queues), numpy.int64)
        )
        group: Any = SimpleNamespace(consensus=SimpleNamespace(voters={self.number, *self.others}))
        manifest: Any = SimpleNamespace(stored=lambda group: 20)
        read_path: Any = SimpleNamespace(committed=self.committed)
        pacing: Any = SimpleNamespace(take=_at_once)
        calls: Any = self
        self.repair = FileRepair(
            self.number,
            [group],
            self.table,
            self.store,
            manifest,
            placement,
            pacing,
            FakeClock(),
            lambda: self.topics,
            calls,
        )
        self.giving = StretchGiving(
            self.number,
            1,
            self.table,
            self.store,
            manifest,
            placement,
            read_path,
            pacing,
            FakeClock(),
            bytes_per_second=0,
        )

    async def committed(
        self, queue_id: int, offset: int, bytes_max: int, *, gaps: bool = False
    ) -> tuple[list[Buffer], int]:
        found = await self.store.history.read(queue_id, 0, offset, 1)
        if found is None or not self.gives_batches or (found.base_offset > offset and not gaps):
            raise StorageError(f"queue {queue_id:#x}: offset {offset} is nowhere")
        return list(found.batches), found.next_offset

    async def stream(
        self, node_id: int, method: Any, request: Any, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[Any], None]:
        """A call to another replica."""
        giving = self.others[node_id].giving
        if not self.others[node_id].is_up:
            raise ConnectionLost(f"node {node_id} is away")
        if method not in (FETCH_STRETCHES, FETCH_STRETCH_BATCHES):
            raise RepairRefused("it has no such file")
        call: Any = SimpleNamespace(request=request)
        async for reply in handler_of(giving, method)(call):
            yield Reply(reply.message, b"".join(map(bytes, reply.buffers)))

    async def damage(self, *places: int) -> None:
        """Flip a bit in the batches at these places of the older run."""
        for at in places:
            self.files.flip(f"runs/older-{self.number}.run", 8 * at)
        found = await self.store.mending.examine(f"older-{self.number}.run")
        assert found.bad_rows or found.extents is None

    async def read(self) -> list[bytes]:
        found: list[bytes] = []
        for queue in (ONE, TWO, THREE):
            found += await read_all(self.store, queue, 0, 0, 1 << 20)
        return found


async def _at_once(lane: object, size: int) -> None:
    pass


def data_of(*batches: Batch) -> list[bytes]:
    return [batch.data for batch in sorted(batches, key=lambda batch: batch[:2])]


def told(
    root: Path, story: Callable[[dict[int, Replica]], Awaitable[None]], retention_class: str, *contents: Sequence[Batch]
) -> None:
    async def scenario() -> None:
        nodes: dict[int, Replica] = {}
        nodes |= {number: Replica(number, root, nodes) for number in range(len(contents))}
        for node, batches in zip(nodes.values(), contents, strict=True):
            await node.open(batches, retention_class)
        await story(nodes)
        for node in nodes.values():
            await node.store.close()

    asyncio.run(scenario())


FIRST_EXTENT, LAST_EXTENT = 64 + 70, 64 + 6 * 80 + 70
"""Bytes of batches of the first and the last queue."""
INDEX = 64 + 7 * 80 + 5


@pytest.mark.parametrize("places", [[FIRST_EXTENT], [FIRST_EXTENT, LAST_EXTENT], [INDEX]])
def test_what_another_replica_has_of_compacted_queues_takes_the_place_of_a_damaged_run(
    tmp_path: Path, places: list[int]
) -> None:
    async def story(nodes: dict[int, Replica]) -> None:
        await nodes[0].damage(*places)
        assert await nodes[0].repair.mend()
        assert await nodes[0].read() == data_of(*THERE, *BEHIND)
        assert not nodes[0].store.damaged.all()
        for name in nodes[0].store.manifest.files:
            found = await nodes[0].store.mending.examine(name)
            assert found.extents is not None
            assert not found.bad_rows

    told(tmp_path, story, "compact", HERE, THERE)


def test_an_extent_that_another_replica_has_as_it_was_is_mended_alone(tmp_path: Path) -> None:
    async def story(nodes: dict[int, Replica]) -> None:
        await nodes[0].damage(LAST_EXTENT)
        assert await nodes[0].repair.mend()
        assert await nodes[0].read() == data_of(*HERE, *BEHIND)
        assert set(nodes[0].store.manifest.files) == {"older-0.run", "newer-0.run"}

    told(tmp_path, story, "compact", HERE, THERE)


def test_a_stretch_of_which_a_replica_has_nothing_left(tmp_path: Path) -> None:
    """One replica says what there was, and another, that has compacted more, gives what there is."""

    async def story(nodes: dict[int, Replica]) -> None:
        nodes[1].gives_batches = False
        await nodes[0].damage(INDEX)
        assert await nodes[0].repair.mend()
        assert await nodes[0].read() == data_of(THERE[0], THERE[3], *BEHIND)

    told(tmp_path, story, "compact", HERE, THERE, [THERE[0], THERE[3]])


@pytest.mark.parametrize("place", [FIRST_EXTENT, INDEX])
def test_of_other_queues_no_offset_may_be_missing(tmp_path: Path, place: int) -> None:
    async def story(nodes: dict[int, Replica]) -> None:
        await nodes[0].damage(place)
        assert not await nodes[0].repair.mend()
        assert nodes[0].repair.failures == 1
        assert set(nodes[0].store.manifest.files) == {"older-0.run", "newer-0.run"}

    inside = [HERE[0], HERE[2], *THERE[3:]]  # within an extent, so that the stretch says nothing of it
    told(tmp_path, story, "forever", HERE, inside)


@pytest.mark.parametrize("place", [FIRST_EXTENT, INDEX])
def test_a_queue_that_is_compacted_by_now_is_mended_whatever_the_class_of_its_run(tmp_path: Path, place: int) -> None:
    """The run was written before its topic was compacted, or took the class of a neighbour."""

    async def story(nodes: dict[int, Replica]) -> None:
        nodes[0].topics = [COMPACTED]
        await nodes[0].damage(place)
        assert await nodes[0].repair.mend()
        assert await nodes[0].read() == data_of(*THERE, *BEHIND)
        assert not nodes[0].store.damaged.all()

    told(tmp_path, story, "forever", HERE, THERE)


def test_a_queue_that_is_not_compacted_gets_all_its_offsets_in_a_file_of_compacted_ones(tmp_path: Path) -> None:
    """One replica has lost some of it, another has all, and may be away."""

    async def story(nodes: dict[int, Replica]) -> None:
        nodes[0].topics = [USUAL]
        await nodes[0].damage(64 + len(WHOLE) * 80 + 5)
        nodes[2].is_up = False
        assert not await nodes[0].repair.mend(), "whoever is away may have more"
        nodes[2].is_up = True
        assert await nodes[0].repair.mend()
        assert await nodes[0].read() == data_of(*WHOLE, *BEHIND)

    told(tmp_path, story, "compact", WHOLE, WHOLE[:1] + WHOLE[2:], WHOLE)


def test_what_was_compacted_before_its_topic_ceased_to_be_is_mended_with_what_there_is(tmp_path: Path) -> None:
    async def story(nodes: dict[int, Replica]) -> None:
        nodes[0].topics = [USUAL]
        await nodes[0].damage(INDEX)
        assert await nodes[0].repair.mend()
        assert await nodes[0].read() == data_of(*THERE, *BEHIND)

    told(tmp_path, story, "compact", HERE, THERE, THERE)
