"""The disk of a metadata quorum's member: makes durable what the core hands out, and tells the core when it
is.

Entries are written in the order they came, each after the term and vote that were handed in before it, and so is a
snapshot that replaces them (`all_written`). Term and vote overtake entries that wait for room: their place in the file
exists already, so that a member without room to log entries still votes and follows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.nameserver.disk.metadata_log import MetadataLog
from mainstem.nameserver.disk.room import Room
from mainstem.nameserver.disk.vote_file import Vote, VoteFile
from mainstem.nameserver.quorum.quorum_log import QuorumLog, to_stored
from mainstem.raft import Entry, HardState, RaftCore


class _Batch(NamedTuple):
    entries: Sequence[Entry]
    votes: int
    """How many times term and vote were handed in before this batch."""


class QuorumDisk:
    """Holds what waits to be written. `write_votes` and `write_entries` are the tasks; a refusal of the disk
    (`MetadataUnavailable`) ends them, unless it is for lack of room."""

    def __init__(
        self,
        core: RaftCore,
        entries: QuorumLog,
        metadata_log: MetadataLog,
        vote_file: VoteFile,
        room: Room,
        told: Callable[[], None],
    ) -> None:
        """`told` is called each time the core has been told of a finished write."""
        self._core = core
        self._entries = entries
        self._log = metadata_log
        self._vote_file = vote_file
        self._room = room
        self._told = told
        self._hard_state: HardState | None = None
        """The newest term and vote: it replaces all that waited before it."""
        self._votes_given = self._votes_written = 0
        self._has_vote = asyncio.Event()
        self._votes_idle = asyncio.Event()
        self._votes_idle.set()
        self._batches: deque[_Batch] = deque()  # bounded by the core
        self._has_batches = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def write(self, what: HardState | Sequence[Entry]) -> None:
        """Make this durable after all that was handed in before."""
        if isinstance(what, HardState):
            self._hard_state = what
            self._votes_given += 1
            self._has_vote.set()
            self._votes_idle.clear()
        else:
            self._batches.append(_Batch(what, self._votes_given))
            self._has_batches.set()
            self._idle.clear()

    async def all_written(self) -> None:
        """Wait until every entry that was handed in is written, and term and vote."""
        await self._votes_idle.wait()
        await self._idle.wait()

    async def write_votes(self) -> None:
        while True:
            await self._has_vote.wait()
            self._has_vote.clear()
            hard_state, count = self._hard_state, self._votes_given
            assert hard_state is not None, "there is one to write"
            vote = Vote(hard_state.term, hard_state.vote or None, self._commit)
            await self._vote_file.write(vote, self._room.wait)
            self._votes_written = count
            if count == self._votes_given:
                self._votes_idle.set()
            self._has_batches.set()
            self._core.hard_state_persisted(hard_state)
            self._told()

    async def write_entries(self) -> None:
        while True:
            await self._has_batches.wait()
            self._has_batches.clear()
            while entries := self._due():
                await self._log.append([to_stored(entry) for entry in entries], self._room.wait)
                if self._entries.has(entries[-1].index, entries[-1].term):
                    self._core.persisted(entries[-1].index, entries[-1].term)
                if not self._batches:
                    self._idle.set()
                self._told()

    def _due(self) -> list[Entry]:
        """The next entries to write: those that follow each other share one sync."""
        entries: list[Entry] = []
        while self._batches and self._batches[0].votes <= self._votes_written:
            following = self._batches[0].entries
            if entries and following[0].index != entries[-1].index + 1:
                break
            entries.extend(following)
            self._batches.popleft()
        return entries

    @property
    def _commit(self) -> int:
        """How far the log on the disk is committed: what the disk holds behind that may be about to be
        replaced."""
        return min(self._core.commit_index, self._core.persisted_index)

    async def remember_commit(self) -> None:
        """At a stop, note how far the next start may apply the state before there is a leader."""
        vote = self._vote_file.vote
        if self._commit > vote.commit:
            await self._vote_file.write(vote._replace(commit=self._commit))
