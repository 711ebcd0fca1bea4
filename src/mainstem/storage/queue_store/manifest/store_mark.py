"""The store's mark names its identity, so that disk and manifest are never paired wrongly.

`store.mark` in the store directory holds the store's identity and how many changes its manifest had seen. A
manifest with another identity belongs to another disk; one with fewer changes is an old copy, which would take
newer runs for garbage. Either is refused before anything is touched: missing metadata never deletes data.

Two slots of 64 bytes, `SLOT_DISTANCE` apart, are written in turn, so a torn write leaves the other one whole:

    magic u64 · identity 16 bytes · changes u64 · zeros · CRC32C of the other fields u32     (little-endian)
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c

from mainstem.ports import Files
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.store_files.store_file import (
    PACK_SUFFIX,
    PACKED_DIRECTORY,
    QUEUES_DIRECTORY,
    RUN_SUFFIX,
    RUNS_DIRECTORY,
)

MARK_NAME = "store.mark"
MARK_MAGIC = 0x314B52414D534D  # "MSMARK1"
MARK = struct.Struct("<Q16sQ28xI")
assert MARK.size == 64
SLOT_DISTANCE = 4096
"""A page: no device tears two of them with one write."""


class StoreMark(NamedTuple):
    identity: uuid.UUID
    changes: int

    def pack(self) -> bytes:
        body = MARK.pack(MARK_MAGIC, self.identity.bytes, self.changes, 0)[:-4]
        crc: int = google_crc32c.value(body)
        return body + crc.to_bytes(4, "little")

    @classmethod
    def unpack(cls, buffer: bytes) -> StoreMark | None:
        if len(buffer) != MARK.size:
            return None
        magic, identity, changes, crc = MARK.unpack(buffer)
        if magic != MARK_MAGIC or google_crc32c.value(buffer[:-4]) != crc:
            return None
        return cls(uuid.UUID(bytes=identity), changes)


async def read_mark(files: Files) -> StoreMark | None:
    """The newest whole mark; None when the store has none. Raises `FormatError` when none is whole."""
    try:
        file = await files.open(MARK_NAME)
    except FileNotFoundError:
        return None
    try:
        slots = [await file.read(position, MARK.size) for position in (0, SLOT_DISTANCE)]
    finally:
        await file.close()
    marks = [mark for mark in map(StoreMark.unpack, slots) if mark is not None]
    if marks:
        return max(marks, key=lambda mark: mark.changes)
    if any(any(slot) for slot in slots):
        raise FormatError(f"{MARK_NAME}: neither copy of the mark is whole; restore the file from a copy")
    return None


async def write_mark(files: Files, mark: StoreMark) -> None:
    """Write the mark durably, over the older of the two slots."""
    file = await files.open(MARK_NAME, create=True)
    try:
        await file.write(mark.changes % 2 * SLOT_DISTANCE, [mark.pack()], sync=True)
    finally:
        await file.close()


async def pair(
    files: Files, manifest: Manifest, database_path: str, new_id: Callable[[], uuid.UUID] = uuid.uuid4
) -> int:
    """Check that store and manifest belong together; a store and a manifest that are both new are paired, under a
    new identity. Returns how many changes of the manifest the store's mark knows of.

    Raises `StorageError` saying what to do when they do not; nothing is changed then."""
    mark = await read_mark(files)
    if manifest.identity is None:
        await check_empty(files, database_path)
        mark = mark or StoreMark(new_id(), 0)
        await manifest.adopt(mark.identity, mark.changes)
        await write_mark(files, mark)
        return mark.changes
    if mark is None:
        if manifest.changes:
            raise StorageError(
                f"{database_path}: the manifest has a store of {len(manifest.files)} files, but there is no "
                f"{MARK_NAME} in store_dir. Nothing was changed. Check that store_dir is mounted and right"
            )
        await write_mark(files, StoreMark(manifest.identity, 0))
        return 0
    if mark.identity != manifest.identity:
        raise StorageError(
            f"{database_path}: the manifest is of store {manifest.identity}, store_dir holds {mark.identity}. "
            "Nothing was changed. Check that write_dir and store_dir belong to the same node"
        )
    if mark.changes > manifest.changes:
        raise StorageError(
            f"{database_path}: the manifest has seen {manifest.changes} changes, the store {mark.changes}: it is "
            "an old copy, which does not know the newest runs. Nothing was changed. Restore the newest manifest, or "
            "have it made from its copy on disk 2 (mainstem store repair --manifest)"
        )
    return mark.changes


async def check_empty(files: Files, database_path: str) -> None:
    """Raise `StorageError`, saying what to do, when a store for which there is no manifest has files."""
    there = await _files_there(files)
    if there:
        raise StorageError(
            f"{database_path}: the manifest is missing or empty, but the queue store has {there}. Nothing was "
            "changed. Check that write_dir is mounted and right. Restore the manifest, or have it made from its "
            "copy on disk 2 (mainstem store repair --manifest). To begin with an empty store, move all that is in "
            "store_dir away"
        )


async def _files_there(files: Files) -> str:
    """The files that a store without a manifest has, for a message; empty: nothing that was ever split."""
    for directory, suffix, what in (
        (RUNS_DIRECTORY, RUN_SUFFIX, "runs"),
        (PACKED_DIRECTORY, PACK_SUFFIX, "packed files"),
        (QUEUES_DIRECTORY, "", "topics with queue segments"),
        (COPY_DIRECTORY, "", "files of the manifest's copy"),
    ):
        names = [name for name in await files.names(directory) if name.endswith(suffix)]
        if names:
            return f"{len(names)} {what} ({names[0]}, ...)"
    return ""
