"""What the storage role does on its own: index sealed segments, checkpoint, prune, apply retention, watch disk 1.

One task does it all, one thing after the other, off the write path. The order within a round matters: a
segment is pruned only when its index is written (so that lookups never depend on memory), a checkpoint lies
behind it, and each of its blocks is either split according to the manifest or dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import numpy

from mainstem.ports import Clock, Files
from mainstem.storage import checkpoint as checkpoints
from mainstem.storage import control
from mainstem.storage.applied import AppliedState
from mainstem.storage.config import StorageConfig
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.journal import Journal, SegmentInfo
from mainstem.storage.journal_map import JournalMap
from mainstem.storage.journal_rows import in_segment, rows_of
from mainstem.storage.liveness import Liveness
from mainstem.storage.manifest_queue import ManifestQueue
from mainstem.storage.message_store import LocalMessageStore
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.queue_table import QueueTable
from mainstem.storage.retention_pass import RetentionPass
from mainstem.storage.unsplit_index import UnsplitIndex
from mainstem.storage.write_group import WriteGroup
from mainstem.storage.write_loop import WriteLoop

log = logging.getLogger(__name__)

THROTTLE_DELAY_SECONDS_MAX = 0.1
"""Pause per turn just before refusal: slow enough to be felt, far from any client's timeout."""


