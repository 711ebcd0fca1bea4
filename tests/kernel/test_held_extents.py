"""Extents are taken out of a chunk as far as they are plain: both twins do the same with whatever the bytes are."""

from __future__ import annotations

from types import ModuleType

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import make_batch

from mainstem.kernel import compiled, pure
from mainstem.kernel.pure.held_extents import OFFSET_MAX
from mainstem.storage.extents.extent_format import EXTENT_ROW

TWINS = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])

START = 70_000
"""The position of the chunk in its file."""
ROOM = 1 << 20

Rows = numpy.ndarray[tuple[int], numpy.dtype[numpy.void]]
Taken = tuple[tuple[int, int, int], list[bytes], set[int]]


def chunk_of(shapes: list[list[int]], first: int = 10) -> tuple[bytearray, Rows]:
    """A chunk with extents of batches of so many records, and the rows of these."""
    data = bytearray(b"what another queue has")
    rows = numpy.zeros(len(shapes), EXTENT_ROW)
    offset = first
    for row, counts in zip(rows, shapes, strict=True):
        row["base_offset"], row["position"] = offset, START + len(data)
        extent = bytearray()
        for count in counts:
            extent += make_batch(1, offset, records=count).data
            offset += count
        data += extent
        row["last_offset"], row["length"], row["batch_count"] = offset - 1, len(extent), len(counts)
        row["crc"] = google_crc32c.value(bytes(extent))
    return data + b"and another one", rows


def taken(
    kernel: ModuleType,
    data: bytearray,
    rows: Rows,
    offset: int = 10,
    room: int = ROOM,
    checked: frozenset[int] = frozenset(),
) -> Taken:
    batches: list[memoryview] = []
    known = set(checked)
    found = kernel.take_extents(memoryview(data), START, rows, known, offset, room, batches)
    return found, [bytes(batch) for batch in batches], known


SHAPES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=6)


@TWINS
@given(SHAPES)
def test_all_of_a_plain_chunk_is_taken_batch_by_batch(kernel: ModuleType, shapes: list[list[int]]) -> None:
    data, rows = chunk_of(shapes)
    found, batches, checked = taken(kernel, data, rows)
    size = int(rows["length"].sum())
    assert found == (len(shapes), size, 10 + sum(map(sum, shapes)))
    assert b"".join(batches) == data[22 : 22 + size]
    counts = [count for extent in shapes for count in extent]
    begun = [int.from_bytes(batch[:8], "big") for batch in batches]
    assert begun == [10 + sum(counts[:number]) for number in range(len(counts))]
    assert checked == set(rows["position"].tolist())


@TWINS
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "harm",
    ["record", "base offset", "length", "short", "crc", "gap", "behind", "before", "far", "last", "huge last", "empty"],
)
def test_nothing_is_taken_from_the_first_extent_on_that_is_not_plain(
    kernel: ModuleType, harm: str, number: int
) -> None:
    data, rows = chunk_of([[2, 3], [4, 1], [5, 2]])
    row = rows[number]
    at = int(row["position"]) - START
    match harm:
        case "record":
            data[at + 70] ^= 1
        case "base offset":
            data[at + 7] ^= 1
        case "length":
            data[at + 8] ^= 0x80
        case "short":
            row["length"] -= 1
        case "crc":
            row["crc"] ^= 1
        case "gap":
            row["base_offset"] += 1
        case "behind":
            row["position"] = START + len(data) - 3
        case "before":
            row["position"] = START - 1
        case "far":
            row["position"] = (1 << 64) - 1
        case "last":
            row["last_offset"] += 1
        case "huge last":
            row["last_offset"] = OFFSET_MAX
        case "empty":
            row["length"] = 0
    if harm in ("base offset", "length", "short", "last"):  # whoever wrote it meant it
        row["crc"] = google_crc32c.value(bytes(data[at : at + int(row["length"])]))
    found, batches, checked = taken(kernel, data, rows)
    assert found[0] == number
    assert len(batches) == 2 * number
    assert checked == set(rows["position"][:number].tolist())
    if number:
        assert found[2] == int(rows["last_offset"][number - 1]) + 1


@TWINS
def test_what_is_known_to_be_whole_is_not_checked_again(kernel: ModuleType) -> None:
    data, rows = chunk_of([[2], [3]])
    rows["crc"] ^= 1
    assert taken(kernel, data, rows)[0][0] == 0
    assert taken(kernel, data, rows, checked=frozenset(rows["position"].tolist()))[0][0] == 2


@TWINS
def test_no_more_is_taken_than_there_is_room_for(kernel: ModuleType) -> None:
    data, rows = chunk_of([[2, 2], [3], [4]])
    size = int(rows["length"][:2].sum())
    for room, count in ((size, 2), (size - 1, 1), (size + 1, 2), (0, 0), (-5, 0)):
        assert taken(kernel, data, rows, room=room)[0][0] == count


@TWINS
def test_rows_that_are_none_are_refused(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        kernel.take_extents(memoryview(b""), 0, bytes(65), set(), 0, 1, [])
    assert kernel.take_extents(memoryview(b""), 0, b"", set(), 7, 1, []) == (0, 0, 7)


@given(SHAPES, st.data())
def test_the_twins_agree_on_whatever_the_bytes_are(shapes: list[list[int]], data: st.DataObject) -> None:
    chunk, rows = chunk_of(shapes)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(chunk) - 1))
        chunk[at] = data.draw(st.integers(0, 255))
    raw = bytearray(rows.tobytes())
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    rows = numpy.frombuffer(bytes(raw), EXTENT_ROW)
    if data.draw(st.booleans()):  # whoever wrote it meant it
        rows = rows.copy()
        for row in rows:
            at = int(row["position"]) - START
            if 0 <= at <= len(chunk):
                row["crc"] = google_crc32c.value(bytes(chunk[at : at + int(row["length"])]))
    room = data.draw(st.integers(0, 2000))
    assert taken(pure, chunk, rows, room=room) == taken(compiled, chunk, rows, room=room)
