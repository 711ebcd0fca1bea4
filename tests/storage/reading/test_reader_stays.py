"""A reader of many queues stays in the file where its last response ended: what the disk reads once for it, and how
long the others of its queues wait at most."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.simulation.merger import Mergers
from tests.storage.reading.plan_reader import (
    AHEAD_CHUNKS,
    CHUNK_BYTES,
    DISK_BYTES,
    Merging,
    Reader,
    prepare,
    publish,
    read_so_far,
)
from tests.storage.small_node import QUEUE, SmallNode, simulated, topic

from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.reading.plan_reads import TOGETHER_MIN
from mainstem.storage.reading.reader_stays import READERS_MAX, STAY_RESPONSES_MAX, ReaderStays
from mainstem.storage.store_files.store_file import FileKind, kind_of

QUEUES = 24
"""So many that a reader of nearly all of them is none of few."""
RESPONSE_BYTES = 6 * CHUNK_BYTES
"""Half of what is published of the queues of one write group, and more than the cache keeps for long."""
ROUNDS = 45


def prepare_small_cache(node: SmallNode) -> None:
    """A cache in which what one response takes of a disk is gone when the responses from two more files have come."""
    prepare(node)
    node.topics = [topic(1, QUEUES)]
    node.store_config = msgspec.structs.replace(node.store_config, read_cache_bytes=2 * RESPONSE_BYTES)


async def merged(node: SmallNode) -> None:
    """One packed file for each write group has everything."""
    mergers = Mergers(Merging(node.storage, node.storage, node.disk2, str(node.manifest_path)), random.Random(1))
    mergers.lines = MergeLines(500 << 10, 500 << 10, 200 << 20, 400 << 20, 200 << 20)
    await publish(node, ROUNDS, range(QUEUES))
    await node.split()
    while await mergers.merge(well_behaved=True, drain=True):
        pass
    await publish(node, 150, [0])  # so that the journal's segments before can go
    await node.split()
    await node.rounds(6)
    kinds = [kind_of(name) for name in node.storage.queue_store.manifest.files]
    assert kinds.count(FileKind.PACKED) == node.groups, f"{kinds}"


def played(tmp_path: Path, story: Callable[[SmallNode], Awaitable[None]]) -> None:
    async def with_merged(node: SmallNode) -> None:
        await merged(node)
        await node.storage.queue_store.cache.close()  # nothing of that is in memory any more
        await story(node)

    simulated(tmp_path, with_merged, prepare_small_cache)


def group_of(node: SmallNode, partition: int) -> int:
    return node.storage.read_path.placement.history(QUEUE + partition)[0].group


def test_the_disk_reads_once_what_a_reader_of_many_queues_reads_in_several_responses(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        reader = Reader(node, range(1, QUEUES), bytes_max=RESPONSE_BYTES, connection=1)
        before, responses = read_so_far(node, DISK_BYTES), 0
        while not all(offset == ROUNDS for offset in reader.offsets.values()):
            assert await reader.fetch()
            responses += 1
        came = sum(len(batch) for batches in reader.found.values() for batch in batches)
        assert responses > 2 * node.groups
        # the first chunk of each file has another queue as well, and the last its index
        assert read_so_far(node, DISK_BYTES) - before < came + node.groups * CHUNK_BYTES

    played(tmp_path, story)


def test_a_partition_has_its_turn_however_much_there_is_where_its_reader_stays(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        first = 1
        others = [other for other in range(first + 1, QUEUES) if group_of(node, other) != group_of(node, first)]
        # room for five partitions with a batch each, and for no sixth
        reader = Reader(node, [first, *others], bytes_max=11_500, connection=1)
        assert len(reader.offsets) >= TOGETHER_MIN
        turns = []
        for _ in range(2 * (STAY_RESPONSES_MAX + 1) + 1):
            before = reader.offsets[first]
            assert await reader.fetch(partition_bytes=2_300)
            turns.append(reader.offsets[first] > before)
        assert "".join("x" if turn else "." for turn in turns) == "x" + ("." * STAY_RESPONSES_MAX + "x") * 2

    played(tmp_path, story)


def test_nobody_is_read_ahead_of_past_the_last_of_its_queues(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        together = [other for other in range(1, QUEUES) if group_of(node, other) == group_of(node, 1)]
        mine = together[: len(together) // 2]
        reader = Reader(node, mine, bytes_max=CHUNK_BYTES, connection=1)
        before = read_so_far(node, DISK_BYTES)
        while not all(offset == ROUNDS for offset in reader.offsets.values()):
            assert await reader.fetch()
        await node.rounds(1)
        assert read_so_far(node, AHEAD_CHUNKS) > 0
        came = sum(len(batch) for batches in reader.found.values() for batch in batches)
        assert read_so_far(node, DISK_BYTES) - before <= came + 2 * CHUNK_BYTES

    played(tmp_path, story)


@pytest.mark.parametrize("connection", [0, 1])
def test_a_reader_without_a_connection_is_not_remembered(connection: int) -> None:
    stays = ReaderStays()
    assert (stays.of(connection) is stays.of(connection)) == (connection != 0)


def test_readers_that_are_remembered_are_bounded() -> None:
    stays = ReaderStays()
    first = stays.of(1)
    for reader in range(2, READERS_MAX + 1):
        stays.of(reader)
    assert stays.of(1) is first
    stays.of(READERS_MAX + 1)
    stays.of(READERS_MAX + 2)
    assert stays.of(1) is first  # used last but two
    for reader in range(2, READERS_MAX + 2):
        stays.of(reader)
    assert stays.of(1) is not first
