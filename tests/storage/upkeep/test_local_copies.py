"""Which local copies of remote files go, and which stay."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import extent_rows
from tests.storage.small_node import topic
from tests.storage.upkeep.three_places import START_MS, ThreePlaces, queue_of, story, tiered

from mainstem.storage.agreed_clock import AgreedTime
from mainstem.storage.extents.coverage import covered
from mainstem.storage.upkeep.local_copies import LOOK_AGAIN_MS, local_limits
from mainstem.storage.upkeep.retention_sources import ROWS_AT_ONCE_MAX, beside_if_large


async def merged_and_copied(places: ThreePlaces, blocks: int = 3, numbers: tuple[int, ...] = (1,)) -> None:
    """As many blocks, a second apart, each split and merged by itself, and copied to the tier."""
    for place in range(blocks):
        places.produce([(number, START_MS + place * 1000, 10) for number in numbers])
        await places.split()
        await places.merge(place, place + 1)
    places.prune()
    await places.tier()
    await places.first_seen(0)


def test_copies_go_by_age_one_after_the_other() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        for at_ms, left in ((500, {0, 1, 2}), (600, {1, 2}), (1000, {2}), (1000, set())):
            places.advance(at_ms)
            await places.local_copies.run()
            assert places.local_offsets(1) == left
            places.check()
        assert places.remote_offsets(1) == {0, 1, 2}
        assert places.log_start(1) == 0

    story([tiered(1, local_ms=1000)], told)


def test_copies_go_by_size() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 5)
        await places.local_copies.run()
        assert places.local_offsets(1) == {2, 3, 4}, "two records would be too few"
        places.produce([(1, START_MS, 4)])
        await places.local_copies.run()
        assert places.local_offsets(1) == {2, 3, 4, 5}
        places.produce([(1, START_MS, 4)])
        await places.local_copies.run()
        assert places.local_offsets(1) == {3, 4, 5, 6}, "what is not split yet counts, too"
        places.check()

    story([tiered(1, local_bytes=25)], told)


@pytest.mark.parametrize(
    "settings",
    [
        {"remote_storage_enable": False},
        {"remote_log_copy_disable": True},
        {"local_retention_ms": -1},
        {"local_retention_ms": -2},
    ],
)
def test_no_copy_goes_where_no_limit_says_so(settings: dict[str, Any]) -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        (known,) = places.topics
        places.topics = [dataclasses.replace(known, settings=dataclasses.replace(known.settings, **settings))]
        places.advance(10_000_000)
        await places.local_copies.run()
        assert places.local_offsets(1) == {0, 1, 2}

    story([tiered(1, local_ms=1000)], told)
    assert local_limits(tiered(1, local_ms=1000)) == (1000, -1)


def test_what_the_tier_was_not_told_to_have_stays() -> None:
    """A replica that has not heard of the leader's progress keeps its files, and so does one that merged differently
    what the leader passed over."""

    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(10_000_000)
        places.remote.considered = 2
        await places.local_copies.run()
        assert places.local_offsets(1) == {2}
        places.remote.considered = 3
        (name,) = [name for name, rows in places.remote.rows.items() if 2 in rows["base_offset"]]
        there = places.remote.rows[name]
        places.remote.rows[name] = there[:0]
        await places.local_copies.run()
        assert places.local_offsets(1) == {2}, "its class and the tier's position say that it is there; it is not"
        places.remote.rows[name] = there
        reads = len(places.remote.read)
        await places.local_copies.run()
        assert (places.local_offsets(1), len(places.remote.read)) == ({2}, reads), "it is not asked for each time"
        places.advance(LOOK_AGAIN_MS + 1)
        await places.local_copies.run()
        assert places.local_offsets(1) == set()

    story([tiered(1, local_ms=1000)], told)


def test_what_is_known_to_be_damaged_in_the_tier_stays() -> None:
    """The index may still be in memory, or be an object that is whole, when another object of the file is lost."""

    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(10_000_000)
        (name,) = [name for name, rows in places.remote.rows.items() if 1 in rows["base_offset"]]
        places.remote.damaged.add(name)
        await places.local_copies.run()
        assert places.local_offsets(1) == {1}
        places.remote.damaged.clear()
        await places.local_copies.run()
        assert places.local_offsets(1) == set(), "somebody restored the object"

    story([tiered(1, local_ms=1000)], told)


def test_files_of_a_span_that_is_not_done_are_no_proof() -> None:
    async def told(places: ThreePlaces) -> None:
        for place in range(2):
            places.produce([(1, START_MS, 10)])
            await places.split()
            await places.merge(place, place + 1)
        places.prune()
        await places.first_seen(0)
        places.advance(10_000_000)
        rows = numpy.concatenate(list(places.rows.values()))
        await places.copy([(0, 2, rows)], 1)
        await places.local_copies.run()
        assert places.local_offsets(1) == {0, 1}, "the next leader may give up the file of blocks (0, 2]"
        await places.copy([], 2)
        await places.local_copies.run()
        assert places.local_offsets(1) == set()

    story([tiered(1, local_ms=1000)], told)


def test_a_file_goes_behind_whose_batches_are_blocks_that_no_upload_takes() -> None:
    """The leader's own span ended before the no-op of a new leader, say; the topic is idle."""

    async def told(places: ThreePlaces) -> None:
        places.produce([(1, START_MS, 10)])
        places.produce([])
        await places.split()
        await places.merge(0, 1)
        places.prune()
        await places.first_seen(0)
        (rows,) = places.rows.values()
        await places.copy([(0, 1, rows)], 1)
        await places.local_copies.run()
        assert places.local_offsets(1) == {0}, "it is young"
        places.advance(10_000_000)
        places.remote.out = True
        await places.local_copies.run()
        assert places.local_offsets(1) == {0}, "nobody can look"
        places.remote.out = False
        await places.local_copies.run()
        assert places.local_offsets(1) == set()
        places.check()

    story([tiered(1, local_ms=1000)], told)


