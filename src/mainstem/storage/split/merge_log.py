"""Shows splitters what to merge, and records what they merged.

Nothing is given before the cluster's feature level allows files on levels. Which offsets of a queue are kept is told
with what the node knows at that moment, and once that cannot be taken back any more.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy

from mainstem.model import Topic
from mainstem.rpc.messages.merge import MergeGone, MergeInput, MergeTopic, MergeWork
from mainstem.rpc.messages.split import FileDescription, MergeWaits
from mainstem.rpc.wire.identity import host_identity
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.extents.offset_gaps import NO_GAPS, OffsetGaps
from mainstem.storage.merging.merge_lines import Integers, MergeLines
from mainstem.storage.merging.segment_lines import SegmentLines
from mainstem.storage.queue_store.changes.aged_runs import AgedOf, none_aged
from mainstem.storage.queue_store.changes.merge_facts import BordersOf, LiveBounds, no_borders
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.shared_queue_store import SharedQueueStore
from mainstem.storage.split.earlier_splitters import has_joined, without_joined
from mainstem.storage.split.merge_room import MergeRoom
from mainstem.storage.store_files.store_file import StoreFile

TOPICS_PER_TURN = 2_000
"""Topics looked at in one turn of the event loop: about a millisecond."""


async def no_ages() -> AgedOf:
    """The limits where runs wait until they are enough."""
    return none_aged


class LocalMergeLog:
    """`MergeLog` over this node's queue store."""

    def __init__(
        self,
        store: QueueStore | SharedQueueStore,
        groups: int,
        bounds_in: Callable[[int, QueueIds], tuple[Integers, Integers]],
        log_starts: Callable[[QueueIds], Integers],
        confirm: Callable[[], Awaitable[None]],
        topics: Callable[[], Iterable[Topic]],
        class_of: Callable[[Topic], str],
        allowed: Callable[[], bool],
        lines: MergeLines | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        borders: BordersOf = no_borders,
        ages: Callable[[], Awaitable[AgedOf]] = no_ages,
        gaps_in: Callable[[int, QueueIds], OffsetGaps] = lambda group, queue_ids: NO_GAPS,
        room: MergeRoom | None = None,
        joins: Callable[[], bool] = lambda: False,
    ) -> None:
        """`bounds_in` and `log_starts` say which offsets of queues a write group has, and which are live; `gaps_in`:
        which offsets between them it lacks; `confirm`
        returns when the log starts of before can no longer be taken back; `allowed`: merged files may be written;
        `borders`: how far the remote tier has come; `ages`: for how long runs wait at the most; `room`: the one
        command that names all files of a merge, None: a manifest takes however many; `joins`: queue segments are
        to be one file each."""
        self._store = store
        self._groups = groups
        self._bounds_in = bounds_in
        self._log_starts = log_starts
        self._confirm = confirm
        self._topics = topics
        self._class_of = class_of
        self._allowed = allowed
        self.lines = lines or MergeLines()
        self._new_id = new_id
        self._borders = borders
        self._ages = ages
        self._gaps_in = gaps_in
        self._room = room
        self._joins = joins

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._groups = groups

    async def work(
        self, in_force: Callable[[], bool], kept: Sequence[str], *, drain: bool, joins: bool = True
    ) -> MergeWork:
        merges = self._store.merges
        merges.give_up(but=kept)
        if not self._allowed():
            return MergeWork()
        topics = await self._known_topics()
        merge_id = self._new_id().hex
        lines = self._lines_in_room()
        left: set[int] = set()
        """Write groups that have a merge which whoever asks cannot do: `begin` comes to the others first."""
        while True:
            merge, more = await merges.begin(
                merge_id, self._groups, lines, SegmentLines(topics, lines), self._bounds, in_force, drain=drain,
                borders=self._borders, aged=await self._ages(),
            )  # fmt: skip
            if merge is None or joins or not has_joined(merge.inputs):
                break
            merges.end(merge_id)
            if merge.group in left:
                raise without_joined("merge", left)
            left.add(merge.group)
        if merge is None and left and not more:
            raise without_joined("merge", left)
        if merge is None:
            return MergeWork(more=more)
        return MergeWork(
            merge_id=merge_id,
            more=more,
            group=merge.group,
            level=merge.level,
            inputs=tuple(
                MergeInput(file.message(), entry.after, entry.upto)
                for entry, file in zip(merge.entries, merge.inputs, strict=True)
            ),
            topics=topics,
            packed_bytes=lines.packed_bytes,
            task_bytes=lines.task_bytes,
            output_files_max=self._room.outputs_beside(file.name for file in merge.inputs) if self._room else 0,
            joined=self._joins(),
            host=host_identity(),
        )

    @property
    def allowed(self) -> bool:
        """Whether the cluster's feature level lets files be merged."""
        return self._allowed()

    async def waits(self) -> MergeWaits:
        """How much the next merge would take, as far as files could be looked at in some seconds."""
        if not self._allowed():
            return MergeWaits(0)
        lines = self._lines_in_room()
        segment_lines = SegmentLines(await self._known_topics(), lines)
        return await self._store.merges.waits(
            self._groups, lines, segment_lines, self._bounds, self._borders, await self._ages()
        )

    def is_busy(self) -> bool:
        """Whether a merge is under way."""
        return self._store.merges.is_busy()

    def unmerged_bytes(self) -> int:
        """Bytes of runs."""
        return self._store.merges.unmerged_bytes()

    async def live(self, merge_id: str, queue_ids: QueueIds) -> LiveBounds:
        merge = self._store.merges.under_way(merge_id)
        if merge is None:
            raise MergeGone(f"merge {merge_id} is not under way")
        found = self._bounds(merge.group, queue_ids)
        await self._confirm()
        return found

    async def record(self, merge_id: str, files: Sequence[FileDescription]) -> str:
        try:
            await self._store.merges.record(merge_id, list(map(StoreFile.of, files)), self._bounds)
        except (StorageError, OSError) as error:
            return f"refused: {error}"
        return "merged"

    def damaged(self, merge_id: str, name: str, reason: str) -> None:
        merge = self._store.merges.under_way(merge_id)
        if merge is None or not any(file.name == name for file in merge.inputs):
            raise MergeGone(f"merge {merge_id} is not under way, or {name} is none of its inputs")
        self._store.damaged.note(name, FormatError(reason))

    def _bounds(self, group: int, queue_ids: QueueIds) -> LiveBounds:
        firsts, ends = self._bounds_in(group, queue_ids)
        starts = numpy.maximum(firsts, self._log_starts(queue_ids))
        return LiveBounds(starts, ends, self._gaps_in(group, queue_ids))

    def _lines_in_room(self) -> MergeLines:
        return self.lines if self._room is None else self._room.lines(self.lines)

    async def _known_topics(self) -> dict[int, MergeTopic]:
        known: dict[int, MergeTopic] = {}
        for looked_at, topic in enumerate(self._topics(), 1):
            settings = topic.settings
            known[topic.number] = MergeTopic(
                topic.name, self._class_of(topic), settings.segment_bytes, settings.segment_records
            )
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return known
