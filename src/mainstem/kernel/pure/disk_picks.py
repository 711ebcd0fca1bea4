"""Picks, for all pending partitions of a fetch plan together, the batches that answer them from files of one kind.

`choose` goes over the partitions once, in order. It answers those that memory holds; for the others it picks batches
from the rows of indexes (`EXTENT_ROW`, sorted by queue and offset), each partition's from one source to the next,
within the round's bytes, a window of the files, and a bound of chunks. `chunks` says which aligned chunks of the files
that takes, `put` looks the batches up in them and settles the partitions.

No content of a file makes these functions raise. A partition whose offset is elsewhere, or whose first batch is
missing, is damaged, or has meanwhile fallen to retention, stays pending, for a read of its own that finds out why; one
in whose batches damage comes later gets those before it. So all that is put was asked for, begins at the offset or
holds it, has no gap, and has passed its CRC32C.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.kernel.batch_header import CHECKED_FROM, EXTENT_BATCH, LENGTH_EXCLUDES
from mainstem.kernel.layout import COMMITTED_END, LOG_START, NO_SLOT, PICK_SOURCES_MAX, FollowedLog
from mainstem.kernel.pure.batch_check import is_batch
from mainstem.kernel.pure.checksum import crc32c
from mainstem.kernel.pure.fetch_plan import FetchPlan, groups_of_slots
from mainstem.kernel.pure.group_log import WriteGroupLog
from mainstem.kernel.pure.plan_row import PlanRow
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.kernel.pure.recent_index import RecentIndex
from mainstem.model import Buffer, slot_of

CHUNKS_MAX = 64
"""Chunks of one pick: bounds the memory that one answer holds on to."""

ROW = struct.Struct("<QqqqQIIIIi4x")
"""`EXTENT_ROW`: queue id, base offset, last offset, max timestamp, position, length, batches, records, CRC, leader
epoch."""

LARGEST = (1 << 62) - 1
"""Valid positions and offsets stay below this, so that sums of two stay within 64 bits."""


class PickSource(NamedTuple):
    """A file to pick from: the rows of its index, and for which write groups it counts, a byte each (None: all)."""

    rows: Buffer
    groups: bytes | None


class PickLimits(NamedTuple):
    """The bounds of one pick."""

    room: int
    """Bytes of the round that may come from disks, with what the round has found so far…"""
    bytes_max: int
    """…and how many of them this pick may promise, about: what is more stays pending."""
    partitions_max: int
    """The most partitions looked for."""
    source_bytes: int
    """From the beginning of a source to that of the next, as far as windows are concerned."""
    start: int
    """In the first source: where the window begins in which partitions are looked for."""
    window_bytes: int
    """How far apart the batches of a partition may lie…"""
    sparse_bytes: int
    sparse_window_bytes: int
    """…if they are as many, else up to there; also where the window of all ends."""


class _Pick(NamedTuple):
    source: int
    position: int
    length: int
    base_offset: int
    last_offset: int
    crc: int
    leader_epoch: int


class _Answer(NamedTuple):
    row: PlanRow
    budget: int
    whole_first: bool
    picks: list[_Pick]


class DiskPicks:
    """One pick for one plan. `extents`: index rows stand for several batches, and have the CRC of them all; else for
    one, which has its own. `chunk_bytes`: of the aligned chunks of files that `put` gets."""

    def __init__(self, plan: FetchPlan, chunk_bytes: int, *, extents: bool) -> None:
        if chunk_bytes <= 0:
            raise ValueError(f"chunks of {chunk_bytes} bytes")
        self._plan = plan
        self._round = plan.round
        self._chunk_bytes = chunk_bytes
        self._extents = extents
        self._answers: list[_Answer] = []
        self._chunks: dict[tuple[int, int], int] = {}
        self.bytes = 0
        """Promised, about."""
        self.partitions = 0
        """Looked for."""
        self.served_from_memory = 0
        """Partitions that memory had batches of."""

    def __len__(self) -> int:
        """Partitions that batches were picked for."""
        return len(self._answers)

    def choose(
        self,
        table: QueueTable,
        index: RecentIndex,
        logs: Sequence[WriteGroupLog | FollowedLog | None],
        slots: Buffer,
        sources: Sequence[PickSource],
        limits: PickLimits,
    ) -> None:
        """Pick. Once. Raises ValueError for more than `PICK_SOURCES_MAX` sources."""
        if len(sources) > PICK_SOURCES_MAX:
            raise ValueError(f"{len(sources)} sources")
        plan, groups = self._plan, groups_of_slots(slots)
        rows = [memoryview(source.rows).cast("B") for source in sources]
        if any(len(view) % ROW.size for view in rows):
            raise ValueError("index rows are cut short")
        for row in plan.unsettled():
            if self.partitions >= limits.partitions_max or self.bytes >= limits.bytes_max:
                return
            answered = plan.answer_from_memory(row, table, index, logs, groups, self.bytes)
            if answered is not None:
                self.served_from_memory += answered
                continue
            self.partitions += 1
            slot, whole_first = table.find(row.queue_id), not plan.bytes and not self.bytes
            budget = min(plan.budget(row, self.bytes), max(0, limits.room - plan.bytes - self.bytes))
            nothing_fits = budget == 0 and not whole_first
            if not nothing_fits:
                group = groups[slot_of(row.queue_id)]
                usable = [
                    (number, view)
                    for number, (view, source) in enumerate(zip(rows, sources, strict=True))
                    if source.groups is None or (group < len(source.groups) and source.groups[group])
                ]
                end = plan.end_for(table, slot)
                picks, size, nothing_fits = self._pick(row, end, usable, budget, whole_first, limits)
                if picks:
                    self._answers.append(_Answer(row, budget, whole_first, picks))
                    self.bytes += size
            if nothing_fits:
                plan.found(row, ends_of(table, slot), (), row.fetch_offset)

    def _pick(
        self,
        row: PlanRow,
        end: int,
        sources: Sequence[tuple[int, memoryview]],
        budget: int,
        whole_first: bool,
        limits: PickLimits,
    ) -> tuple[list[_Pick], int, bool]:
        """Pick for one partition. Returns how many bytes, and whether its first batch is there and does not fit."""
        picks: list[_Pick] = []
        size = first = 0
        offset = row.fetch_offset
        for number, rows in sources:
            place = _first_row(rows, row.queue_id, offset)
            while place < len(rows) and offset < end:
                queue_id, base, last, _time, position, length, batches, _records, crc, epoch = ROW.unpack_from(
                    rows, place
                )
                if queue_id != row.queue_id:
                    break
                holds = base == offset if picks else 0 <= base <= offset
                if not holds or not base <= last <= LARGEST or position > LARGEST or not length:
                    return picks, size, False
                at = number * limits.source_bytes + position
                if not picks:
                    first = at
                if (
                    at < limits.start
                    or at - limits.start >= limits.sparse_window_bytes
                    or at - first
                    >= (limits.window_bytes if size >= limits.sparse_bytes else limits.sparse_window_bytes)
                ):
                    return picks, size, False
                whole = whole_first and not picks
                if (
                    not whole
                    and length > budget - size
                    and not (self._extents and _may_fit(length, batches, budget - size))
                ):
                    return picks, size, not picks
                if not self._take_chunks(number, position, length):
                    return picks, size, False
                picks.append(_Pick(number, position, length, base, last, crc, epoch))
                size += length if whole else min(length, budget - size)
                offset = last + 1
                place += ROW.size
        return picks, size, False

    def _take_chunks(self, source: int, position: int, length: int) -> bool:
        """Note the chunks of a pick. False when they would be too many."""
        size = self._chunk_bytes
        first, last = position // size, (position + length - 1) // size
        if last - first >= CHUNKS_MAX:
            return False
        missing = [number for number in range(first, last + 1) if (source, number) not in self._chunks]
        if len(self._chunks) + len(missing) > CHUNKS_MAX:
            return False
        for number in range(first, last + 1):
            asked = min(position + length, (number + 1) * size) - max(position, number * size)
            self._chunks[source, number] = self._chunks.get((source, number), 0) + asked
        return True

    def chunks(self) -> list[tuple[int, int, int]]:
        """(number of the source, number of the chunk in it, bytes wanted of it) of all that is needed."""
        return [(source, number, asked) for (source, number), asked in self._chunks.items()]

    def put(self, table: QueueTable, chunks: Sequence[Buffer | None]) -> int:
        """Settle the partitions that the bytes suffice for: those of each chunk, in the order of `chunks`, fewer at
        the end of a file; None where there are none. Returns how many got batches. Does nothing when the plan's round
        is over."""
        plan = self._plan
        if len(chunks) != len(self._chunks):
            raise ValueError(f"{len(chunks)} chunks where {len(self._chunks)} are needed")
        if plan.round != self._round or plan.released:
            return 0
        views = {
            key: memoryview(b"" if chunk is None else chunk).cast("B")
            for key, chunk in zip(self._chunks, chunks, strict=True)
        }
        served = 0
        for answer in self._answers:
            row = answer.row
            slot = table.find(row.queue_id)
            if row.settled or slot == NO_SLOT or table.get(slot, LOG_START) > row.fetch_offset:
                continue
            records, next_offset, full = self._records(answer, views)
            if records or full:
                plan.found(row, ends_of(table, slot), records, next_offset)
                served += row.size > 0
        return served

    def _records(self, answer: _Answer, views: dict[tuple[int, int], memoryview]) -> tuple[list[Buffer], int, bool]:
        """Whole batches, the offset behind them, whether more are there that do not fit."""
        records: list[Buffer] = []
        offset, left = answer.row.fetch_offset, answer.budget
        for pick in answer.picks:
            parts = self._bytes_of(pick, views)
            if not parts:
                break
            whole = answer.whole_first and not records
            if self._extents:
                data = parts[0]
                if crc32c(data) != pick.crc:
                    break
                start, stop, offset, full = _within(data, offset, left, whole, bool(records))
                if stop > start:
                    records.append(data[start:stop])
                    left -= stop - start
                if full or offset != pick.last_offset + 1:
                    return records, offset, full
            else:
                if not is_batch(parts[0], pick.base_offset, pick.leader_epoch, *parts[1:]):
                    break
                records += parts
                left -= pick.length
                offset = pick.last_offset + 1
        return records, offset, False

    def _bytes_of(self, pick: _Pick, views: dict[tuple[int, int], memoryview]) -> list[memoryview]:
        """The bytes of a pick, if all of them are there. A batch in two chunks stays there in two parts: its copy would
        be made in new memory, for which the event loop may have to wait. Others in several chunks are joined."""
        size = self._chunk_bytes
        end = pick.position + pick.length
        parts: list[memoryview] = []
        for number in range(pick.position // size, (end - 1) // size + 1):
            start, stop = max(pick.position - number * size, 0), min(end - number * size, size)
            view = views[pick.source, number]
            if stop > len(view):
                return []
            parts.append(view[start:stop])
        if len(parts) == 1 or (len(parts) == 2 and not self._extents and len(parts[0]) >= CHECKED_FROM):
            return parts
        return [memoryview(b"".join(parts))]


def _may_fit(length: int, batches: int, budget: int) -> bool:
    """Whether an extent that does not fit is worth reading for its first batches: by what a batch of it has on average.
    A file would be read in vain for each partition that a full response has no room for."""
    return batches > 1 and length // batches <= budget


def _first_row(rows: memoryview, queue_id: int, offset: int) -> int:
    """The place of the first row of the queue that ends at or behind the offset, or where it would be."""
    low, high = 0, len(rows) // ROW.size
    while low < high:
        middle = (low + high) // 2
        found_id, _base, last, *_rest = ROW.unpack_from(rows, middle * ROW.size)
        if (found_id, last) < (queue_id, offset):
            low = middle + 1
        else:
            high = middle
    return low * ROW.size


def _within(data: memoryview, offset: int, budget: int, whole_first: bool, goes_on: bool) -> tuple[int, int, int, bool]:
    """The batches of an extent from `offset` on that fit: where they begin and end, the offset behind them, and whether
    others do not fit. The first holds the offset, or with `goes_on` begins there; malformed ones end it."""
    position, start, stop = 0, 0, 0
    while len(data) - position >= EXTENT_BATCH.size:
        base, length, last_delta = EXTENT_BATCH.unpack_from(data, position)
        size = length + LENGTH_EXCLUDES
        if size < EXTENT_BATCH.size or size > len(data) - position or last_delta < 0 or not 0 <= base <= LARGEST:
            break
        next_offset = base + last_delta + 1
        if next_offset > offset:
            taken = stop > start
            if (base != offset) if taken or goes_on else (base > offset):
                break
            if size > budget - (stop - start) and not (whole_first and not taken):
                return start, stop, offset, True
            if not taken:
                start = position
            stop, offset = position + size, next_offset
        elif stop > start:
            break
        position += size
    return start, stop, offset, False


def ends_of(table: QueueTable, slot: int) -> tuple[int, int, int]:
    """High watermark, log start and last stable offset of a queue."""
    return table.get(slot, COMMITTED_END), table.get(slot, LOG_START), table.last_stable(slot)
