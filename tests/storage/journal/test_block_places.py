"""What lies anywhere in a piece of the journal and may be a block, found as one would find it by hand."""

from __future__ import annotations

import random

import pytest

from mainstem.storage.journal.blocks import POSITION_FIELD, places_in
from mainstem.storage.journal.format import BLOCK_ALIGNMENT, BLOCK_MAGIC


def by_hand(piece: bytes, position: int) -> list[int]:
    found = []
    for offset in range(0, len(piece) - POSITION_FIELD - BLOCK_ALIGNMENT + 1, BLOCK_ALIGNMENT):
        magic = int.from_bytes(piece[offset : offset + 4], "little")
        own = int.from_bytes(piece[offset + POSITION_FIELD : offset + POSITION_FIELD + 8], "little")
        if magic == BLOCK_MAGIC and own == position + offset:
            found.append(offset)
    return found


@pytest.mark.parametrize("size", [0, 8, POSITION_FIELD, POSITION_FIELD + 7, POSITION_FIELD + 8, 96, 101, 4096])
def test_a_place_has_the_magic_and_names_itself(size: int) -> None:
    rng = random.Random(size)
    seen = 0
    for _ in range(50):
        piece = bytearray(rng.randbytes(size))
        position = BLOCK_ALIGNMENT * rng.randrange(1 << 58)
        for _ in range(rng.randrange(8)):
            offset = BLOCK_ALIGNMENT * rng.randrange(max(1, size // BLOCK_ALIGNMENT))
            for field, value, length in ((0, BLOCK_MAGIC, 4), (POSITION_FIELD, position + offset, 8)):
                if rng.random() < 0.8 and offset + field + length <= size:  # one of the two alone is no place
                    piece[offset + field : offset + field + length] = value.to_bytes(length, "little")
        expected = by_hand(bytes(piece), position)
        assert places_in(bytes(piece), position) == expected
        seen += len(expected)
    assert bool(seen) == (size >= POSITION_FIELD + BLOCK_ALIGNMENT), "the pieces have places wherever one fits"
