"""An object store that is a directory: of this machine, or one that all nodes have mounted.

An object is written under a name that no reader looks at, synced, and put in its place by a hard link (which fails if
there is one: created only if absent) or by a rename. A replacement compares and renames under an exclusive flock, so
that of two nodes that replace the same object one fails. Calls block in threads of the store's own: a directory that
another machine serves may hang.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from mainstem.model import Buffer
from mainstem.ports import ListedObject, ObjectInfo, ObjectRange
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreError,
    ObjectStoreRefused,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
    ObjectTooShort,
)
from mainstem.storage.object_stores.folders import page_of
from mainstem.storage.object_stores.names import UNFINISHED, checked, checked_folder

T = TypeVar("T")

THREADS_MAX = 8
"""Calls under way at once: more make no disk faster."""
LOCK = ".lock"
"""In the store's directory: held while an object is compared and replaced."""
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LocalObjectStore:
    """`ObjectStore` in a directory, which must exist: a directory that is not mounted is no empty store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = ThreadPoolExecutor(THREADS_MAX, "object-store")

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        return await self._run(name, lambda path: list(_read(path, ranges)))

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        def work(path: Path) -> ObjectInfo:
            with self._unfinished(path) as (unfinished, descriptor):
                _write_all(descriptor, content)
                if replaces is None:
                    return _create(unfinished, path)
                with self._locked():
                    try:
                        unchanged = _info(path).tag == replaces
                    except FileNotFoundError:
                        unchanged = False
                    if not unchanged:
                        raise ObjectChanged(f"{path} is not the object any more that was to be replaced")
                    return _put(unfinished, path)

        return await self._run(name, work)

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        path = self._directory / checked(name)
        unfinished, descriptor = await self._run(name, self._begin)
        try:
            async for part in parts():
                await self._run(name, lambda _path, part=part: _write_all(descriptor, part))  # type: ignore[misc]
            return await self._run(name, lambda _path: _put(unfinished, path))
        finally:
            await asyncio.shield(self._run(name, lambda _path: _end(unfinished, descriptor)))

    async def info(self, name: str) -> ObjectInfo:
        return await self._run(name, _info)

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            await self._run(name, self._delete)

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        folder = self._directory / checked_folder(prefix)
        return await self._run_at(folder, lambda _path: page_of(self._entries, prefix, after))

    async def _run(self, name: str, work: Callable[[Path], T]) -> T:
        """Have a thread do what may block, with the object's path; translates its errors."""
        return await self._run_at(self._directory / checked(name), work)

    async def _run_at(self, path: Path, work: Callable[[Path], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, path)
        except OSError as error:
            raise self._translated(path, error) from error

    def _translated(self, path: Path, error: OSError) -> ObjectStoreError:
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            if self._directory.is_dir():
                return ObjectAbsent(f"{path}: there is no such object")
            return ObjectStoreUnavailable(f"{self._directory} is no directory; if it is to be mounted, mount it")
        if error.errno in _REFUSED:
            return ObjectStoreRefused(f"{path}: {error.strerror}; let the node's user read and write {self._directory}")
        if isinstance(error, TimeoutError):
            return ObjectStoreTimedOut(f"{path}: {error.strerror}")
        return ObjectStoreUnavailable(f"{path}: {error.strerror}")

    def _begin(self, path: Path) -> tuple[Path, int]:
        """A new unfinished file beside the object: its path and descriptor."""
        if not self._directory.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(self._directory))
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.parent / f"{UNFINISHED}{secrets.token_hex(8)}"
            try:
                return unfinished, os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # the folder went with its last object just then
                continue

    def _delete(self, path: Path) -> None:
        try:
            path.unlink()
        except FileNotFoundError:
            if not self._directory.is_dir():
                raise
        else:
            _sync(path.parent)

    @contextmanager
    def _unfinished(self, path: Path) -> Iterator[tuple[Path, int]]:
        unfinished, descriptor = self._begin(path)
        try:
            yield unfinished, descriptor
        finally:
            _end(unfinished, descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _entries(self, folder: str) -> list[tuple[str, ListedObject | None]]:
        """The entries of a folder: names, and the object; None for a folder."""
        found: list[tuple[str, ListedObject | None]] = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._directory / folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    found.append((entry.name, None))
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    found.append((entry.name, ListedObject(name, status.st_size, status.st_mtime_ns // 1_000_000)))
        if not self._directory.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(self._directory))
        return found


def _read(path: Path, ranges: Sequence[ObjectRange]) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        for position, length in ranges:
            pieces: list[bytes] = []
            while length > 0 and (piece := os.pread(file.fileno(), length, position)):
                pieces.append(piece)
                position += len(piece)
                length -= len(piece)
            if length > 0:
                raise ObjectTooShort(f"{path} ends at {position}, {length} bytes before what was asked for does")
            yield pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _write_all(descriptor: int, content: Buffer) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _info(path: Path) -> ObjectInfo:
    status = path.stat()
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "is a directory", str(path))
    return ObjectInfo(status.st_size, f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}")


def _create(unfinished: Path, path: Path) -> ObjectInfo:
    _sync(unfinished)
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise ObjectExists(f"{path} is there already") from None
    _sync(path.parent)
    return _info(path)


def _put(unfinished: Path, path: Path) -> ObjectInfo:
    _sync(unfinished)
    unfinished.replace(path)
    _sync(path.parent)
    return _info(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end(unfinished: Path, descriptor: int) -> None:
    os.close(descriptor)
    unfinished.unlink(missing_ok=True)
