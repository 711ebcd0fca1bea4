"""The maintenance runs the storage role's background steps, each at its own pace: it watches disk 1, seals and indexes
segments, prunes, writes checkpoints, applies retention.

Every step is a task with its own cadence, so a step that takes minutes, or fails, delays no other: the failure is
logged and counted, and the step runs again when it is due next. Objects that two steps use order their calls themselves
(the checkpointer takes turns, the queue store makes one change at a time).

A lasting fault, above all a full disk, makes a step fail twice a second; the log reports it when it begins, once a
minute, and when it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.config import StorageConfig
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.encoding.blocks import Rows, extent_rows, sorted_rows
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_rows import in_segment, rows_of
from mainstem.storage.journal.stored_block import StoredPlace, read_block
from mainstem.storage.repair.journal_damage import JournalDamage
from mainstem.storage.repair.losses import Losses
from mainstem.storage.repair.rewriting import Rewriting
from mainstem.storage.repair.waiting_write_groups import WaitingWriteGroups
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.checkpointer import Checkpointer
from mainstem.storage.state.producers.producer_expiry import ProducerExpiry
from mainstem.storage.upkeep.disk_watch import DiskWatch
from mainstem.storage.upkeep.pruning import Pruning
from mainstem.storage.upkeep.retention_pass import RetentionPass
from mainstem.storage.upkeep.scrubbing import Scrubber
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

log = logging.getLogger(__name__)

CHECKPOINT_BLOCKS = 50_000
"""The most blocks between two checkpoints, however small: a start reads and applies some 20,000 in a second."""

DAMAGE_SECONDS = 5.0
"""Between two looks at damaged blocks: soon enough for an operator who has just restored a file, and only a few
reads."""

RESTORED_SECONDS = 30.0
"""Between two looks whether damaged objects were restored: each is a request per object."""

SCRUB_SECONDS = 10.0
"""Between two looks for files that are due for scrubbing: a tiny part of an interval of days."""

CLOCKS_SECONDS = 1.0
"""Between two looks at the nodes' clocks: a jump is noticed, and reported, within this time."""

FOLD_SECONDS = 10.0
"""Between two looks for files of the manifest that fill a page: splits bring some in a second at most."""

TOLD_SECONDS_MIN = 60.0
"""Between two log lines about a failing step: often enough for an operator who begins to read the log in between."""

EXPIRY_STEP = 16_384
"""Producers checked in one turn of the event loop: a tenth of a millisecond, some more when all of them expire."""


Work = Callable[[], Awaitable[None]]


def in_turn(work: Work) -> Work:
    """The same work, of which a call waits for the one before."""
    lock = asyncio.Lock()

    async def one_at_a_time() -> None:
        async with lock:
            await work()

    return one_at_a_time


