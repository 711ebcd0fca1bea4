"""The bytes of queues in the files of a distant store: against counting by hand, each index read once, in part where
the time is over or the room is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy
import numpy.typing
import pytest
from tests.storage.queue_store.test_store import Bench
from tests.storage.queue_store.usage.test_topic_usage import HastyClock, Topics

from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.usage import queue_sums
from mainstem.storage.queue_store.usage.queue_sums import UNKNOWN_LAST, KeptQueueSums
from mainstem.storage.store_files.store_file import path_of


def unasked(
    _queue_ids: numpy.typing.NDArray[numpy.uint64], _offsets: numpy.typing.NDArray[numpy.int64]
) -> numpy.typing.NDArray[numpy.int64]:
    raise AssertionError("a file counts for the write group of all of its queues")


async def told(sums: KeptQueueSums) -> Counter[int]:
    found: Counter[int] = Counter()
    async for rows in sums.all_rows(unasked):
        for queue_id, size, _last in rows.tolist():
            found[queue_id] += size
    return found


def by_hand(topics: Topics, *but: str) -> Counter[int]:
    found: Counter[int] = Counter()
    for name in topics.bench.store.manifest.files:
        for batch in topics.held[name] if name not in but else ():
            found[batch.queue_id] += len(batch.data)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_each_queue_has_what_its_batches_take_in_every_file(tmp_path: Path, seed: int) -> None:
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        topics, sums = Topics(bench, seed), KeptQueueSums(bench.store.stored, bench.clock)
        assert await told(sums) == {}
        for _ in range(6):
            await topics.split()
            if topics.choice.random() < 0.5:
                await topics.merge()
            assert await told(sums) == by_hand(topics)
            assert sums.unread_bytes == 0

    bench.run(scenario)


def test_indexes_are_read_once_and_not_at_all_of_a_queue_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, QueueStoreConfig(index_cache_bytes=0))

    async def scenario(bench: Bench) -> None:
        topics, sums = Topics(bench, 1), KeptQueueSums(bench.store.stored, bench.clock)
        for _ in range(4):
            await topics.split()
            await topics.merge()
        bench.files.reads.clear()
        await told(sums)
        held = {name: {it.queue_id for it in topics.held[name]} for name in bench.store.manifest.files}
        alone = {path_of(name) for name, queues in held.items() if len(queues) == 1 and not name.endswith(".run")}
        assert {path for path, *_place in bench.files.reads} == set(map(path_of, held)) - alone
        assert alone
        bench.files.reads.clear()
        assert await told(sums) == by_hand(topics)
        assert bench.files.reads == []

    bench.run(scenario)


def test_last_offsets_tell_what_is_dead(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        topics, sums = Topics(bench, 5), KeptQueueSums(bench.store.stored, bench.clock)
        await topics.split()
        (name,) = bench.store.manifest.files
        (rows,) = [rows async for rows in sums.all_rows(unasked) if len(rows)]
        for queue_id, _size, last in rows.tolist():
            assert last == max(it.last_offset for it in topics.held[name] if it.queue_id == queue_id)
        await topics.merge()
        lasts = [rows["last_offset"].tolist() async for rows in sums.all_rows(unasked)]
        assert UNKNOWN_LAST in [one for some in lasts for one in some]

    bench.run(scenario)


def test_what_was_not_read_in_time_comes_with_the_next_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_sums, "INDEXES_AT_ONCE", 1)
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        topics, sums = Topics(bench, 2), KeptQueueSums(bench.store.stored, HastyClock())
        for _ in range(9):
            await topics.split()
        left = []
        for _ in range(6):
            found = await told(sums)
            left.append(sums.unread_bytes)
            assert sum(found.values()) + sums.unread_bytes == sum(by_hand(topics).values())
        assert left == sorted(left, reverse=True)
        assert left[0] > 0 == left[-1]
        assert await told(sums) == by_hand(topics)

    bench.run(scenario)


def test_without_room_small_files_are_left_out_and_not_read_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, QueueStoreConfig(index_cache_bytes=0))

    async def scenario(bench: Bench) -> None:
        topics = Topics(bench, 3)
        for _ in range(5):
            await topics.split()
        files = sorted(bench.store.manifest.files.values(), key=lambda file: -file.batch_bytes)
        room = files[0].queue_count + files[1].queue_count
        sums = KeptQueueSums(bench.store.stored, bench.clock, rows_kept_max=room)
        kept = await told(sums)
        assert sum(kept.values()) + sums.unread_bytes == sum(by_hand(topics).values())
        assert sums.unread_bytes > 0
        assert not by_hand(topics, *(file.name for file in files[1:])) - kept, "the largest is among them"
        bench.files.reads.clear()
        assert await told(sums) == kept
        assert bench.files.reads == []

    bench.run(scenario)
