"""What the storage role does on its own, in rounds: index sealed segments, prune, checkpoint, apply retention.

One task does it all, one thing after the other, off the write path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from mainstem.ports import Clock
from mainstem.storage.applied import AppliedState
from mainstem.storage.checkpointer import Checkpointer
from mainstem.storage.config import StorageConfig
from mainstem.storage.disk_watch import DiskWatch
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal_rows import in_segment, rows_of
from mainstem.storage.pruning import Pruning
from mainstem.storage.retention_pass import RetentionPass
from mainstem.storage.write_group import WriteGroup
from mainstem.storage.write_loop import WriteLoop

log = logging.getLogger(__name__)

CHECKPOINT_BLOCKS = 50_000
"""Between two checkpoints at most, however small: a start reads and applies some 20,000 in a second."""

EXPIRY_STEP = 16_384
"""Producers looked at in one turn of the event loop: a tenth of a millisecond, some more when all of them go."""


class Maintenance:
    """The background rounds of a node's storage."""

    def __init__(
        self,
        config: StorageConfig,
        clock: Clock,
        journal: Journal,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        disk_watch: DiskWatch,
        retention: RetentionPass,
        pruning: Pruning,
        checkpointer: Checkpointer,
        write_loop: WriteLoop,
    ) -> None:
        self._config = config
        self._clock = clock
        self._journal = journal
        self._groups = groups
        self._state = state
        self._disk_watch = disk_watch
        self._retention = retention
        self._pruning = pruning
        self._checkpointer = checkpointer
        self._write_loop = write_loop
        self._retention_at = clock.monotonic()

    async def run(self) -> None:
        """Rounds until cancelled, or until the journal has failed."""
        while True:
            await asyncio.sleep(self._config.prune_seconds)
            try:
                await self.round()
            except StorageFailed:
                return

    async def round(self) -> None:
        """Every step once. One that fails is logged and tried again in the next round; it does not keep the others
        from their turn: on a full disk the first steps may fail for want of the space that pruning frees.
        Retention comes behind pruning: it waits for the journal, which may be waiting for a segment."""
        for step in (
            self._disk_watch.check,
            self._journal.roll_if_due,
            self.index_sealed,
            self._pruning.prune,
            self.retain_if_due,
            self.checkpoint_if_due,
        ):
            try:
                await step()
            except StorageFailed:
                raise
            except Exception:
                log.exception("storage maintenance failed; it is tried again")

    async def retain_if_due(self) -> None:
        now = self._clock.monotonic()
        if now - self._retention_at >= self._config.retention_check_seconds:
            self._retention_at = now
            await self.retain()

    async def checkpoint_if_due(self) -> None:
        if (
            self._checkpointer.bytes_since >= self._config.checkpoint_bytes
            or self._checkpointer.blocks_since >= CHECKPOINT_BLOCKS
        ):
            await self._checkpointer.checkpoint()

    async def index_sealed(self) -> None:
        """Write the index of every sealed segment that has none, and let memory forget what it covers."""
        for segment in self._journal.segments():
            if not segment.sealed:
                break
            if not segment.index_ready:
                if self._write_loop.applied_end < segment.end:
                    break
                blocks = in_segment(self._state.index, segment.sequence, self._journal.dead)
                rows = await asyncio.to_thread(rows_of, blocks)
                await self._journal.seal_index(segment.sequence, rows)
            self._state.index.release(segment.end)

    async def retain(self) -> None:
        """Apply the topics' retention, and forget producers that were not seen for long."""
        await self._retention.run()
        before = self._clock.now_ms() - int(self._config.producer_expiry_seconds * 1000)
        for group in self._groups:
            for _ in range(0, len(group.producers), EXPIRY_STEP):
                group.producers.expire(before, EXPIRY_STEP)
                await asyncio.sleep(0)
