"""Shows splitters the journal: which blocks are committed, which are split, and which to take next.

Only blocks that are committed *and* synced are offered, so that the queue store never holds a record the journal could
still lose. A split counts, per write group, if its start continues the write group's split position; it is confirmed
when the manifest has recorded it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from mainstem.rpc.messages.split import (
    FileDescription,
    SegmentExtent,
    Slice,
    WaitsFor,
    WriteGroupPositions,
    WriteGroupRange,
)
from mainstem.storage.extents.extent_format import FORMAT_VERSION
from mainstem.storage.journal.encoding.format import offset_of, position_of, segment_name, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.repair.journal_damage import JournalDamage
from mainstem.storage.split.split_recording import SplitRecording
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.write_groups.write_group import WriteGroup


class LocalSplitLog:
    """`SplitLog` over this node's journal."""

    def __init__(
        self,
        groups: Sequence[WriteGroup],
        journal: Journal,
        state: AppliedState,
        retention_classes: Callable[[], Awaitable[dict[int, str]]],
        journal_path: str,
        damage: JournalDamage,
        recording: SplitRecording,
        run_format: Callable[[], int] = lambda: FORMAT_VERSION,
        leads: Callable[[int], bool] | None = None,
    ) -> None:
        """`run_format`: the newest format version in which runs may be written. `leads`: only write groups for which
        this is true are split here, each into runs of its own; None: all are."""
        self._groups = groups
        self._journal = journal
        self._map = state.journal_map
        self._manifest = state.manifest
        self._recording = recording
        self._leads = leads
        self._retention_classes = retention_classes
        self._journal_path = journal_path
        self._damage = damage
        self._run_format = run_format

    def positions(self) -> list[WriteGroupPositions]:
        durable = self._durable()
        return [
            WriteGroupPositions(
                group=group.group,
                committed=max(group.applied_index, split),  # a snapshot may be not installed yet, its runs here
                durable=durable[group.group],
                split=split,
                pruned=self._map.pruned(group.group),
                unsplit_bytes=size,
                oldest_unsplit_ms=oldest_ms,
                files=self._manifest.files(group.group),
            )
            for group, split, (size, oldest_ms) in (
                (
                    group,
                    self._manifest.reached(group.group),
                    self._unsplit(group.group),
                )
                for group in self._groups
            )
        ]

    def _unsplit(self, group: int) -> tuple[int, int]:
        """The bytes to split here of a write group, and the time of the oldest, ms."""
        if self._leads is not None and not self._leads(group):
            return 0, -1
        return self._map.data_after(group, self._manifest.reached(group))

    def begins(self) -> list[int | None]:
        """Per write group, the journal position from which on its batches are still to be split here, to the
        granularity of a mark; None: all are split, or another node splits them."""
        return [
            self._map.begins_after(group.group, self._manifest.reached(group.group))
            if self._leads is None or self._leads(group.group)
            else None
            for group in self._groups
        ]

    def limit(self, after: Mapping[int, int], bytes_max: int) -> dict[int, int]:
        return self._map.limit(after, self._durable(), bytes_max)

    def slices(self, after: Mapping[int, int], upto: Mapping[int, int], bytes_max: int) -> list[Slice]:
        durable = self._durable()
        bounded = {group: min(last, durable[group]) for group, last in upto.items()}
        return [
            Slice(
                ranges=stretch.ranges,
                extents=tuple(
                    SegmentExtent(
                        sequence=sequence_of(start),
                        start=offset_of(start),
                        end=offset_of(end),
                        path=f"{self._journal_path}/{segment_name(sequence_of(start))}",
                    )
                    for start, end in self._walkable(stretch.places)
                ),
                bytes=stretch.bytes,
                run_format=self._run_format(),
                by_write_group=self._leads is not None,
            )
            for stretch in self._map.stretches(after, bounded, bytes_max)
        ]

    def _walkable(self, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """These places without the damaged blocks in them."""
        holes = self._damage.holes()
        left: list[tuple[int, int]] = []
        for start, end in places:
            for hole_start, hole_end in holes:
                if start <= hole_start < end:
                    if start < hole_start:
                        left.append((start, hole_start))
                    start = min(hole_end, end)
            if start < end:
                left.append((start, end))
        return left

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        return bytes(await self._journal.read(position_of(sequence, offset), length))

    async def record(self, ranges: Sequence[WriteGroupRange], runs: Sequence[FileDescription]) -> list[str]:
        unknown = [entry.group for entry in ranges if entry.group >= len(self._groups)]
        if unknown:
            return [f"refused: this node has no write group {unknown[0]}"] * len(ranges)
        return await self._recording.record(ranges, runs)

    async def retention_classes(self) -> dict[int, str]:
        return await self._retention_classes()

    def _durable(self) -> list[int]:
        """Per write group, the last block that is applied and synced and lies before the first damaged one."""
        applied = [group.applied_index for group in self._groups]
        synced = self._map.indexes_at(self._journal.durable_end, applied)
        durable = list(map(min, synced, applied))
        for group, last in enumerate(durable):
            sound = self._damage.sound_before(group)
            durable[group] = last if sound is None else min(last, sound)
            if self._leads is not None and not self._leads(group):
                durable[group] = min(last, self._manifest.reached(group))
        return durable

    async def damaged(self, position: int) -> bool:
        return await self._damage.met(position)

    def waiting_for(self) -> list[WaitsFor]:
        return [
            WaitsFor(damaged.place.group, damaged.place.index, damaged.fault, damaged.since_ms)
            for damaged in self._damage.waiting()
        ]
