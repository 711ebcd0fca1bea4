"""The names of the metadata's files on disk, and the ways to read and write a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from mainstem.ports import File, Files

DIRECTORY = "metadata"
LOCK = f"{DIRECTORY}/lock"
VOTE = f"{DIRECTORY}/vote"


def log_path(first_index: int) -> str:
    return f"{DIRECTORY}/{first_index:020d}.log"


def snapshot_path(index: int) -> str:
    return f"{DIRECTORY}/{index:020d}.snapshot"


async def stored(files: Files) -> tuple[list[int], list[int]]:
    """Indexes of snapshots, first indexes of logs, each ascending."""
    found: dict[str, list[int]] = {"snapshot": [], "log": []}
    for name in await files.names(DIRECTORY):
        stem, _, suffix = name.partition(".")
        if suffix in found and len(stem) == 20 and stem.isdigit():
            found[suffix].append(int(stem))
    return sorted(found["snapshot"]), sorted(found["log"])


async def remove_replaced(files: Files) -> None:
    """Remove the files that the newest snapshot replaces."""
    snapshots, logs = await stored(files)
    for index in snapshots[:-1]:
        await files.remove(snapshot_path(index))
    for first_index in logs:
        if snapshots and first_index <= snapshots[-1]:
            await files.remove(log_path(first_index))


async def remove_unfinished(files: Files) -> None:
    for name in await files.names(DIRECTORY):
        if name.endswith(".tmp"):
            await files.remove(f"{DIRECTORY}/{name}")


async def write_aside(files: Files, path: str, chunks: Iterable[bytes]) -> int:
    """Write a whole file under a temporary name, force it to disk and rename it; returns its length. On
    failure no temporary file is left: others need the room."""
    unfinished = f"{path}.tmp"
    try:
        length = await _write_whole(files, unfinished, chunks)
        await files.rename(unfinished, path)
    except OSError:
        with suppress(OSError):
            await files.remove(unfinished)
        raise
    return length


async def _write_whole(files: Files, path: str, chunks: Iterable[bytes]) -> int:
    file = await files.open(path, create=True)
    try:
        length = await file.size(truncate_to=0)
        for chunk in chunks:
            await file.write(length, [chunk])
            length += len(chunk)
            await asyncio.sleep(0)  # a small write may not have waited
        await file.sync()
    finally:
        await file.close()
    return length


async def read_all(files: Files, path: str) -> bytes:
    file = await files.open(path)
    try:
        return await _whole(file)
    finally:
        await file.close()


async def _whole(file: File) -> bytes:
    return await file.read(0, await file.size())
