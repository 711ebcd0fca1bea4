"""Cuts requests about many partitions into steps that the group coordinator takes one by one.

The coordinator answers a request in one step, within one turn of the event loop. So a request for a hundred
thousand partitions becomes many for some hundreds each, with turns of the loop between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

PARTITIONS_PER_STEP = 500
"""Partitions that a coordinator commits or looks up in one turn of the event loop: some milliseconds."""


class TopicsOfStep(NamedTuple):
    topics: list[Any]
    continued: bool
    """Whether the first topic is the last one of the step before, whose partitions did not fit."""


def in_steps(topics: Iterable[T], field: str, size: int = PARTITIONS_PER_STEP) -> Iterator[TopicsOfStep]:
    """Topics with at most `size` partitions in all at a time. `field` names the sequence in a topic that is cut; a
    topic counts as one more."""
    taken: list[T] = []
    room = size
    continued = False
    for topic in topics:
        partitions: Sequence[Any] = getattr(topic, field)
        if len(partitions) < room:
            taken.append(topic)
            room -= len(partitions) + 1
            continue
        for start in range(0, max(len(partitions), 1), size):
            if taken:
                yield TopicsOfStep(taken, continued)
            taken = [replace(topic, **{field: partitions[start : start + size]})]  # type: ignore[type-var]
            continued = start > 0
            room = size - len(partitions[start : start + size]) - 1
    if taken:
        yield TopicsOfStep(taken, continued)
