"""The log of one write group as its consensus core sees it: the term, kind and place of every block that the journal
still has.

The log costs some 20 bytes per block, in plain arrays. It holds the blocks themselves only until they are applied and,
for followers, a stretch longer; older blocks are read back from the journal by their place. A block that a new leader
replaced leaves the log here and stays in the journal as a dead block; `truncate` and `written` report dead blocks,
because every reader of the journal must skip them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.raft import Compacted, Entry, Membership, Snapshot, Unavailable
from mainstem.storage.journal.encoding.format import KIND_DATA, KIND_MEMBERSHIP, BlockHeader
from mainstem.storage.write_groups.log_block import LogBlock

HELD_BYTES_MAX = 16 << 20
"""Bytes of applied blocks held for followers, per write group: some round trips of the fastest load; the write cache
shares them."""


class BlockPlace(NamedTuple):
    """The place of a block that is in the journal and no longer in memory."""

    position: int
    length: int


class LogImage(NamedTuple):
    """A log as a checkpoint keeps it; the arrays are little-endian bytes."""

    first: int
    base_term: int
    terms: bytes
    kinds: bytes
    positions: bytes
    lengths: bytes
    memberships: list[tuple[int, list[int], list[int]]]
    """(index, voters, learners), the first at or before the log's beginning."""


