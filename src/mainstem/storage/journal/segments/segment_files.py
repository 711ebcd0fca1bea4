"""Names the journal's files, and keeps a bounded number of handles for reading segments, opened at the first read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainstem.ports import File, Files, ReadingMode
from mainstem.storage.errors import SegmentGone
from mainstem.storage.journal.encoding.format import segment_name

DIRECTORY = "journal"
"""The directory of the journal below `write_dir`."""

SEGMENT = ".wal"
INDEX = ".idx"
TEMPORARY = ".tmp"
"""The end of the name of a file that is being written."""

OPEN_SEGMENTS_MAX = 64
"""Descriptors for reading: a fraction of the usual limit of 1,024; catch-up readers work on few segments."""


def segment_path(sequence: int) -> str:
    return f"{DIRECTORY}/{segment_name(sequence)}"


def index_path(sequence: int) -> str:
    return f"{DIRECTORY}/{sequence:020d}{INDEX}"


class _Handle:
    """An open file and how many readers use it."""

    def __init__(self) -> None:
        self.file: File | None = None
        self.readers = 0
        self.opening = asyncio.Lock()


class SegmentFiles:
    """Opens segments for reading and keeps their handles, by sequence."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._handles: OrderedDict[int, _Handle] = OrderedDict()

    @asynccontextmanager
    async def reading(self, sequence: int) -> AsyncIterator[File]:
        """The segment's file, kept open inside the block. Raises `SegmentGone` when there is none."""
        handle = self._handles.setdefault(sequence, _Handle())
        self._handles.move_to_end(sequence)
        handle.readers += 1
        try:
            async with handle.opening:
                if handle.file is None:
                    try:
                        handle.file = await self._files.open(segment_path(sequence), reading=ReadingMode.PIECES)
                    except FileNotFoundError as error:
                        raise SegmentGone(f"{segment_name(sequence)} is gone") from error
            yield handle.file
        finally:
            handle.readers -= 1
            if self._handles.get(sequence) is not handle:
                await self._close(handle)
            elif handle.file is None and not handle.readers:
                del self._handles[sequence]
            await self._evict()

    async def forget(self, sequence: int) -> None:
        """Close a segment's handle; readers under way finish with the handle they have."""
        handle = self._handles.pop(sequence, None)
        if handle is not None:
            await self._close(handle)

    async def close(self) -> None:
        while self._handles:
            await self.forget(next(iter(self._handles)))

    async def _evict(self) -> None:
        while len(self._handles) > OPEN_SEGMENTS_MAX:
            idle = next((key for key, handle in self._handles.items() if not handle.readers), None)
            if idle is None:
                return
            await self.forget(idle)

    async def _close(self, handle: _Handle) -> None:
        """Close a handle that is no longer listed, once its last reader is done with it."""
        if handle.readers == 0 and handle.file is not None:
            file, handle.file = handle.file, None
            await file.close()
