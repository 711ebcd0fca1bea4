"""Split commits on their way into the manifest: each replica's own, as its queue store is.

A split commit is a decision (does it continue the group's split?) and a write to sqlite. The decision is made at
once, in the order of asking; the writes follow one by one in the background, and with its write a commit is
durable: whoever asked for it is answered then. Until a write is done the manifest's position has not moved, so
nothing is pruned for it; a checkpoint waits until all are done. A write that fails is tried again, for as long as
the node runs; meanwhile the journal keeps everything, and the runs that are to be named are held. A commit that a
crash took with it was never confirmed: its blocks are split again.

A group's split stands between two block indexes: `committed`, where the last commit ended, and `reached`, the last
one before the next data block. A commit may start anywhere from the one to the other: what lies between holds
nothing to split. Both follow from the log and the manifest, whatever was pruned of the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mainstem.rpc.split import RunFile
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.format import KIND_DATA, BlockHeader
from mainstem.storage.queue_store.store import CommitOutcome, QueueStore

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Between attempts to write to a manifest that refused: disks fill and empty in minutes, not in seconds."""

COMMITTED = "committed"
REPLAYED = "replayed"


class SplitImage(NamedTuple):
    """Where the split of one group stands, as a checkpoint keeps it."""

    committed: int
    applied: int
    unsplit: list[tuple[int, int]]


class Split:
    """Where the split of one group stands, see above."""

    __slots__ = ("applied", "committed", "unsplit")

    def __init__(self, committed: int, applied: int, unsplit: Iterable[tuple[int, int]] = ()) -> None:
        self.committed = committed
        self.applied = max(applied, committed)
        """The group's last block."""
        self.unsplit: deque[tuple[int, int]] = deque(unsplit)
        """(first, last) indexes of neighbouring data blocks behind `committed`: an entry more per control block
        among them, of which there are a few per commit, deletion or retention round."""
        self._drop()

    @property
    def reached(self) -> int:
        return self.unsplit[0][0] - 1 if self.unsplit else self.applied

    def block_applied(self, index: int, is_data: bool) -> None:
        self.applied = max(self.applied, index)
        if not is_data or index <= self.committed:  # the manifest may be ahead of a journal that is replayed
            return
        if self.unsplit and self.unsplit[-1][1] == index - 1:
            self.unsplit[-1] = (self.unsplit[-1][0], index)
        else:
            self.unsplit.append((index, index))

    def commit(self, upto: int) -> None:
        self.committed = upto
        self._drop()

    def _drop(self) -> None:
        while self.unsplit and self.unsplit[0][1] <= self.committed:
            self.unsplit.popleft()
        if self.unsplit and self.unsplit[0][0] <= self.committed:
            self.unsplit[0] = (self.committed + 1, self.unsplit[0][1])


class Decided(NamedTuple):
    """A split commit that counts, to be written to the manifest."""

    group: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    """The group's last block then."""
    after: int
    upto: int
    files: tuple[RunFile, ...]


class ManifestQueue:
    """Decides split commits and materializes them in order."""

    def __init__(self, store: QueueStore, groups: int) -> None:
        self._store = store
        self._splits = [Split(position, position) for position in map(store.split_position, range(groups))]
        self._pending: deque[Decided] = deque()
        self._wake = asyncio.Event()
        self._written: list[asyncio.Future[None]] = []
        """Those who wait until nothing is pending."""
        self.failure: StorageError | None = None
        """What the last write failed with; None once it succeeded."""

    # --- where things stand -------------------------------------------------------------------------------

    def written(self, group: int) -> int:
        """The last block of a group that the manifest says is split: what pruning may rely on."""
        return self._store.split_position(group)

    def reached(self, group: int) -> int:
        """No block of the group up to this one is left to split."""
        return self._splits[group].reached

    def files(self, group: int) -> int:
        """How many runs hold blocks of a group."""
        return self._store.file_count(group)

    async def verify(self, files: Sequence[RunFile]) -> None:
        """Raise `StorageError` unless these runs are in the queue store, whole and as described."""
        await self._store.verify(files)

    # --- applying -----------------------------------------------------------------------------------------

    def block_applied(self, header: BlockHeader) -> None:
        """Every block of every group, in the order of its log."""
        self._splits[header.group].block_applied(header.index, header.kind == KIND_DATA)

    def commit(self, group: int, after: int, upto: int, files: Sequence[RunFile]) -> str:
        """Decide on a split of blocks (after, upto] into these runs: `committed`, `replayed`, or `refused: …`
        with the reason. The manifest follows in its own time, see `drained`."""
        split = self._splits[group]
        committed, reached = split.committed, split.reached
        if upto <= committed:
            return REPLAYED
        if upto > split.applied:
            return f"refused: block {upto} does not exist yet; the split is at {reached}"
        if not committed <= after <= reached:
            kind = "gap" if after > reached else "overlap"
            return f"refused: {kind}: blocks ({after}, {upto}] where the split is at {reached}"
        split.commit(upto)
        self._pending.append(Decided(group, split.applied, committed, upto, tuple(files)))
        for file in files:
            self._store.hold(file.name)
        self._wake.set()
        return COMMITTED

    async def supersede(
        self, group: int, position: int, ranges: Sequence[tuple[int, int, RunFile]]
    ) -> None:
        """A snapshot: the group is split up to `position`, into these runs, as (after, upto, run), and no others.
        In the manifest when this returns; commits that were decided before come to nothing. Raises `StorageError`."""
        await self._store.supersede(group, position, ranges)
        self._splits[group] = Split(position, position)

    async def forget(self, group: int) -> None:
        """Nothing of the group is split, or was. In the manifest when this returns; commits that were decided before
        come to nothing. Raises `StorageError`."""
        self._splits[group] = Split(0, 0)
        await self._store.supersede(group, 0, ())

    def dump(self) -> list[SplitImage]:
        """The state of every group, for a checkpoint."""
        return [SplitImage(split.committed, split.applied, list(split.unsplit)) for split in self._splits]

    def load(self, images: Sequence[SplitImage]) -> None:
        for group, image in enumerate(images):
            committed = max(image.committed, self._store.split_position(group))
            self._splits[group] = Split(committed, image.applied, image.unsplit)

    # --- writing ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write decided commits to the manifest until cancelled; runs as a task of the storage role."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._pending:
                    await self._write_next()
                self._answer(None)
        finally:
            self._answer(StorageError("the manifest is closed"))

    async def _write_next(self) -> None:
        try:
            await self._write(self._pending[0])
        except Exception as error:  # whatever it is: this task must not end, others wait for it
            if self.failure is None:
                log.exception("a split cannot be written to the manifest, it is tried again")
            self.failure = StorageError(f"the manifest cannot be written: {error}")
            self._answer(self.failure)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self.failure = None
            for file in self._pending.popleft().files:
                self._store.let_go(file.name)

    async def _write(self, item: Decided) -> None:
        outcome = await self._store.commit(
            item.group, item.after, item.upto, item.files, applied_index=item.index
        )
        forgotten = item.upto > self._splits[item.group].committed
        if outcome is CommitOutcome.GAP and not forgotten:
            raise StorageError(
                f"write group {item.group}: the manifest is at block {self.written(item.group)}, the log at "
                f"{item.after}; restore the newest manifest"
            )

    def _answer(self, error: Exception | None) -> None:
        for future in self._written:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        self._written.clear()

    async def drained(self) -> None:
        """Return when everything decided so far is in the manifest. Raises what a write to it failed with, at
        once while it is failing."""
        if not self._pending:
            return
        if self.failure is not None:
            raise StorageError(str(self.failure)) from self.failure
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.append(future)
        await future
