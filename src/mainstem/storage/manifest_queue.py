"""Split commits on their way from the log into the manifest.

Applying a split commit is a decision (does it continue the group's split?) and a write to sqlite. The decision
is made at once, in log order; the writes follow one by one in the background. Until a write is done the
manifest's position has not moved, so nothing is pruned for it; a checkpoint waits until all are done. A write that
fails is tried again, for as long as the node runs and at its next start; meanwhile the journal keeps everything.

A group's split stands between two block indexes: `committed`, where the last commit ended, and `reached`, which
moves on over blocks without records (a commit is one itself). A commit may start anywhere from the one to the
other: what lies between holds nothing to split.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.rpc.split import RunFile
from mainstem.storage.control import SplitCommitted
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.format import KIND_DATA, BlockHeader
from mainstem.storage.queue_store.store import CommitOutcome, QueueStore

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Between attempts to write to a manifest that refused: disks fill and empty in minutes, not in seconds."""

COMMITTED = "committed"
REPLAYED = "replayed"


class Split(NamedTuple):
    """Where the split of one group stands, see above."""

    committed: int
    reached: int


class Decided(NamedTuple):
    """A split commit that counts, to be written to the manifest."""

    group: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    after: int
    upto: int
    files: tuple[RunFile, ...]


class ManifestQueue:
    """Decides split commits and materializes them in order."""

    def __init__(self, store: QueueStore, groups: int) -> None:
        self._store = store
        self._splits = [Split(position, position) for position in map(store.split_position, range(groups))]
        self._last_data = [0] * groups
        self._pending: deque[Decided] = deque()
        self._wake = asyncio.Event()
        self._written: list[asyncio.Future[None]] = []
        """Those who wait until nothing is pending."""
        self.failure: Exception | None = None
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
        """Every block of every group, in journal order."""
        group = header.group
        if header.kind == KIND_DATA:
            self._last_data[group] = header.index
        elif self._last_data[group] <= self._splits[group].reached:
            committed, reached = self._splits[group]
            self._splits[group] = Split(committed, max(reached, header.index))  # the manifest may be ahead

    def decide(self, group: int, index: int, command: SplitCommitted) -> str:
        """Apply a split commit that is block `index` of its group: `committed`, `replayed`, or `refused: …`
        with the reason."""
        committed, reached = self._splits[group]
        if command.upto <= committed:
            return REPLAYED
        if command.upto >= index:
            return f"refused: block {command.upto} does not exist yet; the split is at {reached}"
        if not committed <= command.after <= reached:
            kind = "gap" if command.after > reached else "overlap"
            return (
                f"refused: {kind}: blocks ({command.after}, {command.upto}] where the split is at {reached}"
            )
        reached = index if self._last_data[group] <= command.upto else max(command.upto, reached)
        self._splits[group] = Split(command.upto, reached)
        self._pending.append(Decided(group, index, committed, command.upto, command.files))
        self._wake.set()
        return COMMITTED

    def dump(self) -> list[tuple[int, int, int]]:
        """(committed, reached, last data block) per group, for a checkpoint."""
        return [(*split, last) for split, last in zip(self._splits, self._last_data, strict=True)]

    def load(self, splits: Sequence[tuple[int, int, int]]) -> None:
        for group, (committed, reached, last_data) in enumerate(splits):
            written = max(committed, self._store.split_position(group))
            self._splits[group] = Split(written, max(written, reached))
            self._last_data[group] = last_data

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
        except (StorageError, OSError) as error:
            if self.failure is None:
                log.error("a split cannot be written to the manifest, it is tried again: %s", error)
            self.failure = error
            self._answer(error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self.failure = None
            self._pending.popleft()

    async def _write(self, item: Decided) -> None:
        outcome = await self._store.commit(
            item.group, item.after, item.upto, item.files, applied_index=item.index
        )
        if outcome is CommitOutcome.GAP:
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
            raise StorageError(f"the manifest cannot be written: {self.failure}") from self.failure
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.append(future)
        await future
