"""The aborted transactions of what the split has moved from the journal to files, on disk 2 and in the remote tier."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from mainstem.model import AbortedRange
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.reading.remote_history import RemoteHistory

_first_then_last = attrgetter("first_offset", "last_offset")


class LongTermTransactions:
    """`ports.StoredTransactions` of a node."""

    def __init__(self, store: QueueStore, remote: RemoteHistory | None, placement: Placement) -> None:
        """`remote`: None: this node reads no remote tier."""
        self._store = store
        self._remote = remote
        self._placement = placement

    def aborted_at_once(
        self, queue_id: int, group: int, from_offset: int, to_offset: int
    ) -> Sequence[AbortedRange] | None:
        told = self._store.transactions.told_at_once(queue_id, group, from_offset, to_offset)
        if told is None or (not told.are_all and self._remote is not None and self._remote.has(group)):
            return None
        return told.aborted

    async def aborted(self, queue_id: int, from_offset: int, to_offset: int) -> list[AbortedRange]:
        """The aborted transactions that have offsets in [`from_offset`, `to_offset`) and whose markers are in files, by
        their first offsets. Raises `StorageError` where a file cannot be read that may have one, `OutOfReach` while the
        object store is out, OSError.

        A file moves from disk 2 to the tier, never back. So disk 2 is asked before the tier, and what left it is found
        there."""
        stays = [
            (stay.group, max(from_offset, stay.first_offset))
            for stay in self._placement.stays_from(queue_id, from_offset)
            if stay.first_offset < to_offset
        ]
        if len(stays) == 1:
            ((group, first),) = stays
            told = await self._store.transactions.told(queue_id, group, first, to_offset)
            in_tier = self._remote is not None and self._remote.has(group)
            if told is not None and (told.are_all or not in_tier):
                return sorted(told.aborted, key=_first_then_last)
            if told is None and not in_tier:
                return []
        found: set[AbortedRange] = set()
        if not await self._has_some(queue_id, stays, to_offset):
            return []
        for group, first in stays:
            here = await self._store.transactions.ended(queue_id, group, first, to_offset)
            found.update(here.aborted)
            if not here.are_all and self._remote is not None and self._remote.has(group):
                there = await self._remote.transactions.ended(queue_id, group, first, to_offset)
                found.update(there.aborted)
        return sorted(found, key=_first_then_last)

    async def _has_some(self, queue_id: int, stays: Sequence[tuple[int, int]], to_offset: int) -> bool:
        for group, first in stays:
            if await self._store.transactions.has_some(queue_id, group, first, to_offset):
                return True
            remote = self._remote if self._remote is not None and self._remote.has(group) else None
            if remote is not None and await remote.transactions.has_some(queue_id, group, first, to_offset):
                return True
        return False
