"""Counts what of a write group is in the remote tier, and what is still to move there, from the manifests alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.usage import levels
from mainstem.storage.queue_store.usage.levels import FILES_PER_TURN, LevelCount
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.store_files.store_file import StoreFile


class RemoteCounts(NamedTuple):
    """A write group's part of the tier."""

    levels: list[LevelCount]
    waiting_files: int
    """Files on disk 2 that are to move there, and have not."""
    waiting_bytes: int
    """Of batches in them."""


async def of_group(tier: RemoteTier, store: Manifest, group: int, moves: Callable[[StoreFile], bool]) -> RemoteCounts:
    """Count one write group; `store`: the manifest of disk 2, `moves`: whether a file of it is to move."""
    upto = tier.position(group).upto
    files = size = 0
    for number, (_after, last, file) in enumerate(store.spans(group).described(), 1):
        if last > upto and moves(file):
            files += 1
            size += file.batch_bytes
        if number % FILES_PER_TURN == 0:
            await asyncio.sleep(0)
    return RemoteCounts(await levels.of_group(tier.manifest, group), files, size)
