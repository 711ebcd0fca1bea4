"""The aborted transactions of what files have of a queue.

Readers of committed transactions are told them with the batches. Whether batches of transactions are among what was
read, the extents say (`has_some`): for all others no index of aborted transactions is read. If there are some, the
search goes from their file on, until a row's last stable offset lies behind the batches (`extents/aborted.py`).

A reader that goes on asks for the next megabyte, and the next. So a search remembers a little more than it was asked
for, over all files that it went through, and the reader's next ones are told from memory (`told_at_once`). A run has
little of a queue, and what its last batches became is told by the next one: so the search of a reader that comes to
the end of a run is the one that tells about most of the next run, and about those behind it whose indexes memory has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from mainstem.lru import Lru
from mainstem.model import AbortedRange
from mainstem.storage.extents.aborted import NO_PRODUCER, AbortedRows, first_behind, of_queue
from mainstem.storage.extents.extent_format import TRANSACTIONAL
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import SeenSpans
from mainstem.storage.queue_store.reading.file_search import ExtentPlace, Spans
from mainstem.storage.queue_store.reading.open_files import FileGone, KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles

Found = TypeVar("Found")

FIRST_ROWS = 4
"""Aborted transactions that are looked at first: seldom does a reader's megabyte have more, and each takes half a
microsecond."""

ROWS_AT_ONCE = 64
"""Rows of a queue, of either index, that are looked at before more are."""


LAST_FILES_MAX = 1_024
"""Queues of which it is known where their readers are: a hundred bytes each."""

KNOWN_ROWS = 32
"""Aborted transactions that are remembered of a queue: 10 KB at the most. With one in five transactions aborted, as in
`python -m bench run 13`, a reader comes sixteen megabytes far with them."""


FILES_AHEAD_MAX = 8
"""Files behind the end of a search of which it remembers the rows, too: a tenth of a millisecond, and with four rows in
each there is no room for more."""


class FoundTransactions(NamedTuple):
    """The aborted transactions among some offsets of a queue, as far as files know."""

    aborted: list[AbortedRange]
    """By last offset."""
    are_all: bool
    """Whether files have the offsets from the first on, and all transactions among them had ended before a marker that
    was found; otherwise what is before or behind these files knows of others."""


_Row = tuple[int, int, int, int, int]
"""Of the index of aborted transactions."""


class _Look(NamedTuple):
    """A search among the files of one moment."""

    queue_id: int
    group: int
    from_offset: int
    to_offset: int
    files: SpanList
    spans: Spans
    """The same, as a reader of the queue sees them."""


class _LastFile(NamedTuple):
    """The file in which the last search for a queue ended, among the files of that moment."""

    files: SpanList
    at: int
    file: KnownFile


class _Known(NamedTuple):
    """The findings of a search about some offsets of a queue, in the files of that moment."""

    files: SpanList
    first: int
    end: int
    """Behind the last offset."""
    last_offsets: Sequence[int]
    """Of the rows."""
    rows: Sequence[_Row]
    """Of the files' indexes of aborted transactions, from the first on whose transaction ended at `first` or later."""
    has_some: bool
    """Whether there are batches of transactions among these offsets."""


