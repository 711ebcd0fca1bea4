"""The memory that the choice of merges has of files: the same as a look at all of them would say, within a bound."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.changes.test_merged_files import QUEUES, Merges, groups_at
from tests.storage.queue_store.runs import make_batch, write_merged
from tests.storage.queue_store.test_store import Bench, log_starts

from mainstem.errors import ConfigError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_measure import TopicFacts
from mainstem.storage.merging.segment_lines import SegmentLines
from mainstem.storage.queue_store.changes.merge_facts import ENDLESS, SUMMARY_SECONDS, LiveBounds, MergeFacts, Told
from mainstem.storage.queue_store.changes.row_facts import RowFacts
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.store_files.store_file import segment_name

LINES = MergeLines(packed_bytes=5_000, level_one_bytes=20_000, wait_bytes_max=40_000)
LONG = MergeLines(packed_bytes=5_000, level_one_bytes=1 << 30, wait_bytes_max=1 << 30)
LATER = 1e9
"""A time to give up that never comes."""


class Choosing:
    """Asks for sums and summaries as a choice does."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.starts = dict.fromkeys(range(QUEUES), 0)
        topics = {0: TopicFacts("orders", "forever", 9_000)}
        self.told = Told(2, LINES, SegmentLines(topics, LINES), self._bounds)

    def _bounds(self, group: int, queue_ids: QueueIds) -> LiveBounds:
        here = groups_at(queue_ids, queue_ids) == group
        starts = log_starts(self.starts)(queue_ids)
        return LiveBounds(numpy.where(here, starts, ENDLESS), numpy.where(here, ENDLESS, 0))

    def fresh(self) -> MergeFacts:
        return MergeFacts(self.bench.store.stored, self.bench.clock, 1 << 20)

    async def sums(self, facts: MergeFacts) -> list[list[tuple[int, ...]]]:
        """Of all spans, by write group."""
        assert await facts.look_round(self.told, LATER) in {(True, False), (False, False)}
        found = []
        for group in (0, 1):
            rows = await facts.sums(group, self.bench.store.manifest.spans(group), self.told)
            found.append([tuple(row) for row in rows.tolist()])
        return found


@given(st.integers(0, 2**32))
def test_what_is_remembered_is_what_a_look_at_all_files_says(seed: int) -> None:
    choice = random.Random(seed)

    async def scenario(bench: Bench) -> None:
        merges, choosing = Merges(bench, choice), Choosing(bench)
        facts = choosing.fresh()
        for _ in range(choice.randint(1, 10)):
            for _ in range(choice.randint(1, 3)):
                await merges.split()
            if choice.random() < 0.6:
                await merges.merge(choice.randrange(2))
            if choice.random() < 0.3:
                await merges.rewrite(choice.randrange(2))
            if choice.random() < 0.5:
                queue_id = choice.randrange(QUEUES)
                choosing.starts[queue_id] += choice.randint(0, 9)
                bench.clock.advance(SUMMARY_SECONDS + 2)
            assert await choosing.sums(facts) == await choosing.sums(choosing.fresh())
            for group in (0, 1):
                for span in bench.store.manifest.spans(group):
                    known = await facts.summaries(group, [span], choosing.told, LATER)
                    fresh = await choosing.fresh().summaries(group, [span], choosing.told, LATER)
                    assert known is not None
                    assert fresh is not None
                    if not span.runs:
                        assert [one.bytes for one in known] == [one.bytes for one in fresh]
                        assert [one.queue_count for one in known] == [one.queue_count for one in fresh]

    with tempfile.TemporaryDirectory() as directory:
        Bench(directory).run(scenario)


