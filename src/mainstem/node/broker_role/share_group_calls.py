"""The deletion of a share group: each node forgets the part of its state that it serves."""

from __future__ import annotations

import asyncio

from mainstem.broker.share_groups.share_reads import ShareReads
from mainstem.model import NodeRole
from mainstem.nameserver.nameserver import Nameserver
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.shares import FORGET_SHARE_GROUP, ForgetShareGroup, ShareGroupForgotten
from mainstem.rpc.wire.method import Reply

FORGET_SECONDS_MAX = 5.0
"""Longer than an append takes on a loaded node."""


class ShareGroupCalls:
    """Asks the other nodes, all at once."""

    def __init__(self, node_id: int, nameserver: Nameserver) -> None:
        self._node_id = node_id
        self._nameserver = nameserver

    async def forget(self, group_id: str) -> bool:
        """Whether every other broker that lives has forgotten the group. One that does not answer may have state of it,
        which another node would take over."""
        others = self._nameserver.others
        if others is None:
            return True
        nodes = [
            node.node_id
            for node in self._nameserver.lookups.alive_nodes()
            if node.node_id != self._node_id and NodeRole.BROKER in node.roles
        ]
        return all(await asyncio.gather(*(self._ask(node_id, group_id) for node_id in nodes)))

    async def _ask(self, node_id: int, group_id: str) -> bool:
        others = self._nameserver.others
        assert others is not None
        try:
            reply = await others.calls.call(
                node_id, FORGET_SHARE_GROUP, ForgetShareGroup(group_id), timeout_seconds=FORGET_SECONDS_MAX
            )
        except RpcError:
            return False
        return reply.message.forgotten


def serve_share_groups(handlers: Handlers, shares: ShareReads) -> None:
    """Forget share groups that other nodes delete."""

    async def forgotten(call: RpcCall[ForgetShareGroup]) -> Reply[ShareGroupForgotten]:
        return Reply(ShareGroupForgotten(await shares.forget_group(call.request.group_id)))

    handlers.unary(FORGET_SHARE_GROUP, forgotten)
