"""Recovery finds the end of the journal after a stop, and tells a torn tail from corruption.

It walks the blocks in order. Each block states up to where the journal was durable when it was written, so recovery
holds blocks back until a later one vouches for them. The blocks that none vouches for are the tail: it may be torn, and
its batches are checked one by one. At the end of the walk, recovery searches everything behind for blocks, chained or
not:

    a block found anywhere claims durability beyond the place   corruption: refused, nothing is changed, unless the
                                                                caller lets the walk step over what cannot be read
    none does                                                   the tail was torn here: the journal ends

A tail that was torn looks the same as one in which a bit went bad after it was acknowledged. The caller is told before
anything is changed, if something of this journal lies where it ends: a block in its place that fails a check, the
beginning of one, or blocks behind it. Zeros, and what a segment's former life left there, are no such thing.

Repair makes the end final. It removes the segments behind it, zeroes everything behind it that still looks like a
block, and writes the tail once more and syncs it: the page cache may hold pages that a failed sync has dropped. A block
that was cut off can therefore never come back, and all remaining blocks are durable.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from mainstem.ports import File, Files
from mainstem.storage.errors import CorruptJournal, FormatError, JournalHole
from mainstem.storage.journal.encoding.blocks import batches_fault, begins_block, block_at, places_in
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    FIRST_BLOCK,
    KIND_DATA,
    PAGE_BYTES,
    BlockHeader,
    aligned,
    offset_of,
    position_of,
    sequence_of,
)
from mainstem.storage.journal.segments.inventory import FoundSegment
from mainstem.storage.journal.segments.segment_files import SegmentFiles, index_path, segment_path
from mainstem.storage.journal.segments.segment_walk import Block, SegmentWalk

log = logging.getLogger(__name__)

Visit = Callable[[BlockHeader, bytes, bytes], None]

HOLES_MAX = 64
"""The most holes that one recovery steps over: each costs a search through the rest of the journal. A disk with more is
beyond what a start can judge."""

CHUNK_BYTES = 1 << 20
"""Bytes searched, or written again, at once: memory for more comes fresh from the system, page by page, each time."""


class RecoveryReport(NamedTuple):
    """The result of a recovery: where the journal ends, why, and what was visited and cut off."""

    end: int
    """Journal position behind the last block."""
    blocks: int
    """How many blocks were given to `visit`."""
    tail_blocks: int
    """How many of them neither a later block nor a checkpoint vouches for; their batches were checked."""
    cut_blocks: int
    """Blocks behind the end that were readable and were cut off: none was acknowledged as durable."""
    removed_segments: int
    fault: str
    """The reason why the journal ends there."""


class Hole(NamedTuple):
    """A stretch of the journal that the walk cannot read; the journal itself does not tell what lay there."""

    start: int
    """Journal position behind the last block before it."""
    end: int
    """Journal position of the first readable block behind it, perhaps in a later segment."""
    claimed: BlockHeader | None
    """The header at `start`, as far as it still looks like that of the single block that was there; its checksum
    fails."""


StepOver = Callable[[Hole], None]

BeforeCut = Callable[[str], Awaitable[None]]
"""Told where the journal ends and why, for people, before what lies behind it is made unreadable."""


class RecoveredJournal(NamedTuple):
    report: RecoveryReport
    crc: int
    """CRC of the last block's header, which the next block chains to."""
    ends: dict[int, int]
    """Byte offset where the blocks of each walked segment end, by sequence; the journal goes on in the last."""


class _Stop(NamedTuple):
    """The point where the walk stopped: the journal's end if no block vouches for more, and the place that is at
    fault."""

    end: int
    place: int
    fault: str
    fault_at_end: str
    """The fault at `end`, where its segment ends. `fault` is another one if the next segment is at fault."""


