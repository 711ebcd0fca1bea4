"""Asks other nodes about the lag of groups, and answers them."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.group_lag.group_lags import GroupLags
from mainstem.broker.group_lag.queue_facts import ClientAsked, LagFacts, QueueAsked, QueueFacts, QueueFactsHere
from mainstem.group_lag import GroupLag
from mainstem.protocol.error_codes import ErrorCode
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.group_lag import (
    ASK_GROUP_LAG,
    ASK_LAG_FACTS,
    AskGroupLag,
    AskLagFacts,
    GroupLagTold,
    LagFactsTold,
)
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Reply

ASK_SECONDS_MAX = 5.0
"""A node may have to read messages from its disks."""


class GroupLagCalls:
    """`broker.group_lag.group_lags.OtherLagNodes`, over calls."""

    def __init__(self, calls: SingleCalls) -> None:
        self._calls = calls

    async def facts(
        self, node_id: int, queues: Sequence[QueueAsked], clients: Sequence[ClientAsked]
    ) -> LagFacts | None:
        question = AskLagFacts(
            [(asked.queue_id, asked.first) for asked in queues], [(client.client_id, client.host) for client in clients]
        )
        try:
            reply = await self._calls.call(node_id, ASK_LAG_FACTS, question, timeout_seconds=ASK_SECONDS_MAX)
        except RpcError:
            return None
        told = reply.message
        return LagFacts([None if row is None else QueueFacts(*row) for row in told.queues], told.throttled)

    async def group(self, node_id: int, group_id: str) -> GroupLag | ErrorCode | None:
        try:
            reply = await self._calls.call(
                node_id, ASK_GROUP_LAG, AskGroupLag(group_id), timeout_seconds=ASK_SECONDS_MAX
            )
        except RpcError:
            return None
        if reply.message.lag is not None:
            return reply.message.lag
        try:
            return ErrorCode(reply.message.refusal)
        except ValueError:  # of a later version
            return None


def serve_group_lag(handlers: Handlers, here: QueueFactsHere, lags: GroupLags) -> None:
    """Answer other nodes, of the queues and groups that this one serves."""

    async def facts(call: RpcCall[AskLagFacts]) -> Reply[LagFactsTold]:
        found = await here.facts(
            [QueueAsked(*asked) for asked in call.request.queues],
            [ClientAsked(*client) for client in call.request.clients],
        )
        queues = [None if each is None else (each.log_start, each.end, each.time_ms) for each in found.queues]
        return Reply(LagFactsTold(queues, list(found.throttled)))

    async def group(call: RpcCall[AskGroupLag]) -> Reply[GroupLagTold]:
        try:
            return Reply(GroupLagTold(await lags.of_group_here(call.request.group_id)))
        except CoordinatorRefusal as refusal:
            return Reply(GroupLagTold(refusal=int(refusal.code)))

    handlers.unary(ASK_LAG_FACTS, facts)
    handlers.unary(ASK_GROUP_LAG, group)
