"""The journal bytes of a slice, brought into one buffer.

On the node's own host they are read from the segments, under a lease: lock the file shared, look whether the
path still names it, read, and look at the generation once more. Elsewhere, or when the file could not be had
that way, they come over rpc. A slice is copied rather than mapped because a copy at memory speed costs
little beside the split, gives one address space to slices that span segments, and ends the lease at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator

import numpy
import numpy.typing

from mainstem.pipeline.errors import SliceDamaged
from mainstem.rpc.split import SegmentExtent, Slice
from mainstem.storage.disk_reads import PiecewiseReads
from mainstem.storage.errors import FormatError, SegmentGone
from mainstem.storage.journal.format import PAGE_BYTES, SegmentHeader

Bytes = numpy.typing.NDArray[numpy.uint8]

ReadRemote = Callable[[SegmentExtent], Iterator[bytes]]
"""The extent's bytes in pieces, from the node; raises what the node refuses with."""

STEP_BYTES = 1 << 20
"""The step of the pacing."""

Pace = Callable[[int], None]
"""Returns when so many bytes may be worked on."""


def read_slice(work: Slice, read_remote: ReadRemote, *, local: bool, pace: Pace = lambda size: None) -> Bytes:
    """All extents of the slice, one after the other. `local`: their paths name this host's files.

    Raises `SliceDamaged` when a segment is shorter than promised, and what `read_remote` raises."""
    buffer = numpy.empty(sum(extent.end - extent.start for extent in work.extents), numpy.uint8)
    position = 0
    for extent in work.extents:
        view = buffer.data[position:position + extent.end - extent.start]
        position += len(view)
        if local:
            try:
                read_segment(extent, view, pace)
                continue
            except SegmentGone:
                pass  # the node knows best whether it is
        filled = 0
        for piece in read_remote(extent):
            if filled + len(piece) > len(view):
                raise SliceDamaged(f"{extent.path}: the node sent more than was asked for")
            view[filled:filled + len(piece)] = piece
            filled += len(piece)
        if filled < len(view):
            raise SliceDamaged(f"{extent.path}: {filled} of {len(view)} bytes from {extent.start} on")
    return buffer


def read_segment(extent: SegmentExtent, view: memoryview, pace: Pace = lambda size: None) -> None:
    """Fill `view` from the segment's file, under a lease. Raises `SegmentGone` when the file is no longer
    that segment, or cannot be leased."""
    try:
        descriptor = os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SegmentGone(f"{extent.path}: {error}") from error
    try:
        _lease(descriptor, extent)
        position = 0
        reads = PiecewiseReads(descriptor)  # by way of the page cache, which mostly has the newest segments
        while position < len(view):
            step = view[position:position + STEP_BYTES]
            pace(len(step))
            count = reads.read_into(extent.start + position, step)
            if count < len(step):
                raise SegmentGone(f"{extent.path} ends at {extent.start + position + count}")
            position += count
        _check_generation(descriptor, extent)
    except OSError as error:
        raise SegmentGone(f"{extent.path}: {error}") from error
    finally:
        os.close(descriptor)  # ends the lease


def _lease(descriptor: int, extent: SegmentExtent) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    mine, named = os.fstat(descriptor), os.stat(extent.path)
    if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino):
        raise SegmentGone(f"{extent.path} was recycled")
    _check_generation(descriptor, extent)


def _check_generation(descriptor: int, extent: SegmentExtent) -> None:
    try:
        header = SegmentHeader.unpack(os.pread(descriptor, PAGE_BYTES, 0), extent.path)
    except FormatError as error:
        raise SegmentGone(str(error)) from error
    if header.sequence != extent.sequence:
        raise SegmentGone(f"{extent.path} holds segment {header.sequence}")
