"""Which groups come to agreements again and again without growing: members come and go, and nobody gets on with work.

A group that grows has a generation for each member that joins; such generations do not count. Kept for groups that had
a generation lately, of a bounded number, and lost with the process.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mainstem.lru import Lru

GROUPS_KEPT = 10_000
"""Groups whose generations are remembered, those with the latest: about 5 MB."""


class _Generations(NamedTuple):
    members_most: int
    """The members of the largest of these."""
    at_ms: deque[int]
    """When they came about, monotonic: as many as make a loop."""


class RecentGenerations:
    """`loop_count` generations within `loop_ms` are a loop."""

    def __init__(self, loop_count: int, loop_ms: int) -> None:
        self._loop_count = loop_count
        self._loop_ms = loop_ms
        self._groups: Lru[str, _Generations] = Lru(GROUPS_KEPT)

    def note(self, group_id: str, members: int, now_ms: int) -> None:
        """A group has a new generation of so many members."""
        known = self._groups.get(group_id)
        if known is None or members > known.members_most:
            known = _Generations(members, deque(maxlen=self._loop_count))
            self._groups.put(group_id, known)
        known.at_ms.append(now_ms)

    def loops(self, group_id: str, now_ms: int) -> bool:
        known = self._groups.peek(group_id)
        if known is None or len(known.at_ms) < self._loop_count:
            return False
        return now_ms - known.at_ms[0] <= self._loop_ms
