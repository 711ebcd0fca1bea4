"""Splitters that upload to the remote tier, without Spark: ask the node for work, have the pipeline's own function read
and upload copies of the simulated files, and hand in what is there; and misbehave.

Each `tier` is another process, with a lease of its own: whoever is still at work under an older one comes too late. It
ends now and then wherever it is. Its upload of that moment goes on without it, as an executor on another machine does,
and arrives when nobody waits for it any more. Its results are handed in again later, by a zombie, even after the node's
next start."""

from __future__ import annotations

import asyncio
import contextvars
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.oracle import require

from mainstem.errors import MainstemError
from mainstem.ports import ObjectStore
from mainstem.rpc.messages.merge import MergeGone
from mainstem.rpc.messages.tier import MovingFile, TierWork
from mainstem.storage.merging.merge_inputs import InputDamaged, InputFile
from mainstem.storage.split.split_lease import LEASE_SECONDS
from mainstem.storage.store_files.store_file import index_path_of, path_of
from mainstem.storage.tiering.uploading import upload

if TYPE_CHECKING:
    from tests.simulation.cluster.node import SimulatedNode

FINISHED_MAX = 5
"""Uploads a zombie remembers."""

KILLED_SHARE = 0.3
"""Of the uploads that a process does not live to finish."""

STOPPED_SHARE = 0.15
"""Of the uploads that end before all files are there, and are handed in all the same."""

STEPS = ("asked", "uploading", "uploaded", "handed in")
"""Behind each of them the process may be killed; while uploading, between two files."""

ZOMBIE_SECONDS_MAX = 20.0
"""Simulated. An executor that nobody waits for is done by then."""


class Tierers:
    """All that upload files of a node, one after the other."""

    def __init__(self, node: SimulatedNode, rng: random.Random, store: Callable[[], ObjectStore]) -> None:
        """`store` makes the way of a process to the object store."""
        self.node = node
        self.rng = rng
        self.step = ""
        """The step that the process is at: one of `STEPS`, or nothing."""
        self._store = store
        self.unit_bytes = rng.choice([1, 3000, 1 << 20])
        self.piece_bytes = rng.choice([1, 1, 3000, 1 << 20])
        self._lease = 0
        """Counts those who had it."""
        self._ends = 0.0
        """When the last one is given up: nobody hears of it since then."""
        self._finished: list[tuple[str, tuple[str, ...]]] = []
        self.zombies: set[asyncio.Task[None]] = set()
        """Uploads that go on without the process that began them."""
        self.outcomes: dict[str, int] = {}

    async def tier(self, *, well_behaved: bool = False) -> bool:
        """Upload what the node gives once. Whether there may be more."""
        self._lease += 1
        lease = self._lease
        clock = asyncio.get_running_loop().time
        self._ends = float("inf")
        in_force: Callable[[], bool] = lambda: self._lease == lease and clock() < self._ends  # noqa: E731
        try:
            return await self._tier(in_force, well_behaved=well_behaved)
        finally:
            self.step = ""
            if self._lease == lease:
                self._ends = clock() + LEASE_SECONDS

    async def replay(self) -> None:
        """A zombie hands in again what was recorded, or refused, at some time."""
        if self._finished:
            await self._hand_in(*self.rng.choice(self._finished), failure="")

    async def _tier(self, in_force: Callable[[], bool], *, well_behaved: bool) -> bool:
        rng, log = self.rng, self.node.storage.tier_log
        log.unit_bytes, log.piece_bytes = self.unit_bytes, self.piece_bytes
        work = await log.work(in_force, drain=well_behaved or rng.random() < 0.7)
        if not work.tier_id:
            return False
        killed = None if well_behaved or rng.random() > KILLED_SHARE else rng.choice(STEPS)
        if await self._ends_at("asked", killed, hurries=well_behaved):
            return True
        done: list[str] = []
        failure = ""
        stops_before = -1 if well_behaved or rng.random() > STOPPED_SHARE else rng.randrange(len(work.files))
        for number, moving in enumerate(work.files):
            if number == stops_before:
                break
            self.step = "uploading"
            uploading = asyncio.get_running_loop().create_task(
                self._upload(work, moving), context=contextvars.Context()
            )
            if killed == "uploading" and (number + 1 == len(work.files) or rng.random() < 0.5):
                self.zombies.add(uploading)
                uploading.add_done_callback(self._zombie_ended)
                self._count("killed")
                return True
            try:
                await asyncio.wait([uploading])
            except asyncio.CancelledError:  # the node stops, the executor does not
                self.zombies.add(uploading)
                uploading.add_done_callback(self._zombie_ended)
                raise
            try:
                uploading.result()
            except MergeGone:
                require(not well_behaved, f"{moving.file.name} is gone, and nobody asked for another upload", "F")
                self._count("gone")
                return True
            except InputDamaged as error:
                self._count("damaged")
                failure = str(error)
                break
            except (MainstemError, OSError) as error:
                failure = str(error)
                self._count("store failed")
                break
            done.append(moving.name)
        if await self._ends_at("uploaded", killed, hurries=well_behaved):
            return True
        self._finished = [*self._finished[1 - FINISHED_MAX :], (work.tier_id, tuple(done))]
        if not well_behaved and rng.random() < 0.1:
            self._lease += 1  # somebody else has it now
        if not well_behaved and len(done) < len(work.files) and rng.random() < 0.5:
            done, failure = [moving.name for moving in work.files], ""  # it takes for uploaded what is not
        await self._hand_in(work.tier_id, tuple(done), failure)
        if not well_behaved and rng.random() < 0.2:
            await self._hand_in(work.tier_id, tuple(done), failure)
        return True

    async def _ends_at(self, step: str, killed: str | None, *, hurries: bool) -> bool:
        """Whether the process ends behind a step."""
        self.step = step
        if step == killed:
            self._count("killed")
            return True
        await asyncio.sleep(0.0 if hurries else self.rng.choice([0.0, 0.01, 0.5]))
        return False

    def _zombie_ended(self, upload: asyncio.Task[None]) -> None:
        self.zombies.discard(upload)
        if not upload.cancelled() and isinstance(error := upload.exception(), Exception):
            require(isinstance(error, MainstemError | OSError), f"an upload ends with {error!r}")

    async def _upload(self, work: TierWork, moving: MovingFile) -> None:
        disk, name = self.node.disk2, moving.file.name
        await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.01, 0.3]))
        paths = path_of(name), index_path_of(name)
        with tempfile.TemporaryDirectory(dir=Path(self.node.manifest_path).parent) as directory:
            copies = [Path(directory) / ("index" if path != paths[0] else "file") for path in paths]
            for path, copy in zip(paths, copies, strict=True):
                if path not in disk.paths():
                    raise MergeGone(f"{name} is gone")
                copy.write_bytes(disk.content(path))
            source = InputFile(name, str(copies[0]), str(copies[1]))
            await upload(self._store(), source, moving.name, moving.objects)

    async def _hand_in(self, tier_id: str, names: tuple[str, ...], failure: str) -> None:
        if self.node.serving is None:
            return
        self.step = "handed in"
        outcome = await self.node.storage.tier_log.record(tier_id, names, failure)
        kind = outcome.split(":")[0]
        require(kind in ("recorded", "kept", "refused"), outcome)
        self._count(kind)

    def _count(self, what: str) -> None:
        self.outcomes[what] = self.outcomes.get(what, 0) + 1
