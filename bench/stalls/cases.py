"""The questions asked of the crowded node, one thing after the other."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import numpy

from bench.stalls.crowded_node import CrowdedNode
from mainstem.kernel import LOG_START
from mainstem.rpc.messages.split import WriteGroupRange
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queue_store.manifest.in_memory.file_table import FileTable, SeenTimes
from mainstem.storage.queue_store.manifest.mirror import Mirror

DELETED_TOPICS = 3_000
"""In one run that retention looks at."""

Case = Callable[[CrowdedNode], Awaitable[object]]


async def checkpoint(node: CrowdedNode) -> None:
    await node.storage.checkpointer.save()


async def retention_classes(node: CrowdedNode) -> None:
    await node.storage.split_log.retention_classes()


async def newly_led_group(node: CrowdedNode) -> None:
    await node.storage.queues.settle(0, node.topics, node.deleted.__contains__)


async def sparse_queue(node: CrowdedNode) -> None:
    store = node.storage.queue_store
    await store.stored.search.find(node.absent_queue, store.manifest.spans(0), 0)


async def store_read(node: CrowdedNode) -> None:
    """The look at the journal that comes before it."""
    await node.storage.read_path._sealed.places(node.absent_queue, 0, 1 << 20)


async def deletion(node: CrowdedNode) -> None:
    """The questions that retention asks of a run of topics that are all deleted."""
    first = len(node.topics) + 1
    node.deleted.update(range(first, first + DELETED_TOPICS))
    queue_ids = numpy.arange(first, first + DELETED_TOPICS, dtype=numpy.uint64) << numpy.uint64(32)
    storage = node.storage
    liveness = QueueLiveness(storage.table, node.deleted.__contains__, storage.placement)
    found = liveness.log_starts(numpy.repeat(queue_ids, 10))
    if inspect.isawaitable(found):
        await found
    assert storage.table.column(queue_ids[:1], LOG_START, -1)[0] == -1


async def retention_pass(node: CrowdedNode) -> None:
    """Over the journal's segments, for all queues. The runs are only named, so they are left out."""
    storage = node.storage
    manifest = storage.queue_store.manifest
    kept, none = (manifest._mirror, manifest.files, manifest.seen), FileTable()
    manifest._mirror, manifest.files, manifest.seen = Mirror(none), none, SeenTimes(none)
    try:
        await storage.maintenance._retaining["retention"]()
    finally:
        manifest._mirror, manifest.files, manifest.seen = kept


async def split_recorded(node: CrowdedNode) -> None:
    storage = node.storage
    reached = storage.queue_store.splits.split_position(0)
    storage.state.manifest._splits[0].applied = reached + 1
    storage.state.manifest._splits[0].decided = reached
    outcomes = await storage.split_log.record([WriteGroupRange(0, reached, reached + 1)], [])
    assert outcomes == ["committed"], outcomes


CASES: dict[str, Case] = {
    "checkpoint": checkpoint,
    "retention classes of a slice": retention_classes,
    "queues of a newly led group": newly_led_group,
    "search of a sparse queue": sparse_queue,
    "journal asked before the store": store_read,
    "deletion of many topics": deletion,
    "retention pass": retention_pass,
    "recording of a split": split_recorded,
}
