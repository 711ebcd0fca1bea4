"""Rows of a segment's index: of many blocks at once as of each by itself."""

from __future__ import annotations

import random

import numpy
import pytest

from mainstem.storage.extents.format import EXTENT_ROW
from mainstem.storage.journal.blocks import extent_rows, rows_of_blocks, sorted_rows
from mainstem.storage.journal.format import DIRECTORY_ROW, BlockHeader


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
