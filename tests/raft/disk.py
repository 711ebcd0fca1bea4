"""The disk of one member of a group: what a driver holds of a log, what of it is durable, and what a crash leaves.

Two streams of writes, each durable in its order: the log (entries, truncations, installed snapshots) and the hard
state. A crash keeps all that was synced, and of the rest a prefix that chance decides on: writes may have reached the
disk although nobody was told.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mainstem.raft import (
    KIND_MEMBERSHIP,
    Compacted,
    Entry,
    HardState,
    LoggedMembership,
    Membership,
    Snapshot,
    Unavailable,
)

State = tuple[tuple[int, object], ...]
"""The entries that have been applied: (index, data) of every data entry."""


@dataclass
class Image:
    """A log, the newest snapshot of the applied state, and the membership right before the log's first entry."""

    membership: Membership
    base_index: int = 0
    base_term: int = 0
    entries: list[Entry] = field(default_factory=list)
    snapshot: Snapshot | None = None
    state: State = ()

    def copy(self) -> Image:
        return Image(self.membership, self.base_index, self.base_term, self.entries[:], self.snapshot, self.state)

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.entries)

    def term(self, index: int) -> int:
        if index < self.base_index:
            raise Compacted(f"entry {index}: the log begins at {self.base_index + 1}")
        if index > self.last_index:
            raise Unavailable(f"entry {index}: the log ends at {self.last_index}")
        return self.base_term if index == self.base_index else self.entries[index - self.base_index - 1].term

    def holds(self, index: int, term: int) -> bool:
        return index <= self.base_index or (index <= self.last_index and self.term(index) == term)

    def truncate(self, index: int) -> None:
        assert index > self.base_index
        del self.entries[index - self.base_index - 1 :]

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, f"{entry} behind {self.last_index}"
        self.entries.append(entry)

    def install(self, snapshot: Snapshot, state: State) -> None:
        self.membership = snapshot.membership
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self.entries = []
        self.snapshot, self.state = snapshot, state

    def save_snapshot(self, snapshot: Snapshot, state: State) -> None:
        self.snapshot, self.state = snapshot, state

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`."""
        for entry in self.entries[: index - self.base_index]:
            if entry.kind == KIND_MEMBERSHIP:
                assert isinstance(entry.data, Membership)
                self.membership = entry.data
        term = self.term(index)
        del self.entries[: index - self.base_index]
        self.base_index, self.base_term = index, term

    @property
    def memberships(self) -> list[LoggedMembership]:
        logged = [LoggedMembership(self.base_index, self.membership)]
        for entry in self.entries:
            if entry.kind == KIND_MEMBERSHIP:
                assert isinstance(entry.data, Membership)
                logged.append(LoggedMembership(entry.index, entry.data))
        return logged


class Disk:
    """Both streams. It is the core's `LogStore`, which sees what is written, durable or not."""

    def __init__(self, membership: Membership) -> None:
        self.seen = Image(membership)
        self.durable = Image(membership)
        self.hard_state = HardState()
        self._writes: deque[tuple[Callable[[Image], None], Entry | Snapshot | None]] = deque()
        self._hard_states: deque[HardState] = deque()

    # --- the core's port ---

    def first_index(self) -> int:
        return self.seen.base_index + 1

    def last_index(self) -> int:
        return self.seen.last_index

    def term(self, index: int) -> int:
        return self.seen.term(index)

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        if first <= self.seen.base_index:
            raise Compacted(f"entry {first}: the log begins at {self.seen.base_index + 1}")
        if last > self.seen.last_index:
            raise Unavailable(f"entry {last}: the log ends at {self.seen.last_index}")
        found: list[Entry] = []
        for index in range(first, last + 1):
            entry = self.seen.entries[index - self.seen.base_index - 1]
            bytes_max -= entry.size
            if bytes_max < 0 and found:
                break
            found.append(entry)
        return found

    def snapshot(self) -> Snapshot:
        if self.seen.snapshot is None:
            raise Unavailable("no snapshot yet")
        return self.seen.snapshot

    # --- writing ---

    def _write(self, change: Callable[[Image], None], report: Entry | Snapshot | None = None) -> None:
        change(self.seen)
        self._writes.append((change, report))

    def truncate(self, index: int) -> None:
        """From now on nothing is reported about the entries that this drops."""
        self._writes = deque(
            (change, None if isinstance(report, Entry) and report.index >= index else report)
            for change, report in self._writes
        )
        self._write(lambda image: image.truncate(index))

    def append(self, entry: Entry) -> None:
        self._write(lambda image: image.append(entry), entry)

    def install(self, snapshot: Snapshot, state: State) -> None:
        """A snapshot replaces everything; it is reported when it is durable, nothing before it is."""
        self._writes = deque((change, None) for change, _ in self._writes)
        self._write(lambda image: image.install(snapshot, state), snapshot)

    def save_snapshot(self, snapshot: Snapshot, state: State) -> None:
        self._write(lambda image: image.save_snapshot(snapshot, state))

    def compact(self, index: int) -> None:
        self._write(lambda image: image.compact(index))

    def write_hard_state(self, hard_state: HardState) -> None:
        self._hard_states.append(hard_state)

    # --- durability ---

    @property
    def writes_waiting(self) -> int:
        return len(self._writes)

    @property
    def hard_states_waiting(self) -> int:
        return len(self._hard_states)

    def sync(self, count: int) -> list[Entry | Snapshot]:
        """Make the oldest `count` writes durable; what there is to report about them: the last entry, and snapshots."""
        reports: list[Entry | Snapshot] = []
        for _ in range(count):
            change, report = self._writes.popleft()
            change(self.durable)
            if report is None:
                continue
            if reports and isinstance(report, Entry) and isinstance(reports[-1], Entry):
                reports.pop()
            reports.append(report)
        return reports

    def sync_hard_state(self) -> HardState:
        """Make the oldest hard state durable that is not yet."""
        self.hard_state = self._hard_states.popleft()
        return self.hard_state

    def lose_unsynced(self) -> None:
        """A crash after which none of it had reached the disk."""
        self._writes.clear()
        self._hard_states.clear()
        self.seen = self.durable.copy()

    def crash(self, rng: random.Random) -> None:
        self.sync(rng.randint(0, len(self._writes)))
        for _ in range(rng.randint(0, len(self._hard_states))):
            self.sync_hard_state()
        self._writes.clear()
        self._hard_states.clear()
        self.seen = self.durable.copy()
