"""Extents are gathered as they are or found out, and their batches found: both twins, whatever the bytes are."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import make_batch

from mainstem.kernel import compiled, pure
from mainstem.kernel.pure.extent_moves import WALK_FIELDS

TWINS = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])

Column = Callable[[list[int]], memoryview]


def column(values: list[int]) -> memoryview:
    return memoryview(array("q", values))


@TWINS
@given(source=st.binary(min_size=1, max_size=5000), data=st.data())
def test_pieces_are_gathered_in_the_order_given(kernel: ModuleType, source: bytes, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, len(source)), max_size=8))
    lengths = [data.draw(st.integers(0, len(source) - start)) for start in starts]
    pieces = [source[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    checksums = [google_crc32c.value(piece) for piece in pieces]
    target = bytearray(sum(lengths))
    assert kernel.gather_extents(source, column(starts), column(lengths), column(checksums), target) == -1
    assert bytes(target) == b"".join(pieces)
    filled = [number for number, length in enumerate(lengths) if length]
    if not filled:
        return
    number = data.draw(st.sampled_from(filled))
    checksums[number] ^= 1 << data.draw(st.integers(0, 31))
    assert kernel.gather_extents(source, column(starts), column(lengths), column(checksums), target) == number


@TWINS
@pytest.mark.parametrize(
    ("starts", "lengths", "size"),
    [([-1], [2], 2), ([9], [2], 2), ([0], [-1], 0), ([1 << 62], [1 << 62], 0), ([0], [2], 3), ([0, 1], [1], 1)],
)
def test_pieces_outside_of_the_source_or_the_target_are_refused(
    kernel: ModuleType, starts: list[int], lengths: list[int], size: int
) -> None:
    with pytest.raises(ValueError):
        kernel.gather_extents(bytes(10), column(starts), column(lengths), column([0] * len(starts)), bytearray(size))


@TWINS
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 9), st.integers(61, 300)), max_size=6), st.data())
def test_batches_are_found_and_what_is_none_is_named(
    kernel: ModuleType, shapes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    batches = [
        make_batch(1, offset, records=records, size=size, timestamp=offset % 1000 - 1, epoch=size)
        for offset, records, size in shapes
    ]
    content = b"".join(batch.data for batch in batches)
    rows = array("q", bytes(8 * WALK_FIELDS * len(batches)))
    assert kernel.walk_batches(content, rows) == len(batches)
    position = 0
    for number, batch in enumerate(batches):
        assert rows[number * WALK_FIELDS : (number + 1) * WALK_FIELDS].tolist() == [
            position,
            len(batch.data),
            batch.base_offset,
            batch.last_offset,
            batch.max_timestamp,
            batch.last_offset - batch.base_offset + 1,
            batch.leader_epoch,
        ]
        position += len(batch.data)
    if not batches:
        return
    last = position - len(batches[-1].data)
    assert kernel.walk_batches(content, rows[WALK_FIELDS:]) == -1 - last, "no room for the last"
    cut = data.draw(st.integers(last + 1, position - 1))
    assert kernel.walk_batches(content[:cut], rows) == -1 - last
    for at, value in ((8, b"\xff\xff\xff\xff"), (8, b"\x7f\xff\xff\xff"), (8, b"\0\0\0\0"), (23, b"\xff\xff\xff\xff")):
        damaged = bytearray(content)
        damaged[last + at : last + at + 4] = value
        assert kernel.walk_batches(damaged, rows) == -1 - last
    with pytest.raises(ValueError):
        kernel.walk_batches(content, rows[1:])


@TWINS
@given(pieces=st.lists(st.binary(max_size=300), max_size=8), before=st.binary(max_size=9))
def test_each_piece_gets_its_checksum(kernel: ModuleType, pieces: list[bytes], before: bytes) -> None:
    checksums = array("q", bytes(8 * len(pieces)))
    lengths = [len(piece) for piece in pieces]
    kernel.checksum_pieces(b"".join(pieces), column(lengths), checksums, google_crc32c.value(before))
    expected = [google_crc32c.value(before + pieces[0]), *map(google_crc32c.value, pieces[1:])] if pieces else []
    assert checksums.tolist() == expected


@TWINS
@pytest.mark.parametrize(
    ("lengths", "room"), [([3], 1), ([5], 1), ([5, -1], 2), ([4], 2), ([4, 1], 1), ([1 << 62] * 4, 4)]
)
def test_pieces_that_do_not_make_up_the_buffer_are_refused(kernel: ModuleType, lengths: list[int], room: int) -> None:
    with pytest.raises(ValueError):
        kernel.checksum_pieces(bytes(4), column(lengths), array("q", bytes(8 * room)))
