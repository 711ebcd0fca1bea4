"""Files that are brought as a whole, one after the other, for readers who want most of them together.

Each reader of such a file waits until the chunk in which it goes on is asked for, and not for a stretch of its own: so
each byte comes once, in requests of full size, in the order in which it lies, however many readers wait. A file goes on
as far as there is room for what is read ahead. If there is none, and nothing is on its way of which the readers would
make some, they are not as fast as one another: then no file goes on, and each of them asks for what it takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from mainstem.storage.read_cache.chunks_ahead import ChunksAhead
from mainstem.storage.read_cache.extent import CachedFile
from mainstem.supervised import Errands, Supervision

FILES_MAX = 64
"""Files that wait for their turn. Readers of others ask for what they take."""

TURNS_TO_TAKE = 2
"""Of the event loop, after the last request has come: one in which its readers are told, and one in which they take it.
"""


class _FileInWhole:
    """A file, and those who wait until it has come to the chunks where they go on."""

    def __init__(self, source: CachedFile, chunk_count: int) -> None:
        self.source = source
        self.left = range(chunk_count)
        """The chunks that were not asked for yet."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def has_asked_for(self, number: int) -> None:
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((number, asked))
        await asked

    def goes_on(self, left: range) -> None:
        """The chunks before these were asked for."""
        self.left = left
        waiting, self._waiting = self._waiting, []
        for number, asked in waiting:
            if left and number >= left.start:
                self._waiting.append((number, asked))
            elif not asked.done():
                asked.set_result(None)


class FilesInWhole:
    """The files that are brought as a whole, in the order in which that was begun."""

    def __init__(
        self, ahead: ChunksAhead, supervision: Supervision | None, *, chunk_bytes: int, chunks_per_read: int
    ) -> None:
        self._ahead = ahead
        self._chunk_bytes = chunk_bytes
        self._chunks_per_read = chunks_per_read
        self._files: deque[_FileInWhole] = deque()
        self._errands = Errands(supervision, "files in whole")
        self._under_way = 0
        """Reads."""
        self._failed = False
        self._room: asyncio.Future[None] | None = None
        """Settled when there may be room for one more read, if it is waited for."""

    def begin(self, source: CachedFile, length: int) -> bool:
        """Bring the first `length` bytes of a file, once those begun before were asked for; whether that is begun."""
        if len(self._files) >= FILES_MAX or self._of(source) is not None:
            return False
        self._files.append(_FileInWhole(source, -(-length // self._chunk_bytes)))
        if not self._errands:
            self._errands.start(self._bring())
        return True

    async def comes(self, source: CachedFile, position: int) -> bool:
        """Return once the chunk at a position has been asked for, or will not be; whether that took waiting."""
        number, file = position // self._chunk_bytes, self._of(source) if self._files else None
        if file is None or number not in file.left:
            return False
        await file.has_asked_for(number)
        return True

    def _of(self, source: CachedFile) -> _FileInWhole | None:
        return next((file for file in self._files if file.source.name == source.name), None)

    def look_for_room(self) -> None:
        """A reader has taken a chunk that was read ahead, or a read has come."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def _bring(self) -> None:
        self._failed = False
        try:
            while self._files:
                file = self._files[0]
                asked = file.left.start
                for numbers in self._reads(file.left):
                    if self._failed or not self._ahead.has_far_room(len(numbers)):
                        await self._on_its_way(file, asked)
                        if not await self._has_room(len(numbers)):
                            return
                    for read in self._ahead.load_missing(file.source, numbers):
                        self._under_way += 1
                        read.add_done_callback(self._came)
                    asked = numbers.stop
                await self._on_its_way(file, asked)
                self._files.popleft()
        finally:
            while self._files:
                self._files.popleft().goes_on(range(0))

    async def _on_its_way(self, file: _FileInWhole, asked: int) -> None:
        """Tell the readers of the chunks before this one that these are on their way, which they are in the next turn
        of the event loop: whoever finds them neither here nor there asks for them once more."""
        await asyncio.sleep(0)
        file.goes_on(range(asked, file.left.stop))

    def _came(self, read: asyncio.Task[bool]) -> None:
        self._under_way -= 1
        if read.cancelled() or read.exception() is not None or not read.result():
            self._failed = True
        self.look_for_room()

    def _reads(self, numbers: range) -> Iterator[range]:
        for first in range(numbers.start, numbers.stop, self._chunks_per_read):
            yield range(first, min(first + self._chunks_per_read, numbers.stop))

    async def _has_room(self, count: int) -> bool:
        """Return once there is room for one more read, of so many chunks. False: there will be none, or a read has
        failed."""
        while not self._failed and not self._ahead.has_far_room(count):
            if not self._under_way:
                for _ in range(TURNS_TO_TAKE):
                    await asyncio.sleep(0)
                return self._ahead.has_far_room(count)
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        return not self._failed

    async def close(self) -> None:
        self._errands.cancel()
        await self._errands.ended()
