"""Merges of random inputs: the outputs hold exactly the live batches, in order, and every index of theirs is true."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.queue_store.merges import MergeStore, PlainTarget, last_offset
from tests.storage.queue_store.runs import Batch, make_batch

from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_BYTES
from mainstem.storage.merging.merge_files import merge_files
from mainstem.storage.merging.merge_inputs import (
    ASKED_BYTES,
    INPUT_BYTES,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    InputDamaged,
    OpenInputs,
    read_exactly,
)
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import NO_END, Liveness
from mainstem.storage.merging.merge_measure import TopicFacts
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.store_file import FileKind, kind_of, path_of

CALLS = Path("/proc/thread-self/io")
SMALL = MergeLines(packed_bytes=2_000, level_one_bytes=4_000, wait_bytes_max=8_000, task_bytes=6_000)


def batches_of(random_: random.Random, slices: int, queues: int, large: bool) -> list[list[Batch]]:
    """Slices of a journal: each queue's offsets go on from slice to slice, with a gap now and then."""
    offsets = dict.fromkeys(range(queues), 0)
    sizes = [61, 200, 3_000, EXTENT_BYTES // 2, EXTENT_BYTES + 9] if large else [61, 90, 300]
    found = []
    for _ in range(slices):
        batches = []
        for queue in sorted(random_.sample(range(queues), random_.randint(0, queues))):
            for _ in range(random_.randint(1, 9)):
                records = random_.randint(1, 5)
                offset = offsets[queue] + random_.choice([0, 0, 0, 7])
                batches.append(
                    make_batch(
                        queue,
                        offset,
                        records=records,
                        size=random_.choice(sizes),
                        timestamp=random_.randint(-1, 999),
                        epoch=random_.randint(0, 3),
                    )
                )
                offsets[queue] = offset + records
        found.append(batches)
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slices=st.integers(1, 9),
    queues=st.integers(1, 12),
    large=st.booleans(),
    data=st.data(),
)
def test_outputs_hold_exactly_what_is_live(
    seed: int, slices: int, queues: int, large: bool, data: st.DataObject
) -> None:
    found = batches_of(random.Random(seed), slices, queues, large)
    bounds = st.dictionaries(st.integers(0, queues - 1), st.sampled_from([0, 1, 5, 20, 50, NO_END]))
    with tempfile.TemporaryDirectory() as directory:
        store = MergeStore(Path(directory), data.draw(bounds), data.draw(bounds))
        store.facts[0] = TopicFacts("orders", "default", 4_000)
        lines = SMALL if not large else SMALL._replace(packed_bytes=200_000, task_bytes=500_000)
        inputs = [store.run(number, batches) for number, batches in enumerate(found)]
        live = store.live(batch for batches in found for batch in batches)
        once = store.merge(inputs, lines, level=1)
        assert store.read(once) == live
        keys = [(file.first_queue, file.first_offset, file.last_queue) for file in once]
        assert keys == sorted(keys)
        assert all(one[2] <= other[0] for one, other in itertools.pairwise(keys))
        assert sum(file.batch_bytes for file in once) <= sum(len(b.data) for batches in found for b in batches)
        # merged again, with other lines, and more of it dead
        starts = {queue: start for queue, start in data.draw(bounds).items() if start > store.starts.get(queue, 0)}
        store.starts.update(starts)
        live = store.live(batch for batches in found for batch in batches)
        twice = store.merge([store.input(file.name) for file in once], lines._replace(packed_bytes=1_000_000))
        assert store.read(twice) == live


def test_a_queue_that_fills_segments_gets_equal_ones(tmp_path: Path) -> None:
    store = MergeStore(tmp_path)
    store.facts[0] = TopicFacts("orders", "default", 1_000_000)
    lines = SMALL._replace(packed_bytes=500_000, task_bytes=1_200_000)
    runs = [
        [
            make_batch(queue, offset * 30 + at, size=20_000)
            for queue in (1, 2, 3)
            for at in range(30 if queue == 2 else 1)
        ]
        for offset in range(6)
    ]
    inputs = [store.run(number, batches) for number, batches in enumerate(runs)]
    assert len(store.measure(inputs, lines).tasks) > 1
    files = store.merge(inputs, lines)
    assert [kind_of(file.name) for file in files] == [FileKind.PACKED, *[FileKind.SEGMENT] * 3, FileKind.PACKED]
    segments = files[1:4]
    assert all(file.batch_bytes >= 1_000_000 for file in segments)
    assert max(file.batch_bytes for file in segments) - min(file.batch_bytes for file in segments) <= 3 * EXTENT_BYTES
    assert store.read(files) == store.live(batch for batches in runs for batch in batches)
    assert all(file.name.startswith("orders/2/") for file in segments)


