"""Writing, rolling, durability, indexes and recycling; what a failing or a full disk does to the journal."""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import Any

import msgspec
import numpy
import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.files import PowerLoss, SimulatedFiles
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.journal.sample_blocks import (
    SMALL,
    abandoned,
    command_block,
    data_block,
    flip,
    next_is_taken,
    started,
    until,
    values,
)

from mainstem.errors import ConfigError
from mainstem.model import Buffer, Durability
from mainstem.storage.errors import (
    CorruptJournal,
    SegmentGone,
    StorageBusy,
    StorageError,
    StorageFailed,
)
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.format import (
    FIRST_BLOCK,
    PAGE_BYTES,
    SegmentHeader,
    offset_of,
    position_of,
    sequence_of,
)
from mainstem.storage.journal.encoding.framing import SMALL_WRITE_BYTES, joined, last_bytes
from mainstem.storage.journal.journal import WAITS_FROM_PART, WAITS_SECONDS_MAX, Journal
from mainstem.storage.journal.segments import pool
from mainstem.storage.journal.segments.segment_files import OPEN_SEGMENTS_MAX, index_path, segment_path

ASYNC = JournalConfig(segment_bytes=16384, pool_segments=0, durability=Durability.ASYNC, flush_interval_seconds=999)


async def fill(journal: Journal, segments: int, index: int = 1) -> int:
    """Write a block per segment until there are so many; returns the next index."""
    while len(journal.segments()) < segments:
        await journal.write([data_block(index, sizes=(7000,))])
        index += 1
    return index


# --- blocks and segments ----------------------------------------------------------------------------------


async def test_blocks_are_chained_over_segments_and_state_what_was_durable() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    headers = []
    for index in range(1, 20):
        durable = journal.durable_end
        written = await journal.write([data_block(index, sizes=(1500,)), command_block(index, group=1)])
        assert all(header.durable_position == durable for header in written)
        assert journal.end == journal.durable_end == written[-1].end
        headers += written
    for before, header in itertools.pairwise(headers):
        assert header.previous_crc == before.crc
        if sequence_of(header.position) == sequence_of(before.position):
            assert header.position == before.end
        else:
            assert header.position == position_of(sequence_of(before.position) + 1, FIRST_BLOCK)
            path = segment_path(sequence_of(header.position))
            stated = SegmentHeader.unpack(files.content(path), path)
            assert (stated.previous_end, stated.previous_crc) == (before.end, before.crc)
    assert len(journal.segments()) > 2
    for segment, following in itertools.pairwise(journal.segments()):
        assert segment.sealed
        assert segment.sequence + 1 == following.sequence
    assert not journal.segments()[-1].sealed
    await journal.close()


async def test_one_write_may_fill_several_segments() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    blocks = [data_block(index, sizes=(5000,)) for index in range(1, 12)]
    headers = await journal.write(blocks)
    assert {sequence_of(header.position) for header in headers} == {1, 2, 3, 4, 5, 6}
    await journal.close()
    found = await started(files)
    assert found.indexes() == list(range(1, 12))
    await found.journal.close()


async def test_thousands_of_tiny_blocks_in_one_write() -> None:
    files = SimulatedFiles()
    config = JournalConfig(segment_bytes=1 << 20, pool_segments=0)
    journal = (await started(files, config)).journal
    await journal.write([command_block(index, size=3) for index in range(1, 3001)])
    await journal.close()
    found = await started(files, config)
    assert found.indexes() == list(range(1, 3001))
    await found.journal.close()


async def test_the_longest_block_fits_and_a_longer_one_is_a_programmer_error() -> None:
    journal = (await started(SimulatedFiles())).journal
    longest = SMALL.block_bytes_max - 80
    (header,) = await journal.write([command_block(1, size=longest)])
    assert header.length == SMALL.block_bytes_max
    with pytest.raises(AssertionError, match="fits into no segment"):
        await journal.write([command_block(2, size=longest + 1)])
    (header,) = await journal.write([command_block(2)])
    assert sequence_of(header.position) == 2
    await journal.close()


