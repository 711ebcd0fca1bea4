"""A storage role starts on a disk 1 that was made of an object store: it reads what is there, goes on far behind it,
and its files and changes continue those of the store."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.fakes.files import SimulatedFiles
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.remote.stored_cluster import CLUSTER, IDLE, ORDERS, StoredCluster, batches_of, told
from tests.storage.remote.tiered_node import bucket_of, local_ranges, split_in_parts, tier, with_bucket
from tests.storage.small_node import QUEUE as QUEUE_1
from tests.storage.small_node import SmallNode, new_batch, simulated, topic

from mainstem.model import Outcome, QueueRange, TopicsAsOf, queue_id_of, slot_of, slots_in_turns
from mainstem.storage.adopting.disk_one import write_disk_one
from mainstem.storage.adopting.lost_cluster import LostCluster, read_lost_cluster
from mainstem.storage.adopting.queue_stays import MovedSlot, moved_slots
from mainstem.storage.remote.chain.chain_reading import read_chain
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.remote.chain.topic_list_writing import TopicListWriter
from mainstem.storage.repair.loss_account import floored_ends
from mainstem.storage.setup import remote_manifest_beside

QUEUE = queue_id_of(3, 0)

GOES_ON_AT = 2 << 32
"""The offset at which all queues of a cluster go on whose store has none beyond 2^32."""

Adopted = Callable[[StoredCluster, LostCluster], Awaitable[None]]


Fills = Callable[[StoredCluster], Awaitable[Any]]


def adopted(directory: Path, story: Adopted, fills: Fills = StoredCluster.fill, *, raises: bool = True) -> None:
    """Fill a store, lose both disks of the node, and have it start on a disk 1 made of the store."""

    async def whole(there: StoredCluster) -> None:
        await fills(there)
        await there.node.storage.close()
        found = await read_lost_cluster(there.store, CLUSTER)
        node = there.node
        node.disk1, node.disk2 = SimulatedFiles(5), SimulatedFiles(6)
        (directory / "new").mkdir()
        node.manifest_path = directory / "new" / "manifest.sqlite"
        node.topics = [ORDERS, IDLE, dataclasses.replace(topic(9, 3), name="adopted-topic-9")]
        node.deleted = {1, 2, 4}
        node.remote_store = there.folder
        manifest = remote_manifest_beside(str(node.manifest_path))
        await write_disk_one(node.disk1, manifest, found, 1, node.clock.now_ms(), raises=raises)
        await node.start()
        await story(there, found)

    told(directory, whole)


async def appended(node: SmallNode, queue_id: int = QUEUE) -> int:
    (result,) = await node.append(new_batch(queue_id))
    assert result.outcome is Outcome.OK
    return result.base_offset


def test_every_byte_is_read_and_the_ends_are_those_of_the_store(tmp_path: Path) -> None:
    async def story(there: StoredCluster, found: LostCluster) -> None:
        for number, partition, first, end in ((3, 0, 0, 903), (3, 1, 6, 30), (9, 2, 5, 8), (5, 7, 0, 0)):
            offsets = there.node.offsets(queue_id_of(number, partition))
            assert (offsets.log_start, offsets.high_watermark) == (first, end)
        expected = b"".join(batch.data for batch in batches_of(3, 0, range(0, 903, 3)))
        content, position = b"", 0
        while position < 903:
            part = await there.node.read(position, QUEUE)
            content += b"".join(map(bytes, part.batches))
            position = part.next_offset
        assert content == expected
        assert there.node.storage.groups[0].term > found.term
        assert await appended(there.node) == 903
        assert await appended(there.node, queue_id_of(5, 7)) == 0

    adopted(tmp_path, story, raises=False)


async def fill_through_two_write_groups(there: StoredCluster) -> None:
    """A queue was in write group 0, then in 1, and came back; the list of topics is of a time when it was in 1."""
    node, storage = there.node, there.node.storage
    node.founders[1], node.groups = (1,), 2
    storage.grow(slots_in_turns(2), 2)
    while not storage.groups[1].serving:  # noqa: ASYNC110 - simulated time
        await asyncio.sleep(0.05)
    await there.upload("first.pack", batches_of(3, 0, range(0, 30, 3)))
    await there.upload("away.pack", batches_of(3, 0, range(30, 60, 3)), group=1)
    await there.upload("back.pack", [*batches_of(3, 0, range(60, 90, 3)), *batches_of(3, 1, [6])])
    await there.tell()


def test_queues_that_have_moved_are_read_through_all_write_groups_they_were_in(tmp_path: Path) -> None:
    async def story(there: StoredCluster, found: LostCluster) -> None:
        home = slot_of(QUEUE) % 2
        stays = [(0, 0), (1, 30), (0, 60), *([(home, 90)] if home else [])]
        assert list(found.histories[QUEUE]) == stays
        assert MovedSlot(slot_of(QUEUE), home, [0, 1]) in moved_slots(found.histories)
        for _ in range(2):
            content, position = b"", 0
            while position < 90:
                part = await there.node.read(position, QUEUE)
                content += b"".join(map(bytes, part.batches))
                position = part.next_offset
            assert content == b"".join(batch.data for batch in batches_of(3, 0, range(0, 90, 3)))
            assert await appended(there.node) >= 90
            await there.node.restart()

    adopted(tmp_path, story, fill_through_two_write_groups, raises=False)


def test_no_offset_is_given_twice_and_the_queues_are_raised_once(tmp_path: Path) -> None:
    """Readers in the gap get what comes behind it; a crash or a start does not raise again."""

    async def story(there: StoredCluster, found: LostCluster) -> None:
        node = there.node
        assert await appended(node) == GOES_ON_AT + 1
        part = await node.read(900, QUEUE)
        assert part.next_offset == 903
        assert (await node.read(903, QUEUE)).next_offset == GOES_ON_AT + 2
        assert (await node.read(1_000_000, QUEUE)).next_offset == GOES_ON_AT + 2
        await node.crash()
        await node.start()
        assert await appended(node) == GOES_ON_AT + 2
        await node.rounds(20)
        await node.restart()
        assert await appended(node) == GOES_ON_AT + 3
        assert await appended(node, queue_id_of(5, 0)) == GOES_ON_AT + 1

    adopted(tmp_path, story)


def test_the_split_and_the_chain_go_on_behind_what_the_store_has(tmp_path: Path) -> None:
    async def story(there: StoredCluster, found: LostCluster) -> None:
        node = there.node
        for _ in range(5):
            await appended(node)
        assert set(await node.split()) == {"committed"}
        await node.storage.state.manifest.drained([0])
        assert node.storage.queue_store.splits.split_position(0) > found.upto(0)
        await node.restart()
        remote = node.storage.remote
        assert remote.position(0).number == found.numbers()[0]
        assert await remote.record(0, intended=["later.pack"]) == "recorded"
        there.blocks = node.storage.groups[0].applied_index
        await there.upload("behind.pack", batches_of(3, 0, [903]))
        await there.chain().follow(0)
        stored = await read_chain(there.folder, 0)
        assert stored is not None
        assert stored.position == remote.position(0)
        assert [file.name for _after, _upto, file in stored.files][-1] == "behind.pack"

    adopted(tmp_path, story)


def elsewhere(manifest_path: Path) -> Path:
    """The path of the manifest of another disk 1; there is none."""
    place = manifest_path.with_name("new") / manifest_path.name
    place.parent.mkdir()
    return place


def put_back(manifest_path: Path) -> Path:
    """The path of disk 2's manifest on the new disk 1, as `store repair --manifest` makes it of its copy."""
    place = elsewhere(manifest_path)
    shutil.copy(manifest_path, place)
    return place


