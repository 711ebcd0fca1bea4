"""Calls to the leaders of write groups: a call that a node refuses because it does not lead is made once more, to the
node that does.

A leader changes within a second or two. Leadership is soft state that every node hears of by its heartbeats, so a call
waits for that rather than ask around."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.model import Buffer
from mainstem.rpc.errors import NotServed, RpcError
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
from mainstem.rpc.other_nodes import CallsWithBytes
from mainstem.rpc.wire.method import Method, Reply, ReplyT, RequestT
from mainstem.storage_link.errors import NoLeader, StorageUnreached

LEADER_WAIT_SECONDS = 3.0
"""Longer than an election takes, with the heartbeats that tell of it; clients wait ten times as long for an answer."""

LOOK_SECONDS = 0.01
"""Between two looks at who leads."""

AGAIN_SECONDS = 0.25
"""A node that refuses although it is the newest leader known may have yet to apply what it leads: it is asked again
after so long."""

CALL_SECONDS_MAX = 10.0


class LeaderAt(NamedTuple):
    """The node that leads a write group, -1: none is known; and its term."""

    node_id: int
    term: int


class LeaderCalls:
    """`heard` names the leader of a write group and its term, as this node has heard; `led_here` says of a node that
    stores whether that is itself, which it does not call."""

    def __init__(
        self,
        calls: CallsWithBytes,
        heard: Callable[[int], tuple[int, int]],
        led_here: Callable[[int], bool] = lambda group: False,
    ) -> None:
        self.calls = calls
        self._heard = heard
        self._led_here = led_here

    def now(self, group: int) -> LeaderAt:
        return LeaderAt(*self._heard(group))

    async def moved(self, group: int, refused: LeaderAt) -> LeaderAt:
        """The leader, once it is another than the one that refused; or that one again after a moment. Raises
        `NoLeader`, at once where this node leads by now: whoever asked has to begin anew here."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            if self._led_here(group):
                raise NoLeader(f"write group {group} is led by this node by now; try again")
            leader = self.now(group)
            waited = loop.time() - began
            if leader.node_id != -1 and (leader != refused or waited >= AGAIN_SECONDS):
                return leader
            if waited >= LEADER_WAIT_SECONDS:
                raise NoLeader(f"write group {group} has no leader that this broker has heard of; try again")
            await asyncio.sleep(LOOK_SECONDS)

    async def call(
        self,
        group: int,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float = CALL_SECONDS_MAX,
    ) -> Reply[ReplyT]:
        """Ask the leader; where it has moved, the next one. Raises the method's other refusals, `NoLeader`, and
        `StorageUnreached` when it is unknown whether the call took effect."""
        leader = self.now(group)
        if leader.node_id == -1:
            leader = await self.moved(group, leader)
        try:
            return await self._ask(leader, method, request, attachment, timeout_seconds)
        except (WriteGroupsNotLed, NoLeader):
            leader = await self.moved(group, leader)
        try:
            return await self._ask(leader, method, request, attachment, timeout_seconds)
        except WriteGroupsNotLed as error:
            raise NoLeader(
                f"write group {group}: node {leader.node_id} does not lead it: {error}; try again"
            ) from error

    async def _ask(
        self,
        leader: LeaderAt,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        attachment: Sequence[Buffer],
        timeout_seconds: float,
    ) -> Reply[ReplyT]:
        try:
            return await self.calls.call(leader.node_id, method, request, attachment, timeout_seconds=timeout_seconds)
        except RpcError as error:
            if type(error) in method.refusals:
                raise
            if never_arrived(error) or isinstance(error, NotServed):
                raise NoLeader(f"node {leader.node_id} is not there: {error}") from error
            raise StorageUnreached(f"node {leader.node_id}: {error}") from error


def never_arrived(error: RpcError) -> bool:
    """Whether the call cannot have taken effect: its process is gone."""
    return isinstance(error.__cause__, ConnectionRefusedError)
