"""Writes the undecided blocks of a stuck write group again at the journal's head, so that they do not pin the journal.

A write group without a majority commits nothing. Meanwhile its first undecided block would keep its segment, and all
that follow, however much of the other write groups is split. So once the journal has grown by enough behind such a
block, the whole undecided end of the group's log goes through the write loop once more, in the order of the log and in
one write. When the copies are durable the log points to them, and the originals are dead, as if a new leader had
replaced them by the same blocks. No promise is made or taken back: term, index and content stay.

Only the whole end of a log moves, so that the places of a group's blocks still rise with their indexes: indexes of
segments, splits and reads rely on that. A block that is decided while its copy is being written stays where it was.
After a start, blocks that were committed before may be undecided again while their segments have indexes: those indexes
are made anew, without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.ports import Clock
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.encoding.format import offset_of, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.stored_block import StoredPlace, read_block
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_group_blocks import WriteGroupBlocks
from mainstem.storage.write_groups.write_loop import BlockCopy, WriteLoop

log = logging.getLogger(__name__)

SEGMENTS_BEHIND = 2
"""Bytes of journal behind an undecided block before it is written again: a healthy write group has its undecided blocks
in the newest segment, or in the one before where that has just begun."""

UNDECIDED_SECONDS = 5.0
"""…and seconds for which it has been the first undecided block. After a start only the blocks in a checkpoint are known
to be committed; the next leader tells the rest, an election or two later (a second each)."""

GROWTH = 4
"""The journal must have grown by this many times the bytes to be written again: so a stuck write group costs the disk
no more than a quarter of what the others write."""

COPIED_BYTES_MAX = 256 << 20
"""Bytes held in memory and written in one go: four times what a leader takes without a majority
(`write_backlog_bytes_max`). A write group with more pins the journal, and that is logged."""


class UndecidedEnd(NamedTuple):
    """The written, undecided end of a log: its first and last block, and the bytes of all."""

    first: int
    last: int
    bytes: int


def undecided_end(blocks: WriteGroupBlocks, applied_index: int) -> UndecidedEnd | None:
    """The undecided end of a log; None where every written block is applied."""
    first = applied_index + 1
    if not blocks.position_of(first):
        return None
    last, size = applied_index, 0
    while blocks.position_of(last + 1):
        last += 1
        size += blocks.length_of(last)
    return UndecidedEnd(first, last, size)


class Rewriting:
    """Rewrites the undecided ends of a node's write groups; the maintenance calls `round` again and again."""

    def __init__(
        self,
        journal: Journal,
        groups: Sequence[WriteGroup],
        write_loop: WriteLoop,
        clock: Clock,
        may_write: Callable[[], bool],
    ) -> None:
        """`may_write`: whether every version that may start on this directory can read copies that a crash cut off."""
        self._may_write = may_write
        self._journal = journal
        self._clock = clock
        self._since: dict[int, tuple[int, float]] = {}
        """Per write group its first undecided block, and since when it has been the first."""
        self._groups = groups
        self._write_loop = write_loop
        self._refused: dict[int, int] = {}
        """Per write group, the first undecided block at the time it was logged why it cannot be written again."""
        self._outdated: set[int] = set()
        """Segments whose indexes, if there are any, must be made anew."""
        self.rewritten_blocks = 0

    async def round(self) -> None:
        """Rewrite the ends that are due. Raises `OSError`, and `StorageFailed` when writing has ended."""
        if not self._may_write():
            return
        for group in self._groups:
            end = undecided_end(group.blocks, group.applied_index)
            if end is None:
                self._refused.pop(group.group, None)
                self._since.pop(group.group, None)
            elif not self._write_loop.out_of_space and self._is_due(group, end):
                await self._rewrite(group, end)
            if self._outdated:
                await self._journal.index_anew(self._outdated)
                self._outdated.clear()

    def _is_due(self, group: WriteGroup, end: UndecidedEnd) -> bool:
        first, since = self._since.get(group.group, (0, 0.0))
        if first != end.first:
            self._since[group.group] = end.first, self._clock.monotonic()
            return False
        if self._clock.monotonic() - since < UNDECIDED_SECONDS:
            return False
        behind = self._distance(group.blocks.position_of(end.first), self._journal.end)
        return behind >= max(SEGMENTS_BEHIND * self._journal.segment_bytes, GROWTH * end.bytes)

    def _distance(self, start: int, end: int) -> int:
        whole = (sequence_of(end) - sequence_of(start)) * self._journal.segment_bytes
        return whole + offset_of(end) - offset_of(start)

    async def _rewrite(self, group: WriteGroup, end: UndecidedEnd) -> None:
        if end.bytes > COPIED_BYTES_MAX:
            self._refuse(group, end, f"{end.bytes} bytes are more than {COPIED_BYTES_MAX}")
            return
        try:
            copies = [await self._copy(group, index) for index in range(end.first, end.last + 1)]
        except StorageError as error:  # gone: decided or replaced meanwhile; damaged: the error names it
            if group.applied_index < end.first:
                self._refuse(group, end, str(error))
            return
        moved = await self._write_loop.rewrite(group.group, copies)
        if moved:
            self._outdated |= {sequence_of(copy.source) for copy in copies}
            self.rewritten_blocks += moved
            log.info(
                "write group %d has had no majority for long: its undecided blocks from %d to %d were written again at "
                "the journal's head, so that the segments before can go",
                group.group,
                end.last - moved + 1,
                end.last,
            )

    async def _copy(self, group: WriteGroup, index: int) -> BlockCopy:
        """Raises `StorageError` when the block cannot be read, or is not in the log any more."""
        blocks = group.blocks
        source = blocks.position_of(index)
        if not source:
            raise StorageError(f"block {index} is not in the log any more")
        term, held = blocks.term(index), blocks.held(index)
        if held is not None and held.payload is not None:
            return BlockCopy(index, term, source, held.to_write(group.group))
        place = StoredPlace(group.group, term, index, source, blocks.length_of(index))
        return BlockCopy(index, term, source, (await read_block(self._journal, place)).to_write())

    def _refuse(self, group: WriteGroup, end: UndecidedEnd, why: str) -> None:
        if self._refused.get(group.group) != end.first:
            self._refused[group.group] = end.first
            log.error(
                "write group %d: its blocks from %d on wait for a majority and cannot be written again at the "
                "journal's head: %s. The journal keeps every segment from them on",
                group.group,
                end.first,
                why,
            )
