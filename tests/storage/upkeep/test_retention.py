"""Retention against a plain model, extent by extent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import extent_rows
from tests.storage.small_node import topic

from mainstem.model import TopicSettings
from mainstem.storage.journal.encoding.blocks import Rows
from mainstem.storage.upkeep.retention import BUCKET_MS_MIN, LiveBytes, LogStarts, keeps_all, live, retention_class
from mainstem.storage.upkeep.retention_pass import may_lose
from mainstem.storage.upkeep.retention_sources import FOREVER_MS

NOW = 1000
QUEUES = [1, 2, 3, 5]
NO_NUMBER = {"retention_records": numpy.array([-1]), "high_watermarks": numpy.array([0])}
"""One queue whose number of records is not limited."""
Extent = tuple[int, int, int, int, int]


@st.composite
def sources(draw: st.DrawFn) -> list[list[Extent]]:
    """Extents of a few queues over a few sources, oldest first; a source may repeat the end of the one before."""
    found: list[list[Extent]] = []
    newest: dict[int, list[Extent]] = {}
    for _ in range(draw(st.integers(1, 4))):
        source: list[Extent] = []
        for queue_id in sorted(draw(st.sets(st.integers(1, 4)))):
            extents = newest.get(queue_id, [])[-draw(st.integers(0, 2)) or len(newest.get(queue_id, [])) :]
            offset = extents[-1][2] + 1 if extents else newest[queue_id][-1][2] + 1 if queue_id in newest else 0
            fresh = []
            for _ in range(draw(st.integers(0 if extents else 1, 3))):
                count = draw(st.integers(1, 3))
                time = draw(st.sampled_from([-1, 100, 500, 900, 2000]))
                fresh.append((queue_id, offset, offset + count - 1, time, draw(st.integers(1, 50))))
                offset += count
            newest[queue_id] = [*extents, *fresh]
            source += newest[queue_id]
        found.append(source)
    return found


@given(
    sources(),
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
    st.lists(st.sampled_from([-1, 0, 200, 600, 5000]), min_size=4, max_size=4),
    st.lists(st.sampled_from([-1, 0, 30, 100, 1000]), min_size=4, max_size=4),
    st.lists(st.sampled_from([-1, -1, 0, 3, 7, 1000]), min_size=4, max_size=4),
)
def test_log_starts_move_as_far_as_the_limits_say(
    fed: list[list[Extent]], starts: list[int], ms: list[int], size: list[int], number: list[int]
) -> None:
    queue_ids = numpy.array(QUEUES, numpy.uint64)
    log_starts = numpy.array(starts, numpy.int64)
    measured = LiveBytes(queue_ids, log_starts)
    for source in fed:
        measured.feed(extent_rows(*source))
    known = [extent for source in fed for extent in source]
    ends = [1 + max([extent[2] for extent in known if extent[0] == queue_id], default=-1) for queue_id in QUEUES]
    limits = LogStarts(
        queue_ids,
        log_starts,
        retention_ms=numpy.array(ms),
        retention_bytes=numpy.array(size),
        retention_records=numpy.array(number),
        high_watermarks=numpy.array(ends),
        live_bytes=measured.bytes,
        missing=measured.missing,
        now_ms=NOW,
    )
    for source in fed:
        limits.feed(extent_rows(*source), undated_ms=300, seen_ms=FOREVER_MS)
    for place, queue_id in enumerate(queue_ids.tolist()):
        extents: list[Extent] = []
        total = 0
        for source in fed:
            reached = max(starts[place], extents[-1][2] + 1 if extents else 0)
            mine = [extent for extent in source if extent[0] == queue_id and extent[2] >= reached]
            total += sum(extent[4] for extent in mine if extent[1] >= reached)
            extents += mine
        assert measured.bytes[place] == total
        expected = starts[place]
        for extent in extents:
            if ms[place] < 0 or (300 if extent[3] < 0 else extent[3]) >= NOW - ms[place]:
                break
            expected = max(expected, extent[2] + 1)
        for extent in extents:
            if size[place] < 0 or total - extent[4] < size[place] or total <= size[place]:
                break
            total -= extent[4]
            expected = max(expected, extent[2] + 1)
        for extent in extents:
            if number[place] >= 0 and ends[place] - (extent[2] + 1) >= number[place]:
                expected = max(expected, extent[2] + 1)
        assert limits.log_starts[place] == expected


def test_live_is_what_reaches_the_log_start() -> None:
    rows = extent_rows((1, 0, 4, 0, 1), (1, 5, 9, 0, 1))
    assert live(rows, numpy.array([4, 10])).tolist() == [True, False]


def started_by_size(measured: Sequence[Rows], fed: Sequence[Rows]) -> int:
    """The beginning of queue 1, which may keep 100 bytes: its bytes are added up with these there, it is cut with
    those."""
    queue_ids, starts = numpy.array([1], numpy.uint64), numpy.array([0])
    sizes = LiveBytes(queue_ids, starts)
    for source in measured:
        sizes.feed(source)
    limits = LogStarts(
        queue_ids,
        starts,
        retention_ms=numpy.array([-1]),
        retention_bytes=numpy.array([100]),
        **NO_NUMBER,
        live_bytes=sizes.bytes,
        missing=sizes.missing,
        now_ms=NOW,
    )
    for source in fed:
        limits.feed(source, undated_ms=0, seen_ms=FOREVER_MS)
    return int(limits.log_starts[0])


def test_what_left_between_two_looks_is_not_made_up_for_by_what_is_left() -> None:
    oldest, middle, newest = (extent_rows((1, first, first + 9, 0, 100)) for first in (0, 10, 20))
    # the middle one was recycled, as it is split, after the runs had been listed
    assert started_by_size([oldest, middle, newest], [oldest, newest]) == 10


def test_what_left_from_between_the_extents_of_a_source_is_not_made_up_for_by_what_is_left() -> None:
    oldest, middle, newest = ((1, first, first + 9, 0, 100) for first in (0, 10, 20))
    # a merge of local files has left the middle one out, which lies in the remote tier, and that is out now
    assert started_by_size([extent_rows(one) for one in (oldest, middle, newest)], [extent_rows(oldest, newest)]) == 0


def test_nothing_goes_by_age_behind_a_gap_in_a_source_that_one_left_out_may_fill() -> None:
    def started(left_out_ms: int) -> int:
        none = {"live_bytes": numpy.array([0]), "missing": numpy.array([0]), "retention_bytes": numpy.array([-1])}
        queue_ids, starts = numpy.array([1], numpy.uint64), numpy.array([0])
        limits = LogStarts(queue_ids, starts, retention_ms=numpy.array([100]), **none, **NO_NUMBER, now_ms=NOW)
        limits.left_out(left_out_ms)
        limits.feed(extent_rows((1, 0, 9, 10, 1), (1, 20, 29, 10, 1)), undated_ms=0, seen_ms=FOREVER_MS)
        return int(limits.log_starts[0])

    assert (started(NOW - 1), started(NOW - 101)) == (0, 30)


def test_what_no_look_found_keeps_nothing_from_going_by_size() -> None:
    sources = [extent_rows((1, first, first + 9, 0, 100)) for first in (10, 30, 40)]
    assert started_by_size(sources, sources) == 40


def test_what_was_merged_between_two_sources_is_not_counted_twice() -> None:
    """A run is looked at, then merged with the one behind it: part of the merged file's first extent was counted."""
    queue_ids, starts = numpy.array([1], numpy.uint64), numpy.array([0])
    measured = LiveBytes(queue_ids, starts)
    for row in ((1, 0, 9, 0, 100), (1, 5, 19, 0, 150), (1, 20, 29, 0, 100)):
        measured.feed(extent_rows(row))
    assert measured.bytes.tolist() == [200]
    limits = LogStarts(
        queue_ids,
        starts,
        retention_ms=numpy.array([-1]),
        retention_bytes=numpy.array([250]),  # of the 300 that there may be at the most
        **NO_NUMBER,
        live_bytes=measured.bytes,
        missing=measured.missing,
        now_ms=NOW,
    )
    limits.feed(extent_rows((1, 0, 9, 0, 100), (1, 10, 19, 0, 100), (1, 20, 29, 0, 100)), 0, FOREVER_MS)
    assert limits.log_starts.tolist() == [0]


