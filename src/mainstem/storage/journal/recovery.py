"""Finding the end of the journal after a stop, and telling a torn tail from corruption.

Blocks are walked in order. Each states up to where the journal was durable when it was written, so blocks are held
back until a later one vouches for them; those that none vouches for are the tail: it may be torn, and its
batches are checked one by one. Where the walk ends, everything behind is searched for blocks, chain or not:

    a block found anywhere claims durability beyond the place   corruption: refused, nothing is changed
    none does                                                   the tail was torn here: the journal ends

Repair makes the end final. Segments behind it are removed, what still looks like a block behind it is zeroed, and
the tail is written once more and synced: the page cache may hold pages that a failed sync has dropped. A
block that was cut off can therefore never come back, and what is left is durable.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.ports import File, Files
from mainstem.storage.errors import CorruptJournal, FormatError, JournalHole
from mainstem.storage.journal.blocks import batches_fault, block_at, places_in
from mainstem.storage.journal.format import (
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
from mainstem.storage.journal.inventory import FoundSegment
from mainstem.storage.journal.segment_files import SegmentFiles, index_path, segment_path
from mainstem.storage.journal.segment_walk import Block, SegmentWalk

log = logging.getLogger(__name__)

Visit = Callable[[BlockHeader, bytes, bytes], None]

CHUNK_BYTES = 4 << 20
"""Searched, or written again, at once."""


class RecoveryReport(NamedTuple):
    """What a recovery found and did."""

    end: int
    """Journal position behind the last block."""
    blocks: int
    """Blocks given to `visit`."""
    tail_blocks: int
    """How many of them no later block and no checkpoint vouches for; their batches were checked."""
    cut_blocks: int
    """Blocks behind the end that were readable and were cut off: none was acknowledged as durable."""
    removed_segments: int
    fault: str
    """Why the journal ends where it does."""


class Recovered(NamedTuple):
    report: RecoveryReport
    crc: int
    """CRC of the last block's header: what the next block chains to."""
    ends: dict[int, int]
    """Byte offset where the blocks of each walked segment end, by sequence; the journal goes on in the last."""


class _Stop(NamedTuple):
    """Where the walk stopped: the journal's end if nothing vouches for more, and the place that is at fault."""

    end: int
    place: int
    fault: str


class _Behind(NamedTuple):
    """Blocks found behind a place, whether chained or not."""

    claim: int
    """The highest durability any of them claims."""
    blocks: int
    first_index: dict[int, int]
    """Block index of the first one found per write group."""
    first_position: int
    """Of the first one found; 0: there is none."""
    marks_end: int
    """In the first segment searched, the byte offset behind the last thing that looks like a block header."""


class JournalRecovery:
    """One recovery. `durable`: journal position that is known to be durable from elsewhere."""

    def __init__(
        self, files: Files, handles: SegmentFiles, segments: Sequence[FoundSegment], durable: int
    ) -> None:
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

    async def run(self, start: int, visit: Visit) -> Recovered:
        """Walk from `start`, visit, repair. Raises `CorruptJournal` before anything is changed."""
        self._durable = max(self._durable, start)
        stop = await self._walk(start, visit)
        behind = await self._search(stop.end)
        if max(self._durable, behind.claim) > stop.place:
            raise self._corrupt(stop, behind)
        self._durable = max(self._durable, behind.claim)
        self._release(visit)
        vouched = self._blocks
        tail_start = self._held[0].header.position if self._held else stop.end
        end, fault = await self._check_tail(stop, visit)
        if end < stop.end:
            behind = await self._search(end)
        removed = await self._repair(tail_start, end, behind.marks_end)
        end = end if self._ends else 0
        if behind.blocks or removed:
            log.warning("%s: the journal ends here (%s); %d blocks behind it and %d segments were cut off, none "
                        "of them known to be durable", _where(end), fault, behind.blocks, removed)
        report = RecoveryReport(end, self._blocks, self._blocks - vouched, behind.blocks, removed, fault)
        return Recovered(report, self._crc, self._ends)

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
        first = max((number for number, segment in enumerate(self._segments)
                     if segment.sequence <= sequence), default=0)
        while first and self._segments[first].header is None:
            first -= 1
        return self._segments[first:]

    async def _walk(self, start: int, visit: Visit) -> _Stop:
        """Walk as far as the chain goes, visiting what is vouched for."""
        stop = _Stop(0, 0, "the journal is empty")
        expected = 0
        for segment in self._walked(start):
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
                return _Stop(stop.end if expected else first, first, fault)
            if not expected:
                self._chain = self._crc = header.previous_crc
            stop = await self._walk_segment(segment.sequence, header.size, start, visit)
            expected = segment.sequence + 1
        return stop

    async def _walk_segment(self, sequence: int, size: int, start: int, visit: Visit) -> _Stop:
        async with self._handles.reading(sequence) as file:
            walk = SegmentWalk(file, sequence, size, FIRST_BLOCK, self._chain)
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
        return _Stop(end, end, walk.fault)

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

    async def _search(self, end: int) -> _Behind:
        """Look for blocks behind the one at `end`, in its segment and all later ones."""
        claim = blocks = marks_end = first_position = 0
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
                        if header is not None and header.position != end:  # what is there is at fault
                            blocks += 1
                            first_position = first_position or header.position
                            claim = max(claim, header.durable_position)
                            first_index.setdefault(header.group, header.index)
                    offset += CHUNK_BYTES
        return _Behind(claim, blocks, first_index, first_position, marks_end)

    def _corrupt(self, stop: _Stop, behind: _Behind) -> CorruptJournal:
        """The groups concerned are those whose block indexes do not go on right behind the damage."""
        groups = {
            group for group in self._last_index.keys() | behind.first_index.keys()
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
        """The one block that is missing, if it may be one: all of the segment but that can be read."""
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
        """Visit the blocks that nothing vouches for, as far as their batches are sound. Returns the journal's
        end and why it is there."""
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
        """Make the end final and the tail durable. Returns the number of segments removed. Newest first: should
        this be cut short, the next recovery finds the same end."""
        last = sequence_of(end)
        removed = [segment.sequence for segment in self._segments
                   if segment.sequence > last or (segment.sequence == last and last not in self._ends)]
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
