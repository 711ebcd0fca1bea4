"""Where a run being written goes: a file of the local disk.

Written as `<name>.tmp-<unique>`, renamed when all of it is durable: a name ending in `.run` always is a whole
run, and two writers of the same name never touch the same bytes. Dirty pages stay few while writing, because
one large sync at the end would stall the journal when both share a disk: every `WINDOW_BYTES` the kernel is
told to start writing the newest window, waited for with the one before it, which is then dropped from the
page cache (nobody reads a run soon: its messages are still in the write cache). Writes can be paced.
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

WINDOW_BYTES = 8 << 20
"""Dirty bytes are at most two windows: small beside what a disk writes in 100 ms, large beside its page."""

WRITE_BYTES = 1 << 20
"""Bytes given to one write call: the step of the pacing."""

PAUSE_SECONDS_MIN = 0.002
"""Shorter debts are left to grow: a sleep costs about 0.1 ms beyond what is asked for."""

_SYNC_FILE_RANGE_WRITE = 2
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
        self._window = 0
        """Where the open window starts: all before it is on its way to the disk."""
        self._settled = 0
        """All before this is on the disk and out of the page cache."""
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._paid_until = clock()

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        while view:
            count = os.write(self._descriptor, view[:WRITE_BYTES])
            view = view[count:]
            self._size += count
            if self._size - self._window >= WINDOW_BYTES:
                self._write_behind()
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

    def _write_behind(self) -> None:
        behind = self._window - self._settled
        if _sync_file_range is None:  # pragma: no cover
            os.fdatasync(self._descriptor)
        else:
            self._sync_range(self._window, self._size - self._window, _SYNC_FILE_RANGE_WRITE)
            self._sync_range(self._settled, behind, _SYNC_FILE_RANGE_ALL)
        if behind:
            os.posix_fadvise(self._descriptor, self._settled, behind, os.POSIX_FADV_DONTNEED)
        self._settled, self._window = self._window, self._size

    def _sync_range(self, position: int, length: int, flags: int) -> None:
        assert _sync_file_range is not None
        if length and _sync_file_range(self._descriptor, position, length, flags) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._temporary))

    def _pace(self, count: int) -> None:
        if not self._bytes_per_second:
            return
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + count / self._bytes_per_second
        if self._paid_until - now >= PAUSE_SECONDS_MIN:
            self._sleep(self._paid_until - now)
