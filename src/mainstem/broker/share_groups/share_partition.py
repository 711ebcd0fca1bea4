"""The window of one share group over one partition: from the first offset that is not done to the last that was given
out. It does no I/O and knows no clock.

Each offset in it is in one state:

    available ── acquired by a member ──► acquired ── accepted ──► acknowledged
        ▲                                    │ └────── rejected, or a gap ──► archived
        └── released, or the lock ran out ───┘ (archived instead when it was given out as often as it may be)

State that must survive a restart changes in `apply` alone, which takes what the log says; acquired records are not in
the log: whoever loads it finds them available, as often given out as it was last noted.

The window is kept as runs, neighbours that differ, so that a batch of records costs as much as one.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mainstem.protocol.messages.share_state_records import ShareStateBatch


class RecordState(enum.IntEnum):
    """Kafka's numbers, as records have them."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(slots=True)
class Run:
    """Neighbouring offsets in one state."""

    first: int
    last: int
    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    member_id: str = ""
    """Of acquired ones."""
    lock_ends_ms: int = 0
    """Of acquired ones; monotonic."""

    def continued_by(self, other: Run) -> bool:
        return (
            self.last + 1 == other.first
            and self.state is other.state
            and self.deliveries == other.deliveries
            and self.member_id == other.member_id
            and self.lock_ends_ms == other.lock_ends_ms
        )

    def batch(self) -> ShareStateBatch:
        state = RecordState.AVAILABLE if self.state is RecordState.ACQUIRED else self.state
        return ShareStateBatch(
            first_offset=self.first, last_offset=self.last, delivery_state=int(state), delivery_count=self.deliveries
        )


class Acquired(NamedTuple):
    """Offsets given to a member, the last one included, and how often they were given out, this time included."""

    first: int
    last: int
    deliveries: int


class BatchSpan(NamedTuple):
    """The offsets of a batch that was read, the last one included."""

    first: int
    last: int


