"""The changes that merges and compactions make to the set of files, in a node's own queue store or in a shared one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.store_files.store_file import StoreFile

Expecting = Callable[[int, Sequence[StoreFile]], AbstractContextManager[None]]
"""Inside the `with`, files of a write group can be read that do not count yet."""


def all_are_here(group: int, files: Sequence[StoreFile]) -> AbstractContextManager[None]:
    """On a disk, whatever has its name can be read."""
    return nullcontext()


def every_group(group: int) -> bool:
    return True


class FileChanges(Protocol):
    """Puts files in the place of others, each time in one durable step."""

    async def merge(
        self,
        group: int,
        inputs: Sequence[FileRange],
        outputs: Sequence[StoreFile],
        is_kept: Callable[[int], bool] = ...,
    ) -> None:
        """Put a merge's outputs in the place of its inputs: whole spans of a write group, neighbours all of them.
        `is_kept` tells of write groups whose files are being copied. Raises `StorageError`, nothing being changed."""
        ...

    async def rewrite(
        self,
        group: int,
        outputs: Mapping[FileRange, Sequence[StoreFile]],
        is_kept: Callable[[int], bool] = ...,
    ) -> None:
        """Put other files in the place of merged files of a write group, each within the blocks and the keys of its
        input. Raises `StorageError`: then nothing is changed, or only the oldest of the inputs are replaced."""
        ...
