"""Compactions of one store, from the choice of what is worth it to the step that puts outputs in the place of inputs.

A pass works on the merged files of a write group that come before its first runs (`compact_plan`), and is held as a
merge is: while it is under way nothing else replaces its inputs, and no merge of the write group begins.

The sums of each compacted queue in a file are added up from its index, and kept while there is room for them; of files
without any, memory has a mark. A write group whose sums have no room beside each other is looked at in ranges of its
queues (`gathered_queues`), index by index for each; a look that takes long is continued at the next question, and the
next one begins at the range in which the last pass was. If only some queues of a file were in a pass, memory knows
which; after a start, or where that took too much room, they are compacted once more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy

from mainstem.lru import Lru
from mainstem.model import PARTITION_BITS, Sample
from mainstem.ports import Clock
from mainstem.rpc.messages.split import MergeWaits
from mainstem.storage.compacting.compact_check import PassSums, compare
from mainstem.storage.compacting.compact_plan import (
    CompactFile,
    Flags,
    Parts,
    PassedQueues,
    PassPlan,
    QueueRows,
    RulesOf,
    parts_of,
    plan,
)
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.queue_store.changes.being_copied import BeingCopied
from mainstem.storage.queue_store.changes.file_changes import Expecting, FileChanges, all_are_here
from mainstem.storage.queue_store.changes.gathered_queues import FILE_BYTES, FileParts, GatheredQueues, bytes_of
from mainstem.storage.queue_store.changes.merge_facts import QUEUES_PER_TURN
from mainstem.storage.queue_store.changes.merges import DONE_REMEMBERED, LOOK_SECONDS_MAX, HeldFor, Merge, Merges
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.row_facts import RowFacts
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.reading.open_files import FileGone, KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import NO_HORIZON, StoreFile

log = logging.getLogger(__name__)

FILES_PER_TURN = 256
"""Files that are gathered in one turn of the event loop: some milliseconds."""

NO_BOUND = 1 << 62
"""`_keep_within` bounds what is remembered."""

MARK = numpy.dtype([("mark", "u1")])
MARK_BYTES_MAX = 16 * 1024 * 1024
"""For so many files; the indexes of more are read whenever something may be compacted."""

PARTS_BYTES_MAX = 64 * 1024 * 1024
"""Of sums of all write groups, and once more of those in the range that is looked at: some 1.4 million parts of queues.
They are the same while all have room."""

PASSED_BYTES_MAX = 16 * 1024 * 1024
"""For a million queues that were in a pass that left others of their file out."""

LOOK_AGAIN_SECONDS = 600.0
"""A write group of which nothing is worth it is looked at again after this long, or when its files change."""


_NONE = numpy.zeros(0, numpy.int64)
NO_PARTS = Parts(numpy.zeros(0, numpy.uint64), _NONE, _NONE, _NONE, _NONE, _NONE)


class CompactionRules(NamedTuple):
    """The settings of topics that decide what is compacted."""

    topics: frozenset[int]
    """The numbers of those that are compacted."""
    covered: frozenset[int]
    """Those of which no batch is left out (`covering.py`)."""
    rules_of: RulesOf
    whole_in: Callable[[int, QueueIds], Flags]
    """Tells which of these queues have been in this write group only."""


class CompactionPass(NamedTuple):
    """A pass under way."""

    group: int
    began_ms: int
    entries: tuple[FileRange, ...]
    inputs: tuple[StoreFile, ...]
    whole: tuple[bool, ...]
    """Of each input, whether all of its queues are in the pass that can be compacted now."""
    queues: QueueRows
    covered: frozenset[int]
    """Topics of which no batch is left out."""


class DonePass(NamedTuple):
    """A pass that was recorded."""

    group: int
    inputs: int
    outputs: int
    bytes_before: int
    """Of batches."""
    bytes_after: int
    at: float
    """By the monotonic clock."""


@dataclass
class _Look:
    """A look at the merged files of a write group before its first runs, for the queues of one range."""

    group: int
    spans: SpanList
    range: GatheredQueues
    since_first: bool
    """Whether all queues before the range were looked at, in the same files."""
    span: int = 0
    """It has come to this span…"""
    file: int = 0
    """…and this file of it."""


class _Chosen(NamedTuple):
    group: int
    files: Sequence[FileParts]
    """The files that the plan is of."""
    plan: PassPlan


class _NothingWorth(NamedTuple):
    spans: SpanList
    end: int
    until: float


class Compactions:
    """The compactions of one store."""

    def __init__(
        self,
        stored: StoredFiles,
        changes: FileChanges,
        being_copied: BeingCopied,
        orphans: Orphans,
        merges: Merges,
        clock: Clock,
        expecting: Expecting = all_are_here,
    ) -> None:
        """`expecting` lets outputs be read that do not count yet."""
        self._expecting = expecting
        self._stored = stored
        self._manifest = stored.manifest
        self._changes = changes
        self._being_copied = being_copied
        self._orphans = orphans
        self._merges = merges
        self._clock = clock
        self._topics: frozenset[int] = frozenset()
        """Those that `_parts` knows of."""
        self._parts: Lru[str, Parts] = Lru(NO_BOUND, bytes_of)
        """Of files that have queues of these topics."""
        self.parts_bytes_max = PARTS_BYTES_MAX
        self._without = RowFacts(MARK, self._manifest.files.page_files, MARK_BYTES_MAX)
        """1 for files that have none."""
        self._passed: Lru[str, PassedQueues] = Lru(
            NO_BOUND, lambda passed: passed.queue_ids.nbytes + passed.horizons_ms.nbytes + FILE_BYTES
        )
        self.passed_bytes_max = PASSED_BYTES_MAX
        self._look: _Look | None = None
        """The look that is not at its end."""
        self._looking = asyncio.Lock()
        self._first_queues: dict[int, int] = {}
        """By write group, where the range begins in which a pass was found last, if that is not the first one."""
        self._nothing: dict[int, _NothingWorth] = {}
        self._passes: dict[str, CompactionPass] = {}
        self._done: dict[str, frozenset[str]] = {}
        """Names of the outputs of passes that were recorded."""
        self._next_group = 0
        self.passes = 0
        self.removed_bytes = 0
        self.last: DonePass | None = None
        """The last one that was recorded since the start."""

    # --- choosing -------------------------------------------------------------------------------------------

    async def begin(
        self,
        pass_id: str,
        groups: int,
        rules: CompactionRules,
        now_ms: int,
        in_force: Callable[[], bool],
        *,
        drain: bool = False,
    ) -> tuple[CompactionPass | None, bool]:
        """Choose what to compact next, one write group after the other, and hold it while `in_force`. `now_ms`: the
        agreed time. Returns None where nothing is worth it, and whether some files were not looked at yet."""
        found, more = await self._chosen(groups, rules, now_ms, drain=drain)
        if found is None:
            return None, more
        self._next_group = found.group + 1
        begun = self._begun(pass_id, found, rules.covered, now_ms, in_force)
        await self._say_what_drops(begun, rules)
        return begun, more

    async def waits(self, groups: int, rules: CompactionRules, now_ms: int) -> MergeWaits:
        """The work that the next pass would take, were it begun now. Nothing is begun."""
        found, more = await self._chosen(groups, rules, now_ms, drain=False)
        if found is None:
            return MergeWaits(0, more)
        names = [found.files[one.number].entry.name for one in found.plan.inputs]
        return MergeWaits(sum(self._manifest.files[name].batch_bytes for name in names), more)

    async def _chosen(
        self, groups: int, rules: CompactionRules, now_ms: int, *, drain: bool
    ) -> tuple[_Chosen | None, bool]:
        """Choose what to compact next, and tell whether some files were not looked at yet."""
        async with self._looking:
            self._forget(rules)
            if not rules.topics:
                return None, False
            give_up = self._clock.monotonic() + LOOK_SECONDS_MAX
            more = False
            first = self._look.group if self._look is not None else self._next_group
            for step in range(groups):
                group = (first + step) % groups
                if self._merges.holds_of(group) or not self._merges.works_on(group):
                    continue
                if not drain and self._is_known_for_nothing(group):
                    continue
                found, in_time = await self._chosen_of(group, rules, now_ms, give_up, drain=drain)
                more = more or not in_time
                if found is not None or self._look is not None:
                    return found, more
            return None, more

    async def _chosen_of(
        self, group: int, rules: CompactionRules, now_ms: int, give_up: float, *, drain: bool
    ) -> tuple[_Chosen | None, bool]:
        """The pass that is worth it in a write group, and whether all of it could be looked at now. The look is kept if
        the time was not enough for it."""
        while True:
            look = self._look if self._look is not None and self._look.group == group else None
            if look is None or not self._stands(look, min(look.span + 1, len(look.spans))):
                first = self._first_queues.get(group, 0)
                spans = self._manifest.spans(group)
                look = self._look = _Look(group, spans, GatheredQueues(first, self.parts_bytes_max), first == 0)
            if not await self._gather(look, rules, give_up):
                return None, False
            gathered, self._look = look.range, None
            if not look.span:
                return None, True
            files = [self._file(file) for file in gathered.files if file.entry.name in self._manifest.files]
            found = None
            if files and len(files) == len(gathered.files):
                found = await asyncio.to_thread(plan, files, rules.rules_of, now_ms, drain=drain)
            if self._merges.holds_of(group) or not self._stands(look, look.span):
                return None, False
            if self._has_damage(look):
                return None, True
            if found is not None:
                self._first_queues[group] = gathered.first
                return _Chosen(group, gathered.files, found), True
            if not gathered.is_last:
                following = GatheredQueues(gathered.end, self.parts_bytes_max)
                self._look = _Look(group, look.spans, following, look.since_first)
                if self._clock.monotonic() >= give_up:
                    return None, False
                continue
            self._first_queues.pop(group, None)
            if look.since_first:
                until = self._clock.monotonic() + LOOK_AGAIN_SECONDS
                self._nothing[group] = _NothingWorth(look.spans, look.span, until)
                return None, True

    def _stands(self, look: _Look, end: int) -> bool:
        """Whether the spans before number `end` are as they were when the look began."""
        return self._manifest.spans(look.group).has(look.spans, 0, end)

    def _has_damage(self, look: _Look) -> bool:
        """Whether one of all the files that were looked at is known to be damaged by now."""
        upto = look.spans[look.span - 1].upto
        damaged = (entry for damage in self._stored.damaged.all() for entry in self._manifest.entries(damage.name))
        return any(entry.group == look.group and entry.upto <= upto for entry in damaged)

    def _is_known_for_nothing(self, group: int) -> bool:
        known = self._nothing.get(group)
        if known is None or self._clock.monotonic() >= known.until:
            return False
        spans = self._manifest.spans(group)
        same = len(spans) >= known.end and spans.has(known.spans, 0, known.end)
        return same and (len(spans) == known.end or bool(spans[known.end].runs))

    async def _gather(self, look: _Look, rules: CompactionRules, give_up: float) -> bool:
        """Go on with a look, up to the first span with runs; back to the first span if a file is known to be damaged.
        False: the time is over, or a file is gone or cannot be read, so that the look is given up. One index is read in
        any case, so that each question comes nearer to the end."""
        gathered = read = 0
        while look.span < len(look.spans):
            span = look.spans[look.span]
            if span.runs:
                return True
            files = list(span)
            gathered += 1
            while look.file < len(files):
                gathered += 1
                if gathered >= FILES_PER_TURN:
                    gathered = 0
                    await asyncio.sleep(0)
                entry = files[look.file]
                if entry.name in self._stored.damaged:
                    look.span = 0
                    return True
                file = self._manifest.files.get(entry.name)
                if file is None:
                    self._look = None
                    return False
                if look.range.overlaps(file.first_queue, file.last_queue):
                    if read and self._clock.monotonic() >= give_up:
                        return False
                    known = self._known_parts(entry.name)
                    read += known is None
                    parts = known if known is not None else await self._read_parts(entry.name, rules)
                    if parts is None:
                        self._look = None
                        return False
                    look.range.add(entry, parts)
                look.file += 1
            look.span, look.file = look.span + 1, 0
        return True

    def _known_parts(self, name: str) -> Parts | None:
        """The sums of compacted queues in a file, if memory has them; `NO_PARTS`: it has none."""
        known = self._parts.get(name)
        row = self._manifest.files.row_of(name)
        return NO_PARTS if known is None and row is not None and self._without.get(row) is not None else known

    async def _read_parts(self, name: str, rules: CompactionRules) -> Parts | None:
        """The same from its index. None: that cannot be read now."""
        row = self._manifest.files.row_of(name)
        if row is None:
            return None
        try:
            index = await self._stored.open_files.index(self._stored.search.known(name), keep=False)
        except (FileGone, StorageError, OSError):  # noted there
            return None
        parts = await asyncio.to_thread(parts_of, index)
        parts = parts.of(rules.rules_of(parts.queue_ids).compacted)
        if not len(parts.queue_ids):
            self._without.put(row, (1,))
            return NO_PARTS
        self._parts.put(name, parts)
        _keep_within(self._parts, self.parts_bytes_max)
        return parts

    def _forget(self, rules: CompactionRules) -> None:
        """Forget what is known under other topics, and of files that are gone."""
        if rules.topics != self._topics:
            self._topics = rules.topics
            self._parts.clear()
            self._without.clear()
            self._nothing.clear()
            self._first_queues.clear()
            self._look = None
        self._without.keep(self._manifest.files.pages)
        for name in [name for name in self._passed if name not in self._manifest.files]:
            self._passed.pop(name)
        self._passes = {one: each for one, each in self._passes.items() if self._merges.under_way(one) is not None}

    def _file(self, found: FileParts) -> CompactFile:
        name = found.entry.name
        file, passed = self._manifest.files[name], self._passed.get(name)
        return CompactFile(found.parts, file.batch_bytes, file.clean_ms, file.horizon_ms, passed, found.reaches_beyond)

    def _begun(
        self, pass_id: str, found: _Chosen, covered: frozenset[int], now_ms: int, in_force: Callable[[], bool]
    ) -> CompactionPass:
        chosen = tuple(found.files[one.number].entry for one in found.plan.inputs)
        files = tuple(self._manifest.files[entry.name] for entry in chosen)
        whole = tuple(one.is_whole for one in found.plan.inputs)
        queues = found.plan.queues
        topics = numpy.unique(queues["queue_id"] >> numpy.uint64(PARTITION_BITS)).tolist()
        begun = CompactionPass(found.group, now_ms, chosen, files, whole, queues, covered.intersection(topics))
        level = max(file.level for file in files)
        since = self._clock.monotonic()
        self._merges.hold(pass_id, Merge(found.group, level, chosen, files, in_force, since, HeldFor.COMPACTION))
        self._passes[pass_id] = begun
        return begun

    async def _say_what_drops(self, begun: CompactionPass, rules: CompactionRules) -> None:
        queue_ids = numpy.ascontiguousarray(begun.queues["queue_id"])
        for first in range(0, len(queue_ids), QUEUES_PER_TURN):
            part = slice(first, first + QUEUES_PER_TURN)
            begun.queues["drops"][part] = rules.whole_in(begun.group, queue_ids[part])
            await asyncio.sleep(0)

    # --- recording ------------------------------------------------------------------------------------------

    async def record(self, pass_id: str, outputs: Mapping[str, Sequence[StoreFile]]) -> None:
        """Put the outputs of a pass, by the names of its inputs, in their place. Durable when it returns; nothing
        happens when this was done before. Raises `StorageError`, OSError, nothing being changed."""
        names = frozenset(file.name for files in outputs.values() for file in files)
        if self._done.get(pass_id) == names:
            return
        begun = self._passes.get(pass_id)
        if begun is None or self._merges.under_way(pass_id) is None:
            raise StorageError("this compaction is not under way: its lease has ended, or it was given up")
        if outputs.keys() != {entry.name for entry in begun.entries}:
            raise StorageError("a compaction has outputs for other inputs than it was given")
        recorded = {
            entry: [_as_clean(file, old, begun.began_ms, whole=whole) for file in outputs[entry.name]]
            for entry, old, whole in zip(begun.entries, begun.inputs, begun.whole, strict=True)
        }
        held = [*names, *(entry.name for entry in begun.entries)]  # also when the lease ends meanwhile
        for name in held:
            self._orphans.hold(name)
        try:
            with self._expecting(begun.group, [file for files in recorded.values() for file in files]):
                await self._check(begun, recorded)
            await self._changes.rewrite(begun.group, recorded, self._being_copied.is_kept)
        finally:
            for name in held:
                self._orphans.let_go(name)
        self._merges.end(pass_id)
        self._passes.pop(pass_id, None)
        self._remember(begun, outputs)
        self._note(pass_id, begun, names, [file for files in recorded.values() for file in files])

    async def _check(self, begun: CompactionPass, outputs: Mapping[FileRange, Sequence[StoreFile]]) -> None:
        """Raises `StorageError` unless the outputs are what compaction may leave of the inputs."""
        before, after = PassSums(begun.queues), PassSums(begun.queues)
        for entry, files in outputs.items():
            known = self._stored.search.known(entry.name)
            await asyncio.to_thread(before.add, await self._stored.open_files.index(known, keep=False))
            for file in files:
                await self._stored.verify(file)
                await asyncio.to_thread(
                    after.add, await self._stored.open_files.index(KnownFile(file.name), keep=False)
                )
        await asyncio.to_thread(compare, before, after, begun.covered)

    def _remember(self, begun: CompactionPass, outputs: Mapping[str, Sequence[StoreFile]]) -> None:
        """Remember the queues of the pass in files whose other queues are not compacted yet."""
        mine = numpy.ascontiguousarray(begun.queues["queue_id"])
        for old, whole in zip(begun.inputs, begun.whole, strict=True):
            known = self._passed.pop(old.name)
            self._parts.pop(old.name)
            if whole:
                continue
            for file in outputs[old.name]:
                queue_ids = mine[(mine >= file.first_queue) & (mine <= file.last_queue)]
                before = known or PassedQueues.of_pass(queue_ids[:0], NO_HORIZON)
                passed = before.with_pass(queue_ids, file.horizon_ms)
                if len(passed.queue_ids):
                    self._passed.put(file.name, passed)
                    _keep_within(self._passed, self.passed_bytes_max)

    def _note(self, pass_id: str, begun: CompactionPass, names: frozenset[str], files: Sequence[StoreFile]) -> None:
        self._done[pass_id] = names
        while len(self._done) > DONE_REMEMBERED:
            del self._done[next(iter(self._done))]
        before = sum(file.batch_bytes for file in begun.inputs)
        after = sum(file.batch_bytes for file in files)
        self.passes += 1
        self.removed_bytes += before - after
        now = self._clock.monotonic()
        self.last = DonePass(begun.group, len(begun.inputs), len(files), before, after, now)
        log.info(
            "write group %d: %d queues are compacted, %d files of %d bytes into %d of %d", begun.group,
            len(begun.queues), len(begun.inputs), before, len(files), after,
        )  # fmt: skip

    @property
    def held_bytes(self) -> int:
        """Of what is remembered of files."""
        look = self._look
        return self._parts.held + self._passed.held + (look.range.held_bytes if look is not None else 0)

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample(
            "mainstem_queue_store_compactions_total", "counter", "Compactions that were recorded.",
            self.passes)  # fmt: skip
        yield Sample(
            "mainstem_queue_store_compacted_bytes_total", "counter", "Bytes of batches that compactions removed.",
            self.removed_bytes)  # fmt: skip


def _keep_within(remembered: Lru[str, Parts] | Lru[str, PassedQueues], bytes_max: int) -> None:
    """Forget the files that were looked at longest ago."""
    while remembered.held > bytes_max and len(remembered) > 1:
        remembered.pop(next(iter(remembered)))


def _as_clean(output: StoreFile, old: StoreFile, began_ms: int, *, whole: bool) -> StoreFile:
    """An output as the manifest has it: where some queues were left out, it is as clean as its input was."""
    if whole:
        return msgspec.structs.replace(output, clean_ms=began_ms, retention_class=old.retention_class)
    return msgspec.structs.replace(
        output,
        clean_ms=old.clean_ms,
        horizon_ms=_first_horizon([output.horizon_ms, old.horizon_ms]),
        retention_class=old.retention_class,
    )


def _first_horizon(horizons: Sequence[int]) -> int:
    return min((horizon for horizon in horizons if horizon != NO_HORIZON), default=NO_HORIZON)
