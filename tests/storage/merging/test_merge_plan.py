"""The merges and their times, by counts: writes per byte, files, extents; and how a choice is cut into files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from bench.store.merge_plan import Draw, Load, even, mixed, play
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.small_node import topic

from mainstem.errors import ConfigError
from mainstem.storage.merging.merge_lines import NEVER, TINY_SHARE, Integers, MergeLines
from mainstem.storage.merging.merge_outputs import SHARED_PARTS, Output, cut, lifetime_of, tasks
from mainstem.storage.merging.merge_plan import Choice, choose
from mainstem.storage.merging.merge_spans import FINAL, PACKED, RUNS, Fullness, SpanSummary, fullness_of, summarize
from mainstem.storage.upkeep.retention import retention_class

SCALE = 256
"""The tests' store has a 256th of the bytes, so that a TiB of a node is 1 GiB of each write group."""
LINES = MergeLines(
    packed_bytes=(128 << 20) // SCALE,
    level_one_bytes=(8 << 30) // SCALE,
    wait_bytes_max=(32 << 30) // SCALE,
    level_two_bytes=(64 << 30) // SCALE,
    task_bytes=(1 << 30) // SCALE,
)
SEGMENT_BYTES = (1 << 30) // SCALE
GROUP_BYTES = (256 << 30) // SCALE
GROUPS = 4
SPAN_BYTES = 1 << 18


def at_length(*values: object) -> list[Any]:
    """The cases that are not played at each change."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


@pytest.mark.parametrize("queues", [1, *at_length(3, 10, 25)], ids=lambda queues: f"{GROUPS * queues} queues")
def test_queues_that_fill_segments_are_written_twice(queues: int) -> None:
    load = Load("", even(queues), 500)
    before, after = play(load, GROUP_BYTES, lines=LINES, segment_bytes=SEGMENT_BYTES, span_bytes=SPAN_BYTES)
    assert after.writes <= 2.05
    assert before.files * GROUPS <= 1_100
    assert after.files * GROUPS <= 1_100
    assert before.taken_bytes - before.merged_bytes <= LINES.wait_bytes_max, "what waits is bounded"


@pytest.mark.parametrize(
    "draw",
    [*at_length(even(3_000)), even(40_000), mixed(5, 20_000, 0.5), *at_length(mixed(5, 20_000, 0.9))],
    ids=["middling", "small", "half of it large", "nearly all of it large"],
)
def test_small_queues_are_written_three_times_at_most(draw: Draw) -> None:
    load = Load("", draw, 500)
    before, after = play(load, GROUP_BYTES, lines=LINES, segment_bytes=SEGMENT_BYTES, span_bytes=SPAN_BYTES)
    assert after.writes <= 3.0
    assert before.files * GROUPS <= 9_000
    assert after.files * GROUPS <= 9_000


@pytest.mark.parametrize("queues", [25, *at_length(40_000)], ids=lambda queues: f"{GROUPS * queues} queues")
def test_bytes_that_are_merged_for_their_age_are_written_three_times_at_most(queues: int) -> None:
    """A merge for each eight runs, of 2 MiB in the tests' store."""
    load = Load("", even(queues), 500)
    before, after = play(
        load, GROUP_BYTES // 4, lines=LINES, segment_bytes=SEGMENT_BYTES, span_bytes=SPAN_BYTES, aged_after=7
    )
    assert before.runs * 64 <= 8 * SPAN_BYTES / (1 << 20), "no run waits for longer"
    assert 2.0 < after.writes <= 3.0


