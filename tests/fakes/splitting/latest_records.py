"""Spark's part of a compaction, in Python: of each key the latest record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from mainstem.storage.compacting.compact_files import GOES_BIT, KeyColumns, Staying, nothing_of
from mainstem.storage.compacting.compact_plan import INPUTS_MAX


def latest_records(found: Sequence[KeyColumns], inputs: int) -> list[Staying]:
    """`pipeline.compactor.latest`, by input: of each key the record with the largest place, unless that may go."""
    latest: dict[tuple[int, int, int], int] = {}
    rows: list[tuple[int, int]] = []
    columns = (numpy.concatenate(column).tolist() for column in zip(*(nothing_of(inputs), *found), strict=True))
    for queue, high, low, place in zip(*columns, strict=True):
        if place < 0:
            rows.append((queue, place))
        else:
            latest[queue, high, low] = max(place, latest.get((queue, high, low), -1))
    rows += [(queue, place) for (queue, _high, _low), place in latest.items() if not place & GOES_BIT]
    by_input: list[list[tuple[int, int]]] = [[] for _ in range(inputs)]
    for row in sorted(rows):
        by_input[row[1] & (INPUTS_MAX - 1)].append(row)
    return [Staying(*(numpy.array(column, numpy.int64) for column in zip(*mine, strict=True))) for mine in by_input]
