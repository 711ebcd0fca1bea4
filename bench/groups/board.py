"""The board on which members of one group write what they know: who has which partitions, in which generation.

The group is settled when every member has the same generation, all partitions have one reader each, and no member has
two more than another. Members write to the board when a client would tell its application.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from bench.errors import BenchError


class Board:
    """Of a group that shares so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._members: dict[object, tuple[int, frozenset[int]]] = {}
        self._generations: Counter[int] = Counter()
        self._readers: Counter[int] = Counter()
        self._wanted = 0
        self._settled = asyncio.Event()
        self._error: BaseException | None = None
        self.settled_at = 0.0
        self.shared = 0
        """How often a partition had two readers."""

    def told(self, member: object, generation: int, partitions: frozenset[int]) -> None:
        """A member has these partitions from now on, and no others."""
        self._forget(member)
        self._members[member] = generation, partitions
        self._generations[generation] += 1
        for partition in partitions:
            self._readers[partition] += 1
            self.shared += self._readers[partition] > 1
        if self._agrees() and not self._settled.is_set():
            self.settled_at = time.monotonic()
            self._settled.set()

    def gone(self, member: object) -> None:
        self._forget(member)

    def ended(self, task: asyncio.Task[None]) -> None:
        """A member's task has ended. Only an error ends it by itself."""
        if not task.cancelled():
            self._error = task.exception()
            self._settled.set()

    def expect(self, members: int) -> None:
        """From now on the group is settled when so many members are."""
        self._wanted = members
        self._settled.clear()

    @property
    def is_settled(self) -> bool:
        """Whether the group was settled since `expect`, or a member has failed."""
        return self._settled.is_set()

    async def settled(self, seconds_max: float) -> float:
        """The moment at which the group was settled. Raises TimeoutError, and BenchError for a member that failed."""
        try:
            await asyncio.wait_for(self._settled.wait(), seconds_max)
        except TimeoutError:
            raise TimeoutError(f"not settled after {seconds_max:.0f} s: {self.told_so_far()}") from None
        if self._error is not None:
            raise BenchError(f"a member failed: {self._error}") from self._error
        return self.settled_at

    def told_so_far(self) -> str:
        sizes = Counter(len(partitions) for _, partitions in self._members.values())
        return (
            f"{len(self._members)} of {self._wanted} members, generations {dict(self._generations)}, "
            f"{len(self._readers)} of {self._partitions} partitions, members by how many they have: {dict(sizes)}"
        )

    def _forget(self, member: object) -> None:
        generation, partitions = self._members.pop(member, (0, frozenset[int]()))
        self._generations[generation] -= 1
        for partition in partitions:
            self._readers[partition] -= 1
            if not self._readers[partition]:
                del self._readers[partition]

    def _agrees(self) -> bool:
        generation = next(reversed(self._members.values()))[0]
        if self._generations[generation] != self._wanted or len(self._members) != self._wanted:
            return False
        if len(self._readers) != self._partitions or max(self._readers.values()) > 1:
            return False
        sizes = {len(partitions) for _, partitions in self._members.values()}
        return max(sizes) - min(sizes) <= 1
