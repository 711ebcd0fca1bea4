"""Bytes per topic, of the rows of an index: arrays, since a store may have a million topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import PARTITION_BITS
from mainstem.storage.extents.extent_index import Rows

Integers = numpy.typing.NDArray[numpy.int64]


class TopicSums(NamedTuple):
    """Columns of one length, a row per topic."""

    topics: Integers
    """Topic numbers, ascending."""
    files: Integers
    """Files, or segments of the journal, that have batches of the topic."""
    bytes: Integers
    """Of batches."""


def none() -> TopicSums:
    return TopicSums(*(numpy.zeros(0, numpy.int64) for _ in range(3)))


def of_rows(rows: Rows) -> TopicSums:
    """Add up the rows of one index, which are sorted by queue."""
    if not len(rows):
        return none()
    numbers = (rows["queue_id"] >> numpy.uint64(PARTITION_BITS)).astype(numpy.int64)
    firsts = numpy.concatenate(([0], numpy.flatnonzero(numpy.diff(numbers)) + 1))
    sizes = numpy.add.reduceat(rows["length"].astype(numpy.int64), firsts)
    return TopicSums(numbers[firsts], numpy.ones(len(firsts), numpy.int64), sizes)


def together(parts: Sequence[TopicSums]) -> TopicSums:
    """The sums of all of these."""
    if not parts:
        return none()
    numbers = numpy.concatenate([part.topics for part in parts])
    topics, which = numpy.unique(numbers, return_inverse=True)
    sums: list[Integers] = []
    for column in (1, 2):
        total = numpy.zeros(len(topics), numpy.int64)
        numpy.add.at(total, which, numpy.concatenate([part[column] for part in parts]))
        sums.append(total)
    return TopicSums(topics, *sums)


def of_topic(sums: TopicSums, topic: int) -> tuple[int, int]:
    """Files and bytes of one topic."""
    place = int(sums.topics.searchsorted(topic))
    if place == len(sums.topics) or int(sums.topics[place]) != topic:
        return 0, 0
    return int(sums.files[place]), int(sums.bytes[place])


def by_topic(parts: Iterable[TopicSums]) -> dict[int, int]:
    """Bytes by topic number, in all of these together."""
    sums = together(list(parts))
    return dict(zip(sums.topics.tolist(), sums.bytes.tolist(), strict=True))
