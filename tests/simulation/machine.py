"""The machine under a simulated node: two slow disks, a manifest, the power switch.

The manifest is a real sqlite file: its transactions run on the simulated loop, whole, so a crash falls between
two of them, and what was committed is there afterwards, which is what `synchronous = FULL` promises. (In memory it
would be lost with the connection; torn databases are the matter of sqlite's own tests.)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

from tests.fakes.files import SimulatedFiles
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.storage.role import Storage

LATENCIES_SECONDS = (0.0, 0.0, 0.0, 0.0002, 0.001, 0.01)

STALL_SECONDS = 0.3
"""Now and then a sync of the journal, or a read of a run, takes this long; everything else overtakes it."""

STALLING = (("sync", "journal/"), ("read", "runs/"))


class SlowFiles(SimulatedFiles):
    """A simulated disk whose operations take a while, so that others run in between."""

    def __init__(self, seed: int, *, capacity_bytes: int | None = None) -> None:
        super().__init__(seed, capacity_bytes=capacity_bytes)
        self._latency = random.Random(seed + 1)

    @property
    def is_off(self) -> bool:
        return self._off

    def turn_off(self) -> None:
        """From now on nothing reaches the disk, until `crash` turns it on again."""
        self._off = True

    async def _begin(self, operation: str, path: str, *, changes: bool = False) -> bool:
        latency = self._latency.choice(LATENCIES_SECONDS)
        if (operation, path[: path.find("/") + 1]) in STALLING and self._latency.random() < 0.1:
            latency = STALL_SECONDS
        await asyncio.sleep(latency)
        return await super()._begin(operation, path, changes=changes)


class Machine:
    """Disks and power. `seed` decides latencies and what a crash loses."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.disk1 = SlowFiles(seed)
        self.disk2 = SlowFiles(seed + 2)
        self.manifest_path = str(directory / f"manifest-{seed}.sqlite")
        self._elapsed_seconds = 0.0

    def boot(self) -> SimulatedLoop:
        """The loop of the next life; time goes on."""
        return SimulatedLoop(self._elapsed_seconds)

    def halt(self, loop: SimulatedLoop) -> None:
        self._elapsed_seconds = loop.time() + 1.0
        loop.close()

    def turn_off(self) -> None:
        self.disk1.turn_off()
        self.disk2.turn_off()

    @property
    def is_off(self) -> bool:
        return self.disk1.is_off or self.disk2.is_off

    def crash(self, *, keep_all: bool) -> None:
        """Lose what was not synced; `keep_all`: only the process died."""
        self.disk1.crash(keep_all=keep_all)
        self.disk2.crash(keep_all=keep_all)


async def let_go(opened: Iterable[Storage]) -> None:
    """Close the manifests of these lives, when the run is over. A life that is killed closes nothing, and no process
    ends with it that would; sqlite's log has to be there for the next one, as the dead one left it."""
    for storage in opened:
        await storage.queue_store.manifest.close()
        await storage.remote.manifest.close()
