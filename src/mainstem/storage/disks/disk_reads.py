"""Reads files of a real disk without delaying commits beside them.

A disk does one thing after the other: a commit waits for the read before it. Reads that are not urgent are therefore
made in pieces of `PIECE_BYTES`, each begun when the one before is done, and the operating system is kept from reading
ahead, which it does in megabytes. The read cache reads ahead instead.

Cold reads bypass the page cache (O_DIRECT), so that they displace nothing in it, above all not the journal's recycled
segments. The operating system wants position, length and memory aligned for these; so a reader reads the whole pages
around the bytes asked for into its own memory. If a file system refuses (tmpfs and some over the network), the file is
read in the same pieces through the page cache.

A chunk of the read cache is read so by `read_into_chunk`, into the memory that is returned: to copy it, or to join its
pieces, the reading thread would keep the interpreter, and with it the event loop, for tenths of a millisecond.

While no commits are made, the caller uses `read_at_once`: one request to the disk for all bytes, straight into the
memory that is returned, past the page cache unless that has every page of it. That costs a third of the CPU of pieces
through the page cache, and gets twice as much from an otherwise idle disk.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy

from mainstem.kernel import fill_pieces
from mainstem.model import Buffer
from mainstem.storage.disks.chunk_memory import CHUNK_BYTES, LEAST_BYTES, ChunkMemory

_FAILED = ctypes.c_void_p(-1).value
_RESIDENT = b"\1"
"""The lowest bit of each page's byte; Linux leaves the others 0."""


def _library() -> Any:
    """The C library, called without letting go of the interpreter: a microsecond each."""
    library = ctypes.PyDLL(None)
    try:
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    except AttributeError:
        return None
    return library


_C = _library()


def all_resident(descriptor: int, position: int, length: int) -> bool:
    """Ask the operating system (mincore) whether it has all pages of a stretch in memory, without reading any of them.
    `position` is a multiple of the page size. A read that must not wait (`RWF_NOWAIT`) does not serve for that: it
    starts reading the missing pages. If the system cannot be asked the answer is yes, so that the file is read in the
    usual way."""
    if _C is None:
        return True
    address = _C.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, position)
    if address == _FAILED:
        return True
    pages = -(-length // mmap.PAGESIZE)
    found = ctypes.create_string_buffer(pages)
    try:
        asked = _C.mincore(address, length, found) == 0
    finally:
        _C.munmap(address, length)
    return not asked or found.raw.count(_RESIDENT) == pages


PIECE_BYTES = 128 * 1024
"""Beside reads of 1 MiB a commit waits several milliseconds now and then. Smaller pieces than this gain nothing, and
pieces of this size, one at a time, are as fast as the disk."""

ALIGNMENT = mmap.PAGESIZE
"""Enough for every file system: they ask for the disk's sector, or a page."""

STRETCH_BYTES = 1 << 20
"""Bytes copied out at once: a chunk of the read cache. Each reading thread has this much memory."""


AnyPath = TypeVar("AnyPath", Path, str)

Fill = Callable[[int, memoryview, int, int, int], int]
"""`fill_pieces`: descriptor, memory to fill, position, bytes of a piece and of a page; how many bytes came."""


class ReadableFile(Protocol):
    """An open file that can be read, by one thread at a time unless it is `shared`."""

    descriptor: int
    shared: bool
    """Whether several threads may read it at a time."""

    def read(self, position: int, length: int) -> bytes:
        """Bytes at a position; fewer at the end of the file."""
        ...

    def read_into_chunk(self, position: int, length: int) -> Buffer:
        """The same, into memory of their own where there are enough of them."""
        ...

    def read_at_once(self, position: int, length: int) -> Buffer:
        """Bytes at a position, read in one request to the disk into memory of their own; fewer at the end of the
        file."""
        ...


class PlainReads:
    """Reads in one system call, or several if the system cuts it short."""

    shared = True

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, position: int, length: int) -> bytes:
        content = os.pread(self.descriptor, length, position)
        if len(content) == length or not content:
            return content
        return content + _in_pieces(self.descriptor, position + len(content), length - len(content), length)

    read_at_once = read_into_chunk = read


