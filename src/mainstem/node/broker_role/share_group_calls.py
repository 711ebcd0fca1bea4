"""The share groups' state on other nodes, and this node's end towards them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from mainstem.broker.share_groups.records import SharedPartition
from mainstem.broker.share_groups.share_states import NewStart, ShareStanding, ShareStates
from mainstem.model import NodeRole
from mainstem.nameserver.nameserver import Nameserver
from mainstem.protocol.error_codes import ErrorCode
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.shares import (
    BEGIN_ANEW,
    BEGUN,
    FORGET_SHARE_GROUP,
    STANDINGS,
    AskBegun,
    AskStandings,
    BeginAnew,
    BegunAnew,
    BegunTold,
    ForgetShareGroup,
    ShareGroupForgotten,
    StandingsTold,
    StandingTold,
)
from mainstem.rpc.wire.method import Method, Reply

ASK_SECONDS_MAX = 5.0
"""Longer than an append takes on a loaded node."""

Told = TypeVar("Told", bound=msgspec.Struct)


class ShareGroupCalls:
    """`broker.share_groups.share_states.OtherShareNodes`, over calls."""

    def __init__(self, node_id: int, nameserver: Nameserver) -> None:
        self._node_id = node_id
        self._nameserver = nameserver

    def brokers(self) -> Iterable[int]:
        """One that does not answer may have state of a group, which another node would take over."""
        return [
            node.node_id
            for node in self._nameserver.lookups.alive_nodes()
            if node.node_id != self._node_id and NodeRole.BROKER in node.roles
        ]

    async def begun(self, node_id: int, group_id: str) -> list[SharedPartition] | None:
        told = await self._ask(node_id, BEGUN, AskBegun(group_id))
        if told is None or told.partitions is None:
            return None
        return [SharedPartition(*named) for named in told.partitions]

    async def standings(
        self, node_id: int, group_id: str, partitions: Sequence[SharedPartition]
    ) -> list[ShareStanding] | None:
        told = await self._ask(
            node_id, STANDINGS, AskStandings(group_id, [(each.topic_id, each.partition) for each in partitions])
        )
        if told is None or len(told.standings) != len(partitions):
            return None
        return [
            ShareStanding(
                partition,
                _code(row.error),
                start=row.start,
                done=row.done,
                leader_epoch=row.leader_epoch,
                log_start=row.log_start,
                end=row.end,
            )
            for partition, row in zip(partitions, told.standings, strict=True)
        ]

    async def begin(
        self, node_id: int, group_id: str, state_epoch: int, starts: Sequence[NewStart]
    ) -> list[ErrorCode] | None:
        rows = [(*start.partition, start.start) for start in starts]
        told = await self._ask(node_id, BEGIN_ANEW, BeginAnew(group_id, state_epoch, rows))
        if told is None or len(told.codes) != len(starts):
            return None
        return [_code(code) for code in told.codes]

    async def forget(self, node_id: int, group_id: str) -> bool:
        told = await self._ask(node_id, FORGET_SHARE_GROUP, ForgetShareGroup(group_id))
        return told is not None and told.forgotten

    async def _ask(self, node_id: int, method: Method[Any, Told], question: Any) -> Told | None:
        others = self._nameserver.others
        assert others is not None
        try:
            reply = await others.calls.call(node_id, method, question, timeout_seconds=ASK_SECONDS_MAX)
        except RpcError:
            return None
        return reply.message


def _code(number: int) -> ErrorCode:
    """A node of a later version may know more codes."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def serve_share_groups(handlers: Handlers, states: ShareStates) -> None:
    """Answer other nodes, of the state that this one serves."""

    async def forgotten(call: RpcCall[ForgetShareGroup]) -> Reply[ShareGroupForgotten]:
        return Reply(ShareGroupForgotten(await states.forget_group_here(call.request.group_id)))

    async def begun(call: RpcCall[AskBegun]) -> Reply[BegunTold]:
        found = await states.begun_here(call.request.group_id)
        return Reply(BegunTold(None if found is None else [(each.topic_id, each.partition) for each in found]))

    async def standings(call: RpcCall[AskStandings]) -> Reply[StandingsTold]:
        asked = [SharedPartition(*named) for named in call.request.partitions]
        found = await states.standings_here(call.request.group_id, asked)
        rows = [
            StandingTold(int(row.error), row.start, row.done, row.leader_epoch, row.log_start, row.end) for row in found
        ]
        return Reply(StandingsTold(rows))

    async def begun_anew(call: RpcCall[BeginAnew]) -> Reply[BegunAnew]:
        asked = call.request
        starts = [NewStart(SharedPartition(topic_id, index), start) for topic_id, index, start in asked.starts]
        codes = await states.begin_here(asked.group_id, asked.state_epoch, starts)
        return Reply(BegunAnew([int(code) for code in codes]))

    handlers.unary(FORGET_SHARE_GROUP, forgotten)
    handlers.unary(BEGUN, begun)
    handlers.unary(STANDINGS, standings)
    handlers.unary(BEGIN_ANEW, begun_anew)
