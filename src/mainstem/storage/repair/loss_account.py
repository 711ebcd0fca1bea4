"""Says what is lost with blocks of the journal: which offsets of which queues, and what would stand in for the blocks.

Offsets of lost blocks are never given out again. If a later batch of a queue is there, it tells how far they went: the
queue has a gap, and readers go on behind it. Of a queue without a later batch nobody knows; it is to go on higher than
any number of records that there was room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy

from mainstem.kernel import COMMITTED_END, QUEUE_ID, QueueTable
from mainstem.kernel.batch_header import HEADER_BYTES
from mainstem.model import Topic, partition_of, queue_id_of, topic_number_of
from mainstem.ports import Files
from mainstem.storage.journal.encoding.blocks import batches_fault, block_at
from mainstem.storage.journal.encoding.format import (
    DIRECTORY_ROW,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    offset_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.mending.stand_ins import Lost, content_crc, directory_and_payload, segment_end, tiled
from mainstem.storage.journal.recovery import Hole
from mainstem.storage.journal.segments.segment_files import segment_path
from mainstem.storage.journal.stored_block import StoredPlace
from mainstem.storage.placement import Placement
from mainstem.storage.repair.lost_blocks import QUEUES_MAX, Loss, LostOffsets, LostPart
from mainstem.storage.state.queue_scan import chunks
from mainstem.storage.state.state_recovery import LostInHole

RECORDS_PER_BATCH = 1 << 31
"""The most that a batch can have: its last offset delta is an int32."""


class LossAccount:
    """Makes `Loss`es of what a start, or a reader, could not read."""

    def __init__(
        self,
        files: Files,
        placement: Placement,
        topics: Callable[[], Iterable[Topic]],
        members: Callable[[int], Sequence[int]],
    ) -> None:
        """`members`: the other nodes that have a write group."""
        self._files = files
        self._placement = placement
        self._topics = topics
        self._members = members

    async def of_start(self, lost: Sequence[LostInHole]) -> list[Loss]:
        """One loss for each hole. Raises OSError."""
        holes: dict[Hole, list[LostInHole]] = {}
        for found in lost:
            holes.setdefault(found.hole, []).append(found)
        return [await self._of_hole(hole, parts) for hole, parts in holes.items()]

    async def _of_hole(self, hole: Hole, lost: Sequence[LostInHole]) -> Loss:
        end = await segment_end(self._files, hole.start, hole.end)
        known = sorted((block for part in lost for block in part.known), key=lambda block: block.position)
        stand_ins = []
        if known:
            if end and _covers(known, hole.start, end):
                stand_ins = known
        elif end:
            missing = [
                (part.group, part.term, index)
                for part in lost
                for index in range(part.first, (part.last or part.first) + 1)
            ]
            stand_ins = tiled(hole.start, end, missing)
        fault = f"{segment_name(sequence_of(hole.start))} at byte {offset_of(hole.start)} cannot be read"
        crc = await content_crc(self._files, hole.start, end) if end else 0
        return Loss(
            hole.start, end or hole.end, crc, fault, [self._part(part, end or hole.end) for part in lost], stand_ins
        )

    def _part(self, lost: LostInHole, end: int) -> LostPart:
        offsets, others = self._named(lost.offsets)
        open_queues = raised_by = 0
        if not lost.applied:
            open_queues = self._queues_of(lost.group) - len(lost.seen)
            room = max(0, end - lost.hole.start)
            raised_by = max(1, room // (HEADER_BYTES + DIRECTORY_ROW_BYTES)) * RECORDS_PER_BATCH
        return LostPart(
            lost.group, lost.first, lost.last, offsets, others, max(0, open_queues), raised_by,
            known=not lost.applied, members=list(self._members(lost.group)),
        )  # fmt: skip

    async def of_block(self, place: StoredPlace, fault: str, *, data: bool) -> Loss:
        """The loss of an applied block that a reader could not read. Raises OSError, which FileNotFoundError is."""
        end = place.position + place.length
        file = await self._files.open(segment_path(sequence_of(place.position)))
        try:
            content = await file.read(offset_of(place.position), place.length)
        finally:
            await file.close()
        header = block_at(content, 0, place.position)
        offsets: list[tuple[int, int, int]] = []
        known = header is not None or not data
        if header is not None and header.kind == KIND_DATA:
            directory, payload = directory_and_payload(content, header.batch_count)
            for row in range(header.batch_count):
                entry = bytes(directory[row * DIRECTORY_ROW_BYTES :][:DIRECTORY_ROW_BYTES])
                if batches_fault(entry, payload) is not None:
                    (fields,) = numpy.frombuffer(entry, DIRECTORY_ROW)
                    base = int(fields["base_offset"])
                    offsets.append((int(fields["queue_id"]), base, base + int(fields["last_offset_delta"])))
        named, others = self._named(offsets)
        part = LostPart(
            place.group, place.index, place.index, named, others, known=known, members=list(self._members(place.group))
        )
        lost = Lost(place.group, place.term, place.index, place.position, place.length, data)
        return Loss(place.position, end, await content_crc(self._files, place.position, end), fault, [part], [lost])

    def _named(self, offsets: Sequence[tuple[int, int, int]]) -> tuple[list[LostOffsets], int]:
        names = {topic.number: topic.name for topic in self._topics()}
        found = [
            LostOffsets(f"{names[topic_number_of(queue_id)]}-{partition_of(queue_id)}", first, last)
            for queue_id, first, last in offsets
            if topic_number_of(queue_id) in names
        ]
        return found[:QUEUES_MAX], len(found[QUEUES_MAX:])

    def _queues_of(self, group: int) -> int:
        count = 0
        for topic in self._topics():
            first = numpy.uint64(queue_id_of(topic.number, 0))
            groups = self._placement.groups_of(first + numpy.arange(topic.partitions, dtype=numpy.uint64))
            count += int((groups == group).sum())
        return count


def _covers(blocks: Sequence[Lost], start: int, end: int) -> bool:
    """Whether blocks cover a stretch of the journal without gap or overlap."""
    for block in blocks:
        if block.position != start:
            return False
        start += block.length
    return start == end


def raised_ends(
    table: QueueTable, placement: Placement, group: int, seen: set[int], raised_by: int
) -> list[tuple[int, int]]:
    """(queue id, offset to go on at) of the queues of a write group that have no batch behind what is lost."""
    return [(queue_id, end + raised_by) for queue_id, end in _ends(table, placement, group) if queue_id not in seen]


def floored_ends(
    table: QueueTable, placement: Placement, group: int, floor: int, topics_below: int
) -> list[tuple[int, int]]:
    """(queue id, `floor`) of the queues of a write group that end below it, of topics of smaller numbers."""
    return [
        (queue_id, floor)
        for queue_id, end in _ends(table, placement, group)
        if end <= floor and topic_number_of(queue_id) < topics_below
    ]


def _ends(table: QueueTable, placement: Placement, group: int) -> Iterator[tuple[int, int]]:
    """The queues of a write group, and where they end."""
    for slots in chunks(table):
        ids = slots[:, QUEUE_ID].astype(numpy.uint64)
        rows = numpy.flatnonzero(ids != 0)
        rows = rows[placement.groups_of(ids[rows]) == group]
        yield from zip(ids[rows].tolist(), slots[rows, COMMITTED_END].tolist(), strict=True)
