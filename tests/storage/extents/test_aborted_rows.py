"""The rows of one queue, and the first of them for an offset: among few rows and among many."""

from __future__ import annotations

import numpy
import pytest

from mainstem.storage.extents import aborted
from mainstem.storage.extents.aborted import ABORTED_ROW, first_behind, of_queue

LAST_QUEUE = 2**64 - 1


@pytest.mark.parametrize("copied_max", [0, 10_000])
def test_the_rows_of_a_queue_and_the_first_behind_an_offset(copied_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted, "COPIED_ROWS_MAX", copied_max)
    rows = numpy.zeros(9, ABORTED_ROW)
    rows["queue_id"] = [3, 3, 3, 7, 7, LAST_QUEUE, LAST_QUEUE, LAST_QUEUE, LAST_QUEUE]
    rows["last_offset"] = [10, 20, 30, 0, 5, 1, 2, 3, 2**63 - 1]
    for queue_id in (0, 3, 5, 7, 8, LAST_QUEUE):
        found = of_queue(rows, queue_id)
        assert found["last_offset"].tolist() == [row[3] for row in rows.tolist() if row[0] == queue_id]
        for offset in (0, 2, 5, 6, 10, 11, 30, 31, 2**63 - 1):
            assert first_behind(found, offset) == sum(last < offset for last in found["last_offset"].tolist())
