"""Makes a manifest anew that is lost, damaged or an old copy, from its copy on disk 2.

The copy has every change that the store's mark vouches for, so what it says is what the lost manifest said, or lacks a
last change that the mark had not heard of: a node that starts on it splits or merges those blocks once more. A copy
that ends before the mark does is refused: files that the missing changes named would be taken for garbage.

Nothing is deleted: the files of the old manifest are set aside beside it. The new one is made under another name and
takes its place with one rename; until then a node refuses to start, and the repair can be run again.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mainstem.ports import Files, ReadingMode
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.copy_on_disk.copied_manifest import CopiedManifest, read_copy
from mainstem.storage.queue_store.manifest.database.manifest_database import FIRST_SCHEMA_VERSION, Contents, Database
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.queue_store.manifest.store_mark import StoreMark, read_mark
from mainstem.storage.store_files.store_file import StoreFile, path_of
from mainstem.storage.verifying.findings import UnnamedFile
from mainstem.storage.verifying.remaking import SET_ASIDE
from mainstem.storage.verifying.store_check import all_paths, unnamed_files

SQLITE_SUFFIXES = ("-wal", "-shm", "")
"""Of the files of a database. Its log goes before it: sqlite would apply it to the database that comes after."""


class Absent(NamedTuple):
    """A file that the copy names and that is not there, or has another size."""

    file: StoreFile
    ranges: tuple[FileRange, ...]
    bytes: int | None
    """The part of it that is there; None: there is none."""


class Rebuild(NamedTuple):
    """A manifest that can be made anew, and what is there of its files."""

    copied: CopiedManifest
    mark: StoreMark
    faults: Sequence[str]
    """The damaged part of the copy."""
    absent: Sequence[Absent]
    unnamed: Sequence[UnnamedFile]
    """Files that do not count: others replaced them, or they were never recorded."""


def needs_rebuild(manifest_path: str, mark: StoreMark) -> str:
    """Why a manifest cannot be used, empty: it can. Raises `StorageError` for that of another store."""
    try:
        contents = Database(manifest_path).read()
    except StorageError as error:
        return str(error).removeprefix(f"{manifest_path}: ").partition(";")[0]
    if contents.identity is None:
        return "it is new and empty"
    if contents.identity != mark.identity:
        raise StorageError(f"{manifest_path} is of store {contents.identity}, store_dir holds {mark.identity}")
    if contents.changes < mark.changes:
        return f"it is an old copy, which has seen {contents.changes} changes of {mark.changes}"
    return ""


async def marked(files: Files) -> StoreMark:
    """The store's mark. Raises `StorageError` when there is none."""
    mark = await read_mark(files)
    if mark is None:
        raise StorageError("there is no store.mark in store_dir: is this the store's disk, and mounted?")
    return mark


async def examine(files: Files, mark: StoreMark) -> Rebuild:
    """The content of the copy of the manifest, beside the files that are there. Changes nothing. Raises `StorageError`
    when the copy cannot stand for the manifest, OSError."""
    copied, faults = await read_copy(files, mark.identity)
    why = "".join(f"\n  {fault}" for fault in faults)
    if copied is None and not mark.changes and not faults:  # what the lost one may have said more, nobody relies on
        nothing = Contents(mark.identity, 0, files=[], ranges=[], positions={}, dropped=set(), seen={})
        copied = CopiedManifest(nothing, FIRST_SCHEMA_VERSION, image=None, changes=0)
    if copied is None:
        raise StorageError(f"store_dir has no copy of the manifest that serves ({COPY_DIRECTORY}/){why}")
    if copied.contents.changes < mark.changes:
        raise StorageError(
            f"the copy of the manifest ends with change {copied.contents.changes}, and the store has seen "
            f"{mark.changes}: a version that keeps no copy made the others, or the copy is damaged{why}"
        )
    ranges: dict[str, list[FileRange]] = {}
    for entry in copied.contents.ranges:
        ranges.setdefault(entry.name, []).append(entry)
    absent: list[Absent] = []
    for file in copied.contents.files:
        size = await _size(files, path_of(file.name))
        if size != file.bytes:
            absent.append(Absent(file, tuple(ranges[file.name]), size))
    unnamed = [found async for found in unnamed_files(files, await all_paths(files), ranges)]
    return Rebuild(copied, mark, faults, absent, unnamed)


async def _size(files: Files, path: str) -> int | None:
    try:
        file = await files.open(path, reading=ReadingMode.COLD)
    except FileNotFoundError:
        return None
    try:
        return await file.size()
    finally:
        await file.close()


def put(manifest: Path, rebuild: Rebuild, now_ms: int) -> None:
    """Put the manifest in its place, durably; what is there is set aside. Raises `StorageError`, OSError."""
    manifest.parent.mkdir(parents=True, exist_ok=True)
    made = manifest.with_name(f"{manifest.name}.new")
    for path in _files_of(made):  # of a repair that was killed
        path.unlink(missing_ok=True)
    database = Database(str(made))
    database.open()
    try:
        database.fill(rebuild.copied.contents, rebuild.copied.schema_version, now_ms)
    finally:
        database.close()
    _check(made, rebuild.copied.contents)
    aside = manifest.parent / SET_ASIDE / uuid.uuid4().hex
    for path in _files_of(manifest):
        if path.exists():
            aside.mkdir(parents=True, exist_ok=True)
            os.rename(path, aside / path.name)
            _sync(manifest.parent)
    os.rename(made, manifest)
    _sync(manifest.parent)


def _check(made: Path, contents: Contents) -> None:
    """Have it read as a node reads it. Raises `StorageError`."""
    if Database(str(made)).read() != contents:
        raise StorageError(f"{made}: the manifest that was made does not say what its copy says")


def _files_of(database: Path) -> Iterable[Path]:
    return [database.with_name(database.name + suffix) for suffix in SQLITE_SUFFIXES]


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
