"""Remote files in which nothing is live count no more: the leader of their write group says so, and their objects are
deleted then (`storage/remote/`).

A log start that has moved, and a topic that was deleted, come before that in the same write group's log or in the
metadata, so no replica hears of the end of a file before it knows that its records are dead. A file is not looked at
while its first batch is live, which its description tells, nor while its witness is: an extent that was live at the
last look. The indexes of all others are read from the store, but for files that have a deleted topic's records alone.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable

import numpy
import numpy.typing

from mainstem.model import Sample, topic_number_of
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import GONE, QueueLiveness
from mainstem.storage.queue_store.changes.file_retention import DroppedFiles
from mainstem.storage.queue_store.manifest.in_memory.file_table import Page
from mainstem.storage.store_files.store_file import MANY_GROUPS, StoreFile
from mainstem.storage.upkeep.remote_files import RemoteFiles

log = logging.getLogger(__name__)

NAMES_BYTES_MAX = 8_192
"""Names in one command: with these it fits into the smallest segment there can be."""


class RemoteRetention:
    """Finds the dead files of the write groups that this node leads."""

    def __init__(
        self,
        remote: RemoteFiles,
        leads: Callable[[int], bool],
        placement: Placement,
        liveness: QueueLiveness,
        *,
        is_held: Callable[[str], bool] = lambda name: False,
        names_bytes_max: int = NAMES_BYTES_MAX,
    ) -> None:
        """`leads`: whether this node leads a write group; `is_held`: whether work under way needs a file."""
        self._is_held = is_held
        self._remote = remote
        self._leads = leads
        self._placement = placement
        self._liveness = liveness
        self._names_bytes_max = names_bytes_max
        self._dropped_files = 0
        self._dropped_bytes = 0

    @property
    def dropped(self) -> DroppedFiles:
        """Those in which this node, as a leader, found nothing live."""
        return DroppedFiles(self._dropped_files, self._dropped_bytes)

    async def run(self) -> None:
        """One round over all remote files."""
        dead: dict[int, list[StoreFile]] = {}
        async for file in self._without_witness():
            group = min(self._remote.manifest.counts_for(file.name), default=None)
            if group is None or not self._leads(group) or self._is_held(file.name):
                continue
            if await self._is_dead(file, group):
                names = dead.setdefault(group, [])
                names.append(file)
                if sum(len(one.name.encode()) for one in names) >= self._names_bytes_max:
                    await self._forget(group, dead.pop(group))
        for group, files in dead.items():
            await self._forget(group, files)

    async def _forget(self, group: int, files: list[StoreFile]) -> None:
        outcome = await self._remote.forget(group, [file.name for file in files])
        if outcome != "recorded":
            log.info("write group %d: %d dead remote files still count: %s", group, len(files), outcome)
            return
        self._dropped_files += len(files)
        self._dropped_bytes += sum(file.bytes for file in files)
        log.info("write group %d: %d remote files had nothing live in them, and count no more", group, len(files))

    async def _without_witness(self) -> AsyncIterator[StoreFile]:
        """Yield the files that may have nothing live in them."""
        files = self._remote.manifest.files
        async for page in files.each_page():
            for at in self._unsure(page):
                if page.alive[at]:
                    yield page.rows.file(at)

    def _unsure(self, page: Page) -> list[int]:
        """The places of the files of a page whose witness is not live. A file without one has the first offset of its
        first queue for one."""
        places, queue_ids, last_offsets = page.witnesses()
        first_queues = page.rows.column("first_queue")[places].astype(numpy.uint64)
        first_offsets = page.rows.column("first_offset")[places]
        unknown = last_offsets < 0
        queue_ids = numpy.where(unknown, first_queues, queue_ids)
        last_offsets = numpy.where(unknown, first_offsets, last_offsets)
        live = last_offsets >= self._liveness.log_starts(queue_ids)
        live &= ~unknown | (page.rows.column("group")[places] != MANY_GROUPS)  # a run does not say what it begins with
        unsure: list[int] = places[~live].tolist()
        return unsure

    async def _is_dead(self, file: StoreFile, group: int) -> bool:
        if self._is_of_deleted_topic(file):
            return True
        rows = await self._remote.rows_of(file.name, [group], self._placement.groups_at)
        if rows is None or not len(rows):
            return False  # what is in it is not known now
        margins = await self._liveness.margins(rows)
        best = int(margins.argmax())
        if int(margins[best]) < 0:
            return True
        self._remote.manifest.files.witness(file.name, (int(rows["queue_id"][best]), int(rows["last_offset"][best])))
        return False

    def _is_of_deleted_topic(self, file: StoreFile) -> bool:
        """Whether the topic of all its queues is known to be deleted."""
        if not file.is_merged or topic_number_of(file.first_queue) != topic_number_of(file.last_queue):
            return False
        ends = numpy.array([file.first_queue, file.last_queue], numpy.uint64)
        return bool((self._liveness.log_starts(ends) == GONE).all())

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        for what, text, value in (
            ("files", "Remote files that this node, as a leader, found nothing live in", self._dropped_files),
            ("bytes", "Bytes of remote files that this node, as a leader, found nothing live in", self._dropped_bytes),
        ):
            yield Sample(f"mainstem_remote_dropped_{what}_total", "counter", text, value)