class FileTransactions:
    """The transactions of one store's files. Raises `StorageError` where a file cannot be read that may have what is
    looked for, and OSError."""

    def __init__(self, stored: StoredFiles) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._search = stored.search
        self._last_files: Lru[tuple[int, int], _LastFile] = Lru(LAST_FILES_MAX)
        """By write group and queue: readers go on where they were."""
        self._known: Lru[tuple[int, int], _Known] = Lru(LAST_FILES_MAX)
        """Likewise."""

    async def has_some(self, queue_id: int, group: int, from_offset: int, to_offset: int) -> bool:
        """Whether these files have batches of transactions among [`from_offset`, `to_offset`)."""
        return await self._of_now(queue_id, group, from_offset, to_offset, self._has_some)

    async def ended(self, queue_id: int, group: int, from_offset: int, to_offset: int) -> FoundTransactions:
        """The aborted transactions with offsets in [`from_offset`, `to_offset`) of which these files have the markers,
        whichever files have their batches."""
        return await self._of_now(queue_id, group, from_offset, to_offset, self._ended)

    def told_at_once(self, queue_id: int, group: int, from_offset: int, to_offset: int) -> FoundTransactions | None:
        """`told`, if the last search for the queue has found it out as well, and the files are the same; without
        batches of transactions, none was aborted and `are_all` is not said. None: nobody knows without a search."""
        known = self._known.get((group, queue_id))
        if known is None or not known.first <= from_offset <= to_offset <= known.end:
            return None
        if known.files is not self._manifest.spans(group):
            return None
        found: list[AbortedRange] = []
        rows = known.rows
        for at in range(bisect_left(known.last_offsets, from_offset), len(rows)):
            _queue, producer_id, first_offset, last_offset, stable = rows[at]
            if producer_id != NO_PRODUCER and first_offset < to_offset:
                found.append(AbortedRange(producer_id, first_offset, last_offset))
            if stable >= to_offset:
                break
        return FoundTransactions(found, are_all=known.has_some)

    async def told(self, queue_id: int, group: int, from_offset: int, to_offset: int) -> FoundTransactions | None:
        """`ended` and `has_some` in one search: None where these files have no batches of transactions there."""
        return await self._of_now(queue_id, group, from_offset, to_offset, self._told)

    async def _of_now(
        self,
        queue_id: int,
        group: int,
        from_offset: int,
        to_offset: int,
        answer: Callable[[_Look, ExtentPlace | None], Awaitable[Found]],
    ) -> Found:
        while True:
            files = self._manifest.spans(group)
            look = _Look(queue_id, group, from_offset, to_offset, files, SeenSpans(files, queue_id))
            try:
                return await answer(look, self._near(look) or await self._find(look))
            except FileGone:  # it was merged meanwhile
                if self._manifest.spans(group) is files:
                    raise

    def _near(self, look: _Look) -> ExtentPlace | None:
        """The extent with the first offset, if it is in the file in which the last search for the queue ended, and
        memory has that file's index."""
        last = self._last_files.get((look.group, look.queue_id))
        if last is None or last.files is not look.files:
            return None
        extents = self._stored.open_files.held_rows(last.file, look.queue_id)
        if extents is None:
            return None
        rows = extents.queue_rows(look.queue_id)
        row = extents.find_among(rows, look.from_offset)
        if row is None or int(extents.rows["base_offset"][row]) > look.from_offset:
            return None
        return ExtentPlace(last.at, last.file, extents, row, rows[1])

    async def _find(self, look: _Look) -> ExtentPlace | None:
        place = await self._search.find(look.queue_id, look.spans, look.from_offset)
        if place is not None:
            self._last_files.put((look.group, look.queue_id), _LastFile(look.files, place.at, place.file))
        return place

    async def _told(self, look: _Look, place: ExtentPlace | None) -> FoundTransactions | None:
        return await self._ended(look, place) if await self._has_some(look, place) else None

    async def _has_some(self, look: _Look, place: ExtentPlace | None) -> bool:
        if place is not None and int(place.extents.rows["flags"][place.row]) & TRANSACTIONAL:
            return int(place.extents.rows["base_offset"][place.row]) < look.to_offset
        while place is not None:
            for at in range(place.row, place.end, ROWS_AT_ONCE):
                rows = place.extents.rows[at : min(at + ROWS_AT_ONCE, place.end)]
                inside = rows["base_offset"] < look.to_offset
                if (rows["flags"][inside] & TRANSACTIONAL).any():
                    return True
                if not inside[-1]:
                    self._know_of_none(look, place, at)
                    return False
            place = await self._next_file(look, place)
        return False

    async def _ended(self, look: _Look, place: ExtentPlace | None) -> FoundTransactions:
        has_first = place is not None and int(place.extents.rows["base_offset"][place.row]) <= look.from_offset
        found: list[AbortedRange] = []
        passed: list[_Row] = []
        """All rows of the files before this one, from the first on that ended at `since` or later."""
        since = look.from_offset
        while place is not None:
            rows = of_queue(await self._stored.open_files.aborted(place.file), look.queue_id)
            first = at = first_behind(rows, look.from_offset)
            together = FIRST_ROWS
            while at < len(rows):
                piece = rows[at : at + together].tolist()
                for _queue, producer_id, first_offset, last_offset, stable in piece:
                    if producer_id != NO_PRODUCER and first_offset < look.to_offset:
                        found.append(AbortedRange(producer_id, first_offset, last_offset))
                    if stable >= look.to_offset:
                        if has_first:
                            self._know(look, place, since, passed, rows[first:])
                        return FoundTransactions(found, are_all=has_first)
                at, together = at + len(piece), ROWS_AT_ONCE
            following = await self._next_file(look, place)
            passed += rows[first : first + KNOWN_ROWS].tolist()
            if len(passed) > KNOWN_ROWS // 2 and following is not None:  # there is to be room for what comes next
                since, passed = int(following.extents.rows["base_offset"][following.row]), []
            place = following
        return FoundTransactions(found, are_all=False)

    def _know(self, look: _Look, place: ExtentPlace, since: int, passed: Sequence[_Row], rows: AbortedRows) -> None:
        """Remember the first rows of a search from `since` on: those of the files that it has passed, and of the one
        in which it has ended. Up to the largest stable offset of a row, all transactions had ended."""
        known = [*passed, *rows[: KNOWN_ROWS - len(passed)].tolist()]
        for _ in range(FILES_AHEAD_MAX):
            if len(passed) + len(rows) >= KNOWN_ROWS:
                break
            following = self._search.following_held(look.queue_id, look.spans, place)
            held = None if following is None else self._stored.open_files.held_aborted(following.file)
            if following is None or held is None:
                break
            passed, place, rows = known.copy(), following, of_queue(held, look.queue_id)
            if not len(rows):
                break
            known += rows[: KNOWN_ROWS - len(passed)].tolist()
        stable = max(row[-1] for row in known)  # of a later row it may be less: rows tell it as a power of two away
        end = min(stable, int(place.extents.rows["last_offset"][place.end - 1]) + 1)
        self._last_files.put((look.group, look.queue_id), _LastFile(look.files, place.at, place.file))
        last_offsets = [row[3] for row in known]
        self._known.put((look.group, look.queue_id), _Known(look.files, since, end, last_offsets, known, has_some=True))

    def _know_of_none(self, look: _Look, place: ExtentPlace, at: int) -> None:
        """Remember that extents have no batches of transactions, as many as are looked at together from here on."""
        rows = place.extents.rows[at : min(at + ROWS_AT_ONCE, place.end)]
        first = int(rows["base_offset"][0])
        if at != place.row or first > look.from_offset:
            return
        some = (rows["flags"] & TRANSACTIONAL).nonzero()[0]
        end = int(rows["base_offset"][some[0]]) if len(some) else int(rows["last_offset"][-1]) + 1
        self._known.put((look.group, look.queue_id), _Known(look.files, look.from_offset, end, (), (), has_some=False))

    async def _next_file(self, look: _Look, place: ExtentPlace) -> ExtentPlace | None:
        """The queue's first extent behind all that this file has of it."""
        following: ExtentPlace | None = place._replace(row=place.end - 1)
        while following is not None and following.file is place.file:
            following = await self._search.following(look.queue_id, look.spans, following)
        return following
