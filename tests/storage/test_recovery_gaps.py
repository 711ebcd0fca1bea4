"""A journal whose checkpoint knows dead blocks: what is missing in the middle is never taken for one of them.

A block that a log dropped while it was being written leaves a gap in what a start finds of the log. Any other gap is a
loss, and nothing may be served as if it were none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.files import SimulatedFiles
from tests.storage.small_node import SmallNode, simulated

from mainstem.storage.errors import CorruptJournal
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    FIRST_BLOCK,
    KIND_NO_OP,
    BlockHeader,
    offset_of,
    position_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.encoding.framing import BlockToWrite

BLOCKS = 24
"""Behind the checkpoint, over two segments and more."""


async def with_dead_blocks(node: SmallNode) -> None:
    """A checkpoint that knows of dead blocks, wherever they were."""
    await node.fill(3)
    oldest = node.storage.journal.segments()[0].sequence
    node.storage.state.journal_map.dead.add(position_of(oldest, FIRST_BLOCK + 8))
    await node.storage.checkpointer.save()


def erased(content: bytes, start: int, end: int) -> bytes:
    return content[:start] + bytes(end - start) + content[end:]


def header_torn(content: bytes, start: int, end: int) -> bytes:
    return erased(content, start + BLOCK_HEADER_BYTES // 2, start + BLOCK_HEADER_BYTES)


@pytest.mark.parametrize("damage", [erased, header_torn])
def test_a_block_lost_in_the_middle_is_refused_by_name_wherever_it_was(
    tmp_path: Path, damage: Callable[[bytes, int, int], bytes]
) -> None:
    async def story(node: SmallNode) -> None:
        await with_dead_blocks(node)
        await node.fill(BLOCKS)
        blocks = node.storage.groups[0].blocks
        last = node.storage.groups[0].last_index
        places = {index: blocks.position_of(index) for index in range(last - BLOCKS + 1, last + 1)}
        await node.crash()
        for index in range(last - BLOCKS + 1, last):
            start, end = places[index], places[index + 1]
            path = "journal/" + segment_name(sequence_of(start))
            whole = node.disk1.content(path)
            length = end - start if sequence_of(end) == sequence_of(start) else BLOCK_HEADER_BYTES
            node.disk1.put(path, damage(whole, offset_of(start), offset_of(start) + length))
            with pytest.raises(CorruptJournal, match=segment_name(sequence_of(start))):
                await node.start()
            node.disk1.put(path, whole)
        await node.start()
        assert await node.read_offsets() == list(range(3 + BLOCKS)), "what was refused was left as it was"

    simulated(tmp_path, story)


async def put_beyond_a_gap(node: SmallNode) -> BlockHeader:
    """Have the journal hold a block of the node's group whose predecessors it never held."""
    group = node.storage.groups[0]
    (header,) = await node.storage.journal.write(
        [BlockToWrite(KIND_NO_OP, 0, group.term, group.last_index + 3, b"", 0, (), 1)]
    )
    return header


def test_a_block_dropped_while_it_was_written_is_dead(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await with_dead_blocks(node)
        last = node.storage.groups[0].last_index
        header = await put_beyond_a_gap(node)
        await node.fill(2)
        await node.crash()
        await node.start()
        assert header.position in node.storage.state.journal_map.dead
        assert node.storage.groups[0].last_index >= last + 2
        assert await node.read_offsets() == list(range(5))

    simulated(tmp_path, story)


@pytest.mark.parametrize("known", [True, False], ids=["in the checkpoint's map", "no dead blocks"])
def test_a_gap_that_no_dropped_block_explains_is_refused(tmp_path: Path, known: bool) -> None:
    """Either the checkpoint knows the block, and would know it to be dead, or it knows of nothing that was dropped."""

    async def story(node: SmallNode) -> None:
        if known:
            await with_dead_blocks(node)
        else:
            await node.fill(3)
        header = await put_beyond_a_gap(node)
        if known:
            node.storage.state.journal_map.add(header)
            await node.storage.checkpointer.save()
        await node.crash()
        before = {path: node.disk1.content(path) for path in node.disk1.paths() if path.startswith("journal/")}
        with pytest.raises(CorruptJournal, match=r"block \d+, but block \d+ was expected.*replace the node"):
            await node.start()
        assert {path: node.disk1.content(path) for path in before} == before
        node.disk1, node.disk2 = SimulatedFiles(3), SimulatedFiles(4)
        node.manifest_path = tmp_path / "another.sqlite"
        await node.start()

    simulated(tmp_path, story)
