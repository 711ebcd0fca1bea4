"""The pool holds the files that segments are made of: filled with zeros in advance or recycled, so that writes land on
disk blocks the file system has already allocated and on pages the operating system still holds.

    <n>.new    being filled; removed at the next start
    <n>.free   ready to become a segment

The newest recycled file is taken first: its pages are the likeliest to be resident. When none is ready, a fresh file is
taken at once, its space reserved; no write waits for the filling. Under `sync` durability a thread of the disk fills
files with a paced sequence of small writes, each with a sync, so that filling never holds up the disk for long, nor the
event loop. Under `async` durability files are filled in memory alone, by a thread that lets all others go first: the
blocks that are soon written in place of the zeros go to the disk with the next sync, and mostly the zeros never do.
That is done while no file is taken. Under a load it would cost as much again as what is written, for nothing where
memory is there: so the first bytes of a file show how fast memory comes, and only where it is slow the rest is filled
at once. Fresh files are taken while it is not, and the last of the pool stays for later
(docs/decisions/0252-files-are-filled-while-none-is-taken.md).

A recycled file may still be mapped by a reader that holds a lease (flock). It is renamed first, then locked: a later
reader finds its path gone; an earlier reader still holds the lock, and then the pool unlinks the file and leaves it to
that reader. No file is ever cut while it could be mapped.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterable

from mainstem.model import Durability
from mainstem.ports import File, Files
from mainstem.storage.errors import FormatError, StorageBusy
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.format import PAGE_BYTES, SegmentHeader
from mainstem.storage.journal.segments.segment_files import DIRECTORY, segment_path
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)

FILL_PIECES_PER_SECOND = 32
"""A thread of the disk fills a piece of a file at a time, for so long that the event loop has little to do with it, and
no longer than a process that ends in disorder may wait for its threads."""

FILL_PIECE_BYTES = 1024 * 1024
"""Filled in memory before the event loop is asked for the next: a close waits for one, a few milliseconds where memory
is slow to come."""

AT_REST_TIMES = 2
"""So many times as many files are filled while none is taken: for a burst, while those for its rest are filled."""

REST_SECONDS = 1.0
"""A load that takes no file for so long is over, or slow."""

STRETCH_BYTES = 8 * 1024 * 1024
"""A probe that found memory slow speaks for so much: a flood brings it in 20 ms."""

PROBE_SECONDS = 0.02
"""Between probes while memory is there: a flood writes 10 MB meanwhile."""

PROBE_BYTES = 256 * 1024
"""Filled at the beginning of each stretch to learn how fast memory comes: two pieces of `DurableWriter`, 40 µs where it
does, a thousandth of what a flood takes."""

PROMPT_SECONDS_PER_BYTE = 0.6e-9
"""Memory that is there takes 0.15 ms for a megabyte, memory that the machine's host has to give 2.2."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""Errors of a full disk, or of a process out of descriptors; they pass."""

FREE = ".free"
NEW = ".new"