class PiecewiseReads:
    """Reads a piece at a time through the page cache; chunks, and what is read at once, bypass that where it lacks some
    of the pages and the file system allows it."""

    shared = False

    def __init__(self, descriptor: int, fill: Fill = fill_pieces) -> None:
        self.descriptor = descriptor
        self._fill = fill
        self._is_direct = False
        self._can_be_direct = hasattr(os, "O_DIRECT")
        """True until the file system has refused O_DIRECT."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # of this descriptor: no reading ahead

    def read(self, position: int, length: int) -> bytes:
        self._go(direct=False)
        return _in_pieces(self.descriptor, position, length, PIECE_BYTES)

    def read_into_chunk(self, position: int, length: int) -> Buffer:
        if not _fills_chunk(position, length):
            return self.read(position, length)
        return self._past_cache(_in_chunk, position, length)

    def read_at_once(self, position: int, length: int) -> Buffer:
        if length <= PIECE_BYTES:
            return self.read(position, length)
        return self._past_cache(_whole, position, length)

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with bytes from a position on. Returns how many there were."""
        return self._fill(self.descriptor, view, position, PIECE_BYTES, 1)

    def _past_cache(self, read: Callable[[int, Fill, int, int], Buffer], position: int, length: int) -> Buffer:
        """Read past the page cache where that lacks some of the pages, and does not get them by it either."""
        start, size = _pages_around(position, length)
        self._go(direct=self._can_be_direct and not all_resident(self.descriptor, start, size))
        if self._is_direct:
            try:
                return read(self.descriptor, self._fill, position, length)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            self._can_be_direct = False
            self._go(direct=False)
        return read(self.descriptor, self._fill, position, length)

    def _go(self, *, direct: bool) -> None:
        """Read past the page cache from now on, or through it. Both use one descriptor, because the owner closes only
        one."""
        if direct == self._is_direct:
            return
        try:
            _set_direct(self.descriptor, direct)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._can_be_direct = False
        else:
            self._is_direct = direct


