"""Blocks of the journal: what may be one is found anywhere as one would find it by hand, and the index's rows of many
blocks at once are those of each by itself."""

from __future__ import annotations

import random

import numpy
import pytest

from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.journal.encoding.blocks import POSITION_FIELD, extent_rows, places_in, rows_of_blocks, sorted_rows
from mainstem.storage.journal.encoding.format import BLOCK_ALIGNMENT, BLOCK_MAGIC, DIRECTORY_ROW, BlockHeader


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


def block(rng: random.Random, position: int, count: int) -> tuple[BlockHeader, bytes]:
    """A block's header and a buffer that begins with its directory."""
    rows = numpy.zeros(count, DIRECTORY_ROW)
    rows["queue_id"] = [rng.randrange(5) for _ in range(count)]
    rows["base_offset"] = [rng.randrange(1 << 40) for _ in range(count)]
    rows["last_offset_delta"] = [rng.randrange(100) for _ in range(count)]
    rows["length"] = [rng.randrange(61, 5000) for _ in range(count)]
    rows["position"] = numpy.cumsum(rows["length"]) - rows["length"]
    header = BlockHeader(0, 0, 0, 0, 0, 0, 0, 0, position, 0, 0, 0)._replace(batch_count=count)
    return header, rows.tobytes() + b"payload"


@pytest.mark.parametrize("seed", range(5))
def test_many_blocks_at_once_are_as_each_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    blocks = [block(rng, 4096 * (number + 1) * 20, rng.randrange(8)) for number in range(30)]
    together = rows_of_blocks(blocks)
    apart = [extent_rows(header, directory) for header, directory in blocks]
    assert together.tobytes() == b"".join(rows.tobytes() for rows in apart)
    header, directory = blocks[-1]
    first = numpy.frombuffer(directory, DIRECTORY_ROW, header.batch_count)
    assert (apart[-1]["last_offset"] == first["base_offset"] + first["last_offset_delta"]).all()
    assert (apart[-1]["position"] == first["position"] + header.payload_position).all()
    ordered = sorted_rows(apart)
    keys = [(int(row["queue_id"]), int(row["base_offset"])) for row in ordered]
    assert keys == sorted((int(row["queue_id"]), int(row["base_offset"])) for row in together)
    assert sorted(ordered.tolist()) == sorted(together.tolist())


def test_no_block_has_no_rows() -> None:
    assert rows_of_blocks([]).dtype == sorted_rows([]).dtype == EXTENT_ROW
    assert len(rows_of_blocks([])) == len(sorted_rows([])) == 0
