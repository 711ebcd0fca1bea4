"""Runs as written: the same batches whatever pieces they came in, and never half a file under the name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.runs import (
    Batch,
    SimulatedTarget,
    WatchedFiles,
    describe,
    in_order,
    make_batch,
    write,
)

from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import ABORTED_VERSION, EXTENT_BYTES, FORMAT_VERSION
from mainstem.storage.queue_store.reading.open_files import load_index
from mainstem.storage.store_files.extents_writer import CUT_BEFORE
from mainstem.storage.store_files.run_target import WINDOW_BYTES, LocalRunTarget
from mainstem.storage.store_files.run_writer import RunWriter


@st.composite
def batch_lists(draw: st.DrawFn) -> list[Batch]:
    batches = []
    for queue_id in draw(st.sets(st.integers(0, 5), max_size=4)):
        offset = draw(st.integers(0, 10))
        for _ in range(draw(st.integers(1, 12))):
            count = draw(st.integers(1, 4))
            size = draw(st.sampled_from([61, 200, 30_000, EXTENT_BYTES, 3 * EXTENT_BYTES]))
            timestamp = draw(st.integers(-1, 99))
            batches.append(make_batch(queue_id, offset, records=count, size=size, timestamp=timestamp))
            offset += count
    return batches


@given(batch_lists(), st.integers(1, 20), st.sampled_from([FORMAT_VERSION, ABORTED_VERSION]))
def test_a_run_holds_its_batches_whatever_the_pieces(batches: list[Batch], piece: int, version: int) -> None:
    files = WatchedFiles()
    summary = write(RunWriter("a.run", SimulatedTarget(files, "a.run"), version), batches, piece)
    data = files.content("runs/a.run")

    async def load() -> numpy.ndarray:
        return (await load_index(await files.open("runs/a.run"), "a.run", "a.run")).rows

    rows = asyncio.run(load())
    remaining = in_order(batches)
    for row in rows:
        taken, remaining = remaining[: int(row["batch_count"])], remaining[int(row["batch_count"]) :]
        content = data[int(row["position"]) : int(row["position"] + row["length"])]
        assert content == b"".join(batch.data for batch in taken)
        assert google_crc32c.value(content) == row["crc"]
        assert {batch.queue_id for batch in taken} == {row["queue_id"]}
        assert (row["base_offset"], row["last_offset"]) == (taken[0].base_offset, taken[-1].last_offset)
        assert row["max_timestamp"] == max(batch.max_timestamp for batch in taken)
        assert row["record_count"] == sum(batch.last_offset - batch.base_offset + 1 for batch in taken)
        assert len(content) - len(taken[-1].data) < EXTENT_BYTES, "its last batch starts within the bound"
    assert not remaining
    assert len(rows) <= sum(len(batch.data) for batch in batches) // EXTENT_BYTES + 2 * summary.queue_count + 1
    assert (summary.batch_count, summary.bytes) == (len(batches), len(data))
    assert summary.queue_count == len({batch.queue_id for batch in batches})
    times = [batch.max_timestamp for batch in batches] or [-1]
    assert (summary.min_timestamp, summary.max_timestamp) == (min(times), max(times))


@pytest.mark.parametrize(
    "second",
    [
        make_batch(2, 4),
        make_batch(2, 3),
        make_batch(1, 90),
    ],
    ids=["same offset", "earlier offset", "earlier queue"],
)
@pytest.mark.parametrize("together", [True, False])
def test_batches_out_of_order_are_refused(second: Batch, together: bool) -> None:
    first = make_batch(2, 4)
    writer = RunWriter("a.run", SimulatedTarget(WatchedFiles(), "a.run"))
    payload, rows = second.data, describe([second])
    if together:
        payload, rows = first.data + second.data, describe([first, second])
    else:
        writer.append([first.data], describe([first]))
    with pytest.raises(FormatError, match=r"a\.run: batch 1 \(queue 0x"):
        writer.append([payload], rows)


def test_a_payload_of_another_length_is_refused() -> None:
    batch = make_batch(1, 0)
    writer = RunWriter("a.run", SimulatedTarget(WatchedFiles(), "a.run"))
    with pytest.raises(FormatError, match=r"a\.run: 79 bytes of payload described as 80"):
        writer.append([batch.data[:-1]], describe([batch]))


def test_a_local_run_is_there_when_finished_and_not_before(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    batches = [make_batch(1, offset, size=3 * WINDOW_BYTES // 2) for offset in range(5)]
    with RunWriter("a.run", LocalRunTarget(runs, "a.run")) as writer:
        for batch in batches:
            writer.append([batch.data], describe([batch]))
        assert [path.suffix for path in runs.iterdir()] != [".run"]
        assert not (runs / "a.run").exists()
        summary = writer.finish()
    assert [path.name for path in runs.iterdir()] == ["a.run"]
    content = (runs / "a.run").read_bytes()
    assert len(content) == summary.bytes
    assert content[64 : 64 + summary.batch_bytes] == b"".join(batch.data for batch in batches)


def test_an_abandoned_run_leaves_nothing(tmp_path: Path) -> None:
    batch = make_batch(1, 0)
    with RunWriter("a.run", LocalRunTarget(tmp_path, "a.run")) as writer:
        writer.append([batch.data], describe([batch]))
    assert not list(tmp_path.iterdir())


def test_two_writers_of_one_name_do_not_meet(tmp_path: Path) -> None:
    zombie = RunWriter("a.run", LocalRunTarget(tmp_path, "a.run"))
    write(RunWriter("a.run", LocalRunTarget(tmp_path, "a.run")), [make_batch(1, 0)])
    before = (tmp_path / "a.run").read_bytes()
    zombie.append([make_batch(9, 0).data], describe([make_batch(9, 0)]))
    assert (tmp_path / "a.run").read_bytes() == before


def test_writing_is_paced(tmp_path: Path) -> None:
    clock = FakeClock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    target = LocalRunTarget(tmp_path, "a.run", bytes_per_second=4 << 20, clock=clock.monotonic, sleep=sleep)
    target.write(bytes(10 << 20))
    target.finish()
    assert clock.monotonic() == pytest.approx(2.5)
    assert max(slept) <= 0.26, "never more than one write at a time"


@pytest.mark.parametrize("over_gaps", [False, True])
def test_an_extent_ends_where_offsets_are_missing(over_gaps: bool) -> None:
    """They may be in another write group; but for those that compaction has taken."""
    batches = [
        make_batch(queue, offset, size=100) for queue, offset in ((1, 0), (1, 1), (1, 5), (1, 6), (1, 9), (2, 0))
    ]
    described = describe(batches)
    files = WatchedFiles()
    with RunWriter("a.run", SimulatedTarget(files, "a.run"), ABORTED_VERSION, over_gaps=over_gaps) as writer:
        for part in (slice(0, 3), slice(3, 4), slice(4, 6)):
            writer.append([batch.data for batch in batches[part]], described[part])
        writer.finish()

    async def load() -> numpy.ndarray:
        return (await load_index(await files.open("runs/a.run"), "a.run", "a.run")).rows

    rows = asyncio.run(load())[["queue_id", "base_offset", "last_offset"]].tolist()
    assert rows == ([(1, 0, 9), (2, 0, 0)] if over_gaps else [(1, 0, 1), (1, 5, 6), (1, 9, 9), (2, 0, 0)])


def test_an_extent_ends_where_its_queue_goes_on_in_another_write_group() -> None:
    batches = [make_batch(1, offset, size=100) for offset in range(6)]
    described = describe(batches)
    described["flags"][[0, 2, 5]] |= CUT_BEFORE
    files = WatchedFiles()
    with RunWriter("a.run", SimulatedTarget(files, "a.run"), ABORTED_VERSION) as writer:
        writer.append([batch.data for batch in batches[:4]], described[:4])
        writer.append([batch.data for batch in batches[4:]], described[4:])
        writer.finish()

    async def load() -> numpy.ndarray:
        return (await load_index(await files.open("runs/a.run"), "a.run", "a.run")).rows

    rows = asyncio.run(load())
    assert rows[["base_offset", "last_offset"]].tolist() == [(0, 1), (2, 4), (5, 5)]
    assert not rows["flags"].any()
