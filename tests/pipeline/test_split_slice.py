"""The split of slices, held against the journal: every batch once, in its queue's order (F)."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.splitting.run_reader import read_run, read_runs
from tests.fakes.splitting.split_log import SplitJournal

from mainstem.pipeline.errors import NamesRefused, SliceDamaged
from mainstem.pipeline.slices.block_walk import batches_of
from mainstem.pipeline.slices.journal_slice import mapped_segment, places_of, slice_bytes
from mainstem.pipeline.slices.split_slice import TAKE_BYTES, SplitSlice, gather, split_slice
from mainstem.rpc.messages.split import SegmentExtent, Slice
from mainstem.storage.errors import SegmentGone
from mainstem.storage.journal.encoding.format import FIRST_BLOCK, KIND_NO_OP, SegmentHeader
from mainstem.storage.store_files.run_target import LocalRunTarget

CLASSES = {0: "default", 1: "internal", 2: "default"}


def no_remote(extent: SegmentExtent) -> Iterator[bytes]:
    raise AssertionError(f"{extent.path} should have been read from disk")


def split(journal: SplitJournal, work: Slice, runs: Path) -> SplitSlice:
    with slice_bytes(work, no_remote, local=True) as buffer:
        return split_slice(work, buffer, journal.classes, lambda name: LocalRunTarget(runs, name))


def split_all(journal: SplitJournal, runs: Path, *, trigger_bytes: int, slice_bytes: int) -> list[SplitSlice]:
    """Split everything, trigger by trigger, and return what was done in order."""
    done: list[SplitSlice] = []
    after: dict[int, int] = {}
    while (upto := journal.limit(after, trigger_bytes)) != after:
        done += [split(journal, work, runs) for work in journal.slices(after, upto, slice_bytes)]
        after = upto
    return done


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(1, 60),
    trigger=st.integers(1, 200_000),
    slice_bytes=st.integers(1, 100_000),
)
def test_runs_hold_every_batch_once_and_in_order(seed: int, blocks: int, trigger: int, slice_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        journal = SplitJournal(Path(directory), segment_bytes=256 * 1024, classes=CLASSES)
        journal.append_random(random.Random(seed), blocks, queues=5, topics=3, groups=3)
        runs = Path(directory) / "runs"
        done = split_all(journal, runs, trigger_bytes=trigger, slice_bytes=slice_bytes)
        files = [file for result in done for file in result.files]
        assert read_runs(runs / file.name for file in files) == journal.history
        assert sum(file.batch_count for file in files) == sum(map(len, journal.history.values()))
        for file in files:
            assert (runs / file.name).stat().st_size == file.bytes
            topics = {queue >> 32 for queue in read_runs([runs / file.name])}
            assert {CLASSES[topic] for topic in topics} == {file.retention_class}
        assert all(path.suffix == ".run" for path in runs.glob("*")), "no temporary file is left"


def test_batches_of_deleted_topics_are_dropped_and_counted(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes={1: "default"})
    journal.append(0, [(1 << 32, b"kept"), (2 << 32, b"gone"), (1 << 32, b"kept too"), (2 << 32, b"gone")])
    (result,) = split_all(journal, tmp_path / "runs", trigger_bytes=1 << 20, slice_bytes=1 << 20)
    assert (result.batches, result.dropped_batches) == (4, 2)
    assert read_runs([tmp_path / "runs" / result.files[0].name]) == {1 << 32: journal.history[1 << 32]}


def test_slice_without_batches_makes_no_run(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append(0, [], kind=KIND_NO_OP)
    (result,) = split_all(journal, tmp_path / "runs", trigger_bytes=1 << 20, slice_bytes=1 << 20)
    assert result.files == ()
    assert [(entry.after, entry.upto) for entry in result.ranges] == [(0, 1)]


def test_extents_may_reach_beyond_the_ranges(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    blocks = [journal.append(group, [(group, b"%d" % number)]) for number in range(4) for group in (0, 1)]
    (work,) = journal.slices({0: 1, 1: 2}, {0: 3, 1: 3}, 1 << 20)
    path = work.extents[0].path
    wide = Slice(work.ranges, (SegmentExtent(1, blocks[0].start, blocks[-1].end, path),), work.bytes)
    result = split(journal, wide, tmp_path / "runs")
    assert read_runs([tmp_path / "runs" / result.files[0].name]) == {
        0: journal.history[0][1:3],
        1: journal.history[1][2:3],
    }


def test_gather_bounds_a_step_by_bytes(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=64 << 20, classes=CLASSES)
    for _ in range(5):
        journal.append(0, [(0, bytes(300 << 10)), (1, b"small")])
    (work,) = journal.slices({}, {0: 5}, 1 << 30)
    with slice_bytes(work, no_remote, local=True) as buffer:
        batches = batches_of(work, buffer)
        order = batches.rows["queue_id"].argsort(kind="stable")
        steps = [len(payload) for payload in gather(batches, buffer, order)]
    assert sum(steps) == int(batches.rows["length"].sum())
    assert max(steps) <= TAKE_BYTES
    assert len(steps) > 1


def test_every_flipped_byte_of_a_block_is_noticed(tmp_path: Path) -> None:
    """A flip is refused, or it hit padding and changed nothing that was split."""
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    block = journal.append(0, [(0, b"first"), (1, b"second batch")])
    (work,) = journal.slices({}, {0: 1}, 1 << 20)
    with slice_bytes(work, no_remote, local=True) as buffer:
        whole = buffer.copy()
    payload_end = len(bytes(whole).rstrip(b"\0"))
    for position in range(block.end - block.start):
        damaged = whole.copy()
        damaged[position] ^= 0x40
        if position < payload_end:
            with pytest.raises(SliceDamaged):
                split_slice(work, damaged, CLASSES, lambda name: LocalRunTarget(tmp_path / "runs", name))
    assert not (tmp_path / "runs").exists()


def test_missing_block_is_named(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append(0, [(0, b"a")])
    second = journal.append(0, [(0, b"b")])
    (work,) = journal.slices({}, {0: 2}, 1 << 20)
    short = Slice(work.ranges, (SegmentExtent(1, FIRST_BLOCK, second.start, work.extents[0].path),), 0)
    with pytest.raises(SliceDamaged, match="block 2 of group 0 is not in the journal"):
        split(journal, short, tmp_path / "runs")


@pytest.mark.parametrize("terms", [(1, 2), (5, 4)])
def test_an_index_written_twice_counts_once_as_the_last_whatever_its_term(
    terms: tuple[int, int], tmp_path: Path
) -> None:
    """The leader of term 5 committed nothing, and the one of term 6 had a block of term 4 to put in its place."""
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append(0, [(0, b"replaced")], term=terms[0])
    journal.rewind(0, 0)
    journal.append(0, [(0, b"won")], term=terms[1])
    last = journal.blocks[-1]
    path = str(journal.segment(1))
    ranges = journal.slices({}, {0: 1}, 1 << 20)[0].ranges
    work = Slice(ranges, (SegmentExtent(1, FIRST_BLOCK, last.end, path),), 0)
    result = split(journal, work, tmp_path / "runs")
    assert read_runs([tmp_path / "runs" / result.files[0].name]) == {0: journal.history[0][1:]}


class TestLeasedReading:
    def extent(self, journal: SplitJournal) -> SegmentExtent:
        block = journal.append(0, [(0, b"x" * 100)])
        return SegmentExtent(1, block.start, block.end, str(journal.segment(1)))

    def test_recycled_segment_is_noticed_by_its_generation(self, tmp_path: Path) -> None:
        journal = SplitJournal(tmp_path, segment_bytes=1 << 16, classes=CLASSES)
        extent = self.extent(journal)
        with journal.segment(1).open("r+b") as file:
            file.write(SegmentHeader(9, 1 << 16, 0, 0, 0).pack())
        with pytest.raises(SegmentGone, match="holds segment 9"), mapped(extent):
            pass

    def test_segment_that_changes_in_spite_of_its_lease_is_noticed_at_the_end(self, tmp_path: Path) -> None:
        journal = SplitJournal(tmp_path, segment_bytes=1 << 16, classes=CLASSES)
        extent = self.extent(journal)
        with (
            pytest.raises(SegmentGone, match="holds segment 9"),
            journal.segment(1).open("r+b", buffering=0) as file,
            mapped(extent),
        ):
            file.write(SegmentHeader(9, 1 << 16, 0, 0, 0).pack())

    def test_segment_that_is_being_recycled_is_gone(self, tmp_path: Path) -> None:
        journal = SplitJournal(tmp_path, segment_bytes=1 << 16, classes=CLASSES)
        extent = self.extent(journal)
        with journal.segment(1).open("rb") as recycler:
            fcntl.flock(recycler, fcntl.LOCK_EX)
            with pytest.raises(SegmentGone), mapped(extent):
                pass

    def test_segment_is_leased_as_long_as_it_is_mapped(self, tmp_path: Path) -> None:
        journal = SplitJournal(tmp_path, segment_bytes=1 << 16, classes=CLASSES)
        extent = self.extent(journal)
        with journal.segment(1).open("rb") as recycler:
            with mapped(extent), pytest.raises(BlockingIOError):
                fcntl.flock(recycler, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(recycler, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_segment_shorter_than_promised_is_gone(self, tmp_path: Path) -> None:
        """A mapping that reaches beyond its file ends the process."""
        journal = SplitJournal(tmp_path, segment_bytes=1 << 16, classes=CLASSES)
        extent = self.extent(journal)
        os.truncate(extent.path, extent.end - 1)
        with pytest.raises(SegmentGone, match="ends at"), mapped(extent):
            pass

    def test_absent_segment_is_asked_of_the_node(self, tmp_path: Path) -> None:
        journal = SplitJournal(tmp_path, segment_bytes=1 << 16, classes=CLASSES)
        extent = self.extent(journal)
        data = journal.segment(1).read_bytes()[extent.start : extent.end]
        journal.segment(1).unlink()
        work = Slice((), (extent,), 0)
        with slice_bytes(work, lambda _: iter([data[:10], data[10:]]), local=True) as buffer:
            assert bytes(buffer[: len(data)]) == data
        with (
            pytest.raises(SliceDamaged, match="10 of"),
            slice_bytes(work, lambda _: iter([data[:10]]), local=True),
        ):
            pass

    def test_a_disk_that_fails_leaves_room_for_what_the_node_sends(self, tmp_path: Path) -> None:
        journal = SplitJournal(tmp_path, segment_bytes=1 << 16, classes=CLASSES)
        extent = self.extent(journal)
        data = journal.segment(1).read_bytes()[extent.start : extent.end]

        def allow(size: int) -> None:
            raise OSError(errno.EIO, "the disk does not read")

        with slice_bytes(Slice((), (extent,), 0), lambda _: iter([data]), local=True, allow=allow) as buffer:
            assert bytes(buffer[: len(data)]) == data


def test_extents_anywhere_in_their_files_lie_in_one_buffer(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=64 << 10, classes=CLASSES)
    contents = [journal.append(0, [(0, bytes([number]) * 9_000)]) for number in range(20)]
    extents = [
        SegmentExtent(block.sequence, block.start, block.end, str(journal.segment(block.sequence)))
        for block in contents[1::3]
    ]
    assert len({extent.sequence for extent in extents}) > 1
    assert any(extent.start % mmap.PAGESIZE for extent in extents)
    with slice_bytes(Slice((), tuple(extents), 0), no_remote, local=True) as buffer:
        for extent, place in zip(extents, places_of(extents), strict=False):
            expected = Path(extent.path).read_bytes()[extent.start : extent.end]
            assert bytes(buffer[place : place + len(expected)]) == expected
        with pytest.raises(ValueError, match="read-only"):
            buffer[0] = 1


@contextmanager
def mapped(extent: SegmentExtent) -> Iterator[None]:
    *places, size = places_of([extent])
    with mapped_segment(extent, mmap.mmap(-1, size), places[0]):
        yield


def test_runs_by_write_group_are_those_of_each_group_alone(tmp_path: Path) -> None:
    """Byte for byte; all of a group are announced before the first of any is opened."""
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append_random(random.Random(5), 120, queues=7, topics=4, groups=5)
    (work,) = journal.slices({}, journal.limit({}, 1 << 30), 1 << 30)
    assert len(work.ranges) == 5
    told: list[tuple[int, list[str]]] = []
    opened: list[str] = []

    def split(work: Slice, runs: Path, names: Iterator[int]) -> SplitSlice:
        def open_target(name: str) -> LocalRunTarget:
            opened.append(name)
            return LocalRunTarget(runs, name)

        def announce(group: int, names: Sequence[str]) -> None:
            assert not opened
            told.append((group, list(names)))

        with slice_bytes(work, no_remote, local=True) as buffer:
            return split_slice(work, buffer, CLASSES, open_target, announce=announce, new_name=lambda: f"{next(names)}")

    done = split(msgspec.structs.replace(work, by_write_group=True), tmp_path / "grouped", itertools.count())
    assert told == [
        (entry.group, [file.name for file in done.files if file.group == entry.group]) for entry in work.ranges
    ]
    assert {(file.group, file.retention_class) for file in done.files} == {
        (entry.group, name) for entry in work.ranges for name in ("default", "internal")
    }
    names = itertools.count()
    alone = [split(msgspec.structs.replace(work, ranges=(entry,)), tmp_path / "alone", names) for entry in work.ranges]
    assert sum(one.batches for one in alone) == done.batches
    assert sum(one.dropped_batches for one in alone) == done.dropped_batches > 0
    expected = [file for one in alone for file in one.files]
    plain = {"group": -1, "first_queue": 0, "last_queue": 0, "first_offset": -1}
    assert [msgspec.structs.replace(file, **plain) for file in done.files] == expected
    for file in done.files:
        assert (tmp_path / "grouped" / file.name).read_bytes() == (tmp_path / "alone" / file.name).read_bytes()
        found = read_run(tmp_path / "grouped" / file.name)
        assert (file.first_queue, file.last_queue) == (min(found), max(found))
        assert file.first_offset == int.from_bytes(found[file.first_queue][0][:8], "big")
    assert len(told) == 5, "local runs are not announced"


def test_nothing_is_written_where_names_are_refused(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append(0, [(0, b"a")])
    (work,) = journal.slices({}, {0: 1}, 1 << 20)

    def announce(group: int, names: Sequence[str]) -> None:
        raise NamesRefused(f"{len(names)} names of {group}")

    work = msgspec.structs.replace(work, by_write_group=True)
    with (
        slice_bytes(work, no_remote, local=True) as buffer,
        pytest.raises(NamesRefused, match="1 names of 0"),
    ):
        split_slice(work, buffer, CLASSES, lambda name: LocalRunTarget(tmp_path / "runs", name), announce=announce)
    assert not (tmp_path / "runs").exists()


def test_blocks_without_a_batch_make_no_run_of_any_write_group(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append(0, [], kind=KIND_NO_OP)
    (work,) = journal.slices({}, {0: 1}, 1 << 20)
    done = split(journal, msgspec.structs.replace(work, by_write_group=True), tmp_path / "runs")
    assert done.ranges == work.ranges
    assert not done.files
