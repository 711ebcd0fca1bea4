"""The storage role of a node: disk 1, disk 2, and the ports that brokers and splitters hold.

`open` recovers (`opening`) what the parts (`parts`) hold; `start` begins to write and to maintain; `close` writes what
was appended, checkpoints and closes the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from mainstem.storage.errors import StorageError, StorageFailed
from mainstem.storage.opening import opened
from mainstem.storage.parts import Disks, StorageParts
from mainstem.storage.setup import StorageSetup
from mainstem.supervised import OnDeath

log = logging.getLogger(__name__)


CONSENSUS_TICKS = "the clock of the write groups' consensus"
TICKS_SECONDS_MAX = 30.0
"""Long enough for a hundred elections: a machine that is merely slow does not stand still for as long."""


class Storage(StorageParts):
    """Runs the tasks of a node's storage role. Make it with `open`."""

    def __init__(self, setup: StorageSetup, disks: Disks) -> None:
        super().__init__(setup, disks)
        self.tasks: list[asyncio.Task[None]] = []
        """Those begun by `start`."""

    @classmethod
    async def open(cls, setup: StorageSetup) -> Storage:
        """Recover from both disks. Raises a `StorageError` naming file and place when durable data cannot be read
        back, and no other node can give it."""
        return await opened(setup, cls)

    async def start(self) -> None:
        """Begin to write and to take part in the groups' logs. Write groups that this node has alone are served when
        this returns: they took a new term and logged a no-op in it. Others are served once their nodes have elected a
        leader."""
        start = self.supervision.start
        self.tasks = [
            start(self.state.manifest.run, "manifest", OnDeath.END),
            start(self.remote.run, "remote tier", OnDeath.END),
            start(self.write_loop.run, "write loop", OnDeath.END),
        ]
        self.losses.begin(self.recovery.batches_behind)
        await self.hard_states.save({})  # counts the starts, and tests whether the disk can be written
        self.tasks.append(start(self.awaited_producers.read, "producers are read"))
        self.tasks.append(start(self.transaction_checks.run, "transactions are verified"))
        self.tasks.append(start(self.producers.run, "producers"))
        self.tasks.append(start(self.producer_mending.run, "damaged producers"))
        await self.replication.start()
        await self.departures.finish()
        await self.write_loop.sync()
        consensus = partial(self.replication.run, partial(self.supervision.beat, CONSENSUS_TICKS, TICKS_SECONDS_MAX))
        self.tasks.append(start(consensus, "consensus", OnDeath.END))
        self.tasks.append(start(self.replication.found_new, "new write groups", OnDeath.END))
        self.tasks.append(start(self.rejoining.run, "rejoining"))
        self.tasks.append(start(self.maintenance.run, "storage maintenance"))
        self.tasks.append(start(self.repair.run, "repair of runs"))
        self.tasks.append(start(self.mover.run, "moves of slots"))
        if self.remote_upkeep is not None:
            self.tasks.append(start(self.remote_upkeep.run, "upkeep of the remote tier"))
        if self.remote_chain is not None:
            self.tasks.append(start(self.remote_chain.run, "chain of the remote tier"))
        if self.topic_lists is not None:
            self.tasks.append(start(self.topic_lists.run, "topics of the remote tier"))
        if self.owner_beats is not None:
            self.tasks.append(start(self.owner_beats.run, "owner of the remote tier"))

    def replica_bytes(self, group: int) -> int:
        """The bytes that another node would copy for a replica of a write group: what is not split yet, and the files
        on disk 2 of this node's own."""
        manifest = self.queue_store.stored.manifest
        unsplit, _oldest = self.state.journal_map.data_after(group, self.state.manifest.reached(group))
        names = set() if self.setup.shared else {entry.name for entry in manifest.ranges(group)}
        return unsplit + sum(manifest.files[name].bytes for name in names)

    async def close(self) -> None:
        """Write what was appended, checkpoint, close the files. Steps that a failed disk does not allow are left out:
        the next start does without them."""
        self.supervision.ceased(CONSENSUS_TICKS)
        if self.tasks:
            writing, maintaining = self.tasks[:3], self.tasks[3:]
            await stop(maintaining)
            self.replication.stop()
            await self.snapshots.close()
            await self.write_loop.close()
            if self.write_loop.failure is None:
                await self._last_checkpoint()
            await stop(writing)
        try:
            await self.journal.close()
        finally:
            await self.hard_states.close()
            await self.read_path.close()
            if self.remote_history is not None:
                await self.remote_history.close()
            await self.remote.close()
            await self.queue_store.close()

    async def _last_checkpoint(self) -> None:
        try:
            await self.checkpointer.checkpoint()
        except (StorageError, OSError) as error:
            log.error("no checkpoint at the end, the next start takes longer: %s", error)

    def give_up(self, error: Exception) -> None:
        """End all write groups: this node must send nothing more in any of them."""
        self.write_loop.give_up(StorageFailed(str(error)))

    @property
    def failure(self) -> Exception | None:
        """The error because of which this node accepts no more writes; None while it does."""
        return self.write_loop.failure or self.state.manifest.failure or self.remote.failure


async def stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("a storage task had failed: %r", outcome)
