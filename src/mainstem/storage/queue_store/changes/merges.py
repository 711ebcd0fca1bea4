"""Merges of one store, from the choice of their inputs to the step that puts outputs in their place.

The worth of a merge is judged by sums of spans, and by summaries of a few (`merge_plan`, `merge_facts`). A merge is
under way from its choice until its outputs are recorded, or until the lease ends under which it was asked for:
meanwhile nothing drops or replaces its inputs but damage, which makes it fail. Two merges under way have no input of a
write group in common."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy
import numpy.typing

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.rpc.messages.split import MergeWaits
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import StorageError
from mainstem.storage.merging.merge_check import QueueSums, compare
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_plan import Choice, Choosing, SpansWanted, choosing
from mainstem.storage.merging.merge_spans import RUNS, SpanSummary
from mainstem.storage.merging.segment_lines import SegmentLines
from mainstem.storage.queue_store.changes.aged_runs import AgedOf, aged_spans, none_aged
from mainstem.storage.queue_store.changes.being_copied import BeingCopied
from mainstem.storage.queue_store.changes.file_changes import Expecting, FileChanges, all_are_here, every_group
from mainstem.storage.queue_store.changes.merge_facts import (
    BordersOf,
    BoundsOf,
    MergeFacts,
    Told,
    all_bounds,
    no_borders,
)
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import NEVER_COMPACTED, NO_HORIZON, StoreFile

log = logging.getLogger(__name__)

Integers = numpy.typing.NDArray[numpy.int64]

LOOK_SECONDS_MAX = 5.0
"""For one answer: a splitter waits for it, and asks again."""

ENTRIES_PER_TURN = 500
"""Inputs that are gathered in one turn of the event loop: some milliseconds."""

DONE_REMEMBERED = 64
"""Merges that were recorded: whoever lost the answer asks again at once."""


class HeldFor(enum.Enum):
    """The work for which files of a write group are held."""

    MERGE = "merge"
    COMPACTION = "compaction"
    """Each input has outputs of its own in its place (`compactions.py`)."""
    UPLOAD = "upload"
    """To the remote tier. The inputs stay."""


class Merge(NamedTuple):
    """A merge under way, or other work that holds its inputs in the same way."""

    group: int
    level: int
    entries: tuple[FileRange, ...]
    inputs: tuple[StoreFile, ...]
    in_force: Callable[[], bool]
    since: float
    """By the monotonic clock."""
    work: HeldFor = HeldFor.MERGE


class DoneMerge(NamedTuple):
    """A merge that was recorded."""

    group: int
    level: int
    inputs: int
    outputs: int
    bytes: int
    """Of the outputs' batches."""
    at: float
    """By the monotonic clock."""


class _Chosen(NamedTuple):
    """Neighbouring spans of a write group that are to be merged."""

    group: int
    level: int
    spans: SpanList
    """All of the write group."""
    first: int
    end: int
    bytes: int
    """Of batches of the write group, dead ones included."""


