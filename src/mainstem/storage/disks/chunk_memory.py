"""Lends memory for large reads, on huge pages, and takes it back when nobody holds a view of it any more.

Bytes that a disk has just written into memory are in none of the processor's caches. The first reader of them, the
checksum, waits for each of its lines, and on pages of 4 KiB for the place of each page as well, which on a virtual
machine is half of what the check costs. Huge pages take a while to map and to zero, so a chunk that comes back is lent
again.

A huge page takes milliseconds where the machine's host has to give the memory, and Linux lets nobody else have the
processor meanwhile. So while producers publish, chunks that are new are on usual pages. They are given up first.

A view of a chunk keeps the loan: the read cache or an unsent response that holds one holds the chunk, and nobody else
is given it. Loans end in whatever thread drops the last view.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from contextlib import suppress

import numpy
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 20
"""The piece of memory that is lent: a chunk of the read cache, as it is by default. Larger reads have memory of their
own."""

LEAST_BYTES = CHUNK_BYTES // 2
"""Smaller reads, too: a chunk would be wasted on them."""

BLOCK_BYTES = 2 << 20
"""A huge page, which is what the operating system is asked for. It gets it back when both chunks are given up."""

SPARE_CHUNKS_MAX = 32
"""Chunks kept to be lent again. The read cache lets go of one for each that it loads, so that few are ever idle; what
comes back beyond that, slow readers held."""

_Place = tuple[mmap.mmap, int]
"""A block, and where in it the chunk begins."""


class ChunkMemory:
    """The chunks that are lent, and those that wait to be. Any thread may use it."""

    def __init__(self, *, spare_chunks_max: int = SPARE_CHUNKS_MAX) -> None:
        self._spare: deque[_Place] = deque(maxlen=spare_chunks_max)
        """A full deque lets go of the oldest for one that comes."""
        self._small: deque[_Place] = deque(maxlen=spare_chunks_max)
        """Those on usual pages."""
        self._lent: dict[int, tuple[weakref.ref[NDArray[numpy.uint8]], _Place]] = {}
        """By the id of the array whose memory it is."""

    @property
    def lent_count(self) -> int:
        return len(self._lent)

    @property
    def spare_count(self) -> int:
        return len(self._spare) + len(self._small)

    def lend(self, size: int, *, in_small_steps: bool = False) -> memoryview:
        """Lend memory of `size` bytes, at most `CHUNK_BYTES`, which begins at a page and holds whatever was there.
        `in_small_steps`: whoever writes to it first does not keep the processor for a huge page."""
        assert 0 < size <= CHUNK_BYTES
        lent = self._lent
        place, spare = self._place(in_small_steps=in_small_steps)
        room = numpy.frombuffer(place[0], numpy.uint8, size, place[1])
        number = id(room)

        def came_back(_room: object) -> None:
            spare.append(lent.pop(number)[1])

        lent[number] = weakref.ref(room, came_back), place
        return room.data

    def _place(self, *, in_small_steps: bool) -> tuple[_Place, deque[_Place]]:
        """Also says where it goes when it comes back."""
        huge, small = self._spare, self._small
        # another thread may take the last one between two looks
        if huge:
            with suppress(IndexError):
                return huge.pop(), huge
        if small:
            with suppress(IndexError):
                place = small.pop()
                if in_small_steps:
                    return place, small
                del place  # the system gets it back for the huge page
        if in_small_steps:
            return (_new_block(CHUNK_BYTES, huge=False), 0), small
        block = _new_block(BLOCK_BYTES, huge=True)
        huge.append((block, CHUNK_BYTES))
        return (block, 0), huge


def _new_block(size: int, *, huge: bool) -> mmap.mmap:
    block = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a system without huge pages
            pass
    return block
