"""The write loop closes the open blocks of all write groups, writes them to the journal in one go, and tells the write
groups which blocks became durable.

One pass of this is a turn. Blocks that other nodes' leaders sent are written together with the blocks this node leads.
One write is under way at a time; while the disk works, the next blocks fill, and the proposed blocks are on their way
to the followers. A batch therefore waits for at most the write before its own, and the busier the node, the more
requests share one fdatasync. The write loop saves terms and votes first, to a file of their own; they change only with
a leader.

When the disk fails, the write loop writes nothing any more and acknowledges no block that was not durable by then. It
hands this node's leaderships to other nodes, whose disks hold what this node sent them; then it ends the write groups
here and tells the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.model import Durability
from mainstem.ports import Clock
from mainstem.raft import HardState
from mainstem.storage.errors import StorageBusy, StorageFailed
from mainstem.storage.journal.encoding.format import BlockHeader
from mainstem.storage.journal.journal import BlockToWrite, Journal
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.write_groups.hard_states import HardStates
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

TURN_BYTES_MAX = 16 << 20
"""The most that one write group writes in one turn: keeps a turn to some ten ms of disk time when a backlog has built
up."""

LITTLE_BYTES_MAX = 64 * 1024
"""Blocks of a write group that are no larger together are written before those of others, where nothing is synced: a
few pages, 20 µs…"""

MUCH_BYTES_MIN = 256 * 1024
"""…if so much waits in all: else one write is sooner over than two."""

BUSY_RETRY_SECONDS = 0.2
"""The pause between attempts to get a fresh segment from a full disk; recycling frees space every second or so."""

HAND_OVER_SECONDS_MAX = 0.5
"""How long the node waits for others to take its leaderships over after its disk failed: a healthy follower takes over
within some round trips; without one, an election is due by then anyway."""
HAND_OVER_STEP_SECONDS = 0.005


class BlockCopy(NamedTuple):
    """A block of a log that is written to the journal once more; `source` is the place where it lies."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called
    term: int
    source: int
    block: BlockToWrite


class _Copies(NamedTuple):
    """The undecided end of a write group's log, which is written once more; the future brings how many blocks moved."""

    group: int
    copies: Sequence[BlockCopy]
    moved: asyncio.Future[int]


