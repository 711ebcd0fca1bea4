"""The aborted transactions of what files have of a queue.

Readers of committed transactions are told them with the batches. Whether batches of transactions are among what was
read, the extents say (`has_some`): for all others no index of aborted transactions is read. If there are some, the
search goes from their file on, until a row's last stable offset lies behind the batches (`extents/aborted.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from mainstem.model import AbortedRange
from mainstem.storage.extents.aborted import NO_PRODUCER, of_queue
from mainstem.storage.extents.extent_format import TRANSACTIONAL
from mainstem.storage.queue_store.manifest.in_memory.spans import SeenSpans
from mainstem.storage.queue_store.reading.file_search import ExtentPlace, Spans
from mainstem.storage.queue_store.reading.open_files import FileGone
from mainstem.storage.queue_store.reading.stored_files import StoredFiles

Found = TypeVar("Found")


class FoundTransactions(NamedTuple):
    """The aborted transactions among some offsets of a queue, as far as files know."""

    aborted: list[AbortedRange]
    """By last offset."""
    are_all: bool
    """Whether files have the offsets from the first on, and all transactions among them had ended before a marker that
    was found; otherwise what is before or behind these files knows of others."""


class FileTransactions:
    """The transactions of one store's files. Raises `StorageError` where a file cannot be read that may have what is
    looked for, and OSError."""

    def __init__(self, stored: StoredFiles) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._search = stored.search

    async def has_some(self, queue_id: int, group: int, from_offset: int, to_offset: int) -> bool:
        """Whether these files have batches of transactions among [`from_offset`, `to_offset`)."""
        return await self._of_now(
            group, queue_id, lambda spans: self._has_some(queue_id, spans, from_offset, to_offset)
        )

    async def ended(self, queue_id: int, group: int, from_offset: int, to_offset: int) -> FoundTransactions:
        """The aborted transactions with offsets in [`from_offset`, `to_offset`) of which these files have the markers,
        whichever files have their batches."""
        return await self._of_now(group, queue_id, lambda spans: self._ended(queue_id, spans, from_offset, to_offset))

    async def _of_now(self, group: int, queue_id: int, look: Callable[[Spans], Awaitable[Found]]) -> Found:
        while True:
            spans = self._manifest.spans(group)
            try:
                return await look(SeenSpans(spans, queue_id))
            except FileGone:  # it was merged meanwhile
                if self._manifest.spans(group) is spans:
                    raise

    async def _has_some(self, queue_id: int, spans: Spans, from_offset: int, to_offset: int) -> bool:
        place = await self._search.find(queue_id, spans, from_offset)
        while place is not None:
            rows = place.extents.rows[place.row : place.end]
            rows = rows[rows["base_offset"] < to_offset]
            if not len(rows):
                return False
            if (rows["flags"] & TRANSACTIONAL != 0).any():
                return True
            place = await self._next_file(queue_id, spans, place)
        return False

    async def _ended(self, queue_id: int, spans: Spans, from_offset: int, to_offset: int) -> FoundTransactions:
        place = await self._search.find(queue_id, spans, from_offset)
        has_first = place is not None and int(place.extents.rows["base_offset"][place.row]) <= from_offset
        found: list[AbortedRange] = []
        while place is not None:
            rows = of_queue(await self._stored.open_files.aborted(place.file), queue_id)
            for _queue, producer_id, first_offset, last_offset, stable in rows.tolist():
                if last_offset < from_offset:
                    continue
                if producer_id != NO_PRODUCER and first_offset < to_offset:
                    found.append(AbortedRange(producer_id, first_offset, last_offset))
                if stable >= to_offset:
                    return FoundTransactions(found, are_all=has_first)
            place = await self._next_file(queue_id, spans, place)
        return FoundTransactions(found, are_all=False)

    async def _next_file(self, queue_id: int, spans: Spans, place: ExtentPlace) -> ExtentPlace | None:
        """The queue's first extent behind all that this file has of it."""
        following: ExtentPlace | None = place._replace(row=place.end - 1)
        while following is not None and following.file is place.file:
            following = await self._search.following(queue_id, spans, following)
        return following
