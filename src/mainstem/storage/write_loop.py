"""The turn: closes the open blocks of all groups, writes them in one go, and tells the groups what became durable.

Blocks that leaders sent for the groups that follow ride in the same write as the node's own. One write is under way at
a time; while the disk works, the next blocks fill, and what was proposed is on its way to the followers. A batch
therefore waits for at most the write before its own, and the busier the node the more requests share one fdatasync.
Terms and votes go to their own file first: they change when a leader does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.ports import Clock
from mainstem.raft import HardState
from mainstem.storage.errors import StorageBusy, StorageFailed
from mainstem.storage.hard_states import HardStates
from mainstem.storage.journal.format import BlockHeader
from mainstem.storage.journal.journal import BlockToWrite, Journal
from mainstem.storage.journal_map import JournalMap
from mainstem.storage.write_group import WriteGroup

log = logging.getLogger(__name__)

TURN_BYTES_MAX = 16 << 20
"""Blocks of one group in one turn: keeps a turn to some ten ms of disk time when a backlog has built up."""

BUSY_RETRY_SECONDS = 0.2
"""Between attempts to get a fresh segment from a full disk; space comes from recycling, every second or so."""


class Copy(NamedTuple):
    """A block of a log, to be written once more; `source` is where it lies."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    term: int
    source: int
    block: BlockToWrite


class _Copies(NamedTuple):
    """The undecided end of a write group's log, to be written once more; the future brings how many blocks moved."""

    group: int
    copies: Sequence[Copy]
    moved: asyncio.Future[int]


