"""The aborted transactions of what readers of committed transactions get, from the tiers of this node: from memory what
is not split, from the files of the queue store what is.

The split moves transactions from one to the other at any time. Memory is asked first, so that nothing slips between.
Records below the log start go, and with them what was aborted among them: a reader that has read them a moment before
is told nothing, and reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from mainstem.errors import MainstemError
from mainstem.kernel import LOG_START, NO_SLOT, QueueTable, RecentIndex
from mainstem.lru import Lru
from mainstem.model import AbortedRange
from mainstem.ports import StoredTransactions
from mainstem.storage.errors import RecordsDeleted
from mainstem.storage.placement import Stay
from mainstem.storage.write_groups.write_group_transactions import WriteGroupTransactions

HELD_MAX = 4_096
"""Queues of which it is remembered from where on memory knows their transactions: as many as have sequential readers
(`queue_history.READERS_MAX`), a hundred bytes each."""


class _Held(NamedTuple):
    """Memory knows all transactions of a queue whose markers are at or behind an offset, while it has forgotten those
    of blocks up to `pruned`, and no more since it forgot all for the last time (`clears`)."""

    pruned: int
    clears: int
    first_offset: int


class LocalCommittedReads:
    """`ports.CommittedReads` of the write groups that have replicas here."""

    def __init__(
        self,
        groups: Sequence[WriteGroupTransactions],
        stays_from: Callable[[int, int], Sequence[Stay]],
        table: QueueTable,
        index: RecentIndex,
    ) -> None:
        self._groups = groups
        self._stays_from = stays_from
        self._table = table
        self._index = index
        self._stored: StoredTransactions | None = None
        self._held: Lru[tuple[int, int], _Held] = Lru(HELD_MAX)
        """By write group and queue: a reader asks for each megabyte, and a look into the index finds a hundred batches,
        which takes longer than all else that is done to know what was aborted."""

    def look_into(self, stored: StoredTransactions) -> None:
        """From now on files are asked as well, and memory forgets what is split."""
        self._stored = stored

    def prune(self, split: Callable[[int], int]) -> None:
        """Forget what files tell: `split(write group)` is its last block that is split."""
        if self._stored is not None:
            for number, group in enumerate(self._groups):
                group.aborted.prune(split(number))

    def aborted_at_once(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[AbortedRange]] | None:
        answers: list[list[AbortedRange]] = []
        for one in ranges:
            known = self._known(*one)
            if known is None:
                return None
            answers.append(known)
        return answers

    def _known(self, queue_id: int, first: int, end: int) -> list[AbortedRange] | None:
        """The aborted transactions of one range, if no file has to be asked."""
        stored = self._stored
        if self._is_gone(queue_id, first):
            return None
        if stored is None:
            return self._unsplit(queue_id, first, end)
        stays = self._stays_from(queue_id, first)
        if len(stays) == 1 and stays[0].first_offset <= first:
            group = stays[0].group
            in_files = stored.aborted_at_once(queue_id, group, first, end)
            if in_files is not None:
                found = {one.last_offset: one for one in self._groups[group].aborted.find(queue_id, first, end)}
                found |= {one.last_offset: one for one in in_files}
                return sorted(found.values(), key=attrgetter("first_offset"))
        return self._unsplit(queue_id, first, end) if self._in_memory(queue_id, first) else None

    async def aborted(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[list[AbortedRange] | MainstemError | OSError]:
        answers: list[list[AbortedRange] | MainstemError | OSError] = []
        for one in ranges:
            known = self._known(*one)
            if known is not None:  # one queue that has to be searched does not send the others of its request there
                answers.append(known)
                continue
            try:
                answers.append(await self._searched(*one))
            except (MainstemError, OSError) as error:
                answers.append(error)
        return answers

    async def _searched(self, queue_id: int, first: int, end: int) -> list[AbortedRange]:
        found = {one.last_offset: one for one in self._unsplit(queue_id, first, end)}
        if self._stored is not None:
            found |= {one.last_offset: one for one in await self._stored.aborted(queue_id, first, end)}
        if self._is_gone(queue_id, first):
            raise RecordsDeleted(f"queue {queue_id:#x}: the records from offset {first} on are deleted; read again")
        return sorted(found.values(), key=attrgetter("first_offset"))

    def _is_gone(self, queue_id: int, first: int) -> bool:
        """Whether the log start has passed an offset, so that not all is known of transactions behind it."""
        slot = self._table.find(queue_id)
        return slot != NO_SLOT and first < self._table.get(slot, LOG_START)

    def _unsplit(self, queue_id: int, first: int, end: int) -> list[AbortedRange]:
        """The aborted transactions that memory knows; no transaction is open while a queue moves, so that each lies in
        one of its stays."""
        stays = self._stays_from(queue_id, first)
        if len(stays) == 1:
            return self._groups[stays[0].group].aborted.find(queue_id, first, end)
        found = {
            one.last_offset: one
            for group in {stay.group for stay in stays}
            for one in self._groups[group].aborted.find(queue_id, first, end)
        }
        return sorted(found.values(), key=attrgetter("first_offset"))

    def _in_memory(self, queue_id: int, first: int) -> bool:
        """Whether memory knows every aborted transaction whose marker is at or behind an offset: as the write group
        never met one, or as the block that holds the offset is behind all whose markers memory has forgotten."""
        stays = self._stays_from(queue_id, first)
        if not any(self._groups[stay.group].met_any for stay in stays):
            return True
        if len(stays) > 1:  # that the first block of a stay is here says nothing about the stays behind it
            return False
        group = stays[0].group
        aborted = self._groups[group].aborted
        pruned, clears = aborted.pruned_index, aborted.clears
        if pruned is None:
            return False
        known = self._held.get((group, queue_id))
        if known is not None and known[:2] == (pruned, clears) and known.first_offset <= first:
            return True
        slot = self._table.find(queue_id)
        entries = [] if slot == NO_SLOT else self._index.window(slot, first)
        if not entries or entries[0].base_offset > first or entries[0].block.header.index <= pruned:
            return False
        self._held.put((group, queue_id), _Held(pruned, clears, first))
        return True
