"""The bytes of topics on which level: against counting by hand, in part where the time is over, at once for many."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import numpy
import pytest
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.runs import Batch, make_batch, write_merged, write_run
from tests.storage.queue_store.test_store import Bench

from mainstem.model import queue_id_of, topic_number_of
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.in_memory import file_table
from mainstem.storage.queue_store.manifest.in_memory.file_table import Level
from mainstem.storage.queue_store.usage import topic_sums
from mainstem.storage.queue_store.usage.topic_sums import TopicSums
from mainstem.storage.queue_store.usage.topic_usage import StoreUsage, TopicShare, TopicUsage, ranking, share
from mainstem.storage.store_files.store_file import FileKind, kind_of, path_of, segment_name

TOPICS = 9
ByHand = dict[tuple[Level, int], tuple[int, int]]


class Topics:
    """Runs and merged files of some topics, and what each of them has in each file."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.choice = random.Random(seed)
        self.ends: dict[int, int] = defaultdict(int)
        self.held: dict[str, list[Batch]] = {}
        self.slices = 0

    def batches(self, *topics: int) -> list[Batch]:
        found = []
        for _ in range(self.choice.randint(1, 15)):
            queue = queue_id_of(self.choice.choice(topics or range(TOPICS)), self.choice.randrange(3))
            found.append(make_batch(queue, self.ends[queue], size=self.choice.choice([61, 900, 70_000])))
            self.ends[queue] += 1
        return found

    async def split(self) -> None:
        number = self.slices = self.slices + 1
        run = write_run(self.bench.files, f"{number}.run", batches := self.batches())
        self.held[run.name] = batches
        await self.bench.store.splits.record(0, number - 1, number, [run], applied_index=number)

    async def merge(self) -> None:
        """Put a shared file, one of a topic alone, and a segment in the place of a slice."""
        entries = [entry for span in list(self.bench.store.manifest.spans(0))[-1:] for entry in span]
        outputs = []
        for kind, topics in (("pack", (0, 1, 2)), ("pack", (3,)), ("log", (4,))):
            batches = self.batches(*topics)
            if kind == "log":
                batches = [batch for batch in batches if batch.queue_id == batches[0].queue_id]
            first = min(batches)
            name = f"{self.slices}-{topics[0]}.pack"
            if kind == "log":
                name = segment_name("orders", first.queue_id & 0xFFFFFFFF, f"m{self.slices}", first.base_offset)
            outputs.append(write_merged(self.bench.files, name, 0, batches, level=2 if kind == "log" else 1))
            self.held[name] = batches
        await self.bench.store.changes.merge(0, entries, outputs)

    def by_hand(self, *but: str) -> ByHand:
        found: dict[tuple[Level, int], list[int]] = defaultdict(lambda: [0, 0])
        for name, file in self.bench.store.manifest.files.items():
            level = file.level, kind_of(name)
            if name in but:
                continue
            for topic in {topic_number_of(batch.queue_id) for batch in self.held[name]}:
                found[level, topic][0] += 1
            for batch in self.held[name]:
                found[level, topic_number_of(batch.queue_id)][1] += len(batch.data)
        return {key: (files, count) for key, (files, count) in found.items()}


def told(usage: StoreUsage) -> ByHand:
    return {
        (level, topic): (files, count)
        for level, sums in usage.levels.items()
        for topic, files, count in zip(*(column.tolist() for column in sums), strict=True)
    }


@pytest.mark.parametrize("seed", range(6))
def test_each_topic_has_what_its_batches_take_in_every_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_table, "PAGES_PER_TURN", 1)
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        topics = Topics(bench, seed)
        usage = bench.store.topic_usage
        assert await usage.of_store() == StoreUsage({}, 0, 0)
        for _ in range(8):
            await topics.split()
            if topics.choice.random() < 0.5:
                await topics.merge()
            found = await usage.of_store()
            assert told(found) == topics.by_hand()
            assert (found.unread_files, found.unread_bytes) == (0, 0)
            assert [level for level, _kind in found.levels] == sorted(level for level, _kind in found.levels)
        assert {kind for _level, kind in found.levels} == set(FileKind)

    bench.run(scenario)


def test_indexes_are_read_once_and_not_at_all_where_the_manifest_says_it_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, QueueStoreConfig(index_cache_bytes=0))

    async def scenario(bench: Bench) -> None:
        topics = Topics(bench, 1)
        for _ in range(4):
            await topics.split()
            await topics.merge()
        await bench.store.topic_usage.of_store()
        bench.files.reads.clear()
        await bench.store.topic_usage.of_store()
        assert bench.files.reads == []
        fresh = TopicUsage(bench.store.stored, bench.clock)
        await fresh.of_store()
        files = bench.store.manifest.files
        several = [name for name in files if len({topic_number_of(it.queue_id) for it in topics.held[name]}) > 1]
        assert {path for path, *_place in bench.files.reads} == set(map(path_of, several)) != set()

    bench.run(scenario)


class HastyClock(FakeClock):
    """A clock by which each look takes two seconds."""

    def monotonic(self) -> float:
        self.advance(2.0)
        return super().monotonic()


