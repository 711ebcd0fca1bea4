"""A splitter that merges, without Spark: asks the node for work, has the pipeline's own functions measure and merge
copies of the simulated files, and hands in what they wrote; and misbehaves.

Each `merge` is a splitter with a lease of its own: whoever is still at work under an older one comes too late. It ends
now and then wherever it is, as a process that is killed does, and leaves what it has written. Outputs are remembered
and handed in again later, by a zombie, even after the node's next start.

The functions read real files; so the inputs are copied into a directory, as they are on the simulated disk at that
moment, before each step that reads them.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy
from tests.fakes.files import SimulatedFiles
from tests.fakes.splitting.run_target import SimulatedTarget
from tests.simulation.oracle import require

from mainstem.rpc.messages.merge import MergeGone, MergeWork
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_files import OpenFile, merge_files
from mainstem.storage.merging.merge_inputs import InputDamaged, InputFile, index_pieces
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import Liveness, LiveOffsets
from mainstem.storage.merging.merge_measure import facts_of, measure
from mainstem.storage.role import Storage
from mainstem.storage.split.split_lease import LEASE_SECONDS
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of

FINISHED_MAX = 5
"""Merges a zombie remembers."""

KILLED_SHARE = 0.3
"""Of the merges that a process does not live to finish."""

STEPS = ("asked", "measured", "writing", "written", "handed in")
"""Behind each of them the process may be killed; while writing, in the middle of a file."""


class MergingNode(Protocol):
    """A node whose store files are to be merged."""

    storage: Storage
    serving: Storage | None
    """None while the node stops."""
    is_handing_in: bool
    """A merge is being recorded: when the node is killed now, it is or is not."""

    @property
    def disk2(self) -> SimulatedFiles: ...

    @property
    def manifest_path(self) -> str: ...


class Killed(Exception):
    """The process ends here."""


def opener(disk: SimulatedFiles, room: int) -> OpenFile:
    """Opens so many files, then the process ends."""
    opened = 0

    def open_file(path: str) -> SimulatedTarget:
        nonlocal opened
        opened += 1
        if opened > room:
            raise Killed
        return SimulatedTarget(disk, path, leaves=True)

    return open_file


def copies_of(node: MergingNode, merge_id: str, names: Sequence[str], directory: Path) -> list[InputFile]:
    """Copies of these files as they are now. Those of a merge or compaction that is under way are there."""
    disk, there = node.disk2, set(node.disk2.paths())
    found = []
    for number, name in enumerate(names):
        paths = path_of(name), index_path_of(name)
        if not there.issuperset(paths):
            held = node.storage.queue_store.merges.under_way(merge_id) is not None
            require(not held, f"{name} is gone, and a merge of it is under way", "F")
            raise MergeGone(f"{name} is gone")
        copies = [directory / f"{number}.{'index' if path != paths[0] else 'file'}" for path in paths]
        for path, copy in zip(paths, copies, strict=True):
            copy.write_bytes(disk.content(path))
        found.append(InputFile(name, str(copies[0]), str(copies[1])))
    return found


class Mergers:
    """All that merge files of a node, one after the other."""

    def __init__(self, node: MergingNode, rng: random.Random) -> None:
        self._node = node
        self.rng = rng
        packed = rng.choice([300, 1500, 6000])
        enough = packed * rng.choice([1, 2, 4])
        self.lines = MergeLines(
            packed_bytes=packed,
            level_one_bytes=enough,
            wait_bytes_max=enough * rng.choice([1, 2, 5]),
            level_two_bytes=enough * rng.choice([1, 3, 8]),
            task_bytes=rng.choice([packed, 4 * packed, 1 << 20]),
        )
        self.lines.validate()
        self._lease = 0
        """Counts those who had it."""
        self._ends = 0.0
        """When the last one is given up: nobody hears of it since then."""
        self._finished: list[tuple[str, list[StoreFile]]] = []
        self.outcomes: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        """Files that merges brought, by their suffixes."""

    async def merge(self, *, well_behaved: bool = False, drain: bool = False) -> bool:
        """Make one merge, if there is one to make. Whether there may be another."""
        self._node.storage.merge_log.lines = self.lines
        self._lease += 1
        lease = self._lease
        clock = asyncio.get_running_loop().time
        self._ends = float("inf")
        in_force: Callable[[], bool] = lambda: self._lease == lease and clock() < self._ends  # noqa: E731
        try:
            return await self._merge(in_force, well_behaved=well_behaved, drain=drain)
        finally:
            if self._lease == lease:
                self._ends = clock() + LEASE_SECONDS

    async def _merge(self, in_force: Callable[[], bool], *, well_behaved: bool, drain: bool) -> bool:
        rng, log = self.rng, self._node.storage.merge_log
        work = await log.work(in_force, (), drain=drain or rng.random() < 0.2)
        if not work.merge_id:
            return work.more
        killed = None if well_behaved or rng.random() > KILLED_SHARE else rng.choice(STEPS)
        try:
            files = await self._files(work, killed, hurries=well_behaved)
        except Killed:
            self._count("killed")
            return True
        except MergeGone:
            require(not well_behaved or not in_force(), f"merge {work.merge_id} is gone, and nobody asked for another")
            self._count("gone")
            return True
        except InputDamaged as error:
            self._count("damaged")
            try:
                log.damaged(work.merge_id, error.name, "an extent or the index fails its CRC")
            except MergeGone:
                pass
            return True
        await self._hand_in(work.merge_id, files)
        if not well_behaved and rng.random() < 0.2:
            await self._hand_in(work.merge_id, files)
        return True

    def seen(self) -> dict[str, int]:
        """Counts of how merges ended, and of the files that came of them, by their suffixes."""
        return self.outcomes | self.kinds

    async def replay(self) -> None:
        """A zombie hands in again what was recorded, or refused, at some time."""
        if self._finished:
            await self._hand_in(*self.rng.choice(self._finished))

    async def _files(self, work: MergeWork, killed: str | None, *, hurries: bool) -> list[StoreFile]:
        self._end_at("asked", killed)
        topics = facts_of(work.topics)
        lines = MergeLines()._replace(
            packed_bytes=work.packed_bytes, task_bytes=work.task_bytes, output_files_max=work.output_files_max
        )
        await self._pause(hurries)
        with tempfile.TemporaryDirectory(dir=Path(self._node.manifest_path).parent) as directory:
            inputs = self._inputs(work, Path(directory))
            liveness = await self._liveness(work, inputs)
            measured = measure(self._inputs(work, Path(directory)), liveness, topics, lines)
        self._end_at("measured", killed)
        files: list[StoreFile] = []
        for number, task in enumerate(measured.tasks):
            await self._pause(hurries)
            dies = killed == "writing" and (number + 1 == len(measured.tasks) or self.rng.random() < 0.5)
            room = self.rng.randint(0, 3) if dies else 1 << 30
            with tempfile.TemporaryDirectory(dir=Path(self._node.manifest_path).parent) as directory:
                inputs = self._inputs(work, Path(directory))
                liveness = await self._liveness(work, inputs)
                files += merge_files(
                    task, self._inputs(work, Path(directory)), liveness, self._opener(room),
                    group=work.group, level=work.level, joined=work.joined,
                    new_name=lambda: f"{self.rng.getrandbits(64):016x}",
                )  # fmt: skip
        self._end_at("writing", killed)
        self._end_at("written", killed)
        return files

    def _end_at(self, step: str, killed: str | None) -> None:
        if step == killed:
            raise Killed

    def _opener(self, room: int) -> OpenFile:
        return opener(self._node.disk2, room)

    def _inputs(self, work: MergeWork, directory: Path) -> list[InputFile]:
        return copies_of(self._node, work.merge_id, [one.file.name for one in work.inputs], directory)

    async def _liveness(self, work: MergeWork, inputs: Sequence[InputFile]) -> Liveness:
        """Asks about all queues in the inputs beforehand: the functions wait for nothing."""
        queue_ids = [rows["queue_id"] for one in inputs for rows in index_pieces(one)]
        known = numpy.unique(numpy.concatenate([numpy.empty(0, "<u8"), *queue_ids]))
        bounds = await self._node.storage.merge_log.live(work.merge_id, known)

        def ask(queue_ids: QueueIds) -> LiveOffsets:
            places = known.searchsorted(queue_ids)
            return LiveOffsets(bounds.starts[places], bounds.ends[places], bounds.gaps)

        return Liveness(ask)

    def _remember(self, merge_id: str, files: list[StoreFile]) -> None:
        """For a zombie."""
        self._finished = [*self._finished[1 - FINISHED_MAX :], (merge_id, files)]

    async def _hand_in(self, merge_id: str, files: list[StoreFile]) -> None:
        self._remember(merge_id, files)
        if self._node.serving is None:
            return
        self._node.is_handing_in = True
        try:
            outcome = await self._node.storage.merge_log.record(merge_id, [file.message() for file in files])
        finally:
            self._node.is_handing_in = False
        kind = outcome.split(":")[0]
        require(kind in ("merged", "refused"), outcome)
        self._count(kind)
        if kind == "merged":
            for file in files:
                suffix = file.name.rpartition(".")[2]
                self.kinds[suffix] = self.kinds.get(suffix, 0) + 1

    def _count(self, what: str) -> None:
        self.outcomes[what] = self.outcomes.get(what, 0) + 1

    async def _pause(self, hurries: bool) -> None:
        """How long a task takes."""
        await asyncio.sleep(0.0 if hurries else self.rng.choice([0.0, 0.01, 0.5]))
