"""Runs that are merged because they have waited for long, however few they are: for the remote tier, or to be
compacted."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.changes.test_merged_files import groups_at
from tests.storage.small_node import SmallNode, simulated
from tests.storage.small_node import topic as known_topic
from tests.storage.split.tiered_store import GROUPS, TieredStore

from mainstem.model import Topic, TopicSettings
from mainstem.rpc.messages.split import MergeWaits
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.queue_store.changes.aged_runs import NEVER_AGED, AgedBefore, AgedOf
from mainstem.storage.split.run_ages import AGE_MS_MAX, AGE_MS_MIN, COMPACTED_AGE_MS_MIN, QUEUES_PER_TURN, RunAges

HOUR, DAY = AGE_MS_MIN // 1000, AGE_MS_MAX // 1000


def topic(number: int, partitions: int = 9, *, internal: bool = False, **settings: Any) -> Topic:
    return Topic(
        name=f"orders-{number}", number=number, topic_id=uuid.UUID(int=number + 1), partitions=partitions,
        settings=TopicSettings(**settings), internal=internal,
    )  # fmt: skip


def asking(number: int, local_retention_ms: int, partitions: int = 9) -> Topic:
    return topic(number, partitions, remote_storage_enable=True, local_retention_ms=local_retention_ms)


def compacted(number: int, partitions: int = 9, *, internal: bool = False, **settings: int) -> Topic:
    policy: dict[str, Any] = {"cleanup_policy": frozenset({"compact"})}
    return topic(number, partitions, internal=internal, **policy, **settings)


def told(
    root: Path, topics: list[Topic], story: Callable[[TieredStore], Awaitable[None]], run_class: str = "forever+remote"
) -> None:
    """There is a run that retention has just seen, too small to be merged for its size."""

    async def whole() -> None:
        store = TieredStore(root, 3)
        store.topics, store.run_class = topics, run_class
        async with store.opened():
            await store.split()
            await look(store)
            await story(store)

    asyncio.run(whole())


async def look(store: TieredStore) -> None:
    """As retention does, which notes when it has seen files first."""
    await store.store.retention.first_seen(store.clock.now_ms())


async def wait(store: TieredStore, seconds: float) -> None:
    store.clock.advance(seconds)
    store.renew_lease()


def runs(store: TieredStore) -> int:
    return sum(
        file.level == 0 for group in range(GROUPS) for _, _, file in store.store.manifest.spans(group).described()
    )


async def merged_once_older_than(store: TieredStore, seconds: float) -> None:
    """Runs of both write groups wait for so long and are merged once they are older, and what was merged is not merged
    again."""
    await wait(store, seconds)
    assert not await store.merge(drain=False)
    assert await store.log.waits() == MergeWaits(0)
    await wait(store, 1)
    assert (await store.log.waits()).bytes > 0
    assert await store.merge(drain=False)
    assert await store.merge(drain=False), "those of the other write group"
    assert not await store.merge(drain=False), "what was merged is not merged again"
    assert runs(store) == 0


def test_runs_of_a_topic_that_receives_nothing_more_move_when_its_local_retention_has_passed(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged_once_older_than(store, 2 * HOUR)
        assert await store.log.waits() == MergeWaits(0), "what was merged does not wait to be merged, either"
        await store.upload_all()
        await store.check_remote()
        assert [store.logged.position(group).upto for group in range(GROUPS)] == [store.slices] * GROUPS
        await store.split()
        await look(store)
        await wait(store, HOUR)
        assert not await store.merge(drain=False), "runs that come later wait as long"
        await wait(store, HOUR + 1)
        assert await store.merge(drain=False)

    told(tmp_path, [asking(0, 2 * AGE_MS_MIN), topic(1)], story)


def test_runs_from_before_a_topic_asked_for_the_tier_move_after_a_day(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await wait(store, DAY)
        assert not await store.merge(drain=False)
        await wait(store, 1)
        assert await store.merge(drain=False)

    told(tmp_path, [asking(0, 0), topic(1)], story, "forever")


@pytest.mark.parametrize("run_class", ["compact", "internal"])
def test_runs_of_which_nothing_ever_moves_wait(tmp_path: Path, run_class: str) -> None:
    async def story(store: TieredStore) -> None:
        await wait(store, 10 * DAY)
        assert not await store.merge(drain=False)

    told(tmp_path, [asking(0, 0), topic(1)], story, run_class)


def test_runs_wait_where_no_topic_asks_or_retention_has_not_seen_them_or_clocks_disagree(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await wait(store, 2 * DAY)
        assert not await store.merge(drain=False), "no topic asks"
        store.topics = [asking(0, 0)]
        store.quorum = [store.clock.now_ms(), None, None]
        assert not await store.merge(drain=False), "two of three clocks are not known"
        store.quorum = None
        store.allowed = False
        assert not await store.merge(drain=False), "nothing may move yet"
        store.allowed = True
        assert await store.merge(drain=False)
        assert await store.merge(drain=False)
        await store.split()
        await wait(store, 2 * DAY)
        assert not await store.merge(drain=False), "nobody knows how old they are"

    told(tmp_path, [topic(0), topic(1, remote_storage_enable=True, remote_log_copy_disable=True)], story)


def test_runs_of_a_compacted_topic_are_merged_when_kafka_would_close_its_segment(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged_once_older_than(store, 2 * HOUR)
        await store.split()
        await look(store)
        store.topics = [compacted(0, segment_ms=2 * AGE_MS_MIN, max_compaction_lag_ms=AGE_MS_MIN), topic(1)]
        await wait(store, HOUR)
        assert not await store.merge(drain=False), "runs that come later wait as long as their topic says then"
        await wait(store, 1)
        assert await store.merge(drain=False)

    told(tmp_path, [compacted(0, segment_ms=2 * AGE_MS_MIN), topic(1)], story, "compact")


def test_runs_from_before_a_topic_was_compacted_are_merged_after_a_day(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await wait(store, DAY)
        assert not await store.merge(drain=False)
        await wait(store, 1)
        assert await store.merge(drain=False)

    told(tmp_path, [compacted(0, segment_ms=AGE_MS_MIN), topic(1)], story, "forever")


def test_runs_of_internal_topics_wait_for_what_others_bring(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await wait(store, 10 * DAY)
        assert not await store.merge(drain=False)

    told(tmp_path, [compacted(0, segment_ms=AGE_MS_MIN, internal=True), topic(1)], story, "internal")


def test_a_node_gives_out_the_runs_of_compacted_topics_that_have_waited(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        async def wanted() -> bool:
            return bool((await node.storage.merge_log.work(lambda: True, (), drain=False)).merge_id)

        await node.fill(3)
        await node.split()
        await node.storage.queue_store.retention.first_seen(node.clock.now_ms() - COMPACTED_AGE_MS_MIN)
        assert not await wanted()
        assert await node.storage.merge_log.waits() == MergeWaits(0)
        await asyncio.sleep(0.1)
        assert (await node.storage.merge_log.waits()).bytes > 0
        assert await wanted()

    def prepare(node: SmallNode) -> None:
        node.topics = [known_topic(cleanup_policy=frozenset({"compact"}), segment_ms=1)]

    simulated(tmp_path, story, prepare)


def limits_of(clock: FakeClock, topics: Sequence[Topic], *, moves: bool = True) -> AgedOf:
    ages = RunAges(
        GROUPS, lambda queue_ids: groups_at(queue_ids, queue_ids), lambda: topics, lambda: moves, AgreedClock(clock)
    )
    return asyncio.run(ages.aged())


def test_the_least_segment_ms_or_compaction_lag_of_the_topics_in_a_write_group_counts() -> None:
    clock = FakeClock()
    now = clock.now_ms()

    def limits(*topics: Topic) -> list[AgedBefore | None]:
        return [limits_of(clock, topics, moves=False)(group) for group in range(GROUPS)]

    def of(ms: int) -> AgedBefore:
        others_ms = now - max(ms, AGE_MS_MAX)
        return AgedBefore(others_ms, others_ms, now - ms)

    least = COMPACTED_AGE_MS_MIN
    assert limits(topic(0, segment_ms=1), asking(1, 1)) == [None, None], "none is compacted"
    assert limits(compacted(1)) == [of(7 * AGE_MS_MAX)] * 2, "Kafka's default"
    assert limits(compacted(1, segment_ms=3 * least, partitions=1)) == [of(3 * least), None]
    both = compacted(1, segment_ms=3 * least, partitions=1), compacted(2, max_compaction_lag_ms=5 * least)
    assert limits(*both) == [of(3 * least), of(5 * least)]
    assert limits(compacted(1, segment_ms=1)) == [of(least)] * 2, "no sooner than nodes look"
    assert limits(compacted(1, segment_ms=1, internal=True)) == [None, None]


def test_topics_of_the_tier_and_compacted_ones_ask_for_runs_of_their_own() -> None:
    clock = FakeClock()
    now = clock.now_ms()
    asked = limits_of(clock, [asking(1, 2 * AGE_MS_MIN, partitions=1), compacted(2, segment_ms=AGE_MS_MIN)])
    assert asked(0) == AgedBefore(now - 2 * AGE_MS_MIN, now - AGE_MS_MAX, now - AGE_MS_MIN)
    assert asked(1) == AgedBefore(now - AGE_MS_MAX, now - AGE_MS_MAX, now - AGE_MS_MIN)
    assert limits_of(clock, [asking(1, 0)])(0) == AgedBefore(now - AGE_MS_MIN, now - AGE_MS_MAX, NEVER_AGED)


def test_the_least_local_retention_of_the_topics_in_a_write_group_counts() -> None:
    clock = FakeClock()
    now = clock.now_ms()

    def limits(*topics: Topic) -> list[AgedBefore | None]:
        return [limits_of(clock, topics)(group) for group in range(GROUPS)]

    def of(hours: int) -> AgedBefore:
        return AgedBefore(now - hours * AGE_MS_MIN, now - AGE_MS_MAX)

    hour = AGE_MS_MIN
    assert limits(topic(0)) == [None, None]
    assert limits(topic(0), asking(1, 3 * hour, partitions=1)) == [of(3), None], "the other has no queue of it"
    assert limits(asking(1, 3 * hour, partitions=1), asking(2, 5 * hour, partitions=2)) == [of(3), of(5)]
    assert limits(asking(1, 5 * hour), asking(2, 3 * hour, partitions=1)) == [of(3), of(5)]
    assert limits(asking(1, 1)) == [of(1), of(1)], "an hour at least"
    assert limits(asking(1, -2)) == limits(asking(1, 90 * hour)) == [of(24), of(24)], "a day at most"
    assert limits(topic(1, internal=True, remote_storage_enable=True)) == [None, None]
    wide = asking(1, 2 * hour, partitions=QUEUES_PER_TURN + 1)
    assert limits(wide) == [of(2), of(2)]
