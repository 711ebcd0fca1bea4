"""The remote tier as upkeep sees it: which files count there, what is in them, and how some cease to count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.reading.stored_files import StoredFiles, WriteGroupsAt
from mainstem.storage.remote.decided.remote_tier import RemoteTier


class RemoteFiles(Protocol):
    """The knowledge that a node has of the remote tier, by what it has applied of its write groups' logs."""

    @property
    def manifest(self) -> Manifest:
        """The files that count."""

    def upto(self, group: int) -> int:
        """The write group's last block of which the remote tier has all that it takes, by the manifest's own files: a
        change that is decided, and not written there yet, has not moved it."""

    async def first_seen(self, now_ms: int) -> Mapping[str, int]:
        """The time at which retention first saw each file, by name; files not seen before get `now_ms`. Durable when it
        returns."""

    async def rows_of(self, name: str, groups: Sequence[int], groups_at: WriteGroupsAt) -> Rows | None:
        """The extents of a file that are of these write groups; None when it is gone or cannot be read now."""

    def is_damaged(self, name: str) -> bool:
        """Whether a reader of this node has met a file that is lost or damaged, and that is not whole again."""

    async def forget(self, group: int, names: Sequence[str]) -> str:
        """As the leader of a write group, have some of its files count no more; their objects are deleted then. Returns
        'recorded', or 'refused: …' with the reason."""


class TierFiles:
    """`RemoteFiles` of a node's remote tier."""

    def __init__(self, tier: RemoteTier, stored: StoredFiles | None) -> None:
        """`stored` reads its files; None: this node has no way to the store."""
        self._tier = tier
        self._stored = stored

    @property
    def manifest(self) -> Manifest:
        return self._tier.manifest

    def upto(self, group: int) -> int:
        return self._tier.manifest.position(group).position

    async def first_seen(self, now_ms: int) -> Mapping[str, int]:
        await self._tier.see(now_ms)
        return self._tier.manifest.seen

    async def rows_of(self, name: str, groups: Sequence[int], groups_at: WriteGroupsAt) -> Rows | None:
        return None if self._stored is None else await self._stored.rows_of(name, groups, groups_at)

    def is_damaged(self, name: str) -> bool:
        return self._stored is not None and name in self._stored.damaged

    async def forget(self, group: int, names: Sequence[str]) -> str:
        return await self._tier.record(group, gone=names)
