"""One simulated run: a random program of lives, from one seed.

A life begins with recovery, goes on with clients, splitters and the node's own maintenance all at the same time,
and ends with a clean stop, a killed process or a power cut in the middle of whatever is under way. After the
last one everything is split and pruned, and every queue is read once more from every tier that is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.fakes.simulated_loop import SimulatedLoop
from tests.simulation.clients import PATIENCE_SECONDS, Clients
from tests.simulation.machine import Machine, let_go
from tests.simulation.node import Settings, SimulatedNode
from tests.simulation.oracle import QueueOracle, Violation, require, seed_failed
from tests.simulation.splitter import Splitters

from mainstem.model import Tier

SETTLING_ROUNDS_MAX = 40
"""A round of splitting ends early when pruning overtakes it, so it may take a few; for ever it must not."""

AT_ONCE_MAX = 8
"""Actions under way at the same time."""


class Run:
    """`Run(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    def __init__(self, seed: int, directory: Path, *, lives: int = 4, actions: int = 30) -> None:
        self._rng = rng = random.Random(seed)
        self._lives = lives
        self._actions_max = actions
        self.settings = Settings(rng)
        self.machine = Machine(seed, directory)
        self.node = self.node_of(rng)
        self.clients = self.clients_of(rng)
        self.splitters = Splitters(self.node, rng)
        self._under_way: set[asyncio.Task[None]] = set()
        self.served: dict[Tier, int] = dict.fromkeys(Tier, 0)
        self.pruned_segments = 0

    def node_of(self, rng: random.Random) -> SimulatedNode:
        return SimulatedNode(self.machine, self.settings, rng)

    def clients_of(self, rng: random.Random) -> Clients:
        return Clients(self.node, rng)

    def actions(self) -> list[tuple[Callable[[], Awaitable[None]], float]]:
        """The actions, and how often each happens."""
        clients = self.clients
        return [
            (clients.produce, 30),
            (clients.fetch, 12),
            (clients.follow, 4),
            (clients.poll, 5),
            (clients.look_up, 5),
            (clients.truncate, 2),
            (clients.create_topic, 1),
            (clients.delete_topic, 0.7),
            (clients.usage, 1),
            (self.splitters.split, 8),
            (self.splitters.replay, 2),
            (self._pause, 8),
            (self._hide_metadata, 1),
            (self._flush, 1),
        ]

    def play(self) -> None:
        try:
            for _ in range(self._lives):
                self._live(self._life)
            self._live(self._settle)
            self._live(self._compare)
        finally:
            loop = self.machine.boot()
            loop.run_until_complete(let_go(self.node.opened))
            self.machine.halt(loop)

    def _live(self, life: Callable[[], Awaitable[None]]) -> None:
        loop = self.machine.boot()
        loop.set_exception_handler(lambda _loop, _context: None)
        try:
            loop.run_until_complete(self._one_life(loop, life))
        finally:
            self.machine.halt(loop)
        if self.machine.is_off:
            self.machine.crash(keep_all=self._rng.random() < 0.3)

    async def _one_life(self, loop: SimulatedLoop, life: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(10 * PATIENCE_SECONDS):
                await self.node.start(loop)
                await life()
        finally:
            for task in loop.tasks():
                task.cancel()
            await self._gathered(loop)
            self._count()

    # --- lives --------------------------------------------------------------------------------------------

    async def _life(self) -> None:
        if not self.node.queues:
            await self.clients.create_topic()
        for _ in range(self._rng.randint(1, self._actions_max)):
            await self._act()
        if self._rng.random() < 0.3:
            await self._finish_actions()
            await self._stop()
            return
        if self._rng.random() < 0.5:
            disk = self._rng.choice([self.machine.disk1, self.machine.disk2])
            disk.cut_power(after=self._rng.randint(1, 30))
            with contextlib.suppress(Exception):
                async with asyncio.timeout(20):
                    for _ in range(20):
                        await self._act()
        self.machine.turn_off()

    async def _settle(self) -> None:
        """Split and prune all there is; no trick is played any more."""
        self.node.metadata.hidden = False
        log = self.node.storage.split_log
        for _ in range(SETTLING_ROUNDS_MAX):
            await asyncio.sleep(self.settings.journal.segment_age_seconds + 2)
            await asyncio.sleep(4 * self.settings.storage.prune_seconds)
            await self.splitters.split(well_behaved=True)
            if not any(group.unsplit_bytes for group in log.positions()):
                break
        for group in log.positions():
            require(group.unsplit_bytes == 0 and group.oldest_unsplit_ms == -1, f"never split: {group}", "F")
        for _ in range(SETTLING_ROUNDS_MAX):
            left = len(self.node.storage.journal.segments())
            if left <= 2:
                break
            await asyncio.sleep(self.settings.storage.checkpoint_seconds + self.settings.storage.prune_seconds)
        require(left <= 2, f"{left} segments of the journal are never pruned", "K")
        await self._read_everything()
        await self._stop()

    async def _compare(self) -> None:
        """After one more start."""
        await self._read_everything()
        for queue in self.node.queues.values():
            await self._compare_history(queue)
        await self._check_extents()
        await self._stop()

    async def _read_everything(self) -> None:
        for queue in list(self.node.queues.values()):
            await self.clients.read_all(queue)

    async def _compare_history(self, queue: QueueOracle) -> None:
        """The queue store alone holds the queue's history, each batch once, in order (F)."""
        storage = self.node.storage
        offset = self.node.offsets(queue).log_start
        while offset < queue.end:
            group = storage.placement.group_at(queue.queue_id, offset)
            found = await storage.queue_store.history.read(queue.queue_id, group, offset, 3000)
            log_start = self.node.offsets(queue).log_start
            if log_start > offset:  # retention goes on meanwhile
                offset = log_start
                continue
            require(found is not None, f"queue {queue.queue_id:#x}: history ends at {offset} of {queue.end}", "F")
            assert found is not None
            for data in found.batches:
                kept = queue.batches[queue.place(offset)]
                require(bytes(data) == kept.data, f"queue {queue.queue_id:#x}: stored history differs at {offset}", "F")
                offset = kept.end

    async def _check_extents(self) -> None:
        """No batch is in two runs, none that is live is missing between two others (F)."""
        storage = self.node.storage
        ends: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        async for rows in storage.queue_store.stored.all_rows(storage.placement.groups_at):
            found += rows[["queue_id", "base_offset", "last_offset"]].tolist()
        for queue_id, base, last in sorted(found):  # write groups come one after the other
            before = ends.get(queue_id, base)
            queue = self.node.queues.get(queue_id)
            log_start = base if queue is None else self.node.offsets(queue).log_start
            # of a history that was cut, a run may have dead batches that count in another one
            fits = base == before or before < base <= log_start or last < log_start
            require(fits, f"queue {queue_id:#x}: extent from {base} on where {before} is next", "F")
            ends[queue_id] = max(before, last + 1)

    async def _stop(self) -> None:
        """A clean stop loses nothing, acknowledged or not."""
        for queue in self.node.queues.values():
            queue.promised_end = queue.end
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.node.storage.close()

    # --- actions ------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        """Begin an action; perhaps wait for it, perhaps for a while."""
        rng = self._rng
        actions, weights = zip(*self.actions(), strict=True)
        (action,) = rng.choices(actions, weights)
        task = asyncio.get_running_loop().create_task(action())
        self._under_way.add(task)
        if rng.random() < 0.4 or len(self._under_way) >= AT_ONCE_MAX:
            await asyncio.wait([task])
        else:
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.001, 0.02]))
        await self._collect()

    async def _collect(self) -> None:
        for task in [task for task in self._under_way if task.done()]:
            self._under_way.discard(task)
            await task

    async def _finish_actions(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._under_way:
                await asyncio.wait(self._under_way)
                await self._collect()

    async def _gathered(self, loop: SimulatedLoop) -> None:
        """Everything has been cancelled; whether it had found a violation is still of interest."""
        outcomes = await asyncio.gather(*loop.tasks(), *self._under_way, return_exceptions=True)
        self._under_way.clear()
        for outcome in outcomes:
            if isinstance(outcome, Violation) and not self.machine.is_off:
                raise outcome

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.choice([0.1, 1.0, 4.0]))

    async def _hide_metadata(self) -> None:
        self.node.metadata.hidden = True
        await asyncio.sleep(self._rng.choice([0.1, 3.0]))
        self.node.metadata.hidden = False

    async def _flush(self) -> None:
        """Records committed before a sync survive under any durability."""
        ends = [(queue, self.node.offsets(queue).high_watermark) for queue in self.node.queues.values()]
        await self.node.storage.journal.sync()
        for queue, end in ends:
            queue.promised_end = max(queue.promised_end, end)

    def _count(self) -> None:
        storage = getattr(self.node, "storage", None)
        if storage is not None:
            for tier, count in storage.read_path.served.items():
                self.served[tier] += count
            self.pruned_segments += storage.pruning.pruned_segments


def play(seed: int, directory: Path) -> Run:
    """Play one run; a failure names its seed."""
    logging.disable(logging.CRITICAL)
    run = Run(seed, directory)
    try:
        run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
    finally:
        logging.disable(logging.NOTSET)
    return run
