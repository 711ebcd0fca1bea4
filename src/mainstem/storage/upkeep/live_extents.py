"""The extents of a file that are not dead yet, by its index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queue_store.reading.stored_files import WriteGroupsAt


class IndexedFiles(Protocol):
    """Files of disk 2, or of the remote tier."""

    async def rows_of(self, name: str, groups: Sequence[int], groups_at: WriteGroupsAt) -> Rows | None: ...


def live_extents(
    files: IndexedFiles, placement: Placement, liveness: QueueLiveness
) -> Callable[[str, int], Awaitable[Rows | None]]:
    """A reader of what a file has of a write group that is live; None: the file is gone, or cannot be read now."""

    async def read(name: str, group: int) -> Rows | None:
        rows = await files.rows_of(name, [group], placement.groups_at)
        return rows if rows is None else rows[await liveness.margins(rows) >= 0]

    return read
