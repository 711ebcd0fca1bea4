"""The manifest queue decides which splits count and records them in the manifest. Each replica has its own, as it has
its own queue store.

A split is decided on (does it continue the write group's split?) and recorded: written to sqlite. The decision is made
at once, in the order of asking; the writes follow in the background. With its write a split is recorded durably, and
its caller is answered. One transaction, with one mark behind it, writes all that is decided by then. Until a write is
done the manifest's position has not moved, so no segment is pruned for it.

A write group whose split cannot be written (a run of it is damaged, or the manifest is not where its log is) waits by
itself: the write is retried for as long as the node runs, and the other write groups go on. Meanwhile the journal keeps
everything, and the runs that the split names are held. A checkpoint waits for the splits that can be written; for a
waiting write group it has the manifest's position. A split that a crash took with it was never confirmed: its blocks
are split again.

The split of a write group stands between two block indexes: `decided`, where the last decided split ended, and
`reached`, the last one before the next data block. A split may start anywhere from the one to the other: no data block
lies between them. Both follow from the log and the manifest, however much of the journal was pruned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from mainstem.storage.errors import StorageError
from mainstem.storage.journal.encoding.format import KIND_DATA, BlockHeader
from mainstem.storage.queue_store.changes.splits import SplitOutcome
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupSplit
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.store_file import StoreFile

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Between attempts to write to a manifest that refused: disks fill and empty in minutes, not in seconds."""

TOGETHER_MAX = 256
"""Splits in one transaction: of some write groups and some triggers, a few milliseconds of sqlite."""

RECORDED = "committed"
"""Nodes and splitters of version 0.1 say it so to each other."""
REPLAYED = "replayed"


class SplitImage(NamedTuple):
    """The split position of one write group, as a checkpoint keeps it."""

    decided: int
    applied: int
    unsplit: list[tuple[int, int]]

    def as_written(self, upto: int) -> SplitImage:
        """This position, split no further than `upto`: all decided blocks behind it count as unsplit."""
        if self.decided <= upto:
            return self
        return SplitImage(upto, self.applied, [(upto + 1, self.decided), *self.unsplit])


class Split:
    """The split position of one write group, with its unsplit data blocks (see the module)."""

    __slots__ = ("applied", "decided", "unsplit")

    def __init__(self, decided: int, applied: int, unsplit: Iterable[tuple[int, int]] = ()) -> None:
        self.decided = decided
        self.applied = max(applied, decided)
        """The group's last block."""
        self.unsplit: deque[tuple[int, int]] = deque(unsplit)
        """(first, last) indexes of neighbouring data blocks behind `decided`: an entry more per control block
        among them, of which there are a few per split, deletion or retention round."""
        self._drop()

    @property
    def reached(self) -> int:
        return self.unsplit[0][0] - 1 if self.unsplit else self.applied

    def block_applied(self, index: int, is_data: bool) -> None:
        self.applied = max(self.applied, index)
        if not is_data or index <= self.decided:  # the manifest may be ahead of a journal that is replayed
            return
        if self.unsplit and self.unsplit[-1][1] == index - 1:
            self.unsplit[-1] = (self.unsplit[-1][0], index)
        else:
            self.unsplit.append((index, index))

    def move_to(self, upto: int) -> None:
        self.decided = upto
        self._drop()

    def _drop(self) -> None:
        while self.unsplit and self.unsplit[0][1] <= self.decided:
            self.unsplit.popleft()
        if self.unsplit and self.unsplit[0][0] <= self.decided:
            self.unsplit[0] = (self.decided + 1, self.unsplit[0][1])


class Decided(NamedTuple):
    """A split that counts, to be written to the manifest."""

    group: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called
    """The write group's last block when it was decided."""
    after: int
    upto: int
    files: tuple[StoreFile, ...]