def test_a_queue_of_several_segments_that_is_dead_in_the_first_input(tmp_path: Path) -> None:
    store = MergeStore(tmp_path, starts={1: 1})
    store.facts[0] = TopicFacts("orders", "default", SMALL.packed_bytes)
    batches = [make_batch(1, offset, size=1_000) for offset in range(9)]
    inputs = [store.run(number, [batch]) for number, batch in enumerate(batches)]
    files = store.merge(inputs, SMALL)
    assert len(files) == 4
    assert store.read(files) == store.live(batches)


def test_tiny_extents_are_joined(tmp_path: Path) -> None:
    store = MergeStore(tmp_path)
    runs = [[make_batch(queue, slice_, size=1_000) for queue in range(5)] for slice_ in range(300)]
    (file,) = store.merge([store.run(number, batches) for number, batches in enumerate(runs)], MergeLines())
    rows = (file.bytes - file.batch_bytes - 3 * 64) // 64  # header, footer, and no aborted transaction
    assert rows == 5 * -(-300_000 // EXTENT_BYTES), "of 1,500"
    assert store.read([file]) == store.live(batch for batches in runs for batch in batches)


def test_offsets_that_two_inputs_have_are_taken_from_the_first(tmp_path: Path) -> None:
    store = MergeStore(tmp_path)
    store.facts[0] = TopicFacts("orders", "default", 100)
    first = [make_batch(1, 0), make_batch(1, 5), make_batch(2, 0)]
    second = [make_batch(1, 0, seed=1), make_batch(1, 5, seed=1), make_batch(1, 9), make_batch(2, 1)]
    third = [make_batch(1, 5, seed=2), make_batch(1, 9, seed=2), make_batch(1, 12)]
    inputs = [store.run(number, batches) for number, batches in enumerate((first, second, third))]
    expected = store.live([*first, second[2], second[3], third[2]])
    assert store.read(store.merge(inputs, MergeLines())) == expected
    segments = store.merge(inputs, SMALL._replace(packed_bytes=100, task_bytes=100))
    assert {kind_of(file.name) for file in segments} == {FileKind.SEGMENT}
    assert store.read(segments) == expected


def test_a_segment_ends_where_kafka_counts_no_further(tmp_path: Path) -> None:
    store = MergeStore(tmp_path)
    store.facts[0] = TopicFacts("orders", "default", 300)
    far = (1 << 31) - 1
    batches = [make_batch(1, 7), make_batch(1, 7 + far), make_batch(1, 7 + far + 1), make_batch(1, 1 << 40)]
    files = store.merge([store.run(at, [batch]) for at, batch in enumerate(batches)], SMALL._replace(packed_bytes=300))
    assert [file.first_offset for file in files] == [7, 7 + far + 1, 1 << 40]
    assert store.read(files) == store.live(batches)


def test_of_few_inputs_little_is_moved_at_a_time(tmp_path: Path) -> None:
    store = MergeStore(tmp_path)
    runs = [[make_batch(1, number * 100 + at, size=30_000) for at in range(70)] for number in range(2)]
    inputs = [store.run(number, batches) for number, batches in enumerate(runs)]
    (task,) = store.measure(inputs, MergeLines()).tasks
    allowed: list[int] = []
    files = merge_files(
        task, inputs, Liveness(store.ask), lambda path: PlainTarget(tmp_path / path), group=3, level=1,
        allow=allowed.append,
    )  # fmt: skip
    assert sum(allowed) == sum(file.batch_bytes for file in files) > 4 * WINDOW_BYTES_MIN - EXTENT_BYTES
    assert max(allowed) <= WINDOW_BYTES_MIN
    with OpenInputs() as opened:
        assert opened.window_bytes(100) == 100 * INPUT_BYTES, "each read is worth its call"
        assert opened.window_bytes(10_000) == WINDOW_BYTES_MAX


def test_nothing_live_leaves_no_file(tmp_path: Path) -> None:
    store = MergeStore(tmp_path, starts={1: NO_END, 2: 4})
    inputs = [store.run(0, [make_batch(1, 0), make_batch(2, 3)])]
    measured = store.measure(inputs, MergeLines())
    assert (measured.tasks, measured.bytes, measured.dead_bytes) == ((), 0, 160)
    assert store.merge(inputs, MergeLines()) == []


def test_a_log_start_that_moves_within_the_only_extent(tmp_path: Path) -> None:
    """Between the measuring and the task all of it died."""
    store = MergeStore(tmp_path)
    inputs = [store.run(0, [make_batch(1, 0), make_batch(1, 1)])]
    (task,) = store.measure(inputs, MergeLines()).tasks
    store.starts[1] = 2
    written = merge_files(
        task, inputs, Liveness(store.ask), lambda path: PlainTarget(tmp_path / path), group=3, level=1
    )
    assert written == []
    assert not (tmp_path / "packed").exists()


def test_each_queue_is_asked_about_once(tmp_path: Path) -> None:
    store = MergeStore(tmp_path)
    inputs = [store.run(number, [make_batch(queue, number) for queue in range(9)]) for number in range(5)]
    store.measure(inputs, MergeLines())
    assert store.asked == list(range(9))


@pytest.mark.parametrize("start", [0, 1])
def test_a_damaged_extent_fails_the_merge_and_is_named(tmp_path: Path, start: int) -> None:
    store = MergeStore(tmp_path, starts={2: start})
    inputs = [store.run(number, [make_batch(queue, number, size=100) for queue in (1, 2)]) for number in (0, 1)]
    inputs.append(store.run(2, [make_batch(2, 2), make_batch(2, 3)]))
    store.starts[2] = start * 3
    path = tmp_path / path_of("2.run" if start else "1.run")
    position = 64 if start else 164
    content = bytearray(path.read_bytes())
    content[position + 70] ^= 1
    path.write_bytes(content)
    (task,) = store.measure(inputs, MergeLines()).tasks
    with pytest.raises(InputDamaged, match=f"extent at {position} .* queue 0x2, .* fails its CRC") as caught:
        merge_files(
            task, inputs, Liveness(store.ask), lambda path: LocalRunTarget(tmp_path / "out", "x.pack"), group=0, level=1
        )
    assert (caught.value.name, caught.value.position) == (path.name, position)
    assert not list((tmp_path / "out").iterdir()), "what was begun is gone"


def test_a_damaged_index_fails_the_merge_and_is_named(tmp_path: Path) -> None:
    store = MergeStore(tmp_path)
    inputs = [store.run(0, [make_batch(1, 0)]), store.run(1, [make_batch(1, 1)])]
    (task,) = store.measure(inputs, MergeLines()).tasks
    path = tmp_path / path_of("1.run")
    whole = path.read_bytes()
    content = bytearray(whole)
    content[-64 - 30] ^= 1  # in its only row
    path.write_bytes(content)
    with pytest.raises(InputDamaged, match=r"1\.run: index at 144 fails its CRC"):
        store.measure(inputs, MergeLines())
    with pytest.raises(InputDamaged, match=r"1\.run: index rows 0 to 1 changed"):
        merge_files(task, inputs, Liveness(store.ask), lambda path: PlainTarget(tmp_path / path), group=0, level=1)
    path.write_bytes(whole[:-1])
    with pytest.raises(InputDamaged, match=r"1\.run: footer"):
        store.measure(inputs, MergeLines())
    path.rename(tmp_path / path_of("2.run"))
    path.write_bytes((tmp_path / path_of("0.run")).read_bytes())
    with pytest.raises(InputDamaged, match=r"1\.run: this is another file's index"):
        store.measure(inputs, MergeLines())


def test_few_inputs_are_open_at_a_time(tmp_path: Path) -> None:
    paths = []
    for number in range(5):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(b"%d" % number)
    opened = OpenInputs(open_files_max=2)
    for path in (*paths, paths[0]):
        descriptor = opened.descriptor(str(path))
        content = bytearray(1)
        read_exactly(descriptor, memoryview(content), 0, "")
        assert bytes(content) == path.read_bytes()
    opened.close()


@pytest.mark.skipif(not CALLS.exists(), reason="Linux counts a thread's calls")
def test_the_disk_is_asked_for_little_at_a_time(tmp_path: Path) -> None:
    """A commit of the journal waits for the read before it."""
    content = random.Random(1).randbytes(16 * ASKED_BYTES + 5)
    path = tmp_path / "input"
    path.write_bytes(content)
    with OpenInputs() as opened:
        descriptor = opened.descriptor(str(path))
        read = bytearray(len(content) - 1)
        before = _read_calls()
        read_exactly(descriptor, memoryview(read), 1, "")
        assert _read_calls() - before > 16
        assert read == content[1:]
        with pytest.raises(FormatError, match=rf"there: ends at {len(content)}, where 1 more bytes should be"):
            read_exactly(descriptor, memoryview(read), 2, "there")


def _read_calls() -> int:
    """How often this thread has read, by the system's count."""
    (line,) = [line for line in CALLS.read_text().splitlines() if line.startswith("syscr")]
    return int(line.split()[1])


def test_foreign_queues_between_are_read_over(tmp_path: Path) -> None:
    """A run has the queues of other write groups, too: many small reads become a few."""
    store = MergeStore(tmp_path, starts={queue: NO_END for queue in range(100) if queue % 4})
    runs = [[make_batch(queue, at, size=500) for queue in range(100)] for at in range(3)]
    files = store.merge([store.run(at, batches) for at, batches in enumerate(runs)], MergeLines())
    assert store.read(files) == store.live(batch for batches in runs for batch in batches)
    assert numpy.array_equal(sorted(store.read(files)), range(0, 100, 4))
    assert all(last_offset(batches[-1]) == 2 for batches in store.read(files).values())