class WriteLoop:
    """Drives the write groups of one node over one journal."""

    def __init__(
        self,
        journal: Journal,
        groups: Sequence[WriteGroup],
        journal_map: JournalMap,
        hard_states: HardStates,
        clock: Clock,
        committed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`committed` is told of every turn how many seconds its oldest batch waited until it was written."""
        self._journal = journal
        self._map = journal_map
        self._hard_states = hard_states
        self.end = 0
        """Journal position behind the last block the groups know of."""
        self._groups = groups
        self._logs = [group.log for group in groups]
        self._clock = clock
        self._committed = committed
        self._woken_at: float | None = None
        """When the oldest of what is not taken into a turn yet came."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._copies: list[_Copies] = []
        """Asked for by `rewrite` and not taken into a turn yet."""
        self._copying: list[_Copies] = []
        """In the turn that is under way."""
        self.ended: StorageFailed | None = None
        """Why nothing is written any more; None as long as it is."""
        self.failure: StorageFailed | None = None
        """The same, unless it was closed in good order."""
        self.delay_seconds = 0.0
        """Pause before each turn: how disk pressure slows producers down."""
        self.out_of_space = False

    @property
    def backlog_bytes(self) -> int:
        """Appended and not yet applied."""
        pending = 0
        for log in self._logs:  # asked for by every request
            pending += log.pending_bytes
        return pending

    def wake(self) -> None:
        """There is something to write; called from the event loop by whoever appends or proposes."""
        if self.ended is not None:
            return  # nobody would make it idle again, and `close` waits for that
        if self._woken_at is None:  # the first since the last turn began
            self._woken_at = self._clock.monotonic()
            self._idle.clear()
            self._wake.set()

    async def run(self) -> None:
        """Write until `close`; runs as a task of the storage role. However it ends, whoever waits for a block
        is answered."""
        try:
            while not self._closing or self._has_work():
                await self._wake.wait()
                self._wake.clear()
                while self._has_work():
                    if self.delay_seconds and not self._closing:
                        await asyncio.sleep(self.delay_seconds)
                    if not await self._turn():
                        break
                self._woken_at = None
                self._idle.set()
        except Exception as error:
            self._fail(StorageFailed(f"writing ended: {error!r}"))
            raise
        finally:
            self._end(StorageFailed("the storage role is closed"))
            self._idle.set()

    async def rewrite(self, group: int, copies: Sequence[Copy]) -> int:
        """Write the whole undecided end of a group's log once more, at the journal's head and in one go, and let the
        log point there. How many blocks have moved: none when something was decided or came to the log before it was
        their turn. Raises `StorageFailed`."""
        if self.ended is not None:
            raise self.ended
        moved: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._copies.append(_Copies(group, copies, moved))
        self.wake()
        return await moved

    def _take_copies(self) -> list[_Copies]:
        """Those of the copies asked for that are the undecided end of their log now."""
        taken: list[_Copies] = []
        for entry in self._copies:
            group, last = self._groups[entry.group], entry.copies[-1].index
            are_the_end = entry.copies[0].index > group.applied_index and not group.blocks.position_of(last + 1)
            if are_the_end and all(
                group.blocks.position_of(copy.index) == copy.source and group.blocks.term(copy.index) == copy.term
                for copy in entry.copies
            ):
                taken.append(entry)
            elif not entry.moved.done():
                entry.moved.set_result(0)
        self._copies.clear()
        return taken

    def _copied(self, entry: _Copies, headers: Sequence[BlockHeader]) -> None:
        moved = self._groups[entry.group].copied(headers, [copy.source for copy in entry.copies])
        if moved:
            first = min(header.index for header in headers if header.position in moved)
            self._map.superseded(entry.group, first, moved.values())
        for header in headers:
            self._map.add(header, live=header.position in moved)
        if not entry.moved.done():
            entry.moved.set_result(len(moved))

    def _has_work(self) -> bool:
        if self.ended is None:
            if self._copies:
                return True
            for group in self._groups:
                if group.has_work:
                    return True
        return False

    @property
    def applied_end(self) -> int:
        """Journal position before which every block is applied, or dead."""
        positions = (group.blocks.position_of(group.applied_index + 1) for group in self._groups)
        return min((position for position in positions if position), default=self.end)

    async def sync(self) -> None:
        """Make durable what has been committed: under `async` durability a commit alone does not."""
        if self._journal.durable_end < self._journal.end:
            await self._journal.sync()

    async def close(self) -> None:
        """Write what was appended, then stop; whatever comes later is refused."""
        self._closing = True
        if self.ended is None:
            self.wake()
        await self._idle.wait()

    async def _turn(self) -> bool:
        """Write what there is; whether there was anything."""
        woken_at, self._woken_at = self._woken_at, None
        now_ms = self._clock.now_ms()
        groups = self._groups
        try:
            for group in groups:
                if group.consensus.hard_state_due is not None and self.ended is None:
                    await self._save_hard_states()
                    break
            blocks: list[BlockToWrite] = []
            if self.ended is None:
                if self._copies:  # in front: so they end where their log does, whatever of it is written behind them
                    self._copying = self._take_copies()
                    blocks += [copy.block for entry in self._copying for copy in entry.copies]
                for group in groups:
                    if group.has_work:
                        blocks += group.take(now_ms, TURN_BYTES_MAX)
            if not blocks:
                return False
            headers = await self._write(blocks)
        except StorageFailed as failure:
            self._fail(failure)
            return False
        newest: dict[int, BlockHeader] = {}
        first = 0
        for entry in self._copying:
            self._copied(entry, headers[first : first + len(entry.copies)])
            first += len(entry.copies)
        self._copying = []
        for header in headers[first:]:
            live = groups[header.group].written(header)
            self._map.add(header, live=live)
            if live:
                newest[header.group] = header
        self.end = headers[-1].end
        for number, header in newest.items():
            groups[number].flushed(header)
        if woken_at is not None:
            self._committed(self._clock.monotonic() - woken_at)
        return True

    async def _save_hard_states(self) -> None:
        """Make terms and votes durable that are due. Raises `StorageFailed`."""
        due: dict[int, HardState] = {}
        for group in self._groups:
            consensus = group.consensus
            if consensus.hard_state_due is not None:
                due[group.group], consensus.hard_state_due = consensus.hard_state_due, None
        if due:
            await self._hard_states.save(due)
            for number, state in due.items():
                self._groups[number].consensus.hard_state_saved(state)

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
                await self._save_hard_states()  # in place: a node that stores nothing still votes
            else:
                self.out_of_space = False
                return headers

    def give_up(self, failure: StorageFailed) -> None:
        """Nothing more is to be written, or said."""
        self._fail(failure)

    def _fail(self, failure: StorageFailed) -> None:
        log.critical("disk 1 failed, this node accepts no more writes: %s", failure)
        self.failure = failure
        self._end(failure)

    def _end(self, reason: StorageFailed) -> None:
        if self.ended is None:
            self.ended = reason
            for entry in (*self._copying, *self._copies):
                if not entry.moved.done():
                    entry.moved.set_exception(reason)
            self._copies, self._copying = [], []
            for group in self._groups:
                group.fail(reason)