def test_what_could_not_be_read_in_time_is_told_and_comes_with_the_next_answers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        topics = Topics(bench, 2)
        for _ in range(9):
            await topics.split()
        usage = TopicUsage(bench.store.stored, HastyClock())
        unread = []
        for _ in range(6):
            found = await usage.of_store()
            unread.append(found.unread_files)
            rest = list(bench.store.manifest.files.values())[9 - found.unread_files :]
            assert found.unread_bytes == sum(file.batch_bytes for file in rest)
            assert told(found) == topics.by_hand(*(file.name for file in rest))
        assert unread == sorted(unread, reverse=True)
        assert 0 < unread[0] < 9
        assert unread[-1] == 0

    bench.run(scenario)


def test_no_more_is_kept_than_allowed_and_the_answer_stays_true(tmp_path: Path) -> None:
    bench = Bench(tmp_path, QueueStoreConfig(index_cache_bytes=0))

    async def scenario(bench: Bench) -> None:
        topics = Topics(bench, 3)
        usage = TopicUsage(bench.store.stored, bench.clock, rows_kept_max=TOPICS)
        for _ in range(5):
            await topics.split()
        for _ in range(2):
            bench.files.reads.clear()
            assert told(await usage.of_store()) == topics.by_hand()
            assert bench.files.reads, "what is not kept is read again"

    bench.run(scenario)


def test_a_damaged_file_is_left_out_and_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, QueueStoreConfig(index_cache_bytes=0))

    async def scenario(bench: Bench) -> None:
        topics = Topics(bench, 4)
        for _ in range(3):
            await topics.split()
        bench.files.flip("runs/2.run", 8 * (len(bench.files.content("runs/2.run")) - 1))
        found = await bench.store.topic_usage.of_store()
        assert (found.unread_files, found.unread_bytes) == (1, bench.store.manifest.files["2.run"].batch_bytes)
        assert told(found) == topics.by_hand("2.run")

    bench.run(scenario)


def sums(**topics: tuple[int, int]) -> TopicSums:
    rows = sorted((int(name[1:]), *figures) for name, figures in topics.items())
    columns = numpy.array(rows, numpy.int64).reshape(-1, 3).T
    return TopicSums(*(numpy.ascontiguousarray(column) for column in columns))


RUNS, SEGMENTS = (0, FileKind.RUN), (2, FileKind.SEGMENT)


def test_the_largest_topics_come_first_and_the_others_together() -> None:
    usage = StoreUsage({RUNS: sums(t1=(2, 10), t2=(1, 500)), SEGMENTS: sums(t2=(3, 7), t9=(1, 40), t4=(1, 1))}, 0, 0)
    journal = sums(t1=(1, 50), t5=(1, 3))
    found = ranking(usage, journal, 2)
    assert found.largest == [
        TopicShare(2, 0, [(RUNS, 1, 500), (SEGMENTS, 3, 7)]),
        TopicShare(1, 50, [(RUNS, 2, 10)]),
    ]
    assert found.others == TopicShare(-1, 3, [(SEGMENTS, 2, 41)])
    assert found.others_count == 3
    assert share(usage, journal, 7) == TopicShare(7, 0, [])
    everything = ranking(usage, journal, 100)
    assert (len(everything.largest), everything.others, everything.others_count) == (5, TopicShare(-1, 0, []), 0)
    nothing = ranking(StoreUsage({}, 0, 0), topic_sums.none(), 5)
    assert (nothing.largest, nothing.others_count) == ([], 0)


def test_a_topic_is_as_large_as_all_that_it_has_on_either_tier() -> None:
    local = StoreUsage({RUNS: sums(t1=(2, 10), t2=(1, 500))}, 0, 0)
    remote = StoreUsage({SEGMENTS: sums(t1=(3, 1000), t3=(1, 2), t4=(1, 1))}, 0, 0)
    found = ranking(local, topic_sums.none(), 2, remote)
    assert found.largest == [
        TopicShare(1, 0, [(RUNS, 2, 10)], ((SEGMENTS, 3, 1000),)),
        TopicShare(2, 0, [(RUNS, 1, 500)]),
    ]
    assert found.others == TopicShare(-1, 0, [], ((SEGMENTS, 2, 3),))
    assert share(local, topic_sums.none(), 3, remote) == TopicShare(3, 0, [], ((SEGMENTS, 1, 2),))


def test_sums_of_rows_are_those_of_a_plain_count() -> None:
    choice = random.Random(5)
    batches = sorted(
        make_batch(queue_id_of(choice.randrange(4), choice.randrange(3)), number, size=choice.randint(61, 200))
        for number in range(200)
    )
    rows = numpy.zeros(len(batches), [("queue_id", "<u8"), ("length", "<u4")])
    rows["queue_id"] = [batch.queue_id for batch in batches]
    rows["length"] = [len(batch.data) for batch in batches]
    found = topic_sums.of_rows(rows)
    by_hand: dict[int, int] = defaultdict(int)
    for batch in batches:
        by_hand[topic_number_of(batch.queue_id)] += len(batch.data)
    assert dict(zip(found.topics.tolist(), found.bytes.tolist(), strict=True)) == by_hand
    twice = topic_sums.together([found, found])
    assert twice.bytes.tolist() == (2 * found.bytes).tolist()
    assert twice.files.tolist() == [2] * len(found.topics)


def test_those_who_ask_at_the_same_time_get_one_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        topics = Topics(bench, 6)
        for _ in range(3):
            await topics.split()
        first, second = await asyncio.gather(bench.store.topic_usage.of_store(), bench.store.topic_usage.of_store())
        assert first is second

    bench.run(scenario)