class SegmentPool:
    """Takes files for new segments and takes back those of recycled ones."""

    def __init__(self, files: Files, config: JournalConfig, supervision: Supervision) -> None:
        self._files = files
        self._config = config
        self._free: list[int] = []
        self._next_number = 1
        self._wake = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._supervision = supervision
        self._fills = False
        """Whether files are being filled in memory."""
        self._prompt = False
        """Whether memory has just been found to be there, under a load."""
        self._at_rest = min(AT_REST_TIMES * config.pool_segments, config.pool_segments_max)
        """How many files are filled while none is taken, where that is done in memory."""
        self._taken_at = float("-inf")
        """When a file was taken last, by the loop's clock."""
        self.recycled = 0
        self.filled = 0
        self.taken = 0
        self.fresh = 0
        self.leased = 0

    async def open(self, names: Iterable[str]) -> int:
        """Take stock of the pool's files among `names`; returns the highest sequence that any of them was a
        segment under (0: none)."""
        highest = 0
        for name in names:
            number = _number_in(name)
            if number is None:
                continue
            path = f"{DIRECTORY}/{name}"
            self._next_number = max(self._next_number, number + 1)
            usable = False
            if name.endswith(FREE):
                highest = max(highest, await self._former_sequence(path))
                _unleased, usable = await self._usable(path)
            if usable and len(self._free) < self._config.pool_segments_max:
                self._free.append(number)
            else:
                await self._files.remove(path)
        return highest

    def start(self) -> None:
        """Begin filling; `close` ends it."""
        assert self._filling is None
        self._wake.set()
        self._filling = self._supervision.start(self._fill_again, "journal pool")

    async def _fill_again(self) -> None:
        """Fill again after the filling task died, beginning with the file it was filling."""
        self._wake.set()
        await self._fill()

    async def take(self, sequence: int) -> File:
        """A file of the configured size (or a file that grows to it) under the name of segment `sequence`.

        Raises `StorageBusy` when the disk has no room; nothing is lost by it."""
        self.taken += 1
        self._taken_at = asyncio.get_running_loop().time()
        while self._free and not self._spares_files:
            number = self._free.pop()
            path = _path(number, FREE)
            self._wake.set()
            try:
                file = await self._files.open(path)
                try:
                    await self._files.rename(path, segment_path(sequence))
                except BaseException:
                    await file.close()
                    raise
            except FileNotFoundError:
                log.warning("%s has vanished from the journal's pool", path)
                continue
            except OSError as error:
                self._free.append(number)  # it is still there for the next try
                raise _busy_or_same(error) from error
            return file
        self._wake.set()
        self.fresh += 1
        return await self._take_fresh(sequence)

    async def put(self, sequence: int) -> bool:
        """Take back the file of a segment that is not needed any more. Returns False when a reader had it leased: the
        file is unlinked then."""
        number = self._number()
        path = _path(number, FREE)
        await self._files.rename(segment_path(sequence), path)
        try:
            unleased, usable = await self._usable(path)
            if usable and len(self._free) < self._config.pool_segments_max:
                self._free.append(number)
                self.recycled += 1
            else:
                await self._files.remove(path)
        except OSError as error:  # the file is no segment any more; the next start finds it
            log.warning("%s is left behind: %s", path, error)
            return False
        if not unleased:
            self.leased += 1
        return unleased

    async def trim(self) -> None:
        """Delete the files beyond those that are filled in advance anyway."""
        self._at_rest = self._config.pool_segments
        while len(self._free) > self._config.pool_segments:
            await self._discard(_path(self._free.pop(0), FREE))

    @property
    def _spares_files(self) -> bool:
        """Whether the last file stays for when memory is slow to come: it is not, and a fresh one is as good."""
        return self._prompt and len(self._free) < self._config.pool_segments

    @property
    def lacks_files(self) -> bool:
        """Whether none is ready, and one will be soon."""
        return self._fills and not self._free

    def ready(self) -> int:
        """How many files can be taken at once."""
        return len(self._free)

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
            if not self._filling.cancelled() and (error := self._filling.exception()) is not None:
                log.error("journal pool: filling had ended early: %r", error)

    # --- filling ------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Fill files while fewer than `pool_segments` are ready. A full disk is no failure: filling is tried again when
        the next file is taken."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._fill_up_to(self._config.pool_segments)
            if self._in_memory:
                while not await self._rests(REST_SECONDS):
                    self._wake.clear()
                    await self._fill_up_to(self._config.pool_segments)
                await self._fill_up_to(self._at_rest)

    async def _fill_up_to(self, count: int) -> None:
        self._fills = self._in_memory
        while len(self._free) < count:
            number = self._number()
            try:
                await self._fill_one(number)
            except OSError as error:
                log.warning("journal pool: no file filled in advance: %s", error)
                await self._discard(_path(number, NEW))
                break
        self._fills = self._prompt = False

    @property
    def _in_memory(self) -> bool:
        return self._config.durability is Durability.ASYNC

    async def _rests(self, seconds: float) -> bool:
        """Wait so long at most; whether no file is taken meanwhile."""
        try:
            async with asyncio.timeout(seconds):  # `wait_for` of Python 3.11 may swallow that it is cancelled
                await self._wake.wait()
        except TimeoutError:
            return True
        return False

    async def _fill_one(self, number: int) -> None:
        path = _path(number, NEW)
        file = await self._files.open(path, create=True)
        try:
            await file.size(truncate_to=self._config.segment_bytes)
            await self._fill_whole(file)
        finally:
            await file.close()
        await self._files.rename(path, _path(number, FREE))
        self.filled += 1
        if len(self._free) < self._config.pool_segments_max:
            self._free.insert(0, number)
        else:  # recycled files came in meanwhile
            await self._discard(_path(number, FREE))

    async def _fill_whole(self, file: File) -> None:
        size, pace = self._config.segment_bytes, self._config.pool_fill_bytes_per_second
        if self._config.durability is Durability.ASYNC:
            for position in range(0, size, STRETCH_BYTES):
                await self._fill_stretch(file, position, min(size, position + STRETCH_BYTES))
            return
        piece = pace // FILL_PIECES_PER_SECOND
        for position in range(0, size, piece):
            await file.fill(position, min(piece, size - position), bytes_per_second=pace)

    async def _fill_stretch(self, file: File, position: int, end: int) -> None:
        """Fill a stretch in memory, once files are not taken any more, or its bytes do not find theirs at once."""
        loop = asyncio.get_running_loop()
        while position < end and loop.time() - self._taken_at < REST_SECONDS:
            probe = min(PROBE_BYTES, end - position)
            seconds = await file.fill_in_memory(position, probe)
            position += probe
            self._prompt = seconds < PROMPT_SECONDS_PER_BYTE * probe
            if not self._prompt:
                break
            self._fills = False
            await asyncio.sleep(PROBE_SECONDS)
        self._fills, self._prompt = True, False
        for start in range(position, end, FILL_PIECE_BYTES):
            await file.fill_in_memory(start, min(FILL_PIECE_BYTES, end - start))

    async def _discard(self, path: str) -> None:
        try:
            await self._files.remove(path)
        except OSError as error:
            log.warning("%s is left behind: %s", path, error)

    # --- one file -----------------------------------------------------------------------------------------

    async def _usable(self, path: str) -> tuple[bool, bool]:
        """Whether a file of the pool is free of leases, and whether it can be used (it exists and has the right
        size)."""
        file = await self._files.open(path)
        try:
            unleased = await file.lock(exclusive=True)
            return unleased, unleased and await file.size() == self._config.segment_bytes
        finally:
            await file.close()

    async def _former_sequence(self, path: str) -> int:
        """The sequence of the segment that a file of the pool was; 0 when it never was a segment."""
        file = await self._files.open(path)
        try:
            return SegmentHeader.unpack(await file.read(0, PAGE_BYTES), path).sequence
        except FormatError:
            return 0
        finally:
            await file.close()

    async def _take_fresh(self, sequence: int) -> File:
        path = segment_path(sequence)
        try:
            file = await self._files.open(path, create=True)
            try:
                await file.size(truncate_to=self._config.segment_bytes)
            except BaseException:
                await file.close()
                await self._discard(path)
                raise
        except OSError as error:
            raise _busy_or_same(error) from error
        return file

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number


def _path(number: int, kind: str) -> str:
    return f"{DIRECTORY}/{number}{kind}"


def _number_in(name: str) -> int | None:
    """The number in the name of a file of the pool; None for other files."""
    stem = name.removesuffix(FREE).removesuffix(NEW)
    return int(stem) if stem != name and stem.isdigit() else None


def _busy_or_same(error: OSError) -> Exception:
    if error.errno in NO_ROOM:
        return StorageBusy(f"no room for another journal segment: {error.strerror or error}")
    return error
