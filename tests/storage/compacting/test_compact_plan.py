"""Which queues are worth compacting: every rule by itself, and at random that compaction comes to rest."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import extent_rows

from mainstem.storage.compacting.compact_plan import (
    NO_END,
    OFFSETS_MAX,
    CompactFile,
    PassedQueues,
    PassPlan,
    Rules,
    RulesOf,
    parts_of,
    plan,
)
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds
from mainstem.storage.store_files.store_file import NEVER_COMPACTED, NO_HORIZON

NOW = 1_000_000
FOREVER = (1 << 63) - 1
OLD = 1000


def a_file(
    *extents: tuple[int, int, int, int, int],
    clean_ms: int = NEVER_COMPACTED,
    horizon_ms: int = NO_HORIZON,
    passed: PassedQueues | None = None,
    more_bytes: int = 0,
) -> CompactFile:
    """`extents`: (queue, first offset, last offset, timestamp, bytes)."""
    rows = extent_rows(*extents)
    size = int(rows["length"].sum()) + more_bytes
    return CompactFile(parts_of(ExtentIndex(rows, "here")), size, clean_ms, horizon_ms, passed)


def rules(
    ratio: float = 0.5,
    least: Mapping[int, int] | None = None,
    most: int = FOREVER,
    retention: int = 86_400_000,
    but: Sequence[int] = (),
    wait: int = FOREVER,
) -> RulesOf:
    """`least`: min.compaction.lag.ms by queue; `but`: queues that are not compacted."""

    def rules_of(queue_ids: QueueIds) -> Rules:
        count = len(queue_ids)
        return Rules(
            ~numpy.isin(queue_ids, list(but)),
            numpy.full(count, ratio),
            numpy.array([(least or {}).get(queue, 0) for queue in queue_ids.tolist()], numpy.int64),
            numpy.full(count, most),
            numpy.full(count, retention),
            numpy.full(count, wait),
        )

    return rules_of


def chosen(found: PassPlan | None) -> dict[int, tuple[int, int]]:
    """The clean end and the last offset of each queue."""
    if found is None:
        return {}
    return {int(row["queue_id"]): (int(row["end"]), int(row["last"])) for row in found.queues}


def test_a_queue_is_compacted_when_more_than_its_share_is_dirty() -> None:
    clean = a_file((1, 0, 9, OLD, 100), clean_ms=NOW - 10)
    for dirty_bytes, worth in ((100, False), (101, True)):
        files = [clean, a_file((1, 10, 19, OLD, dirty_bytes))]
        found = plan(files, rules(), NOW)
        assert chosen(found) == ({1: (NO_END, 19)} if worth else {})
        if found is not None:
            assert [(one.number, one.is_whole) for one in found.inputs] == [(0, True), (1, True)]
            assert found.dirty_bytes == dirty_bytes
            assert found.queues["horizon_ms"].tolist() == [NOW + 86_400_000]
    assert chosen(plan(files, rules(ratio=0.6), NOW)) == {}
    assert chosen(plan(files, rules(ratio=0.6), NOW, drain=True)) == {1: (NO_END, 19)}
    assert plan([clean], rules(ratio=0.0), NOW, drain=True) is None


def test_a_queue_that_asks_for_no_compaction_is_left_alone() -> None:
    files = [a_file((1, 0, 9, OLD, 100), (2, 0, 9, OLD, 100))]
    assert chosen(plan(files, rules(but=[1]), NOW)) == {2: (NO_END, 9)}
    assert plan(files, rules(but=[1, 2]), NOW, drain=True) is None
    assert plan([], rules(), NOW, drain=True) is None


def test_what_is_too_young_stays_and_so_does_what_lies_behind_it() -> None:
    lag = {1: 500}
    old, young = NOW - 500, NOW - 499
    files = [
        a_file((1, 0, 9, old, 100)),
        a_file((1, 10, 19, young, 100), (2, 0, 5, young, 100)),
        a_file((1, 20, 29, old, 9)),
    ]
    found = plan(files, rules(least=lag), NOW)
    assert chosen(found) == {1: (10, 9), 2: (NO_END, 5)}
    assert found is not None
    assert [(one.number, one.is_whole) for one in found.inputs] == [(0, True), (1, True)]
    files[2] = a_file((1, 20, 29, old, 9), (2, 6, 9, old, 9))
    found = plan(files, rules(least=lag), NOW)
    assert found is not None
    assert found.inputs[2] == (2, False), "it does not say that queue 1 is compacted there"


def test_a_file_that_was_compacted_has_what_was_too_young_then() -> None:
    file = a_file((1, 0, 9, NOW - 700, 100), clean_ms=NOW - 300)
    assert chosen(plan([file], rules(least={1: 500}), NOW)) == {1: (NO_END, 9)}
    assert plan([file], rules(least={1: 400}), NOW) is None
    assert plan([file], rules(), NOW) is None


def test_a_record_that_is_too_old_forces_a_pass() -> None:
    files = [a_file((1, 0, 9, OLD, 1000), clean_ms=NOW - 10), a_file((1, 10, 19, NOW - 600, 9), more_bytes=10_000)]
    assert plan(files, rules(most=600), NOW) is None
    assert chosen(plan(files, rules(most=599), NOW)) == {1: (NO_END, 19)}


def test_a_record_without_a_time_forces_nothing_where_there_is_no_limit() -> None:
    files = [a_file((1, 0, 9, OLD, 100_000), clean_ms=NOW - 10), a_file((1, 10, 19, -1, 1))]
    assert plan(files, rules(), NOW) is None
    assert chosen(plan(files, rules(most=NOW - OLD), NOW)) == {1: (NO_END, 19)}


def test_a_horizon_that_has_passed_forces_a_pass_over_the_queues_of_the_file() -> None:
    files = [
        a_file((1, 0, 9, OLD, 100), (2, 0, 9, OLD, 100), clean_ms=NOW - 10, horizon_ms=NOW),
        a_file((1, 10, 19, OLD, 1), (3, 0, 9, OLD, 99), clean_ms=NOW - 10, more_bytes=10_000),
    ]
    assert plan(files, rules(), NOW - 1, drain=True) is None
    found = plan(files, rules(), NOW)
    assert chosen(found) == {1: (NO_END, 19), 2: (NO_END, 9)}
    assert found is not None
    assert [(one.number, one.is_whole) for one in found.inputs] == [(0, True), (1, False)]
    later = PassedQueues.of_pass(numpy.array([1], numpy.uint64), NOW + 5)
    assert chosen(plan([files[0]._replace(passed=later)], rules(), NOW)) == {2: (NO_END, 9)}


def test_each_queue_of_a_file_that_several_passes_share_has_a_horizon_of_its_own() -> None:
    file = a_file((1, 0, 9, OLD, 100), (2, 0, 9, OLD, 100), (3, 0, 9, OLD, 100), horizon_ms=NOW)
    one, both = numpy.array([1], numpy.uint64), numpy.array([1, 2], numpy.uint64)
    passed = PassedQueues.of_pass(both, NOW)
    assert set(chosen(plan([file._replace(passed=passed)], rules(but=[3]), NOW))) == {1, 2}
    passed = passed.with_pass(one, NO_HORIZON)
    assert set(chosen(plan([file._replace(passed=passed)], rules(but=[3]), NOW))) == {2}, "the first one's are gone"
    passed = passed.with_pass(numpy.array([2, 3], numpy.uint64), NOW + 1)
    assert plan([file._replace(passed=passed)], rules(), NOW) is None
    assert set(chosen(plan([file._replace(passed=passed)], rules(), NOW + 1))) == {2, 3}


def test_a_file_with_compacted_queues_beyond_those_that_are_looked_at_is_not_whole() -> None:
    files = [a_file((1, 0, 9, OLD, 100)), a_file((1, 10, 19, OLD, 100))._replace(reaches_beyond=True)]
    found = plan(files, rules(), NOW)
    assert found is not None
    assert [(one.number, one.is_whole) for one in found.inputs] == [(0, True), (1, False)]


def test_little_dirt_in_large_files_waits() -> None:
    files = [a_file((1, 0, 9, OLD, 100), (2, 0, 9, OLD, 700), clean_ms=NOW - 10), a_file((1, 10, 19, OLD, 101))]
    assert plan(files, rules(), NOW) is None, "101 of 901 bytes"
    assert plan([files[0], a_file((1, 10, 19, OLD, 200))], rules(), NOW) is not None
    assert chosen(plan(files, rules(), NOW, drain=True)) == {1: (NO_END, 19)}


def test_little_dirt_that_has_waited_for_long_is_compacted_with_files_that_have_come_since() -> None:
    old = a_file((1, 0, 9, OLD, 10), (2, 0, 9, OLD, 10), clean_ms=NOW - 10, more_bytes=2980)
    new = a_file((1, 10, 19, NOW - 600, 20), more_bytes=979)
    assert plan([old, new], rules(wait=599), NOW) is None, "999 of 3,999 bytes are of a file that has come since"
    new = new._replace(batch_bytes=1000)
    assert plan([old, new], rules(wait=600), NOW) is None
    assert chosen(plan([old, new], rules(wait=599), NOW)) == {1: (NO_END, 19)}
    assert plan([old, new], rules(0.7, wait=599), NOW) is None, "20 of 30 bytes are less than its share"
    young = a_file((2, 10, 19, NOW - 500, 20), more_bytes=9_000)
    found = plan([old, new, young], rules(wait=599), NOW)
    assert chosen(found) == {1: (NO_END, 19)}, "the other one's file is left alone"


def test_a_pass_has_as_many_queues_as_its_bytes_allow_and_one_at_least() -> None:
    files = [a_file((1, 0, 9, OLD, 100), (2, 0, 9, OLD, 100)), a_file((3, 0, 9, OLD, 100)), a_file((4, 0, 9, OLD, 100))]
    assert set(chosen(plan(files, rules(), NOW, input_bytes_max=300))) == {1, 2, 3}
    assert set(chosen(plan(files, rules(), NOW, input_bytes_max=200))) == {1, 2}
    assert set(chosen(plan(files, rules(), NOW, input_bytes_max=1))) == {1}


def test_offsets_that_executors_cannot_count_are_left_alone() -> None:
    files = [a_file((1, OFFSETS_MAX - 1, OFFSETS_MAX - 1, OLD, 9)), a_file((2, 0, OFFSETS_MAX, OLD, 9))]
    assert set(chosen(plan(files, rules(), NOW))) == {1}


@given(st.integers(0, 2**32))
def test_at_random_every_pass_is_whole_queues_and_compaction_comes_to_rest(seed: int) -> None:
    choice = random.Random(seed)
    lags = {queue: choice.choice([0, 0, 300, 5000]) for queue in range(6)}
    most, wait = choice.choice([FOREVER, 400]), choice.choice([FOREVER, 300])
    rules_of = rules(choice.choice([0.0, 0.5, 0.9]), lags, most, 50, [5], wait)
    next_offsets = dict.fromkeys(range(6), 0)
    files: list[CompactFile] = []
    for _ in range(choice.randint(1, 6)):
        extents = []
        for queue in sorted(choice.sample(range(6), choice.randint(1, 6))):
            first = next_offsets[queue]
            next_offsets[queue] += choice.randint(1, 9)
            extents.append(
                (queue, first, next_offsets[queue] - 1, NOW - choice.randint(0, 1000), choice.randint(1, 500))
            )
        clean_ms = choice.choice([NEVER_COMPACTED, NOW - choice.randint(0, 900)])
        horizon_ms = choice.choice([NO_HORIZON, NOW, NOW + 100])
        files.append(a_file(*extents, clean_ms=clean_ms, horizon_ms=horizon_ms, more_bytes=choice.randint(0, 900)))
    drain = choice.random() < 0.5
    bytes_max = choice.choice([1, 800, 1 << 30])
    for _ in range(7):
        found = plan(files, rules_of, NOW, drain=drain, input_bytes_max=bytes_max)
        if found is None:
            break
        queues = chosen(found)
        assert 5 not in queues
        inputs = {one.number for one in found.inputs}
        for number, file in enumerate(files):
            parts = zip(*(column.tolist() for column in file.parts), strict=True)
            for queue, _size, first, last, _oldest, newest in parts:
                if queue not in queues:
                    continue
                end, last_below = queues[queue]
                assert (first < end) == (last <= last_below), "the clean end lies between two parts"
                assert first >= end or number in inputs, "all that lies below the clean end is in the pass"
                assert first >= end or not lags[queue] or newest <= NOW - lags[queue]
        mine = numpy.array(sorted(queues), numpy.uint64)
        for one in found.inputs:
            old = files[one.number]
            if one.is_whole:
                files[one.number] = old._replace(clean_ms=NOW, horizon_ms=NO_HORIZON, passed=None)
            else:
                before = old.passed or PassedQueues.of_pass(mine[:0], NO_HORIZON)
                files[one.number] = old._replace(passed=before.with_pass(mine, NO_HORIZON))
    else:
        raise AssertionError("five queues take more than six passes")
