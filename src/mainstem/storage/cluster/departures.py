"""Removes the data of replicas that were moved away from this node.

    asked    a replica that placement has elsewhere, and that hears from no leader, asks the others for the members
    left     a confirmed leader said that this node is none: it leaves the write group, and remembers that
    emptied  queues and log, then the manifest, then a checkpoint; the write group's blocks in the journal are dead then
             and its segments indexed anew without them: if the write group comes back, the same offsets lie in
             younger ones

Only a committed membership deletes anything, never the metadata or its absence, and it deletes only data of that write
group: runs that hold other write groups too stay until those are gone as well. Files are removed as orphans are. A
replica that is still sending a snapshot is removed only after that.

Queues that have moved keep what they had here in write groups before (`stays_left`). A replica stays as long as this
node has one of the write group to which such queues went on, more than a guest's, though it be no member of the first
one any more: who leads them reads what they had. If the node is to follow again, as a guest, it goes on where its log
ends.

A node that gets a replica of the write group again begins with an empty log, as any new replica. A leader's record of
the old log cannot mislead it: the node was no member in between, and a member that hears from a leader does not leave.

After a crash in between, the next start empties the write group before it does anything else with the disks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy
import numpy.typing

from mainstem.model import slot_of
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.cluster import WRITE_GROUP_MEMBERS, MembersOf, WriteGroupMembers, WriteGroupsNotLed
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Reply
from mainstem.storage.cluster.write_group_replication import ELECTION_TICKS, TICK_SECONDS, WriteGroupReplication
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.journal.encoding.format import sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.state import write_group_queues
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.checkpointer import Checkpointer
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.state.stays_left import give_back, stays_left
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

ASK_SECONDS_MAX = 0.8 * ELECTION_TICKS * TICK_SECONDS
"""Less than an election timeout: a replica that heard from a leader meanwhile still knows it when the answer
arrives."""


class Departures:
    """Removes replicas of this node's write groups whose membership has ended, and answers other nodes that ask for the
    members."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        journal: Journal,
        store: QueueStore,
        checkpointer: Checkpointer,
        producers: ColdProducers,
        placement: Placement,
        replication: WriteGroupReplication,
        calls: Calls | None,
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._state = state
        self._journal = journal
        self._store = store
        self._checkpointer = checkpointer
        self._producers = producers
        self._placement = placement
        self._replication = replication
        self._calls = calls
        self._out: dict[int, object] = {}
        """By write group, the replica here that was no member of it at the last look. It may stay, for what reads it,
        but neither leads nor reads others."""

    def register(self, handlers: Handlers) -> None:
        handlers.unary(WRITE_GROUP_MEMBERS, self._members)

    async def finish(self) -> None:
        """Empty the write groups that this node has left and not emptied yet. Raises `StorageError`."""
        for group in self._groups:
            if self._replication.has_left(group.group):
                await self._empty(group)

    async def look(self, number: int, placed: Collection[int]) -> None:
        """Leave a write group that placement has on the nodes in `placed` and not here, if a leader says that this node
        is no member. Raises `StorageError`."""
        group = self._groups[number]
        self._out.pop(number, None)
        if (core := group.consensus.core) is not None:
            if not await self._is_out(group, placed):
                return
            self._out[number] = core
            if self._is_read(number):
                return
            log.info("write group %d: this node is no member any more; its data of the write group is removed", number)
            await self._replication.leave(number)
        if self._replication.has_left(number):
            await self._empty(group)

    def _is_read(self, number: int) -> bool:
        """Whether this node has a replica of another write group to which queues with records in this one have come, as
        its logs or the metadata say: it may lead that one yet, and reads what they had here. Behind its fence nobody
        serves a queue there: of one that has returned to this write group, whose log does not go on here any more, no
        other log would ever say so."""
        placement, unsettled, fences = self._placement, self._state.moves.unsettled, self._state.moves.fences
        for queue_id, stays in placement.moved.items():
            home, fence = stays[-1].group, fences.get(slot_of(queue_id))
            if fence is not None and fence.before == home:
                home = fence.to
            if home != number and self._may_lead(home) and any(it.group == number for it in stays):
                return True
        return any(
            number in unsettled(slot) and placement.slots[slot] != number and self._may_lead(placement.slots[slot])
            for slot in placement.others
        )

    def _may_lead(self, number: int) -> bool:
        """Whether this node has a replica of a write group, be it to come, is not a guest alone, and was not told that
        it is no member. Two write groups that both left, and between which queues have moved to and fro, would
        otherwise keep each other for ever; and what does not hear of commits any more keeps the journal."""
        consensus = self._groups[number].consensus
        if (core := consensus.core) is None:
            return False
        is_out = self._out.get(number) is core and not core.leader_id
        return self._state.moves.keeps(number) or not (is_out or self._node_id in consensus.learners)

    async def _is_out(self, group: WriteGroup, placed: Collection[int]) -> bool:
        core = group.consensus.core
        if self._calls is None or core is None or core.leader_id:
            return False
        for node_id in sorted(set(placed) - {self._node_id}):
            try:
                reply = await self._calls.call(
                    node_id, WRITE_GROUP_MEMBERS, MembersOf(group.group), timeout_seconds=ASK_SECONDS_MAX
                )
            except (WriteGroupsNotLed, RpcError):
                continue
            members = reply.message
            if group.consensus.core is not core or core.leader_id or members.index < core.commit_index:
                return False
            return self._node_id not in members.members
        return False

    async def _members(self, call: RpcCall[MembersOf]) -> Reply[WriteGroupMembers]:
        """Answer the members of a write group, once a majority has confirmed that this node leads it. Raises
        `WriteGroupsNotLed`."""
        number = call.request.group
        group = self._groups[number] if number < len(self._groups) else None
        if group is None:
            raise WriteGroupsNotLed(f"node {self._node_id} has no write group {number}")
        try:
            await group.consensus.confirm()
        except StorageError as error:
            raise WriteGroupsNotLed(str(error)) from error
        core = group.consensus.core
        if core is None or not group.serving:
            raise WriteGroupsNotLed(str(group.consensus.not_the_leader()))
        committed = core.commit_index
        return Reply(WriteGroupMembers(committed, sorted(core.membership_at(committed).members)))

    # --- emptied ------------------------------------------------------------------------------------------

    async def _empty(self, group: WriteGroup) -> None:
        number = group.group
        if not (
            group.last_index
            or self._state.manifest.written(number)
            or self._store.stored.file_count(number)
            or self._state.remote.position(number).number
        ):
            return
        if self._store.being_copied.is_kept(number):
            return
        await group.all_written()
        if group.consensus.failure is not None:
            raise StorageError(f"write group {number} is not removed: {group.consensus.failure}")

        async def forget() -> None:
            await self._forget(group)

        await self._checkpointer.save_after(forget)
        log.info("write group %d: its data here is removed, but for files that are still to be deleted", number)

    def _has_gone_on(self, group: int, queue_ids: QueueIds) -> numpy.typing.NDArray[numpy.bool_]:
        """Which queues take batches in another write group by now. The replica of that here may not have come to their
        arrival, and no other log says where they begin."""
        gone: numpy.typing.NDArray[numpy.bool_] = self._placement.routes_of(queue_ids) != group
        return gone

    def _remains(self, number: int) -> bool:
        """Whether this node has something of a write group that stays."""
        return not self._replication.has_left(number) and self._groups[number].last_index > 0

    async def _forget(self, group: WriteGroup) -> None:
        """Remove everything of a write group, as if it had never been here; no other task changes it meanwhile. The
        order matters: while log or manifest hold anything, the next start does it again."""
        state, journal = self._state, self._journal
        state.journal_map.superseded(group.group, 1, group.blocks.places(), last_data=0)
        try:
            await journal.index_anew({sequence_of(position) for position in state.journal_map.dead})
        except OSError as error:
            raise StorageError(f"write group {group.group} is not removed: {error}") from error
        await self._producers.replace(group.group, b"")
        number, placement = group.group, self._placement
        left = stays_left(placement, number, self._remains)
        await give_back(state.table, state.index, left, lambda queue_id: placement.group_of(queue_id) != number)
        in_group = write_group_queues.only_in_group(placement, number)
        kept = write_group_queues.rows(state.table, lambda ids: in_group(ids) & self._has_gone_on(number, ids))
        await write_group_queues.replace(state.table, in_group, b"".join([piece async for piece in kept]))
        state.journal_map.superseded(group.group, 1, group.begin_anew(), last_data=0)
        state.moves.forget(number)
        await state.manifest.forget(group.group)
        await state.remote.forget(group.group)
