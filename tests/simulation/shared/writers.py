"""Splitters that split, merge and compact into a shared store, without Spark: the pipeline's own functions make files
in memory, whose names are announced to the node, and which are then uploaded and handed in; and they misbehave.

A process ends now and then between two of these steps. Its upload of that moment goes on without it, as an executor on
another machine does, and arrives when nobody waits for it any more, maybe after its name was given up; and a zombie
hands it in, maybe when others have done the same work."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.files import SimulatedFiles
from tests.fakes.object_store import SimulatedBucket
from tests.fakes.splitting.run_target import SimulatedTarget, dying_writers
from tests.simulation.cluster.run import NodeSplitters
from tests.simulation.compactor import Compactors, PassSeen
from tests.simulation.merger import Killed, Mergers, opener
from tests.simulation.oracle import require

from mainstem.errors import MainstemError
from mainstem.pipeline.slices.split_slice import SplitSlice
from mainstem.ports import ObjectStore
from mainstem.rpc.messages.compact import CompactedFile, CompactionWork
from mainstem.rpc.messages.merge import MergeGone, MergeWork
from mainstem.rpc.messages.split import Slice
from mainstem.storage.compacting.compact_plan import QueueRows
from mainstem.storage.errors import StorageError
from mainstem.storage.merging.merge_files import OpenFile
from mainstem.storage.merging.merge_inputs import InputFile
from mainstem.storage.object_stores.errors import ObjectExists, ObjectStoreTimedOut
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of, paths_of

if TYPE_CHECKING:
    from tests.simulation.cluster.node import SimulatedNode

KILLED_SHARE = 0.15
"""Of the splits that a process does not live to finish."""

Names = Mapping[int, Sequence[str]]
"""Files by their write groups."""


class StoreWriters:
    """The conduct of all that write to the store for a node."""

    def __init__(self, node: SimulatedNode, rng: random.Random) -> None:
        assert node.cluster.bucket is not None
        self.node = node
        self.rng = rng
        self.bucket: SimulatedBucket = node.cluster.bucket
        self.made = SimulatedFiles()
        """The files that tasks have made, by its paths; each file has a name of its own."""
        self.step = ""
        self.zombies: set[asyncio.Task[None]] = set()
        self.outcomes: dict[str, int] = {}

    async def publish(self, files: Names, *, dies: bool, hurries: bool) -> None:
        """Announce files that were made, and upload them. Raises `StorageError`; `Killed` if the process `dies`, which
        it does behind the announcement or during the upload."""
        store = self.node.new_object_store()
        try:
            self.step = "announcing"
            for group, names in files.items():
                refusal = await self.node.storage.tier_log.intend(group, names)
                if refusal:
                    self._count("not announced")
                    raise StorageError(refusal)
            await self._pause(hurries)
            if dies and self.rng.random() < 0.3:
                raise Killed
            self.step = "uploading"
            for group, names in files.items():
                for name in names:
                    await self._upload(store, group, name, dies=dies, hurries=hurries)
            if dies:
                raise Killed
            self.step = "handing in"
            await self._pause(hurries)
        except Killed:
            self._count("killed")
            raise
        finally:
            self.step = ""

    async def _upload(self, store: ObjectStore, group: int, name: str, *, dies: bool, hurries: bool) -> None:
        upload = asyncio.get_running_loop().create_task(
            self._send(store, group, name, hurries=hurries), context=contextvars.Context()
        )
        if dies and self.rng.random() < 0.5:
            self._go_on(upload)
            raise Killed
        try:
            await asyncio.wait([upload])
        except asyncio.CancelledError:  # the node stops, the executor does not
            self._go_on(upload)
            raise
        upload.result()

    def _go_on(self, upload: asyncio.Task[None]) -> None:
        self.zombies.add(upload)
        upload.add_done_callback(self._zombie_ended)

    def _zombie_ended(self, upload: asyncio.Task[None]) -> None:
        self.zombies.discard(upload)
        if not upload.cancelled() and isinstance(error := upload.exception(), Exception):
            require(isinstance(error, MainstemError | OSError), f"an upload ends with {error!r}")

    async def _send(self, store: ObjectStore, group: int, name: str, *, hurries: bool) -> None:
        for path in paths_of(name):
            await self._pause(hurries)
            try:
                await store.write(object_of(group, path), self.made.content(path))
            except ObjectExists:  # an answer was lost
                pass

    async def _pause(self, hurries: bool) -> None:
        await asyncio.sleep(0.0 if hurries else self.rng.choice([0.0, 0.0, 0.01, 0.5]))

    def _count(self, what: str) -> None:
        self.outcomes[what] = self.outcomes.get(what, 0) + 1

    def copies_of(self, group: int, names: Sequence[str], directory: Path) -> list[InputFile]:
        """Copies of these files, as the store has them. Raises `MergeGone` for one that it does not have,
        `ObjectStoreTimedOut` while it is out."""
        if self.bucket.weather.down or self.bucket.weather.refuses:
            raise ObjectStoreTimedOut("no answer in time")
        found = []
        for number, name in enumerate(names):
            paths = path_of(name), index_path_of(name)
            copies = [directory / f"{number}.{'index' if path != paths[0] else 'file'}" for path in paths]
            for path, copy in zip(paths, copies, strict=True):
                stored = self.bucket.objects.get(self.node.store_prefix + object_of(group, path))
                if stored is None:
                    raise MergeGone(f"{name} is gone")
                copy.write_bytes(stored.content)
            found.append(InputFile(name, str(copies[0]), str(copies[1])))
        return found


class SharedSplitters(NodeSplitters):
    """All splitters of a node."""

    def __init__(self, node: SimulatedNode, rng: random.Random, writers: StoreWriters) -> None:
        super().__init__(node, rng)
        self._writers = writers

    def _open_run(self) -> Callable[[str], SimulatedTarget]:
        return dying_writers(self._writers.made)

    async def _split_slice(self, work: Slice) -> SplitSlice | None:
        done = await super()._split_slice(work)
        if done is None:
            return None
        names: dict[int, list[str]] = {}
        for file in done.files:
            names.setdefault(file.group, []).append(file.name)
        dies = not self.hurries and self._rng.random() < KILLED_SHARE
        try:
            await self._writers.publish(names, dies=dies, hurries=self.hurries)
        except Killed:
            self._remember(done)
            return None
        return done


class SharedMergers(Mergers):
    """All that merge files of a node, one after the other."""

    def __init__(self, node: SimulatedNode, rng: random.Random, writers: StoreWriters) -> None:
        super().__init__(node, rng)
        self._writers = writers

    def _opener(self, room: int) -> OpenFile:
        return opener(self._writers.made, room)

    def _inputs(self, work: MergeWork, directory: Path) -> list[InputFile]:
        return self._writers.copies_of(work.group, [one.file.name for one in work.inputs], directory)

    async def _files(self, work: MergeWork, killed: str | None, *, hurries: bool) -> list[StoreFile]:
        dies = killed == "written"
        files = await super()._files(work, None if dies else killed, hurries=hurries)
        try:
            if files:
                await self._writers.publish({work.group: [file.name for file in files]}, dies=dies, hurries=hurries)
        except Killed:
            self._remember(work.merge_id, files)
            raise
        return files


class SharedCompactors(Compactors):
    """All that compact files of a node, one after the other."""

    def __init__(self, node: SimulatedNode, rng: random.Random, handing_in: PassSeen, writers: StoreWriters) -> None:
        super().__init__(node, rng, handing_in)
        self._writers = writers

    def _opener(self, room: int) -> OpenFile:
        return opener(self._writers.made, room)

    def _inputs(self, work: CompactionWork, directory: Path) -> list[InputFile]:
        return self._writers.copies_of(work.group, [entry.name for entry in work.inputs], directory)

    async def _files(
        self, work: CompactionWork, queues: QueueRows, killed: str | None, *, hurries: bool
    ) -> list[CompactedFile]:
        dies = killed == "written"
        files = await super()._files(work, queues, None if dies else killed, hurries=hurries)
        names = [output.name for file in files for output in file.outputs]
        if names:
            await self._writers.publish({work.group: names}, dies=dies, hurries=hurries)
        return files
