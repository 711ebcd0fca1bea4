"""Segments by bytes and by count: what fills them, how queues are cut, and what counts as full afterwards."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.queue_store.merges import MergeStore
from tests.storage.queue_store.runs import Batch, make_batch

from mainstem.model import queue_id_of
from mainstem.storage.merging.merge_lines import NEVER, TINY_SHARE, MergeLines
from mainstem.storage.merging.merge_measure import TopicFacts
from mainstem.storage.merging.segment_lines import SegmentLines
from mainstem.storage.store_files.store_file import FileKind, kind_of

MIB = 1 << 20
BYTES, COUNTED, DENSE, UNKNOWN = range(4)
LINES = SegmentLines(
    {
        BYTES: TopicFacts("bytes", "default", 64 * MIB),
        COUNTED: TopicFacts("counted", "default", 64 * MIB, 10_000),
        DENSE: TopicFacts("dense", "default", 64 * MIB, 1),
    },
    MergeLines(),
)


def line_of(topic: int, size: int, records: int) -> int:
    queue_ids = numpy.array([queue_id_of(topic, 5)], numpy.uint64)
    return int(LINES.of_files(queue_ids, numpy.array([size], numpy.int64), numpy.array([records], numpy.int64))[0])


@pytest.mark.parametrize(
    ("topic", "size", "records", "line"),
    [
        (BYTES, 4 * MIB, 1 << 30, 64 * MIB),
        (COUNTED, 40 * MIB, 40_000, 10 * MIB),  # ten thousand records of 1 KiB
        (COUNTED, 40 * MIB, 4_000, 64 * MIB),  # of 10 KiB: bytes give a segment before
        (COUNTED, 40 * MIB, 4_000_000, MIB),  # of 10 bytes: never less than 1 MiB
        (COUNTED, 0, 0, 64 * MIB),
        (DENSE, 1 << 31, (1 << 32) - 1, MIB),
        (UNKNOWN, 40 * MIB, 40_000, NEVER),
    ],
)
def test_the_line_of_a_file_goes_by_what_it_holds(topic: int, size: int, records: int, line: int) -> None:
    assert line_of(topic, size, records) == line


def test_the_line_of_a_queue_of_which_no_records_are_known_goes_by_bytes() -> None:
    queue_ids = numpy.array([queue_id_of(topic, 0) for topic in range(4)], numpy.uint64)
    assert LINES.of(queue_ids).tolist() == [64 * MIB, 64 * MIB, 64 * MIB, NEVER]


def test_segments_by_count_are_equal_in_records(tmp_path: Path) -> None:
    """The first half of the bytes has ten times as many records as the second one."""
    store = MergeStore(tmp_path)
    store.facts[0] = TopicFacts("orders", "default", 1 << 30, 550)
    runs: list[list[Batch]] = []
    offset = 0
    for number in range(60):
        runs.append([])
        for _ in range(10):
            runs[-1].append(make_batch(1, offset, records=10 if number < 30 else 1, size=1_000))
            offset = runs[-1][-1].last_offset + 1
    lines = MergeLines(packed_bytes=128 * 3_000, task_bytes=250_000)
    inputs = [store.run(number, batches) for number, batches in enumerate(runs)]
    assert len(store.measure(inputs, lines).tasks) > 1
    files = store.merge(inputs, lines)
    assert [kind_of(file.name) for file in files] == [FileKind.SEGMENT] * (offset // 550)
    assert all(abs(file.record_count - 550) <= 100 for file in files), "but for an extent"
    assert store.read(files) == store.live(itertools.chain(*runs))
    store.facts[0] = TopicFacts("orders", "default", 100_000)
    by_bytes = store.merge(inputs, lines)
    assert [(file.batch_bytes, file.record_count) for file in by_bytes] == [(100_000, 1_000)] * 3 + [(100_000, 100)] * 3


def test_neither_many_records_nor_few_make_a_segment_too_small_or_too_large(tmp_path: Path) -> None:
    """Batches of four hundred records in 1,000 bytes fill a smallest segment each; others count by their bytes."""
    store = MergeStore(tmp_path)
    store.facts[0] = TopicFacts("orders", "default", 50_000, 10)
    dense = [make_batch(1, number * 400, records=400, size=1_000) for number in range(20)]
    sparse = [make_batch(1, 8_000 + number, size=5_000) for number in range(40)]
    inputs = [store.run(number, [batch]) for number, batch in enumerate([*dense, *sparse])]
    lines = MergeLines(packed_bytes=128 * 1_000, task_bytes=30_000)
    assert [file.batch_bytes for file in store.merge(inputs, lines)] == [1_000] * 20 + [50_000] * 4
    store.facts[0] = TopicFacts("orders", "default", 50_000, 10**6)
    assert [file.batch_bytes for file in store.merge(inputs, lines)] == [55_000] * 4, "the count gives none before"


QUEUES = 3


def random_runs(seed: int) -> list[list[Batch]]:
    """Runs of small batches of a few queues, of one kind or several: some have many records for their bytes, some
    few."""
    choice = random.Random(seed)
    kinds = choice.sample([(1, 80), (1, 800), (40, 100), (40, 800), (3, 200)], choice.randint(1, 5))
    offsets = dict.fromkeys(range(QUEUES), 0)
    runs: list[list[Batch]] = []
    for _ in range(choice.randint(1, 60)):
        runs.append([])
        for queue in sorted(choice.sample(range(QUEUES), choice.randint(1, QUEUES))):
            for _ in range(choice.randint(1, 3)):
                records, size = choice.choice(kinds)
                runs[-1].append(make_batch(queue, offsets[queue], records=records, size=size))
                offsets[queue] += records
    return runs


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([1, 30, 400, 10**6]),
    segment_bytes=st.sampled_from([6_000, 20_000]),
)
def test_every_segment_is_full_and_none_has_too_much(seed: int, count: int, segment_bytes: int) -> None:
    runs = random_runs(seed)
    lines = MergeLines(packed_bytes=128 * 6_000, level_one_bytes=1 << 20, wait_bytes_max=1 << 20, task_bytes=60_000)
    line, least = lines.segment_line(segment_bytes), lines.segment_line(0)
    with tempfile.TemporaryDirectory() as directory:
        store = MergeStore(Path(directory))
        store.facts[0] = TopicFacts("orders", "default", segment_bytes, count)
        inputs = [store.run(number, batches) for number, batches in enumerate(runs)]
        files = store.merge(inputs, lines)
        assert store.read(files) == store.live(itertools.chain(*runs))
    segments = [file for file in files if kind_of(file.name) is FileKind.SEGMENT]
    queue_ids = numpy.array([file.first_queue for file in segments], numpy.uint64)
    sizes = numpy.array([file.batch_bytes for file in segments], numpy.int64)
    records = numpy.array([file.record_count for file in segments], numpy.int64)
    # cuts lie between extents: a run has one of each queue, with three batches at the most
    assert (sizes <= 2 * line + 2_400).all()
    assert (sizes >= least - 2_400).all()
    if all(records_of(batch) * least <= count * len(batch.data) for batch in itertools.chain(*runs)):
        assert (records <= 2 * count + 120).all(), "the bytes of so many are no less than the smallest segment's"
    full = SegmentLines(store.facts, lines).of_files(queue_ids, sizes, records)
    assert ((least <= full) & (full <= line)).all()
    assert (sizes * TINY_SHARE > full).all(), "none is to be merged again"


def records_of(batch: Batch) -> int:
    return batch.last_offset - batch.base_offset + 1