class Merges:
    """The merges of one store."""

    def __init__(
        self,
        stored: StoredFiles,
        changes: FileChanges,
        being_copied: BeingCopied,
        orphans: Orphans,
        clock: Clock,
        facts_bytes_max: int,
        expecting: Expecting = all_are_here,
        works_on: Callable[[int], bool] = every_group,
    ) -> None:
        """`facts_bytes_max`: of memory, for what is known of files. `expecting` lets outputs be read that do not count
        yet; `works_on`: of these write groups."""
        self._expecting = expecting
        self.works_on = works_on
        self._stored = stored
        self._manifest = stored.manifest
        self._changes = changes
        self._being_copied = being_copied
        self._orphans = orphans
        self._clock = clock
        self._under_way: dict[str, Merge] = {}
        self._done: dict[str, frozenset[str]] = {}
        """Names of the outputs of merges that were recorded."""
        self.facts = MergeFacts(stored, clock, facts_bytes_max)
        self._next_group = 0
        self.merged_files = 0
        self.merged_bytes = 0
        self._looks: SingleFlight[None, MergeWaits] = SingleFlight()
        self.last: DoneMerge | None = None
        """The last one that was recorded since the start."""
        orphans.merging_since = self._since

    # --- choosing -------------------------------------------------------------------------------------------

    async def begin(
        self,
        merge_id: str,
        groups: int,
        lines: MergeLines,
        segment_lines: SegmentLines,
        bounds: BoundsOf,
        in_force: Callable[[], bool],
        *,
        drain: bool = False,
        borders: BordersOf = no_borders,
        aged: AgedOf = none_aged,
    ) -> tuple[Merge | None, bool]:
        """Choose what to merge next, one write group after the other, and hold it while `in_force`. Returns None where
        nothing is worth it, and whether some files were not looked at yet."""
        told = Told(groups, lines, segment_lines, bounds, borders, self.works_on, aged)
        found, more = await self._chosen(told, drain=drain)
        if found is None:
            return None, more
        self._next_group = found.group + 1
        begun = await self._begun(merge_id, found, in_force)
        return begun, more or begun is None

    async def waits(
        self,
        groups: int,
        lines: MergeLines,
        segment_lines: SegmentLines,
        bounds: BoundsOf,
        borders: BordersOf = no_borders,
        aged: AgedOf = none_aged,
    ) -> MergeWaits:
        """The work that the next merge would take, were it begun now. Nothing is begun. Callers at the same time get
        one answer."""

        async def look() -> MergeWaits:
            told = Told(groups, lines, segment_lines, bounds, borders, self.works_on, aged)
            found, more = await self._chosen(told, drain=False)
            return MergeWaits(found.bytes if found is not None else 0, more)

        return await self._looks.run(None, look)

    async def _chosen(self, told: Told, *, drain: bool) -> tuple[_Chosen | None, bool]:
        """Choose what to merge next, and tell whether some files were not looked at yet. Dead bytes are looked for when
        nothing else is worth a merge."""
        give_up = self._clock.monotonic() + LOOK_SECONDS_MAX
        while True:
            more = False
            for step in range(told.groups):
                group = (self._next_group + step) % told.groups
                if self.holds_of(group) or not self.works_on(group):
                    continue
                found, in_time = await self._chosen_of(group, told, give_up, drain=drain)
                # the spans may have changed at their end, or been merged, or lost files, while they were looked at
                if found is not None and self._stand(found):
                    return found, more
                more = more or not in_time
            looked, rest = await self.facts.look_round(told, give_up)
            if not looked:
                return None, more or rest

    async def _chosen_of(self, group: int, told: Told, give_up: float, *, drain: bool) -> tuple[_Chosen | None, bool]:
        """The merge that is worth it in a write group, and whether the time was enough to find that out. The choice
        itself runs beside the event loop."""
        spans = self._manifest.spans(group)
        rows = await self.facts.sums(group, spans, told)
        borders = sorted({spans.behind(block) for block in told.borders(group)})
        before = told.aged(group)
        aged = aged_spans(spans, rows, before) if before is not None else 0
        steps = choosing(rows, told.lines, told.segment_lines.of, drain=drain, borders=borders, aged=aged)
        summaries: list[SpanSummary] | None = None
        first = 0
        while True:
            step = await asyncio.to_thread(_step, steps, summaries)
            if not isinstance(step, SpansWanted):
                break
            first = step.first
            summaries = await self.facts.summaries(group, spans[first : step.end], told, give_up)
            if summaries is None:
                steps.close()
                return None, False
        if step is None:
            return None, True
        size = int(rows["bytes"][step.first : step.end].sum())
        if summaries is not None and step.first == first and int(rows["level"][first]) == RUNS:
            size = sum(summary.bytes for summary in summaries[: step.end - first])
        return _Chosen(group, step.level, spans, step.first, step.end, size), True

    def holds_of(self, group: int) -> bool:
        """Whether work is under way that holds files of a write group."""
        return any(merge.group == group for merge in self.current())

    def _stand(self, found: _Chosen) -> bool:
        """Whether the chosen spans count as they did, and have no file that is known to be damaged."""
        if not self._manifest.spans(found.group).has(found.spans, found.first, found.end):
            return False
        after, upto = found.spans[found.first].after, found.spans[found.end - 1].upto
        damaged = (entry for damage in self._stored.damaged.all() for entry in self._manifest.entries(damage.name))
        return not any(one.group == found.group and after <= one.after and one.upto <= upto for one in damaged)

    async def _begun(self, merge_id: str, found: _Chosen, in_force: Callable[[], bool]) -> Merge | None:
        """Begin the merge; None: its spans changed meanwhile."""
        entries: list[FileRange] = []
        files: list[StoreFile] = []
        for span in found.spans[found.first : found.end]:
            for entry in span:
                file = self._manifest.files.get(entry.name)
                if file is None:
                    return None
                entries.append(entry)
                files.append(file)
                if len(files) % ENTRIES_PER_TURN == 0:
                    await asyncio.sleep(0)
        if not self._stand(found) or self.holds_of(found.group):
            return None
        merge = Merge(found.group, found.level, tuple(entries), tuple(files), in_force, self._clock.monotonic())
        self.hold(merge_id, merge)
        return merge

    def hold(self, merge_id: str, merge: Merge) -> None:
        """Begin a merge: its files stay until it ends."""
        self._under_way[merge_id] = merge
        for entry in merge.entries:
            self._orphans.hold(entry.name)

    def end(self, merge_id: str) -> None:
        """End a merge, if it is under way still."""
        if merge_id in self._under_way:
            self._end(merge_id)

    # --- under way ------------------------------------------------------------------------------------------

    def under_way(self, merge_id: str) -> Merge | None:
        """A merge that may still be recorded."""
        self.current()
        return self._under_way.get(merge_id)

    def is_busy(self) -> bool:
        """Whether a merge is under way."""
        return bool(self.current())

    def give_up(self, but: Collection[str] = ()) -> None:
        """End the merges under way, all but these."""
        for merge_id in [merge_id for merge_id in self._under_way if merge_id not in but]:
            self._end(merge_id)

    def current(self) -> list[Merge]:
        """The merges under way whose lease is in force; the others end."""
        for merge_id in [merge_id for merge_id, merge in self._under_way.items() if not merge.in_force()]:
            self._end(merge_id)
        return list(self._under_way.values())

    def _end(self, merge_id: str) -> None:
        for entry in self._under_way.pop(merge_id).entries:
            self._orphans.let_go(entry.name)

    def _since(self) -> float | None:
        """Since when the oldest merge has been under way; None: there is none."""
        return min((merge.since for merge in self.current()), default=None)

    # --- recording ------------------------------------------------------------------------------------------

    async def record(self, merge_id: str, outputs: Sequence[StoreFile], bounds: BoundsOf) -> None:
        """Put the outputs of a merge in the place of its inputs. Durable when it returns; nothing happens when this was
        done before. Raises `StorageError`, OSError, nothing being changed."""
        names = frozenset(file.name for file in outputs)
        if self._done.get(merge_id) == names:
            return
        merge = self.under_way(merge_id)
        if merge is None or merge.work is not HeldFor.MERGE:
            raise StorageError("this merge is not under way: its lease has ended, or it was given up")
        outputs = [as_clean_as(merge.inputs, file) for file in outputs]
        # also when the lease ends meanwhile
        held = [*(file.name for file in outputs), *(entry.name for entry in merge.entries)]
        for name in held:
            self._orphans.hold(name)
        try:
            with self._expecting(merge.group, outputs):
                await self._check(merge, outputs, bounds)
            await self._changes.merge(merge.group, merge.entries, outputs, self._being_copied.is_kept)
        finally:
            for name in held:
                self._orphans.let_go(name)
        self.end(merge_id)
        self._done[merge_id] = names
        while len(self._done) > DONE_REMEMBERED:
            del self._done[next(iter(self._done))]
        size = sum(file.batch_bytes for file in outputs)
        self.merged_files += len(merge.entries)
        self.merged_bytes += size
        self.last = DoneMerge(merge.group, merge.level, len(merge.entries), len(outputs), size, self._clock.monotonic())
        log.info(
            "write group %d: %d files are merged into %d of %d bytes, on level %d", merge.group, len(merge.entries),
            len(outputs), sum(file.bytes for file in outputs), merge.level,
        )  # fmt: skip

    async def _check(self, merge: Merge, outputs: Sequence[StoreFile], bounds: BoundsOf) -> None:
        """Raises `StorageError` unless the outputs have what is live in the inputs."""
        before, after = QueueSums(), QueueSums()
        open_files, search = self._stored.open_files, self._stored.search
        for file in outputs:
            if file.group != merge.group or file.level != merge.level:
                raise StorageError(f"{file.name}: it is not of write group {merge.group} and level {merge.level}")
            await self._stored.verify(file)
        for names, sums, partly in (
            ([entry.name for entry in merge.entries], before, False),
            ([file.name for file in outputs], after, True),
        ):
            for name in names:
                index = await open_files.index(search.known(name) if not partly else KnownFile(name), keep=False)
                live = await all_bounds(bounds, merge.group, index.queues()[0])
                await asyncio.to_thread(sums.add, index, *live, partly=partly)
        await asyncio.to_thread(compare, before, after)

    def unmerged_bytes(self) -> int:
        """Bytes of runs."""
        return sum(sums.bytes for (level, _kind), sums in self._manifest.files.levels.items() if level == 0)

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample("mainstem_queue_store_merged_files_total", "counter", "Files that were merged.", self.merged_files)
        yield Sample(
            "mainstem_queue_store_merged_bytes_total", "counter", "Bytes of batches that merges wrote.",
            self.merged_bytes)  # fmt: skip
        levels: Mapping[int, list[int]] = {level: [0, 0] for level in range(3)}
        for (level, _kind), sums in self._manifest.files.levels.copy().items():  # metrics are read in any thread
            counts = levels[min(level, 2)]
            counts[0] += sums.files
            counts[1] += sums.bytes
        for level, (count, size) in levels.items():
            label = (("level", str(level)),)
            yield Sample("mainstem_queue_store_level_files", "gauge", "Files on disk 2, by level.", count, label)
            yield Sample(
                "mainstem_queue_store_level_bytes", "gauge", "Bytes of files on disk 2, by level.", size, label
            )


def _step(steps: Choosing, summaries: list[SpanSummary] | None) -> SpansWanted | Choice | None:
    """The next thing that a choice wants to know, or the choice."""
    try:
        return next(steps) if summaries is None else steps.send(summaries)
    except StopIteration as end:
        found: Choice | None = end.value
        return found


def as_clean_as(inputs: Sequence[StoreFile], output: StoreFile) -> StoreFile:
    """An output of a merge, which is compacted as far as all of its inputs are."""
    horizons = [file.horizon_ms for file in inputs if file.horizon_ms != NO_HORIZON]
    return msgspec.structs.replace(
        output,
        clean_ms=min((file.clean_ms for file in inputs), default=NEVER_COMPACTED),
        horizon_ms=min(horizons, default=NO_HORIZON),
    )
