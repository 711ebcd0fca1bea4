"""Disks, time, and the figures that rooms tell, so that a whole node can run on simulated ones."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload, runtime_checkable

from mainstem.model import (
    Buffer,
    HistogramSample,
    Sample,
)

if TYPE_CHECKING:
    pass


class Statistics(Protocol):
    """A room that measures itself."""

    def samples(self) -> Iterable[Sample | HistogramSample]:
        """Current values. Cheap and safe to call from another thread."""
        ...


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in ms since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class DiskUsage(NamedTuple):
    total_bytes: int
    free_bytes: int


class ReadingMode(enum.Enum):
    """How a file will be read, which decides how its reads affect others on the same disk."""

    USUAL = enum.auto()
    """As the operating system prefers, with its read-ahead."""
    PIECES = enum.auto()
    """One small piece at a time and no further than asked, through the operating system's memory: beside
    commits on the same disk."""
    COLD = enum.auto()
    """The same past the operating system's memory where the file system can: the data is not read again soon,
    and must not evict data that is."""


class Files(Protocol):
    """A directory tree of one disk. Paths are relative to the root it was made with. Calls run in executors
    where they can block; errors are `OSError`."""

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> File:
        """Open for reading and writing; a cold one for reading alone. FileNotFoundError unless it exists or `create`
        is set. Parent directories are made as needed."""
        ...

    async def names(self, directory: str) -> list[str]:
        """Sorted names of the entries of a directory; empty when it does not exist."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Atomic, replaces the target, durable when it returns (directories synced)."""
        ...

    async def remove(self, path: str, *, durable: bool = True) -> None:
        """Remove a file and sync its directory; a file that is not there is no error. A directory three levels down or
        deeper goes with its last file. Not `durable`: nothing is synced, and the file may be there again after a loss
        of power."""
        ...

    async def usage(self) -> DiskUsage: ...


class ColdPart(NamedTuple):
    """Bytes of a file."""

    path: str
    position: int
    length: int


@runtime_checkable
class ReadsParts(Protocol):
    """`Files` that have a thread read many small parts of files in one go: to hand each file to a thread, to be opened,
    read and closed, takes longer than to read it. Files without that are read one by one."""

    async def read_parts(self, parts: Sequence[ColdPart]) -> list[bytes | None]:
        """The bytes of each part, fewer at the end of its file, read as cold files are; None for one that cannot be
        read. The caller bounds them: other reads wait until the last is made."""
        ...


class File(Protocol):
    @overload
    async def read(self, position: int, length: int) -> bytes:
        """Bytes at a position; fewer at the end of the file."""
        ...

    @overload
    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer:
        """The same; with `at_once` in one request to the disk, even if the file is read in pieces otherwise:
        no other reader waits for the disk now."""
        ...

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write buffers one after the other; with `sync`, followed by fdatasync in the same executor turn.
        All is written or OSError is raised."""
        ...

    async def sync(self) -> None: ...

    async def forget(self) -> None:
        """Ask the operating system to keep nothing of the file in memory that is on the disk: the memory is there for
        what is written next."""
        ...

    async def fill(self, position: int, length: int, *, bytes_per_second: float) -> None:
        """Write zeros in small chunks at that pace, each on the disk before the next is written: they hold up no commit
        for long, and the event loop not at all. `close` ends a fill whose caller was cancelled behind the chunk that is
        being written. After OSError a part may be filled."""
        ...

    async def fill_in_memory(self, position: int, length: int) -> float:
        """Write zeros without sync, by a thread that lets all others go first: what is written there later finds memory
        for its bytes. `close` waits for it. Returns how many seconds of the processor the thread took meanwhile."""
        ...

    async def size(self, *, truncate_to: int | None = None) -> int:
        """The file's size in bytes, after cutting or extending it when `truncate_to` is given. Extending
        takes the space on the disk, so that ENOSPC comes here and not from a later write; it reads as zeros."""
        ...

    async def lock(self, *, exclusive: bool) -> bool:
        """Try flock without waiting; False when another holder has it. Released by `close`."""
        ...

    async def close(self) -> None: ...
