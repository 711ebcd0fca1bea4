"""Lookups against a plain search, and what is refused when an index is loaded."""

from __future__ import annotations

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import extent_rows

from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import RUN_MAGIC, FileFrame
from mainstem.storage.extents.extent_index import ExtentIndex


@st.composite
def sorted_rows(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    rows = []
    for queue_id in sorted(draw(st.sets(st.sampled_from([0, 1, 7, 1 << 32, 2**63 + 1, 2**64 - 1]), max_size=5))):
        offset = draw(st.integers(0, 50))
        for _ in range(draw(st.integers(1, 6))):
            count = draw(st.integers(1, 5))
            rows.append((queue_id, offset, offset + count - 1, 0, 1))
            offset += count + draw(st.sampled_from([0, 0, 3]))
    return rows


@given(sorted_rows(), st.sampled_from([0, 1, 2, 7, 1 << 32, 2**63 + 1, 2**64 - 1]), st.integers(0, 100))
def test_find_is_the_extent_with_the_offset_or_the_next(
    rows: list[tuple[int, int, int, int, int]], queue_id: int, offset: int
) -> None:
    index = ExtentIndex(extent_rows(*rows), "test")
    expected = [place for place, row in enumerate(rows) if row[0] == queue_id and row[2] >= offset]
    assert index.find(queue_id, offset) == (expected[0] if expected else None)
    first, end = index.queue_rows(queue_id)
    assert list(range(first, end)) == [place for place, row in enumerate(rows) if row[0] == queue_id]


@given(sorted_rows())
def test_queues_and_their_last_offsets(rows: list[tuple[int, int, int, int, int]]) -> None:
    index = ExtentIndex(extent_rows(*rows), "test")
    last = {row[0]: row[2] for row in rows}
    queue_ids, last_offsets = index.last_offsets()
    assert dict(zip(queue_ids.tolist(), last_offsets.tolist(), strict=True)) == last
    assert index.queues()[0].tolist() == sorted(last)


def load(rows: numpy.ndarray) -> ExtentIndex:
    content = rows.tobytes()
    return ExtentIndex.load(FileFrame(RUN_MAGIC, google_crc32c.value(content), 0, len(rows)), content, "test.run")


def test_an_index_that_is_out_of_order_is_refused() -> None:
    assert len(load(extent_rows((1, 0, 4, 0, 1), (1, 5, 6, 0, 1), (2, 0, 0, 0, 1)))) == 3
    for bad in (
        [(2, 0, 4, 0, 1), (1, 5, 6, 0, 1)],
        [(1, 0, 4, 0, 1), (1, 4, 6, 0, 1)],
        [(1, 0, 4, 0, 1), (1, 6, 5, 0, 1)],
    ):
        with pytest.raises(FormatError, match=r"test\.run: index row 1 is out of order"):
            load(extent_rows(*bad))


def test_a_damaged_or_short_index_is_refused() -> None:
    content = extent_rows((1, 0, 4, 0, 1)).tobytes()
    frame = FileFrame(RUN_MAGIC, google_crc32c.value(content), 640, 1)
    with pytest.raises(FormatError, match=r"test\.run: index at 640 fails its CRC"):
        ExtentIndex.load(frame, b"\2" + content[1:], "test.run")
    with pytest.raises(FormatError, match=r"test\.run: index at 640 has 63 bytes"):
        ExtentIndex.load(frame, content[:-1], "test.run")
