"""A cluster whose history lies in an object store, in part, with its chain and its topics; and what is somebody else's
beside it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.fakes.files import SimulatedFiles
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.queue_store.runs import Batch, make_batch, write_merged
from tests.storage.remote.remote_files import span
from tests.storage.small_node import SmallNode, simulated, topic

from mainstem.model import TopicsAsOf, queue_id_of
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.remote.chain.topic_list_writing import TopicListWriter
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import StoreFile, paths_of, segment_name

CLUSTER = "c1-_x"

ORDERS = dataclasses.replace(topic(3, 2, remote_storage_enable=True), configs={"remote.storage.enable": "true"})
IDLE = topic(5, 8)
GONE = 4
"""The number of a topic that was deleted."""

Story = Callable[["StoredCluster"], Awaitable[None]]


def batches_of(number: int, partition: int, offsets: Sequence[int], *, records: int = 3) -> list[Batch]:
    queue = queue_id_of(number, partition)
    return [make_batch(queue, at, records=records, size=700, timestamp=1_000 + at) for at in offsets]


class StoredCluster:
    """A node whose remote tier lies in a bucket, beside what is somebody else's."""

    def __init__(self, node: SmallNode) -> None:
        self.node = node
        self.bucket = SimulatedBucket(node.clock, random.Random(1))
        self.store = SimulatedObjectStore(self.bucket)
        self.folder = StoreFolder(self.store, CLUSTER)
        self.blocks = 0
        self.topics = (ORDERS, IDLE)
        """Those of the list…"""
        self.slots: tuple[int, ...] = ()
        """…and the write group of each slot there."""
        self.bucket.put("mainstem.txt", b"a file of somebody else")
        self.bucket.put(f"{CLUSTER}0/other/thing", b"a folder of somebody else")

    async def upload(self, name: str, batches: Sequence[Batch], group: int = 0) -> StoreFile:
        """Write a merged file into the store, and have it count."""
        disk, tier = SimulatedFiles(), self.node.storage.remote
        file = write_merged(disk, name, group, batches)
        for path in paths_of(name):
            self.bucket.put(f"{CLUSTER}/{object_of(group, path)}", disk.content(path))
        assert await tier.record(group, intended=[name]) == "recorded"
        before, self.blocks = self.blocks, self.blocks + 10
        assert await tier.record(group, upto=self.blocks, spans=[span(before, self.blocks, file)]) == "recorded"
        return file

    async def tell(self) -> None:
        """Write chain and topics to the store."""
        storage = self.node.storage
        groups = len(storage.groups)

        async def as_of() -> TopicsAsOf:
            return TopicsAsOf(17, 6, groups, self.topics, self.slots)

        for group in range(groups):
            await self.chain().follow(group)
        await TopicListWriter(storage.remote, self.folder, storage.groups, as_of).follow()

    def chain(self) -> RemoteChain:
        storage = self.node.storage
        return RemoteChain(storage.remote, self.folder, storage.groups, held_max=1)

    async def fill(self, *, joined: bool = False) -> list[StoreFile]:
        """`joined`: the queue segment is one object."""
        mixed = [*batches_of(3, 0, range(0, 60, 3)), *batches_of(3, 1, range(6, 30, 3)), *batches_of(GONE, 0, [0])]
        files = [
            await self.upload("first.pack", mixed),
            await self.upload(segment_name("orders", 0, "u", 60, joined=joined), batches_of(3, 0, range(60, 900, 3))),
            await self.upload("last.pack", [*batches_of(3, 0, [900]), *batches_of(9, 2, [5])]),
        ]
        await self.tell()
        return files


def told(directory: Path, story: Story, groups: int = 1) -> None:
    stores: list[StoredCluster] = []

    async def on(_node: SmallNode) -> None:
        await story(stores[0])

    def begin(node: SmallNode) -> None:
        node.groups = groups
        stores.append(StoredCluster(node))

    simulated(directory, on, begin)