class UpkeepStep:
    """One background step, repeated by a task of its own; it logs and counts its failures."""

    def __init__(self, name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.done = 0
        self.failed = 0
        self._seconds = seconds
        self._work = work
        self._failing: tuple[float, int] | None = None
        """When it began to fail (in the loop's time) and how often it has failed since; None: it does not fail."""
        self._told_at: float | None = None
        """When the log last reported that it fails."""
        self._end_is_due = False
        """True when the log reported the failure and must still report its end."""

    async def run(self) -> None:
        """Run the step until cancelled, or until the journal takes no more writes and the step needs it to."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._work()
            except StorageFailed:
                log.error("storage %s ends: this node accepts no more writes", self.name)
                return
            except Exception as error:
                self.failed += 1
                self._fails(asyncio.get_running_loop().time(), error)
            else:
                self.done += 1
                self._works(asyncio.get_running_loop().time())

    def _fails(self, now: float, error: Exception) -> None:
        since, times = self._failing or (now, 0)
        self._failing = since, times + 1
        if self._told_at is None or now - self._told_at >= TOLD_SECONDS_MIN:
            self._told_at = now
            before = f", {times} times in {now - since:.0f} s before" if times else ""
            told = log.error if self._end_is_due else log.exception
            told(
                "storage %s failed%s; it is tried again every %g s: %s", self.name, before, self._seconds,
                str(error) or repr(error),
            )  # fmt: skip
            self._end_is_due = True

    def _works(self, now: float) -> None:
        if self._failing is not None and self._end_is_due:
            since, times = self._failing
            log.warning("storage %s goes on: it had failed %d times in %.0f s", self.name, times, now - since)
            self._end_is_due = False
        self._failing = None


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
        retention: RetentionPass | None,
        pruning: Pruning,
        checkpointer: Checkpointer,
        write_loop: WriteLoop,
        rewriting: Rewriting,
        damage: JournalDamage,
        scrubber: Scrubber,
        waiting: WaitingWriteGroups,
        losses: Losses,
        fold: Callable[[], Awaitable[None]],
        tiering: Mapping[str, Callable[[], Awaitable[None]]],
        restored: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """`retention` None: nothing goes by age or size; `fold` puts files of the manifest into pages; `tiering`: what
        retention is in the remote tier, by name; `restored` looks for damaged objects that were restored, None: there
        is no object store."""
        self._config = config
        self._clock = clock
        self._agreed_clock = agreed_clock
        self._producer_expiry = producer_expiry
        self._journal = journal
        self._groups = groups
        self._state = state
        retaining = {"retention": retention.run, **tiering} if retention is not None else tiering
        self._retaining = {name: in_turn(work) for name, work in retaining.items()}
        self._checkpointer = checkpointer
        self._write_loop = write_loop
        self._waiting = waiting
        round_seconds = config.prune_seconds
        self._steps = (
            UpkeepStep("disk watch", config.disk_check_seconds, disk_watch.check),
            UpkeepStep("clocks", CLOCKS_SECONDS, self._look_at_clocks),
            UpkeepStep("rolling", round_seconds, self._roll),
            UpkeepStep("rewriting", round_seconds, rewriting.round),
            UpkeepStep("sealing", round_seconds, self.index_sealed),
            UpkeepStep("waiting groups", round_seconds, waiting.round),
            UpkeepStep("pruning", round_seconds, pruning.prune),
            UpkeepStep("checkpoints", round_seconds, self.checkpoint_if_due),
            UpkeepStep("damaged blocks", DAMAGE_SECONDS, damage.round),
            UpkeepStep("lost blocks", DAMAGE_SECONDS, losses.round),
            UpkeepStep("scrubbing", SCRUB_SECONDS, scrubber.round),
            UpkeepStep("manifest pages", FOLD_SECONDS, fold),
            *([UpkeepStep("restored objects", RESTORED_SECONDS, restored)] if restored is not None else []),
            *(UpkeepStep(name, config.retention_check_seconds, work) for name, work in self._retaining.items()),
            UpkeepStep("producer expiry", config.retention_check_seconds, self.expire_producers),
        )

    async def run(self) -> None:
        """Run all steps until cancelled."""
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
        """Write the index of every sealed segment that has none, and drop the entries it covers from memory. A segment
        with unreadable blocks gets no index, and no segment behind it: the index would vouch for blocks that it
        lacks."""
        if self._waiting.holds_checkpoints:
            return
        for segment in self._journal.segments():
            if not segment.sealed:
                break
            if not segment.index_ready:
                if self._write_loop.applied_end < segment.end:
                    break
                unread = self._waiting.unread_in(segment.sequence)
                if self._waiting.is_damaged(unread):
                    break
                blocks = in_segment(self._state.index, segment.sequence, self._journal.dead)
                rows = await asyncio.to_thread(rows_of, blocks)
                if unread:
                    rows = sorted_rows([rows, *[await self._rows_of_stored(place) for place in unread]])
                await self._journal.seal_index(segment.sequence, rows)
            self._state.index.release(segment.end)

    async def _rows_of_stored(self, place: StoredPlace) -> Rows:
        """Extent rows of a block that only the journal has. Raises `CorruptJournal`, `SegmentGone`."""
        found = await read_block(self._journal, place)
        return extent_rows(found.header, found.directory)

    async def retain(self) -> None:
        """Apply the topics' retention at once, behind rounds under way, and forget producers that were not seen for
        long."""
        for work in self._retaining.values():
            await work()
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
        """The rounds and failures of each step, for `/metrics`."""
        for step in self._steps:
            label = (("step", step.name),)
            yield Sample(
                "mainstem_storage_upkeep_rounds_total", "counter",
                "Rounds of a background step of storage that ended well", step.done, label,
            )  # fmt: skip
            yield Sample(
                "mainstem_storage_upkeep_failures_total", "counter",
                "Rounds of a background step of storage that failed and are tried again",
                step.failed, label,
            )  # fmt: skip
