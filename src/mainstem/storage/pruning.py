"""Which journal segments may go: those in which every block is split, or nothing lives any more.

A segment is recycled only when its index is written (so that lookups never depend on memory), a checkpoint lies
behind it, and the manifest, not merely the log, says that its blocks are split.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainstem.storage.applied import AppliedState
from mainstem.storage.checkpointer import Checkpointer
from mainstem.storage.journal.blocks import Rows
from mainstem.storage.journal.journal import Journal, SegmentInfo
from mainstem.storage.liveness import Liveness
from mainstem.storage.write_group import WriteGroup
from mainstem.storage.write_loop import WriteLoop


class Pruning:
    """Recycles the journal of a node from its oldest segment on."""

    def __init__(
        self,
        journal: Journal,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        write_loop: WriteLoop,
        checkpointer: Checkpointer,
        liveness: Liveness,
        *,
        checkpoint_seconds: float,
    ) -> None:
        self._journal = journal
        self._groups = groups
        self._state = state
        self._write_loop = write_loop
        self._checkpointer = checkpointer
        self._liveness = liveness
        self._checkpoint_seconds = checkpoint_seconds
        self._witness: tuple[int, Rows | None] = (0, None)
        """The oldest unsplit segment's sequence, and a row of it that was live when last looked at."""
        self.pruned_segments = 0

    async def prune(self) -> None:
        """Recycle the longest prefix of the journal in which everything is split or dead."""
        free: list[SegmentInfo] = []
        for segment in self._journal.segments():
            if not segment.index_ready or not await self._superfluous(segment):
                break
            free.append(segment)
        await self._recycle(free)  # first what needs nothing of a disk that may be full
        uncovered = bool(free) and self._checkpointer.position < free[-1].end
        if uncovered and self._checkpointer.seconds_since >= self._checkpoint_seconds:
            await self._checkpointer.checkpoint()
            await self._recycle(free)
        left = self._journal.segments()
        if len(left) == 1 and free[-1:] == left and self._state.journal_map.holds_data(left[0].sequence):
            self._open_another()

    def _open_another(self) -> None:
        """All that is left is split, and held only because nothing was written behind it: write a little."""
        group = next((group for group in self._groups if group.serving), None)
        if group is not None:  # else a leader elsewhere does it
            group.propose([]).add_done_callback(_looked_at)
            self._write_loop.wake()

    async def _recycle(self, free: Sequence[SegmentInfo]) -> None:
        """Recycle those of the superfluous segments that a checkpoint lies behind."""
        covered = [segment for segment in free if segment.end <= self._checkpointer.position]
        if not covered:
            return
        recycled = await self._journal.recycle(covered[-1].sequence + 1)
        self.pruned_segments += len(recycled)
        if recycled:
            self._state.journal_map.drop(recycled[-1] + 1)
            for group in self._groups:
                group.blocks.forget_to(self._state.journal_map.pruned(group.group))

    async def _superfluous(self, segment: SegmentInfo) -> bool:
        """Is every block of the segment split, or is nothing in it live? In that case the split position is
        moved over it, as if what is left there had been split."""
        mark = self._state.journal_map.at_end_of(segment.sequence)
        if mark is None:
            return True
        last = mark.last
        if self._write_loop.applied_end < segment.end:
            return False  # a block in it may still be committed, or not
        unsplit = [
            group.group
            for group in self._groups
            if mark.last_data[group.group] > self._state.manifest.written(group.group)
        ]
        if not unsplit:
            return True
        if self._write_loop.out_of_space or await self._has_live_rows(segment):
            return False
        await self._write_loop.sync()  # the log starts that say so; a crash must not take them back
        for group in unsplit:
            reached = self._state.manifest.reached(group)
            if last[group] > reached:
                self._state.split(group, reached, last[group], ())
        await self._state.manifest.drained(unsplit)
        return all(mark.last_data[group] <= self._state.manifest.written(group) for group in unsplit)

    async def _has_live_rows(self, segment: SegmentInfo) -> bool:
        """Whether anything in a segment is live. The row found once is asked first the next time: rounds come
        every second, and a segment waits for its split or its retention."""
        sequence, row = self._witness
        if sequence == segment.sequence and row is not None and len(self._live(row)):
            return True
        live = self._live((await self._journal.index(segment.sequence)).rows)
        self._witness = (segment.sequence, live[-1:].copy() if len(live) else None)
        return bool(len(live))

    def _live(self, rows: Rows) -> Rows:
        return rows[rows["last_offset"] >= self._liveness.log_starts(rows["queue_id"])]


def _looked_at(outcome: asyncio.Future[list[str]]) -> None:
    """Whatever came of it: there is a next round."""
    if not outcome.cancelled():
        outcome.exception()