@pytest.mark.parametrize("part", [2, 8, 128])
def test_segments_are_as_small_as_their_topic_asks_and_are_not_merged_again(part: int) -> None:
    """Segments of this part of the line of packed files; the queues fill one within a few runs."""
    load, line = Load("", even(10), 500), LINES.packed_bytes // part
    before, after = play(load, GROUP_BYTES // 16, lines=LINES, segment_bytes=line, span_bytes=SPAN_BYTES)
    assert before.writes <= 2.0
    assert after.writes <= 2.05
    assert after.taken_bytes // (2 * line) <= after.files <= after.taken_bytes // line


def test_a_second_merge_pays_in_extents() -> None:
    """Forty thousand queues have a few hundred bytes each in packed files of level 1."""
    load = Load("", even(40_000), 500)
    once, _ = play(load, LINES.level_two_bytes // 2, lines=LINES, segment_bytes=SEGMENT_BYTES, span_bytes=SPAN_BYTES)
    twice, _ = play(
        load, LINES.level_two_bytes * 5 // 4, lines=LINES, segment_bytes=SEGMENT_BYTES, span_bytes=SPAN_BYTES
    )
    assert once.writes <= 2.0 < 2.7 < twice.writes
    assert twice.extents / twice.merged_bytes < once.extents / once.merged_bytes / 2


QUEUES = numpy.arange(1, 4, dtype=numpy.uint64)


def span(level: int, *sizes: int, at: int = 0, dead: int = 0, rows: int = 0) -> SpanSummary:
    """Of the first queues, with these MiB."""
    filled = numpy.array(sizes, numpy.int64) << 20
    return summarize(at, at + 1, level, QUEUES[: len(sizes)], filled, rows=rows, dead_bytes=dead << 20)


def line_of(queue_ids: numpy.ndarray) -> Integers:
    return numpy.full(len(queue_ids), 1 << 30, numpy.int64)


def chosen(*spans: SpanSummary, drain: bool = False, borders: Sequence[int] = (), aged: int = 0) -> Choice | None:
    return choose(spans, MergeLines(), line_of, drain=drain, borders=borders, aged=aged)


def test_runs_wait_while_segments_fill() -> None:
    assert chosen() is None
    assert chosen(*[span(RUNS, 500, 500)] * 2) is None
    assert chosen(*[span(RUNS, 500, 500)] * 3) == Choice(0, 3, FINAL)
    assert chosen(*[span(RUNS, 900, 30)] * 9) == Choice(0, 9, FINAL), "the small one is worth its extents"


def test_runs_do_not_wait_for_what_will_not_fill() -> None:
    small = summarize(0, 1, RUNS, numpy.arange(10_000, dtype=numpy.uint64), numpy.full(10_000, 100_000))
    enough = -(-(8 << 30) // small.bytes)
    assert chosen(*[small] * (enough - 1)) is None
    assert chosen(*[small] * (enough + 3)) == Choice(0, enough, PACKED)


def test_all_runs_go_in_the_end_of_a_drain() -> None:
    assert chosen(span(RUNS, 5), span(RUNS, 5), drain=True) == Choice(0, 2, PACKED)
    assert chosen(span(PACKED, 5), span(RUNS, 5), drain=True) == Choice(1, 2, PACKED)
    assert chosen(span(PACKED, 5), drain=True) is None
    assert chosen(span(FINAL, 5), span(RUNS, 5), span(PACKED, 5)) == Choice(1, 2, PACKED), "they stand alone"


def test_runs_go_when_the_oldest_of_them_has_waited_for_long_enough() -> None:
    runs = [span(RUNS, 5)] * 4
    assert chosen(*runs) is None
    assert chosen(*runs, aged=1) == Choice(0, 4, PACKED), "the young ones with it, or there would be a merge for each"
    assert chosen(span(RUNS, 5), aged=1) == Choice(0, 1, PACKED)
    assert chosen(span(PACKED, 5), *runs, aged=3) == Choice(1, 5, PACKED)
    assert chosen(span(PACKED, 5), *runs, aged=1) is None, "what was merged by age is not merged again at once"
    assert chosen(span(PACKED, 5), aged=1) is None
    assert chosen(*[span(RUNS, 900, 300)] * 3, aged=1) == Choice(0, 3, PACKED), "they wait for segments no longer"
    assert chosen(span(FINAL, 900), *runs, aged=1, borders=[1]) is None
    assert chosen(span(FINAL, 900), *runs, aged=2, borders=[1]) == Choice(1, 5, PACKED)
    assert chosen(span(RUNS), aged=1) is None, "there is nothing in it"


def test_no_merge_goes_over_a_border() -> None:
    runs, small = [span(RUNS, 5)] * 4, [tiny(1 << 20)] * 7
    assert chosen(*runs, drain=True, borders=[2]) == Choice(0, 2, PACKED)
    assert chosen(span(FINAL, 900), *runs, drain=True, borders=[1]) == Choice(1, 5, PACKED)
    assert chosen(*small) == Choice(0, 7, FINAL)
    assert chosen(*small, borders=[3]) == Choice(3, 7, FINAL), "three tiny ones are too few"
    assert chosen(*small, borders=[2, 4]) is None
    assert chosen(*small, borders=[0, 7]) == Choice(0, 7, FINAL)
    assert chosen(span(FINAL, 900), span(FINAL, 900, dead=500), borders=[1]) == Choice(1, 2, FINAL)


def test_packed_files_are_merged_where_that_leaves_a_quarter_of_the_extents() -> None:
    def packed(count: int, size: int) -> SpanSummary:
        return summarize(0, 1, PACKED, numpy.arange(count, dtype=numpy.uint64), numpy.full(count, size))

    many, few = packed(2_000_000, 4_096), packed(100_000, 90_000)
    enough = -(-(64 << 30) // many.bytes)
    assert chosen(*[many] * (enough - 1)) is None
    assert chosen(*[many] * (enough + 1)) == Choice(0, enough, FINAL)
    assert chosen(*[few] * 40) is None
    assert chosen(*[many] * 5, span(FINAL, 5)) == Choice(0, 5, FINAL), "they are as many as they will ever be"


def test_what_is_mostly_dead_is_written_again() -> None:
    assert chosen(span(FINAL, 900, dead=400)) is None
    assert chosen(span(FINAL, 900), span(FINAL, 900, dead=500)) == Choice(1, 2, FINAL)
    assert chosen(span(FINAL, 15, dead=15)) is None, "too little"
    assert chosen(span(FINAL, 100, dead=49)) is None, "more of it lives"
    assert chosen(span(FINAL, 100, dead=50)) == Choice(0, 1, FINAL)
    assert chosen(span(RUNS, 300, dead=20), span(RUNS, 300, dead=290)) == Choice(0, 2, PACKED)


def tiny(size: int, *, files: int = 1, level: int = FINAL, dead: int = 0) -> SpanSummary:
    """With so many bytes of a single queue."""
    sizes = numpy.array([size], numpy.int64)
    return summarize(0, 1, level, QUEUES[:1], sizes, dead_bytes=dead)._replace(file_count=files)


def test_neighbours_that_became_tiny_are_merged_where_a_quarter_of_the_files_is_left() -> None:
    mib = 1 << 20
    assert chosen(*[tiny(mib)] * 3) is None
    assert chosen(*[tiny(mib)] * 4) == Choice(0, 4, FINAL)
    assert chosen(span(FINAL, 900), *[tiny(mib)] * 5, span(FINAL, 900)) == Choice(1, 6, FINAL)
    assert chosen(*[tiny(17 * mib)] * 9) is None, "they are not tiny"
    assert chosen(*[tiny(16 * mib)] * 31) == Choice(0, 31, FINAL), "what makes four files of sixteen and more"
    assert chosen(*[tiny(9 * mib)] * 3, span(FINAL, 900), *[tiny(9 * mib)] * 3) is None
    assert chosen(*[tiny(mib)] * 4, tiny(64 * mib, files=4)) == Choice(0, 4, FINAL), "which has most of the bytes"
    assert chosen(tiny(30 * mib, files=9)) == Choice(0, 1, FINAL), "one span with many of them"
    assert chosen(tiny(900 * mib, files=40)) is None
    assert chosen(*[tiny(20 * mib, dead=18 * mib)] * 4) == Choice(0, 4, FINAL), "little of it lives"
    assert chosen(*[tiny(mib, level=PACKED)] * 9) is None, "these have a merge to come"
    assert chosen(*[tiny(mib, level=PACKED)] * 3, tiny(mib)) == Choice(0, 4, FINAL)
    assert chosen(*[tiny(mib)] * 4, span(RUNS, 900)) == Choice(0, 4, FINAL)


def among(*large_mib: int, tiny_files: int, each_mib: int = 1, lines_mib: int = 1024) -> SpanSummary:
    """A span with queue segments of these sizes, and so many tiny packed files."""
    sizes = numpy.array([*large_mib, *[each_mib] * tiny_files], numpy.int64) << 20
    file_lines = numpy.array([lines_mib << 20] * len(large_mib) + [NEVER] * tiny_files, numpy.int64)
    found = summarize(0, 1, FINAL, QUEUES[:1], sizes.sum(keepdims=True))
    return found._replace(file_count=len(sizes), fullness=fullness_of(sizes, file_lines, MergeLines()))


def test_tiny_files_among_large_ones_are_merged_where_they_are_many_for_what_is_written() -> None:
    assert chosen(among(1024, tiny_files=9)) is None, "eight lines would be written for seven files that go"
    assert chosen(among(1024, tiny_files=11)) == Choice(0, 1, FINAL)
    assert chosen(among(1024, 1024, tiny_files=11)) is None
    assert chosen(among(200, tiny_files=7)) is None, "a quarter of them may be left"
    assert chosen(among(200, tiny_files=8)) == Choice(0, 1, FINAL)
    large, few = span(FINAL, 900), among(tiny_files=3, each_mib=15)
    assert chosen(large, few, large, few, large) is None
    assert chosen(among(200, tiny_files=6), among(200, tiny_files=6)) == Choice(0, 2, FINAL), "neighbours together"
    assert chosen(among(200, tiny_files=8), span(RUNS, 900)) == Choice(0, 1, FINAL)
    assert chosen(among(200, tiny_files=8)._replace(level=PACKED)) is None, "it has a merge to come"
    assert chosen(span(FINAL, 900), among(200, tiny_files=8)) == Choice(1, 2, FINAL), "no more than it takes"


def test_segments_that_are_small_because_their_topic_asks_for_it_are_not_tiny() -> None:
    def segments(count: int, size_mib: int, line_mib: int) -> SpanSummary:
        return among(*[size_mib] * count, tiny_files=0, lines_mib=line_mib)

    assert chosen(segments(64, 16, 16)) is None
    assert chosen(segments(64, 3, 16)) is None
    assert chosen(segments(64, 2, 16)) == Choice(0, 1, FINAL), "an eighth of their line is left of them"
    assert chosen(segments(64, 16, 1024)) == Choice(0, 1, FINAL), "their topic asks for large ones now"
    assert fullness_of(numpy.array([16 << 20]), numpy.array([16 << 20]), MergeLines()) == Fullness(128 << 20, 0, 0, 1)


class Shrinking:
    """Merged spans of some queues that lose their bytes now and then, as in compactions, and are merged again."""

    def __init__(self) -> None:
        self.lines = MergeLines(packed_bytes=1_000, level_one_bytes=20_000, wait_bytes_max=20_000)
        self.written = self.gone = 0
        """By merges of tiny files among large ones, and how many files fewer there were then."""
        self.spans: list[tuple[dict[int, int], int, float]] = []
        """Bytes by queue, files, and how often each byte may have been written beyond what its span's size explains:
        2 to the power of what is left of that. A span that has lost half of its bytes may be merged once more."""

    def add(self, sizes: dict[int, int], files: int) -> None:
        self.spans.append((sizes, files, 1.0 + numpy.log2(sum(sizes.values()))))

    def shrink(self, number: int, divisor: int) -> None:
        sizes, files, spent = self.spans[number]
        left = {queue: -(-size // divisor) for queue, size in sizes.items()}
        self.spans[number] = left, files, spent - 1.0 - numpy.log2(sum(sizes.values()) / sum(left.values()))

    def settle(self) -> None:
        while choice := choose([self._summary(*one) for one in self.spans], self.lines, self._line_of):
            inputs = self.spans[choice.first : choice.end]
            sizes: dict[int, int] = {}
            for one, _files, _spent in inputs:
                for queue, size in one.items():
                    sizes[queue] = sizes.get(queue, 0) + size
            queues = numpy.array(sorted(sizes), numpy.uint64)
            bytes_of = numpy.array([sizes[queue] for queue in sorted(sizes)], numpy.int64)
            outputs = cut(queues, bytes_of, self._line_of(queues), ["forever"] * len(queues), self.lines)
            assert len(outputs) < sum(files for _one, files, _spent in inputs), "nothing is merged for nothing"
            spent = 1.0 + max(spent for _one, _files, spent in inputs)
            if not all(self.is_tiny(one, files) for one, files, _spent in inputs):
                self.written += sum(sizes.values())
                self.gone += sum(files for _one, files, _spent in inputs) - len(outputs)
                assert self.written <= 1_000 * self.gone, "files that go pay for what is written, a line each"
                spent = 1.0 + numpy.log2(sum(sizes.values()))
            assert spent <= 3.0 + numpy.log2(sum(sizes.values())), "whatever is written again is in twice as much"
            self.spans[choice.first : choice.end] = [(sizes, len(outputs), spent)]

    def _summary(self, sizes: dict[int, int], files: int, _spent: float) -> SpanSummary:
        queues = numpy.array(sorted(sizes), numpy.uint64)
        found = summarize(0, 1, FINAL, queues, numpy.array([sizes[queue] for queue in sorted(sizes)], numpy.int64))
        return found._replace(file_count=files)

    @staticmethod
    def is_tiny(sizes: dict[int, int], files: int) -> bool:
        return sum(sizes.values()) * TINY_SHARE <= files * 1_000

    @staticmethod
    def _line_of(queue_ids: numpy.ndarray) -> Integers:
        return numpy.where(queue_ids % 3 == 0, 1_000, NEVER)


SIZES = st.dictionaries(st.integers(1, 9), st.sampled_from([1, 10, 100, 1_000, 5_000]), min_size=1, max_size=6)


@given(data=st.data())
def test_tiny_spans_come_to_rest_and_no_byte_is_written_more_often_than_its_span_doubles(data: st.DataObject) -> None:
    store = Shrinking()
    for _ in range(data.draw(st.integers(1, 40))):
        shrinks = data.draw(st.booleans())
        if shrinks and store.spans:
            store.shrink(data.draw(st.integers(0, len(store.spans) - 1)), data.draw(st.sampled_from([2, 10, 1_000])))
        else:
            store.add(data.draw(SIZES), data.draw(st.sampled_from([1, 1, 3, 20])))
        store.settle()
    total = sum(sum(sizes.values()) for sizes, _files, _spent in store.spans)
    alike = [files for sizes, files, _spent in store.spans if sum(sizes.values()) * TINY_SHARE <= files * 1_000]
    assert sum(alike) <= 8 * (total // 1_000 + len(store.spans)), "what is left of files is in proportion"


@given(data=st.data())
def test_of_tiny_files_few_are_left_beside_each_large_one_and_files_that_go_pay_for_the_writes(
    data: st.DataObject,
) -> None:
    """Spans of large files and tiny ones come, some files lose most of what they have, and all of it comes to rest."""
    lines = MergeLines(packed_bytes=1_000, level_one_bytes=20_000, wait_bytes_max=20_000)

    def summary(files: list[int]) -> SpanSummary:
        sizes = numpy.array(files, numpy.int64)
        found = summarize(0, 1, FINAL, QUEUES[:1], sizes.sum(keepdims=True))
        lines_of = numpy.full(len(files), NEVER)
        return found._replace(file_count=len(files), fullness=fullness_of(sizes, lines_of, lines))

    spans: list[list[int]] = []
    written = gone = 0
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()) and spans:
            files = data.draw(st.sampled_from(spans))
            for number in data.draw(st.sets(st.integers(0, len(files) - 1))):
                files[number] = -(-files[number] // 40)
        else:
            spans.append(data.draw(st.lists(st.sampled_from([1, 20, 120, 1_000, 1_900]), min_size=1, max_size=25)))
        while choice := choose([summary(files) for files in spans], lines, lambda ids: numpy.full(len(ids), NEVER)):
            inputs = spans[choice.first : choice.end]
            files = list(itertools.chain(*inputs))
            sizes = numpy.array(files, numpy.int64)
            left = cut(
                numpy.arange(len(files), dtype=numpy.uint64), sizes, numpy.full(len(files), NEVER),
                ["forever"] * len(files), lines,
            )  # fmt: skip
            if not all(sum(one) * TINY_SHARE <= 1_000 * len(one) for one in inputs):
                written, gone = written + sum(files), gone + len(files) - len(left)
                assert written <= lines.packed_bytes * gone
            spans[choice.first : choice.end] = [[output.bytes for output in left]]
        for begin, span_files in enumerate(spans):
            window = list(span_files)
            for other in spans[begin + 1 :]:
                if sum(window) + sum(other) > lines.level_one_bytes:
                    break
                window += other
            tiny_files = [size for size in window if size * TINY_SHARE <= lines.packed_bytes]
            most = len(window) - len(tiny_files) + 1 + sum(tiny_files) // lines.packed_bytes
            assert len(tiny_files) < 4 * most + 3 * 9 + sum(window) // lines.packed_bytes


def test_of_many_tiny_spans_few_files_are_left() -> None:
    store = Shrinking()
    for _ in range(500):
        store.add({1: 1}, 1)
        store.settle()
    assert sum(files for _sizes, files, _spent in store.spans) <= 3 * 9


@given(data=st.data())
def test_a_thousand_topics_of_many_retentions_keep_no_more_dead_bytes_than_live_ones(data: st.DataObject) -> None:
    """Queues of sixteen retentions share packed files; each merge of runs adds a span, and what is due dies in all of
    them. Bytes that die in files that others outlive are freed by writing these again, no more than that frees."""
    lines = MergeLines(packed_bytes=1_000, level_one_bytes=20_000, wait_bytes_max=20_000)
    queue_ids = numpy.arange(1_000, dtype=numpy.uint64)
    kept = numpy.array([1 << (int(queue) * 7 % 16) for queue in queue_ids]) % 40 + 1
    """For so many rounds."""
    spans: list[tuple[int, numpy.ndarray, int]] = []
    """(the round in which it came, bytes of each queue, bytes that are dead in its files)."""
    known: dict[tuple[bytes, int], SpanSummary] = {}
    """The sums so far: most spans are as they were when they were looked at last."""
    freed = written = 0

    def summary(span: tuple[int, numpy.ndarray, int]) -> SpanSummary:
        _came, sizes, dead = span
        key = sizes.tobytes(), dead
        if key not in known:
            known[key] = summed_up(sizes, dead)
        return known[key]

    def summed_up(sizes: numpy.ndarray, dead: int) -> SpanSummary:
        there = sizes > 0
        names = [f"ms-{1 << 22 << int(rounds).bit_length()}" for rounds in kept[there]]
        files = cut(queue_ids[there], sizes[there], numpy.full(int(there.sum()), NEVER), names, lines)
        found = summarize(0, 1, FINAL, queue_ids[there], sizes[there], dead_bytes=dead)
        fullness = fullness_of(
            numpy.array([output.bytes for output in files], numpy.int64), numpy.full(len(files), NEVER), lines
        )
        return found._replace(bytes=found.bytes + dead, file_count=max(1, len(files)), fullness=fullness)

    for now in range(data.draw(st.integers(1, 40))):
        each = data.draw(st.sampled_from([1, 7, 40]))
        spans.append((now, numpy.where(queue_ids % data.draw(st.sampled_from([1, 3, 50])) == 0, each, 0), 0))
        for number, (came, sizes, dead) in enumerate(spans):
            due = now - came >= kept
            spans[number] = came, numpy.where(due, 0, sizes), dead + int(sizes[due].sum())
        spans = [span for span in spans if span[1].any()]  # retention drops files of which nothing lives
        while choice := choose([summary(span) for span in spans], lines, lambda ids: numpy.full(len(ids), NEVER)):
            inputs = spans[choice.first : choice.end]
            live = numpy.sum([span[1] for span in inputs], axis=0)
            if choice.end - choice.first == 1:
                freed, written = freed + inputs[0][2], written + int(live.sum())
                assert written <= freed
            spans[choice.first : choice.end] = [(inputs[-1][0], live, 0)]
        for _came, sizes, dead in spans:
            assert dead < max(int(sizes.sum()), lines.packed_bytes // 8) + 1, "half of it, or the eighth of a line"


@given(
    sizes=st.lists(st.sampled_from([1, 100, 999, 1_000, 1_500, 4_000, 7_777]), min_size=1, max_size=60),
    data=st.data(),
)
def test_a_cut_covers_every_queue_once_and_reaches_the_lines(sizes: list[int], data: st.DataObject) -> None:
    lines = MergeLines(packed_bytes=1_000)._replace(task_bytes=5_000)
    classes = data.draw(st.lists(st.sampled_from("ab"), min_size=len(sizes), max_size=len(sizes)))
    line = data.draw(st.lists(st.sampled_from([2_000, int(NEVER)]), min_size=len(sizes), max_size=len(sizes)))
    queue_ids = numpy.arange(10, 10 + 3 * len(sizes), 3, dtype=numpy.uint64)
    outputs = cut(queue_ids, numpy.array(sizes), numpy.array(line), classes, lines)

    held: dict[int, list[Output]] = {}
    for output in outputs:
        for queue in queue_ids[(queue_ids >= output.first_queue) & (queue_ids <= output.last_queue)].tolist():
            held.setdefault(queue, []).append(output)
    assert list(held) == queue_ids.tolist()
    bounds = [(output.first_queue, output.part, output.last_queue) for output in outputs]
    assert bounds == sorted(bounds)
    for queue, size, at, name in zip(queue_ids.tolist(), sizes, line, classes, strict=True):
        if size >= at:
            assert [output.part for output in held[queue]] == list(range(size // at))
            assert all(output.is_segment and output.retention_class == name for output in held[queue])
            assert all(output.bytes >= at for output in held[queue])
        else:
            (output,) = held[queue]
            assert not output.is_segment
    for between, group in itertools.groupby(outputs, lambda output: output.is_segment):
        packed = [output.bytes for output in group]
        if between or len(packed) == 1:
            continue
        assert len(packed) <= sum(packed) // lines.packed_bytes, "packed files that could have more"
        assert all(size >= lines.packed_bytes // SHARED_PARTS for size in packed)
    pieces = tasks(outputs, lines)
    assert [output for piece in pieces for output in piece] == outputs
    assert all(len(piece) == 1 or sum(output.bytes for output in piece) <= 5_000 for piece in pieces)


@given(
    sizes=st.lists(st.sampled_from([1, 100, 999, 1_000, 1_500, 40_000]), min_size=1, max_size=60),
    most=st.integers(1, 40),
    data=st.data(),
)
def test_a_cut_makes_no_more_files_than_it_may(sizes: list[int], most: int, data: st.DataObject) -> None:
    lines = MergeLines(packed_bytes=1_000)
    classes = data.draw(st.lists(st.sampled_from("ab"), min_size=len(sizes), max_size=len(sizes)))
    line = numpy.array(data.draw(st.lists(st.sampled_from([500, 2_000]), min_size=len(sizes), max_size=len(sizes))))
    queue_ids = numpy.arange(len(sizes), dtype=numpy.uint64)
    free = cut(queue_ids, numpy.array(sizes), line, classes, lines)
    outputs = cut(queue_ids, numpy.array(sizes), line, classes, lines._replace(output_files_max=most))
    assert len(outputs) <= most
    if len(free) <= most:
        assert outputs == free, "a cut that has room is as it was"
    held = [(number, output.part) for output in outputs for number in range(output.first_queue, output.last_queue + 1)]
    assert held == sorted(set(held))
    assert {number for number, _ in held} == set(range(len(sizes))), "none is left out"
    assert all(output.bytes >= line[output.first_queue] for output in outputs if output.is_segment)


def test_a_merge_of_many_small_segments_makes_as_many_as_it_may() -> None:
    """32 GiB of two thousand queues whose topics ask for segments of a MiB."""
    sizes = numpy.full(2_000, 16 << 20)
    ids, line = numpy.arange(2_000, dtype=numpy.uint64), numpy.full(2_000, 1 << 20)
    lines = MergeLines()
    assert len(cut(ids, sizes, line, ["forever"] * 2_000, lines)) == 32_000
    for most in (1_500, 2_500):
        outputs = cut(ids, sizes, line, ["forever"] * 2_000, lines._replace(output_files_max=most))
        assert most // 8 <= len(outputs) <= most


def test_a_merge_takes_no_more_files_than_it_may() -> None:
    runs = [span(RUNS, 10, at=number) for number in range(40)]
    assert chosen(*runs) is None
    few = MergeLines(input_files_max=30, final_files_max=8)
    assert choose(runs, few, line_of) == Choice(0, 30, PACKED), "so many are not waited for"
    packed = [span(PACKED, 200, at=number) for number in range(40)]
    assert choose(packed, MergeLines(), line_of) is None
    assert choose(packed, few, line_of) is not None, "nor would more be merged later"
    tiny = [span(FINAL, 1, at=number) for number in range(40)]
    assert choose(tiny, MergeLines(), line_of) == Choice(0, 40, FINAL)
    assert choose(tiny, few, line_of) == Choice(0, 8, FINAL)


def test_classes_are_apart_where_each_reaches_the_line() -> None:
    queue_ids = numpy.arange(6, dtype=numpy.uint64)
    sizes = numpy.array([600, 600, 600, 300, 700, 100])
    lines = MergeLines(packed_bytes=1_000)
    never = numpy.full(6, NEVER)
    apart = cut(queue_ids, sizes, never, list("aabbbb"), lines)
    assert [(output.first_queue, output.last_queue, output.retention_class) for output in apart] == [
        (0, 1, "a"),
        (2, 5, "b"),
    ], "four of b are not enough for two files that each reach the line"
    together = cut(queue_ids[:3], sizes[:3], never[:3], list("aab"), lines)
    assert [(output.first_queue, output.last_queue, output.retention_class) for output in together] == [(0, 2, "a")]


def test_queues_share_a_file_with_those_that_live_about_as_long() -> None:
    lines = MergeLines(packed_bytes=1_000)
    names = ["forever", "ms-4194304", "ms-8388608", "forever"]
    queue_ids, never = numpy.arange(4, dtype=numpy.uint64), numpy.full(4, NEVER)
    outputs = cut(queue_ids, numpy.array([1_050, 600, 500, 1_050]), never, names, lines)
    assert [(output.first_queue, output.last_queue) for output in outputs] == [(0, 0), (1, 2), (3, 3)]


def shared(*queues: tuple[str, int]) -> list[tuple[int, int, str]]:
    """(first queue, last queue, class) of the packed files that queues of these classes and bytes get."""
    names, sizes = zip(*queues, strict=True)
    ids, never = numpy.arange(len(queues), dtype=numpy.uint64), numpy.full(len(queues), NEVER)
    outputs = cut(ids, numpy.array(sizes), never, list(names), MergeLines(packed_bytes=1_000))
    return [(output.first_queue, output.last_queue, output.retention_class) for output in outputs]


def test_files_of_the_remote_tier_are_apart_where_they_can_be_and_move_as_a_whole_where_not() -> None:
    away, here = "ms-4194304+remote", "ms-4194304"
    assert shared((away, 1_000), (here, 1_000)) == [(0, 0, away), (1, 1, here)]
    assert shared((away, 1_000), ("forever+remote", 200), ("forever", 1_700)) == [(0, 1, away), (2, 2, "forever")], (
        "of two neighbours the one that moves, too, though the other lives as long"
    )
    assert shared((here, 900), (away, 100)) == [(0, 1, away)], "the topic that moves needs it, the other loses nothing"
    assert shared(("compact", 100), (away, 900)) == [(0, 1, here)], "what is compacted never moves"
    assert shared((here, 300), (away, 300), ("internal", 300)) == [(0, 2, here)]


def test_a_thousand_topics_of_which_every_other_moves_make_no_thousand_files() -> None:
    found = shared(*((f"forever{'+remote' * (number % 2)}", 40) for number in range(1_000)))
    assert len(found) <= 40
    assert {name for _first, _last, name in found} == {"forever+remote"}


def test_some_files_are_small_for_the_sake_of_their_class() -> None:
    lines = MergeLines(packed_bytes=1_000)
    names = ["forever", "ms-4194304", "forever"]
    queue_ids, never = numpy.arange(3, dtype=numpy.uint64), numpy.full(3, NEVER)

    def files(*sizes: int) -> list[int]:
        return [output.bytes for output in cut(queue_ids, numpy.array(sizes), never, names, lines)]

    assert files(1_500, 300, 1_500) == [1_500, 300, 1_500], "three files, as 3,300 bytes may have"
    assert files(1_400, 300, 1_200) == [1_400, 1_500], "2,900 may have two"
    assert files(1_500, 200, 1_500) == [1_700, 1_500], "too small"


def test_a_thousand_retentions_make_no_thousand_files() -> None:
    lines = MergeLines(packed_bytes=1_000)
    names = [f"ms-{1 << (22 + number * 7 % 16)}" for number in range(1_000)]
    sizes = numpy.full(1_000, 40)
    outputs = cut(numpy.arange(1_000, dtype=numpy.uint64), sizes, numpy.full(1_000, NEVER), names, lines)
    assert len(outputs) <= 40
    assert sum(output.bytes for output in outputs) == 40_000


def test_classes_that_are_kept_longer_have_longer_lifetimes() -> None:
    kept = [1, 1 << 23, 1 << 30, 1 << 37, -1]
    found = [lifetime_of(retention_class(topic(retention_ms=ms))) for ms in kept]
    assert found == sorted(set(found))
    assert {lifetime_of(name) for name in ("internal", "compact", "bytes", "forever", "ms-", "ms-soon")} == {found[-1]}
    assert lifetime_of("ms-4194304+remote") == lifetime_of("ms-4194304")


def test_lines_that_cannot_be_used_are_refused() -> None:
    MergeLines().validate()
    for lines in (MergeLines(packed_bytes=0), MergeLines(level_one_bytes=1 << 40), MergeLines(task_bytes=0)):
        with pytest.raises(ConfigError):
            lines.validate()
    assert MergeLines().segment_line(14) == 1 << 20
    assert MergeLines().segment_line(16 << 20) == 16 << 20
    assert MergeLines().segment_line(2**31 - 1) == 1 << 30
