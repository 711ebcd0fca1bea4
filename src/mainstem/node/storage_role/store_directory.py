"""The directory of this machine that a node's queue store has: disk 2 or, where the store is shared, a cache on disk 1.

A node of a shared store notes on disk 1 which store that is. The split records lie there alone: with a directory of its
own, or with another store, the node would serve queues without their past and go on splitting to the wrong place."""

from __future__ import annotations

import os
from pathlib import Path

from mainstem.errors import MainstemError
from mainstem.node.config import NodeConfig
from mainstem.storage.queue_store.manifest.database.manifest_database import Database

CACHE_DIRECTORY = "cache"
"""In `write_dir`: what a node keeps near of a shared store."""

MANIFEST_NAME = "manifest.sqlite"
"""In `write_dir`: the manifest of disk 2."""

NOTE_NAME = "shared-store"
"""In the cache: the shared store's URL, or its directory, in UTF-8."""


class StoreUnsupported(MainstemError):
    """A `store_dir` that this node cannot use."""


def directory(path: str) -> Path:
    """An absolute directory, made if missing. Raises `StoreUnsupported` naming path and reason."""
    result = Path(path).expanduser().absolute()
    try:
        result.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnsupported(f"{result}: {error.strerror}; choose another directory") from error
    return result


def store_directory(config: NodeConfig, write_dir: Path) -> Path:
    """The directory for store files, made if missing. Raises `StoreUnsupported` where disk 1 says that this node has
    another store, and a `StorageError` where its manifest cannot be read."""
    note = write_dir / CACHE_DIRECTORY / NOTE_NAME
    noted = note.read_text("utf-8") if note.exists() else ""
    if not config.shares_store:
        if noted:
            raise StoreUnsupported(
                f"store_dir = {config.store_dir!r}: {write_dir} is disk 1 of a node whose queue store is shared, at "
                f"{noted}. A directory of its own would lack all that was split so far. Set store_dir to {noted}"
            )
        return directory(config.store_dir.removeprefix("file://"))
    if noted and noted != config.shared_store_place:
        raise StoreUnsupported(
            f"store_dir = {config.store_dir!r}: the shared store of {write_dir} is {noted}. Set store_dir to that. If "
            f"all of it was moved to {config.shared_store_place}, remove {note} on every node"
        )
    manifest = write_dir / MANIFEST_NAME
    if not noted and manifest.exists() and (files := Database(str(manifest)).read().files):
        raise StoreUnsupported(
            f"store_dir = {config.store_dir!r}: this node has a disk 2 of its own with {len(files)} store files, and a "
            "shared store takes over none of them. Give store_dir the directory that it had. A shared store begins "
            "with a new cluster"
        )
    return directory(str(write_dir / CACHE_DIRECTORY))


def note_store(config: NodeConfig, store_dir: Path) -> None:
    """Have disk 1 remember the shared store, durably; `store_dir` is the store's directory of this machine. If the
    store is not shared there is nothing to remember."""
    note = store_dir / NOTE_NAME
    place = config.shared_store_place
    if place is None or note.exists():
        return
    fresh = note.with_name(NOTE_NAME + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(place)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(note)
    descriptor = os.open(store_dir, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