async def copied(node: SmallNode, bucket: SimulatedBucket) -> tuple[SimulatedBucket, LostCluster]:
    """The objects of a node's bucket, with its chain and topics, in the folder of a cluster; and what they say."""
    storage, store = node.storage, SimulatedObjectStore(bucket)

    async def as_of() -> TopicsAsOf:
        return TopicsAsOf(
            17, 2, len(storage.groups), (dataclasses.replace(topic(), configs={"remote.storage.enable": "true"}),)
        )

    for group in storage.groups:
        await RemoteChain(storage.remote, store, storage.groups).follow(group.group)
    await TopicListWriter(storage.remote, store, storage.groups, as_of).follow()
    folder = SimulatedBucket(node.clock, random.Random(2))
    for name, stored in bucket.objects.items():
        folder.put(f"{CLUSTER}/{name}", stored.content)
    return folder, await read_lost_cluster(SimulatedObjectStore(folder), CLUSTER)


def test_a_node_that_kept_disk_2_goes_on_behind_both(tmp_path: Path) -> None:
    """Its manifest is put back; what was split and never moved to the store is there, too."""

    async def story(node: SmallNode) -> None:
        await split_in_parts(node, 3, 5)
        await tier(node, local_ranges(node)[:2])
        _folder, found = await copied(node, bucket_of(node))
        expected, end = await node.read_offsets(), node.offsets().high_watermark
        assert found.queues.tolist()[0][2] < end, "the store lacks the last part"
        await node.storage.close()
        node.disk1, node.manifest_path = SimulatedFiles(5), put_back(node.manifest_path)
        manifest = remote_manifest_beside(str(node.manifest_path))
        await write_disk_one(node.disk1, manifest, found, 1, node.clock.now_ms(), raises=True)
        await node.start()
        assert await appended(node, QUEUE_1) == GOES_ON_AT + 1
        assert await node.read_offsets() == [*expected, GOES_ON_AT, GOES_ON_AT + 1]
        assert len(node.storage.remote.manifest.files) == 2

    def prepare(node: SmallNode) -> None:
        with_bucket(node)

    simulated(tmp_path, story, prepare)


def test_queues_below_the_floor_are_raised_and_no_topic_that_came_later(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.topics.append(topic(2))
        await node.storage.queues.create([QueueRange(2, 0, 2)])
        await node.fill(3)
        table, placement = node.storage.state.table, node.storage.placement
        assert sorted(floored_ends(table, placement, 0, 100, 2)) == [(QUEUE_1, 100), (QUEUE_1 + 1, 100)]
        assert sorted(floored_ends(table, placement, 0, 2, 2)) == [(QUEUE_1 + 1, 2)]
        assert len(floored_ends(table, placement, 0, 100, 3)) == 4

    simulated(tmp_path, story)
