"""Rounds of retention over runs that are looked at only when they may have something to lose: they come to the same as
rounds that look at everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.runs import extent_rows
from tests.storage.small_node import topic

from mainstem.kernel import COMMITTED_END, LOG_START, QueueTable
from mainstem.model import SLOTS, Topic, queue_id_of
from mainstem.storage.agreed_clock import AgreedTime
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.manifest.in_memory.file_table import FileTable
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.upkeep.retention_pass import RetentionPass

Extent = tuple[int, int, int]
"""Topic number, timestamp, bytes: one record each."""


START_MS = FakeClock().now_ms()


class World:
    """A store of runs, the table of queues, and a clock: the rest of a node is not needed."""

    def __init__(self, runs: Sequence[Sequence[Extent]], topics: list[Topic]) -> None:
        self.clock = FakeClock()
        self.topics = topics
        self.table = QueueTable()
        for known in topics:
            self.table.create(known.number, 0, 1)
        self.damaged: set[str] = set()
        self.seen_ms = START_MS + 1_000_000
        """When all runs were there: later than their timestamps, unless a test says otherwise."""
        self.looked_at: list[str] = []
        self.files: list[StoreFile] = []
        self.rows: dict[str, numpy.ndarray] = {}
        ends: dict[int, int] = {}
        for number, extents in enumerate(runs):
            rows = []
            for topic_number, timestamp, size in sorted(extents, key=lambda extent: extent[0]):
                queue_id = queue_id_of(topic_number, 0)
                offset = ends.get(queue_id, 0)
                ends[queue_id] = offset + 1
                rows.append((queue_id, offset, offset, timestamp, size))
            times = [row[3] for row in rows]
            name = f"{number}.run"
            self.rows[name] = extent_rows(*rows)
            self.files.append(
                StoreFile(
                    name=name,
                    retention_class="",
                    bytes=1,
                    batch_bytes=1,
                    batch_count=1,
                    record_count=1,
                    queue_count=1,
                    min_timestamp=min(times),
                    max_timestamp=max(times),
                )
            )
        for queue_id, end in ends.items():
            self.table.set(self.table.find(queue_id), COMMITTED_END, end)
        self.stored = self.retention = self.compactions = self
        """The parts of the store."""
        self.manifest = SimpleNamespace(files=FileTable())
        for file in self.files:
            self.manifest.files.add(file)
        self.retention_facts_bytes_max = 1 << 20
        self.retention_pass = self.fresh_pass()
        self.passes = 0
        """Compactions that were recorded."""
        self.while_looking: Callable[[], None] = lambda: None
        """Called when all runs were listed, before each look at them."""
        self.forgets = False
        """True: every round is the first of its pass."""

    def fresh_pass(self) -> RetentionPass:
        placement = Placement([0] * SLOTS)
        return RetentionPass(self.table, self, self, self, placement, lambda: self.topics, self, self)  # type: ignore[arg-type]

    # the time as a majority's clocks have it

    def now(self) -> AgreedTime:
        return AgreedTime(self.clock.now_ms(), self.clock.now_ms())

    # the store

    async def first_seen(self, now_ms: int) -> dict[str, int]:
        return {file.name: self.seen_ms for file in self.files}

    def in_order(self) -> list[tuple[StoreFile, list[int]]]:
        self.while_looking()
        return [(file, [0]) for file in self.files]

    async def rows_of(self, name: str, groups: Sequence[int], groups_at: object) -> numpy.ndarray | None:
        self.looked_at.append(name)
        return None if name in self.damaged else self.rows[name]

    # journal, and who moves log starts

    def segments(self) -> list[Any]:
        return []

    async def move_log_starts(self, moves: dict[int, list[tuple[int, int]]]) -> None:
        for queue_id, start in moves.get(0, []):
            self.table.set(self.table.find(queue_id), LOG_START, start)

    # what a test does

    async def round(self, at_ms: int) -> list[int]:
        """The log starts after a round at this time, by topic; `looked_at` has what was read for it."""
        self.clock.advance((at_ms - self.clock.now_ms()) / 1000)
        self.looked_at.clear()
        if self.forgets:
            self.retention_pass = self.fresh_pass()
        await self.retention_pass.move_log_starts()
        return [self.table.get(self.table.find(queue_id_of(known.number, 0)), LOG_START) for known in self.topics]


def forgetful(world: World) -> World:
    """One whose every round is the first, and that knows no times: it looks at everything."""
    world.files = [
        StoreFile(**{name: getattr(file, name) for name in StoreFile.__struct_fields__} | {"min_timestamp": -1})
        for file in world.files
    ]
    world.forgets = True
    return world


def test_what_a_compaction_takes_between_two_looks_is_not_made_up_for_by_what_is_left() -> None:
    async def story() -> None:
        known = topic(1, 1, retention_ms=-1, retention_bytes=40, cleanup_policy=frozenset({"compact", "delete"}))
        world = World([[(1, START_MS, 30)], [(1, START_MS, 30)], [(1, START_MS, 30)]], [known])
        looks = 0

        def compacts_behind_the_first_look() -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                world.passes += 1
                for rows in world.rows.values():
                    rows["length"] = 10

        world.while_looking = compacts_behind_the_first_look
        assert await world.round(START_MS + 1) == [0], "there are 30 bytes now"
        assert looks == 2
        assert await world.round(START_MS + 2) == [0]
        for rows in world.rows.values():
            rows["length"] = 30
        assert await world.round(START_MS + 3) == [1]

    asyncio.run(story())


Limits = tuple[int, int, int]
"""`retention.ms`, `retention.bytes`, `retention.records`."""
limits = st.tuples(st.sampled_from([-1, 1000, 5000]), st.sampled_from([-1, -1, 40]), st.sampled_from([-1, -1, 3]))


def topics_of(chosen: Sequence[Limits]) -> list[Topic]:
    return [
        topic(number, 1, retention_ms=ms, retention_bytes=size, retention_records=records)
        for number, (ms, size, records) in enumerate(chosen, 1)
    ]


def played(
    rising: bool,
    runs: list[list[Extent]],
    chosen: list[Limits],
    later: list[Limits],
    compare: Callable[[list[int], list[int]], None],
) -> None:
    extents = [
        [(number, START_MS + (place * 700 if rising else time), size) for number, time, size in run]
        for place, run in enumerate(runs)
    ]

    async def story() -> None:
        wary, plain = World(extents, topics_of(chosen)), forgetful(World(extents, topics_of(chosen)))
        for at_ms in range(START_MS, START_MS + 12_000, 900):
            if at_ms > START_MS + 6_000:
                wary.topics = plain.topics = topics_of(later)
            compare(await wary.round(at_ms), await plain.round(at_ms))

    asyncio.run(story())


runs_of = st.lists(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6000), st.integers(1, 30)), min_size=1, max_size=5),
    min_size=1,
    max_size=6,
)


@given(runs_of, st.lists(limits, min_size=3, max_size=3), st.lists(limits, min_size=3, max_size=3))
def test_looking_at_few_runs_comes_to_the_same(
    runs: list[list[Extent]], chosen: list[Limits], later: list[Limits]
) -> None:
    def same(found: list[int], expected: list[int]) -> None:
        assert found == expected

    played(True, runs, chosen, later, same)


@given(runs_of, st.lists(limits, min_size=3, max_size=3), st.lists(limits, min_size=3, max_size=3))
def test_with_any_times_no_more_is_lost(runs: list[list[Extent]], chosen: list[Limits], later: list[Limits]) -> None:
    def no_more(found: list[int], expected: list[int]) -> None:
        assert all(mine <= its for mine, its in zip(found, expected, strict=True))

    played(False, runs, chosen, later, no_more)


def test_a_round_with_nothing_to_lose_reads_no_index() -> None:
    async def story() -> None:
        runs = [[(1, START_MS + place * 1000, 10)] for place in range(20)]
        world = World(runs, [topic(1, 1, retention_ms=100_000)])
        assert await world.round(START_MS + 20_000) == [0]
        assert world.looked_at == [], "the manifest knows that nothing is too old"
        assert await world.round(START_MS + 103_500) == [4]
        assert len(world.looked_at) == 4
        await world.round(START_MS + 103_600)
        assert world.looked_at == ["0.run", "1.run", "2.run", "3.run"], "their log starts have moved since"
        await world.round(START_MS + 103_700)
        assert world.looked_at == []

    asyncio.run(story())


def test_sizes_are_added_up_from_runs_that_have_such_queues_only() -> None:
    async def story() -> None:
        runs = [[(1 + place % 2, START_MS, 10)] for place in range(20)]
        world = World(runs, [topic(1, 1, retention_ms=-1), topic(2, 1, retention_ms=-1, retention_bytes=95)])
        for _ in range(2):
            assert await world.round(START_MS) == [0, 0], "no prefix leaves 95 bytes"
        assert {int(name.split(".")[0]) % 2 for name in world.looked_at} == {1}

    asyncio.run(story())


def test_numbers_of_records_are_looked_at_in_runs_that_have_such_queues_only() -> None:
    async def story() -> None:
        runs = [[(1 + place % 2, START_MS, 10)] for place in range(20)]
        world = World(runs, [topic(1, 1, retention_ms=-1), topic(2, 1, retention_ms=-1, retention_records=4)])
        assert await world.round(START_MS) == [0, 6]
        assert len(world.looked_at) == 20, "what is in them is not known yet"
        world.table.set(world.table.find(queue_id_of(2, 0)), LOG_START, 0)
        assert await world.round(START_MS) == [0, 6]
        assert {int(name.split(".")[0]) % 2 for name in world.looked_at} == {1}
        await world.round(START_MS)
        assert world.looked_at == [], "no queue has more than it may keep"

    asyncio.run(story())


def test_a_run_that_cannot_be_read_keeps_what_may_be_younger() -> None:
    async def story() -> None:
        runs = [[(1, START_MS + time, 10)] for time in (0, 5000, 100, 9000)]
        world = World(runs, [topic(1, 1, retention_ms=1000)])
        world.damaged = {"1.run"}
        assert await world.round(START_MS + 2000) == [1], "what is behind it is too old, what is in it is not"
        assert await world.round(START_MS + 6500) == [3], "now all of it is"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("policy", "damaged", "expected"),
    [
        ({"compact", "delete"}, False, 6),
        ({"compact", "delete"}, True, 0),
        ({"delete"}, False, 0),
        ({"compact"}, False, 0),
    ],
)
def test_a_gap_of_a_compacted_queue_keeps_nothing_unless_a_run_cannot_be_read(
    policy: set[str], damaged: bool, expected: int
) -> None:
    """If nothing is compacted, a run that was skipped may have what is missing."""

    async def story() -> None:
        runs = [[(2, START_MS + 1500, 10)], [(1, START_MS, 10)], [(1, START_MS + 9000, 10)]]
        topics = [topic(1, 1, retention_ms=1000, cleanup_policy=frozenset(policy)), topic(2, 1, retention_ms=-1)]
        world = World(runs, topics)
        for name in ("1.run", "2.run"):
            for field in ("base_offset", "last_offset"):
                world.rows[name][field] += 5
        assert await world.round(START_MS + 500) == [0, 0]
        world.damaged = {"0.run"} if damaged else set()
        assert await world.round(START_MS + 2000) == [expected, 0]
        assert ("0.run" in world.looked_at) == damaged

    asyncio.run(story())


def test_a_timestamp_of_the_future_is_as_old_as_the_run_in_what_is_remembered_too() -> None:
    async def story() -> None:
        world = World([[(1, START_MS + (1 << 40), 10)] for _ in range(3)], [topic(1, 1, retention_ms=1000)])
        world.seen_ms = START_MS
        assert await world.round(START_MS + 900) == [0]
        assert await world.round(START_MS + 1500) == [3]

    asyncio.run(story())
