"""A splitter that compacts, without Spark: asks the node for work, has the pipeline's own functions read keys and write
files anew, from copies of the simulated files, and hands in what they wrote; and misbehaves as those that merge do.

The things that Spark does, to find the latest record of each key and the markers that are empty, are done here.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy
from tests.fakes.splitting.latest_records import empty_markers, latest_records
from tests.simulation.merger import Killed, MergingNode, copies_of, opener
from tests.simulation.oracle import require

from mainstem.rpc.messages.compact import CompactedFile, CompactionWork
from mainstem.rpc.messages.merge import MergeGone
from mainstem.storage.compacting.compact_files import compact_file, scan_file
from mainstem.storage.compacting.compact_plan import QUEUE_ROW, QueueRows
from mainstem.storage.compacting.decided import decided
from mainstem.storage.compacting.ended_markers import TransactionColumns, scan_markers
from mainstem.storage.compacting.pass_places import KeyColumns, Staying, checked
from mainstem.storage.extents.aborted import AbortedRows
from mainstem.storage.merging.merge_files import OpenFile
from mainstem.storage.merging.merge_inputs import InputDamaged, InputFile
from mainstem.storage.split.split_lease import LEASE_SECONDS
from mainstem.storage.store_files.store_file import StoreFile

FINISHED_MAX = 5
"""Passes a zombie remembers."""

KILLED_SHARE = 0.4
"""Of the passes that a process does not live to finish."""

LEASE_LOST_SHARE = 0.25
"""Of the passes whose lease ends before they are handed in."""

STEPS = ("asked", "scanned", "writing", "written")
"""Behind each of them the process may be killed; while writing, in the middle of a file."""

PassSeen = Callable[[CompactionWork, QueueRows], None]


class Compactors:
    """All that compact files of a node, one after the other."""

    def __init__(self, node: MergingNode, rng: random.Random, handing_in: PassSeen) -> None:
        """`handing_in` is told of each pass before the node may record it."""
        self._node = node
        self.rng = rng
        self._handing_in = handing_in
        self._lease = 0
        self._ends = 0.0
        self._finished: list[tuple[str, list[CompactedFile]]] = []
        self.outcomes: dict[str, int] = {}
        self.removed_bytes = 0
        """Of batches, by passes that were recorded."""

    async def compact(self, *, well_behaved: bool = False, drain: bool = False) -> bool:
        """Make one pass, if there is one to make. Whether there may be another."""
        self._lease += 1
        lease = self._lease
        clock = asyncio.get_running_loop().time
        self._ends = float("inf")
        in_force: Callable[[], bool] = lambda: self._lease == lease and clock() < self._ends  # noqa: E731
        try:
            return await self._compact(in_force, well_behaved=well_behaved, drain=drain)
        finally:
            if self._lease == lease:
                self._ends = min(self._ends, clock() + LEASE_SECONDS)

    async def replay(self) -> None:
        """A zombie hands in again what was recorded, or refused, at some time."""
        if self._finished:
            await self._hand_in(*self.rng.choice(self._finished))

    async def _compact(self, in_force: Callable[[], bool], *, well_behaved: bool, drain: bool) -> bool:
        rng, storage = self.rng, self._node.storage
        offered = await storage.compaction_log.work(in_force, drain=drain or rng.random() < 0.5)
        work = offered.work
        if not work.pass_id:
            return work.more
        assert offered.queues is not None
        queues = numpy.frombuffer(offered.queues.tobytes(), QUEUE_ROW)
        killed = None if well_behaved or rng.random() > KILLED_SHARE else rng.choice(STEPS)
        try:
            files = await self._files(work, queues, killed, hurries=well_behaved)
        except Killed:
            self._count("killed")
            return True
        except MergeGone:
            require(not well_behaved, f"compaction {work.pass_id} is gone, and nobody asked for another")
            self._count("gone")
            return True
        except InputDamaged as error:
            self._count("damaged")
            try:
                storage.merge_log.damaged(work.pass_id, error.name, "an extent or the index fails its CRC")
            except MergeGone:
                pass
            return True
        if not well_behaved and rng.random() < LEASE_LOST_SHARE:
            self._ends = 0.0
            self._count("lost its lease")
        self._handing_in(work, queues)
        outcome = await self._hand_in(work.pass_id, files)
        if outcome == "compacted":
            before = sum(entry.batch_bytes for entry in work.inputs)
            self.removed_bytes += before - sum(file.batch_bytes for one in files for file in one.outputs)
        if not well_behaved and rng.random() < 0.2:
            await self._hand_in(work.pass_id, files)
        return True

    async def _files(
        self, work: CompactionWork, queues: QueueRows, killed: str | None, *, hurries: bool
    ) -> list[CompactedFile]:
        self._end_at("asked", killed)
        await self._pause(hurries)
        with tempfile.TemporaryDirectory(dir=Path(self._node.manifest_path).parent) as directory:
            inputs = self._inputs(work, Path(directory))
            queues, aborted, _ = decided(inputs, queues)
            staying = self._staying(work, queues, aborted, inputs)
        self._end_at("scanned", killed)
        files: list[CompactedFile] = []
        for number, entry in enumerate(work.inputs):
            await self._pause(hurries)
            dies = killed == "writing" and (number + 1 == len(work.inputs) or self.rng.random() < 0.5)
            open_file = self._opener(self.rng.randint(0, 3) if dies else 1 << 30)
            with tempfile.TemporaryDirectory(dir=Path(self._node.manifest_path).parent) as directory:
                paths = self._inputs(work, Path(directory))[number]
                outputs = compact_file(
                    StoreFile.of(entry), paths, queues, staying[number], open_file,
                    covered=work.covered, joined=work.joined, new_name=lambda: f"{self.rng.getrandbits(64):016x}",
                )  # fmt: skip
            files.append(CompactedFile(entry.name, tuple(file.message() for file in outputs)))
        self._end_at("writing", killed)
        self._end_at("written", killed)
        return files

    def _opener(self, room: int) -> OpenFile:
        return opener(self._node.disk2, room)

    def _inputs(self, work: CompactionWork, directory: Path) -> list[InputFile]:
        return copies_of(self._node, work.pass_id, [entry.name for entry in work.inputs], directory)

    def _staying(
        self, work: CompactionWork, queues: QueueRows, aborted: AbortedRows, inputs: list[InputFile]
    ) -> list[Staying]:
        """Of each input the records that stay: of each key the one with the largest place, unless that may go; and its
        empty markers."""
        key = self.rng.randbytes(16)
        found: list[KeyColumns] = []
        transactions: list[TransactionColumns] = []
        for number, paths in enumerate(inputs):
            found += scan_file(paths, number, queues, key, work.began_ms, aborted=aborted)
            transactions += scan_markers(paths, number, queues, work.began_ms)
        staying = latest_records(found, len(inputs), empty_markers(transactions))
        for number, of_input in enumerate(staying):
            checked(of_input, number)
        return staying

    async def _hand_in(self, pass_id: str, files: list[CompactedFile]) -> str:
        """'compacted' or 'refused'; empty where the node stops."""
        self._finished = [*self._finished[1 - FINISHED_MAX :], (pass_id, files)]
        if self._node.serving is None:
            return ""
        self._node.is_handing_in = True
        try:
            outcome = await self._node.storage.compaction_log.record(pass_id, files)
        finally:
            self._node.is_handing_in = False
        kind = outcome.split(":")[0]
        require(kind in ("compacted", "refused"), outcome)
        self._count(kind)
        return kind

    def _end_at(self, step: str, killed: str | None) -> None:
        if step == killed:
            raise Killed

    def _count(self, what: str) -> None:
        self.outcomes[what] = self.outcomes.get(what, 0) + 1

    async def _pause(self, hurries: bool) -> None:
        """How long a task takes."""
        await asyncio.sleep(0.0 if hurries else self.rng.choice([0.0, 0.01, 0.2]))