def test_a_file_that_reaches_beyond_the_tiers_position_is_looked_at_once_per_position() -> None:
    async def told(places: ThreePlaces) -> None:
        for _block in range(3):
            places.produce([(1, START_MS, 10)])
        await places.split()
        await places.merge(0, 1)
        places.prune()
        await places.first_seen(0)
        places.advance(10_000_000)
        (rows,) = places.rows.values()
        for upto in (1, 2):
            await places.copy([(upto - 1, upto, rows[upto - 1 : upto])], upto)
            for _round in range(2):
                await places.local_copies.run()
                assert places.local_offsets(1) == {0, 1, 2}, "the tier has not all of it"
        assert len(places.remote.read) == 1 + 2, "each time what the tier had"
        await places.copy([(2, 3, rows[2:])], 3)
        await places.local_copies.run()
        assert places.local_offsets(1) == set()
        places.check()

    story([tiered(1, local_ms=1000)], told)


def test_an_outage_keeps_all_copies_and_is_no_reason_to_wait_a_day() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(10_000_000)
        places.remote.out = True
        await places.local_copies.run()
        assert places.local_offsets(1) == {0, 1, 2}
        places.remote.out = False
        await places.local_copies.run()
        assert places.local_offsets(1) == set()

    story([tiered(1, local_ms=1000)], told)


def test_a_file_goes_when_each_queue_of_it_may() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 2, (1, 2))
        places.advance(3_000)
        await places.local_copies.run()
        assert places.local_offsets(1) == {0, 1}, "topic 2 keeps them"
        places.advance(4_000)
        await places.local_copies.run()
        assert places.local_offsets(1) == places.local_offsets(2) == set()

    story([tiered(1, local_ms=1000), tiered(2, local_ms=5000)], told)


def test_a_file_with_a_topic_that_is_not_copied_stays() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 1, (1, 2))
        (other,) = [known for known in places.topics if known.number == 2]
        places.topics.remove(other)
        places.topics.append(topic(2, 1, retention_ms=-1))
        places.advance(10_000_000)
        await places.local_copies.run()
        assert places.local_offsets(2) == {0}

    story([tiered(1, local_ms=1000), tiered(2, local_ms=1000)], told)


def test_time_is_the_agreed_one() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(10_000_000)
        places.now = lambda: None  # type: ignore[assignment, return-value]  # no majority agrees
        await places.local_copies.run()
        assert places.local_offsets(1) == {0, 1, 2}
        places.now = lambda: AgreedTime(START_MS + 1_500, places.clock.now_ms())  # type: ignore[method-assign]
        await places.local_copies.run()
        assert places.local_offsets(1) == {1, 2}, "the earliest clock of a majority decides"

    story([tiered(1, local_ms=1000)], told)


def test_files_that_are_held_stay_until_they_are_let_go() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(10_000_000)
        places.held.update(places.manifest.files)
        await places.local_copies.run()
        assert places.local_offsets(1) == {0, 1, 2}
        places.held.clear()
        await places.local_copies.run()
        assert places.local_offsets(1) == set()

    story([tiered(1, local_ms=1000)], told)


def test_a_round_with_nothing_to_go_reads_no_index() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.read.clear()
        places.advance(900)
        await places.local_copies.run()
        assert places.read == [], "the manifest knows that nothing is old enough"
        places.advance(200)
        await places.local_copies.run()
        assert len(places.read) == 1
        await places.local_copies.run()
        assert len(places.read) == 1

    story([tiered(1, local_ms=1000)], told)


def test_a_file_with_very_many_extents_is_looked_at_beside_the_event_loop() -> None:
    async def told(places: ThreePlaces) -> None:
        places.produce([(1, START_MS, 10)] * (ROWS_AT_ONCE_MAX + 1))
        await places.split()
        await places.merge(0, 1)
        places.prune()
        await places.tier()
        await places.first_seen(0)
        places.advance(2_000)
        await places.local_copies.run()
        assert places.local_offsets(1) == set()
        (rows,) = places.remote.rows.values()
        assert await beside_if_large(rows, threading.get_ident) != threading.get_ident()
        assert await beside_if_large(rows[:1], threading.get_ident) == threading.get_ident()

    story([tiered(1, local_ms=1000)], told)


PIECES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(0, 5)), max_size=12)


@given(PIECES, PIECES)
def test_covered_is_what_others_have_all_offsets_of(
    wanted: list[tuple[int, int, int]], there: list[tuple[int, int, int]]
) -> None:
    rows, others = (
        extent_rows(*((queue_of(queue), base, base + more, 0, 1) for queue, base, more in part))
        for part in (sorted(wanted), there)
    )
    offsets = {(queue, base + at) for queue, base, more in there for at in range(more + 1)}
    expected = [all((queue, base + at) in offsets for at in range(more + 1)) for queue, base, more in sorted(wanted)]
    assert covered(rows, others).tolist() == expected
    far = others.copy()
    far["last_offset"] = numpy.where(len(others), far["last_offset"], 0)
    far["queue_id"] += numpy.uint64(1 << 40)
    assert not covered(rows, far).any()
