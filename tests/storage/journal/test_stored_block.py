"""Every bit of a payload counts, in data blocks and others, and a block that was cut short is found."""

from __future__ import annotations

import pytest
from tests.storage.journal.sample_blocks import command_block, data_block

from mainstem.storage.journal.encoding.format import BlockHeader
from mainstem.storage.journal.encoding.framing import BlockToWrite, frame
from mainstem.storage.journal.stored_block import payload_fault

BLOCKS = {
    "data": data_block(3, sizes=(61, 200, 90)),
    "command": command_block(4),
}


def written(block: BlockToWrite) -> tuple[BlockHeader, bytes]:
    header, _ = frame(block, 4096, 0, 0)
    return header, b"".join(block.payload)


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_was_written_has_no_fault(kind: str) -> None:
    header, payload = written(BLOCKS[kind])
    assert payload_fault(header, BLOCKS[kind].directory, payload) is None


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_flipped_bit_is_found(kind: str) -> None:
    header, payload = written(BLOCKS[kind])
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        assert payload_fault(header, BLOCKS[kind].directory, bytes(damaged)) is not None, f"bit {bit}"


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_payload_that_was_cut_short_is_found(kind: str) -> None:
    header, payload = written(BLOCKS[kind])
    fault = payload_fault(header, BLOCKS[kind].directory, payload[:-1])
    assert fault is not None
    assert f"{len(payload) - 1} of {len(payload)}" in fault
