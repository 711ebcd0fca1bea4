"""A coordinator starts over from a log that was compacted: it has gaps between records, and none between batches."""

from __future__ import annotations

import asyncio

import numpy
from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.coordinators.test_coordinator import commit, loaded, queue_of
from tests.broker.consumer_groups.coordinators.test_lost_offsets import ONE_PARTITION, PATIENCE_SECONDS, asked, measured
from tests.broker.consumer_groups.transcript import GROUP, STARTED_MS
from tests.fakes.memory_store import StoredBatch
from tests.storage.compacting.histories import latest
from tests.storage.compacting.test_rewrite import compact

from mainstem.broker.consumer_groups.offsets import LOST
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import DeleteGroupsRequest
from mainstem.protocol.records import stored_batches
from mainstem.storage.compacting.covering import cover
from mainstem.storage.compacting.window import Window

GROUPS = ("often", "seldom", "gone", GROUP)
DAY_MS = 86_400_000


def compact_log(cluster: ClusterOfOne, now_ms: int, *, covers: bool = True) -> tuple[int, int]:
    """Compact all of the log but its last batch; its bytes before and after."""
    queue = queue_of(cluster)
    content = b"".join(batch.data for batch in queue.batches)
    end = queue.batches[-1].base_offset
    made = compact(content, latest(content, end, now_ms), end, now_ms + DAY_MS)
    if covers:
        window = Window.of(content)
        made = cover(window, made, numpy.ones(len(window.batches), numpy.bool_))
    queue.batches = [
        StoredBatch(
            batch.header.base_offset, bytes(batch.data), batch.header.last_offset_delta, batch.header.max_timestamp,
            batch.header.leader_epoch,
        )
        for batch in stored_batches(bytes(made.content))
    ]  # fmt: skip
    return len(content), len(made.content)


async def filled(cluster: ClusterOfOne) -> None:
    await cluster.groups.leader_of(GROUP)
    await loaded(cluster)
    for number in range(40):
        assert await commit(cluster, number, group="often", partition=number % 2) is ErrorCode.NONE
        if number % 10 == 0:
            assert await commit(cluster, number, group="seldom") is ErrorCode.NONE
            assert await commit(cluster, number, group="gone") is ErrorCode.NONE
    deleted = await cluster.groups.administration.delete_groups(DeleteGroupsRequest(groups_names=("gone",)))
    assert [one.error_code for one in deleted.results] == [ErrorCode.NONE]
    assert await commit(cluster, 7) is ErrorCode.NONE


async def answers(cluster: ClusterOfOne) -> list[int | ErrorCode]:
    return [await asked(cluster, group, partition) for group in GROUPS for partition in (0, 1)]


def test_committed_offsets_are_those_of_before() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await filled(cluster)
        before = await answers(cluster)
        assert before == [38, 39, 30, -1, -1, -1, 7, -1]
        for now_ms in (STARTED_MS, STARTED_MS + 2 * DAY_MS):  # then tombstones go as well
            old, new = compact_log(cluster, now_ms)
            assert new < old
            await cluster.restart()
            await loaded(cluster)
            assert await answers(cluster) == before
            assert measured(cluster, "mainstem_consumer_group_partitions_incomplete") == 0
        assert await commit(cluster, 50, group="often") is ErrorCode.NONE
        await cluster.restart()
        await loaded(cluster)
        assert await answers(cluster) == [50, *before[1:]]

    simulated(story, ONE_PARTITION)


def test_a_batch_that_is_missing_from_a_compacted_log_is_lost_all_the_same() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await filled(cluster)
        compact_log(cluster, STARTED_MS)
        del queue_of(cluster).batches[5]
        await cluster.restart()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert await asked(cluster, "gone") is LOST

    simulated(story, ONE_PARTITION)


def test_a_log_of_which_batches_were_left_out_would_be_taken_for_one_that_lost_them() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await filled(cluster)
        compact_log(cluster, STARTED_MS, covers=False)
        await cluster.restart()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert await asked(cluster, "gone") is LOST

    simulated(story, ONE_PARTITION)
