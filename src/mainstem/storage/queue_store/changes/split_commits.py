"""Commits of splits: a write group's blocks, up to its new position, are in these runs.

A run may cover several write groups; it counts for a write group once that one's commit is in the manifest, and a write
group whose commit was refused never sees it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.manifest.manifest_database import GroupCommit
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import FileKind, StoreFile, kind_of

LOST_CLASS = "forever"
"""Retention class of runs that replace blocks lost before they were split: they may hold any topic."""


class CommitOutcome(enum.Enum):
    COMMITTED = "committed"
    REPLAY = "replay"
    """The range is behind the group's position: it was committed before. Nothing changed."""
    GAP = "gap"
    """The range does not start at the group's position. Nothing changed."""


class SplitCommits:
    """Says how far each write group is split, and makes the commits that move it on."""

    def __init__(self, stored: StoredFiles, changes: StoreChanges, orphans: Orphans) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._changes = changes
        self._orphans = orphans

    def split_position(self, group: int) -> int:
        """The index of the group's last block that is split; 0 at first."""
        return self._manifest.position(group).position

    def applied_index(self, group: int) -> int:
        """The index of the control block whose commit was the group's last; 0 at first."""
        return self._manifest.position(group).applied_index

    def journal_index(self, group: int) -> int:
        """The last block of the write group that was split here, so the journal had at least this block."""
        return min(self._manifest.position(group))

    async def verify(self, files: Sequence[StoreFile]) -> None:
        """Check that the files of a commit are there, whole, and as described: call this before the commit is decided,
        while holding them. Raises `StorageError`."""
        for file in files:
            if file.name in self._changes.going:
                raise StorageError(f"{file.name}: retention drops it, since no batch of it counted; split again")
            if file.name not in self._manifest.dropped:
                self._orphans.spare(file.name)
                await self._stored.verify(file)

    async def commit(
        self, group: int, after: int, upto: int, files: Sequence[StoreFile], *, applied_index: int
    ) -> CommitOutcome:
        """Record that blocks (after, upto] of a write group are in these runs: compare-and-set on its split position.

        Durable when it returns. Raises `StorageError`, nothing being changed, when a file is missing or not
        what it is described as; a file that retention dropped since another group's commit is left out."""
        (outcome,) = await self.commit_all([GroupCommit(group, after, upto, tuple(files), applied_index)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def commit_all(self, commits: Sequence[GroupCommit]) -> list[CommitOutcome | StorageError]:
        """Make many commits, in order, in one durable step, and return the outcome of each. An error prevents the
        commits of its own write group, not those of others. Raises `StorageError`, nothing being changed, when none
        can."""
        async with self._changes.lock:
            outcomes: list[CommitOutcome | StorageError] = []
            accepted: list[GroupCommit] = []
            positions: dict[int, int] = {}
            failed: dict[int, StorageError] = {}
            for commit in commits:
                position = positions.get(commit.group, self.split_position(commit.group))
                if commit.group in failed:
                    outcomes.append(failed[commit.group])
                elif commit.upto <= position:
                    outcomes.append(CommitOutcome.REPLAY)
                elif commit.after != position:
                    outcomes.append(CommitOutcome.GAP)
                else:
                    try:
                        accepted.append(await self._acceptable(commit))
                    except (StorageError, OSError) as error:
                        failed[commit.group] = refused = StorageError(str(error))
                        refused.__cause__ = error
                        outcomes.append(refused)
                    else:
                        positions[commit.group] = commit.upto
                        outcomes.append(CommitOutcome.COMMITTED)
            if accepted:
                await self._changes.commit(accepted)
        return outcomes

    async def _acceptable(self, commit: GroupCommit) -> GroupCommit:
        """The commit without runs that retention dropped, every file checked. Raises `StorageError`, OSError."""
        assert commit.after <= commit.upto
        kept = tuple(file for file in commit.files if file.name not in self._manifest.dropped)
        for file in kept:
            await self._stored.verify(file)
        return commit._replace(files=kept)

    async def lose(self, group: int, upto: int, name: str, why: str, *, applied_index: int) -> None:
        """Record a missing run in place of a write group's unsplit blocks up to this one, which this node's journal has
        lost. Readers that need it get an error, and the repair makes it anew from other replicas, as any lost run.
        Durable when it returns. Raises `StorageError`."""
        assert kind_of(name) is FileKind.RUN
        file = StoreFile(
            name=name, retention_class=LOST_CLASS, bytes=0, batch_bytes=0, batch_count=0, record_count=0,
            queue_count=0, min_timestamp=0, max_timestamp=0,
        )  # fmt: skip
        async with self._changes.lock:
            await self._changes.commit([GroupCommit(group, self.split_position(group), upto, (file,), applied_index)])
        self._stored.damaged.note(name, StorageError(f"{name}: {why}"))
