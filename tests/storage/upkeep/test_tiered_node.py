"""Upkeep of a node whose merged files are in an object store, too: local copies, dead remote files, and topics that
give up their tier."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.storage.queue_store.runs import Batch, write_merged
from tests.storage.remote.tiered_node import (
    GROUP,
    as_batch,
    bucket_of,
    let_go,
    local_ranges,
    split_in_parts,
    tier,
    with_bucket,
)
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.kernel import LOG_START
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange

PARTS, BATCHES = 4, 10
COUNT = PARTS * BATCHES


def prepare(node: SmallNode) -> None:
    with_bucket(node)
    node.topics = [topic(1, 2, retention_ms=-1, remote_storage_enable=True, local_retention_ms=1000)]
    node.config = msgspec.structs.replace(node.config, checkpoint_seconds=0.1)


def set_limits(node: SmallNode, **limits: int | bool) -> None:
    (known,) = node.topics
    settings = dataclasses.replace(known.settings, **limits)  # type: ignore[arg-type]  # names of any type
    node.topics[:] = [dataclasses.replace(known, settings=settings)]


async def merge(node: SmallNode, entry: FileRange) -> None:
    """Put a packed file in the place of the only run of its blocks."""
    store = node.storage.queue_store
    index = await store.stored.open_files.index(store.stored.search.known(entry.name))
    batches: list[Batch] = []
    for row in index.rows:
        position = int(row["base_offset"])
        while position <= int(row["last_offset"]):
            found = await store.history.read(int(row["queue_id"]), GROUP, position, 1)
            assert found is not None
            batches += [as_batch(int(row["queue_id"]), bytes(batch)) for batch in found.batches]
            position = found.next_offset
    file = write_merged(node.disk2, f"merged-{entry.upto}.pack", GROUP, batches)
    run = store.manifest.files[entry.name]
    assert run.retention_class == "forever+remote"
    await store.changes.merge(GROUP, [entry], [msgspec.structs.replace(file, retention_class=run.retention_class)])


async def merged_and_tiered(node: SmallNode) -> Sequence[FileRange]:
    """A queue whose batches are merged; all but the last of the files are in the tier."""
    await split_in_parts(node, PARTS, BATCHES)
    for entry in local_ranges(node):
        await merge(node, entry)
    ranges = local_ranges(node)
    await tier(node, ranges[: PARTS - 1])
    return ranges


def log_start(node: SmallNode) -> int:
    table = node.storage.table
    return table.get(table.find(QUEUE), LOG_START)


def test_copies_go_and_readers_do_not_notice(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        ranges = await merged_and_tiered(node)
        await node.storage.maintenance.retain()
        assert local_ranges(node) == list(ranges[PARTS - 1 :]), "what is not in the tier stays"
        assert await node.read_offsets() == list(range(COUNT))
        await node.restart()
        assert await node.read_offsets() == list(range(COUNT))

    simulated(tmp_path, story, prepare)


def test_copies_stay_while_the_store_is_out(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        ranges = await merged_and_tiered(node)
        bucket_of(node).weather.down = True
        await node.storage.maintenance.retain()
        assert local_ranges(node) == list(ranges)
        assert await node.read_offsets() == list(range(COUNT))
        bucket_of(node).weather.down = False
        await node.storage.maintenance.retain()
        assert local_ranges(node) == list(ranges[PARTS - 1 :])

    simulated(tmp_path, story, prepare)


def test_dead_files_count_no_more_also_behind_a_restart(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await merged_and_tiered(node)
        await node.storage.maintenance.retain()
        set_limits(node, retention_records=2 * BATCHES)
        await node.storage.maintenance.retain()
        assert log_start(node) == COUNT - 2 * BATCHES
        assert [file.first_offset for file in node.storage.remote.manifest.files.values()] == [2 * BATCHES]
        assert len(node.storage.remote.leaving(GROUP)) == 2
        assert await node.read_offsets() == list(range(2 * BATCHES, COUNT))
        await node.restart()
        assert len(node.storage.remote.manifest.files) == 1
        assert await node.read_offsets() == list(range(2 * BATCHES, COUNT))

    simulated(tmp_path, story, prepare)


def test_records_of_the_future_grow_old_from_when_the_tier_was_seen_to_have_them(tmp_path: Path) -> None:
    """Behind a restart, too, and also where no local copy is left."""

    async def story(node: SmallNode) -> None:
        for _ in range(PARTS):
            await node.append(new_batch(QUEUE, timestamp=1 << 42))
            await node.split()
        await node.fill(20, QUEUE + 1, 2000)
        await node.split()
        await node.rounds(3)
        ranges = local_ranges(node)
        for entry in ranges:
            await merge(node, entry)
        ranges = local_ranges(node)
        await tier(node, ranges)
        set_limits(node, retention_ms=60_000)
        await node.storage.maintenance.retain()
        await let_go(node, ranges)
        await node.restart()
        await node.storage.maintenance.retain()
        assert log_start(node) == 0
        await asyncio.sleep(30)
        await node.restart()
        await node.storage.maintenance.retain()
        await asyncio.sleep(40)
        await node.storage.maintenance.retain()
        assert log_start(node) == PARTS

    simulated(tmp_path, story, prepare)


def test_a_topic_that_gives_up_its_tier_begins_where_disk_2_does(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await merged_and_tiered(node)
        await node.storage.maintenance.retain()
        set_limits(node, remote_storage_enable=False)
        await node.storage.maintenance.retain()
        assert log_start(node) == 0
        set_limits(node, remote_log_delete_on_disable=True)
        await node.storage.maintenance.retain()
        assert log_start(node) == (PARTS - 1) * BATCHES
        assert len(node.storage.remote.manifest.files) == 0
        assert await node.read_offsets() == list(range((PARTS - 1) * BATCHES, COUNT))

    simulated(tmp_path, story, prepare)


def test_files_of_a_deleted_topic_go(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await merged_and_tiered(node)
        node.topics.clear()
        node.deleted.add(1)
        await node.storage.queues.delete([1])
        await node.storage.maintenance.retain()
        assert len(node.storage.remote.manifest.files) == 0
        assert len(node.storage.remote.leaving(GROUP)) == PARTS - 1

    simulated(tmp_path, story, prepare)
