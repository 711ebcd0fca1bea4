"""What the storage role does on its own, each thing at its own pace: watch disk 1, seal, prune, checkpoint, retain.

Every step is a task with its own cadence. One that takes minutes, or fails, keeps none of the others from their turn: a
step that failed is logged, counted and tried again when it is due next. What two steps must not do at the same time is
seen to where it is done (the checkpointer takes turns, the queue store changes one thing at a time).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.applied import AppliedState
from mainstem.storage.checkpointer import Checkpointer
from mainstem.storage.config import StorageConfig
from mainstem.storage.damage import Damage
from mainstem.storage.disk_watch import DiskWatch
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal_rows import in_segment, rows_of
from mainstem.storage.producer_expiry import ProducerExpiry
from mainstem.storage.pruning import Pruning
from mainstem.storage.retention_pass import RetentionPass
from mainstem.storage.rewriting import Rewriting
from mainstem.storage.write_group import WriteGroup
from mainstem.storage.write_loop import WriteLoop

log = logging.getLogger(__name__)

CHECKPOINT_BLOCKS = 50_000
"""Between two checkpoints at most, however small: a start reads and applies some 20,000 in a second."""

DAMAGE_SECONDS = 5.0
"""Between two looks at blocks that are damaged: soon enough for who has just put a file right, and a few reads only."""

CLOCKS_SECONDS = 1.0
"""How often is looked what the clocks of the nodes say: a jump is noticed, and told, as soon."""

EXPIRY_STEP = 16_384
"""Producers looked at in one turn of the event loop: a tenth of a millisecond, some more when all of them go."""


class Step:
    """One thing that is done again and again, by a task of its own."""

    def __init__(self, name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.done = 0
        self.failed = 0
        self._seconds = seconds
        self._work = work

    async def run(self) -> None:
        """Until cancelled, or until the journal takes nothing any more and the step needs it to."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._work()
            except StorageFailed:
                log.error("storage %s ends: this node accepts no more writes", self.name)
                return
            except Exception:
                self.failed += 1
                log.exception("storage %s failed; it is tried again in %g s", self.name, self._seconds)
            else:
                self.done += 1


class Maintenance:
    """The background steps of a node's storage."""

    def __init__(
        self,
        config: StorageConfig,
        clock: Clock,
        agreed_clock: AgreedClock,
        producer_expiry: ProducerExpiry,
        journal: Journal,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        disk_watch: DiskWatch,
        retention: RetentionPass,
        pruning: Pruning,
        checkpointer: Checkpointer,
        write_loop: WriteLoop,
        rewriting: Rewriting,
        damage: Damage,
    ) -> None:
        self._config = config
        self._clock = clock
        self._agreed_clock = agreed_clock
        self._producer_expiry = producer_expiry
        self._journal = journal
        self._groups = groups
        self._state = state
        self._retention = retention
        self._checkpointer = checkpointer
        self._write_loop = write_loop
        round_seconds = config.prune_seconds
        self._steps = (
            Step("disk watch", config.disk_check_seconds, disk_watch.check),
            Step("clocks", CLOCKS_SECONDS, self._look_at_clocks),
            Step("rolling", round_seconds, self._roll),
            Step("rewriting", round_seconds, rewriting.round),
            Step("sealing", round_seconds, self.index_sealed),
            Step("pruning", round_seconds, pruning.prune),
            Step("checkpoints", round_seconds, self.checkpoint_if_due),
            Step("damaged blocks", DAMAGE_SECONDS, damage.round),
            Step("retention", config.retention_check_seconds, retention.run),
            Step("producer expiry", config.retention_check_seconds, self.expire_producers),
        )

    async def run(self) -> None:
        """All steps, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for step in self._steps:
                tasks.create_task(step.run(), name=f"storage {step.name}")

    async def _look_at_clocks(self) -> None:
        self._agreed_clock.now()

    async def _roll(self) -> None:
        await self._journal.roll_if_due()

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
        await self.expire_producers()

    async def expire_producers(self) -> None:
        """Forget producers that were not seen for long."""
        self._producer_expiry.look()
        for group in self._groups:
            expired = self._producer_expiry.expired(group.group)
            for _ in range(0, len(group.producers), EXPIRY_STEP):
                group.producers.expire(expired.before_ms, EXPIRY_STEP, expired.up_to_index)
                await asyncio.sleep(0)

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        for step in self._steps:
            label = (("step", step.name),)
            yield Sample(
                "mainstem_storage_upkeep_rounds_total", "counter",
                "Rounds of a background step of storage that ended well", step.done, label,
            )  # fmt: skip
            yield Sample(
                "mainstem_storage_upkeep_failures_total", "counter", "Rounds of it that failed and are tried again",
                step.failed, label,
            )  # fmt: skip
