"""The leader's end of snapshots: it offers one to a member whose next block the journal does not have any more, and
gives the parts that the member then asks for. While a member fetches a snapshot, retention drops no run of its write
group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from mainstem.kernel import QueueTable, crc32c
from mainstem.ports import Clock
from mainstem.raft.messages import InstallSnapshot
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.snapshots import (
    OFFER_WRITE_GROUP_SNAPSHOT,
    FetchFile,
    FetchWriteGroupSnapshot,
    FilePart,
    OfferWriteGroupSnapshot,
    WriteGroupSnapshotPart,
    WriteGroupSnapshotRefused,
)
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.copies.file_copy import ByteRange
from mainstem.storage.queue_store.reading.open_files import FileGone
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.state.slot_moves import SlotMoves
from mainstem.storage.state.snapshot_image import parts
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Offers of a node at a time: each further one only makes the others slower."""

OFFER_SECONDS_MAX = 24 * 3600.0
"""Terabytes, over a slow link. The connection notices when the other end is gone."""

PAUSE_SECONDS = 2.0
"""The pause before a member that took no snapshot is offered another."""

PIECE_BYTES = 256 * 1024
"""Bytes of a run that are read and sent at a time."""


class ByteRate:
    """Bounds the bytes a second of all callers together; 0: no bound."""

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._paid_until = 0.0

    async def take(self, size: int) -> None:
        if not self._bytes_per_second:
            return
        now = self._clock.monotonic()
        self._paid_until = max(self._paid_until, now) + size / self._bytes_per_second
        await asyncio.sleep(self._paid_until - now)


class SnapshotSending:
    """Offers and sends the snapshots of the write groups that this node leads."""

    def __init__(
        self,
        groups: Sequence[WriteGroup],
        table: QueueTable,
        store: QueueStore,
        producers: ColdProducers,
        remote: RemoteTier,
        moves: SlotMoves,
        calls: Calls | None,
        pace: Callable[[int], Awaitable[object]],
        rate: ByteRate,
    ) -> None:
        """`pace` is awaited before bytes are read."""
        self._groups = groups
        self._table = table
        self._store = store
        self._producers = producers
        self._remote = remote
        self._moves = moves
        self._calls = calls
        self._pace = pace
        self._rate = rate
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.sent = 0
        self.sent_bytes = 0

    async def send(self, group: WriteGroup, message: InstallSnapshot) -> None:
        """Offer a member the newest snapshot, and tell the write group whether it was taken."""
        ok = False
        try:
            async with self._slots:
                ok = group.term == message.term and await self._offer(group, message)
            if not ok:
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            group.consensus.snapshot_sent(message.to, ok=ok)

    async def _offer(self, group: WriteGroup, message: InstallSnapshot) -> bool:
        assert self._calls is not None, "no snapshot can be had without calls"
        log.info(
            "write group %d: node %d lacks blocks that are split already, it is offered a snapshot at block %d",
            group.group, message.to, message.snapshot.index,
        )  # fmt: skip
        offer = OfferWriteGroupSnapshot(group.group, message.term, message.snapshot.index)
        try:
            with self._store.being_copied.kept(group.group):
                await self._calls.call(message.to, OFFER_WRITE_GROUP_SNAPSHOT, offer, timeout_seconds=OFFER_SECONDS_MAX)
        except RpcError as error:
            log.warning("write group %d: node %d has taken no snapshot: %s", group.group, message.to, error)
            return False
        self.sent += 1
        return True

    async def give(self, call: RpcCall[FetchWriteGroupSnapshot]) -> AsyncIterator[Reply[WriteGroupSnapshotPart]]:
        """Raises `WriteGroupSnapshotRefused`."""
        number = call.request.group
        if number >= len(self._groups):
            raise WriteGroupSnapshotRefused(f"there is no write group {number}")
        group = self._groups[number]
        async for part in parts(
            group,
            self._store,
            self._table,
            self._producers,
            self._remote,
            self._moves,
            with_state=call.request.with_state,
        ):
            yield part

    async def give_run(self, call: RpcCall[FetchFile]) -> AsyncIterator[Reply[FilePart]]:
        """Raises `WriteGroupSnapshotRefused`."""
        name, ranges = call.request.name, [ByteRange(*one) for one in call.request.ranges]
        copies = self._store.copies
        try:
            async for piece in copies.part(name, ranges, PIECE_BYTES) if ranges else copies.pieces(name, PIECE_BYTES):
                await self._rate.take(len(piece))
                await self._pace(len(piece))
                self.sent_bytes += len(piece)
                yield Reply(FilePart(crc32c(piece), bool(ranges)), piece)
        except FileGone as error:  # whoever mends its own asks everybody
            raise WriteGroupSnapshotRefused(f"run {name}: {error}") from error
        except (StorageError, OSError) as error:
            log.error("run %s cannot be given to %s: %s", name, call.peer, error)
            raise WriteGroupSnapshotRefused(f"run {name}: {error}") from error
