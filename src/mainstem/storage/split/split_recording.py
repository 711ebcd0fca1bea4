"""How a split that a splitter hands in comes to count: in this node's own queue store, or in a shared one.

Either way it counts, per write group, if its start continues the write group's split position. In a queue store of its
own a node decides that by itself (`state/manifest_queue.py`). With a shared store the leader of the write group has its
log say so, and all replicas follow (`state/shared_splits.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from mainstem.rpc.messages.split import PASSED_OVER, FileDescription, WriteGroupRange
from mainstem.storage.errors import StorageError
from mainstem.storage.remote.decided.remote_state import RECORDED as NOTED
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.state.manifest_queue import RECORDED, REPLAYED, ManifestQueue
from mainstem.storage.state.shared_splits import SharedSplits
from mainstem.storage.store_files.store_file import MANY_GROUPS, StoreFile
from mainstem.storage.write_groups.control import RemoteSpan

RUN_LEVEL = 0

OF_RUNS: dict[str, int] = {"group": MANY_GROUPS, "first_queue": 0, "last_queue": 0, "first_offset": -1}
"""The content of manifests about all runs: the log, and the images of what it has led to, say the same."""

Decide = Callable[[int, int, int, Sequence[StoreFile]], str]


class SplitRecording(Protocol):
    """Records splits."""

    async def record(self, ranges: Sequence[WriteGroupRange], files: Sequence[FileDescription]) -> list[str]:
        """As `SplitLog.record`."""
        ...


class OwnRecording:
    """Records splits in this node's own queue store."""

    def __init__(self, manifest: ManifestQueue, decide: Decide) -> None:
        self._manifest = manifest
        self._decide = decide

    async def record(self, ranges: Sequence[WriteGroupRange], files: Sequence[FileDescription]) -> list[str]:
        runs = list(map(StoreFile.of, files))
        with self._manifest.holding(runs):
            try:
                await self._manifest.verify(runs)
            except (StorageError, OSError) as error:
                return [f"refused: {error}"] * len(ranges)
            outcomes = [self._decide(entry.group, entry.after, entry.upto, runs) for entry in ranges]
        await self._manifest.drained(entry.group for entry in ranges)
        return outcomes


class SharedRecording:
    """Records splits in a shared store, as the leader of their write groups."""

    def __init__(
        self, splits: SharedSplits, remote: RemoteTier, history: RemoteHistory, epoch_of: Callable[[int], int | None]
    ) -> None:
        """`epoch_of`: the term in which this node leads a write group; None: it does not."""
        self._splits = splits
        self._remote = remote
        self._history = history
        self._epoch_of = epoch_of
        self._turns: dict[int, asyncio.Lock] = {}
        """One recording of a write group after the other: the next one begins where this one has led."""

    async def record(self, ranges: Sequence[WriteGroupRange], files: Sequence[FileDescription]) -> list[str]:
        runs: dict[int, list[FileDescription]] = {entry.group: [] for entry in ranges}
        for file in files:
            if file.level != RUN_LEVEL or file.group not in runs:
                return [f"refused: {file.name} is no run of one of the write groups {sorted(runs)}"] * len(ranges)
            runs[file.group].append(msgspec.structs.replace(file, **OF_RUNS))
        return await asyncio.gather(*(self._record(entry, runs) for entry in ranges))

    async def _record(self, entry: WriteGroupRange, runs: Mapping[int, Sequence[FileDescription]]) -> str:
        group, after, upto = entry.group, entry.after, entry.upto
        files = runs[group]
        epoch, announced = self._epoch_of(group), self._remote.intended(group)
        if epoch is None:
            return f"{PASSED_OVER}: another node leads write group {group}"
        if any(file.name in announced and announced[file.name].epoch != epoch for file in files):
            return f"{PASSED_OVER}: its files were announced in an earlier term than {epoch}"
        refusal = self._refusal(group, after, upto)
        if refusal:
            return refusal
        try:
            await self._history.verify(group, list(map(StoreFile.of, files)))
        except (StorageError, OSError) as error:
            return f"refused: {error}"
        async with self._turns.setdefault(group, asyncio.Lock()):
            refusal = self._refusal(group, after, upto)  # the log has gone on meanwhile
            if refusal:
                return refusal
            spans = [RemoteSpan(self._splits.decided(group), upto, tuple(files))] if files else []
            outcome = await self._remote.record(group, upto=upto, spans=spans, at_once=True)
        if outcome == NOTED:
            return RECORDED
        return outcome if self._epoch_of(group) == epoch else f"{PASSED_OVER}: {outcome}"

    def _refusal(self, group: int, after: int, upto: int) -> str:
        """Why blocks (after, upto] do not continue the split, or that they are split; empty: they do."""
        decided, reached, applied = (
            of(group) for of in (self._splits.decided, self._splits.reached, self._splits.applied)
        )
        if upto <= decided:
            return REPLAYED
        if upto > applied:
            return f"refused: block {upto} does not exist yet; the split is at {reached}"
        if not decided <= after <= reached:
            kind = "gap" if after > reached else "overlap"
            return f"refused: {kind}: blocks ({after}, {upto}] where the split is at {reached}"
        return ""
