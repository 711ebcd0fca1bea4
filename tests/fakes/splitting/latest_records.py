"""Spark's part of a compaction, in Python: of each key the latest record, and the markers that are empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from mainstem.storage.compacting.compact_plan import INPUTS_MAX
from mainstem.storage.compacting.ended_markers import MARKER_BIT, TransactionColumns
from mainstem.storage.compacting.pass_places import GOES_BIT, KeyColumns, Staying, nothing_of


def latest_records(found: Sequence[KeyColumns], inputs: int, others: Sequence[tuple[int, int]] = ()) -> list[Staying]:
    """`pipeline.compactor.latest`, by input: of each key the record with the largest place, unless that may go; and
    other rows."""
    latest: dict[tuple[int, int, int], int] = {}
    rows: list[tuple[int, int]] = [*others]
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


def empty_markers(found: Sequence[TransactionColumns]) -> list[tuple[int, int]]:
    """`pipeline.compactor.empty_markers`: markers that do not follow a batch with data of their producer."""
    rows = sorted(row for columns in found for row in zip(*(column.tolist() for column in columns), strict=True))
    followed: dict[tuple[int, int], int] = {}
    empty = []
    for queue, producer, place in rows:
        if place & followed.get((queue, producer), MARKER_BIT) & MARKER_BIT:
            empty.append((queue, place))
        followed[queue, producer] = place
    return empty