def test_what_a_merge_cuts_off_between_two_looks_is_not_made_up_for_by_what_is_live() -> None:
    """The log start lies inside an extent. A merge leaves its dead part out, and joins it with the next."""
    queue_ids, starts = numpy.array([1], numpy.uint64), numpy.array([9])
    measured = LiveBytes(queue_ids, starts)
    measured.feed(extent_rows((1, 0, 9, 0, 1000), (1, 10, 19, 0, 100), (1, 20, 29, 0, 100)))
    limits = LogStarts(
        queue_ids,
        starts,
        retention_ms=numpy.array([-1]),
        retention_bytes=numpy.array([150]),
        **NO_NUMBER,
        live_bytes=measured.bytes,
        missing=measured.missing,
        now_ms=NOW,
    )
    limits.feed(extent_rows((1, 9, 29, 0, 210)), 0, FOREVER_MS)
    assert limits.log_starts.tolist() == [9]


def test_what_is_missing_does_not_matter_to_the_number_of_those_left() -> None:
    limits = LogStarts(
        numpy.array([1], numpy.uint64),
        numpy.array([0]),
        retention_ms=numpy.array([-1]),
        retention_bytes=numpy.array([-1]),
        retention_records=numpy.array([15]),
        high_watermarks=numpy.array([60]),
        live_bytes=numpy.array([0]),
        missing=numpy.array([0]),
        now_ms=NOW,
    )
    for source in ((1, 0, 9, 0, 100), (1, 30, 39, 0, 100), (1, 40, 49, 0, 100), (1, 50, 59, 0, 100)):
        limits.feed(extent_rows(source), undated_ms=0, seen_ms=FOREVER_MS)
    assert limits.log_starts.tolist() == [40], "of 15 records 10 lie in the last extent, 5 in the one before"


