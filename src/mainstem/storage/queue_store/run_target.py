"""Where a run being written goes: a file of the local disk.

Written as `<name>.tmp-<unique>`, renamed when all of it is durable: a name ending in `.run` always is a whole
run, and two writers of the same name never touch the same bytes. Every `WINDOW_BYTES` are on their way to the disk
alone, waited for before more is written, then dropped from the page cache (nobody reads a run soon: its messages are
still in the write cache). A disk does one thing after the other, and the journal's commits on the same one wait for
what it was given before. Writes can be paced.
"""

from __future__ import annotations

import ctypes
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mainstem.model import Buffer

RUN_SUFFIX = ".run"
TEMPORARY_INFIX = ".tmp-"

WINDOW_BYTES = 128 * 1024
"""Dirty bytes at most. With windows of 8 MiB every tenth of a second a commit beside them took several milliseconds and
the 99th percentile was four times what it is alone, with 1 MiB there was a fifth of that left, with this nothing; and
it still writes faster than a split can sort."""

PAUSE_SECONDS_MIN = 0.002
"""Shorter debts are left to grow: a sleep costs about 0.1 ms beyond what is asked for."""

_SYNC_FILE_RANGE_ALL = 1 | 2 | 4  # wait before, write, wait after
_sync_file_range: Callable[[int, int, int, int], int] | None
try:
    _function = ctypes.CDLL(None, use_errno=True).sync_file_range
    _function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    _sync_file_range = _function
except (OSError, AttributeError):  # pragma: no cover - not Linux: fdatasync per window instead
    _sync_file_range = None


class RunTarget(Protocol):
    """One run being written. What was not finished is never visible under the run's name."""

    def write(self, buffer: Buffer) -> None:
        """Append all of the buffer, or raise OSError."""
        ...

    def finish(self) -> None:
        """Make what was written durable, then visible under the run's name, durably too."""
        ...

    def abandon(self) -> None:
        """Remove what was written. No effect after `finish`."""
        ...


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
        assert name.endswith(RUN_SUFFIX), name
        assert "/" not in name, name
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._path = self._directory / name
        self._temporary = self._directory / f"{name}{TEMPORARY_INFIX}{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self._temporary, flags, 0o644)
        self._size = 0
        self._settled = 0
        """All before this is on the disk and out of the page cache."""
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._paid_until = clock()

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        while view:
            count = os.write(self._descriptor, view[:self._settled + WINDOW_BYTES - self._size])
            view = view[count:]
            self._size += count
            if self._size - self._settled >= WINDOW_BYTES:
                self._settle()
            self._pace(count)

    def finish(self) -> None:
        os.fsync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
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

    def _settle(self) -> None:
        """Have the newest window on the disk."""
        length = self._size - self._settled
        if _sync_file_range is None:  # pragma: no cover
            os.fdatasync(self._descriptor)
        elif _sync_file_range(self._descriptor, self._settled, length, _SYNC_FILE_RANGE_ALL) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._temporary))
        os.posix_fadvise(self._descriptor, self._settled, length, os.POSIX_FADV_DONTNEED)
        self._settled = self._size

    def _pace(self, count: int) -> None:
        if not self._bytes_per_second:
            return
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + count / self._bytes_per_second
        if self._paid_until - now >= PAUSE_SECONDS_MIN:
            self._sleep(self._paid_until - now)
