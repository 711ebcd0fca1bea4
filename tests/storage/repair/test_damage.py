"""A block that goes bad on disk 1 before it is split costs its own write group's split at the most, and only until it
is put right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.kernel import crc32c
from mainstem.model import Outcome
from mainstem.pipeline.errors import SliceDamaged
from mainstem.rpc.messages.blocks import FetchedBlock
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    KIND_NO_OP,
    offset_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.mending.block_repair import Twin
from mainstem.storage.queue_store.copies.file_mending import MissingOffsets
from mainstem.storage.read_cache.read_cache import ReadCache
from mainstem.storage.repair.file_repair import behind
from mainstem.storage.repair.journal_damage import fetch_twin
from mainstem.storage.upkeep.maintenance import DAMAGE_SECONDS

BLOCKS = 12
"""Of each write group: over two segments and more."""

PARTS = {
    "payload": BLOCK_HEADER_BYTES + DIRECTORY_ROW_BYTES + 100,
    "directory": BLOCK_HEADER_BYTES + 3,
    "length": 17,
    "group": 24,
    "index": 56,
    "magic": 0,
}
"""Byte of a block that goes bad."""


def two_groups(node: SmallNode) -> None:
    node.groups = 2
    node.topics = [topic(partitions=8)]


def queue_of(node: SmallNode, group: int) -> int:
    return next(queue for queue in range(QUEUE, QUEUE + 8) if node.storage.group_of(queue) == group)


async def split_as_splitters_do(node: SmallNode) -> bool:
    """Whether something was split; what is damaged is told to the node, and the next splitter tries again."""
    try:
        return set(await node.split()) == {"committed"}
    except SliceDamaged as error:
        await node.storage.split_log.damaged(error.position)
        return False


def gauge(node: SmallNode, group: int) -> float:
    return next(
        sample.value for sample in node.storage.damage.samples()
        if sample.name == "mainstem_journal_damaged_blocks" and sample.labels == (("group", str(group)),)
    )  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("moved", [False, True], ids=["in place", "another file"])
def test_only_the_write_group_of_a_damaged_block_waits_and_goes_on_when_it_is_put_right(
    tmp_path: Path, part: str, moved: bool
) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = queue_of(node, 0), queue_of(node, 1)
        for _ in range(BLOCKS):
            await node.fill(1, bad)
            await node.fill(1, good)
        await node.rounds()
        blocks = node.storage.groups[0].blocks
        index = blocks.last_index() - BLOCKS + 4
        place = blocks.position_of(index)
        path = "journal/" + segment_name(sequence_of(place))
        whole = node.disk1.content(path)
        at = offset_of(place) + PARTS[part]
        node.disk1.put(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert not await split_as_splitters_do(node)
        for _ in range(2):
            await split_as_splitters_do(node)  # who plans anew plans around it
        split = {group.group: group.split for group in node.storage.split_log.positions()}
        assert split[1] == node.storage.groups[1].last_index, "the other group is split to its end"
        assert split[0] == index - 1
        (waits,) = node.storage.split_log.waiting_for()
        assert (waits.group, waits.index) == (0, index)
        assert segment_name(sequence_of(place)) in waits.fault
        assert (gauge(node, 0), gauge(node, 1)) == (1, 0)
        await node.fill(2, good)
        assert await split_as_splitters_do(node)
        assert node.storage.manifest.reached(1) == node.storage.groups[1].last_index
        if moved:
            await node.disk1.remove(path)
        node.disk1.put(path, whole)
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        assert not node.storage.split_log.waiting_for()
        assert gauge(node, 0) == 0
        assert await split_as_splitters_do(node)
        assert node.storage.manifest.reached(0) == node.storage.groups[0].last_index
        await node.rounds(6)
        assert await node.read_offsets(bad) == list(range(BLOCKS))
        assert await node.read_offsets(good) == list(range(BLOCKS + 2))

    simulated(tmp_path, story, two_groups)


def test_what_a_reader_meets_is_looked_at_before_it_is_split(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(BLOCKS)
        await node.rounds()
        blocks = node.storage.groups[0].blocks
        index = blocks.last_index() - BLOCKS + 4
        place = blocks.position_of(index)
        path, at = "journal/" + segment_name(sequence_of(place)), offset_of(place) + PARTS["payload"]
        whole = node.disk1.content(path)
        node.disk1.put(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert (await node.read(3)).outcome is Outcome.STORAGE_FAILED
        assert (await node.read(4)).outcome is Outcome.OK, "the others are served"
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        assert [damaged.place.index for damaged in node.storage.damage.waiting()] == [index]
        node.disk1.put(path, whole)
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        assert await node.read_offsets() == list(range(BLOCKS))

    simulated(tmp_path, story)


def test_a_split_waits_before_the_first_of_several_damaged_blocks_and_each_is_known_since_it_was_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    forget = ReadCache.forget

    def noted(cache: ReadCache, name: str) -> None:
        forgotten.append(name)
        forget(cache, name)

    monkeypatch.setattr(ReadCache, "forget", noted)

    async def story(node: SmallNode) -> None:
        await node.fill(BLOCKS)
        blocks, damage = node.storage.groups[0].blocks, node.storage.damage
        first, second = blocks.last_index() - 8, blocks.last_index() - 4
        left: dict[str, bytes] = {}
        for index in (second, first):
            path = f"journal/{segment_name(sequence_of(blocks.position_of(index)))}"
            left.setdefault(path, node.disk1.content(path))
        await node.restart()  # memory has the blocks no more
        blocks, damage = node.storage.groups[0].blocks, node.storage.damage
        since = {}
        for index in (second, first):
            position = blocks.position_of(index)
            path = f"journal/{segment_name(sequence_of(position))}"
            node.disk1.flip(path, 8 * (offset_of(position) + PARTS["payload"]))
            assert not await damage.met(position)
            since[index] = damage.waiting()[0].since_ms if index == first else damage.waiting()[-1].since_ms
            await asyncio.sleep(3 * DAMAGE_SECONDS)
        assert damage.sound_before(0) == first - 1
        assert {damaged.place.index: damaged.since_ms for damaged in damage.waiting()} == since
        forgotten.clear()
        for path, whole in left.items():
            node.disk1.put(path, whole)
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        assert damage.sound_before(0) is None
        names = {segment_name(sequence_of(blocks.position_of(index))) for index in (first, second)}
        assert set(forgotten) == names, "readers would meet what is cached of them"

    simulated(tmp_path, story)


class Answers:
    """Other nodes that give one block."""

    def __init__(self, message: FetchedBlock, content: bytes) -> None:
        self._reply = Reply(message, [content])

    async def call(self, node_id: int, method: Any, request: Any, *, timeout_seconds: float) -> Reply[Any]:
        return self._reply


def test_a_block_that_arrives_with_other_bytes_is_not_taken() -> None:
    async def fetched(crc: int) -> object:
        answers: Any = Answers(FetchedBlock(KIND_NO_OP, 0, 0, crc, 3), b"content")
        return await fetch_twin(answers, 2, 0, 3, 7)

    whole = asyncio.run(fetched(crc32c(b"content")))
    assert whole == (3, Twin(KIND_NO_OP, 0, 0, b"", b"content"))
    assert asyncio.run(fetched(crc32c(b"content") ^ 1)) is None


def test_batches_that_a_replica_gives_follow_each_other() -> None:
    two = bytes(new_batch(QUEUE, records=2).data)
    assert behind(two, MissingOffsets(QUEUE, 0, 5), 0) == 2
    assert behind(two, MissingOffsets(QUEUE, 1, 5), 1) == 2, "the first may reach back before what is lost"
    with pytest.raises(StorageError, match="came twice"):
        behind(two, MissingOffsets(QUEUE, 0, 5), 1)
    with pytest.raises(StorageError, match="came where 2 is next"):
        behind(two, MissingOffsets(QUEUE, 0, 5), 2)
    later = (3).to_bytes(8, "big") + two[8:]
    with pytest.raises(StorageError, match="offsets 3 to 4 came where 1 is next"):
        behind(later, MissingOffsets(QUEUE, 0, 5), 1)
    assert behind(later, MissingOffsets(QUEUE, 0, 5), 1, gaps=True) == 5
    for lost, position in (
        (MissingOffsets(QUEUE, 0, 3), 0),
        (MissingOffsets(QUEUE, 0, 9), 5),
        (MissingOffsets(QUEUE, 0, 9), 4),
    ):
        with pytest.raises(StorageError, match="came"):
            behind(later, lost, position, gaps=True)