class WriteGroupBlocks:
    """The `raft.LogStore` of one write group: the places of its blocks, and the newest blocks themselves."""

    def __init__(self) -> None:
        self._first = 1
        self._base_term = 0
        """Term of the block right before the first."""
        self._terms = array("Q")
        self._kinds = array("B")
        self._positions = array("Q")
        """Journal position of each block; 0: not written yet."""
        self._lengths = array("I")
        self.to_write: deque[LogBlock] = deque()
        """Blocks that are not handed to the journal yet, in order."""
        self._held: dict[int, LogBlock] = {}
        self._applied: deque[LogBlock] = deque()
        """Blocks that are applied and still held, oldest first."""
        self._applied_bytes = 0
        self._snapshot_index: Callable[[], int] = lambda: -1
        self.memberships: dict[int, Membership] = {}
        """Memberships by the index of their block; the first is at or before the log's beginning."""

    def snapshots_come_from(self, snapshot_index: Callable[[], int]) -> None:
        """`snapshot_index` returns the last block that is in the runs of the write group; -1: this node can give no
        snapshot, as before this is called."""
        self._snapshot_index = snapshot_index

    # --- what the core asks -------------------------------------------------------------------------------

    def first_index(self) -> int:
        return self._first

    def last_index(self) -> int:
        return self._first + len(self._terms) - 1

    def term(self, index: int) -> int:
        if index == self._first - 1:
            return self._base_term
        return self._terms[self._row(index)]

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        self._row(last)
        found: list[Entry] = []
        for row in range(self._row(first), last - self._first + 1):
            index = row + self._first
            held = self._held.get(index)
            size = held.size if held is not None else self._lengths[row]
            bytes_max -= size
            if found and bytes_max < 0:
                break
            data: object = held if held is not None else BlockPlace(self._positions[row], self._lengths[row])
            if self._kinds[row] == KIND_MEMBERSHIP:
                data = self.memberships[index]
            found.append(Entry(self._terms[row], index, self._kinds[row], size, data))
        return found

    def snapshot(self) -> Snapshot:
        """The snapshot this node can give: the runs have everything up to its index, and the log here goes on behind
        it."""
        index = self._snapshot_index()
        if index < 0:
            raise Unavailable("this node has no snapshot to give")
        index = max(index, self._first - 1)
        return Snapshot(index, self.term(index), self.membership_at(index))

    def membership_at(self, index: int) -> Membership:
        """The membership in force at a block of the log, or right before the log."""
        return self.memberships[max(at for at in self.memberships if at <= index)]

    def _row(self, index: int) -> int:
        if index < self._first:
            raise Compacted(f"block {index}: the journal begins at {self._first}")
        if index > self.last_index():
            raise Unavailable(f"block {index}: the last is {self.last_index()}")
        return index - self._first

    # --- what happens to the log --------------------------------------------------------------------------

    def append(self, block: LogBlock) -> None:
        """Add the next block, which is on its way to the journal or was read back from it."""
        assert block.index == self._first + len(self._terms), (block.index, self.last_index())
        header = block.header
        self._terms.append(block.term)
        self._kinds.append(block.kind)
        self._positions.append(header.position if header is not None else 0)
        self._lengths.append(header.length if header is not None else 0)
        self._held[block.index] = block
        if header is None:
            self.to_write.append(block)
        if block.membership is not None:
            self.memberships[block.index] = block.membership

    def truncate(self, first: int) -> tuple[list[LogBlock], list[int]]:
        """Drop block `first` and all behind it. Returns the dropped blocks that were held, and the places of those in
        the journal."""
        row = self._row(first)
        dropped = [self._held.pop(index) for index in range(first, self.last_index() + 1) if index in self._held]
        places = [position for position in self._positions[row:] if position]
        self.to_write = deque(block for block in self.to_write if block.index < first)
        for column in (self._terms, self._kinds, self._positions, self._lengths):
            del column[row:]
        for index in [index for index in self.memberships if index >= first]:
            del self.memberships[index]
        return dropped, places

    def written(self, header: BlockHeader) -> bool:
        """Note that a block lies in the journal. Returns False when the log has dropped it meanwhile."""
        index = header.index
        row = index - self._first
        if not 0 <= row < len(self._terms) or self._terms[row] != header.term or self._positions[row]:
            return False
        self._positions[row] = header.position
        self._lengths[row] = header.length
        held = self._held.get(index)
        if held is not None:
            held.header = header
        return True

    def held(self, index: int) -> LogBlock | None:
        return self._held.get(index)

    def all_held(self) -> list[LogBlock]:
        """Every block in memory, applied or not."""
        return list(self._held.values())

    def unapplied(self, applied_index: int) -> list[LogBlock]:
        """The blocks behind the applied one; all are held."""
        return [self._held[index] for index in range(applied_index + 1, self.last_index() + 1)]

    def position_of(self, index: int) -> int:
        """Journal position of a block; 0 while it is not written, or when the log does not reach so far."""
        return self._positions[index - self._first] if self._first <= index <= self.last_index() else 0

    def length_of(self, index: int) -> int:
        """Bytes of a block in the journal; 0 while it is not written, or when the log does not reach so far."""
        return self._lengths[index - self._first] if self._first <= index <= self.last_index() else 0

    def kind_of(self, index: int) -> int:
        """Kind of a block of the log."""
        return self._kinds[self._row(index)]

    def last_data_before(self, index: int) -> int:
        """Index of the last data block before a block; 0: the log has none there."""
        end = min(index, self.last_index() + 1) - self._first
        return self._first + row if end > 0 and (row := self._kinds[:end].tobytes().rfind(KIND_DATA)) >= 0 else 0

    def next_position(self, position: int) -> int:
        """Journal position of the log's first block behind a journal position; 0: there is none."""
        return min((place for place in self._positions if place > position), default=0)

    def index_at(self, position: int) -> int:
        """Index of the block that covers a journal position; 0 when none does. Positions rise with indexes."""
        written = len(self._positions)
        while written and not self._positions[written - 1]:
            written -= 1
        row = bisect_right(self._positions, position, hi=written) - 1
        inside = row >= 0 and position < self._positions[row] + self._lengths[row]
        return row + self._first if inside else 0

    def indexes_between(self, start: int, end: int) -> range:
        """Indexes of the blocks that lie at journal positions from `start` up to but without `end`."""
        written = len(self._positions)
        while written and not self._positions[written - 1]:
            written -= 1
        first = bisect_left(self._positions, start, hi=written)
        return range(first + self._first, bisect_left(self._positions, end, lo=first, hi=written) + self._first)

    def is_copy(self, header: BlockHeader) -> bool:
        """Whether a block found in the journal is a block of the log that was written again at a later place."""
        row = header.index - self._first
        if not 0 <= row < len(self._terms):
            return False
        return self._terms[row] == header.term and 0 < self._positions[row] < header.position

    def moved(self, header: BlockHeader) -> int:
        """Let the log point to the place in this header. Returns the block's former journal position."""
        row = header.index - self._first
        before = self._positions[row]
        self._positions[row], self._lengths[row] = header.position, header.length
        held = self._held.get(header.index)
        if held is not None:
            held.header = header
        return before

    def applied(self, block: LogBlock, *, followed: bool) -> None:
        """Note that a block is applied. It is held on, for a bounded time, only if other nodes follow (`followed`)."""
        if not followed:
            del self._held[block.index]
            return
        self._applied.append(block)
        self._applied_bytes += block.size
        while self._applied_bytes > HELD_BYTES_MAX:
            oldest = self._applied.popleft()
            self._applied_bytes -= oldest.size
            if self._held.get(oldest.index) is oldest:
                del self._held[oldest.index]

    def forget_to(self, index: int) -> None:
        """Forget the blocks up to this one: the journal does not have them any more."""
        count = min(index, self.last_index()) - self._first + 1
        if count <= 0:
            return
        self._base_term = self._terms[count - 1]
        for column in (self._terms, self._kinds, self._positions, self._lengths):
            del column[:count]
        self._first += count
        past = [at for at in sorted(self.memberships) if at < self._first]
        for at in past[:-1]:
            del self.memberships[at]

    @property
    def is_written(self) -> bool:
        """Whether every block lies in the journal."""
        return not self._positions or self._positions[-1] != 0

    def places(self) -> list[int]:
        """Journal positions of all blocks that are written."""
        return [position for position in self._positions if position]

    def begin_behind(self, index: int, term: int) -> None:
        """Empty the log; its next block is the block behind `index`, whose term was `term`."""
        for column in (self._terms, self._kinds, self._positions, self._lengths):
            del column[:]
        self.to_write.clear()
        self._held.clear()
        self._applied.clear()
        self._first, self._base_term, self._applied_bytes = index + 1, term, 0

    # --- checkpoint ---------------------------------------------------------------------------------------

    def dump(self) -> LogImage:
        """Return the log, as far as it is written, for a checkpoint."""
        count = next((row for row in range(len(self._terms), 0, -1) if self._positions[row - 1]), 0)
        end = self._first + count
        return LogImage(
            self._first,
            self._base_term,
            self._terms[:count].tobytes(),
            self._kinds[:count].tobytes(),
            self._positions[:count].tobytes(),
            self._lengths[:count].tobytes(),
            [
                (index, sorted(one.voters), sorted(one.learners))
                for index, one in sorted(self.memberships.items())
                if index < end
            ],
        )

    def load(self, image: LogImage) -> None:
        self._first, self._base_term = image.first, image.base_term
        columns = ((self._terms, image.terms), (self._kinds, image.kinds))
        places = ((self._positions, image.positions), (self._lengths, image.lengths))
        for column, content in (*columns, *places):
            column.frombytes(content)
        self.memberships = {index: Membership.of(voters, learners) for index, voters, learners in image.memberships}

    def read_again(self, block: LogBlock) -> int:
        """Take over the place of a copy that recovery found in the journal. Returns the block's former journal
        position."""
        assert block.header is not None
        if block.index in self._held:
            self._held[block.index] = block
        return self.moved(block.header)

    def read_back(self, block: LogBlock) -> list[int]:
        """Add a block that recovery found, in the journal's order: it goes behind the log, or in the place of the block
        it replaced. Returns the journal positions of the replaced blocks; raises `Unavailable` if blocks before it are
        missing."""
        header = block.header
        assert header is not None
        dead: list[int] = []
        if header.index < self._first:
            return dead
        if header.index > self.last_index() + 1:
            raise Unavailable(f"block {header.index}, but block {self.last_index() + 1} was expected")
        if header.index <= self.last_index():
            row = header.index - self._first
            if self._positions[row] == header.position:
                self._held[header.index] = block
                return dead
            if self._positions[row] > header.position:  # the checkpointed log knows of a block that came later
                return [header.position]
            _dropped, dead = self.truncate(header.index)
        self.append(block)
        return dead