def test_no_queues_no_extents_no_changes() -> None:
    none = numpy.zeros(0, numpy.int64)
    limits = LogStarts(
        none.astype(numpy.uint64),
        none,
        retention_ms=none,
        retention_bytes=none,
        retention_records=none,
        high_watermarks=none,
        live_bytes=none,
        missing=none,
        now_ms=NOW,
    )
    limits.feed(extent_rows((1, 0, 4, 0, 1)), undated_ms=0, seen_ms=FOREVER_MS)
    limits.feed(extent_rows(), undated_ms=0, seen_ms=FOREVER_MS)
    assert limits.log_starts.tolist() == []


@pytest.mark.parametrize(
    ("settings", "internal", "expected"),
    [
        (TopicSettings(), True, "internal"),
        (TopicSettings(cleanup_policy=frozenset({"compact", "delete"})), False, "compact"),
        (TopicSettings(retention_ms=604_800_000), False, "ms-1073741824"),
        (TopicSettings(retention_ms=1 << 30), False, "ms-1073741824"),
        (TopicSettings(retention_ms=(1 << 30) + 1), False, "ms-2147483648"),
        (TopicSettings(retention_ms=0), False, f"ms-{BUCKET_MS_MIN}"),
        (TopicSettings(retention_ms=2**62), False, "forever"),
        (TopicSettings(retention_ms=-1), False, "forever"),
        (TopicSettings(retention_ms=-1, retention_bytes=5), False, "bytes"),
        (TopicSettings(retention_ms=-1, retention_records=5), False, "bytes"),
        (TopicSettings(retention_ms=604_800_000, retention_records=5), False, "ms-1073741824"),
        (TopicSettings(remote_storage_enable=True), False, "ms-1073741824+remote"),
        (TopicSettings(remote_storage_enable=True, retention_ms=-1), False, "forever+remote"),
        (TopicSettings(remote_storage_enable=True, retention_ms=-1, retention_bytes=5), False, "bytes+remote"),
        (TopicSettings(remote_storage_enable=True, remote_log_copy_disable=True), False, "ms-1073741824"),
        (TopicSettings(remote_storage_enable=True, cleanup_policy=frozenset({"compact"})), False, "compact"),
        (TopicSettings(remote_storage_enable=True), True, "internal"),
    ],
)
def test_retention_class(settings: TopicSettings, internal: bool, expected: str) -> None:
    assert retention_class(replace(topic(), settings=settings, internal=internal)) == expected


def test_an_internal_topic_loses_records_only_if_it_was_made_to() -> None:
    days = TopicSettings(retention_ms=7_776_000_000)
    kept = replace(topic(), internal=True, settings=days, configs={"retention.ms": "7776000000"})
    compacted = replace(kept, configs={"cleanup.policy": "compact"})
    trimmed = replace(kept, configs={**kept.configs, "cleanup.policy": "delete"})
    assert [keeps_all(one) for one in (topic(), kept, compacted, trimmed)] == [False, True, True, False]
    assert [may_lose(one) for one in (topic(), kept, compacted, trimmed)] == [True, False, False, True]
    assert retention_class(kept) == retention_class(compacted) == "internal"
    assert retention_class(trimmed) == "ms-8589934592"