async def test_writes_cover_whole_pages_and_repeat_the_partial_one() -> None:
    files = SimulatedFiles()
    journal = (await started(files, ASYNC)).journal
    start = 0
    for index in range(1, 8):
        await journal.write([data_block(index, sizes=(700,))])
        page = start // PAGE_BYTES * PAGE_BYTES
        start = offset_of(journal.end)
        covered = -(-start // PAGE_BYTES) * PAGE_BYTES - page
        assert files.unsynced_bytes() == covered, "whole pages, from the one that was not full on"
        assert files.content(segment_path(1))[start : page + covered].strip(b"\0") == b"", "the rest is zeros"
        await journal.sync()
    await journal.close()


async def test_a_segment_is_sealed_by_age_and_stays_until_the_next_block() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    journal = (await started(files, clock=clock)).journal
    assert not await journal.roll_if_due(), "there is nothing to seal"
    await journal.write([data_block(1)])
    assert not await journal.roll_if_due()
    clock.advance(SMALL.segment_age_seconds)
    assert await journal.roll_if_due()
    (segment,) = journal.segments()
    assert segment.sealed
    assert segment.end == journal.end
    assert await journal.recycle(99) == [], "nothing durable lies behind it yet"
    await journal.write([data_block(2)])
    assert [info.sealed for info in journal.segments()] == [True, False]
    clock.advance(SMALL.segment_age_seconds)
    (header,) = await journal.write([data_block(3)])
    assert sequence_of(header.position) == 3, "a write notices the age itself"
    await journal.close()
    found = await started(files, clock=clock)
    assert found.indexes() == [1, 2, 3]
    await found.journal.close()


async def test_an_aged_segment_is_written_on_after_a_restart_without_its_index() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    journal = (await started(files, clock=clock)).journal
    await journal.write([data_block(1)])
    clock.advance(SMALL.segment_age_seconds)
    await journal.roll_if_due()
    await journal.seal_index(1, await journal.scan_directory(1))
    await journal.close()
    reopened = await Journal.open(files, clock, SMALL)
    assert [(info.sealed, info.index_ready) for info in reopened.segments()] == [(False, False)]
    await abandoned(reopened)


# --- durability -------------------------------------------------------------------------------------------


async def test_async_writes_are_durable_after_a_sync() -> None:
    files = SimulatedFiles(5)
    journal = (await started(files, ASYNC)).journal
    for index in range(1, 9):
        await journal.write([data_block(index, sizes=(4000,))])
    assert journal.durable_end == 0
    await journal.sync()
    assert journal.durable_end == journal.end
    assert files.unsynced_bytes() == 0
    (header,) = await journal.write([data_block(9)])
    assert header.durable_position == header.position
    files.crash()
    await abandoned(journal)
    found = await started(files, ASYNC)
    assert found.indexes() in ([*range(1, 9)], [*range(1, 10)])
    await abandoned(found.journal)


async def test_a_sync_vouches_only_for_what_was_written_before_it() -> None:
    files = SimulatedFiles()
    journal = (await started(files, ASYNC)).journal
    await journal.write([data_block(1)])
    before = journal.end
    syncing = asyncio.ensure_future(journal.sync())
    await journal.write([data_block(2)])
    await syncing
    assert journal.durable_end == before < journal.end
    await journal.sync()
    assert journal.durable_end == journal.end
    await journal.close()


async def test_async_writes_are_flushed_by_themselves() -> None:
    files = SimulatedFiles()
    config = JournalConfig(
        segment_bytes=16384, pool_segments=0, durability=Durability.ASYNC, flush_interval_seconds=0.001
    )
    journal = (await started(files, config)).journal
    await journal.write([data_block(1)])
    await until(lambda: journal.durable_end == journal.end)
    assert files.unsynced_bytes() == 0
    await journal.close()


async def test_a_crash_under_async_keeps_a_prefix_that_holds_all_that_was_synced() -> None:
    for seed in range(40):
        files = SimulatedFiles(seed)
        journal = (await started(files, ASYNC)).journal
        synced = 0
        for index in range(1, 15):
            await journal.write([data_block(index, sizes=(2500,)), command_block(index, group=1)])
            if index == seed % 14:
                await journal.sync()
                synced = 2 * index
        files.crash()
        await abandoned(journal)
        found = await started(files, ASYNC)
        assert len(found.delivered) >= synced
        assert [(block.header.index, block.header.group) for block in found.delivered] == [
            (number // 2 + 1, number % 2) for number in range(len(found.delivered))
        ]
        await found.journal.close()


# --- a disk that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_or_sync_is_final(operation: str) -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await journal.write([data_block(1)])
    files.fail(operation, path=".wal")
    with pytest.raises(StorageFailed, match=segment_path(1)):
        await journal.write([data_block(2)])
    with pytest.raises(StorageFailed):
        await journal.write([data_block(2)])
    assert values(journal)["mainstem_journal_failed"] == 1
    assert await journal.read(position_of(1, FIRST_BLOCK), 4) == b"MBK1", "reading goes on"
    await abandoned(journal)
    files.crash()
    found = await started(files)
    assert found.indexes() in ([1], [1, 2])
    await found.journal.close()


async def test_a_failed_flush_is_final_and_its_claim_is_never_made() -> None:
    """After a failed sync the next one succeeds without having saved the pages; nothing may rely on it."""
    files = SimulatedFiles(2)
    journal = (await started(files, ASYNC)).journal
    await journal.write([data_block(1)])
    files.fail("sync", path=".wal")
    with pytest.raises(StorageFailed):
        await journal.sync()
    assert journal.durable_end == 0
    with pytest.raises(StorageFailed):
        await journal.write([data_block(2)])
    with pytest.raises(StorageFailed):
        await journal.sync()
    await abandoned(journal)
    files.crash(keep_all=True)  # the process starts again; the page cache still shows the block
    found = await started(files, ASYNC)
    assert found.indexes() == [1]
    files.crash()
    await abandoned(found.journal)
    again = await started(files, ASYNC)
    assert again.indexes() == [1], "recovery wrote again what a failed sync may have dropped"
    await again.journal.close()


async def test_a_cancelled_write_is_final() -> None:
    journal = (await started(SimulatedFiles())).journal
    await journal.write([data_block(1)])
    writing = asyncio.ensure_future(journal.write([data_block(2)]))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    with pytest.raises(StorageFailed, match="abandoned"):
        await journal.write([data_block(3)])
    await abandoned(journal)


async def test_a_full_disk_is_busy_and_changes_nothing() -> None:
    files = SimulatedFiles(capacity_bytes=3 * 16384 + 100)
    journal = (await started(files)).journal
    index = await fill(journal, 3)
    end, written = journal.end, values(journal)["mainstem_journal_written_bytes_total"]
    await journal.write([command_block(index)])
    end = journal.end
    big = [data_block(number, sizes=(9000,)) for number in (index + 1, index + 2)]
    for _ in range(3):
        with pytest.raises(StorageBusy, match="no room"):
            await journal.write(big)
    assert journal.end == end
    assert values(journal)["mainstem_journal_written_bytes_total"] == written + PAGE_BYTES
    await journal.write([command_block(index + 3)])  # what fits is still taken
    assert await journal.recycle(3) == [1, 2]
    await journal.write(big)  # space came free: one file each from the pool
    assert values(journal)["mainstem_journal_segments_recycled_total"] == 2
    await journal.close()
    found = await started(files)
    assert found.indexes()[-4:] == [index, index + 3, index + 1, index + 2]
    await found.journal.close()


async def test_segments_taken_before_the_disk_was_full_are_used_by_the_next_write() -> None:
    files = SimulatedFiles(capacity_bytes=2 * 16384 + 100)
    journal = (await started(files)).journal
    await journal.write([data_block(1, sizes=(9000,))])
    three = [data_block(number, sizes=(9000,)) for number in (2, 3)]
    for _ in range(2):
        with pytest.raises(StorageBusy):
            await journal.write(three)
    files.capacity_bytes = None
    headers = await journal.write(three)
    assert [sequence_of(header.position) for header in headers] == [2, 3]
    assert values(journal)["mainstem_journal_segments_fresh_total"] == 5, "two of five attempts found no room"
    await journal.close()
    found = await started(files)
    assert found.indexes() == [1, 2, 3]
    await found.journal.close()


async def test_a_disk_that_fails_when_a_segment_is_made_is_final() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await journal.write([data_block(1, sizes=(9000,))])
    files.fail("open", path=".wal", error=errno.EIO)
    with pytest.raises(StorageFailed, match="cannot be made"):
        await journal.write([data_block(2, sizes=(9000,))])
    await abandoned(journal)


# --- reading and indexes ----------------------------------------------------------------------------------


async def test_reading_ends_when_the_segment_is_recycled() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    (header,) = await journal.write([data_block(1, sizes=(200,))])
    payload = await journal.read(header.payload_position, header.payload_length)
    assert payload == data_block(1, sizes=(200,)).payload[0]
    await fill(journal, 3, index=2)
    reading = asyncio.ensure_future(journal.read(header.payload_position, header.payload_length))
    await asyncio.sleep(0)
    assert await journal.recycle(2) == [1]
    with pytest.raises(SegmentGone):
        await reading
    with pytest.raises(SegmentGone):
        await journal.read(header.payload_position, header.payload_length)
    with pytest.raises(SegmentGone):
        await journal.index(1)
    await journal.close()


async def test_a_read_error_names_the_place_and_ends_nothing() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    (header,) = await journal.write([data_block(1)])
    files.fail("read", path=segment_path(1))
    with pytest.raises(StorageError, match=f"{segment_path(1)} at byte {FIRST_BLOCK}"):
        await journal.read(header.position, 10)
    assert len(await journal.read(header.position, 10)) == 10
    await journal.close()


async def test_more_segments_are_read_than_are_kept_open() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await fill(journal, OPEN_SEGMENTS_MAX + 10)
    first = [segment.first for segment in journal.segments()]
    before = files.open_handles
    heads = await asyncio.gather(*(journal.read(position, 4) for position in first * 2))
    assert set(heads) == {b"MBK1"}
    assert 0 < files.open_handles - before <= OPEN_SEGMENTS_MAX + 1  # one of them is taken ahead of the next write
    await journal.close()


async def test_an_index_finds_every_batch_in_its_segment() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    blocks = [data_block(index, sizes=(200, 100, 300)) for index in range(1, 15)]
    for block in blocks:
        await journal.write([block, command_block(block.index, group=1)])
    await fill(journal, 3, index=100)
    index = await journal.index(1)
    assert journal.segments()[0].index_ready
    found = set()
    for row in index.rows:
        content = await journal.read(position_of(1, int(row["position"])), int(row["length"]))
        assert int.from_bytes(content[:8], "big") == row["base_offset"] == row["last_offset"]
        assert len(content) == int.from_bytes(content[8:12], "big") + 12
        found.add((int(row["queue_id"]), int(row["base_offset"])))
    in_first = {
        (1 + number, block.index * 1000 + number)
        for block in blocks
        for number in range(3)
        if (1, block.index * 1000) in found
    }
    assert found >= in_first
    assert len(in_first) >= 24
    row = index.find(2, 3001)
    assert row is not None
    assert index.rows[row]["base_offset"] == 3001
    await journal.close()


async def test_an_index_is_loaded_from_its_file_and_made_again_when_it_is_damaged_or_missing() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await fill(journal, 3)
    rows = await journal.scan_directory(1)
    await journal.seal_index(1, rows)
    await journal.close()
    content = files.content(index_path(1))
    for damage in (None, content[:-1], content[:100] + b"\xff" + content[101:], b"", "missing"):
        if isinstance(damage, bytes):
            files.put(index_path(1), damage)
        elif damage == "missing":
            await files.remove(index_path(1))
        found = await started(files)
        assert numpy.array_equal((await found.journal.index(1)).rows, rows)
        assert numpy.array_equal((await found.journal.index(1)).rows, rows)
        assert values(found.journal)["mainstem_journal_index_loads_total"] == 1
        assert files.content(index_path(1)) == content
        await found.journal.close()


async def test_indexes_in_memory_are_bounded() -> None:
    config = JournalConfig(segment_bytes=16384, pool_segments=0, index_cache_bytes=200)
    journal = (await started(SimulatedFiles(), config)).journal
    await fill(journal, 12)
    for _ in range(2):
        for segment in journal.segments()[:-1]:
            await journal.index(segment.sequence)
            assert values(journal)["mainstem_journal_index_cache_bytes"] <= 200
    assert values(journal)["mainstem_journal_index_loads_total"] == 22
    await journal.close()


async def test_a_damaged_directory_cannot_be_indexed() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    (header,) = await journal.write([data_block(1)])
    await fill(journal, 2, index=2)
    flip(files, header.position + 90)
    with pytest.raises(CorruptJournal, match=segment_path(1)):
        await journal.scan_directory(1)
    await journal.close()


async def test_an_index_makes_its_segment_durable_first() -> None:
    files = SimulatedFiles(1)
    journal = (await started(files, ASYNC)).journal
    index = await fill(journal, 2)
    await journal.seal_index(1, await journal.scan_directory(1))
    files.crash()
    await abandoned(journal)
    found = await started(files, ASYNC)
    assert found.indexes()[: index - 2] == list(range(1, index - 1))
    await found.journal.close()


# --- the pool ---------------------------------------------------------------------------------------------


async def test_a_write_into_the_next_segment_finds_it_taken() -> None:
    """It does not open or rename a file, which the disk's thread may be busy for."""
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await journal.write([data_block(1, sizes=(3000,))])
    assert values(journal)["mainstem_journal_segments_taken_total"] == 1, "the first has room for a while"
    await journal.write([data_block(2, sizes=(3000,))])
    await next_is_taken(journal)
    files.fail("open", path=".wal", error=errno.EIO)
    [header] = await journal.write([data_block(3, sizes=(9000,))])
    assert sequence_of(header.position) == 2
    await abandoned(journal)


async def test_one_file_is_taken_ahead_and_a_start_gives_it_up() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    for index in (1, 2, 3):
        await journal.write([data_block(index, sizes=(9000,))])
        await next_is_taken(journal)
        assert values(journal)["mainstem_journal_segments_taken_total"] == index + 1
    await journal.close()
    assert segment_path(4) in files.paths()
    found = await started(files)
    assert (found.indexes(), found.report.removed_segments) == ([1, 2, 3], 1)
    assert segment_path(4) not in files.paths()
    await found.journal.close()


async def test_what_fails_ahead_of_a_write_fails_no_write() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    files.fail("open", path=segment_path(2), error=errno.EIO)
    await journal.write([data_block(1, sizes=(9000,))])
    await until(lambda: values(journal)["mainstem_journal_segments_taken_total"] == 2)
    assert values(journal)["mainstem_journal_segments_ahead"] == 0
    [header] = await journal.write([data_block(2, sizes=(9000,))])
    assert sequence_of(header.position) == 2
    await journal.close()


async def test_files_are_filled_in_advance_recycled_and_bounded() -> None:
    files = SimulatedFiles()
    config = JournalConfig(segment_bytes=16384, pool_segments=2, pool_segments_max=3)
    journal = (await started(files, config)).journal
    await until(lambda: values(journal)["mainstem_journal_pool_segments"] == 2)
    await fill(journal, 10)
    assert values(journal)["mainstem_journal_segments_taken_total"] == 10
    assert values(journal)["mainstem_journal_segments_fresh_total"] < 9
    assert len(await journal.recycle(99)) == 9
    await until(lambda: values(journal)["mainstem_journal_pool_segments"] == 3)
    assert sum(path.endswith(".free") for path in files.paths()) == 3
    assert journal.bytes_used() == 16384
    await journal.close()
    other = await started(files, JournalConfig(segment_bytes=32768, pool_segments=0))
    assert not [path for path in files.paths() if path.endswith(".free")], "of another size: not for reuse"
    assert values(other.journal)["mainstem_journal_pool_segments"] == 0
    await other.journal.close()


async def pool_is_ready(journal: Journal, count: int) -> None:
    await until(lambda: values(journal)["mainstem_journal_pool_segments"] == count)


async def test_the_pool_is_filled_in_memory_where_the_journal_is_synced_later() -> None:
    files = SimulatedFiles()
    files.fail("sync", path=".new")
    journal = (await started(files, msgspec.structs.replace(ASYNC, pool_segments=2, pool_segments_max=2))).journal
    await pool_is_ready(journal, 2)
    assert files.waits_to_fail, "nothing was synced"
    assert files.unsynced_bytes() == 2 * 16384, "every byte has been written, all the same"
    assert all(files.content(path) == bytes(16384) for path in files.paths() if path.endswith(".free"))
    await journal.close()


async def test_twice_as_many_files_are_filled_in_memory_once_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REST_SECONDS", 0.05)
    files = SimulatedFiles()
    config = msgspec.structs.replace(ASYNC, pool_segments=2, pool_segments_max=16)
    journal = (await started(files, config)).journal
    await pool_is_ready(journal, 4)
    assert values(journal)["mainstem_journal_segments_filled_total"] == 4
    await fill(journal, 4)
    await pool_is_ready(journal, 4)
    await journal.trim_pool()
    await pool_is_ready(journal, 2)
    await fill(journal, 6)
    await pool_is_ready(journal, 2)
    await asyncio.sleep(0.1)
    assert values(journal)["mainstem_journal_pool_segments"] == 2, "the disk had no room for more"
    await journal.close()


async def test_files_are_filled_in_memory_under_a_load_only_where_memory_is_slow_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "REST_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(pool, "PROBE_BYTES", 1)
    files = SimulatedFiles()
    config = msgspec.structs.replace(ASYNC, segment_bytes=1 << 20, pool_segments=2, pool_segments_max=4)
    journal = (await started(files, config)).journal
    await pool_is_ready(journal, 2)
    files.memory_seconds = 0.0
    await journal.write([data_block(1, sizes=(300_000,))])
    await until(lambda: any(path.endswith(".new") for path in files.paths()))
    begun = files.unsynced_bytes()
    await until(lambda: files.unsynced_bytes() > begun + 1)  # the next probe comes only once this one has told
    for index in range(2, 20):
        await journal.write([data_block(index, sizes=(300_000,))])
    told = values(journal)
    assert told["mainstem_journal_segments_fresh_total"] == told["mainstem_journal_segments_taken_total"] - 1 > 3
    assert told["mainstem_journal_segments_filled_total"] == 2
    assert told["mainstem_journal_pool_segments"] == 1, "it is kept for when it is needed"
    assert not journal.lacks_memory(), "nobody waits for files that are not needed"
    files.memory_seconds = 1.0
    for index in range(20, 40):
        await pool_is_ready(journal, 2)
        await journal.write([data_block(index, sizes=(300_000,))])
    assert values(journal)["mainstem_journal_segments_fresh_total"] == told["mainstem_journal_segments_fresh_total"]
    await journal.close()


async def test_the_pool_is_filled_on_the_disk_where_each_write_is_synced() -> None:
    files = SimulatedFiles()
    journal = (await started(files, JournalConfig(segment_bytes=16384, pool_segments=2))).journal
    await pool_is_ready(journal, 2)
    assert not files.unsynced_bytes()
    await journal.close()


async def test_who_can_wait_is_told_to_while_the_next_file_is_filled_and_for_so_long_at_the_most() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    config = msgspec.structs.replace(ASYNC, segment_bytes=64 * PAGE_BYTES, pool_segments=1, pool_segments_max=1)
    journal = (await started(files, config, clock)).journal
    await until(lambda: values(journal)["mainstem_journal_pool_segments"] == 1)
    assert not journal.lacks_memory(), "nothing was written yet"
    files.memory_comes.clear()
    await journal.write([data_block(1)])
    await until(lambda: any(path.endswith(".new") for path in files.paths()))
    assert not journal.lacks_memory(), "this segment lasts for a while"
    index = 2
    while not journal.lacks_memory():
        await journal.write([data_block(index)])
        index += 1
    assert 0 <= offset_of(journal.end) - WAITS_FROM_PART * 64 * PAGE_BYTES < PAGE_BYTES
    clock.advance(WAITS_SECONDS_MAX)
    assert not journal.lacks_memory(), "it does not come"
    files.memory_comes.set()
    await until(lambda: values(journal)["mainstem_journal_pool_segments"] == 1)
    assert not journal.lacks_memory()
    files.memory_comes.clear()
    while len(journal.segments()) < 2:
        assert not journal.lacks_memory(), "the next file is there, in the pool or ahead"
        await journal.write([data_block(index)])
        index += 1
    while not journal.lacks_memory():
        await journal.write([data_block(index)])
        index += 1
    clock.advance(WAITS_SECONDS_MAX / 2)
    assert journal.lacks_memory(), "of another file, for as long again"
    await journal.write([data_block(index + number, sizes=(5000,)) for number in range(20)])
    await next_is_taken(journal)
    assert not journal.lacks_memory(), "a fresh file was taken"
    files.memory_comes.set()
    await journal.close()


async def test_each_segment_is_waited_for_anew_though_nobody_asked_since_the_one_before() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    files.memory_comes.clear()
    config = msgspec.structs.replace(ASYNC, segment_bytes=64 * PAGE_BYTES, pool_segments=1, pool_segments_max=1)
    journal = (await started(files, config, clock)).journal
    await until(lambda: any(path.endswith(".new") for path in files.paths()))
    indexes = itertools.count(1)
    for segments in (1, 2):
        while not journal.lacks_memory():
            await journal.write([data_block(next(indexes))])
        assert len(journal.segments()) == segments
        clock.advance(WAITS_SECONDS_MAX)
        while len(journal.segments()) == segments:
            await journal.write([data_block(next(indexes))])
    files.memory_comes.set()
    await journal.close()


async def test_nobody_waits_for_files_that_no_room_is_for_or_that_are_synced() -> None:
    config = msgspec.structs.replace(ASYNC, segment_bytes=64 * PAGE_BYTES, pool_segments=1, pool_segments_max=1)
    for durability in (Durability.ASYNC, Durability.SYNC):
        files = SimulatedFiles(capacity_bytes=64 * PAGE_BYTES if durability is Durability.ASYNC else None)
        journal = (await started(files, msgspec.structs.replace(config, durability=durability))).journal
        if durability is Durability.SYNC:
            files.fail("write", path=".new")
        for index in range(1, 30):
            await journal.write([data_block(index, sizes=(5000,))])
            await asyncio.sleep(0.001)
            assert not journal.lacks_memory()
        await journal.close()


async def test_files_filled_in_memory_lose_nothing_when_the_power_goes() -> None:
    """A file of the pool is not used then, or is as good as one that was filled."""
    for seed in range(20):
        files = SimulatedFiles(seed)
        config = msgspec.structs.replace(ASYNC, pool_segments=2, pool_segments_max=2)
        journal = (await started(files, config)).journal
        await pool_is_ready(journal, 2)
        index = await fill(journal, 3)
        await journal.sync()
        await journal.write([data_block(index)])
        files.crash()
        await abandoned(journal)
        found = await started(files, config)
        assert found.indexes()[: index - 1] == list(range(1, index))
        await found.journal.write([data_block(index + 1)])
        await found.journal.close()
        again = await started(files, config)
        assert again.indexes()[-1] == index + 1
        await again.journal.close()


async def test_a_full_disk_does_not_end_the_filling_for_good() -> None:
    files = SimulatedFiles(capacity_bytes=16384)
    config = JournalConfig(segment_bytes=16384, pool_segments=1)
    journal = (await started(files, config)).journal
    await until(lambda: values(journal)["mainstem_journal_pool_segments"] == 1)
    await journal.write([data_block(1)])
    await asyncio.sleep(0.005)
    assert values(journal)["mainstem_journal_pool_segments"] == 0
    assert not [path for path in files.paths() if path.endswith(".new")]
    files.capacity_bytes = None
    await journal.write([data_block(2, sizes=(12_000,))])
    await until(lambda: values(journal)["mainstem_journal_pool_segments"] == 1)
    await journal.close()


async def test_sequences_go_on_behind_those_of_the_pool() -> None:
    """Should all segments be lost, stale blocks in the pool still must not meet their own sequence again."""
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await fill(journal, 5)
    await journal.recycle(5)
    await journal.close()
    await files.remove(segment_path(5))
    assert sum(path.endswith(".free") for path in files.paths()) == 3, "segments 1 to 3; that of 4 is gone"
    found = await started(files)
    (header,) = await found.journal.write([data_block(1)])
    assert sequence_of(header.position) > 3
    await found.journal.close()


async def test_a_refused_recycling_is_tried_again() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await fill(journal, 4)
    files.fail("rename", path=segment_path(2))
    with pytest.raises(OSError, match=segment_path(2)):
        await journal.recycle(4)
    assert [segment.sequence for segment in journal.segments()] == [2, 3, 4]
    assert await journal.recycle(4) == [2, 3]
    await journal.close()


# --- one at a time ----------------------------------------------------------------------------------------


async def test_a_second_process_is_refused() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    with pytest.raises(StorageError, match="another process"):
        await started(files)
    await journal.close()
    await (await started(files)).journal.close()


async def test_a_power_cut_while_closing_loses_nothing() -> None:
    files = SimulatedFiles(4)
    journal = (await started(files)).journal
    await journal.write([data_block(1)])
    files.cut_power(after=1)
    with pytest.raises(PowerLoss):
        await journal.write([data_block(2)])
    with pytest.raises(StorageFailed):
        await journal.write([data_block(3)])
    await abandoned(journal)
    files.crash()
    assert (await started(files)).indexes() in ([1], [1, 2])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"segment_bytes": 16383}, "segment_bytes"),
        ({"segment_bytes": 8192}, "segment_bytes"),
        ({"segment_bytes": 1 << 32}, "segment_bytes"),
        ({"segment_age_seconds": 0}, "segment_age_seconds"),
        ({"flush_interval_seconds": -1}, "flush_interval_seconds"),
        ({"pool_segments": 17}, "pool_segments"),
        ({"pool_segments": -1}, "pool_segments"),
        ({"index_cache_bytes": -1}, "index_cache_bytes"),
        ({"pool_fill_bytes_per_second": 1}, "pool_fill_bytes_per_second"),
    ],
)
def test_a_value_that_cannot_be_is_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        JournalConfig(**changes).validate()


def test_small_buffers_are_joined_and_bytes_stay() -> None:
    parts: list[Buffer] = [b"a" * 10, b"", memoryview(b"b" * 9000), bytearray(b"c" * 3), b"d" * 4095, b"e" * 4096]
    whole = b"".join(parts)
    assert len(whole) > SMALL_WRITE_BYTES
    result = joined(parts, len(whole))
    assert b"".join(result) == whole
    assert len(result) == 4
    assert [last_bytes(parts, count) for count in (0, 1, 5000, len(whole))] == [
        whole[len(whole) - count :] for count in (0, 1, 5000, len(whole))
    ]


def test_a_small_write_is_one_buffer() -> None:
    parts: list[Buffer] = [b"a" * 10, b"", memoryview(b"b" * 5000), bytearray(b"c" * 3)]
    assert joined(parts, 5013) == [b"".join(parts)]
