"""Recycles journal segments in which every block is split, or no batch is live any more.

A segment is recycled only when its index is written (so that lookups never depend on memory), a checkpoint lies
behind it, and the manifest, not merely the log, says that its blocks are split; a manifest that does not say so any
more, because the end of its file was lost, must be found out by the store's mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainstem.storage.journal.encoding.blocks import Rows
from mainstem.storage.journal.journal import Journal, SegmentInfo
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queues.committed_reads import LocalCommittedReads
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.checkpointer import Checkpointer
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

ROWS_PER_TURN = 1 << 14
"""Rows of a segment's index checked in one turn of the event loop: a millisecond. With small batches an index has half
a million rows."""


class Pruning:
    """Recycles the journal of a node from its oldest segment on."""

    def __init__(
        self,
        journal: Journal,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        write_loop: WriteLoop,
        checkpointer: Checkpointer,
        liveness: QueueLiveness,
        committed_reads: LocalCommittedReads,
        *,
        checkpoint_seconds: float,
    ) -> None:
        self._journal = journal
        self._groups = groups
        self._state = state
        self._write_loop = write_loop
        self._checkpointer = checkpointer
        self._liveness = liveness
        self._committed_reads = committed_reads
        self._checkpoint_seconds = checkpoint_seconds
        self._witness: tuple[int, Rows | None] = (0, None)
        """The oldest unsplit segment's sequence, and a row of it that was live at the last look."""
        self.pruned_segments = 0

    async def prune(self) -> None:
        """Recycle the longest prefix of the journal in which everything is split or dead."""
        self._committed_reads.prune(self._state.manifest.written)
        free: list[SegmentInfo] = []
        for segment in self._journal.segments():
            if not segment.index_ready or not await self.is_superfluous(segment):
                break
            free.append(segment)
        if free:
            await self._state.manifest.vouch()
        await self._recycle(free)  # first the segments that need no write on a disk that may be full
        uncovered = bool(free) and self._checkpointer.position < free[-1].end
        if uncovered and self._checkpointer.seconds_since >= self._checkpoint_seconds:
            await self._checkpointer.checkpoint()
            await self._recycle(free)
        left = self._journal.segments()
        if len(left) == 1 and free[-1:] == left and self._state.journal_map.holds_data(left[0].sequence):
            self._open_another()

    def _open_another(self) -> None:
        """Write an empty control block: all remaining segments are split, and kept only because no block was written
        behind them."""
        group = next((group for group in self._groups if group.serving), None)
        if group is not None:  # otherwise a leader elsewhere does it
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

    async def is_superfluous(self, segment: SegmentInfo) -> bool:
        """Whether every block of the segment is split, or none of its batches is live. In the latter case the split
        position is moved over it, as if its remaining blocks had been split."""
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
        await self._write_loop.sync()  # makes the log starts durable; a crash must not take them back
        for group in unsplit:
            reached = self._state.manifest.reached(group)
            if last[group] > reached:
                await self._state.pass_over(group, last[group])
        await self._state.manifest.drained(unsplit)
        return all(mark.last_data[group] <= self._state.manifest.written(group) for group in unsplit)

    async def _has_live_rows(self, segment: SegmentInfo) -> bool:
        """Whether any batch in a segment is live. A row found live is checked first the next time: rounds come every
        second, and a segment waits for its split or its retention."""
        sequence, row = self._witness
        if sequence == segment.sequence and row is not None and len(self._live(row)):
            return True
        rows = (await self._journal.index(segment.sequence)).rows
        for end in range(len(rows), 0, -ROWS_PER_TURN):
            if end < len(rows):
                await asyncio.sleep(0)
            live = self._live(rows[max(0, end - ROWS_PER_TURN) : end])
            if len(live):
                self._witness = (segment.sequence, live[-1:].copy())
                return True
        self._witness = (segment.sequence, None)
        return False

    def _live(self, rows: Rows) -> Rows:
        return rows[rows["last_offset"] >= self._liveness.log_starts(rows["queue_id"])]


def _looked_at(outcome: asyncio.Future[list[str]]) -> None:
    """Ignore the outcome: the next round tries again."""
    if not outcome.cancelled():
        outcome.exception()
