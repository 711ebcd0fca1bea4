"""The `QueueAdmin` of a node among others makes changes of queues at the leaders of their write groups.

A leader may change during a call. Every change here may be made twice without harm, so it is repeated at the new leader
until it is done, or the time is over. No write group waits for another's leader: a node that hangs, or a write group
without a leader, delays only its own changes. Deletions do not wait for a write group without a leader: its next leader
learns from the metadata what is deleted (`LocalQueueAdmin.settle`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from mainstem.errors import LeaderMissing, LeaderUntold, MainstemError, StorageUnavailable
from mainstem.model import QueueRange, QueueUsage
from mainstem.ports import Clock
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.cluster import (
    CREATE_QUEUES,
    DELETE_QUEUES,
    RANGES_MAX,
    CreateQueues,
    DeleteQueues,
    WriteGroupsNotLed,
)
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.errors import ChangesFailed, NotTheLeader

log = logging.getLogger(__name__)

CHANGE_SECONDS_MAX = 10.0
"""Longer than any election; clients wait thirty seconds by default."""
CALL_SECONDS_MAX = 3.0
LEADER_KNOWN_SECONDS = 3.0
"""A write group has no leader once this node has known of none for so long: a leader that no majority hears gives up
within an election timeout, a second or two. A node that has just started, or was cut off, knows of no leader though
there is one, which would go on serving what a deletion takes away."""

PAUSE_SECONDS = 0.1
NO_LEADER = -1

Change = Callable[[Collection[int]], Coroutine[Any, Any, None]]
ChangeThere = Callable[[int, list[int]], Coroutine[Any, Any, None]]


class OwnQueues(Protocol):
    """The queues of the write groups that this node leads, as `LocalQueueAdmin` has them. A node without storage leads
    none, and asks their leaders for what concerns one write group."""

    def groups_with(self, ranges: Sequence[QueueRange]) -> set[int]: ...

    async def create_in(self, groups: Collection[int], ranges: Sequence[QueueRange]) -> None: ...

    async def delete_in(self, groups: Collection[int], topic_numbers: Sequence[int]) -> None: ...

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]: ...

    async def own(self, queue_id: int, *, held: int | None = None) -> int: ...

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None: ...

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]: ...


class ClusterQueueAdmin:
    """The `ports.QueueAdmin` over all write groups of the cluster, and the handlers of the calls that other nodes
    make."""

    def __init__(
        self,
        own: OwnQueues,
        node_id: int,
        groups: int,
        leader_of: Callable[[int], int],
        calls: SingleCalls,
        clock: Clock,
        deletion_known: Callable[[Sequence[int]], Awaitable[None]] | None = None,
    ) -> None:
        """`leader_of` names the node that leads a write group, -1 when none is known; `deletion_known` returns once
        this node has heard that the topics of these numbers are deleted."""
        self._own = own
        self._node_id = node_id
        self._groups = groups
        self._leader_of = leader_of
        self._calls = calls
        self._clock = clock
        self._deletion_known = deletion_known

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._groups = groups

    def register(self, handlers: Handlers) -> None:
        handlers.unary(CREATE_QUEUES, self._create)
        handlers.unary(DELETE_QUEUES, self._delete)

    # --- ports.QueueAdmin ---------------------------------------------------------------------------------

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        """Create queues. Raises `NotTheLeader` when a write group has had no leader for long, or the error of its
        leader."""
        for first in range(0, len(ranges), RANGES_MAX):
            part = ranges[first : first + RANGES_MAX]
            await self._everywhere(
                self._own.groups_with(part),
                partial(self._own.create_in, ranges=part),
                partial(self._create_at, part),
            )

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        """Delete the queues of topics. Write groups of which no leader comes to be known are left to their next one.
        Raises `LeaderUntold` when an existing leader could not be told."""
        for first in range(0, len(topic_numbers), RANGES_MAX):
            part = list(topic_numbers[first : first + RANGES_MAX])

            await self._everywhere(
                range(self._groups),
                partial(self._own.delete_in, topic_numbers=part),
                partial(self._delete_at, part),
                waits_for_leaders=False,
            )

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        """Move log starts of queues that this node leads. The answer for others is `NotTheLeader`: clients ask the
        leader."""
        return await self._own.truncate(before)

    async def own(self, queue_id: int, *, held: int | None = None) -> int:
        """Become the only writer of a queue that this node leads. Raises `NotTheLeader` for others."""
        return await self._own.own(queue_id, held=held)

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None:
        return await self._own.epoch_end(queue_id, leader_epoch)

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        return await self._own.usage(queue_ids)

    # --- everywhere ---------------------------------------------------------------------------------------

    async def _everywhere(
        self, groups: Collection[int], here: Change, there: ChangeThere, *, waits_for_leaders: bool = True
    ) -> None:
        """Make a change in each write group at its leader, again where the leader refused, until it is made. If a
        leader fails, the others finish before that is raised: a change that stops half-way is nobody's wish. Raises
        `ChangesFailed` naming the write groups that failed."""
        began = self._clock.monotonic()
        deadline, known_by = began + CHANGE_SECONDS_MAX, began + LEADER_KNOWN_SECONDS
        left, why = set(groups), ""
        failed: dict[int, Exception] = {}
        asked: dict[asyncio.Task[None], tuple[int, list[int]]] = {}
        """Per call under way, its node and its write groups."""
        try:
            while left:
                idle = left.difference(*(led for _, led in asked.values()))
                by_leader = self._by_leader(idle)
                if leaderless := by_leader.pop(NO_LEADER, None):
                    why = f"write groups {leaderless} have no leader"
                    if not waits_for_leaders and self._clock.monotonic() >= known_by:
                        log.warning("%s: their next leaders delete what is deleted now", why)
                        left.difference_update(leaderless)
                for node_id, led in by_leader.items():
                    work = here(led) if node_id == self._node_id else there(node_id, led)
                    asked[asyncio.ensure_future(work)] = (node_id, led)
                refused = await self._any_answer(asked, left, failed, waits=bool(leaderless))
                why = refused or why
                if left and self._clock.monotonic() >= deadline:
                    kind: type[LeaderMissing] = NotTheLeader if waits_for_leaders else LeaderUntold
                    raise kind(f"write groups {sorted(left)} could not be changed: {why}; try again")
                if refused:
                    await asyncio.sleep(PAUSE_SECONDS)
            if failed:
                unforeseen = next((error for error in failed.values() if not isinstance(error, MainstemError)), None)
                raise unforeseen or ChangesFailed(failed)
        finally:
            for call in asked:
                call.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _by_leader(self, groups: Collection[int]) -> dict[int, list[int]]:
        by_leader: dict[int, list[int]] = {}
        for group in sorted(groups):
            by_leader.setdefault(self._leader_of(group), []).append(group)
        return by_leader

    async def _any_answer(
        self,
        asked: dict[asyncio.Task[None], tuple[int, list[int]]],
        left: set[int],
        failed: dict[int, Exception],
        *,
        waits: bool,
    ) -> str:
        """Take finished calls out of `asked`, and the write groups that are done, or `failed`, out of `left`; wait for
        one call, but only for a moment where there is more to ask. Returns why a call was refused, if one was."""
        if not asked:
            await asyncio.sleep(PAUSE_SECONDS if left else 0)
            return ""
        over, _ = await asyncio.wait(
            asked, timeout=PAUSE_SECONDS if waits else None, return_when=asyncio.FIRST_COMPLETED
        )
        why = ""
        for call in over:
            node_id, led = asked.pop(call)
            try:
                call.result()
            except (NotTheLeader, RpcError) as error:
                why = f"node {node_id}: {error}"
                continue
            except Exception as error:
                groups = error.groups if isinstance(error, StorageUnavailable) else frozenset()
                failed.update(dict.fromkeys(groups.intersection(led) or led, error))
            left.difference_update(led)
        return why

    async def _create_at(self, ranges: Sequence[QueueRange], node_id: int, groups: list[int]) -> None:
        wanted = [(one.topic_number, one.first_partition, one.count) for one in ranges]
        request = CreateQueues(groups, wanted)
        await self._calls.call(node_id, CREATE_QUEUES, request, timeout_seconds=CALL_SECONDS_MAX)

    async def _delete_at(self, topic_numbers: list[int], node_id: int, groups: list[int]) -> None:
        request = DeleteQueues(groups, topic_numbers)
        await self._calls.call(node_id, DELETE_QUEUES, request, timeout_seconds=CALL_SECONDS_MAX)

    # --- what other nodes ask -----------------------------------------------------------------------------

    async def _create(self, call: RpcCall[CreateQueues]) -> Reply[Nothing]:
        request = call.request
        self._check(request.groups)
        try:
            await self._own.create_in(request.groups, [QueueRange(*entry) for entry in request.ranges])
        except NotTheLeader as error:
            raise WriteGroupsNotLed(str(error)) from error
        return Reply(Nothing())

    async def _delete(self, call: RpcCall[DeleteQueues]) -> Reply[Nothing]:
        self._check(call.request.groups)
        if self._deletion_known is not None:
            # a client that is told of a deletion finds the topic gone on every node that leads a write group
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    await self._deletion_known(call.request.topic_numbers)
            except TimeoutError:
                raise WriteGroupsNotLed("this node has not heard of the deletion yet") from None
        try:
            await self._own.delete_in(call.request.groups, call.request.topic_numbers)
        except NotTheLeader as error:
            raise WriteGroupsNotLed(str(error)) from error
        return Reply(Nothing())

    def _check(self, groups: Sequence[int]) -> None:
        unknown = [group for group in groups if group >= self._groups]
        if unknown:
            raise WriteGroupsNotLed(f"this cluster has {self._groups} write groups, {unknown[0]} is none of them")