class _Behind(NamedTuple):
    """Blocks found behind a place, whether chained or not."""

    claim: int
    """The highest durability any of them claims."""
    blocks: int
    first_index: dict[int, int]
    """Block index of the first one found per write group."""
    first_position: int
    """Journal position of the first block found; 0: there is none."""
    own: int
    """Of the blocks, those in the first segment searched."""
    marks_end: int
    """In the first segment searched, the byte offset behind the last thing that looks like a block header."""


class JournalRecovery:
    """Runs one recovery. `durable` is a journal position known to be durable from elsewhere."""

    def __init__(self, files: Files, handles: SegmentFiles, segments: Sequence[FoundSegment], durable: int) -> None:
        self._files = files
        self._handles = handles
        self._segments = segments
        self._durable = durable
        self._held: deque[Block] = deque()
        self._chain = 0
        """CRC of the last block walked."""
        self._crc = 0
        """CRC of the last block visited or skipped."""
        self._last_index: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._blocks = 0

    async def run(
        self, start: int, visit: Visit, step_over: StepOver | None = None, before_cut: BeforeCut | None = None
    ) -> RecoveredJournal:
        """Walk from `start`, visit, repair. With `step_over`, the walk calls it for every durable place that cannot be
        read, between the blocks before and behind that place, and goes on. `before_cut` is awaited, after the last
        visit and before anything is changed, if blocks are cut off, whole or not. Raises `CorruptJournal` before
        anything is changed."""
        self._durable = max(self._durable, start)
        stop, behind = await self._judged(await self._walk(start, visit))
        for holes in range(HOLES_MAX + 1):
            if max(self._durable, behind.claim) <= stop.place:
                break
            if step_over is None or not behind.first_position or holes == HOLES_MAX:
                raise self._corrupt(stop, behind)
            self._durable = max(self._durable, behind.claim)
            self._release(visit)
            assert not self._held, "all blocks before a durable place are durable"
            hole = Hole(stop.end, behind.first_position, await self._claimed(stop.end, behind.first_position))
            log.error("%s: %s; the walk goes on at %s", _where(stop.place), stop.fault, _where(hole.end))
            step_over(hole)
            self._passed(hole)
            stop, behind = await self._judged(await self._walk_behind(hole, start, visit))
        self._durable = max(self._durable, behind.claim)
        self._release(visit)
        vouched = self._blocks
        tail_start = self._held[0].header.position if self._held else stop.end
        end, fault = await self._check_tail(stop, visit)
        if end < stop.end:
            behind = await self._search(end)
        if before_cut is not None and (end < stop.end or await self._cuts(end, behind)):
            await before_cut(f"{_where(end)}: {fault}")
        removed = await self._repair(tail_start, end, behind.marks_end)
        end = end if self._ends else 0
        never_begun = sum(segment.header is None for segment in self._segments if segment.sequence > sequence_of(end))
        if behind.blocks or removed > never_begun:  # the one that was taken ahead has nothing to tell of
            log.warning(
                "%s: the journal ends here (%s); %d blocks behind it and %d segments were cut off, none "
                "of them known to be durable",
                _where(end),
                fault,
                behind.blocks,
                removed,
            )
        report = RecoveryReport(end, self._blocks, self._blocks - vouched, behind.blocks, removed, fault)
        return RecoveredJournal(report, self._crc, self._ends)

    # --- walk ---------------------------------------------------------------------------------------------

    def _walked(self, start: int) -> Sequence[FoundSegment]:
        """The segments from the one that holds `start` on, or the one before should its header be damaged; all
        of them when `start` is older than the journal."""
        sequence = sequence_of(start)
        if start and (not self._segments or self._segments[-1].sequence < sequence):
            raise CorruptJournal(
                f"{segment_path(sequence)}: missing, while the checkpoint needs it from byte {offset_of(start)} "
                "on; restore it, or remove the checkpoint too to start empty"
            )
        first = max(
            (number for number, segment in enumerate(self._segments) if segment.sequence <= sequence), default=0
        )
        while first and self._segments[first].header is None:
            first -= 1
        return self._segments[first:]

    async def _walk(self, start: int, visit: Visit) -> _Stop:
        """Walk as far as the chain goes, and visit the blocks that a later one vouches for."""
        segments = self._walked(start)
        if start and segments and segments[0].sequence > sequence_of(start):
            return _Stop(start, start, "the segment is missing", "")
        return await self._walk_segments(segments, start, visit, _Stop(0, 0, "the journal is empty", ""), 0)

    async def _walk_behind(self, hole: Hole, start: int, visit: Visit) -> _Stop:
        """Go on behind a hole. No chain can be checked for the first block there."""
        sequence = sequence_of(hole.end)
        number = next(number for number, segment in enumerate(self._segments) if segment.sequence == sequence)
        segment = self._segments[number]
        size = segment.header.size if segment.header is not None else segment.size
        stop = await self._walk_segment(sequence, size, start, visit, offset_of(hole.end))
        return await self._walk_segments(self._segments[number + 1 :], start, visit, stop, sequence + 1)

    async def _walk_segments(
        self, segments: Sequence[FoundSegment], start: int, visit: Visit, stop: _Stop, expected: int
    ) -> _Stop:
        """Walk segment by segment, behind `stop`; the first must have the sequence `expected`, 0: any."""
        for segment in segments:
            first = position_of(segment.sequence, FIRST_BLOCK)
            header, fault = segment.header, ""
            if expected and segment.sequence != expected:
                first, fault = position_of(expected, FIRST_BLOCK), "the segment is missing"
            elif header is None:
                fault = "the segment's header is damaged or was never written"
            elif expected and (header.previous_end, header.previous_crc) != (stop.end, self._chain):
                if sequence_of(header.previous_end) == sequence_of(stop.end) and header.previous_end > stop.end:
                    return stop
                fault = "the segment does not continue the one before it"
            if fault or header is None:
                return _Stop(stop.end if expected else first, first, fault, stop.fault_at_end)
            if not expected:
                self._chain = self._crc = header.previous_crc
            stop = await self._walk_segment(segment.sequence, header.size, start, visit)
            expected = segment.sequence + 1
        return stop

    async def _walk_segment(self, sequence: int, size: int, start: int, visit: Visit, found: int = 0) -> _Stop:
        """Walk one segment. `found` is the byte offset of a block behind a hole to begin at; 0: begin at the first
        block."""
        async with self._handles.reading(sequence) as file:
            walk = SegmentWalk(file, sequence, size, found or FIRST_BLOCK, None if found else self._chain)
            while (block := await walk.next()) is not None:
                header = block.header
                self._chain = header.crc
                self._last_index[header.group] = header.index
                self._durable = max(self._durable, header.durable_position)
                if header.end > start:
                    if header.position < start:
                        raise CorruptJournal(f"{_where(start)}: the checkpoint ends inside a block")
                    self._held.append(block)
                else:
                    self._crc = header.crc
                self._release(visit)
        self._ends[sequence] = walk.offset
        end = position_of(sequence, walk.offset)
        return _Stop(end, end, walk.fault, walk.fault)

    def _release(self, visit: Visit) -> None:
        """Visit the blocks that are known to be durable."""
        while self._held and self._held[0].header.end <= self._durable:
            self._deliver(visit)

    def _deliver(self, visit: Visit) -> None:
        block = self._held.popleft()
        self._crc = block.header.crc
        self._blocks += 1
        visit(*block)

    # --- damage -------------------------------------------------------------------------------------------

    async def _judged(self, stop: _Stop) -> tuple[_Stop, _Behind]:
        """Look behind the end of the walk, and settle which place is at fault. A next segment is not, if blocks follow
        in the segment of the end, which did not end there then, or if it has none: it was taken and never begun, unless
        it is known that the journal had come to it."""
        behind = await self._search(stop.end)
        never_begun = not behind.blocks and self._durable < stop.place
        if stop.place != stop.end and (behind.own or never_begun):
            stop = stop._replace(place=stop.end, fault=stop.fault_at_end)
        return stop, behind

    async def _search(self, end: int) -> _Behind:
        """Look for blocks behind the one at `end`, in its segment and all later ones."""
        claim = blocks = own = marks_end = first_position = 0
        first_index: dict[int, int] = {}
        for segment in self._segments:
            if segment.sequence < sequence_of(end):
                continue
            within = segment.sequence == sequence_of(end)
            async with self._handles.reading(segment.sequence) as file:
                offset = offset_of(end) if within else FIRST_BLOCK
                while offset < segment.size:
                    chunk = await file.read(offset, CHUNK_BYTES + BLOCK_HEADER_BYTES)
                    position = position_of(segment.sequence, offset)
                    for place in places_in(chunk, position):
                        if place >= CHUNK_BYTES:
                            break
                        if within:
                            marks_end = offset + place + BLOCK_HEADER_BYTES
                        header = await _block(file, chunk, place, offset + place, position + place)
                        if header is not None and header.position != end:  # the block there is at fault
                            blocks += 1
                            own += within
                            first_position = first_position or header.position
                            claim = max(claim, header.durable_position)
                            first_index.setdefault(header.group, header.index)
                    offset += CHUNK_BYTES
        return _Behind(claim, blocks, first_index, first_position, own, marks_end)

    async def _cuts(self, end: int, behind: _Behind) -> bool:
        """Whether something of this journal lies at its end, or behind it."""
        if behind.blocks or behind.marks_end:
            return True
        for segment in self._segments:
            header = segment.header
            if segment.sequence > sequence_of(end) and header is not None and header.previous_end > end:
                return True
            if segment.sequence == sequence_of(end):
                async with self._handles.reading(segment.sequence) as file:
                    if begins_block(await file.read(offset_of(end), BLOCK_HEADER_BYTES), end, self._crc):
                        return True
        return False

    async def _claimed(self, start: int, end: int) -> BlockHeader | None:
        """The header of a block that lay from `start` to `end` and fails its checks; None where it does not fit
        there."""
        if sequence_of(start) != sequence_of(end):
            return None
        async with self._handles.reading(sequence_of(start)) as file:
            content = await file.read(offset_of(start), BLOCK_HEADER_BYTES)
        try:
            header = BlockHeader.unpack(content, 0, "")
        except FormatError:
            return None
        return header if header.position == start and header.end == end else None

    def _passed(self, hole: Hole) -> None:
        """Take the ends of segments that lie in a hole from the headers of the segments behind them."""
        sequence = sequence_of(hole.start)
        following = next((one for one in self._segments if one.sequence == sequence + 1), None)
        if sequence_of(hole.end) == sequence or following is None or following.header is None:
            return
        if sequence in self._ends and sequence_of(following.header.previous_end) == sequence:
            self._ends[sequence] = max(self._ends[sequence], offset_of(following.header.previous_end))

    def _corrupt(self, stop: _Stop, behind: _Behind) -> CorruptJournal:
        """Make the error. The write groups it names are those whose block indexes do not go on right behind the
        damage."""
        groups = {
            group
            for group in self._last_index.keys() | behind.first_index.keys()
            if behind.first_index.get(group) != self._last_index.get(group, -1) + 1
        }
        listed = ", ".join(map(str, sorted(groups))) or "none that left a trace"
        return CorruptJournal(
            f"{_where(stop.place)}: {stop.fault}, but the journal was durable up to "
            f"{_where(max(self._durable, behind.claim))}; write groups that may have lost blocks: {listed}. "
            "Nothing was changed: restore the file, or fetch the groups from a replica",
            groups,
            self._hole(stop, behind),
        )

    def _hole(self, stop: _Stop, behind: _Behind) -> JournalHole | None:
        """The hole, if it may be a single block: all else of the segment can be read. None otherwise."""
        sequence = sequence_of(stop.place)
        end = behind.first_position
        if sequence_of(end) != sequence:
            following = next((one for one in self._segments if one.sequence == sequence + 1), None)
            end = following.header.previous_end if following is not None and following.header is not None else 0
        if stop.place != stop.end or sequence_of(end) != sequence or end <= stop.place:
            return None
        candidates = [
            (group, last + 1) for group, last in sorted(self._last_index.items())
            if behind.first_index.get(group) in (last + 2, None)
        ]  # fmt: skip
        candidates += [
            (group, first - 1) for group, first in sorted(behind.first_index.items())
            if group not in self._last_index and first > 1
        ]  # fmt: skip
        return JournalHole(stop.place, end, tuple(candidates))

    async def _check_tail(self, stop: _Stop, visit: Visit) -> tuple[int, str]:
        """Visit the blocks that no later block vouches for, as far as their batches are sound. Returns the journal's
        end and the reason for it."""
        while self._held:
            header, directory, _payload = self._held[0]
            if header.kind == KIND_DATA:
                async with self._handles.reading(sequence_of(header.position)) as file:
                    payload = await file.read(offset_of(header.payload_position), header.payload_length)
                fault = batches_fault(directory, payload)
                if fault is not None:
                    self._held.clear()
                    return header.position, fault
            self._deliver(visit)
        return stop.end, stop.fault

    # --- repair -------------------------------------------------------------------------------------------

    async def _repair(self, tail_start: int, end: int, marks_end: int) -> int:
        """Make the end final and the tail durable. Returns the number of segments removed. They are removed newest
        first: if this is cut short, the next recovery finds the same end."""
        last = sequence_of(end)
        removed = [
            segment.sequence
            for segment in self._segments
            if segment.sequence > last or (segment.sequence == last and last not in self._ends)
        ]
        for sequence in reversed(removed):
            await self._handles.forget(sequence)
            await self._files.remove(index_path(sequence))
            await self._files.remove(segment_path(sequence))
            self._ends.pop(sequence, None)
        if last not in self._ends:
            return len(removed)
        await self._files.remove(index_path(last))
        self._ends[last] = offset_of(end)
        for sequence, segment_end in self._ends.items():
            if sequence < sequence_of(tail_start):
                continue
            start = offset_of(tail_start) if sequence == sequence_of(tail_start) else FIRST_BLOCK
            zeros_end = marks_end if sequence == last else 0
            if start < segment_end or zeros_end or segment_end == FIRST_BLOCK:
                async with self._handles.reading(sequence) as file:
                    await _write_again(file, start, segment_end, zeros_end)
        return len(removed)


async def _block(file: File, chunk: bytes, place: int, offset: int, position: int) -> BlockHeader | None:
    """The block at `place` of `chunk`, read from the file where the chunk has not all of its directory."""
    header = block_at(chunk, place, position)
    if header is None:
        try:
            needed = BlockHeader.unpack(chunk, place, "").payload_position - position
        except FormatError:
            return None
        if place + needed > len(chunk):
            header = block_at(await file.read(offset, needed), 0, position)
    return header


async def _write_again(file: File, start: int, end: int, zeros_end: int) -> None:
    """Write the bytes from `start` to `end` as they are, and zeros behind them up to a page boundary and at least
    to `zeros_end`; then sync. The segment's header page goes along with its first block."""
    position = 0 if start == FIRST_BLOCK else start // PAGE_BYTES * PAGE_BYTES
    upto = aligned(max(end, zeros_end), PAGE_BYTES)
    while position < upto:
        length = min(CHUNK_BYTES, upto - position)
        kept = await file.read(position, max(0, min(length, end - position)))
        await file.write(position, [kept, bytes(length - len(kept))])
        position += length
    await file.sync()


def _where(position: int) -> str:
    return f"{segment_path(sequence_of(position))} at byte {offset_of(position)}"
