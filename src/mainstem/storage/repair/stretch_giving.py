"""Gives other nodes what they need to mend their files: the offsets that this one has of some blocks, and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import numpy
import numpy.typing

from mainstem.kernel import COMMITTED_END, NO_SLOT, QueueTable, crc32c
from mainstem.ports import Clock
from mainstem.protocol.records import read_batch_header
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.repair import (
    FETCH_STRETCH_BATCHES,
    FETCH_STRETCHES,
    BatchesPart,
    FetchStretchBatches,
    FetchStretches,
    RepairRefused,
    StretchesPart,
)
from mainstem.rpc.wire.method import Reply
from mainstem.storage.cluster.snapshot_sending import ByteRate
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.copies.file_mending import STRETCH
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.reading.read_path import ReadPath
from mainstem.storage.state.manifest_queue import ManifestQueue
from mainstem.storage.state.shared_splits import SharedSplits

ROWS_PER_PART = 10_000
"""Stretches in one part: 240 KB."""

READ_BYTES = 256 * 1024
"""Bytes given at a time."""


class StretchGiving:
    """Answers the repairs of other nodes, paced as copies are."""

    def __init__(
        self,
        node_id: int,
        group_count: int,
        table: QueueTable,
        store: QueueStore,
        manifest: ManifestQueue | SharedSplits,
        placement: Placement,
        read_path: ReadPath,
        pacing: Pacing,
        clock: Clock,
        *,
        bytes_per_second: int,
    ) -> None:
        self._node_id = node_id
        self._group_count = group_count
        self._table = table
        self._store = store
        self._manifest = manifest
        self._placement = placement
        self._read_path = read_path
        self._pace = partial(pacing.take, Lane.COPY)
        self._rate = ByteRate(clock, bytes_per_second)

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._group_count = groups

    def register(self, handlers: Handlers) -> None:
        handlers.stream(FETCH_STRETCHES, self._give_stretches)
        handlers.stream(FETCH_STRETCH_BATCHES, self._give_batches)

    async def _give_stretches(self, call: RpcCall[FetchStretches]) -> AsyncIterator[Reply[StretchesPart]]:
        """Raises `RepairRefused` when this node cannot give them."""
        number, after, upto = call.request.group, call.request.after, call.request.upto
        if number >= self._group_count or self._manifest.stored(number) < upto:
            raise RepairRefused(f"node {self._node_id} has not split write group {number} up to block {upto}")
        try:
            with self._store.being_copied.kept(number):
                reached, found = await self._store.mending.stretches(
                    number, after, upto, partial(self._rows_of_group, number)
                )
        except (StorageError, OSError) as error:
            raise RepairRefused(f"node {self._node_id}: {error}") from error
        for rows in found or [numpy.zeros(0, STRETCH)]:
            for first in range(0, max(len(rows), 1), ROWS_PER_PART):
                content = rows[first : first + ROWS_PER_PART].tobytes()
                yield Reply(StretchesPart(reached, crc32c(content)), content)

    def _rows_of_group(self, number: int, index: ExtentIndex) -> numpy.typing.NDArray[numpy.bool_]:
        """Which rows of an index are of a write group."""
        groups = self._placement.groups_at(index.rows["queue_id"], index.rows["base_offset"])
        which: numpy.typing.NDArray[numpy.bool_] = groups == number
        return which

    async def _give_batches(self, call: RpcCall[FetchStretchBatches]) -> AsyncIterator[Reply[BatchesPart]]:
        """Raises `RepairRefused` when this node cannot give them."""
        number = call.request.group
        for place, stretch in enumerate(call.request.stretches):
            if self._placement.group_at(stretch.queue_id, stretch.first) != number:
                raise RepairRefused(f"queue {stretch.queue_id:#x} is not in write group {number}")
            offset = stretch.first
            while offset < stretch.end:
                slot = self._table.find(stretch.queue_id)
                if slot == NO_SLOT or self._table.get(slot, COMMITTED_END) < stretch.end:
                    raise RepairRefused(f"node {self._node_id} does not have queue {stretch.queue_id:#x} that far")
                try:
                    batches, next_offset = await self._read_path.committed(
                        stretch.queue_id, offset, READ_BYTES, gaps=call.request.gaps
                    )
                except (StorageError, OSError) as error:
                    raise RepairRefused(f"node {self._node_id}: {error}") from error
                content = b"".join(batch for batch in batches if read_batch_header(batch).base_offset < stretch.end)
                await self._rate.take(len(content))
                await self._pace(len(content))
                yield Reply(BatchesPart(place, crc32c(content)), content)
                offset = next_offset
