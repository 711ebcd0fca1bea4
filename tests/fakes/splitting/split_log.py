"""A journal in real segment files and the `SplitLog` over it: what a splitter sees of a node, without the
node.

The test appends blocks; every block is committed and durable at once. Splits are compared and set per group
and kept in `recorded`, so that a test can hold the runs against the journal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy

from mainstem.rpc.messages.split import (
    FileDescription,
    SegmentExtent,
    Slice,
    WaitsFor,
    WriteGroupPositions,
    WriteGroupRange,
)
from mainstem.storage.errors import SegmentGone
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW,
    FIRST_BLOCK,
    KIND_DATA,
    BlockHeader,
    SegmentHeader,
    aligned,
    position_of,
    segment_name,
)

NOW_MS = 1_700_000_000_000


def record_batch(base_offset: int, records: int, payload: bytes) -> bytes:
    """A record batch v2 as far as the journal and the split look at one: head, CRC, then anything."""
    body = (0).to_bytes(2, "big") + (records - 1).to_bytes(4, "big") + payload
    return b"".join(
        (
            base_offset.to_bytes(8, "big"),
            (9 + len(body)).to_bytes(4, "big"),
            (7).to_bytes(4, "big"),
            b"\x02",
            google_crc32c.value(body).to_bytes(4, "big"),
            body,
        )
    )


class Block:
    """The place of a block, and its content."""

    def __init__(self, group: int, index: int, kind: int, sequence: int, start: int, end: int) -> None:
        self.group, self.index, self.kind = group, index, kind
        self.sequence, self.start, self.end = sequence, start, end


class SplitJournal:
    """`SplitLog` over segment files in `directory`."""

    def __init__(self, directory: Path, *, segment_bytes: int, classes: Mapping[int, str]) -> None:
        self.classes = dict(classes)
        self.history: dict[int, list[bytes]] = {}
        """Every batch ever appended, by queue, in offset order."""
        self.blocks: list[Block] = []
        self.split: dict[int, int] = {}
        self.by_write_group = False
        """Slices ask for runs of one write group each."""
        self.recorded: list[tuple[tuple[WriteGroupRange, ...], tuple[FileDescription, ...]]] = []
        self.remote_reads = 0
        self.path_prefix = str(directory)
        """The root under which extents are said to lie; another one makes splitters read over rpc."""
        self.before_classes: Callable[[], None] = lambda: None
        """Runs when a task asks for the retention classes: a place to fail."""
        self.after_recording: Callable[[], None] = lambda: None
        """Runs when a split has been applied and its answer has not been sent."""
        self.damage_met: list[int] = []
        self.repairs: Callable[[int], bool] = lambda position: False
        """Runs when a task says where it met damage: puts it right, or not."""
        self.waits: list[WaitsFor] = []
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sequence = 0
        self._end = segment_bytes
        self._previous_crc = 0
        self._next_offset: dict[int, int] = {}
        self._last_index: dict[int, int] = {}

    # writing

    def append(
        self,
        group: int,
        batches: Sequence[tuple[int, bytes]],
        *,
        kind: int = KIND_DATA,
        term: int = 1,
    ) -> Block:
        """One block of (queue id, payload) batches."""
        rows = numpy.zeros(len(batches), DIRECTORY_ROW)
        parts: list[bytes] = []
        position = 0
        for row, (queue_id, payload) in zip(rows, batches, strict=True):
            base, records = self._next_offset.get(queue_id, 0), 1 + len(payload) % 3
            batch = record_batch(base, records, payload)
            self._next_offset[queue_id] = base + records
            self.history.setdefault(queue_id, []).append(batch)
            row["queue_id"], row["base_offset"], row["max_timestamp"] = queue_id, base, NOW_MS + base
            row["position"], row["length"], row["record_count"] = position, len(batch), records
            row["last_offset_delta"], row["leader_epoch"] = records - 1, 7
            row["crc"] = int.from_bytes(batch[17:21], "big")
            parts.append(batch)
            position += len(batch)
        return self._write(group, kind, term, rows, b"".join(parts))

    def rewind(self, group: int, queue_id: int) -> None:
        """The group's next block takes the index of its last one, and the queue starts again at offset 0:
        what a new leader does to an entry that was never committed."""
        self._last_index[group] -= 1
        self._next_offset[queue_id] = 0

    def append_random(self, rng: random.Random, blocks: int, *, queues: int, topics: int, groups: int) -> None:
        """Blocks of random batches; a queue always lies in the same group. Some blocks carry no batch."""
        for _ in range(blocks):
            group = rng.randrange(groups)
            batches = []
            for _ in range(rng.randrange(40)):
                partition = rng.randrange(queues) * groups + group
                payload = rng.randbytes(rng.choice((0, 50, 300, 3000)))
                batches.append((rng.randrange(topics) << 32 | partition, payload))
            self.append(group, batches, kind=KIND_DATA if batches else rng.randrange(1, 4))

    def _write(self, group: int, kind: int, term: int, rows: numpy.ndarray, payload: bytes) -> Block:
        directory = rows.tobytes()
        length = aligned(BLOCK_HEADER_BYTES + len(directory) + len(payload))
        if self._end + length > self._segment_bytes:
            self._roll()
        index = self._last_index.get(group, 0) + 1
        self._last_index[group] = index
        start = self._end
        header = BlockHeader(
            kind,
            group,
            term,
            index,
            length,
            len(rows),
            len(payload),
            0,
            position_of(self._sequence, start),
            0,
            self._previous_crc,
            NOW_MS,
        )
        packed, self._previous_crc = header.pack(directory)
        with self.segment(self._sequence).open("r+b") as file:
            file.seek(start)
            file.write((packed + directory + payload).ljust(length, b"\0"))
        self._end = start + length
        block = Block(group, index, kind, self._sequence, start, self._end)
        self.blocks.append(block)
        return block

    def _roll(self) -> None:
        self._sequence += 1
        header = SegmentHeader(self._sequence, self._segment_bytes, 0, self._previous_crc, NOW_MS).pack()
        with self.segment(self._sequence).open("wb") as file:
            file.write(header)
            file.truncate(self._segment_bytes)
        self._end = FIRST_BLOCK

    def segment(self, sequence: int) -> Path:
        return self._directory / segment_name(sequence)

    # SplitLog

    def positions(self) -> list[WriteGroupPositions]:
        found = []
        for group, last in sorted(self._last_index.items()):
            split = self.split.get(group, 0)
            unsplit = sum(
                block.end - block.start
                for block in self.blocks
                if block.group == group and block.index > split and block.kind == KIND_DATA
            )
            found.append(
                WriteGroupPositions(
                    group=group,
                    committed=last,
                    durable=last,
                    split=split,
                    pruned=0,
                    unsplit_bytes=unsplit,
                    oldest_unsplit_ms=NOW_MS if unsplit else -1,
                )
            )
        return found

    def limit(self, after: Mapping[int, int], bytes_max: int) -> dict[int, int]:
        upto = {group: after.get(group, 0) for group in self._last_index}
        taken = 0
        for block in self.blocks:
            if block.index > after.get(block.group, 0) and taken < bytes_max:
                upto[block.group] = block.index
                taken += block.end - block.start
        return upto

    def slices(self, after: Mapping[int, int], upto: Mapping[int, int], bytes_max: int) -> list[Slice]:
        slices: list[Slice] = []
        taken: list[Block] = []
        for block in self.blocks:
            if after.get(block.group, 0) < block.index <= upto.get(block.group, 0):
                taken.append(block)
                if sum(block.end - block.start for block in taken) >= bytes_max:
                    slices.append(self._slice(taken))
                    taken = []
        return [*slices, self._slice(taken)] if taken else slices

    def _slice(self, taken: list[Block]) -> Slice:
        ranges = []
        for group in sorted({block.group for block in taken}):
            indexes = [block.index for block in taken if block.group == group]
            ranges.append(WriteGroupRange(group, indexes[0] - 1, indexes[-1]))
        extents = []
        for sequence in sorted({block.sequence for block in taken}):
            inside = [block for block in taken if block.sequence == sequence]
            path = f"{self.path_prefix}/{segment_name(sequence)}"
            extents.append(SegmentExtent(sequence, inside[0].start, inside[-1].end, path))
        size = sum(extent.end - extent.start for extent in extents)
        return Slice(tuple(ranges), tuple(extents), size, by_write_group=self.by_write_group)

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        self.remote_reads += 1
        try:
            data = self.segment(sequence).read_bytes()
        except FileNotFoundError as error:
            raise SegmentGone(f"segment {sequence} is gone") from error
        return data[offset : offset + length]

    async def record(self, ranges: Sequence[WriteGroupRange], runs: Sequence[FileDescription]) -> list[str]:
        outcomes = []
        for entry in ranges:
            split = self.split.get(entry.group, 0)
            if entry.upto <= split:
                outcomes.append("replayed")
            elif entry.after != split:
                outcomes.append(f"refused: ({entry.after}, {entry.upto}] where the split is at {split}")
            else:
                self.split[entry.group] = entry.upto
                outcomes.append("committed")
        if "committed" in outcomes:
            self.recorded.append((tuple(ranges), tuple(runs)))
        self.after_recording()
        return outcomes

    async def damaged(self, position: int) -> bool:
        self.damage_met.append(position)
        return self.repairs(position)

    def waiting_for(self) -> list[WaitsFor]:
        return list(self.waits)

    async def retention_classes(self) -> dict[int, str]:
        self.before_classes()
        return dict(self.classes)
