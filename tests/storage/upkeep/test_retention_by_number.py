"""`retention.records` on a node: whole batches go from the journal, whole extents from the queue store, and no
record of those that a topic keeps."""

from __future__ import annotations

from pathlib import Path

from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

RECORDS = 3
"""Of each batch."""


async def fill(node: SmallNode, batches: int) -> None:
    for _ in range(batches):
        await node.append(new_batch(QUEUE, 1000, records=RECORDS))


async def log_start(node: SmallNode) -> int:
    """After a round of retention."""
    await node.storage.maintenance.retain()
    return node.offsets().log_start


def test_the_newest_records_are_kept_by_the_journal(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.topics = [topic(retention_ms=-1)]
        await fill(node, 40)
        await node.rounds()
        assert await log_start(node) == 0, "no limit"
        node.topics = [topic(retention_ms=-1, retention_records=1000)]
        assert await log_start(node) == 0, "there are fewer"
        node.topics = [topic(retention_ms=-1, retention_records=100)]
        assert await log_start(node) == 18, "the batch that the hundredth lies in stays as a whole"
        assert (await node.read_offsets())[0] == 18
        await fill(node, 1)
        await node.rounds()
        assert await log_start(node) == 21
        before = node.segments()[0]
        node.topics = [topic(retention_ms=-1, retention_records=40)]
        assert await log_start(node) == 81
        await node.split()
        await node.rounds()
        assert node.segments()[0] > before

    simulated(tmp_path, story)


def test_the_newest_records_are_kept_by_the_queue_store(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.topics = [topic(retention_ms=-1)]
        for _ in range(5):
            await fill(node, 8)
            await node.split()
            await node.rounds()
        files = node.storage.queue_store.stored
        assert files.file_count(0) == 5
        node.topics = [topic(retention_ms=-1, retention_records=49)]
        assert await log_start(node) == 2 * 8 * RECORDS, "a run has one extent of the queue, which stays as a whole"
        assert files.file_count(0) == 3
        assert await log_start(node) == 2 * 8 * RECORDS
        await fill(node, 1)
        assert await log_start(node) == 3 * 8 * RECORDS, "what is not split yet counts as well"
        node.topics = [topic(retention_ms=-1, retention_records=0)]
        assert await log_start(node) == 5 * 8 * RECORDS, "the segment that is being written stays"
        assert files.file_count(0) == 0
        assert await node.read_offsets() == [120]

    simulated(tmp_path, story)
