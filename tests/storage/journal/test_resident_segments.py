"""Segments that are on the disk give their memory back once writes were slow, but for the newest."""

from __future__ import annotations

import asyncio
import errno
from typing import NamedTuple

import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.files import SimulatedFile, SimulatedFiles
from tests.storage.journal.sample_blocks import data_block, started, until, values

from mainstem.model import Durability
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.segments import resident_segments
from mainstem.storage.journal.segments.resident_segments import (
    LARGE_BYTES_MAX,
    LARGE_BYTES_MIN,
    SEGMENTS_KEPT,
    SEGMENTS_REMEMBERED,
    SLOW_FOR_SECONDS,
    SLOW_SECONDS_PER_BYTE,
    SLOW_WITHIN_SECONDS,
    SLOW_WRITES,
    ResidentSegments,
)
from mainstem.storage.journal.segments.segment_files import segment_path
from mainstem.supervised import Supervision

SLOW_SECONDS = SLOW_SECONDS_PER_BYTE * LARGE_BYTES_MIN


class Segments(NamedTuple):
    files: SimulatedFiles
    clock: FakeClock
    resident: ResidentSegments

    async def add(self, count: int) -> None:
        """So many more segments are complete and on the disk."""
        for _ in range(count):
            number = len(self.files.paths()) + 1
            self.resident.add(number, await self.files.open(f"{number:02}", create=True))

    def be_slow(self) -> None:
        for _ in range(SLOW_WRITES):
            self.resident.wrote(LARGE_BYTES_MIN, SLOW_SECONDS)

    async def leave_open(self, count: int) -> list[str]:
        """Which were forgotten when no more than so many files are open."""
        await until(lambda: self.files.open_handles == count)
        return self.files.forgotten


def segments() -> Segments:
    clock = FakeClock()
    resident = ResidentSegments(clock.monotonic, Supervision(), asyncio.Lock())
    resident.start()
    return Segments(SimulatedFiles(), clock, resident)


def names(first: int, last: int) -> list[str]:
    return [f"{number:02}" for number in range(first, last + 1)]


async def test_while_writes_are_fast_the_system_keeps_what_it_likes() -> None:
    found = segments()
    found.resident.wrote(LARGE_BYTES_MIN, 0.99 * SLOW_SECONDS)
    await found.add(SEGMENTS_REMEMBERED + 3)
    assert await found.leave_open(SEGMENTS_REMEMBERED) == []
    await found.resident.close()
    assert await found.leave_open(0) == []


async def test_once_writes_were_slow_all_but_the_newest_segments_give_their_memory_back() -> None:
    found = segments()
    await found.add(SEGMENTS_REMEMBERED)
    await asyncio.sleep(0.01)  # nothing is to be done yet: the slow writes alone have it done
    found.be_slow()
    assert await found.leave_open(SEGMENTS_KEPT) == names(1, SEGMENTS_REMEMBERED - SEGMENTS_KEPT)
    found.clock.advance(SLOW_FOR_SECONDS - 1)
    await found.add(2)
    gone = names(1, SEGMENTS_REMEMBERED - SEGMENTS_KEPT + 2)
    await until(lambda: found.files.forgotten == gone)
    assert await found.leave_open(SEGMENTS_KEPT) == gone
    found.clock.advance(1)
    await found.add(2)
    assert await found.leave_open(SEGMENTS_KEPT + 2) == gone, "memory is there again"
    await found.resident.close()


@pytest.mark.parametrize("size_bytes", [LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN, LARGE_BYTES_MAX, LARGE_BYTES_MAX + 1])
def test_slow_writes_count_where_they_are_large_and_follow_each_other(size_bytes: int) -> None:
    clock = FakeClock()
    resident = ResidentSegments(clock.monotonic, Supervision(), asyncio.Lock())
    for _ in range(2 * SLOW_WRITES):
        resident.wrote(size_bytes, SLOW_SECONDS_PER_BYTE * size_bytes)
        clock.advance(1.01 * SLOW_WITHIN_SECONDS)
    assert not resident.memory_is_slow
    for _ in range(SLOW_WRITES):
        resident.wrote(size_bytes, SLOW_SECONDS_PER_BYTE * size_bytes)
        clock.advance(0.99 * SLOW_WITHIN_SECONDS)
    assert resident.memory_is_slow is (size_bytes in (LARGE_BYTES_MIN, LARGE_BYTES_MAX))


@pytest.mark.parametrize("durability", Durability)
async def test_a_journal_whose_writes_are_slow_gives_back_its_synced_segments(
    monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    monkeypatch.setattr(resident_segments, "LARGE_BYTES_MIN", 0)
    monkeypatch.setattr(resident_segments, "SLOW_SECONDS_PER_BYTE", 0.0)
    files = SimulatedFiles()
    config = JournalConfig(segment_bytes=16384, pool_segments=0, durability=durability, flush_interval_seconds=999)
    journal = (await started(files, config)).journal
    for index in range(1, SEGMENTS_KEPT + 5):
        await journal.write([data_block(index, sizes=(10_000,))])
    assert files.forgotten == [], "what is not on the disk stays in memory"
    await journal.sync()
    gone = [segment_path(number) for number in (1, 2, 3)] if durability is Durability.ASYNC else []
    await until(lambda: values(journal)["mainstem_journal_segments_forgotten_total"] == len(gone))
    assert files.forgotten == gone
    await journal.close()
    assert not files.open_handles


async def test_a_segment_that_is_given_up_is_held_open_no_longer() -> None:
    files = SimulatedFiles()
    config = JournalConfig(
        segment_bytes=16384, pool_segments=0, durability=Durability.ASYNC, flush_interval_seconds=999
    )
    journal = (await started(files, config)).journal
    for index in range(1, 5):
        await journal.write([data_block(index, sizes=(10_000,))])
    await journal.sync()
    before = files.open_handles
    assert await journal.recycle(3) == [1, 2]
    assert files.open_handles == before - 2
    await journal.close()
    assert not files.open_handles


async def test_a_file_that_cannot_be_forgotten_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = segments()

    async def refused(file: SimulatedFile) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    monkeypatch.setattr(SimulatedFile, "forget", refused)
    await found.add(SEGMENTS_KEPT + 1)
    found.be_slow()
    await until(lambda: found.files.open_handles == SEGMENTS_KEPT)
    assert found.resident.forgotten == 0
    await found.resident.close()
