"""The metadata quorum's log in memory, as its core reads it, and the form of an entry on disk and on the
wire.

The log holds every entry behind the newest snapshot, and some before it for members that are a little late; a member
that is later still gets a snapshot. An entry's `data` is the encoded change (bytes), or the `Membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mainstem.nameserver.disk.log_format import LogEntry, LogRecordKind
from mainstem.raft import (
    KIND_DATA,
    KIND_MEMBERSHIP,
    KIND_NO_OP,
    Compacted,
    Membership,
    Snapshot,
    Unavailable,
)
from mainstem.raft import Entry as RaftEntry
from mainstem.rpc.raft.raft_member import Carried

ENTRIES_KEPT_MAX = 1_000
"""Applied entries that stay in memory for late members: as many changes as a restart misses."""
BYTES_KEPT_MAX = 4 * 1024 * 1024

_RAFT_KINDS = {
    LogRecordKind.CHANGE: KIND_DATA,
    LogRecordKind.NO_OP: KIND_NO_OP,
    LogRecordKind.MEMBERSHIP: KIND_MEMBERSHIP,
}
_STORED_KINDS = {raft: stored for stored, raft in _RAFT_KINDS.items()}


class _Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    voters: list[int]
    learners: list[int]


def encode_membership(membership: Membership) -> bytes:
    return msgspec.msgpack.encode(_Members(sorted(membership.voters), sorted(membership.learners)))


def decode_membership(data: bytes) -> Membership:
    """Raises ValueError."""
    members = msgspec.msgpack.decode(data, type=_Members)
    membership = Membership.of(members.voters, members.learners)
    if not membership.voters or membership.voters & membership.learners or min(membership.members) < 1:
        raise ValueError(f"a membership of voters {members.voters} and learners {members.learners}")
    return membership


def to_stored(entry: RaftEntry) -> LogEntry:
    return LogEntry(entry.index, entry.term, _STORED_KINDS[entry.kind], _payload(entry))


def from_stored(entry: LogEntry) -> RaftEntry:
    """Raises ValueError."""
    data: object = decode_membership(entry.payload) if entry.kind == LogRecordKind.MEMBERSHIP else entry.payload
    return RaftEntry(entry.term, entry.index, _RAFT_KINDS[entry.kind], len(entry.payload), data)


def to_wire(entry: RaftEntry) -> Carried:
    return Carried((), (_payload(entry),))


def from_wire(term: int, index: int, kind: int, attachment: memoryview) -> RaftEntry:
    """Raises ValueError."""
    if kind not in _STORED_KINDS:
        raise ValueError(f"entry {index} of the metadata quorum is of kind {kind}")
    return from_stored(LogEntry(index, term, _STORED_KINDS[kind], bytes(attachment)))


def _payload(entry: RaftEntry) -> bytes:
    data = entry.data
    if isinstance(data, Membership):
        return encode_membership(data)
    if data is None:
        return b""
    assert isinstance(data, bytes), "a change is logged in its encoded form"
    return data


class QuorumLog:
    """Implements `raft.LogStore`, over a list of entries in memory."""

    def __init__(self, first_index: int, term_before: int, entries: Sequence[RaftEntry]) -> None:
        self._first_index = first_index
        self._term_before = term_before
        self._entries = list(entries)
        self._snapshot_now: Callable[[], Snapshot | None] = lambda: None

    # raft.LogStore

    def first_index(self) -> int:
        return self._first_index

    def last_index(self) -> int:
        return self._first_index + len(self._entries) - 1

    def term(self, index: int) -> int:
        if index == self._first_index - 1:
            return self._term_before
        return self._entries[self._position(index)].term

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        start = self._position(first)
        stop = self._position(last) + 1
        size = 0
        for position in range(start, stop):
            size += self._entries[position].size
            if size > bytes_max and position > start:
                return self._entries[start:position]
        return self._entries[start:stop]

    def snapshot(self) -> Snapshot:
        snapshot = self._snapshot_now()
        if snapshot is None or snapshot.index < self._first_index - 1:
            raise Unavailable("the metadata has no snapshot at hand")
        return snapshot

    # called by the driver

    def snapshots_come_from(self, snapshot_now: Callable[[], Snapshot | None]) -> None:
        """`snapshot_now` returns the name of a snapshot of the applied state; None: none can be made now. Until this is
        called there is none."""
        self._snapshot_now = snapshot_now

    def has(self, index: int, term: int) -> bool:
        """Whether the log has this very entry, or a snapshot covers it."""
        if index < self._first_index:
            return True
        return index <= self.last_index() and self.term(index) == term

    def behind(self, index: int) -> list[RaftEntry]:
        """The entries that follow `index`."""
        return self._entries[max(0, index + 1 - self._first_index) :]

    def truncate_from(self, index: int) -> None:
        del self._entries[self._position(index) :]

    def extend(self, entries: Sequence[RaftEntry]) -> None:
        assert not entries or entries[0].index == self.last_index() + 1, "entries follow each other"
        self._entries.extend(entries)

    def release(self, upto: int) -> None:
        """A snapshot covers the entries up to `upto`: keep only as many as late members may need."""
        position, count, size = self._position(upto) if upto >= self._first_index else -1, 0, 0
        while position >= 0 and count < ENTRIES_KEPT_MAX and size < BYTES_KEPT_MAX:
            count += 1
            size += self._entries[position].size
            position -= 1
        if position >= 0:
            self._term_before = self._entries[position].term
            del self._entries[: position + 1]
            self._first_index += position + 1

    def reset(self, index: int, term: int) -> None:
        """A snapshot replaced everything up to `index`, and all entries behind it."""
        self._first_index, self._term_before, self._entries = index + 1, term, []

    def _position(self, index: int) -> int:
        if index < self._first_index:
            raise Compacted(
                f"entry {index} of the metadata quorum is in a snapshot, the log begins at {self._first_index}"
            )
        if index > self.last_index():
            raise Unavailable(f"entry {index} of the metadata quorum is behind the last, {self.last_index()}")
        return index - self._first_index
