"""The files that come with a snapshot of a write group: which this node keeps of its own, and those it fetches.

If the sender's version gives parts of files, nothing is fetched of other write groups, nor of blocks that are split
here already; else files are fetched whole. The fetched files are held until the snapshot is installed or given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

import numpy

from mainstem.kernel import crc32c
from mainstem.rpc.messages.snapshots import BYTE_RANGES_MAX, FETCH_FILE, FetchFile
from mainstem.rpc.other_nodes import Calls
from mainstem.storage.errors import StorageError
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.copies.continued import ends_of, queues_with_gaps
from mainstem.storage.queue_store.copies.file_copy import ByteRange
from mainstem.storage.queue_store.copies.kept_history import Wanted, choose, own_spans
from mainstem.storage.queue_store.copies.part_copy import GivesWholeFiles
from mainstem.storage.queue_store.copies.queue_offsets import NO_OFFSETS, OffsetsOfQueues
from mainstem.storage.queue_store.copies.returning_keys import ReturningKeys
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.state.snapshot_image import WriteGroupImage, log_starts_of
from mainstem.storage.store_files.store_file import StoreFile

log = logging.getLogger(__name__)

RUN_SECONDS_MAX = 24 * 3600.0

ROUNDS_MAX = 20
"""How often the member asks again for files that the leader made meanwhile, before it fetches the state in any case."""


class FileSender:
    """The node that gives the files."""

    def __init__(self, calls: Calls, node_id: int, pace: Callable[[int], Awaitable[object]]) -> None:
        """`pace` is awaited for the bytes that came."""
        self._calls = calls
        self._node_id = node_id
        self._pace = pace
        self.asked = 0
        """Calls that were made."""

    async def whole(self, name: str) -> AsyncIterator[bytes]:
        """All bytes of a file, or of one that lies beside a queue segment. Raises `RpcError`, `StorageError`."""
        async with aclosing(self._pieces(FetchFile(name))) as pieces:
            async for piece, _of_ranges in pieces:
                yield piece

    async def part(self, name: str, ranges: Sequence[ByteRange]) -> AsyncIterator[bytes]:
        """The bytes of these ranges of a file, which rise, one behind the other. Raises `GivesWholeFiles`, `RpcError`,
        `StorageError`."""
        for first in range(0, len(ranges), BYTE_RANGES_MAX):
            request = FetchFile(name, list[tuple[int, int]](ranges[first : first + BYTE_RANGES_MAX]))
            async with aclosing(self._pieces(request)) as pieces:
                async for piece, of_ranges in pieces:
                    if not of_ranges:
                        raise GivesWholeFiles(f"node {self._node_id} gives no parts of files")
                    yield piece

    async def _pieces(self, request: FetchFile) -> AsyncGenerator[tuple[bytes, bool], None]:
        self.asked += 1
        async with aclosing(
            self._calls.stream(self._node_id, FETCH_FILE, request, timeout_seconds=RUN_SECONDS_MAX)
        ) as replies:
            async for message, attachment in replies:
                assert isinstance(attachment, (bytes, bytearray, memoryview)), "as it is received"
                if crc32c(attachment) != message.crc:
                    raise StorageError(f"run {request.name}: what came of it from node {self._node_id} fails its CRC")
                await self._pace(len(attachment))
                yield bytes(attachment), message.of_ranges


class SnapshotFiles:
    """The files of one snapshot of a write group, from one sender."""

    def __init__(
        self, store: QueueStore, placement: Placement, group: int, sender: FileSender, *, keeps_own: bool
    ) -> None:
        """`keeps_own`: what is split here is part of what the sender has."""
        self._store = store
        self._placement = placement
        self._group = group
        self._sender = sender
        self._keeps_own = keeps_own
        self._parts = True
        """Whether the sender gives parts of files, as far as is known."""
        self._held: set[str] = set()
        self._ends: dict[tuple[int, int], OffsetsOfQueues] = {}
        """How far the files here go that hold blocks (after, upto]."""
        self._copied: dict[tuple[str, int], StoreFile | None] = {}
        """By the name of a file there, and the block behind which it was wanted: what has come of it."""
        self.kept_upto = 0
        """Own files with blocks up to this one stay."""
        self.ranges: list[tuple[int, int, StoreFile]] = []
        """(after, upto, file) of those that go behind these."""

    async def take(self, image_of: Callable[[bool], Awaitable[WriteGroupImage]]) -> WriteGroupImage:
        """Fetch the files of the sender's newest snapshot, again until there is nothing new, and its state last.
        `image_of(with_state)` fetches the snapshot without its files. Returns the one whose files these are. Raises
        `RpcError`, `StorageError`, OSError."""
        while True:
            for _ in range(ROUNDS_MAX):
                if not await self.fetch(await image_of(False)):
                    break
            image = await image_of(True)
            await self.fetch(image)
            if await self._nothing_comes_back(image):
                return image
            self._keeps_own = False

    async def _nothing_comes_back(self, image: WriteGroupImage) -> bool:
        """Whether no deleted key of a compacted queue is there again, with the sender's files behind what is kept."""
        stored, group, groups_at = self._store.stored, self._group, self._placement.groups_at
        files, log_starts = [file for _after, _upto, file in self.ranges], log_starts_of(image)
        gaps = await queues_with_gaps(stored, group, self.kept_upto, files, log_starts, groups_at)
        moved = numpy.fromiter(self._placement.moved, numpy.uint64)  # whose other stays are no gaps; never compacted
        gaps = gaps[~numpy.isin(gaps, moved)]
        if not len(gaps):
            return True
        keys = ReturningKeys(stored, group, self.kept_upto, gaps, log_starts, groups_at)
        try:
            await keys.check(files, image.ranges, self._sender)
        except (StorageError, OSError) as error:
            log.info("write group %d: offsets are missing behind what is split here; all is copied: %s", group, error)
            return False
        return True

    async def fetch(self, image: WriteGroupImage) -> bool:
        """Fetch what this node lacks of the snapshot's files, and note what is to count then. Returns whether anything
        was asked for. Raises `RpcError`, `StorageError`, OSError."""
        asked = self._sender.asked
        try:
            await self._fetch(image)
        except GivesWholeFiles as error:
            log.info("write group %d: %s; they are copied whole", self._group, error)
            self._parts = False
            await self._fetch(image)
        return self._sender.asked > asked

    async def _fetch(self, image: WriteGroupImage) -> None:
        manifest, damaged = self._store.manifest, self._store.damaged
        split_upto = min(manifest.position(self._group).position, image.name.index) if self._keeps_own else 0

        def is_sound(name: str) -> bool:
            file = manifest.files.get(name)
            return name not in damaged and file is not None and file.bytes > 0

        own = await own_spans(manifest.spans(self._group), is_sound)
        choice = await asyncio.to_thread(choose, own, split_upto, image.ranges, parts=self._parts)
        found = [(wanted, await self._file(wanted)) for wanted in choice.wanted]
        self.kept_upto = choice.kept_upto
        self.ranges = [(wanted.after, wanted.upto, file) for wanted, file in found if file is not None]

    async def _file(self, wanted: Wanted) -> StoreFile | None:
        """The file here that has what is wanted; None: there is nothing to have."""
        file, partly = wanted.file, wanted.holds_after < wanted.after
        if not self._parts or (file.is_merged and not partly):
            return await self._whole(file)
        key = file.name, wanted.after if partly else 0
        if key not in self._copied:
            self._copied[key] = await self._part(wanted) if partly else await self._of_group(file)
        return self._copied[key]

    async def _whole(self, file: StoreFile) -> StoreFile:
        self._hold(file.name)
        await self._store.copies.copy(file, self._sender.whole)
        return file

    async def _of_group(self, run: StoreFile) -> StoreFile | None:
        """A run may be here for other write groups."""
        self._hold(run.name)
        if await self._store.copies.is_here(run):
            return run
        return await self._from_sender(run, NO_OFFSETS)

    async def _part(self, wanted: Wanted) -> StoreFile | None:
        blocks = wanted.holds_after, wanted.after
        if blocks not in self._ends:
            self._ends[blocks] = await ends_of(self._store.stored, self._group, *blocks, self._placement.groups_at)
        return await self._from_sender(wanted.file, self._ends[blocks])

    async def _from_sender(self, file: StoreFile, kept: OffsetsOfQueues) -> StoreFile | None:
        groups_at = self._placement.groups_at
        found = await self._store.parts.copy(file, self._group, groups_at, kept, self._sender)
        if found is not None:
            self._hold(found.name)
            self._store.orphans.let_go(found.name)  # it came held
        return found

    def _hold(self, name: str) -> None:
        if name not in self._held:
            self._held.add(name)
            self._store.orphans.hold(name)

    def let_go(self) -> None:
        """Hold nothing any more."""
        while self._held:
            self._store.orphans.let_go(self._held.pop())
