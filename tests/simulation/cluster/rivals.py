"""Machines that take a queue from each other, as coordinators do when a partition moves.

Each owns the queue for a while: it is granted an owner epoch, reads the queue to its end, and appends records one by
one, each meant for the very offset behind what it has read and written. It may take its time between two of them, and
meanwhile another has become the owner. A machine's records mean something only behind what it knows: none may land at
another offset than the one it was meant for, wherever leaders go meanwhile (O).
"""

from __future__ import annotations

import asyncio
import random

from tests.simulation.cluster.clients import REFUSALS, Clients
from tests.simulation.oracle import require

from mainstem.errors import MainstemError
from mainstem.model import Outcome
from mainstem.storage.role import Storage

RIVALS = "rivals"
"""Named among the faults of a run: it has rivals."""

RIVAL_COUNT = 3

NEVER_LOGGED = REFUSALS | {Outcome.FENCED}


class Rival:
    """One of the machines that want the queue."""

    def __init__(self, clients: Clients, queue_id: int, rng: random.Random) -> None:
        self._clients = clients
        self.queue_id = queue_id
        self._rng = rng
        self.fenced = 0
        """Appends that were refused because another has become the owner."""
        self.written = 0

    async def run(self) -> None:
        rng, clients = self._rng, self._clients
        while not clients.ending:
            node = clients.node_for(clients.cluster.group_of(self.queue_id))
            if node is not None and node.serving is not None:
                await node.call(self._reign(node.serving), patience=rng.choice([0.3, 1.0, 5.0]))
            await asyncio.sleep(rng.choice([0.01, 0.1, 0.3]))

    async def _reign(self, storage: Storage) -> None:
        """Own the queue, read it, and write until another owns it. It goes on in its node's life when its client has
        lost patience."""
        rng = self._rng
        try:
            epoch = await storage.queues.own(self.queue_id)
        except MainstemError:  # another node leads
            return
        end = await self._end(storage)
        for _ in range(rng.choice([1, 3, 10])):
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.1, 0.5]))
            if end is None or self._clients.ending or not await self._write(storage, epoch, end):
                return
            end += 1

    async def _end(self, storage: Storage) -> int | None:
        """The end of the queue, once nothing is under way; None when that takes too long."""
        for _ in range(50):
            (offsets,) = await storage.messages.offsets([self.queue_id])
            if offsets is None:
                return None
            if offsets.high_watermark >= offsets.end:
                return offsets.end
            await asyncio.sleep(0.02)
        return None

    async def _write(self, storage: Storage, epoch: int, meant_for: int) -> bool:
        batch, history = self._clients.new_batch(self.queue_id, (-1, -1, -1), 1), self._clients.cluster.history
        crc = history.sending(batch.data)
        history.meant_for[crc] = meant_for
        (result,) = await storage.messages.append([batch.append], -1, owner_epoch=epoch)
        if result.outcome in NEVER_LOGGED:
            history.refused(crc)
        self.fenced += result.outcome is Outcome.FENCED
        if result.outcome is not Outcome.OK:
            return False
        require(
            result.base_offset == meant_for,
            f"queue {self.queue_id:#x}: a machine's record meant for offset {meant_for} is acknowledged at "
            f"{result.base_offset}",
            "O",
        )
        history.acknowledged(self.queue_id, result.base_offset, crc, promised=True)
        self.written += 1
        return True
