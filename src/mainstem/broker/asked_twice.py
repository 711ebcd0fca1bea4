"""Finds the partitions that a request names more than once; some APIs refuse them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mainstem.turns import Pace


class AskedPartition(Protocol):
    @property
    def partition_index(self) -> int: ...


class AskedTopic(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> Iterable[AskedPartition]: ...


async def asked_twice(topics: Iterable[AskedTopic], pace: Pace) -> set[tuple[str, int]]:
    """Names and indexes of the partitions named more than once."""
    once: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in topics:
        await pace.step()
        for asked in topic.partitions:
            await pace.step()
            key = topic.name, asked.partition_index
            if key in once:
                twice.add(key)
            once.add(key)
    return twice
