"""Rows of markers: what one says is what it was made of, one by one and all of a directory at once."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.kernel.batch_header import TRANSACTIONAL_BIT
from mainstem.storage.extents.aborted import ABORTED_ROW
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW
from mainstem.storage.journal.encoding.transaction_rows import (
    DISTANCE_MAX,
    ended_transaction,
    ended_transactions,
    is_marker,
    marker_row,
    record_counts,
)


@st.composite
def endings(draw: st.DrawFn) -> tuple[int, int, int, bool, int]:
    offset = draw(st.integers(1, 1 << 62))
    first = draw(st.one_of(st.just(-1), st.integers(max(0, offset - DISTANCE_MAX), offset - 1)))
    stable = draw(st.one_of(st.just(offset + 1), st.integers(max(0, offset - DISTANCE_MAX), offset)))
    return offset, first, stable, draw(st.booleans()), draw(st.integers(0, (1 << 31) - 1))


@given(endings())
def test_a_row_says_how_the_transaction_ended(ending: tuple[int, int, int, bool, int]) -> None:
    offset, first, stable, committed, coordinator_epoch = ending
    row = marker_row(offset, first, stable, committed=committed, coordinator_epoch=coordinator_epoch)
    assert is_marker(row.attributes)
    found = ended_transaction(offset, *row)
    assert (found.committed, found.first_offset, found.coordinator_epoch) == (committed, first, coordinator_epoch)
    behind = offset + 1 - stable
    assert offset + 1 - 2 * behind < found.last_stable_offset <= stable or (behind == 0 and found[2] == offset + 1)


@given(st.lists(st.tuples(st.integers(0, 3), endings()), max_size=20))
def test_the_aborted_ones_of_a_directory(markers: list[tuple[int, tuple[int, int, int, bool, int]]]) -> None:
    rows = numpy.zeros(2 * len(markers), DIRECTORY_ROW)
    expected = []
    for number, (queue_id, (offset, first, stable, committed, epoch)) in enumerate(markers):
        row = marker_row(offset, first, stable, committed=committed, coordinator_epoch=epoch)
        rows[2 * number] = (queue_id, 0, 0, 7, 0, 0, 0, 5, 3, 0, TRANSACTIONAL_BIT, 0, 0)
        rows[2 * number + 1] = (
            queue_id, offset, 0, number, 0, 78, 0, row.record_count, row.base_sequence, 0, row.attributes, 0, 0,
        )  # fmt: skip
        if not committed and first >= 0:
            found = ended_transaction(offset, *row)
            expected.append((queue_id, number, first, offset, found.last_stable_offset))
    aborted = ended_transactions(rows)
    assert aborted.dtype == ABORTED_ROW
    assert sorted(aborted.tolist()) == sorted(expected)
    assert aborted.tolist() == sorted(aborted.tolist(), key=lambda row: (row[0], row[2]))
    assert record_counts(rows).tolist() == [5, 1] * len(markers)


def test_a_transaction_further_away_than_a_row_can_say_is_a_mistake() -> None:
    offset = DISTANCE_MAX + 10
    with pytest.raises(AssertionError):
        marker_row(offset, 9, offset, committed=True, coordinator_epoch=0)
