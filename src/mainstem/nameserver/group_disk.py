"""The disk of a member of the metadata group: makes durable what the core hands out, in that order, and tells the core
when it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from mainstem.nameserver.group_log import GroupLog, to_stored
from mainstem.nameserver.metadata_log import MetadataLog
from mainstem.nameserver.vote_file import Vote, VoteFile
from mainstem.raft import Entry, HardState, RaftCore


class GroupDisk:
    """`run` is the task; what a disk refuses (`MetadataUnavailable`) ends it."""

    def __init__(
        self,
        core: RaftCore,
        entries: GroupLog,
        metadata_log: MetadataLog,
        vote_file: VoteFile,
        told: Callable[[], None],
    ) -> None:
        """`told` is called whenever the core was told something."""
        self._core = core
        self._entries = entries
        self._log = metadata_log
        self._vote_file = vote_file
        self._told = told
        self._to_write: deque[HardState | Sequence[Entry]] = deque()  # bounded by the core
        self._has_to_write = asyncio.Event()

    def write(self, what: HardState | Sequence[Entry]) -> None:
        """Make this durable behind everything handed in before."""
        self._to_write.append(what)
        self._has_to_write.set()

    async def run(self) -> None:
        while True:
            await self._has_to_write.wait()
            self._has_to_write.clear()
            while self._to_write:
                work = self._to_write.popleft()
                if isinstance(work, HardState):
                    await self._write_vote(work)
                else:
                    await self._write_entries(work)
                self._told()

    async def _write_vote(self, hard_state: HardState) -> None:
        await self._vote_file.write(Vote(hard_state.term, hard_state.vote or None, self._commit))
        self._core.hard_state_persisted(hard_state)

    async def _write_entries(self, first: Sequence[Entry]) -> None:
        """One sync for all that follow each other."""
        entries = list(first)
        while self._to_write:
            following = self._to_write[0]
            if isinstance(following, HardState) or following[0].index != entries[-1].index + 1:
                break
            entries.extend(following)
            self._to_write.popleft()
        await self._log.append([to_stored(entry) for entry in entries])
        if self._entries.has(entries[-1].index, entries[-1].term):
            self._core.persisted(entries[-1].index, entries[-1].term)

    @property
    def _commit(self) -> int:
        """How far the log on the disk is committed."""
        return min(self._core.commit_index, self._log.last_index)

    async def remember_commit(self) -> None:
        """Note at a stop how far the state may be applied at the next start, before there is a leader."""
        vote = self._vote_file.vote
        if self._commit > vote.commit:
            await self._vote_file.write(vote._replace(commit=self._commit))
