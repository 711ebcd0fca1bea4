"""Makes damaged files whole from other replicas. It works by content, since every node splits its own copy of the log.

    noted      a reader found a file that is missing or damaged (`damaged_files`)
    examined   the repair reads every byte: the file may be whole again, or have lost some extents, its index, or all
    mended     extents are fetched as batches and written in their place. A file of unknown content is copied from a
               node that has the same one; else the others say which offsets its blocks had, and those that this
               node lacks become new runs in its place

It mends one file at a time, paced as copies are. A file that no other replica can give now stays noted and is tried
again, less and less often; meanwhile a leader that cannot serve a queue hands its leadership over (`unfit`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import numpy
import numpy.typing

from mainstem.errors import MainstemError
from mainstem.kernel import LOG_START, NO_SLOT, QueueTable, crc32c
from mainstem.model import PARTITION_BITS, Buffer, Sample, Topic
from mainstem.ports import Clock
from mainstem.protocol.records import walk_batches
from mainstem.rpc.messages.repair import (
    FETCH_STRETCH_BATCHES,
    FETCH_STRETCHES,
    STRETCHES_MAX,
    FetchStretchBatches,
    FetchStretches,
    OffsetRange,
)
from mainstem.rpc.messages.snapshots import FETCH_FILE, FetchFile
from mainstem.rpc.other_nodes import Calls
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.copies.file_mending import NEW_RUN_BYTES_MAX, STRETCH, MissingOffsets
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.state.manifest_queue import ManifestQueue
from mainstem.storage.state.shared_splits import SharedSplits
from mainstem.storage.store_files.store_file import COMPACTED_CLASS, INTERNAL_CLASS, NEVER_COMPACTED, StoreFile
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_SECONDS = 10.0
"""After an attempt that left something damaged; doubled each time in a row…"""
PAUSE_SECONDS_MAX = 600.0
"""…up to this: a file that no node can give now may come back with a node, or be restored by hand."""

PATIENCE_SECONDS = 5.0
"""How long a leader keeps a leadership that it cannot serve: most repairs are over by then."""

CALL_SECONDS_MAX = 600.0
"""For a call that brings some megabytes at a paced rate; the connection notices when the other end is gone."""

RUN_SECONDS_MAX = 24 * 3600.0

STRETCHES_HELD_MAX = 20_000_000
"""Stretches of one file: more than the queues that a node has memory for."""

FAILURES = (MainstemError, OSError, ValueError)
"""The errors that keep one replica from helping, or one file from being mended now."""


class _OffsetsMissing(StorageError):
    """Another replica does not have offsets either that this one has lost."""


class FileRepair:
    """Mends the damaged files of this node."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        table: QueueTable,
        store: QueueStore,
        manifest: ManifestQueue | SharedSplits,
        placement: Placement,
        pacing: Pacing,
        clock: Clock,
        topics: Callable[[], Iterable[Topic]],
        calls: Calls | None,
    ) -> None:
        """`topics`: all that there are, as they are configured now."""
        self._node_id = node_id
        self._groups = groups
        self._table = table
        self._store = store
        self._mending = store.mending
        self._manifest = manifest
        self._placement = placement
        self._pace = partial(pacing.take, Lane.COPY)
        self._clock = clock
        self._topics = topics
        self._calls = calls
        self.mended_runs = 0
        self.fetched_bytes = 0
        self.failures = 0

    def unfit(self, group: int) -> bool:
        """Whether this node should not lead a write group, because a file of it is damaged and not mended in time."""
        if not len(self._store.damaged) or self._calls is None:
            return False
        before_ms = self._clock.now_ms() - PATIENCE_SECONDS * 1000
        return any(
            damage.since_ms <= before_ms and self._store.stored.counts(damage.name, group)
            for damage in self._store.damaged.all()
        )

    async def run(self) -> None:
        """Mend the noted files, until cancelled."""
        pause = PAUSE_SECONDS
        while True:
            noted = self._store.damaged.noted
            await noted.wait()
            noted.clear()
            if await self.mend():
                pause = PAUSE_SECONDS
                continue
            try:
                async with asyncio.timeout(pause):
                    await noted.wait()
            except TimeoutError:
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            noted.set()

    async def mend(self) -> bool:
        """Try to mend every noted file once. Returns whether all of them are whole again."""
        store = self._store
        unreadable: list[str] = []
        broken: list[tuple[str, ExtentIndex, list[int]]] = []
        for damage in store.damaged.all():
            try:
                found = await self._mending.examine(damage.name, self._pace)
            except FAILURES as error:
                log.warning("run %s cannot be examined now: %s", damage.name, error)
                continue
            if found.extents is None:
                unreadable.append(damage.name)
            elif found.bad_rows:
                broken.append((damage.name, found.extents, found.bad_rows))
            else:
                await self._mending.whole_again(damage.name, "every extent of it passes its check")
        for name, index, rows in broken:
            await self._attempt(name, partial(self._mend_extents, name, index, rows, unreadable))
        for name in unreadable:
            await self._attempt(name, partial(self._mend_run, name, unreadable))
        return not store.damaged.all()

    async def _attempt(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except FAILURES as error:
            self.failures += 1
            log.warning("run %s cannot be mended now, it is tried again: %s", name, error)
        else:
            self.mended_runs += 1

    # --- extents ------------------------------------------------------------------------------------------

    async def _mend_extents(
        self, name: str, index: ExtentIndex, rows: Sequence[int], unreadable: Sequence[str]
    ) -> None:
        """Mend these extents of a run. Raises the first error, once all others are mended. If compaction may have been,
        the run then gets its content anew: each replica compacts by itself, so that no other need have these bytes."""
        failure: Exception | None = None
        counts_for = self._mending.ranges(name)
        for row in rows:
            extent = index.rows[row]
            queue_id = int(extent["queue_id"])
            group = self._placement.group_at(queue_id, int(extent["base_offset"]))
            if group not in counts_for:
                continue  # no reader of this node is served from it
            lost = MissingOffsets(queue_id, int(extent["base_offset"]), int(extent["last_offset"]) + 1)
            try:
                await self._from_others(group, partial(self._patch, name, extent, lost))
            except FAILURES as error:
                failure = error
        if failure is not None and self._may_be_rewritten(name, index.rows["queue_id"][rows].tolist()):
            log.info("run %s is fetched by content, as its bytes cannot be had: %s", name, failure)
            await self._mend_run(name, unreadable)
            return
        if failure is not None:
            raise failure
        await self._mending.whole_again(name, f"{len(rows)} extents of it were fetched from other replicas")

    async def _patch(self, name: str, extent: numpy.void, lost: MissingOffsets, node_id: int) -> None:
        group = self._placement.group_at(lost.queue_id, lost.first)
        data = b"".join([piece async for _number, piece in self._batches(node_id, group, [lost], [False])])
        await self._mending.patch(name, extent, data)

    # --- files ---------------------------------------------------------------------------------------------

    async def _mend_run(self, name: str, unreadable: Sequence[str]) -> None:
        counts_for = self._mending.ranges(name)
        peers = sorted({node_id for group in counts_for for node_id in self._peers(group)})
        for node_id in peers:
            try:
                await self._store.copies.copy(self._store.stored.file(name), partial(self._run_of, node_id))
            except FAILURES as error:
                log.debug("node %d has no run %s to give: %s", node_id, name, error)
            else:
                return
        lost: dict[int, list[MissingOffsets]] = {}
        for group, (after, upto) in counts_for.items():
            lost[group] = await self._from_others(
                group, partial(self._lost, name, group, after, upto, list(unreadable))
            )
        file = self._store.stored.file(name)
        made = {}
        for group, pieces in lost.items():
            made[group] = await self._content(file, group, pieces)
        await self._mending.replace(name, made)
        await self._mending.whole_again(name, "its content was fetched from other replicas")
        log.info("run %s is replaced by %d runs", name, sum(map(len, made.values())))

    async def _run_of(self, node_id: int, name: str) -> AsyncIterator[bytes]:
        assert self._calls is not None, "a node with peers has calls"
        async with aclosing(
            self._calls.stream(node_id, FETCH_FILE, FetchFile(name), timeout_seconds=RUN_SECONDS_MAX)
        ) as replies:
            async for message, attachment in replies:
                yield await self._received(attachment, message.crc)

    async def _lost(
        self, name: str, group: int, after: int, upto: int, unreadable: list[str], node_id: int
    ) -> list[MissingOffsets]:
        """The stretches this node lacks of the blocks that a file was made of, as another node reports them."""
        assert self._calls is not None, "a node with peers has calls"
        request = FetchStretches(group, after, upto)
        parts: list[numpy.ndarray] = [numpy.zeros(0, STRETCH)]
        async with aclosing(
            self._calls.stream(node_id, FETCH_STRETCHES, request, timeout_seconds=CALL_SECONDS_MAX)
        ) as replies:
            async for message, attachment in replies:
                if message.reached > self._manifest.stored(group):
                    raise StorageError(f"node {node_id} split it together with blocks not split here yet")
                parts.append(numpy.frombuffer(await self._received(attachment, message.crc), STRETCH))
                if sum(map(len, parts)) > STRETCHES_HELD_MAX:
                    raise StorageError(f"node {node_id} reports more than {STRETCHES_HELD_MAX} stretches")
        stretches = numpy.concatenate(parts)
        stretches.sort(order=["queue_id", "first"])
        return await self._mending.lost(name, group, self._live(group, stretches), unreadable)

    def _live(self, group: int, stretches: numpy.ndarray) -> Iterable[tuple[int, int, int]]:
        """Yield the stretches at or behind the queues' log starts, neighbours joined, also those between which offsets
        are missing that a queue must have: another replica may have them."""
        compacted = {topic.number for topic in self._topics() if _is_compacted(topic)}
        last: tuple[int, int, int] | None = None
        for queue_id, first, end in stretches.tolist():
            slot = self._table.find(queue_id)
            if slot == NO_SLOT or self._placement.group_at(queue_id, first) != group:
                continue
            first = max(first, self._table.get(slot, LOG_START))
            if first >= end:
                continue
            if last is not None and last[0] == queue_id:
                must_have = queue_id >> PARTITION_BITS not in compacted
                if first <= last[2] or (must_have and self._placement.group_at(queue_id, last[2]) == group):
                    last = (queue_id, last[1], max(last[2], end))
                    continue
            if last is not None:
                yield last
            last = (queue_id, first, end)
        if last is not None:
            yield last

    def _may_be_rewritten(self, name: str, queue_ids: Iterable[int]) -> bool:
        """Whether compaction may have been at batches of these queues, here or elsewhere: it works on merged files, in
        which compacted queues and others lie beside each other. Another replica may have merged what is a run here, and
        what was written before its topic was compacted is in a run of another class."""
        file = self._store.stored.file(name)
        if file.is_merged or file.retention_class in (COMPACTED_CLASS, INTERNAL_CLASS):
            return True
        rewritten = {topic.number for topic in self._topics() if topic.internal or _is_compacted(topic)}
        return any(queue_id >> PARTITION_BITS in rewritten for queue_id in queue_ids)

    async def _content(self, file: StoreFile, group: int, pieces: Sequence[MissingOffsets]) -> list[StoreFile]:
        """New runs of the lost batches. Only queues that are compacted now may lack offsets. If all replicas lack some
        of the others, and the file has been compacted, their topics were compacted before. Raises `StorageError`."""
        compacted = {topic.number for topic in self._topics() if _is_compacted(topic)}
        gaps = [piece.queue_id >> PARTITION_BITS in compacted for piece in pieces]
        try:
            return await self._from_others(group, partial(self._made, file, group, pieces, gaps))
        except _OffsetsMissing as error:
            if not (file.retention_class == COMPACTED_CLASS or file.clean_ms != NEVER_COMPACTED):
                raise
            log.warning("run %s has been compacted, and is mended without what no replica has: %s", file.name, error)
        return await self._from_others(group, partial(self._made, file, group, pieces, [True] * len(pieces)))

    async def _made(
        self, like: StoreFile, group: int, pieces: Sequence[MissingOffsets], gaps: Sequence[bool], node_id: int
    ) -> list[StoreFile]:
        """Write new runs of the lost batches, some megabytes each; the runs are held until the manifest names them. Two
        pieces of a queue are in two runs: another file has what lies between them, and no extent may reach over it.
        `gaps`: whether offsets of a piece may be missing."""
        files: list[StoreFile] = []
        held: list[tuple[int, Buffer]] = []
        size = before = 0
        try:
            async with aclosing(self._batches(node_id, group, pieces, gaps)) as batches:
                async for number, data in batches:
                    queue_id = pieces[number].queue_id
                    if held and number != before and held[-1][0] == queue_id:
                        files.append(await self._mending.write(like, held))
                        held, size = [], 0
                    held.append((queue_id, data))
                    before = number
                    size += len(data)
                    if size >= NEW_RUN_BYTES_MAX:
                        files.append(await self._mending.write(like, held))
                        held, size = [], 0
            if held:
                files.append(await self._mending.write(like, held))
        except BaseException:
            for file in files:
                self._store.orphans.let_go(file.name)
            raise
        return files

    # --- asking -------------------------------------------------------------------------------------------

    def _peers(self, group: int) -> list[int]:
        return sorted(self._groups[group].consensus.voters - {self._node_id})

    async def _from_others(self, group: int, ask: Callable[[int], Awaitable[T]]) -> T:
        """Ask the replicas in turn and return the first answer. Raises `StorageError` when none can."""
        refusals: dict[int, Exception] = {}
        for node_id in self._peers(group) if self._calls is not None else ():
            try:
                return await ask(node_id)
            except FAILURES as error:
                refusals[node_id] = error
        what = "; ".join(f"node {node_id}: {error}" for node_id, error in refusals.items())
        all_lack = refusals and all(isinstance(error, _OffsetsMissing) for error in refusals.values())
        raise (_OffsetsMissing if all_lack else StorageError)(
            f"write group {group}: no replica helps ({what or 'no other node has a replica'}); restore the file from "
            "a copy"
        )

    async def _batches(
        self, node_id: int, group: int, pieces: Sequence[MissingOffsets], gaps: Sequence[bool]
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield (number, batches) of these stretches, in order. Raises `_OffsetsMissing` if some are in a stretch where
        there may be no `gaps`, `StorageError` for what does not fit."""
        assert self._calls is not None, "a node with peers has calls"
        for begin in range(0, len(pieces), STRETCHES_MAX):
            asked, may_lack = pieces[begin : begin + STRETCHES_MAX], gaps[begin : begin + STRETCHES_MAX]
            request = FetchStretchBatches(group, [OffsetRange(*piece) for piece in asked], gaps=True)
            at, position = 0, asked[0].first
            async with aclosing(
                self._calls.stream(node_id, FETCH_STRETCH_BATCHES, request, timeout_seconds=RUN_SECONDS_MAX)
            ) as replies:
                async for message, attachment in replies:
                    data = await self._received(attachment, message.crc)
                    if message.stretch != at:
                        at, position = at + 1, self._next(asked, at, position, gaps=may_lack[at])
                    if message.stretch != at:
                        raise StorageError(f"node {node_id} leaves out offsets from {position} on")
                    position = behind(data, asked[at], position, gaps=may_lack[at])
                    if data:
                        yield begin + at, data
            self._next(asked, at, position, gaps=may_lack[at])
            if at != len(asked) - 1:
                raise StorageError(f"node {node_id} gives {at + 1} of {len(asked)} stretches")

    def _next(self, asked: Sequence[MissingOffsets], at: int, position: int, *, gaps: bool) -> int:
        """The beginning of the next stretch. Raises `_OffsetsMissing` when this one lacks its end."""
        if position < asked[at].end and not gaps:
            raise _OffsetsMissing(f"queue {asked[at].queue_id:#x} ends at {position} of {asked[at].end}")
        return asked[at + 1].first if at + 1 < len(asked) else position

    async def _received(self, attachment: object, crc: int) -> bytes:
        assert isinstance(attachment, (bytes, bytearray, memoryview)), "a received attachment is bytes"
        if crc32c(attachment) != crc:
            raise StorageError("the batches that another node sent fail their CRC")
        await self._pace(len(attachment))
        self.fetched_bytes += len(attachment)
        return bytes(attachment)

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_repaired_files_total", "counter", "Damaged files made whole from other replicas.",
            self.mended_runs)  # fmt: skip
        yield Sample(
            "mainstem_repair_fetched_bytes_total", "counter", "Bytes fetched from other replicas to mend runs.",
            self.fetched_bytes)  # fmt: skip
        yield Sample(
            "mainstem_repair_failures_total", "counter", "Attempts that left a run damaged.",
            self.failures)  # fmt: skip


def _is_compacted(topic: Topic) -> bool:
    """Whether offsets of its queues may be missing: of internal topics none is."""
    return not topic.internal and "compact" in topic.settings.cleanup_policy


def behind(batches: bytes, lost: MissingOffsets, position: int, *, gaps: bool = False) -> int:
    """The offset behind batches, which must continue a stretch at `position`; with `gaps`, there or behind it. Raises
    `StorageError` if they do not."""
    for _at, header in walk_batches(batches):
        if header.base_offset > position and not gaps:
            raise _OffsetsMissing(
                f"queue {lost.queue_id:#x}: offsets {header.base_offset} to {header.last_offset} came where {position} "
                "is next"
            )
        if header.next_offset <= position or header.base_offset >= lost.end:
            raise StorageError(
                f"queue {lost.queue_id:#x}: offsets {header.base_offset} to {header.last_offset} came where {position} "
                "is next"
            )
        if header.base_offset < position and position != lost.first:
            raise StorageError(f"queue {lost.queue_id:#x}: offset {header.base_offset} came twice")
        position = header.next_offset
    return position
