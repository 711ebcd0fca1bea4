"""Brings the journal bytes of a slice into one buffer.

On the node's own host it maps the segments, under a lease: lock the file shared, check that the path still names it,
map it, and check the generation once more before the results are handed on. The node recycles no segment that is
leased. On another host, or when a file cannot be mapped, the bytes come over rpc.

The buffer is one mapping, so that slices that span segments have one address space; an extent begins in it at a page,
plus its distance from a page of its file (`places_of`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy
import numpy.typing

from mainstem.pipeline.errors import SliceDamaged
from mainstem.rpc.messages.split import SegmentExtent, Slice
from mainstem.storage.errors import FormatError, SegmentGone
from mainstem.storage.journal.encoding.format import PAGE_BYTES, SegmentHeader, aligned
from mainstem.storage.store_files.allowance import Allowance, unlimited

Bytes = numpy.typing.NDArray[numpy.uint8]

ReadRemote = Callable[[SegmentExtent], Iterator[bytes]]
"""The extent's bytes in pieces, from the node; raises the node's refusals."""

STEP_BYTES = 1 << 20
"""The step of the pacing."""

PIECE_BYTES = 128 * 1024
"""Bytes asked of the disk at once, where the page cache lacks them: a commit waits for the read before it."""

_MAP_FIXED = 0x10
_MADV_POPULATE_READ = 22

_map_memory = ctypes.CDLL(None, use_errno=True).mmap
_map_memory.restype = ctypes.c_void_p
_map_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]


def places_of(extents: Sequence[SegmentExtent]) -> list[int]:
    """The positions of extents in the buffer of their slice, then the size of the buffer."""
    places = []
    end = 0
    for extent in extents:
        places.append(end + extent.start % mmap.PAGESIZE)
        end = aligned(places[-1] + extent.end - extent.start, mmap.PAGESIZE)
    return [*places, end]


@contextmanager
def slice_bytes(work: Slice, read_remote: ReadRemote, *, local: bool, allow: Allowance = unlimited) -> Iterator[Bytes]:
    """All extents of the slice at their `places_of`; read-only, and valid inside the block. `local`: their paths
    name this host's files.

    Raises `SliceDamaged` when a segment is shorter than promised, and whatever `read_remote` raises; on leaving,
    `SegmentGone` when a segment was recycled in spite of its lease."""
    *places, size = places_of(work.extents)
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer = numpy.frombuffer(memory, numpy.uint8, size)
    buffer.flags.writeable = False  # files that are mapped cannot be written to
    with ExitStack() as leases:
        for extent, place in zip(work.extents, places, strict=True):
            if local:
                try:
                    leases.enter_context(mapped_segment(extent, memory, place, allow))
                    continue
                except SegmentGone:
                    pass  # the node may still have it
            view = memoryview(memory)[place : place + extent.end - extent.start]
            filled = 0
            for piece in read_remote(extent):
                if filled + len(piece) > len(view):
                    raise SliceDamaged(f"{extent.path}: the node sent more than was asked for")
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
            if filled < len(view):
                raise SliceDamaged(f"{extent.path}: {filled} of {len(view)} bytes from {extent.start} on")
        yield buffer


@contextmanager
def mapped_segment(
    extent: SegmentExtent, memory: mmap.mmap, place: int, allow: Allowance = unlimited
) -> Iterator[None]:
    """The extent's bytes at this place of `memory`, leased inside the block. Raises `SegmentGone` when the
    file is no longer that segment, or cannot be leased; on leaving, when it was recycled all the same."""
    with ExitStack() as stack:
        try:
            descriptor = os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)  # ends the lease
            _lease(descriptor, extent)
            _map(descriptor, extent, memory, place, allow)
        except OSError as error:
            raise SegmentGone(f"{extent.path}: {error}") from error
        yield
        _check_generation(descriptor, extent)


def _lease(descriptor: int, extent: SegmentExtent) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    mine, named = os.fstat(descriptor), os.stat(extent.path)
    if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino):
        raise SegmentGone(f"{extent.path} was recycled")
    if mine.st_size < extent.end:
        raise SegmentGone(f"{extent.path} ends at {mine.st_size}")
    _check_generation(descriptor, extent)


def _map(descriptor: int, extent: SegmentExtent, memory: mmap.mmap, place: int, allow: Allowance) -> None:
    """Put the file's pages in the place of the memory's, and load all of them: the disk is read here, paced,
    and its errors show here. Raises OSError, and the memory is as it was."""
    shift = extent.start % mmap.PAGESIZE
    at, start, length = place - shift, extent.start - shift, extent.end - extent.start + shift
    _replace(memory, at, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # of this descriptor: no reading ahead, but these pieces
    try:
        for step in range(0, length, STEP_BYTES):
            end = min(step + STEP_BYTES, length)
            allow(end - step)
            for piece in range(step, end, PIECE_BYTES):
                size = min(PIECE_BYTES, end - piece)
                os.posix_fadvise(descriptor, start + piece, size, os.POSIX_FADV_WILLNEED)
                _populate(memory, at + piece, size)
    except OSError:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        _replace(memory, at, length, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0)
        raise


def _replace(
    memory: mmap.mmap, at: int, length: int, protection: int, flags: int, descriptor: int, position: int
) -> None:
    """Replace some of the memory's pages by others."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + at
    if _map_memory(address, length, protection, flags | _MAP_FIXED, descriptor, position) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _populate(memory: mmap.mmap, at: int, size: int) -> None:
    try:
        memory.madvise(_MADV_POPULATE_READ, at, size)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Linux before 5.14: the pages load when they are read
            raise


def _check_generation(descriptor: int, extent: SegmentExtent) -> None:
    try:
        header = SegmentHeader.unpack(os.pread(descriptor, PAGE_BYTES, 0), extent.path)
    except FormatError as error:
        raise SegmentGone(str(error)) from error
    if header.sequence != extent.sequence:
        raise SegmentGone(f"{extent.path} holds segment {header.sequence}")