class DirectReads:
    """Reads past the page cache, a piece at a time, until the file system refuses."""

    shared = True

    def __init__(self, descriptor: int, fill: Fill = fill_pieces) -> None:
        """The descriptor is open with O_DIRECT."""
        self.descriptor = descriptor
        self._fill = fill
        self._instead: PiecewiseReads | None = None
        self._by_turns = threading.Lock()
        """Held by the thread that reads through the page cache, or makes that the way to read."""

    def read(self, position: int, length: int) -> bytes:
        if self._instead is None:
            try:
                return self._direct(position, length)
            except OSError as error:
                self._give_up(error)
        assert self._instead is not None
        with self._by_turns:
            return self._instead.read(position, length)

    def read_into_chunk(self, position: int, length: int) -> Buffer:
        if not _fills_chunk(position, length):
            return self.read(position, length)
        if self._instead is None:
            try:
                return _in_chunk(self.descriptor, self._fill, position, length)
            except OSError as error:
                self._give_up(error)
        assert self._instead is not None
        with self._by_turns:
            return self._instead.read_into_chunk(position, length)

    def read_at_once(self, position: int, length: int) -> Buffer:
        if length <= PIECE_BYTES:
            return self.read(position, length)
        if self._instead is None:
            try:
                return _whole(self.descriptor, self._fill, position, length)
            except OSError as error:
                self._give_up(error)
        assert self._instead is not None
        with self._by_turns:
            return self._instead.read_at_once(position, length)

    def read_neighbours(self, position: int, count: int) -> list[Buffer] | None:
        """`count` chunks of `CHUNK_BYTES` from a position on, read in one request to the disk, each into memory of its
        own; shorter ones at the end of the file. None where the file is not read past the page cache."""
        if self._instead is not None or position % ALIGNMENT:
            return None
        memory = [_chunks.lend(CHUNK_BYTES) for _ in range(count)]
        try:
            filled = os.preadv(self.descriptor, memory, position)
        except OSError as error:
            self._give_up(error)
            return None
        if filled < count * CHUNK_BYTES and filled % ALIGNMENT == 0:
            return None  # the system may have cut it short
        return [
            one[: max(0, min(CHUNK_BYTES, filled - at * CHUNK_BYTES))].toreadonly() for at, one in enumerate(memory)
        ]

    def _give_up(self, error: OSError) -> None:
        """Read through the page cache from now on, if the error says that O_DIRECT is refused; otherwise raise it."""
        if error.errno != errno.EINVAL:
            raise error
        with self._by_turns:
            if self._instead is None:  # else the file system has refused another thread first
                _set_direct(self.descriptor, False)
                self._instead = PiecewiseReads(self.descriptor)

    def _direct(self, position: int, length: int) -> bytes:
        parts = []
        end = position + length
        while position < end:
            part = self._stretch(position, min(end, position // STRETCH_BYTES * STRETCH_BYTES + STRETCH_BYTES))
            if not part:
                break
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _stretch(self, position: int, end: int) -> bytes:
        """Bytes of one aligned `STRETCH_BYTES` of the file; empty behind its end."""
        start, size = _pages_around(position, end - position)
        memory = _aligned_memory()[:size]
        filled = self._fill(self.descriptor, memory, start, PIECE_BYTES, ALIGNMENT)
        return bytes(memory[position - start : min(end - start, filled)])


def open_for_pieces(path: AnyPath, *, cold: bool, open_file: Callable[[AnyPath, int], int] = os.open) -> ReadableFile:
    """Open a file for reading in pieces; `cold`: past the page cache where the file system allows it."""
    flags = os.O_CLOEXEC | (os.O_RDONLY if cold else os.O_RDWR)
    if cold and hasattr(os, "O_DIRECT"):
        try:
            return DirectReads(open_file(path, flags | os.O_DIRECT))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return PiecewiseReads(open_file(path, flags))


def read_cold(path: str, position: int, length: int) -> bytes | None:
    """Bytes of a file that is opened for them alone; None when they cannot be read."""
    try:
        reads = open_for_pieces(path, cold=True)
        try:
            return reads.read(position, length)
        finally:
            os.close(reads.descriptor)
    except OSError:
        return None


def _set_direct(descriptor: int, direct: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags)


def _pages_around(position: int, length: int) -> tuple[int, int]:
    """Position and length of the whole pages that hold these bytes."""
    start = position // ALIGNMENT * ALIGNMENT
    return start, -(-(position + length) // ALIGNMENT) * ALIGNMENT - start


def _fills_chunk(position: int, length: int) -> bool:
    """Whether the bytes are worth a chunk of memory, and fit into one."""
    return length >= LEAST_BYTES and _pages_around(position, length)[1] <= CHUNK_BYTES


def _in_chunk(descriptor: int, fill: Fill, position: int, length: int) -> memoryview:
    """Bytes of a file, read a piece at a time into a chunk that is lent for as long as the view lives."""
    start, size = _pages_around(position, length)
    memory = _chunks.lend(size, in_small_steps=True)
    filled = fill(descriptor, memory, start, PIECE_BYTES, ALIGNMENT)
    return memory[position - start : min(position + length - start, filled)].toreadonly()


def _whole(descriptor: int, fill: Fill, position: int, length: int) -> memoryview:
    """Bytes of a file, read in one go into memory that lives as long as the view."""
    start, size = _pages_around(position, length)
    if LEAST_BYTES <= size <= CHUNK_BYTES:
        memory = _chunks.lend(size)
    else:
        room = numpy.empty(size + ALIGNMENT, numpy.uint8)  # not zeroed first, unlike Python's own
        skipped = -room.ctypes.data % ALIGNMENT
        memory = room.data[skipped : skipped + size]
    filled = fill(descriptor, memory, start, size, ALIGNMENT)
    return memory[position - start : min(position + length - start, filled)].toreadonly()


_chunks = ChunkMemory()
"""For the large reads of all disks."""

_memory = threading.local()


def _aligned_memory() -> memoryview:
    """`STRETCH_BYTES` of memory that belong to the calling thread: fresh pages for every read cost more than copying
    the bytes out."""
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
