"""Records splits: a write group's blocks, up to its new position, are in these runs.

A run may cover several write groups; it counts for a write group once that one's split is in the manifest, and a write
group whose split was refused never sees it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupSplit
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import FileKind, StoreFile, kind_of

LOST_CLASS = "forever"
"""Retention class of runs that replace blocks lost before they were split: they may hold any topic."""


class SplitOutcome(enum.Enum):
    RECORDED = "recorded"
    REPLAY = "replay"
    """The range is behind the group's position: it was recorded before. Nothing changed."""
    GAP = "gap"
    """The range does not start at the group's position. Nothing changed."""


class Splits:
    """Says how far each write group is split, and records the splits that move it on."""

    def __init__(self, stored: StoredFiles, changes: StoreChanges, orphans: Orphans) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._changes = changes
        self._orphans = orphans

    def split_position(self, group: int) -> int:
        """The index of the group's last block that is split; 0 at first."""
        return self._manifest.position(group).position

    def applied_index(self, group: int) -> int:
        """The write group's last block when its last split was decided; 0 at first."""
        return self._manifest.position(group).applied_index

    def journal_index(self, group: int) -> int:
        """The last block of the write group that was split here, so the journal had at least this block."""
        return min(self._manifest.position(group))

    async def verify(self, files: Sequence[StoreFile]) -> None:
        """Check that the files of a split are there, whole, and as described: call this before the split is decided,
        while holding them. Raises `StorageError`."""
        for file in files:
            if file.name in self._changes.going:
                raise StorageError(f"{file.name}: retention drops it, since no batch of it counted; split again")
            if file.name not in self._manifest.dropped:
                self._orphans.spare(file.name)
                await self._stored.verify(file)

    async def record(
        self, group: int, after: int, upto: int, files: Sequence[StoreFile], *, applied_index: int
    ) -> SplitOutcome:
        """Record that blocks (after, upto] of a write group are in these runs: compare-and-set on its split position.

        Durable when it returns. Raises `StorageError`, nothing being changed, when a file is missing or not
        what it is described as; a file that retention dropped since another write group's split is left out."""
        (outcome,) = await self.record_all([WriteGroupSplit(group, after, upto, tuple(files), applied_index)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def record_all(self, splits: Sequence[WriteGroupSplit]) -> list[SplitOutcome | StorageError]:
        """Record many splits, in order, in one durable step, and return the outcome of each. An error prevents the
        splits of its own write group, not those of others. Raises `StorageError`, nothing being changed, when none
        can."""
        async with self._changes.lock:
            outcomes: list[SplitOutcome | StorageError] = []
            accepted: list[WriteGroupSplit] = []
            positions: dict[int, int] = {}
            failed: dict[int, StorageError] = {}
            for split in splits:
                position = positions.get(split.group, self.split_position(split.group))
                if split.group in failed:
                    outcomes.append(failed[split.group])
                elif split.upto <= position:
                    outcomes.append(SplitOutcome.REPLAY)
                elif split.after != position:
                    outcomes.append(SplitOutcome.GAP)
                else:
                    try:
                        accepted.append(await self._acceptable(split))
                    except (StorageError, OSError) as error:
                        failed[split.group] = refused = StorageError(str(error))
                        refused.__cause__ = error
                        outcomes.append(refused)
                    else:
                        positions[split.group] = split.upto
                        outcomes.append(SplitOutcome.RECORDED)
            if accepted:
                await self._changes.record_splits(accepted)
        return outcomes

    async def _acceptable(self, split: WriteGroupSplit) -> WriteGroupSplit:
        """The split without runs that retention dropped, every file checked. Raises `StorageError`, OSError."""
        assert split.after <= split.upto
        kept = tuple(file for file in split.files if file.name not in self._manifest.dropped)
        for file in kept:
            await self._stored.verify(file)
        return split._replace(files=kept)

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
            await self._changes.record_splits(
                [WriteGroupSplit(group, self.split_position(group), upto, (file,), applied_index)]
            )
        self._stored.damaged.note(name, StorageError(f"{name}: {why}"))