class WriteLoop:
    """Writes the blocks of a node's write groups to its one journal, turn after turn, from `run` until `close`."""

    def __init__(
        self,
        journal: Journal,
        groups: Sequence[WriteGroup],
        journal_map: JournalMap,
        hard_states: HardStates,
        clock: Clock,
        committed: Callable[[float], None] = lambda seconds: None,
        disk_failed: Callable[[str], object] = lambda reason: None,
    ) -> None:
        """After every turn, `committed` is called with the seconds that the turn's oldest batch waited until it was
        written. `disk_failed` is called once after the disk has failed, when the node's leaderships are handed over or
        cannot be."""
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
        """When the oldest batch that no turn has taken yet arrived; None: there is none."""
        self._sleeps: asyncio.Future[None] | None = None
        """Ends the loop's sleep; None: it does not sleep."""
        self._runs = False
        self._stopped = asyncio.Event()
        """Set when the loop has ended."""
        self._closing = False
        self._copies: list[_Copies] = []
        """Copies that `rewrite` asked for and no turn has taken yet."""
        self._copying: list[_Copies] = []
        """Copies in the turn that is under way."""
        self.ended: StorageFailed | None = None
        """The error that ended writing; None while the loop writes."""
        self.failure: StorageFailed | None = None
        """The failure that ended writing; None while the loop writes, and after a close in good order."""
        self._disk_failed = disk_failed
        self._found_failed: StorageFailed | None = None
        """A disk failure that was found outside this loop; None: there is none."""
        self.delay_seconds = 0.0
        """Seconds the loop pauses before each turn: this is how disk pressure slows producers down."""
        self.out_of_space = False

    def grow(self) -> None:
        """There are more write groups than before."""
        self._logs = [group.log for group in self._groups]

    @property
    def backlog_bytes(self) -> int:
        """Bytes of batches that are appended and not yet applied, in all write groups."""
        pending = 0
        for log in self._logs:  # every request calls this
            pending += log.pending_bytes
        return pending

    def lacks_memory(self) -> bool:
        """Whether a writer that can wait had better do so (`Journal.lacks_memory`)."""
        return self._journal.lacks_memory()

    def recovered(self, end: int) -> None:
        """A start has put the journal's blocks up to position `end` behind their logs; call it before `run`."""
        assert self.end == 0, "a start recovers once, before anything is written"
        self.end = end

    def wake(self) -> None:
        """Have the loop take a turn. A caller that appends or proposes calls this, on the event loop."""
        if self.ended is not None:
            return
        if self._woken_at is None:  # the first call since the last turn began
            self._woken_at = self._clock.monotonic()
            self._end_sleep()

    async def run(self) -> None:
        """Write until `close`; runs as a task of the storage role. However it ends, it answers everybody who waits for
        a block."""
        self._runs = True
        try:
            while self.ended is None and (not self._closing or self._due() is not None):
                await self._sleep()
                while (due := self._due()) is not None:
                    if self.delay_seconds and not self._closing:
                        await asyncio.sleep(self.delay_seconds)
                        due = self._due() or due
                    if not await self._turn(due):
                        if self._closing:
                            return  # what is left waits for others, of whom no more may come
                        break
                    if self._woken_at is None and self._took_all(due):
                        break
                else:
                    self._woken_at = None
        except Exception as error:
            self._fail(StorageFailed(f"writing ended: {error!r}"))
            raise
        finally:
            self._end(StorageFailed("the storage role is closed"))
            self._runs = False
            self._stopped.set()

    async def _sleep(self) -> None:
        """Return once somebody calls `wake`, or has called it since the last turn began; at once while the loop
        closes."""
        if self._woken_at is None and not self._closing:
            self._sleeps = asyncio.get_running_loop().create_future()
            try:
                await self._sleeps
            finally:
                self._sleeps = None

    def _end_sleep(self) -> None:
        if self._sleeps is not None and not self._sleeps.done():
            self._sleeps.set_result(None)

    def _took_all(self, due: Sequence[WriteGroup]) -> bool:
        """Whether the last turn left nothing for another, of these write groups or of the loop's own."""
        if self._found_failed is not None or self._copies:
            return False
        return not any(group.blocks.to_write or group.consensus.hard_state_due is not None for group in due)

    def disk_has_failed(self, failure: StorageFailed) -> None:
        """Take note that the journal failed outside a write of this loop: a background sync failed."""
        if self.ended is None:
            self._found_failed = failure
            self.wake()

    async def rewrite(self, group: int, copies: Sequence[BlockCopy]) -> int:
        """Write the whole undecided end of a write group's log once more, at the journal's head and in one go, and let
        the log point there. Returns how many blocks moved: 0 when a block was decided or added to the log before the
        turn. Raises `StorageFailed`."""
        if self.ended is not None:
            raise self.ended
        moved: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._copies.append(_Copies(group, copies, moved))
        self.wake()
        return await moved

    def _take_copies(self) -> list[_Copies]:
        """The requested copies that are the undecided end of their log at this moment."""
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
            last_data = self._groups[entry.group].blocks.last_data_before(first)
            self._map.superseded(entry.group, first, moved.values(), last_data)
        for header in headers:
            self._map.add(header, live=header.position in moved)
        if not entry.moved.done():
            entry.moved.set_result(len(moved))

    def _due(self) -> list[WriteGroup] | None:
        """The write groups whose turn it is; None: there is nothing to do for the loop."""
        if self.ended is not None:
            return None
        due = [group for group in self._groups if group.has_work]
        return due if due or self._copies or self._found_failed is not None else None

    @property
    def applied_end(self) -> int:
        """Journal position before which every block is applied, or dead."""
        positions = (group.blocks.position_of(group.applied_index + 1) for group in self._groups)
        return min((position for position in positions if position), default=self.end)

    async def sync(self) -> None:
        """Make everything durable that was committed; under `async` durability a commit alone is not durable."""
        if self._journal.durable_end < self._journal.end:
            await self._journal.sync()

    async def close(self) -> None:
        """Write what was appended, then stop and refuse every later append."""
        self._closing = True
        if self.ended is None:
            self.wake()
        if self.ended is None or self._runs:
            await self._stopped.wait()

    async def _turn(self, due: list[WriteGroup]) -> bool:
        """Write what these write groups have, and those that come to `due` while votes are saved; returns whether there
        was anything."""
        woken_at, self._woken_at = self._woken_at, None
        now_ms = self._clock.now_ms()
        try:
            if self._found_failed is not None:
                raise self._found_failed
            for group in due:
                if group.consensus.hard_state_due is not None and self.ended is None:
                    await self._save_hard_states()
                    due[:] = self._due() or ()
                    break
            parts: list[list[BlockToWrite]] = []
            votes = False
            if self.ended is None:
                parts = self._take(due, now_ms)
                votes = any(group.consensus.hard_state_due is not None for group in due)
                if not votes and self._found_failed is None:
                    self._woken_at = None  # by what was proposed just now, and taken
            if not parts:
                return votes
            for blocks in parts:
                self._note_written(await self._write(blocks))
        except StorageFailed as failure:
            await self._leave(failure)
            return False
        if woken_at is not None:
            self._committed(self._clock.monotonic() - woken_at)
        return True

    def _take(self, due: Sequence[WriteGroup], now_ms: int) -> list[list[BlockToWrite]]:
        """The blocks to write, in one go or, where what is little need not wait for what is much, in two."""
        copies: list[BlockToWrite] = []
        if self._copies:  # in front, so that copies end where their log ends, whatever is written behind
            self._copying = self._take_copies()
            copies = [copy.block for entry in self._copying for copy in entry.copies]
        apart = self.backlog_bytes >= MUCH_BYTES_MIN and not copies and self._journal.durability is Durability.ASYNC
        little: list[BlockToWrite] = []
        others = copies
        for group in due:
            if group.consensus.hard_state_due is not None:
                continue  # it came while others' votes were saved, and goes first: no start takes a log without votes
            is_little = apart and group.log.pending_bytes <= LITTLE_BYTES_MAX
            (little if is_little else others).extend(group.take(now_ms, TURN_BYTES_MAX))
        return [blocks for blocks in (little, others) if blocks]

    def _note_written(self, headers: Sequence[BlockHeader]) -> None:
        """Tell the write groups of blocks that the journal has."""
        groups = self._groups
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

    async def _save_hard_states(self) -> None:
        """Write the terms and votes that are due to their file, durably. Raises `StorageFailed`."""
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
        """Write the blocks, and wait for space when the disk is full: none of them was acknowledged, so nothing is
        lost."""
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
                await self._save_hard_states()  # written in place: a node that can store nothing still votes
            else:
                self.out_of_space = False
                return headers

    def give_up(self, failure: StorageFailed) -> None:
        """Stop: write nothing more, and send nothing more to other nodes."""
        self._fail(failure)

    async def _leave(self, failure: StorageFailed) -> None:
        """After a disk failure, have other nodes lead what this node leads, then end all write groups here."""
        if self.ended is not None:
            return  # given up meanwhile: nothing may be sent any more
        self.failure = failure
        log.critical("disk 1 failed, this node accepts no more writes: %s", failure)
        try:
            if not self._closing:
                await self._hand_over()
        finally:
            self._end(failure)
        self._disk_failed(str(failure))

    async def _hand_over(self) -> None:
        asked = [group for group in self._groups if group.consensus.leads and group.consensus.give_way()]
        for _ in range(round(HAND_OVER_SECONDS_MAX / HAND_OVER_STEP_SECONDS)):
            if self.ended is not None or not any(group.consensus.leads for group in asked):
                return
            await asyncio.sleep(HAND_OVER_STEP_SECONDS)

    def _fail(self, failure: StorageFailed) -> None:
        log.critical("this node accepts no more writes: %s", failure)
        self.failure = failure
        self._end(failure)

    def _end(self, reason: StorageFailed) -> None:
        if self.ended is None:
            self.ended = reason
            self._end_sleep()
            for entry in (*self._copying, *self._copies):
                if not entry.moved.done():
                    entry.moved.set_exception(reason)
            self._copies, self._copying = [], []
            for group in self._groups:
                group.fail(reason)
