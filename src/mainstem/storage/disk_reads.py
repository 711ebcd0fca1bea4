"""Reading a file of a real disk without its neighbours noticing.

A disk does one thing after the other: a commit waits for the read before it. Reads of what nobody waits for urgently
are therefore made in pieces of `PIECE_BYTES`, each begun when the one before is done, and the kernel is kept from
reading ahead, which it does in megabytes. Reading ahead is the read cache's business.

Cold reads go past the page cache (O_DIRECT), so that they drive nothing out of it, the journal's segments that are
to be overwritten least of all. For these the kernel wants position, length and memory aligned, which is dealt with
here: whole pages around what is asked for are read into a reader's own memory. Where a file system refuses (tmpfs and
some over the network), the file is read in the same pieces by way of the page cache.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 128 * 1024
"""Beside reads of 1 MiB a commit waits several milliseconds now and then; smaller pieces than this gain nothing, and
one at a time of these is as fast as the disk."""

ALIGNMENT = mmap.PAGESIZE
"""Enough for every file system: what they ask for is the disk's sector, or a page."""


STRETCH_BYTES = 1 << 20
"""Copied out at once: a chunk of the read cache. Memory of each thread that reads."""


Preadv = Callable[[int, Sequence[memoryview], int], int]
"""os.preadv: descriptor, buffers to fill, position; how many bytes came."""


class Reads(Protocol):
    """An open file that can be read."""

    descriptor: int

    def read(self, position: int, length: int) -> bytes:
        """Bytes at a position; fewer at the end of the file."""
        ...


class PlainReads:
    """In one go if the kernel lets us."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, position: int, length: int) -> bytes:
        content = os.pread(self.descriptor, length, position)
        if len(content) == length or not content:
            return content
        return content + _in_pieces(self.descriptor, position + len(content), length - len(content), length)


class PiecewiseReads:
    """By way of the page cache, a piece at a time."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # of this descriptor: no reading ahead

    def read(self, position: int, length: int) -> bytes:
        return _in_pieces(self.descriptor, position, length, PIECE_BYTES)

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with bytes from a position on; how many there were."""
        filled = 0
        while filled < len(view):
            count = os.preadv(self.descriptor, [view[filled : filled + PIECE_BYTES]], position + filled)
            if not count:
                break
            filled += count
        return filled


class DirectReads:
    """Past the page cache, a piece at a time, until the file system says that it cannot."""

    def __init__(self, descriptor: int, preadv: Preadv = os.preadv) -> None:
        """The descriptor is open with O_DIRECT."""
        self.descriptor = descriptor
        self._preadv = preadv
        self._instead: PiecewiseReads | None = None

    def read(self, position: int, length: int) -> bytes:
        if self._instead is None:
            try:
                return self._direct(position, length)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self._instead = PiecewiseReads(self.descriptor)
        return self._instead.read(position, length)

    def _direct(self, position: int, length: int) -> bytes:
        parts = []
        end = position + length
        while position < end:
            part = self._stretch(
                position, min(end, position // STRETCH_BYTES * STRETCH_BYTES + STRETCH_BYTES)
            )
            if not part:
                break
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _stretch(self, position: int, end: int) -> bytes:
        """Bytes of one aligned `STRETCH_BYTES` of the file; empty behind its end."""
        start = position // ALIGNMENT * ALIGNMENT
        size = -(-end // ALIGNMENT) * ALIGNMENT - start
        memory = _aligned_memory()
        filled = 0
        while filled < size:
            piece = memory[filled : min(filled + PIECE_BYTES, size)]
            count = self._preadv(self.descriptor, [piece], start + filled)
            filled += count
            if count % ALIGNMENT or not count:  # the end of the file
                break
        return bytes(memory[position - start : min(end - start, filled)])


def open_for_pieces(path: Path, *, cold: bool, open_file: Callable[[Path, int], int] = os.open) -> Reads:
    """Open a file to be read in pieces; `cold`: read only, past the page cache where that can be had."""
    flags = os.O_CLOEXEC | (os.O_RDONLY if cold else os.O_RDWR)
    if cold and hasattr(os, "O_DIRECT"):
        try:
            return DirectReads(open_file(path, flags | os.O_DIRECT))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return PiecewiseReads(open_file(path, flags))


_memory = threading.local()


def _aligned_memory() -> memoryview:
    """`STRETCH_BYTES` that belong to the calling thread: fresh pages for every read cost more than the copy out."""
    memory: memoryview | None = getattr(_memory, "view", None)
    if memory is None:
        memory = _memory.view = memoryview(mmap.mmap(-1, STRETCH_BYTES))  # aligned to a page
    return memory


def _in_pieces(descriptor: int, position: int, length: int, piece_bytes: int) -> bytes:
    parts = []
    while length:
        part = os.pread(descriptor, min(length, piece_bytes), position)
        if not part:
            break
        parts.append(part)
        position += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