class ManifestQueue:
    """Decides which splits count and writes them to the manifest in order."""

    def __init__(self, store: QueueStore, groups: int) -> None:
        self._store = store
        self._splits = [Split(position, position) for position in map(store.splits.split_position, range(groups))]
        self._vouched = [0] * groups
        """The value of `written` when the manifest was last vouched for."""
        self._pending: dict[int, deque[Decided]] = {}
        """Decided splits that are not written yet, per write group, oldest first."""
        self._failures: dict[int, StorageError] = {}
        """The error of the last attempt to write a write group's oldest split."""
        self.failure: StorageError | None = None
        """The error of the last attempt if nothing at all could be written; None otherwise."""
        self._turn = asyncio.Lock()
        """Held during a write."""
        self._wake = asyncio.Event()
        self._waiting: list[tuple[frozenset[int], asyncio.Future[None]]] = []
        """Callers that wait until some write groups have no pending split."""
        self._closed = False

    def grow(self, groups: int) -> None:
        """From now on so many write groups are split."""
        new = range(len(self._splits), groups)
        self._splits += [Split(position, position) for position in map(self._store.splits.split_position, new)]
        self._vouched += [0] * len(new)

    @property
    def failures(self) -> dict[int, StorageError]:
        """The write groups whose splits cannot be written now, each with the error."""
        return dict(self._failures)

    # --- where things stand -------------------------------------------------------------------------------

    def written(self, group: int) -> int:
        """The last block of a write group that the manifest says is split; pruning relies on this."""
        return self._store.splits.split_position(group)

    def reached(self, group: int) -> int:
        """No block of the group up to this one is left to split."""
        return self._splits[group].reached

    def journal_index(self, group: int) -> int:
        """The last block of the write group that was split here, so the journal had at least this block."""
        return self._store.splits.journal_index(group)

    def stored(self, group: int) -> int:
        """Every data block of the group up to this one is in the runs that the manifest names."""
        return self.written(group) if group in self._pending else max(self.written(group), self.reached(group))

    def files(self, group: int) -> int:
        """How many runs hold blocks of a group."""
        return self._store.stored.file_count(group)

    async def vouch(self) -> None:
        """Return when a start would refuse a manifest that says less than `written` did before the call. Raises
        `StorageError`."""
        written = [self.written(group) for group in range(len(self._splits))]
        await self._store.changes.vouch()
        self._vouched = written

    async def verify(self, files: Sequence[StoreFile]) -> None:
        """Raise `StorageError` unless these runs are in the queue store, whole and as described."""
        await self._store.splits.verify(files)

    @contextlib.contextmanager
    def holding(self, files: Sequence[StoreFile]) -> Iterator[None]:
        """Keep these runs from being dropped, from before `verify` until the splits that name them are decided."""
        for file in files:
            self._store.orphans.hold(file.name)
        try:
            yield
        finally:
            for file in files:
                self._store.orphans.let_go(file.name)

    # --- applying -----------------------------------------------------------------------------------------

    def block_applied(self, header: BlockHeader) -> None:
        """Take note of an applied block; called for every block, in the order of its write group's log."""
        self._splits[header.group].block_applied(header.index, header.kind == KIND_DATA)

    def decide(self, group: int, after: int, upto: int, files: Sequence[StoreFile]) -> str:
        """Decide on a split of blocks (after, upto] into these runs: `RECORDED`, `REPLAYED`, or `refused: …`
        with the reason. The manifest follows in its own time, see `drained`."""
        split = self._splits[group]
        decided, reached = split.decided, split.reached
        if upto <= decided:
            return REPLAYED
        if upto > split.applied:
            return f"refused: block {upto} does not exist yet; the split is at {reached}"
        if not decided <= after <= reached:
            kind = "gap" if after > reached else "overlap"
            return f"refused: {kind}: blocks ({after}, {upto}] where the split is at {reached}"
        split.move_to(upto)
        self._pending.setdefault(group, deque()).append(Decided(group, split.applied, decided, upto, tuple(files)))
        for file in files:
            self._store.orphans.hold(file.name)
        self._wake.set()
        return RECORDED

    async def pass_over(self, group: int, upto: int) -> bool:
        """Have the split move on to this block, as nothing before it is worth one. Whether it did; see `drained`."""
        reached = self.reached(group)
        return upto <= reached or self.decide(group, reached, upto, ()) == RECORDED

    async def supersede(
        self, group: int, position: int, ranges: Sequence[tuple[int, int, StoreFile]], kept_upto: int = 0
    ) -> None:
        """Take a snapshot over: the write group is split up to `position`, into the runs that it had for blocks up to
        `kept_upto` and these, as (after, upto, run). Recorded in the manifest on return; splits decided before are
        dropped. Raises `StorageError`."""
        async with self._turn:
            await self._store.changes.supersede(group, position, ranges, kept_upto)
            self._abandon(group)
            self._splits[group] = Split(position, position)
        self._answer()

    async def begin_behind_remote(self, upto_of: Callable[[int], int]) -> None:
        """Have a new manifest begin where the checkpoint says that blocks are split: they are in the remote tier, of
        which `upto_of` tells, per write group, up to where. Such a checkpoint was made of the object store
        (`adopting/disk_one.py`). Call this before any split is decided. Raises `StorageError`."""
        if self._store.manifest.groups():
            return
        for group, split in enumerate(self._splits):
            if 0 < split.decided <= upto_of(group):
                await self._store.changes.supersede(group, split.decided, ())

    async def lose(self, group: int, upto: int, name: str, why: str) -> None:
        """Record a missing run in place of a write group's unsplit blocks up to this one, which are gone. Call this
        before any split is decided. Raises `StorageError`."""
        split = self._splits[group]
        assert not self._pending, "before splits are decided"
        await self._store.splits.lose(group, upto, name, why, applied_index=split.applied)
        split.move_to(upto)

    async def forget(self, group: int) -> None:
        """Forget the write group's split as if there had been none. Recorded in the manifest on return; splits decided
        before are dropped. Raises `StorageError`."""
        await self.supersede(group, 0, ())

    def _abandon(self, group: int) -> None:
        self._failures.pop(group, None)
        for item in self._pending.pop(group, ()):
            for file in item.files:
                self._store.orphans.let_go(file.name)

    def dump(self) -> list[SplitImage]:
        """The state of every write group, for a checkpoint; pass it through `as_written` before saving it."""
        return [SplitImage(split.decided, split.applied, list(split.unsplit)) for split in self._splits]

    def as_written(self, images: Sequence[SplitImage]) -> list[SplitImage]:
        """The images with no more split than the manifest is vouched to have: blocks of splits that are only decided,
        or that a start may not find in the manifest, count as unsplit. A start goes by the manifest where that has
        more."""
        return [image.as_written(min(self.written(group), self._vouched[group])) for group, image in enumerate(images)]

    def load(self, images: Sequence[SplitImage]) -> None:
        for group, image in enumerate(images[: len(self._splits)]):
            decided = max(image.decided, self._store.splits.split_position(group))
            self._splits[group] = Split(decided, image.applied, image.unsplit)

    # --- writing ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write decided splits to the manifest until cancelled; runs as a task of the storage role."""
        time = asyncio.get_running_loop().time
        retry_at = 0.0
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(retry_at if self._failures else None):
                        await self._wake.wait()
                self._wake.clear()
                due = time() >= retry_at
                if due:
                    retry_at = time() + RETRY_SECONDS
                tried = set(self._pending) if due else self._pending.keys() - self._failures
                while tried:
                    await self._write(tried)
                    tried = self._pending.keys() - self._failures
        finally:
            self._closed = True
            self._answer()

    async def _write(self, groups: Collection[int]) -> None:
        """Write the pending splits of these write groups, or the oldest of them."""
        async with self._turn:
            together = [item for group in sorted(groups) for item in self._pending.get(group, ())]
            together.sort(key=lambda item: item.index)
            together = together[:TOGETHER_MAX]
            try:
                outcomes = await self._store.splits.record_all(
                    [WriteGroupSplit(item.group, item.after, item.upto, item.files, item.index) for item in together]
                )
            except Exception as error:  # any exception: this task must not end, others wait for it
                if self.failure is None:
                    log.error("nothing can be written to the manifest, it is tried again: %s", error, exc_info=error)
                self.failure = StorageError(f"the manifest cannot be written: {error}")
                self.failure.__cause__ = error
                self._failures |= dict.fromkeys((item.group for item in together), self.failure)
            else:
                self.failure = None
                self._settle(together, outcomes)
        self._answer()

    def _settle(self, items: Sequence[Decided], outcomes: Sequence[SplitOutcome | StorageError]) -> None:
        failed: set[int] = set()
        for item, outcome in zip(items, outcomes, strict=True):
            if item.group in failed:
                continue
            if outcome is SplitOutcome.GAP:
                outcome = StorageError(
                    f"write group {item.group}: the manifest is at block {self.written(item.group)}, the log at "
                    f"{item.after}; restore the newest manifest"
                )
            if isinstance(outcome, StorageError):
                failed.add(item.group)
                self._failed(item.group, outcome)
            else:
                self._failures.pop(item.group, None)
                self._written(item)

    def _written(self, item: Decided) -> None:
        pending = self._pending[item.group]
        assert pending[0] is item, "the splits of a write group are written in order"
        pending.popleft()
        if not pending:
            del self._pending[item.group]
        for file in item.files:
            self._store.orphans.let_go(file.name)

    def _failed(self, group: int, error: StorageError) -> None:
        if str(self._failures.get(group)) != str(error):
            log.error(
                "write group %d: a split cannot be written to the manifest, it is tried again every %g s; the other "
                "write groups go on: %s", group, RETRY_SECONDS, error, exc_info=error,
            )  # fmt: skip
        self._failures[group] = error

    def _answer(self) -> None:
        """Answer callers whose write groups have no pending split any more, or cannot be written now."""
        waiting, self._waiting = self._waiting, []
        for groups, future in waiting:
            if future.done():
                continue
            failure = self._failure_of(groups)
            if failure is not None:
                future.set_exception(failure)
            elif self._pending.keys().isdisjoint(groups):
                future.set_result(None)
            else:
                self._waiting.append((groups, future))

    def _failure_of(self, groups: Iterable[int]) -> StorageError | None:
        for group in groups:
            if group in self._failures:
                return StorageError(str(self._failures[group]))
        if self._closed and not self._pending.keys().isdisjoint(groups):
            return StorageError("the manifest is closed")
        return None

    async def drained(self, groups: Iterable[int]) -> None:
        """Return when every split of these write groups decided so far is in the manifest. While the writes of one of
        them fail, raises that error at once."""
        wanted = frozenset(groups)
        if self._pending.keys().isdisjoint(wanted):
            return
        failure = self._failure_of(wanted)
        if failure is not None:
            raise failure
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, future))
        await future

    async def settled(self) -> None:
        """Return when every split decided so far is in the manifest, except those of write groups that cannot be
        written."""
        while waiting := self._pending.keys() - self._failures:
            try:
                await self.drained(waiting)
            except StorageError:
                if self._closed:
                    raise
