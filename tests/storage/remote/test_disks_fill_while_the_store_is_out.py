"""An object store that is out for long: what cannot go there fills disk 2, and disk 1, as `docs/operations.md` says.
Producers are slowed down, then told to come again; nothing that was acknowledged is lost, everything local is read, and
when the store is back all goes on by itself."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest
from tests.storage.remote.test_shared_queue_store import shared
from tests.storage.remote.tiered_node import bucket_of, local_ranges, tier
from tests.storage.small_node import QUEUE, SEGMENT_BYTES, SmallNode, new_batch, simulated
from tests.storage.upkeep import test_tiered_node

from mainstem.model import Outcome
from mainstem.storage.object_stores.errors import ObjectStoreOutage
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import paths_of

SEGMENTS = 16
"""Of disk 1: below four segments of free space producers are slowed down, below two they are refused."""

APPENDS_MAX = 1000
"""Of a kilobyte: more than there is room for."""


class Publisher:
    """Publishes as a client does that is told to come again, and knows what was acknowledged."""

    def __init__(self, node: SmallNode, published: int = 0) -> None:
        self._node = node
        self.acknowledged = published
        self.was_slowed = False

    async def publish(self) -> Outcome:
        (result,) = await self._node.append(new_batch(QUEUE))
        self.acknowledged += result.outcome is Outcome.OK
        self.was_slowed |= self._node.storage.write_loop.delay_seconds > 0
        return result.outcome

    async def publish_until_refused(self) -> None:
        for _ in range(APPENDS_MAX):
            if await self.publish() is not Outcome.OK:
                return
            await asyncio.sleep(self._node.config.disk_check_seconds / 2)
        raise AssertionError("disk 1 never was full")

    async def check(self) -> None:
        """All that was acknowledged is there, once, and nothing else."""
        assert await self._node.read_offsets() == list(range(self.acknowledged))


def small_disk_1(node: SmallNode) -> None:
    node.disk1.capacity_bytes = SEGMENTS * SEGMENT_BYTES
    node.config = msgspec.structs.replace(node.config, disk_check_seconds=0.5, checkpoint_seconds=0.1)


async def goes_on(node: SmallNode, publisher: Publisher) -> None:
    await node.rounds(5)
    await asyncio.sleep(2 * node.config.disk_check_seconds)
    assert not node.storage.messages.refusing
    for _ in range(20):
        assert await publisher.publish() is Outcome.OK
    await publisher.check()


async def split_into_the_store(node: SmallNode) -> None:
    """As a task does it: names first, then objects, then the record. Raises `ObjectStoreOutage`."""
    store = node.remote_store
    assert store is not None
    for done in await node.slices():
        for file in done.files:
            assert await node.storage.tier_log.intend(file.group, [file.name]) == ""
            for path in paths_of(file.name):
                await store.write(object_of(file.group, path), bytes(node.disk2.content(path)))
        assert await node.storage.split_log.record(done.ranges, done.files) == ["committed"]


async def publish_and_split_until_full(node: SmallNode, publisher: Publisher) -> None:
    """Until disk 2 has no room for another run, or disk 1 for what waits for that."""
    for _ in range(APPENDS_MAX):
        for _ in range(10):
            if await publisher.publish() is not Outcome.OK:
                return
        await node.rounds(1)
        try:
            await node.split()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return
            raise
    raise AssertionError("disk 2 never was full")


def test_with_a_shared_store_disk_1_fills_and_empties_again(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        publisher = Publisher(node)
        for _ in range(20):
            await publisher.publish()
        await split_into_the_store(node)
        bucket_of(node).weather.down = True
        await publisher.publish_until_refused()
        assert publisher.was_slowed, "before that"
        assert await publisher.publish() is Outcome.STORAGE_BUSY
        with pytest.raises(ObjectStoreOutage):
            await split_into_the_store(node)
        await node.rounds(5)
        assert node.storage.messages.refusing, "nothing makes room"
        unsplit = await node.read(20)
        assert unsplit.next_offset > 20
        await node.restart()
        await asyncio.sleep(2 * node.config.disk_check_seconds)
        assert await publisher.publish() is Outcome.STORAGE_BUSY
        assert (await node.read(20)).batches

        bucket_of(node).weather.down = False
        await split_into_the_store(node)
        await goes_on(node, publisher)

    prepared = shared([])

    def prepare(node: SmallNode) -> None:
        small_disk_1(node)
        prepared(node)

    simulated(tmp_path, story, prepare)


def test_with_a_remote_tier_disk_2_fills_then_disk_1_and_both_empty_again(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        publisher = Publisher(node)
        for _ in range(12):
            for _ in range(20):
                await publisher.publish()
            await node.split()
            await node.rounds(1)
        for entry in local_ranges(node):
            await test_tiered_node.merge(node, entry)
        merged = local_ranges(node)
        bucket_of(node).weather.down = True
        node.disk2.capacity_bytes = (
            sum(len(node.disk2.content(path)) for path in node.disk2.paths()) + 4 * SEGMENT_BYTES
        )
        await node.storage.maintenance.retain()
        assert local_ranges(node) == list(merged), "they are in no store"
        await publish_and_split_until_full(node, publisher)
        split = node.storage.split_log.positions()[0].split
        await publisher.check()

        await publisher.publish_until_refused()
        assert publisher.was_slowed
        assert node.storage.split_log.positions()[0].split == split, "the split waits"
        await publisher.check()

        bucket_of(node).weather.down = False
        await tier(node, merged)
        await node.storage.maintenance.retain()
        assert not {entry.name for entry in merged} & {entry.name for entry in local_ranges(node)}
        await node.split()
        await goes_on(node, publisher)

    def prepare(node: SmallNode) -> None:
        test_tiered_node.prepare(node)
        small_disk_1(node)

    simulated(tmp_path, story, prepare)
