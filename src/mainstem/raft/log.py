"""The log as a core sees it: the driver's store, and the newest entries that the store does not show yet.

    1 … applied … commit … | store … handed out | own …           last
                      persisted: anywhere up to what is handed out

Entries are appended to `own`, handed out with the next Ready, and dropped there once the store shows them; those that
this core has seen are kept in `unapplied` until they are applied, so that the store is not asked for them again. A
truncation takes effect here at once; the store hears of it with the next Ready, and is not asked about anything
behind that point until then.

Invariants: applied ≤ commit ≤ last; persisted ≤ handed out ≤ last; nothing at or below commit is ever truncated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from mainstem.raft.entry import KIND_MEMBERSHIP, Entry, Snapshot
from mainstem.raft.errors import BrokenInvariant, CommittedTruncation, Compacted, Unavailable
from mainstem.raft.membership import LoggedMembership, Membership, MembershipHistory


class LogStore(Protocol):
    """The log as the driver holds it: everything taken from a `Ready` that was advanced, durable or not.

    An empty log that begins at the beginning has first index 1 and last index 0."""

    def first_index(self) -> int:
        """The oldest entry the store has: the entry behind the newest snapshot, or an older one."""
        ...

    def last_index(self) -> int:
        """The newest entry; `first_index() - 1` if there is none."""
        ...

    def term(self, index: int) -> int:
        """The term of an entry, also of the one right before the first (0 for index 0). Raises `Compacted` for
        anything older, `Unavailable` for anything newer than the last."""
        ...

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        """Entries `first` to `last`, both included, fewer if their sizes pass `bytes_max`, but one at least.
        Raises `Compacted` or `Unavailable`."""
        ...

    def snapshot(self) -> Snapshot:
        """The newest snapshot there is, at `first_index() - 1` or later. Raises `Unavailable` if none can be had
        now: the core asks again."""
        ...


class Log:
    def __init__(self, store: LogStore, memberships: Sequence[LoggedMembership], applied_index: int) -> None:
        self.store = store
        self.memberships = MembershipHistory(memberships)
        self.last_index = store.last_index()
        self.last_term = store.term(self.last_index)
        if not store.first_index() - 1 <= applied_index <= self.last_index:
            raise BrokenInvariant(
                f"applied is {applied_index}, the log has {store.first_index()} to {self.last_index}: "
                "entries between the two are missing"
            )
        self.commit_index = applied_index
        self.applied_index = applied_index
        self.persisted_index = self.last_index
        self._own: list[Entry] = []
        self._own_first = self.last_index + 1
        self._unapplied: deque[Entry] = deque()
        """Entries handed out, ascending without gaps up to the last one."""
        self._handed_to = self.last_index
        self._truncate_from = 0

    # --- reading -------------------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        return self.store.first_index()

    def term(self, index: int) -> int:
        """Raises `Compacted`, `Unavailable`."""
        if index == self.last_index:
            return self.last_term
        if index < self._own_first:
            return self.store.term(index)
        if index > self.last_index:
            raise Unavailable(f"entry {index}: the log ends at {self.last_index}")
        return self._own[index - self._own_first].term

    def matches(self, index: int, term: int) -> bool:
        """Whether the log has the entry (`index`, `term`), or has just forgotten it."""
        if index > self.last_index:
            return False
        try:
            return self.term(index) == term
        except Compacted:
            return False

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries `first` to `last`, as many as `bytes_max` allows, one at least. Raises `Compacted`,
        `Unavailable`."""
        found: list[Entry] = []
        if first < self._own_first:
            in_store = min(last, self._own_first - 1)
            found.extend(self.store.entries(first, in_store, bytes_max))
            if last == in_store or not found or found[-1].index < in_store:
                return found
            bytes_max -= sum(entry.size for entry in found)
            first = self._own_first
        for entry in self._own[first - self._own_first : last + 1 - self._own_first]:
            bytes_max -= entry.size
            if bytes_max < 0 and found:
                break
            found.append(entry)
        return found

    def up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log with this last entry is at least as far as this one: the voters' condition."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def floor(self, index: int, term: int, least: int) -> tuple[int, int]:
        """The last entry at or below `index` with a term of at most `term`, as (index, term); not below `least`.

        Another log with an entry (`index`, `term`) cannot match this one above that. Terms never fall along a log."""
        low = max(least, self.first_index - 1)
        high = max(min(index, self.last_index), low)
        while low < high:
            middle = (low + high + 1) // 2
            if self.term(middle) <= term:
                low = middle
            else:
                high = middle - 1
        return low, self.term(low)

    # --- writing -------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries behind the last."""
        for entry in entries:
            if entry.index != self.last_index + 1 or entry.term < self.last_term:
                raise BrokenInvariant(
                    f"entry ({entry.index}, term {entry.term}) behind ({self.last_index}, term {self.last_term})"
                )
            self._own.append(entry)
            self.last_index = entry.index
            self.last_term = entry.term
            if entry.kind == KIND_MEMBERSHIP:
                assert isinstance(entry.data, Membership), f"entry {entry.index} is no membership: {entry.data!r}"
                self.memberships.append(entry.index, entry.data)

    def append_stored(self, term: int) -> int:
        """Add an entry that the store shows at once, and return its index. The store must show all entries before
        it."""
        assert self._handed_to == self.last_index, "the store does not show all there is"
        self._unapplied.clear()
        self.last_index = self._handed_to = index = self.last_index + 1
        self._own_first = index + 1
        self.last_term = term
        return index

    def merge(self, previous_index: int, entries: Sequence[Entry]) -> None:
        """Take a leader's entries behind `previous_index`, which matches: equal entries stay, and from the first
        difference on the leader's entries replace these. Raises `CommittedTruncation`."""
        if previous_index != self.last_index:
            for at, entry in enumerate(entries):
                if entry.index > self.last_index:
                    entries = entries[at:]
                    break
                if self.term(entry.index) != entry.term:
                    self.check_committed(entry.index, entry.term)
                    self.truncate_from(entry.index)
                    entries = entries[at:]
                    break
            else:
                return
        self.append(entries)

    def check_committed(self, index: int, term: int) -> None:
        """A leader has the entry (`index`, `term`): raises `CommittedTruncation` if that contradicts a committed one
        that is still here."""
        if index <= self.commit_index and index >= self.first_index - 1 and self.term(index) != term:
            raise CommittedTruncation(
                f"entry {index} of term {self.term(index)} is committed here (up to {self.commit_index}), but the "
                f"leader has one of term {term} there"
            )

    def truncate_from(self, index: int) -> None:
        """Drop entry `index`, which is not committed, and all behind it."""
        if index < self._own_first:
            self._own.clear()
            self._own_first = index
        else:
            del self._own[index - self._own_first :]
        while self._unapplied and self._unapplied[-1].index >= index:
            self._unapplied.pop()
        if index <= self._handed_to:
            self._truncate_from = min(index, self._truncate_from or index)
            self._handed_to = index - 1
        self.persisted_index = min(self.persisted_index, index - 1)
        self.last_term = self.term(index - 1) if index - 1 != self.last_index else self.last_term
        self.last_index = index - 1
        self.memberships.truncate_from(index)

    def reset(self, snapshot: Snapshot) -> None:
        """A snapshot replaced state and log; the store begins behind it and is empty."""
        index = snapshot.index
        self._own.clear()
        self._own_first = index + 1
        self._unapplied.clear()
        self._handed_to = self.last_index = index
        self._truncate_from = 0
        self.last_term = snapshot.term
        self.commit_index = self.applied_index = self.persisted_index = index
        self.memberships.reset(index, snapshot.membership)

    # --- progress ------------------------------------------------------------------------------------------

    def commit_to(self, index: int) -> None:
        """Take note that everything up to `index` is committed."""
        if index > self.last_index:
            raise BrokenInvariant(f"entry {index} is committed, but this log ends at {self.last_index}")
        self.commit_index = max(self.commit_index, index)

    def persisted(self, index: int, term: int) -> bool:
        """Take note that the store is durable up to (`index`, `term`). Returns whether that is news; truncated entries
        are none."""
        if not self.persisted_index < index <= self._handed_to or self.term(index) != term:
            return False
        self.persisted_index = index
        return True

    @property
    def applicable_index(self) -> int:
        """The last entry that may be applied. Entries that are not durable here wait: otherwise a checkpoint of the
        applied state could outlive the entries it was made of."""
        return min(self.commit_index, self.persisted_index)

    # --- handing out ---------------------------------------------------------------------------------------

    def take(self) -> tuple[int, tuple[Entry, ...]]:
        """The store's work: truncate from this index on (0: nothing), then append these entries."""
        truncate_from = self._truncate_from
        self._truncate_from = 0
        if self._handed_to == self.last_index:
            return truncate_from, ()
        entries = tuple(self._own[self._handed_to + 1 - self._own_first :])
        self._unapplied.extend(entries)
        self._handed_to = self.last_index
        return truncate_from, entries

    def to_apply(self, bytes_max: int) -> tuple[Entry, ...]:
        """The next entries that may be applied, as many as `bytes_max` allows, one at least if there is any."""
        first, last = self.applied_index + 1, self.applicable_index
        if first > last:
            return ()
        unapplied = self._unapplied
        if not unapplied or unapplied[0].index != first:  # from before this core
            return tuple(self.entries(first, last, bytes_max))
        found: list[Entry] = []
        for entry in unapplied:
            bytes_max -= entry.size
            if entry.index > last or (bytes_max < 0 and found):
                break
            found.append(entry)
        return tuple(found)

    def advance(self) -> None:
        """Take note that the store shows the entries that were taken."""
        if self._own_first <= self._handed_to:
            del self._own[: self._handed_to + 1 - self._own_first]
            self._own_first = self._handed_to + 1

    def applied(self, index: int) -> None:
        self.applied_index = index
        while self._unapplied and self._unapplied[0].index <= index:
            self._unapplied.popleft()
        self.memberships.forget_before(index)
