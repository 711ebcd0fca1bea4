"""Damage on a disk is found though nobody reads it, at a bounded pace, and handed to those who mend it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.storage.small_node import SmallNode, simulated

from mainstem.errors import ConfigError
from mainstem.storage.config import StorageConfig
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    offset_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.queue_store.manifest.copy_on_disk.copied_manifest import copy_faults, read_copy
from mainstem.storage.queue_store.manifest.database.manifest_database import Database
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.upkeep.maintenance import SCRUB_SECONDS
from mainstem.storage.upkeep.scrub_record import FULL, NAME, ScrubRecord
from mainstem.storage.upkeep.scrubbing import SAVE_SECONDS

INTERVAL_SECONDS = 60.0
LONG_SECONDS = 240.0
"""An interval in which the scrubber writes down now and then how far it has come."""
BLOCKS = 40
"""Some segments full."""
FLIPPED = BLOCK_HEADER_BYTES + DIRECTORY_ROW_BYTES + 100
"""Byte of a block that goes bad: in a batch, which no walk over the journal looks at."""


def scrubbing(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(node.config, scrub_interval_seconds=INTERVAL_SECONDS)


def scrubbing_slowly(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(node.config, scrub_interval_seconds=LONG_SECONDS)


def never(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(node.config, scrub_interval_seconds=0.0)


async def a_round(node: SmallNode) -> None:
    """Every file has been read once."""
    await asyncio.sleep(INTERVAL_SECONDS + 2 * SCRUB_SECONDS)


def flip(node: SmallNode, position: int) -> None:
    path, at = f"journal/{segment_name(sequence_of(position))}", offset_of(position)
    node.disk1.flip(path, 8 * at)


async def sealed_block(node: SmallNode) -> int:
    await node.fill(BLOCKS)
    await node.rounds()
    return node.storage.groups[0].blocks.last_index() - BLOCKS + 4


def test_a_block_that_nobody_reads_is_found_and_named(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        index = await sealed_block(node)
        flip(node, node.storage.groups[0].blocks.position_of(index) + FLIPPED)
        assert not node.storage.damage.waiting()
        await a_round(node)
        assert [damaged.place.index for damaged in node.storage.damage.waiting()] == [index]
        assert node.storage.scrubber.findings == {"journal": 1, "runs": 0, "copy": 0}

    simulated(tmp_path, story, scrubbing)


def test_a_block_is_looked_at_again_in_the_next_interval(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        index = await sealed_block(node)
        await a_round(node)
        sealed = sum(segment.sealed for segment in node.storage.journal.segments())
        assert node.storage.scrubber.read_files["journal"] >= sealed
        assert not node.storage.damage.waiting()
        flip(node, node.storage.groups[0].blocks.position_of(index) + FLIPPED)
        await a_round(node)
        assert len(node.storage.damage.waiting()) == 1

    simulated(tmp_path, story, scrubbing)


@pytest.mark.parametrize("harm", ["batch", "index", "gone"])
def test_a_run_that_nobody_reads_is_found_and_named(tmp_path: Path, harm: str) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(BLOCKS)
        assert await node.split() == ["committed"]
        (path,) = [path for path in node.disk2.paths() if path.endswith(".run")]
        content = node.disk2.content(path)
        if harm == "gone":
            await node.disk2.remove(path)
        else:
            node.disk2.flip(path, 8 * (200 if harm == "batch" else len(content) - 100))
        assert not node.storage.queue_store.damaged.all()
        await a_round(node)
        assert [damage.name for damage in node.storage.queue_store.damaged.all()] == [path.rpartition("/")[2]]
        assert node.storage.scrubber.findings["runs"] == 1

    simulated(tmp_path, story, scrubbing)


@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_a_copy_of_the_manifest_that_nobody_reads_is_found_and_written_anew(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(node: SmallNode) -> None:
        for _split in range(2):
            await node.fill(BLOCKS)
            assert await node.split() == ["committed"]
        path = min(path for path in node.disk2.paths() if path.startswith(COPY_DIRECTORY))
        if harm == "gone":
            await node.disk2.remove(path)
        else:
            node.disk2.flip(path, 8 * 100)
        await a_round(node)
        assert node.storage.scrubber.findings["copy"] == 1
        assert (path if harm == "flipped" else "changes 1 to 2 are not all there") in caplog.text
        await node.storage.queue_store.copy.renew()  # as retention has it do
        manifest = node.storage.queue_store.manifest
        assert manifest.identity is not None
        contents = Database(str(node.manifest_path)).read()
        assert await copy_faults(node.disk2, manifest.identity, contents, manifest.changes) == []
        copied, _faults = await read_copy(node.disk2, manifest.identity)
        assert copied is not None
        assert copied.contents.ranges == contents.ranges
        await a_round(node)
        assert node.storage.scrubber.findings["copy"] == 1

    simulated(tmp_path, story, scrubbing)


def test_nothing_is_read_where_it_is_turned_off(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await sealed_block(node)
        await a_round(node)
        assert not any(node.storage.scrubber.read_bytes.values())

    simulated(tmp_path, story, never)


def test_it_reads_no_faster_than_configured(tmp_path: Path) -> None:
    def slowly(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(
            node.config, scrub_interval_seconds=INTERVAL_SECONDS, scrub_bytes_per_second=100
        )

    async def story(node: SmallNode) -> None:
        await sealed_block(node)
        began = node.clock.monotonic()
        await a_round(node)
        took = node.clock.monotonic() - began
        read = sum(node.storage.scrubber.read_bytes.values())
        assert 0 < read <= 100 * (took + 2 * SCRUB_SECONDS) + 2000, "some blocks, no more than there was time for"
        assert samples(node)["mainstem_scrub_overdue_seconds"] > 0, "it does not come round in time, and says so"

    simulated(tmp_path, story, slowly)


def samples(node: SmallNode) -> dict[str, float]:
    return {sample.name: sample.value for sample in node.storage.scrubber.samples()}


async def damaged_blocks(node: SmallNode) -> list[int]:
    """One block of each sealed segment goes bad; their indexes."""
    await node.fill(200, size=500)
    await node.rounds()
    blocks = node.storage.groups[0].blocks
    harmed = []
    for segment in node.storage.journal.segments():
        indexes = [index for index in blocks.indexes_between(segment.first, segment.end) if segment.sealed]
        if indexes:
            flip(node, blocks.position_of(indexes[-1]) + FLIPPED)
            harmed.append(indexes[-1])
    return harmed


async def lives(node: SmallNode, count: int, seconds: float) -> set[int]:
    """The node is started so many times, and lives so long each time. The blocks that it found damaged."""
    found: set[int] = set()
    for _ in range(count):
        await asyncio.sleep(seconds)
        found.update(damaged.place.index for damaged in node.storage.damage.waiting())
        await node.restart()
    return found


def test_a_node_that_restarts_often_comes_round_all_the_same(tmp_path: Path) -> None:
    """It lives for a sixth of an interval, and goes on behind that after its restart."""

    async def story(node: SmallNode) -> None:
        harmed = await damaged_blocks(node)
        assert len(harmed) > 5
        found = await lives(node, 8, LONG_SECONDS / 6)
        assert found == set(harmed)
        assert samples(node)["mainstem_scrub_last_pass_seconds"] == 0, "no round of this start has looked at the record"
        await asyncio.sleep(2 * SCRUB_SECONDS)
        assert samples(node)["mainstem_scrub_last_pass_seconds"] > 0
        assert 0 < samples(node)["mainstem_scrub_position"] < 1

    simulated(tmp_path, story, scrubbing_slowly)


def test_what_fell_due_while_the_node_was_down_is_read_at_its_return(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        harmed = await damaged_blocks(node)
        await asyncio.sleep(2 * SCRUB_SECONDS)
        await node.storage.close()
        await asyncio.sleep(INTERVAL_SECONDS)
        await node.start()
        await asyncio.sleep(2 * SCRUB_SECONDS)
        assert {damaged.place.index for damaged in node.storage.damage.waiting()} == set(harmed)
        assert samples(node)["mainstem_scrub_last_pass_seconds"] > 0

    simulated(tmp_path, story, scrubbing)


@pytest.mark.parametrize("harm", ["flipped", "cut", "zeroed", "unreadable"])
def test_a_record_that_cannot_be_read_has_it_begin_anew(tmp_path: Path, harm: str) -> None:
    async def story(node: SmallNode) -> None:
        harmed = await damaged_blocks(node)
        await a_round(node)
        await node.storage.close()
        record = node.disk1.content(NAME)
        match harm:
            case "flipped":
                node.disk1.flip(NAME, 8 * 30)
            case "cut":
                node.disk1.put(NAME, record[:-1])
            case "zeroed":
                node.disk1.put(NAME, bytes(len(record)))
            case "unreadable":
                node.disk1.fail("read", path=NAME)
        await node.start()
        await asyncio.sleep(2 * SCRUB_SECONDS)
        assert samples(node)["mainstem_scrub_last_pass_seconds"] == 0
        await a_round(node)
        assert {damaged.place.index for damaged in node.storage.damage.waiting()} == set(harmed)
        assert samples(node)["mainstem_scrub_last_pass_seconds"] > 0

    simulated(tmp_path, story, scrubbing)


def test_a_record_that_cannot_be_written_keeps_it_from_nothing(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        for _ in range(100):
            node.disk1.fail("write", path=NAME)
        harmed = await damaged_blocks(node)
        await a_round(node)
        assert {damaged.place.index for damaged in node.storage.damage.waiting()} == set(harmed)
        assert samples(node)["mainstem_scrub_last_pass_seconds"] > 0

    simulated(tmp_path, story, scrubbing)


def test_a_clock_that_is_set_back_keeps_it_from_nothing(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await damaged_blocks(node)
        await a_round(node)
        await node.storage.close()
        record = ScrubRecord.unpack(node.disk1.content(NAME))
        assert record is not None
        later = record._replace(began_ms=record.began_ms + 10 * int(INTERVAL_SECONDS) * 1000, position=FULL // 2)
        node.disk1.put(NAME, later.pack())
        await node.start()
        await asyncio.sleep(INTERVAL_SECONDS / 2 + 2 * SCRUB_SECONDS)
        assert samples(node)["mainstem_scrub_last_pass_seconds"] > record.last_ended_ms / 1000

    simulated(tmp_path, story, scrubbing)


def test_the_record_is_written_seldom(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await damaged_blocks(node)
        written = set()
        for _ in range(int(LONG_SECONDS)):
            await asyncio.sleep(1.0)
            if NAME in node.disk1.paths():
                written.add(node.disk1.content(NAME))
        assert 2 < len(written) <= LONG_SECONDS / SAVE_SECONDS + 2, "when it begins, when it ends, and in between"
        assert node.storage.scrubber.read_files["journal"] > len(written)

    simulated(tmp_path, story, scrubbing_slowly)


def test_intervals_and_paces_that_make_no_sense_are_refused() -> None:
    for key in ("scrub_interval_seconds", "scrub_bytes_per_second"):
        with pytest.raises(ConfigError, match=key):
            StorageConfig(**{key: -1}).validate()
