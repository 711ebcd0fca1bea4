"""The audit's end towards other nodes: a node that serves no partition of the topic hands its records to one that
does."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.audit_writer import AuditWriter
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.audit import HAND_AUDIT, AuditRecords, AuditTaken
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Reply

HAND_SECONDS_MAX = 5.0
"""Longer than an append takes on a loaded node. One call at a time: what comes meanwhile waits within its bound."""


class AuditCalls:
    """`calls`: None where there are no other nodes."""

    def __init__(self, calls: SingleCalls | None) -> None:
        self._calls = calls

    async def hand(self, node_id: int, records: Sequence[bytes]) -> bool:
        """Whether a node has these records in the topic. Raises RpcError."""
        if self._calls is None:
            return False
        request = AuditRecords(list(records))
        reply = await self._calls.call(node_id, HAND_AUDIT, request, timeout_seconds=HAND_SECONDS_MAX)
        return reply.message.taken


def serve_audit(handlers: Handlers, writer: AuditWriter) -> None:
    """Append what other nodes hand in."""

    async def taken(call: RpcCall[AuditRecords]) -> Reply[AuditTaken]:
        return Reply(AuditTaken(await writer.take_over(call.request.records)))

    handlers.unary(HAND_AUDIT, taken)
