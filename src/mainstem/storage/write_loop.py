"""The turn: closes the open blocks of all groups, writes them in one go, and applies what became durable.

One write is under way at a time; while the disk works, the next blocks fill. A batch therefore waits for at
most the write before its own, and the busier the node the more requests share one fdatasync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mainstem.model import Outcome
from mainstem.ports import Clock
from mainstem.storage.errors import StorageBusy, StorageFailed
from mainstem.storage.journal.format import BlockHeader
from mainstem.storage.journal.journal import BlockToWrite, Journal
from mainstem.storage.write_group import WriteGroup

log = logging.getLogger(__name__)

TURN_BYTES_MAX = 16 << 20
"""Blocks of one group in one turn: keeps a turn to some ten ms of disk time when a backlog has built up."""

BUSY_RETRY_SECONDS = 0.2
"""Between attempts to get a fresh segment from a full disk; space comes from recycling, every second or so."""


class WriteLoop:
    """Drives the write groups of one node over one journal."""

    def __init__(self, journal: Journal, groups: Sequence[WriteGroup], clock: Clock) -> None:
        self._journal = journal
        self._groups = groups
        self._clock = clock
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self.failure: StorageFailed | None = None
        self.delay_seconds = 0.0
        """Pause before each turn: how disk pressure slows producers down."""
        self.out_of_space = False
        self.backlog_bytes = 0
        """Appended and not yet durable."""
        self.on_applied: list[Callable[[], None]] = []

    def wake(self) -> None:
        """There is something to write; called from the event loop by whoever appends or proposes."""
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Write until `close`; runs as a task of the storage role."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.failure is None and any(group.has_work for group in self._groups):
                if self.delay_seconds and not self._closing:
                    await asyncio.sleep(self.delay_seconds)
                await self._turn()
            self._idle.set()
            if self._closing:
                return

    async def close(self) -> None:
        """Write what was appended, then stop."""
        self._closing = True
        self.wake()
        await self._idle.wait()

    async def _turn(self) -> None:
        now_ms = self._clock.now_ms()
        blocks: list[BlockToWrite] = []
        for group in self._groups:
            if group.has_work:
                blocks += group.take(now_ms, TURN_BYTES_MAX)
        size = sum(sum(map(len, block.payload)) for block in blocks)
        try:
            headers = await self._write(blocks)
        except StorageFailed as failure:
            self._fail(failure)
            return
        self.backlog_bytes = max(0, self.backlog_bytes - size)
        groups = self._groups
        for header in headers:
            groups[header.group].durable(header)
        for listener in self.on_applied:
            listener()

    async def _write(self, blocks: list[BlockToWrite]) -> list[BlockHeader]:
        """Write, waiting for space when the disk is full: nothing of it was acknowledged, nothing is lost."""
        while True:
            try:
                headers = await self._journal.write(blocks)
            except StorageBusy as busy:
                if self._closing:
                    raise StorageFailed(f"closing while the disk is full: {busy}") from busy
                if not self.out_of_space:
                    log.error("disk 1 has no room for another journal segment; produce is refused: %s", busy)
                self.out_of_space = True
                await asyncio.sleep(BUSY_RETRY_SECONDS)
            else:
                self.out_of_space = False
                return headers

    def _fail(self, failure: StorageFailed) -> None:
        log.critical("disk 1 failed, this node accepts no more writes: %s", failure)
        self.failure = failure
        self.backlog_bytes = 0
        for group in self._groups:
            group.fail(Outcome.STORAGE_FAILED, failure)
