"""Replicas that have left this node: what it held of their groups goes.

    asked    a replica that placement has elsewhere, and that hears from no leader, asks the others who is a member
    left     a leader of now said that this node is none: it has no part in the group any more, and remembers that
    emptied  queues and log, then the manifest, then a checkpoint; what the journal has of the group is dead from then
             on

Only a membership that is committed deletes anything, never what the metadata says or lacks, and only what is of that
group: runs that have other groups in them stay, until those are gone as well. Files go the way of orphans. Who gives a
snapshot of the group still is left alone until it is given.

A node that is to have a replica of the group again begins with an empty log, as any other. What a leader knew of its
old log cannot mislead it: it was no member in between, and a member that hears from a leader does not leave.

A crash in between leaves a group that was left and is not empty; the next start empties it before anything else is
done with the disks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from mainstem.rpc.cluster import GROUP_MEMBERS, GroupMembers, MembersOf
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Call, Handlers
from mainstem.rpc.method import Reply
from mainstem.rpc.queues import GroupsNotLed
from mainstem.storage import group_queues
from mainstem.storage.applied import AppliedState
from mainstem.storage.checkpointer import Checkpointer
from mainstem.storage.cold_producers import ColdProducers
from mainstem.storage.errors import StorageError
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.replication import ELECTION_TICKS, TICK_SECONDS, Replication
from mainstem.storage.snapshot_image import Calls
from mainstem.storage.write_group import WriteGroup

log = logging.getLogger(__name__)

ASK_SECONDS_MAX = 0.8 * ELECTION_TICKS * TICK_SECONDS
"""Less than an election timeout: whoever heard from a leader meanwhile still knows of it when the answer is there."""


class Departures:
    """Of all groups of a node."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        store: QueueStore,
        checkpointer: Checkpointer,
        producers: ColdProducers,
        placement: Placement,
        replication: Replication,
        calls: Calls | None,
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._state = state
        self._store = store
        self._checkpointer = checkpointer
        self._producers = producers
        self._placement = placement
        self._replication = replication
        self._calls = calls

    def register(self, handlers: Handlers) -> None:
        handlers.unary(GROUP_MEMBERS, self._members)

    async def finish(self) -> None:
        """Empty what was left and is not empty. Raises `StorageError`."""
        for group in self._groups:
            if self._replication.has_left(group.group):
                await self._empty(group)

    async def look(self, number: int, placed: Collection[int]) -> None:
        """Placement has no replica of this group here, but on these nodes: leave, if a leader says that this node is no
        member. Raises `StorageError`."""
        group = self._groups[number]
        if group.consensus.core is not None and not await self._is_out(group, placed):
            return
        if group.consensus.core is not None:
            log.info("write group %d: this node is no member any more, what it has of it is removed", number)
            await self._replication.leave(number)
        if self._replication.has_left(number):
            await self._empty(group)

    async def _is_out(self, group: WriteGroup, placed: Collection[int]) -> bool:
        core = group.consensus.core
        if self._calls is None or core is None or core.leader_id:
            return False
        for node_id in sorted(set(placed) - {self._node_id}):
            try:
                reply = await self._calls.call(
                    node_id, GROUP_MEMBERS, MembersOf(group.group), timeout_seconds=ASK_SECONDS_MAX
                )
            except (GroupsNotLed, RpcError):
                continue
            members = reply.message
            if group.consensus.core is not core or core.leader_id or members.index < core.commit_index:
                return False
            return self._node_id not in members.members
        return False

    async def _members(self, call: Call[MembersOf]) -> Reply[GroupMembers]:
        """As a majority confirms it now. Raises `GroupsNotLed`."""
        number = call.request.group
        group = self._groups[number] if number < len(self._groups) else None
        if group is None:
            raise GroupsNotLed(f"node {self._node_id} has no write group {number}")
        try:
            await group.consensus.confirm()
        except StorageError as error:
            raise GroupsNotLed(str(error)) from error
        core = group.consensus.core
        if core is None or not group.serving:
            raise GroupsNotLed(str(group.consensus.not_the_leader()))
        committed = core.commit_index
        return Reply(GroupMembers(committed, sorted(core.membership_at(committed).members)))

    # --- emptied ------------------------------------------------------------------------------------------

    async def _empty(self, group: WriteGroup) -> None:
        number = group.group
        if not (group.last_index or self._store.split_position(number) or self._store.file_count(number)):
            return
        if self._store.is_kept(number):
            return
        await group.all_written()
        if group.consensus.failure is not None:
            raise StorageError(f"write group {number} is not removed: {group.consensus.failure}")

        async def forget() -> None:
            await self._forget(group)

        await self._checkpointer.save_after(forget)
        log.info("write group %d: nothing of it is left here but files to be removed", number)

    async def _forget(self, group: WriteGroup) -> None:
        """Let it be as if the group had never been here. Nothing else changes it meanwhile. In this order: as long as
        log or manifest have anything, it is done again."""
        state = self._state
        await self._producers.replace(group.group, b"")
        await group_queues.replace(
            state.table, lambda queue_ids: self._placement.groups_of(queue_ids) == group.group, b""
        )
        state.journal_map.superseded(group.group, 1, group.begin_anew())
        await state.manifest.forget(group.group)
