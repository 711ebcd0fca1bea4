"""Writes a run to a file of the local disk, without delaying the journal's commits beside it.

Written as `<name>.tmp-<unique>`, renamed when all of it is durable: a name ending in `.run` always is a whole run, and
two writers of the same name never touch the same bytes. The writes bypass the page cache (a run is not read soon: its
messages are still in the write cache), in windows of `WINDOW_BYTES`, each on the disk before the next is issued: a disk
does one thing after the other, and the journal's commits on the same disk wait for the writes issued before them. If a
file system refuses that, every window is written through the page cache, synced and dropped from it. Writes can be
paced."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mainstem.model import Buffer
from mainstem.storage.store_files.store_file import TEMPORARY_INFIX
from mainstem.storage.store_files.write_pace import WritePace

WINDOW_BYTES = 128 * 1024
"""Bytes given to the disk at once. With windows of 8 MiB every tenth of a second a commit beside them took several
milliseconds and the 99th percentile was four times what it is alone, with 1 MiB there was a fifth of that left, with
this nothing. Past the page cache it takes two thirds of the processor time and a third of the time that writing,
waiting and dropping do."""

ALIGNMENT = mmap.PAGESIZE
"""Alignment of position, length and memory, enough for every file system."""

_SYNC_FILE_RANGE_ALL = 1 | 2 | 4  # wait before, write, wait after
_sync_file_range: Callable[[int, int, int, int], int] | None
try:
    _function = ctypes.CDLL(None, use_errno=True).sync_file_range
    _function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    _sync_file_range = _function
except (OSError, AttributeError):  # pragma: no cover - not Linux: fdatasync per window instead
    _sync_file_range = None


class RunTarget(Protocol):
    """A run being written. It is never visible under its name before `finish`."""

    def write(self, buffer: Buffer) -> None:
        """Append all of the buffer, or raise OSError, or what an object store reports."""
        ...

    def finish(self) -> None:
        """Make the run durable, then visible under its name, durably too."""
        ...

    def abandon(self) -> None:
        """Remove what was written. No effect after `finish`."""
        ...


class NoTarget:
    """Takes what nobody wants, where a writer of several files is to write some of them only."""

    def write(self, buffer: Buffer) -> None: ...

    def finish(self) -> None: ...

    def abandon(self) -> None: ...


class LocalRunTarget:
    """A run in a directory of the local disk, which is made when missing.

    `bytes_per_second` paces the writes, 0 is unpaced; `clock` (seconds) and `sleep` are what it paces by."""

    def __init__(
        self,
        directory: Path | str,
        name: str,
        *,
        bytes_per_second: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert "/" not in name, name
        self._directory = Path(directory)
        _make(self._directory)
        self._path = self._directory / name
        self._temporary = self._directory / f"{name}{TEMPORARY_INFIX}{uuid.uuid4().hex}"
        self._descriptor, self._direct = _create(self._temporary)
        self._window = memoryview(mmap.mmap(-1, WINDOW_BYTES))  # aligned to a page
        self._filled = 0
        self._settled = 0
        """File position up to which all bytes are on the disk; the window begins there."""
        self._pace = WritePace(bytes_per_second, clock, sleep)

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        while view:
            count = min(len(view), WINDOW_BYTES - self._filled)
            self._window[self._filled : self._filled + count] = view[:count]
            view = view[count:]
            self._filled += count
            if self._filled == WINDOW_BYTES:
                self._settle(WINDOW_BYTES)
                self._pace.take(WINDOW_BYTES)

    def finish(self) -> None:
        size = self._settled + self._filled
        padded = -(-self._filled // ALIGNMENT) * ALIGNMENT
        self._window[self._filled : padded] = bytes(padded - self._filled)
        self._pace.take(self._filled)
        self._settle(padded)
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        os.rename(self._temporary, self._path)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def abandon(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._temporary.unlink(missing_ok=True)

    def _settle(self, length: int) -> None:
        """Write the first `length` bytes of the window to the disk."""
        done = 0
        while done < length:
            try:
                done += os.pwrite(self._descriptor, self._window[done:length], self._settled + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
            if done < length and self._direct:
                self._use_page_cache()  # past it is refused, or ended where nothing can be aligned any more
        if not self._direct:
            self._drop(length)
        self._settled += length
        self._filled = 0

    def _use_page_cache(self) -> None:
        self._direct = False
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def _drop(self, length: int) -> None:
        """Wait until the window is on the disk, then drop it from the page cache."""
        if _sync_file_range is None:  # pragma: no cover
            os.fdatasync(self._descriptor)
        elif _sync_file_range(self._descriptor, self._settled, length, _SYNC_FILE_RANGE_ALL) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._temporary))
        os.posix_fadvise(self._descriptor, self._settled, length, os.POSIX_FADV_DONTNEED)


def _create(path: Path) -> tuple[int, bool]:
    """A new file to write to, and whether past the page cache."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, flags | os.O_DIRECT, 0o644), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)  # some file systems make the file before they refuse
    return os.open(path, flags, 0o644), False


def _make(directory: Path) -> None:
    """A directory and those above it that are missing, each durable: a run in it is, too, when it is finished."""
    if directory.is_dir():
        return
    _make(directory.parent)
    directory.mkdir(exist_ok=True)
    parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
