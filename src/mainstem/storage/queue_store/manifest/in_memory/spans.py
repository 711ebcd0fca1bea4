"""Spans: the files of a write group that cover the same blocks, and which of them may hold an offset of a queue.

The spans of a write group follow each other without overlap, and a queue's offsets rise along them. Runs of a span lie
beside each other without keys: each may have any queue. Merged files of a span follow each other by (first queue, first
offset), so that one bisection leads to the only one that may hold a queue's offset, and those behind it.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import attrgetter
from typing import NamedTuple, overload

from mainstem.storage.errors import StorageError
from mainstem.storage.store_files.store_file import MANY_GROUPS, NO_OFFSET, StoreFile


class FileRange(NamedTuple):
    """A file holds blocks (after, upto] of a group; sequences rise in the order in which that was recorded."""

    sequence: int
    group: int
    after: int
    upto: int
    name: str


class Span:
    """Files with blocks (after, upto] of one write group. It never changes."""

    __slots__ = ("_keyed", "_keys", "_last_queues", "_runs", "after", "upto")

    def __init__(self, entries: Iterable[FileRange], files: Mapping[str, StoreFile]) -> None:
        """At least one entry, all of the same blocks; `files` describes those that they name."""
        self._runs = tuple(entries)
        self.after, self.upto = self._runs[0].after, self._runs[0].upto
        self._keyed: tuple[FileRange, ...] = ()
        self._keys: tuple[tuple[int, int], ...] = ()
        self._last_queues: tuple[int, ...] = ()
        for entry in self._runs:
            if files[entry.name].group != MANY_GROUPS:
                self._order(files)
                break

    def _order(self, files: Mapping[str, StoreFile]) -> None:
        described = [(files[entry.name], entry) for entry in self._runs]
        merged = sorted(
            (file.first_queue, file.first_offset, file.last_queue, e) for file, e in described if file.is_merged
        )
        self._keyed = tuple(entry for *_keys, entry in merged)
        self._keys = tuple((queue_id, offset) for queue_id, offset, _last, _entry in merged)
        self._last_queues = tuple(last for _queue_id, _offset, last, _entry in merged)
        self._runs = tuple(entry for file, entry in described if not file.is_merged)

    @property
    def runs(self) -> tuple[FileRange, ...]:
        """Files without keys, as they were recorded."""
        return self._runs

    def __len__(self) -> int:
        return len(self._runs) + len(self._keyed)

    def __iter__(self) -> Iterator[FileRange]:
        yield from self._runs
        yield from self._keyed

    def begins_at(self, queue_id: int) -> int | None:
        """The first offset of a merged file that begins with this queue; None: there is none. Another file of the span
        may have lower ones."""
        place = bisect.bisect_left(self._keys, (queue_id, NO_OFFSET))
        if place < len(self._keys) and self._keys[place][0] == queue_id:
            return self._keys[place][1]
        return None

    def keyed(self, queue_id: int, offset: int) -> Iterator[FileRange]:
        """The merged files that may hold this offset of a queue, or a later one, in the order of their offsets."""
        place = max(bisect.bisect_right(self._keys, (queue_id, offset)) - 1, 0)
        while place < len(self._keys) and self._keys[place][0] <= queue_id:
            if self._last_queues[place] >= queue_id:
                yield self._keyed[place]
            place += 1

    def has_in_one_file(self, queue_id: int) -> bool:
        """Whether no more than one file of the span may have this queue."""
        return len(self) == 1 or (len([*islice(self.keyed(queue_id, NO_OFFSET), 2)]) < 2 and not self.runs)


class SeenSpan(Span):
    """A span as a reader of one queue sees it, who looks at it several times: what it was asked it still knows."""

    __slots__ = ("_all_runs", "_alone", "_queue_id", "_span")

    def __init__(self, span: Span, queue_id: int) -> None:
        self._span = span
        self._queue_id = queue_id
        self.after, self.upto = span.after, span.upto
        self._all_runs: tuple[FileRange, ...] | None = None
        self._alone: tuple[FileRange, ...] | None = None
        """The only merged file that may have the queue, if there is one, whatever the offset; two: there are more."""

    @property
    def runs(self) -> tuple[FileRange, ...]:
        if self._all_runs is None:
            self._all_runs = self._span.runs
        return self._all_runs

    def __len__(self) -> int:
        return len(self._span)

    def __iter__(self) -> Iterator[FileRange]:
        return iter(self._span)

    def begins_at(self, queue_id: int) -> int | None:
        return self._span.begins_at(queue_id)

    def keyed(self, queue_id: int, offset: int) -> Iterator[FileRange]:
        if queue_id != self._queue_id:
            return self._span.keyed(queue_id, offset)
        if self._alone is None:
            self._alone = tuple(islice(self._span.keyed(queue_id, NO_OFFSET), 2))
        return iter(self._alone) if len(self._alone) < 2 else self._span.keyed(queue_id, offset)


SEEN_MAX = 64
"""Spans that a reader keeps for the next time: more than it reads of in one go."""


class SeenSpans(Sequence[Span]):
    """Spans as a reader of one queue sees them during one read."""

    def __init__(self, spans: Sequence[Span], queue_id: int) -> None:
        self._spans = spans
        self._queue_id = queue_id
        self._seen: dict[int, SeenSpan] = {}

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, place: int) -> Span: ...

    @overload
    def __getitem__(self, place: slice) -> list[Span]: ...

    def __getitem__(self, place: int | slice) -> Span | list[Span]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        seen = self._seen.get(place)
        if seen is None:
            seen = SeenSpan(self._spans[place], self._queue_id)
            if len(self._seen) < SEEN_MAX:
                self._seen[place] = seen
        return seen


def spans_of(entries: Iterable[FileRange], files: Mapping[str, StoreFile]) -> Iterator[Span]:
    """The spans of entries of one write group that are ordered by their blocks."""
    together: list[FileRange] = []
    for entry in entries:
        if together and (entry.upto != together[0].upto or entry.after != together[0].after):
            yield Span(together, files)
            together = []
        together.append(entry)
    if together:
        yield Span(together, files)


def check_keys(files: Iterable[StoreFile]) -> None:
    """Raises `StorageError` unless merged files can be told apart by their keys: each begins behind all that the one
    before it has. A queue that fills several files ends in one and goes on in the next."""
    ordered = sorted(files, key=lambda file: (file.first_queue, file.first_offset))
    for one, other in pairwise(ordered):
        same = (other.first_queue, other.first_offset) == (one.first_queue, one.first_offset)
        if same or other.first_queue < one.last_queue:
            raise StorageError(f"{one.name} and {other.name}: merged files of the same blocks whose keys overlap")


def check_rewritten(
    spans: Sequence[Span], files: Mapping[str, StoreFile], outputs: Mapping[FileRange, Sequence[StoreFile]]
) -> None:
    """Raises `StorageError` unless merged files of some spans may be replaced by these: all of them count, and the
    files of each span can still be told apart by their keys. `files` describes those that count."""
    if not outputs:
        raise StorageError("nothing is rewritten")
    changed: dict[int, list[StoreFile]] = {}
    """By the places of their spans."""
    for entry, new in outputs.items():
        place = bisect.bisect_left(spans, entry.upto, key=attrgetter("upto"))
        span = spans[place] if place < len(spans) else None
        if span is None or entry not in span or entry in span.runs:
            raise StorageError(
                f"{entry.name}: it is no merged file that counts for write group {entry.group} as it did"
            )
        old = files[entry.name]
        for file in new:
            if not _is_within(file, old):
                raise StorageError(f"{file.name}: it has other keys, or another level, than {old.name}")
        if place not in changed:
            changed[place] = [files[one.name] for one in span if one not in outputs]
        changed[place].extend(new)
    for left in changed.values():
        check_keys(file for file in left if file.is_merged)


def _is_within(file: StoreFile, old: StoreFile) -> bool:
    keys = (file.first_queue, file.first_offset) >= (old.first_queue, old.first_offset)
    return keys and file.last_queue <= old.last_queue and file.group == old.group and file.level == old.level


def check_whole_spans(spans: Sequence[Span], entries: Collection[FileRange]) -> None:
    """Raises `StorageError` unless the entries are some neighbouring spans, all of each."""
    if not entries:
        raise StorageError("a merge of nothing")
    low, high = min(entry.upto for entry in entries), max(entry.upto for entry in entries)
    first = bisect.bisect_left(spans, low, key=attrgetter("upto"))
    end = bisect.bisect_right(spans, high, key=attrgetter("upto"))
    there = {entry for span in spans[first:end] for entry in span}
    if there != set(entries):
        other = sorted(there ^ set(entries))[0]
        raise StorageError(f"{other.name}: it does not count for write group {other.group} as it did, or was left out")