def test_only_what_changed_is_added_up_and_looked_at_again(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        merges, choosing = Merges(bench, random.Random(1)), Choosing(bench)
        for _ in range(40):
            await merges.split(0, 1, 2)
            for group in (0, 1):
                last = bench.store.manifest.spans(group)[-1:]
                await bench.store.changes.merge(group, [*last[0]], merges.merged(group, [*last[0]]))
        facts = choosing.fresh()
        first = await choosing.sums(facts)
        added_up = facts.added_up
        assert added_up > 0
        assert await choosing.sums(facts) == first
        assert facts.added_up == added_up, "nothing has changed"
        await merges.split(0, 1, 2)
        assert await facts.look_round(choosing.told, LATER) == (False, False), "runs are not looked at for this"
        await choosing.sums(facts)
        assert facts.added_up <= added_up + 2, "a chunk of each write group"

    Bench(tmp_path).run(scenario)


def test_a_segment_that_is_live_as_a_whole_is_known_without_its_index(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        choosing = Choosing(bench)
        batches = [make_batch(2, number, size=70_000) for number in range(20)]
        loads: list[str] = []
        index = bench.store.stored.open_files.index

        async def counted(known: object, *, keep: bool = True) -> object:
            loads.append(known.name)  # type: ignore[attr-defined]
            return await index(known, keep=keep)  # type: ignore[arg-type]

        files = [
            write_merged(bench.files, segment_name("orders", 2, "m", 0), 0, batches[:10], level=2),
            write_merged(bench.files, segment_name("orders", 2, "n", 10), 0, batches[10:], level=2),
        ]
        await bench.store.changes.supersede(0, 2, [(0, 1, files[0]), (1, 2, files[1])])
        bench.store.stored.open_files.index = counted  # type: ignore[method-assign,assignment]
        facts = choosing.fresh()
        assert [row[1:3] for row in (await choosing.sums(facts))[0]] == [(700_000, 0)] * 2
        assert loads == []
        choosing.starts[2] = 5
        bench.clock.advance(SUMMARY_SECONDS + 2)
        sizes = [row[1:3] for row in (await choosing.sums(facts))[0]]
        assert sizes == [(700_000, 700_000 * (255 // 2) // 255), (700_000, 0)]
        assert loads == [files[0].name]

    Bench(tmp_path).run(scenario)


@pytest.mark.parametrize("facts_bytes", [0, 1 << 20])
def test_a_merge_is_chosen_with_no_memory_for_facts_and_frees_what_is_mostly_dead(
    tmp_path: Path, facts_bytes: int
) -> None:
    """Queues of two retentions share a packed file; when those of the shorter one are dead, the file is written again
    without them."""

    async def scenario(bench: Bench) -> None:
        merges, choosing = Merges(bench, random.Random(2)), Choosing(bench)
        store, told = bench.store, choosing.told
        for _ in range(6):
            await merges.split(0, 2, 4, 6, 2, 4)

        async def begin() -> tuple[int, int]:
            begun, _more = await store.merges.begin(
                "m", 2, LONG, told.segment_lines, told.bounds, lambda: True, drain=True
            )
            store.merges.give_up()
            return (len(begun.inputs), begun.level) if begun is not None else (0, 0)

        entries = [*store.manifest.ranges(0)]
        assert (await begin())[0] == len(entries)
        batches = sorted(batch for entry in entries for batch in merges.held[entry.name] if batch.queue_id % 2 == 0)
        shared = write_merged(bench.files, "shared.pack", 0, batches, level=2)
        await store.changes.merge(0, entries, [shared])
        await store.changes.merge(1, [*store.manifest.ranges(1)], [])
        assert await begin() == (0, 0), "it is settled"
        choosing.starts |= {2: 1000, 4: 1000}
        bench.clock.advance(SUMMARY_SECONDS + 2)
        dead = sum(len(batch.data) for batch in batches if batch.queue_id in {2, 4})
        assert dead > sum(len(batch.data) for batch in batches) / 2
        assert await begin() == (1, 2), "what others outlive goes when half of the file is dead"
        assert store.merges.facts.held_bytes <= max(facts_bytes, 10_000)

    Bench(tmp_path, QueueStoreConfig(facts_cache_bytes=facts_bytes)).run(scenario)


def test_facts_of_rows_are_noted_while_there_is_room_and_forgotten_with_their_page() -> None:
    kind = numpy.dtype([("at", "<u4"), ("dead", "u1")])
    facts = RowFacts(kind, 10, 100)
    assert facts.get(7) is None
    facts.put(7, (3, 4))
    facts.put(19, (0, 0))
    assert facts.get(7) == (3, 4)
    assert facts.get(8) is None
    assert facts.get(19) is None
    assert facts.held_bytes == 100
    assert not facts.has_room(2)
    facts.put(25, (1, 1))
    assert facts.get(25) is None, "there is no room"
    before = facts.changed(0)
    facts.note(0, numpy.array([1, 2]), (9, numpy.array([5, 6])))
    assert (facts.get(1), facts.get(2)) == ((9, 5), (9, 6))
    assert facts.changed(0) != before
    facts.keep({1})
    assert facts.get(7) is None
    facts.put(25, (1, 1))
    assert facts.get(25) == (1, 1)
    facts.clear()
    assert facts.held_bytes == 0


def test_less_than_no_memory_for_facts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"queue_store\.facts_cache_bytes = -1"):
        QueueStoreConfig(facts_cache_bytes=-1).validate()
