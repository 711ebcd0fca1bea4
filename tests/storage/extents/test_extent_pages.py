"""Pages of an index against the whole index."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import extent_rows

from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.extents.extent_pages import PAGE_BYTES, PAGE_ROWS, ExtentPages

POSITION = 640


def index_of(extents: dict[int, int]) -> ExtentIndex:
    """The index of a file with so many extents of ten offsets of each queue."""
    rows = [(queue, 10 * at, 10 * at + 9, 0, 1) for queue, count in sorted(extents.items()) for at in range(count)]
    return ExtentIndex(extent_rows(*rows), "here.run", POSITION)


def content_of(index: ExtentIndex, pages: ExtentPages, wanted: range) -> bytes:
    """The bytes of these pages, as the file has them."""
    position, length = pages.place(wanted)
    assert position >= POSITION
    return bytes(index.content[position - POSITION : position - POSITION + length])


@given(st.integers(0, 1 << 30), st.sampled_from([0, 1, 255, 256, 257, 900]), st.sampled_from([1, 3, 300]))
def test_the_pages_of_a_queue_say_of_it_what_the_whole_index_says(seed: int, queues: int, extents_max: int) -> None:
    drawn = random.Random(seed)
    numbers = drawn.sample(range(2, 4 * queues + 4), queues)
    index = index_of({2 * number: drawn.randint(1, extents_max) for number in numbers[: 60_000 // extents_max]})
    pages = ExtentPages(index)
    for queue in [0, 1, *(2 * number + drawn.randint(0, 1) for number in numbers[:50]), 2**64 - 1]:
        wanted = pages.of_queue(queue)
        part = pages.checked(wanted, content_of(index, pages, wanted))
        first, end = index.queue_rows(queue)
        part_first, part_end = part.queue_rows(queue)
        assert part.rows[part_first:part_end].tolist() == index.rows[first:end].tolist()
        assert len(part) <= end - first + 2 * PAGE_ROWS, "no more than neighbours in the same pages"
        offset = drawn.randint(0, 10 * extents_max)
        whole, found = index.find(queue, offset), part.find(queue, offset)
        assert (whole is None) == (found is None)
        assert whole is None or found is None or index.rows[whole] == part.rows[found]


def test_pages_take_little_memory() -> None:
    index = index_of(dict.fromkeys(range(20_000), 1))
    assert ExtentPages(index).memory_bytes * 200 < index.memory_bytes


def test_rows_that_changed_since_the_index_was_checked_are_refused() -> None:
    index = index_of(dict.fromkeys(range(1_000), 1))
    pages = ExtentPages(index)
    wanted = pages.of_queue(700)
    whole = content_of(index, pages, wanted)
    assert pages.checked(wanted, whole).queue_rows(700)[0] == 700 - wanted.start * PAGE_ROWS
    for at in (0, PAGE_BYTES // 2, len(whole) - 1):
        flipped = bytearray(whole)
        flipped[at] ^= 4
        with pytest.raises(FormatError, match=r"here\.run: index rows at \d+ are not what they were"):
            pages.checked(wanted, bytes(flipped))
    with pytest.raises(FormatError, match=r"here\.run"):
        pages.checked(wanted, whole[:-64])
