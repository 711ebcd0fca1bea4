"""Takes the files of the segments that come next: the one behind the open segment ahead of the write that needs it, so
that the write does not wait for what makes it a segment.

A file of the pool becomes a segment by being opened and renamed, a fresh one by being made; both are jobs of the disk's
thread, behind the syncs of files that are being filled and of everything else that is not a write. A write that waited
for them has been seen to take 1.4 ms mostly and 27 ms at times, and with it all that the node had to write meanwhile.

A segment that was taken has no header until its first block is written. A start gives it up, whether a write had needed
it or not, and however the journal ended.
"""

from __future__ import annotations

import asyncio
import logging

from mainstem.ports import File
from mainstem.storage.errors import StorageBusy
from mainstem.storage.journal.segments.pool import SegmentPool
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)


class NextSegments:
    """Files by the sequence that they are to be segments under. No sequence is taken twice, whoever asks for it."""

    def __init__(self, pool: SegmentPool, supervision: Supervision) -> None:
        self._pool = pool
        self._supervision = supervision
        self._taken: dict[int, File] = {}
        """Those that no block was written to yet: one ahead, and those of a write that then found no room for all the
        segments it needed."""
        self._taking = asyncio.Lock()
        self._ahead = 0
        """The sequence to take ahead, or that was."""
        self._begun = 0
        """The last sequence that is written to, whose file must not be put in place once more."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many files are taken that no block was written to."""
        return len(self._taken)

    @property
    def at_hand(self) -> bool:
        """Whether one is taken, or about to be."""
        return bool(self._taken) or self._taking.locked()

    def start(self) -> None:
        """Take ahead from now on; `close` ends it."""
        self._task = self._supervision.start(self._take_ahead, "journal segments ahead")

    async def take(self, sequence: int) -> File:
        """The file of the segment `sequence`; the same one until it is `begun`. Raises as `SegmentPool.take`."""
        if (file := self._taken.get(sequence)) is not None:
            return file
        async with self._taking:
            if sequence not in self._taken:
                assert sequence > self._begun, f"segment {sequence} is written to, or was"
                self._taken[sequence] = await self._pool.take(sequence)
            return self._taken[sequence]

    def begun(self, sequence: int) -> None:
        """The segment is being written to; its file is the caller's now."""
        self._begun = sequence
        del self._taken[sequence]

    def expect(self, sequence: int) -> None:
        """Have the file of a segment ready soon: it will be needed."""
        if sequence != self._ahead:
            self._ahead = sequence
            self._wake.set()

    async def close(self) -> None:
        """Let go of all files that no block was written to."""
        async with self._taking:  # who takes one is not interrupted: its file would stay open
            if self._task is not None:
                self._task.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        for file in self._taken.values():
            await file.close()
        self._taken.clear()

    async def _take_ahead(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            async with self._taking:  # a write may have taken it meanwhile, and even begun it
                sequence = self._ahead
                if sequence in self._taken or sequence <= self._begun:
                    continue
                try:
                    self._taken[sequence] = await self._pool.take(sequence)
                except (StorageBusy, OSError) as error:  # the write that needs it tries again, and tells
                    log.debug("segment %d was not taken ahead: %s", sequence, error)