@dataclass(slots=True)
class SharePartition:
    """`start` is the first offset that is not done; `end` follows the last one that was given out."""

    start: int
    runs: list[Run]

    @classmethod
    def beginning_at(cls, start: int) -> SharePartition:
        return cls(start, [])

    @property
    def end(self) -> int:
        return self.runs[-1].last + 1 if self.runs else self.start

    @property
    def acquired(self) -> int:
        """How many offsets members have now."""
        runs = list(self.runs)  # metrics are read in another thread
        return sum(run.last - run.first + 1 for run in runs if run.state is RecordState.ACQUIRED)

    @property
    def done(self) -> int:
        """How many offsets of the window nobody gets any more."""
        return sum(run.last - run.first + 1 for run in self.runs if run.state.is_final)

    # --- what the log says ---------------------------------------------------------------------------

    def apply(self, start: int, batches: Iterable[ShareStateBatch]) -> None:
        """Offsets have come to other states, and the window begins at `start` from now on."""
        for batch in batches:
            first = max(batch.first_offset, self.start)
            if first > batch.last_offset:
                continue
            if first > self.end:
                self.runs.append(Run(self.end, first - 1))
            self._replace(Run(first, batch.last_offset, RecordState(batch.delivery_state), batch.delivery_count))
        self._begin_at(start)

    def batches(self) -> tuple[ShareStateBatch, ...]:
        """The window as records say it: acquired records are available, as often given out as before."""
        return tuple(run.batch() for run in self.runs if run.state is not RecordState.AVAILABLE or run.deliveries)

    # --- fetches -------------------------------------------------------------------------------------

    def next_offset(self, locks_max: int) -> int | None:
        """The offset to read from next: the first available one, or that behind the window; None when the window is as
        long as it may be, and nothing in it is available."""
        for run in self.runs:
            if run.state is RecordState.AVAILABLE:
                return run.first
        return self.end if self.end - self.start < locks_max else None

    def skip(self, first: int, last: int) -> None:
        """Offsets that were read over and do not exist: nobody gets them. The log need not know: whoever finds them
        available reads over them again."""
        if first > last or last < self.start:
            return
        if last >= self.end:
            self.runs.append(Run(self.end, last))
        for run in self._cut(max(first, self.start), last):
            if run.state is RecordState.AVAILABLE:
                run.state, run.deliveries = RecordState.ARCHIVED, 0
        self._settle()

    def acquire(
        self, member_id: str, span: BatchSpan, records_max: int, lock_ends_ms: int, locks_max: int
    ) -> list[Acquired]:
        """Give a member what is available of a batch that was read, oldest first, up to `records_max`."""
        first, last = max(span.first, self.start), min(span.last, self.start + locks_max - 1)
        if first > last:
            return []
        if last >= self.end:
            self.runs.append(Run(self.end, last))
        taken: list[Acquired] = []
        room = records_max
        for run in self._cut(first, last):
            if room <= 0:
                break
            if run.state is not RecordState.AVAILABLE:
                continue
            self._cut(run.first, min(run.last, run.first + room - 1))
            room -= run.last - run.first + 1
            run.state, run.deliveries = RecordState.ACQUIRED, run.deliveries + 1
            run.member_id, run.lock_ends_ms = member_id, lock_ends_ms
            taken.append(Acquired(run.first, run.last, run.deliveries))
        self._settle()
        return taken

    # --- acknowledgements ----------------------------------------------------------------------------

    def holds(self, member_id: str, first: int, last: int) -> bool:
        """Whether a member has all of these offsets."""
        if first < self.start or last >= self.end:
            return False
        return all(
            run.state is RecordState.ACQUIRED and run.member_id == member_id for run in self._overlapping(first, last)
        )

    def renew(self, first: int, last: int, lock_ends_ms: int) -> None:
        """Acquired offsets stay with their member for longer."""
        for run in self._cut(first, last):
            run.lock_ends_ms = lock_ends_ms
        self._merge()

    def given_back(self, first: int, last: int, deliveries_max: int) -> list[ShareStateBatch]:
        """The next state of acquired offsets that were not worked on: others get them, unless they were given out as
        often as they may be."""
        found = []
        for run in self._overlapping(first, last):
            state = RecordState.ARCHIVED if run.deliveries >= deliveries_max else RecordState.AVAILABLE
            found.append(_batch(max(run.first, first), min(run.last, last), state, run.deliveries))
        return found

    def settled(self, first: int, last: int, state: RecordState) -> list[ShareStateBatch]:
        """The next state of acquired offsets that are done."""
        return [
            _batch(max(run.first, first), min(run.last, last), state, run.deliveries)
            for run in self._overlapping(first, last)
        ]

    def held_by(self, member_id: str) -> list[Run]:
        return [run for run in self.runs if run.state is RecordState.ACQUIRED and run.member_id == member_id]

    def overdue(self, now_ms: int) -> list[Run]:
        """Acquired offsets whose lock has run out."""
        return [run for run in self.runs if run.state is RecordState.ACQUIRED and run.lock_ends_ms <= now_ms]

    def next_deadline_ms(self) -> int | None:
        """When the next lock runs out."""
        return min((run.lock_ends_ms for run in self.runs if run.state is RecordState.ACQUIRED), default=None)

    def start_after(self, batches: Sequence[ShareStateBatch]) -> int:
        """The window's start once these offsets have come to these states."""
        if not any(
            batch.first_offset <= self.start <= batch.last_offset and RecordState(batch.delivery_state).is_final
            for batch in batches
        ):
            return self.start
        later = SharePartition(self.start, [replace(run) for run in self.runs])
        later.apply(self.start, batches)
        return later.start

    # --- internals -----------------------------------------------------------------------------------

    def _index(self, offset: int) -> int:
        """Of the run that holds an offset of the window."""
        return bisect_right(self.runs, offset, key=lambda run: run.first) - 1

    def _overlapping(self, first: int, last: int) -> Iterator[Run]:
        index = max(self._index(first), 0)
        while index < len(self.runs) and self.runs[index].first <= last:
            if self.runs[index].last >= first:
                yield self.runs[index]
            index += 1

    def _cut(self, first: int, last: int) -> list[Run]:
        """The runs of these offsets, with none that goes beyond them."""
        for edge in (first, last + 1):
            index = self._index(edge)
            if index < 0 or not self.runs[index].first < edge <= self.runs[index].last:
                continue
            run = self.runs[index]
            self.runs.insert(index + 1, Run(edge, run.last, run.state, run.deliveries, run.member_id, run.lock_ends_ms))
            run.last = edge - 1
        return list(self._overlapping(first, last))

    def _replace(self, run: Run) -> None:
        inside = self._cut(run.first, run.last)
        index = self._index(run.first) if inside else len(self.runs)
        self.runs[index : index + len(inside)] = [run]

    def _begin_at(self, start: int) -> None:
        if start > self.start:
            self._cut(self.start, start - 1)
            self.runs = [run for run in self.runs if run.first >= start]
            self.start = start
        self._settle()

    def _settle(self) -> None:
        """Bring the window into its one form: what is done at its start is no part of it."""
        done = 0
        while done < len(self.runs) and self.runs[done].state.is_final:
            done += 1
        if done:
            self.start = self.runs[done - 1].last + 1
            del self.runs[:done]
        self._trim_end()
        self._merge()

    def _trim_end(self) -> None:
        """Offsets at the end of the window that nobody was ever given are behind it."""
        while self.runs and self.runs[-1].state is RecordState.AVAILABLE and not self.runs[-1].deliveries:
            self.runs.pop()

    def _merge(self) -> None:
        merged: list[Run] = []
        for run in self.runs:
            if merged and merged[-1].continued_by(run):
                merged[-1].last = run.last
            else:
                merged.append(run)
        self.runs = merged


def _batch(first: int, last: int, state: RecordState, deliveries: int) -> ShareStateBatch:
    return ShareStateBatch(first_offset=first, last_offset=last, delivery_state=int(state), delivery_count=deliveries)
