"""Puts what a node has split into the remote tier, as whoever moves files does, and lets its own files go."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from tests.fakes.files import SimulatedFiles
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.queue_store.runs import Batch, write_merged
from tests.storage.small_node import QUEUE, SmallNode

from mainstem.protocol.records import read_batch_header
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import StoreFile, paths_of
from mainstem.storage.write_groups.control import RemoteSpan

GROUP = 0


def with_bucket(node: SmallNode) -> SimulatedBucket:
    """Give a node that is not started yet an object store."""
    bucket = SimulatedBucket(node.clock, random.Random(1))
    node.remote_store = SimulatedObjectStore(bucket)
    return bucket


def bucket_of(node: SmallNode) -> SimulatedBucket:
    assert isinstance(node.remote_store, SimulatedObjectStore)
    return node.remote_store.bucket


def as_batch(queue_id: int, data: bytes) -> Batch:
    """A batch that was read, described as a merge does."""
    header = read_batch_header(data)
    return Batch(queue_id, header.base_offset, header.next_offset - 1, header.max_timestamp, header.leader_epoch, data)


def upload(bucket: SimulatedBucket, name: str, batches: Iterable[Batch], group: int = GROUP) -> StoreFile:
    """Write a merged file into the store; what it is described as."""
    disk = SimulatedFiles()
    file = write_merged(disk, name, group, batches)
    for path in paths_of(name):
        bucket.put(object_of(group, path), disk.content(path))
    return file


def local_ranges(node: SmallNode) -> list[FileRange]:
    """The node's own files, oldest first."""
    return node.storage.queue_store.manifest.ranges(GROUP)


async def tier(node: SmallNode, ranges: Sequence[FileRange], *, prefix: str = "tiered") -> list[StoreFile]:
    """Put all that some of the node's own files have into the remote tier, file by file."""
    store, remote, bucket = node.storage.queue_store, node.storage.remote, bucket_of(node)
    files: list[StoreFile] = []
    for entry in ranges:
        index = await store.stored.open_files.index(store.stored.search.known(entry.name))
        batches: list[Batch] = []
        for queue_id, first, last in sorted(
            {(int(row["queue_id"]), int(row["base_offset"]), int(row["last_offset"])) for row in index.rows}
        ):
            position = first
            while position <= last:
                found = await store.history.read(queue_id, GROUP, position, 1)
                assert found is not None
                batches += [as_batch(queue_id, bytes(batch)) for batch in found.batches]
                position = found.next_offset
        name = f"{prefix}-{entry.upto}.pack"
        assert await remote.record(GROUP, intended=[name]) == "recorded"
        file = upload(bucket, name, batches)
        span = RemoteSpan(entry.after, entry.upto, (file.message(),))
        assert await remote.record(GROUP, upto=entry.upto, spans=[span]) == "recorded"
        files.append(file)
    return files


async def let_go(node: SmallNode, ranges: Iterable[FileRange]) -> None:
    """Delete some of the node's own files."""
    changes = node.storage.queue_store.changes
    async with changes.lock:
        await changes.drop([entry.name for entry in ranges], ())


async def split_in_parts(node: SmallNode, parts: int, batches: int, queue_id: int = QUEUE) -> None:
    """Publish and split again and again, until the journal has none of it."""
    for _ in range(parts):
        await node.fill(batches, queue_id)
        await node.split()
    await node.fill(20, QUEUE + 1, 2000)
    await node.split()
    await node.rounds(3)
