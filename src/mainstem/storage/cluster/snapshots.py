"""Snapshots of write groups between nodes: this module is the end of the member that is too far behind.

    offered    the leader asks; this node fetches the files that it lacks, and keeps whole ones whatever happens next
               (`snapshot_files`)
    fetched    all files and the state are here: the write group's core is told
    installed  manifests, then memory, then a checkpoint are replaced; only then the core goes on behind the snapshot

A crash leaves, step by step: runs that the manifest does not name (removed as orphans, or found by the next attempt); a
manifest ahead of the old log, which goes on (`logs_behind.check_replicas`); the snapshot. It never leaves a mixture: no
checkpoint is made of a write group that is half replaced (`Checkpointer.save_after`). Blocks of the old log are dead
from then on, wherever they lie in the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.raft import Snapshot
from mainstem.raft.messages import InstallSnapshot
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.snapshots import (
    FETCH_FILE,
    FETCH_WRITE_GROUP_SNAPSHOT,
    OFFER_WRITE_GROUP_SNAPSHOT,
    PRODUCERS,
    QUEUES,
    TOPICS,
    TRANSACTIONS,
    FetchWriteGroupSnapshot,
    OfferWriteGroupSnapshot,
    WriteGroupSnapshotRefused,
)
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.cluster.snapshot_files import FileSender, SnapshotFiles
from mainstem.storage.cluster.snapshot_sending import AT_ONCE, ByteRate, SnapshotSending
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.placement import Placement, slots_of
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.state import write_group_queues
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.checkpointer import Checkpointer
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.state.snapshot_image import WriteGroupImage, joined
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)

FETCH_SECONDS_MAX = 600.0
"""Seconds for one call that brings name, runs and state."""

RETRY_SECONDS = 5.0
"""The pause between attempts to save an installed snapshot."""


class Arrived(NamedTuple):
    """A snapshot whose content is here, on its way through the core."""

    image: WriteGroupImage
    files: SnapshotFiles
    installed: asyncio.Future[None]


class Snapshots:
    """Takes offered snapshots, installs them in this node's write groups, and has the leader's end send others."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        store: QueueStore,
        checkpointer: Checkpointer,
        producers: ColdProducers,
        placement: Placement,
        pacing: Pacing,
        clock: Clock,
        was_deleted: Callable[[int], bool],
        calls: Calls | None,
        supervision: Supervision,
        *,
        bytes_per_second: int,
        keeps_own: bool,
    ) -> None:
        """`keeps_own`: what is split here was durable on a majority, so that every snapshot has it, too."""
        self._node_id = node_id
        self._groups = groups
        self._state = state
        self._store = store
        self._checkpointer = checkpointer
        self._producers = producers
        self._placement = placement
        self._was_deleted = was_deleted
        self._calls = calls
        self._keeps_own = keeps_own
        self._pace = partial(pacing.take, Lane.COPY)
        self._sending = SnapshotSending(
            groups,
            state.table,
            store,
            producers,
            state.remote,
            state.moves,
            calls,
            self._pace,
            ByteRate(clock, bytes_per_second),
        )
        self._taking: set[int] = set()
        self._arrived: dict[int, Arrived] = {}
        self._tasks = Errands(supervision, "snapshot of a write group")
        self._installs = Errands(supervision, "snapshot of a write group that is installed")
        self._closing = False
        self.installed = 0
        for group in groups:
            self.grow(group)

    def grow(self, group: WriteGroup) -> None:
        """Give snapshots of this write group, too."""
        group.blocks.snapshots_come_from(partial(self._index_of, group))

    def register(self, handlers: Handlers) -> None:
        handlers.unary(OFFER_WRITE_GROUP_SNAPSHOT, self._take)
        handlers.stream(FETCH_WRITE_GROUP_SNAPSHOT, self._sending.give)
        handlers.stream(FETCH_FILE, self._sending.give_run)

    def _index_of(self, group: WriteGroup) -> int:
        """The index of the snapshot that a leader can give: its split position, once it has applied that much. It may
        not have committed anything in its term yet: the member may be the one it needs for a majority."""
        split = self._state.manifest.written(group.group)
        gives = group.consensus.leads and group.applied_index >= split and self._calls is not None
        return split if gives else -1

    # --- what the groups want -----------------------------------------------------------------------------

    def send(self, group: int, message: InstallSnapshot) -> None:
        self._tasks.start(self._sending.send(self._groups[group], message))

    def install(self, number: int, name: Snapshot) -> None:
        arrived = self._arrived.pop(number, None)
        group = self._groups[number]
        if arrived is None or arrived.image.name != name:
            asyncio.get_running_loop().call_soon(group.consensus.snapshot_failed, name)
        else:
            self._tasks.start(self._install(group, arrived))

    async def close(self) -> None:
        """Cancel what is being sent; wait for what is being installed."""
        self._closing = True
        self._tasks.cancel()
        while self._tasks or self._installs:  # a task may begin an install
            await self._tasks.ended()
            await self._installs.ended()

    # --- offered ------------------------------------------------------------------------------------------

    async def _take(self, call: RpcCall[OfferWriteGroupSnapshot]) -> Reply[Nothing]:
        """Raises `WriteGroupSnapshotRefused`."""
        assert call.node is not None, "the method is for nodes only"
        number, sender = call.request.group, call.node.node_id
        group = self._groups[number] if number < len(self._groups) else None
        if group is None or group.consensus.core is None or self._closing:
            raise WriteGroupSnapshotRefused(f"node {self._node_id} has no part in write group {number} now")
        if number in self._taking or len(self._taking) >= AT_ONCE:
            raise WriteGroupSnapshotRefused(f"{len(self._taking)} snapshots are being taken already; try again later")
        self._taking.add(number)
        try:
            await self._take_from(sender, group, call.request.term)
        except (RpcError, StorageError, OSError, ValueError) as error:
            log.warning("write group %d: no snapshot taken from node %d: %s", number, sender, error)
            raise WriteGroupSnapshotRefused(f"node {self._node_id}: {error}") from error
        finally:
            self._taking.discard(number)
        return Reply(Nothing())

    async def _take_from(self, sender: int, group: WriteGroup, term: int) -> None:
        assert self._calls is not None, "nobody offers snapshots to a node without calls"
        files = SnapshotFiles(
            self._store,
            self._placement,
            group.group,
            FileSender(self._calls, sender, self._pace),
            keeps_own=self._keeps_own,
        )
        try:
            image = await files.take(partial(self._fetch, sender, group))
            arrived = Arrived(image, files, asyncio.get_running_loop().create_future())
            self._arrived[group.group] = arrived
            group.consensus.snapshot_received(sender, term, image.name)
            if self._arrived.pop(group.group, None) is not None:
                log.info("write group %d: the snapshot of node %d is not needed any more", group.group, sender)
                return
            await asyncio.shield(arrived.installed)
        finally:
            files.let_go()

    async def _fetch(self, sender: int, group: WriteGroup, with_state: bool) -> WriteGroupImage:
        assert self._calls is not None, "nobody offers snapshots to a node without calls"
        request = FetchWriteGroupSnapshot(group.group, with_state)
        image = await joined(
            self._calls.stream(sender, FETCH_WRITE_GROUP_SNAPSHOT, request, timeout_seconds=FETCH_SECONDS_MAX)
        )
        self._state.moves.remember(image.moves)  # before its files are looked into
        return image

    # --- installed ----------------------------------------------------------------------------------------

    async def _install(self, group: WriteGroup, arrived: Arrived) -> None:
        """Install a snapshot, once no block of the old log is on its way to the journal, and the term is durable with
        which it came: no start takes a log of a later term than its votes. From then on it cannot be broken off."""
        try:
            await group.all_written()
        except asyncio.CancelledError:
            arrived.installed.cancel()
            raise
        self._installs.start(self._finish(group, arrived))

    async def _finish(self, group: WriteGroup, arrived: Arrived) -> None:
        image, core = arrived.image, group.consensus.core
        ranges, kept_upto = arrived.files.ranges, arrived.files.kept_upto
        replaced = False

        async def replace() -> None:
            nonlocal replaced
            if (remote := image.remote) is not None:
                await self._state.remote.supersede(group.group, remote.position, remote.notes, remote.files)
            await self._state.manifest.supersede(group.group, image.name.index, ranges, kept_upto)
            replaced = True
            await self._replace(group, image)

        try:
            if group.consensus.failure is not None:
                raise group.consensus.failure
            await self._saved(replace, lambda: replaced)
        except Exception as error:
            log.error(
                "write group %d: the snapshot at block %d is not installed: %s",
                group.group,
                image.name.index,
                error,
            )
            if not replaced and group.consensus.core is core:
                group.consensus.snapshot_failed(image.name)
            arrived.installed.set_exception(StorageError(f"write group {group.group}: {error}"))
            arrived.installed.exception()  # its caller may be gone
            return
        self.installed += 1
        log.info(
            "write group %d goes on behind a snapshot at block %d; its files of blocks up to %d have stayed",
            group.group, image.name.index, kept_upto,
        )  # fmt: skip
        if group.consensus.core is core:
            group.consensus.snapshot_installed(image.name)
        arrived.installed.set_result(None)

    def _replaceable(self, number: int, image: WriteGroupImage) -> write_group_queues.Belongs:
        """Tells which queues are in a write group, and were in no other, neither by the logs here nor by its snapshot.
        The other queues are known from other write groups, too."""
        placement = self._placement
        in_group = write_group_queues.in_group(placement, number)
        left = numpy.array(list(image.moves.fences), numpy.intp)

        def replaceable(queue_ids: QueueIds) -> numpy.typing.NDArray[numpy.bool_]:
            moved = numpy.fromiter(placement.moved, numpy.uint64, len(placement.moved))
            return in_group(queue_ids) & ~numpy.isin(queue_ids, moved) & ~numpy.isin(slots_of(queue_ids), left)

        return replaceable

    async def _saved(self, replace: Callable[[], Coroutine[None, None, None]], replaced: Callable[[], bool]) -> None:
        """Replace, and save the result. A replacement cannot be taken back, so saving is retried until it succeeds or
        the node stops; the disk then still has the old log. Raises the error that prevents the replacement."""
        while True:
            try:
                if replaced():
                    await self._checkpointer.save()
                else:
                    await self._checkpointer.save_after(replace)
                return
            except (StorageError, OSError) as error:
                if not replaced() or self._closing:
                    raise
                log.error("no checkpoint of a snapshot that was taken, it is tried again: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _replace(self, group: WriteGroup, image: WriteGroupImage) -> None:
        """Replace the write group's state in memory by the snapshot's; no other task changes the write group
        meanwhile."""
        state, table = self._state, self._state.table
        await self._producers.replace(group.group, bytes(image.state[PRODUCERS]))
        existing = await write_group_queues.create(table, bytes(image.state[TOPICS]), self._was_deleted)
        for topic_number in table.topics():
            if topic_number not in existing and self._was_deleted(topic_number):
                table.drop(topic_number)
                state.waiters.wake_topic(topic_number)
        await write_group_queues.replace(table, self._replaceable(group.group, image), bytes(image.state[QUEUES]))
        group.transactions.load_image(bytes(image.state[TRANSACTIONS]))
        places = group.restart_behind(image.name)
        state.moves.learn(group.group, image.name.index, image.moves)
        group.hold()
        state.journal_map.superseded(group.group, image.name.index + 1, places, last_data=0)  # in the runs, all of it

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_snapshots_sent_total", "counter", "Snapshots of write groups that members took.",
            self._sending.sent)  # fmt: skip
        yield Sample(
            "mainstem_snapshots_sent_bytes_total", "counter", "Bytes of runs sent for snapshots of write groups.",
            self._sending.sent_bytes)  # fmt: skip
        yield Sample(
            "mainstem_snapshots_installed_total", "counter", "Snapshots of write groups taken here.",
            self.installed)  # fmt: skip