class Maintenance:
    """The background rounds of a node's storage."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        config: StorageConfig,
        journal: Journal,
        groups: Sequence[WriteGroup],
        table: QueueTable,
        index: UnsplitIndex,
        journal_map: JournalMap,
        manifest: ManifestQueue,
        applied: AppliedState,
        write_loop: WriteLoop,
        message_store: LocalMessageStore,
        store: QueueStore,
        retention: RetentionPass,
        liveness: Liveness,
    ) -> None:
        self._files = files
        self._clock = clock
        self._config = config
        self._journal = journal
        self._groups = groups
        self._table = table
        self._index = index
        self._map = journal_map
        self._manifest = manifest
        self._applied = applied
        self._write_loop = write_loop
        self._message_store = message_store
        self._store = store
        self._retention = retention
        self._liveness = liveness
        self._checkpoint_position = 0
        self._checkpoint_at = clock.monotonic()
        self._bytes_at_checkpoint = message_store.appended_bytes
        self._retention_at = clock.monotonic()
        self.checkpoints = 0
        self.pruned_segments = 0

    def recovered(self, checkpoint_position: int) -> None:
        """The node started from the checkpoint at this journal position."""
        self._checkpoint_position = checkpoint_position

    async def run(self) -> None:
        """Rounds until cancelled. A round that fails is logged and tried again."""
        while True:
            await asyncio.sleep(self._config.prune_seconds)
            try:
                await self.round()
            except StorageFailed:
                return
            except Exception:
                log.exception("storage maintenance failed; it is tried again")

    async def round(self) -> None:
        await self.watch_disk()
        await self._journal.roll_if_due()
        await self.index_sealed()
        now = self._clock.monotonic()
        if now - self._retention_at >= self._config.retention_check_seconds:
            self._retention_at = now
            await self.retain()
        await self.prune()
        if self._message_store.appended_bytes - self._bytes_at_checkpoint >= self._config.checkpoint_bytes:
            await self.checkpoint()

    # --- indexes of sealed segments -----------------------------------------------------------------------

    async def index_sealed(self) -> None:
        """Write the index of every sealed segment that has none, and let memory forget what it covers."""
        for segment in self._journal.segments():
            if not segment.sealed:
                break
            if not segment.index_ready:
                if self._applied.end < segment.end:
                    break
                rows = await asyncio.to_thread(rows_of, in_segment(self._index, segment.sequence))
                await self._journal.seal_index(segment.sequence, rows)
            self._index.release(segment.end)

    # --- checkpoint ---------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Save the applied state as of now, unless nothing was applied since the last one."""
        if self._applied.end > self._checkpoint_position:
            await self.save_checkpoint()

    async def save_checkpoint(self) -> None:
        """Save the applied state as of now, even one that no block led to."""
        position = self._applied.end
        ranges, images = self._table.dump()
        state = checkpoints.Checkpoint(
            position=position,
            groups={group.group: group.dump() for group in self._groups},
            ranges=ranges,
            images=images,
            journal_map=self._map.dump(),
            splits=self._manifest.dump(),
        )
        appended = self._message_store.appended_bytes
        await self._manifest.drained()
        await self._journal.sync()
        await checkpoints.save(self._files, state)
        self._checkpoint_position = position
        self._checkpoint_at = self._clock.monotonic()
        self._bytes_at_checkpoint = appended
        self.checkpoints += 1

    # --- pruning ------------------------------------------------------------------------------------------

    async def prune(self) -> None:
        """Recycle the longest prefix of the journal in which everything is split or dead."""
        free: list[SegmentInfo] = []
        for segment in self._journal.segments():
            if not segment.index_ready or not await self._superfluous(segment):
                break
            free.append(segment)
        if not free:
            return
        if self._checkpoint_position < free[-1].end:
            if self._clock.monotonic() - self._checkpoint_at >= self._config.checkpoint_seconds:
                await self.checkpoint()
            free = [segment for segment in free if segment.end <= self._checkpoint_position]
            if not free:
                return
        recycled = await self._journal.recycle(free[-1].sequence + 1)
        self.pruned_segments += len(recycled)
        if recycled:
            self._map.drop(recycled[-1] + 1)

    async def _superfluous(self, segment: SegmentInfo) -> bool:
        """Is every block of the segment split, or is nothing in it live? In that case the split position is
        moved over it, through the log."""
        mark = self._map.at_end_of(segment.sequence)
        if mark is None:
            return True
        last = mark.last
        unsplit = [
            group
            for group in self._groups
            if mark.last_data[group.group] > self._manifest.written(group.group)
        ]
        if not unsplit:
            return True
        rows = (await self._journal.index(segment.sequence)).rows
        if numpy.any(rows["last_offset"] >= self._liveness.log_starts(rows["queue_id"])):
            return False
        futures = [
            group.propose(
                [control.SplitCommitted(self._manifest.reached(group.group), last[group.group], ())]
            )
            for group in unsplit
            if last[group.group] > self._manifest.reached(group.group)
        ]
        self._write_loop.wake()
        await asyncio.gather(*futures)
        await self._manifest.drained()
        return all(mark.last_data[group.group] <= self._manifest.written(group.group) for group in unsplit)

    # --- retention ----------------------------------------------------------------------------------------

    async def retain(self) -> None:
        """Move log starts by the topics' retention, then drop runs without a live record."""
        await self._retention.move_log_starts()
        await self._store.retain(self._liveness.log_starts)
        before = self._clock.now_ms() - int(self._config.producer_expiry_seconds * 1000)
        for group in self._groups:
            group.producers.expire(before)

    # --- disk 1 -------------------------------------------------------------------------------------------

    async def watch_disk(self) -> None:
        """Slow producers down, then refuse them, as disk 1 fills; let go as it empties."""
        pressure = await self._pressure()
        refusing = pressure >= 1
        if refusing != self._message_store.refusing:
            log.warning(
                "disk 1 is nearly full: produce is refused"
                if refusing
                else "disk 1 has room again: produce is accepted"
            )
        self._message_store.refusing = refusing
        self._write_loop.delay_seconds = max(0.0, min(pressure, 1.0)) * THROTTLE_DELAY_SECONDS_MAX

    async def _pressure(self) -> float:
        """0 or less: all is well; up to 1: slow down; 1 or more: refuse."""
        total, free = await self._files.usage()
        throttle = min(self._config.disk_throttle_free_bytes, total // 10)
        refuse = min(self._config.disk_refuse_free_bytes, total // 40)
        pressure = (throttle - free) / max(throttle - refuse, 1)
        if self._config.journal_bytes_max:
            share = self._journal.bytes_used() / self._config.journal_bytes_max
            pressure = max(pressure, (share - 0.85) / 0.10)
        return pressure
