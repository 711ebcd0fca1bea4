"""The split positions of write groups whose files lie in a shared store.

There the logs of the write groups say how far each is split, and into which files (`remote/remote_tier.py`). So a
position moves when such a change is applied, here as on every other replica, and counts once the tier's manifest has
it. Nothing is decided here: the leader of a write group has its log decide (`split/split_recording.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mainstem.storage.errors import StorageError
from mainstem.storage.journal.encoding.format import KIND_DATA, BlockHeader
from mainstem.storage.remote.decided.remote_state import RECORDED as NOTED
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.state.manifest_queue import Split, SplitImage
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.control import RemoteChanged


class SharedSplits:
    """The counterpart of `ManifestQueue`, which is for a queue store of the node's own."""

    def __init__(self, remote: RemoteTier, groups: int, moved: Callable[[], None]) -> None:
        """`moved` is called when a write group's position has."""
        self._remote = remote
        self._moved = moved
        positions = [remote.position(group).upto for group in range(groups)]
        self._splits = [Split(position, position) for position in positions]
        self._vouched = [0] * groups
        """The value of `written` when all that was decided by then was written."""
        self.failure: StorageError | None = None
        """Never any: `RemoteTier.failure` says why nothing can be written."""
        self.failures: dict[int, StorageError] = {}
        remote.watch(self._applied)

    def grow(self, groups: int) -> None:
        """From now on so many write groups are split."""
        positions = [self._remote.position(group).upto for group in range(len(self._splits), groups)]
        self._splits += [Split(position, position) for position in positions]
        self._vouched += [0] * len(positions)

    # --- where things stand -------------------------------------------------------------------------------

    def written(self, group: int) -> int:
        """The last block of a write group that the tier's manifest says is split; pruning relies on this."""
        return self._remote.manifest.position(group).position

    def journal_index(self, group: int) -> int:
        """The last block of the write group that was split and that the journal here had for certain."""
        return min(self._remote.manifest.position(group))

    def decided(self, group: int) -> int:
        """The end of the last split of the log."""
        return self._splits[group].decided

    def applied(self, group: int) -> int:
        """The write group's last block."""
        return self._splits[group].applied

    def reached(self, group: int) -> int:
        """No block of the group up to this one is left to split."""
        return self._splits[group].reached

    def stored(self, group: int) -> int:
        """Every data block of the group up to this one is in files that the tier's manifest names."""
        return self.written(group)

    def files(self, group: int) -> int:
        """How many files hold blocks of a group."""
        return self._remote.manifest.spans(group).file_count

    async def vouch(self) -> None:
        """Return when a start would notice that the tier's manifest says less than `written` did before the call: the
        next checkpoint has the number of the last change. Raises `StorageError`."""
        await self._remote.drained()
        self._vouched = [self.written(group) for group in range(len(self._splits))]

    # --- applying -----------------------------------------------------------------------------------------

    def block_applied(self, header: BlockHeader) -> None:
        """Take note of an applied block; called for every block, in the order of its write group's log."""
        self._splits[header.group].block_applied(header.index, header.kind == KIND_DATA)

    def _applied(self, group: int, change: RemoteChanged) -> None:
        if group < len(self._splits) and change.upto > self._splits[group].decided:
            self._splits[group].move_to(change.upto)
            self._moved()

    def decide(self, group: int, after: int, upto: int, files: Sequence[StoreFile]) -> str:
        """Only the log does, see `pass_over`."""
        return "refused: the store is shared: the log of the write group says how far it is split"

    async def pass_over(self, group: int, upto: int) -> bool:
        """As the leader of a write group, have its log say that blocks up to this one need no split. Whether it
        did."""
        return await self._remote.record(group, upto=upto) == NOTED

    async def supersede(
        self, group: int, position: int, ranges: Sequence[tuple[int, int, StoreFile]], kept_upto: int = 0
    ) -> None:
        """Go on behind a snapshot at block `position`, once the tier has what came with it. Raises `StorageError` for
        one with files: the replica that sent it has a queue store of its own."""
        if ranges:
            raise StorageError(
                f"write group {group}: a snapshot with {len(ranges)} files of a node's own queue store, while that of "
                "this node is shared: set store_dir to the same on all nodes"
            )
        # what a snapshot leaves out beyond that has no batch: to have it split again would be to look for it
        self._splits[group] = Split(self._remote.position(group).upto, position)

    async def begin_behind_remote(self, upto_of: Callable[[int], int]) -> None:
        """Have the split of each write group be where the tier is, as `upto_of` tells. A start whose manifest of the
        tier came from another replica has had no word of the changes in it, and those that the log has are replays
        then."""
        for group, split in enumerate(self._splits):
            self._splits[group] = Split(max(split.decided, upto_of(group)), split.applied, split.unsplit)

    async def lose(self, group: int, upto: int, name: str, why: str) -> None:
        """Raises `StorageError`: nothing here can stand for blocks that are gone."""
        raise StorageError(
            f"write group {group}: {why}. The store is shared, so that the leader splits them; have another node take "
            "the place of this one, or restore the file"
        )

    async def forget(self, group: int) -> None:
        """Forget the write group's split as if there had been none, before the tier does."""
        self._splits[group] = Split(0, 0)

    def dump(self) -> list[SplitImage]:
        """The state of every write group, for a checkpoint; pass it through `as_written` before saving it."""
        return [SplitImage(split.decided, split.applied, list(split.unsplit)) for split in self._splits]

    def as_written(self, images: Sequence[SplitImage]) -> list[SplitImage]:
        """The images with no more split than is written: blocks of splits that are only decided count as unsplit."""
        return [image.as_written(min(self.written(group), self._vouched[group])) for group, image in enumerate(images)]

    def load(self, images: Sequence[SplitImage]) -> None:
        for group, image in enumerate(images[: len(self._splits)]):
            decided = max(image.decided, self._remote.position(group).upto)
            self._splits[group] = Split(decided, image.applied, image.unsplit)

    # --- writing ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Nothing, until cancelled: the remote tier writes."""
        await asyncio.Event().wait()

    async def drained(self, groups: Iterable[int]) -> None:
        """Return when every split of these write groups decided so far is in the tier's manifest. Raises
        `StorageError` while it cannot be written."""
        await self._remote.drained(groups)

    async def settled(self) -> None:
        """Return when every split decided so far is in the tier's manifest. Raises `StorageError` while it cannot be
        written."""
        await self._remote.drained()
