"""Whole chunks of several files, for who finds what it wants in them by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from mainstem.storage.errors import StorageError
from mainstem.storage.read_cache.extent import CachedFile
from mainstem.storage.read_cache.read_cache import ReadCache

log = logging.getLogger(__name__)

LOADS_TOGETHER = 16
"""Chunks requested at once: what a response of the usual size takes of a disk, four requests of four neighbours
(`neighbour_reads.py`), one for each thread for reads at once. Other readers wait for no more than these."""


async def load_chunks(
    cache: ReadCache, wanted: Sequence[tuple[CachedFile, int, int]]
) -> tuple[list[memoryview | None], bool]:
    """Chunks by number, and whether memory had all of them: one on its way is waited for as well. None for a chunk of
    which no bytes are wanted, and for an unreadable one: the reader that needs it reads it again by itself, and reports
    what is wrong."""
    chunks: list[memoryview | None] = [None] * len(wanted)
    missing = [at for at, (source, number, length) in enumerate(wanted) if length and not cache.holds(source, number)]

    waited = bool(missing)

    async def load(at: int) -> None:
        nonlocal waited
        source, number, _length = wanted[at]
        try:
            chunks[at], hit = await cache.span(source, number * cache.chunk_bytes, cache.chunk_bytes)
            waited = waited or not hit
        except (StorageError, OSError) as error:
            log.debug("chunk %d of %s cannot be read: %s", number, source.name, error)

    for first in range(0, len(missing), LOADS_TOGETHER):
        await asyncio.gather(*(load(at) for at in missing[first : first + LOADS_TOGETHER]))
    for at, (_source, _number, length) in enumerate(wanted):
        if length and chunks[at] is None:
            await load(at)
    return chunks, not waited
